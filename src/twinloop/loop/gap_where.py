"""Where a twin's error lives: replay it with its best parameters, and read what nested models said before."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.core.records import Episode
from twinloop.gap.thinning import Part, part_within
from twinloop.gap.unexplained import unexplained
from twinloop.gap.unexplained_result import Unexplained
from twinloop.identify.compare import compare
from twinloop.identify.compare_result import ALPHA, LEAST_GAIN
from twinloop.identify.config import FitConfig
from twinloop.identify.structures import chosen_structures
from twinloop.randomize import read_identified
from twinloop.simulate import Backend
from twinloop.simulate.physics_rate import at_physics_rate
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayLogs, ReplayOptions, prepare_replay
from twinloop.twin import Twin

_ENDS = (("estimate", "improvement"), ("low", "low"), ("high", "high"))


def where_it_lives(
    twin: Twin,
    episodes: Sequence[Episode],
    *,
    backend: Backend,
    params: ParamDistribution,
    options: ReplayOptions | None = None,
    floor: NDArray[Any] | None = None,
    physics_hz: float = 240.0,
    steps: float = 2e6,
    part: Part | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> Unexplained:
    """What the identified twin leaves over of the nominal one's error, in which events and on which states.

    Every parameter is moved a little once, so that there are as many replays as parameters, and two.

    Args:
        twin: the twin.
        episodes: held out from the fit of ``params``.
        backend: where the replays run.
        params: the identified parameters, with the noise of the fit where it is known.
        options: how episodes are cut and what is compared.
        floor: mean square of real-against-real repeats, halved, by channel.
        physics_hz: rate of the physics, at most the twin's own; that of a fit and of an attribution by default.
        steps: physics steps of all replays together; of a longer log a part is replayed, evenly spread.
        part: what is replayed instead, so that shares are those of an attribution to the same part.
        level: of the intervals.
        seed: of resamples.

    Raises:
        LogError: the episodes do not fit the twin.
        InputError: a replay diverges.
    """
    coarse, asked = at_physics_rate(twin, physics_hz), options or ReplayOptions()
    known = {name: value for name, value in params.estimate.items() if name in coarse.params}
    moved = _one_error_off(params, known)
    part = part or part_within(coarse, episodes, asked, worlds=2 + len(moved), steps=steps)
    logs = prepare_replay(coarse, part.episodes, part.options)
    nominal = replay(backend, logs, logs.twin.table(1))[0]
    best, tangents = best_and_tangents(backend, logs, known, moved)
    noise = params.noise if params.noise is not None and params.noise.hz == logs.twin.control_hz else None
    found = unexplained(
        logs, best, values=known, nominal=nominal, noise=noise, floor=floor, tangents=tangents, level=level, seed=seed
    )
    return replace(found, part=part.why)


def best_and_tangents(
    backend: Backend, logs: ReplayLogs, values: Mapping[str, float], moved: Mapping[str, float]
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Readings ``(nwindow, nframe, nchannel)``, and how they change when one parameter after another moves.

    The changes are ``(nparam, nwindow, nframe, nchannel)``, None where nothing moves.

    Args:
        backend: where the replays run.
        logs: the windows.
        values: parameters to start from, SI.
        moved: where each parameter is moved to.
    """
    table = logs.twin.table(1 + len(moved), {name: np.full(1 + len(moved), value) for name, value in values.items()})
    rows = table.values.copy()
    for row, (name, value) in enumerate(moved.items(), start=1):
        rows[row, table.names.index(name)] = value
    readings = replay(backend, logs, ParamTable(names=table.names, values=rows))
    if not moved:
        return readings[0], None
    return readings[0], np.where(np.isinf(readings[1:]), 0.0, readings[1:] - readings[:1])


def _one_error_off(params: ParamDistribution, known: Mapping[str, float]) -> dict[str, float]:
    """Every parameter one standard error from its estimate, within its bounds."""
    off = {}
    for i, name in enumerate(params.names):
        sd = math.sqrt(max(float(params.covariance[i, i]), 0.0))
        if name in known and sd > 0:
            there = known[name] * math.exp(min(sd, 1.0)) if params.transforms[i] == "log" else known[name] + sd
            back = max(2 * known[name] - there, float(params.low[i]))  # the other way where this one leaves the bounds
            off[name] = there if there <= params.high[i] else back
    return off


@dataclass(frozen=True, kw_only=True)
class NestedModel:
    """One structure of a comparison: improvement of the held-out error with its interval, and the verdict.

    ``p_value`` is adjusted by Holm over all that were compared.
    """

    name: str
    meaning: str
    improvement: float
    low: float
    high: float
    p_value: float
    verdict: str

    @property
    def missing(self) -> bool:
        """Whether it is named as missing from the base fit."""
        return self.verdict.startswith("MISSING")


@dataclass(frozen=True, kw_only=True)
class NestedModels:
    """What nested models said of the twin on episodes that they had not seen; those not compared with the reason."""

    twin: str
    rows: tuple[NestedModel, ...]
    skipped: Mapping[str, str]
    source: str

    def sentences(self) -> list[str]:
        """What is missing, what else helps, or that nothing is."""
        found = [row for row in self.rows if row.p_value <= ALPHA and row.improvement >= LEAST_GAIN]
        if not found:
            names = ", ".join(row.name for row in self.rows) or "none"
            return [f"Nested models: none of {len(self.rows)} structures takes error away on new episodes ({names})."]
        order = sorted(found, key=lambda row: (not row.missing, -row.improvement))
        return [
            f"Nested models: {row.name} ({row.meaning}) takes {row.improvement:.0%} ({row.low:.0%} to {row.high:.0%}) "
            f"of the held-out error away, Holm p {row.p_value:.2g}: {row.verdict}."
            for row in order
        ]

    def to_json(self) -> dict[str, Any]:
        """A plain form for files (schema 1)."""
        return {
            "schema": 1,
            "twin": self.twin,
            "source": self.source,
            "structures": [vars(row) for row in self.rows],
            "not_compared": dict(self.skipped),
            "sentences": self.sentences(),
        }


def read_nested(path: Path) -> NestedModels:
    """The comparison of structures that an earlier ``twinloop identify --compare`` stored.

    Raises:
        InputError: no such run, or one without a comparison.
    """
    found = nested_of(read_identified(path), str(path))
    if found is None:
        raise InputError(
            f"{path} compared no structures. Run `twinloop identify --twin … --data … --compare --output …` and give "
            "its folder."
        )
    return found


def nested_of(run: Mapping[str, Any], source: str) -> NestedModels | None:
    """The comparison of structures within the result of an identify run; None where it made none."""
    compared = run.get("structures")
    return _nested(compared, source) if compared else None


def compare_nested(
    twin: Twin,
    episodes: Sequence[Episode],
    names: Sequence[str],
    *,
    backend: Backend,
    config: FitConfig | None = None,
    folds: int = 3,
) -> NestedModels:
    """Fit rival structures now, each with and without its physics, judged on folds that they have not seen."""
    found = compare(twin, episodes, backend=backend, structures=chosen_structures(names), folds=folds, config=config)
    return _nested(found.to_json(), "compared now")


def _nested(compared: Mapping[str, Any], source: str) -> NestedModels:
    rows, skipped = [], {}
    for row in compared["structures"]:
        gain = row["improvement"]
        if gain is None:
            skipped[row["name"]] = row["not_applicable"]
            continue
        rows.append(
            NestedModel(
                name=row["name"],
                meaning=row["meaning"],
                **{to: math.nan if gain[key] is None else float(gain[key]) for key, to in _ENDS},
                p_value=float(row["p_holm"]),
                verdict=row["verdict"],
            )
        )
    return NestedModels(twin=compared["twin"], rows=tuple(rows), skipped=skipped, source=source)
