"""Represent real and simulated episodes as points in the space of the randomized parameters.

The points show where real episodes occur but no simulated ones, and where simulated episodes fail.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twinloop.core.distribution import ParamDistribution
from twinloop.core.documents import MAX_LINES_BYTES, read_text
from twinloop.core.errors import InputError
from twinloop.core.seeds import uniforms
from twinloop.curate.cells import (
    MOST_PAIR_AXES,
    CellBox,
    ParameterCell,
    ParameterPairCell,
    count_pair_cells,
    count_parameter_cells,
    find_failure_boxes,
    scan_boxes,
)
from twinloop.curate.parameters import (
    ParameterAxis,
    compute_points,
    find_known_names,
    list_parameter_axes,
    select_axes,
    select_pair_columns,
)
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.generate.config import GenerateConfig, load_plan
from twinloop.generate.replay import read_root_config
from twinloop.randomize import JointDraw, Plan, identified_draws, read_identified
from twinloop.workflows.coverage.sides import EpisodeSide, SideEpisode

Array = NDArray[np.float64]
_DRAWN = 256  # draws that represent an identified distribution (our choice)


@dataclass(frozen=True, kw_only=True)
class GenerationSource:
    """Generate run that made the first simulated dataset, and its randomized parameters.

    Attributes:
        folder: the dataset folder.
        config: configuration of the generate run.
        plan: plan of its randomization.
        axes: the randomized parameters; an axis is one number that was drawn per episode.
    """

    folder: Path
    config: GenerateConfig
    plan: Plan
    axes: tuple[ParameterAxis, ...]


@dataclass(frozen=True, kw_only=True)
class ParameterSpace:
    """Simulated and real episodes as points in the space of the d randomized parameters (axes).

    Normalized values are 0 at the lower and 1 at the upper end of an axis; real values may be outside.

    Attributes:
        axes: the d analysed axes.
        real: normalized values of the n real episodes ``(n, d)``; NaN if unknown.
        sim: normalized values of the m simulated episodes ``(m, d)``.
        known: indices of the axes whose values are known for every real episode.
        cells: intervals of one axis, with the numbers of real and simulated episodes in them.
        pairs: rectangles of two axes, with the numbers of real and simulated episodes in them; the emptiest come first.
        holes: boxes (ranges of one or two axes) with real but too few simulated episodes; axes are given by index.
        failures: boxes in which simulated episodes fail more often than elsewhere.
        source: origin of the real values, for the user.
    """

    axes: tuple[ParameterAxis, ...]
    real: Array
    sim: Array
    known: tuple[int, ...]
    cells: tuple[ParameterCell, ...]
    pairs: tuple[ParameterPairCell, ...]
    holes: tuple[CellBox, ...]
    failures: tuple[CellBox, ...]
    source: str


def find_generation_source(side: EpisodeSide) -> tuple[GenerationSource | None, str]:
    """Return the generate run of the first simulated dataset that was generated with randomized parameters.

    Args:
        side: the simulated episodes.

    Returns:
        The run, or None if there is no such dataset; and the reason why there is none, or "".
    """
    why = "no simulated episode is in a dataset folder"
    for folder in side.folders:
        reader = DatasetReader(folder)
        config = read_root_config(reader) if reader.written_by_twinloop else {}
        if "generate" not in config:
            why = f"{folder} was not generated from a randomization"
            continue
        resolved = GenerateConfig.model_validate(config["generate"])
        plan = load_plan(resolved)
        if plan.twin.hash != reader.spec.twin_hash:
            why = f"the twin {plan.twin.name} has changed since {folder} was generated"
            continue
        axes = tuple(list_parameter_axes(plan))
        if axes:
            return GenerationSource(folder=folder, config=resolved, plan=plan, axes=axes), ""
        why = f"no parameter was randomized per episode in {folder}"
    return None, why


def measure_parameter_space(
    real: EpisodeSide,
    sim: EpisodeSide,
    generated: GenerationSource,
    *,
    real_params: Path | None,
    patterns: Sequence[str],
    seed: int,
) -> ParameterSpace:
    """Count real and simulated episodes in the space of the randomized parameters, and find holes and failures in it.

    Args:
        real: the real episodes.
        sim: the simulated episodes.
        generated: the generate run that defines the axes.
        real_params: a CSV file, or the folder of an identify run, with parameters of the real episodes; None to use
            those recorded with the episodes.
        patterns: names or patterns of the axes to analyse; all axes if empty.
        seed: seed of permutations and draws.

    Raises:
        InputError: If the file does not match the episodes.
        UnknownNameError: If a pattern matches no axis.
    """
    rows, source = load_real_values(real, generated, real_params, seed)
    axes = list(generated.axes)
    known_here = [name for name in find_known_names(rows) if any(axis.name == name for axis in axes)]
    if patterns:
        axes = select_axes(axes, [axis.name for axis in axes], patterns)
    points, simulated = compute_points(axes, rows), compute_points(axes, [member.params for member in sim.members])
    whole = np.isfinite(simulated).all(axis=1)
    known = tuple(i for i, axis in enumerate(axes) if axis.name in known_here)
    holes = _find_holes(axes, points, simulated[whole], known, seed)
    pairs = select_pair_columns(axes, MOST_PAIR_AXES)
    shown = sorted({*pairs, *(column for box in holes for column in box.axes)})
    return ParameterSpace(
        axes=tuple(axes),
        real=points,
        sim=simulated,
        known=known,
        cells=tuple(count_parameter_cells(axes, points, simulated, sim.success)),
        pairs=tuple(count_pair_cells(axes, points, simulated, sim.success, shown)),
        holes=holes,
        failures=find_failure_boxes(simulated[whole], sim.success[whole], pair_axes=pairs, seed=seed),
        source=source,
    )


def _find_holes(
    axes: Sequence[ParameterAxis], real: Array, sim: Array, known: tuple[int, ...], seed: int
) -> tuple[CellBox, ...]:
    """Return boxes in which real episodes are more frequent than simulated ones.

    Args:
        axes: all d axes.
        real: normalized values of the real episodes ``(n, d)``.
        sim: normalized values of the simulated episodes ``(m, d)``.
        known: indices of the axes whose real values are known; only these are searched.
        seed: seed of the permutations.
    """
    if not known or not len(sim):
        return ()
    columns = list(known)
    pairs = select_pair_columns([axes[i] for i in columns], MOST_PAIR_AXES)
    found = scan_boxes(real[:, columns], sim[:, columns], pair_axes=pairs, seed=seed)
    return tuple(replace(box, axes=tuple(columns[axis] for axis in box.axes)) for box in found)


def load_real_values(
    real: EpisodeSide, generated: GenerationSource, source: Path | None, seed: int
) -> tuple[list[Mapping[str, float]], str]:
    """Return known parameters of the real episodes, in SI units by name, and a text that names their source.

    Args:
        real: the real episodes.
        generated: the generate run whose randomized parameters are the axes of the parameter space.
        source: a CSV file, or the folder of an identify run; None to use the values recorded with the episodes.
        seed: seed of the draws.

    Returns:
        One mapping per real episode, or for an identify run one per draw from its distribution; and the text.

    Raises:
        InputError: If the file lacks episodes, or is neither a table nor an identify run.
    """
    if source is None:
        rows = [member.params for member in real.members]
        return rows, "recorded with the episodes" if any(rows) else "nothing"
    if source.suffix == ".csv":
        return _read_parameter_table(source, real.members), f"{source}"
    return _draw_identified(source, generated, seed), f"{_DRAWN} draws of the distribution identified in {source}"


def _read_parameter_table(path: Path, members: Sequence[SideEpisode]) -> list[Mapping[str, float]]:
    if not path.is_file():
        raise InputError(
            f"{path} does not exist. Give a CSV file with a column episode and one per parameter, in SI units."
        )
    lines = list(csv.DictReader(io.StringIO(read_text(path, MAX_LINES_BYTES), newline="")))
    if not lines or "episode" not in lines[0]:
        raise InputError(
            f"{path} has no column episode (its number or its name); it has {', '.join(lines[0] if lines else [])}."
        )
    by_name = {line.pop("episode"): line for line in lines}
    found: list[Mapping[str, float]] = []
    for number, member in enumerate(members):
        line = by_name.get(member.episode_id, by_name.get(str(number)))
        if line is None:
            raise InputError(f"{path} has no row for {member.title} (episode {number}, {member.episode_id[:12]}).")
        try:
            found.append({name: float(value) for name, value in line.items()})
        except (TypeError, ValueError):
            raise InputError(f"{path}: the row of {member.title} has a value that is not a number: {line}.") from None
    return found


def _draw_identified(path: Path, generated: GenerationSource, seed: int) -> list[Mapping[str, float]]:
    distribution = ParamDistribution.from_json(read_identified(path)["distribution"])
    twin = generated.plan.twin
    joint = next(draw for draw in identified_draws(twin, distribution) if isinstance(draw, JointDraw))
    numbers = np.arange(_DRAWN)

    def chance(trial: int, rows: NDArray[np.intp]) -> Array:
        return uniforms(seed, "coverage/identified", numbers[rows], size=joint.size, step=trial)

    values = joint.values(twin, _DRAWN, chance)
    return [{name: float(column[i]) for name, column in values.items()} for i in range(_DRAWN)]
