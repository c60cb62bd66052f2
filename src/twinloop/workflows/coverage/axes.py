"""Represent real and simulated episodes as points in the space of the randomized parameters."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twinloop.core.distribution import ParamDistribution
from twinloop.core.documents import MOST_LINES_BYTES, read_text
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
    """The configuration, plan and axes from which the first simulated folder was generated."""

    folder: Path
    config: GenerateConfig
    plan: Plan
    axes: tuple[ParameterAxis, ...]


@dataclass(frozen=True, kw_only=True)
class ParameterSpace:
    """Simulated and real episodes as points on the randomized axes.

    ``sim`` ``(m, d)`` has all axes; ``real`` ``(n, d)`` is NaN for unknown values; ``known`` are the columns that every
    real episode has. ``pairs`` are cells of two parameters, the emptiest first. ``holes`` are boxes with real but too
    few simulated episodes, ``failures`` boxes in which simulated episodes fail; their axes are columns.
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
    """Return the generation source of the first generated folder of a side, or None and the reason."""
    why = "no simulated episode is in a dataset folder"
    for folder in side.folders:
        reader = DatasetReader(folder)
        config = read_root_config(reader) if reader.ours else {}
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
    """Measure the coverage of the parameter space.

    Args:
        real: real episodes.
        sim: simulated episodes.
        generated: source of the axes.
        real_params: a CSV file or the folder of an identify run with known parameters of the real episodes.
        patterns: names of axes to analyse; all if empty.
        seed: seed of permutations and draws.

    Raises:
        InputError: the file does not match the episodes.
        UnknownNameError: a pattern matches no axis.
    """
    rows, source = load_real_values(real, generated, real_params, seed)
    axes = list(generated.axes)
    known_here = [name for name in find_known_names(rows) if any(axis.name == name for axis in axes)]
    if patterns:
        axes = select_axes(axes, [axis.name for axis in axes], patterns)
    points, theirs = compute_points(axes, rows), compute_points(axes, [member.params for member in sim.members])
    whole = np.isfinite(theirs).all(axis=1)
    known = tuple(i for i, axis in enumerate(axes) if axis.name in known_here)
    holes = _find_holes(axes, points, theirs[whole], known, seed)
    pairs = select_pair_columns(axes, MOST_PAIR_AXES)
    shown = sorted({*pairs, *(column for box in holes for column in box.axes)})
    return ParameterSpace(
        axes=tuple(axes),
        real=points,
        sim=theirs,
        known=known,
        cells=tuple(count_parameter_cells(axes, points, theirs, sim.success)),
        pairs=tuple(count_pair_cells(axes, points, theirs, sim.success, shown)),
        holes=holes,
        failures=find_failure_boxes(theirs[whole], sim.success[whole], pair_axes=pairs, seed=seed),
        source=source,
    )


def _find_holes(
    axes: Sequence[ParameterAxis], real: Array, sim: Array, known: tuple[int, ...], seed: int
) -> tuple[CellBox, ...]:
    """Return boxes in which real episodes are more frequent than simulated ones; their axes are columns of all axes."""
    if not known or not len(sim):
        return ()
    columns = list(known)
    pairs = select_pair_columns([axes[i] for i in columns], MOST_PAIR_AXES)
    found = scan_boxes(real[:, columns], sim[:, columns], pair_axes=pairs, seed=seed)
    return tuple(replace(box, axes=tuple(columns[axis] for axis in box.axes)) for box in found)


def load_real_values(
    real: EpisodeSide, generated: GenerationSource, source: Path | None, seed: int
) -> tuple[list[Mapping[str, float]], str]:
    """Return the known parameters of the real episodes, one mapping per row, and their source.

    Raises:
        InputError: the file lacks episodes, or is neither a table nor a run.
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
    lines = list(csv.DictReader(io.StringIO(read_text(path, MOST_LINES_BYTES), newline="")))
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
