"""Locate a twin's unexplained error by replays, and read earlier comparisons of nested models."""

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
from twinloop.gap.attribution.thinning import ThinnedLog, thin_log
from twinloop.gap.dynamics.events import MEANINGS as EVENTS
from twinloop.gap.dynamics.unexplained import measure_unexplained
from twinloop.gap.dynamics.unexplained_events import EventClassError
from twinloop.gap.dynamics.unexplained_result import ALPHA as LEVEL
from twinloop.gap.dynamics.unexplained_result import (
    LEAST_SHARE,
    StateShare,
    UnexplainedResult,
    format_percent,
    is_relevant,
)
from twinloop.gap.dynamics.unexplained_states import MEANINGS as STATES
from twinloop.identify.compare import ALPHA, LEAST_GAIN, compare_structures
from twinloop.identify.config import FitConfig
from twinloop.identify.structures import select_structures
from twinloop.randomize import read_identified
from twinloop.report import ReportPage
from twinloop.report.gap_attribution import share_bars, share_forest
from twinloop.simulate import Backend
from twinloop.simulate.replay import change_physics_rate, replay
from twinloop.simulate.replay_logs import ReplayLogs, ReplayOptions, prepare_replay
from twinloop.twin import Twin

_ENDS = (("estimate", "improvement"), ("low", "low"), ("high", "high"))


def locate_unexplained_error(
    twin: Twin,
    episodes: Sequence[Episode],
    *,
    backend: Backend,
    params: ParamDistribution,
    options: ReplayOptions | None = None,
    floor: NDArray[Any] | None = None,
    physics_hz: float = 240.0,
    steps: float = 2e6,
    part: ThinnedLog | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> UnexplainedResult:
    """Measure the identified twin's remaining share of the nominal one's error, by events and states.

    Every parameter is perturbed once, so the number of replays is the number of parameters plus two.

    Args:
        twin: the twin.
        episodes: held out from the fit of ``params``.
        backend: runs the replays.
        params: the identified parameters, with the noise of the fit if it is known.
        options: windows of episodes and compared channels.
        floor: mean square of real-against-real repeats, halved, by channel.
        physics_hz: rate of the physics, at most the twin's; by default that of a fit and of an attribution.
        steps: physics steps of all replays together; of a longer log a part is replayed, evenly spaced.
        part: the replayed part instead, so that shares are those of an attribution to the same part.
        level: confidence level of the intervals.
        seed: seed of the resampling.

    Raises:
        LogError: the episodes do not fit the twin.
        InputError: a replay diverges.
    """
    coarse, asked = change_physics_rate(twin, physics_hz), options or ReplayOptions()
    known = {name: value for name, value in params.estimate.items() if name in coarse.params}
    moved = _perturb_by_standard_error(params, known)
    part = part or thin_log(coarse, episodes, asked, worlds=2 + len(moved), steps=steps)
    logs = prepare_replay(coarse, part.episodes, part.options)
    nominal = replay(backend, logs, logs.twin.table(1))[0]
    best, tangents = replay_with_tangents(backend, logs, known, moved)
    noise = params.noise if params.noise is not None and params.noise.hz == logs.twin.control_hz else None
    found = measure_unexplained(
        logs, best, values=known, nominal=nominal, noise=noise, floor=floor, tangents=tangents, level=level, seed=seed
    )
    return replace(found, part=part.why)


def replay_with_tangents(
    backend: Backend, logs: ReplayLogs, values: Mapping[str, float], moved: Mapping[str, float]
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return readings ``(nwindow, nframe, nchannel)``, and their changes if one parameter at a time is changed.

    The changes are ``(nparam, nwindow, nframe, nchannel)``, 0 for diverged replays; None if ``moved`` is empty.

    Args:
        backend: runs the replays.
        logs: the windows to replay.
        values: the unchanged parameters, in SI units.
        moved: the changed value of each parameter, in SI units.
    """
    table = logs.twin.table(1 + len(moved), {name: np.full(1 + len(moved), value) for name, value in values.items()})
    rows = table.values.copy()
    for row, (name, value) in enumerate(moved.items(), start=1):
        rows[row, table.names.index(name)] = value
    readings = replay(backend, logs, ParamTable(names=table.names, values=rows))
    if not moved:
        return readings[0], None
    return readings[0], np.where(np.isinf(readings[1:]), 0.0, readings[1:] - readings[:1])


def _perturb_by_standard_error(params: ParamDistribution, known: Mapping[str, float]) -> dict[str, float]:
    """Return every parameter moved by one standard error from its estimate, within its bounds."""
    off = {}
    for i, name in enumerate(params.names):
        sd = math.sqrt(max(float(params.covariance[i, i]), 0.0))
        if name in known and sd > 0:
            there = known[name] * math.exp(min(sd, 1.0)) if params.transforms[i] == "log" else known[name] + sd
            back = max(2 * known[name] - there, float(params.low[i]))  # used if ``there`` is out of bounds
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
        """True if the structure is reported as missing from the base fit."""
        return self.verdict.startswith("MISSING")


@dataclass(frozen=True, kw_only=True)
class NestedModels:
    """Results of nested models of the twin on held-out episodes; ``skipped`` has reasons of those not compared."""

    twin: str
    rows: tuple[NestedModel, ...]
    skipped: Mapping[str, str]
    source: str

    def sentences(self) -> list[str]:
        """Return sentences on missing physics, on other helpful structures, or that none is missing."""
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
        """Return a JSON-compatible dictionary for files (schema 1)."""
        return {
            "schema": 1,
            "twin": self.twin,
            "source": self.source,
            "structures": [vars(row) for row in self.rows],
            "not_compared": dict(self.skipped),
            "sentences": self.sentences(),
        }


def read_nested(path: Path) -> NestedModels:
    """Return the comparison of structures that an earlier ``twinloop identify --compare`` stored.

    Raises:
        InputError: there is no such run, or it has no comparison.
    """
    found = parse_nested(read_identified(path), str(path))
    if found is None:
        raise InputError(
            f"{path} compared no structures. Run `twinloop identify --twin … --data … --compare --output …` and give "
            "its folder."
        )
    return found


def parse_nested(run: Mapping[str, Any], source: str) -> NestedModels | None:
    """Return the comparison of structures in the result of an identify run; None if it has none."""
    compared = run.get("structures")
    return _build_nested(compared, source) if compared else None


def compare_nested(
    twin: Twin,
    episodes: Sequence[Episode],
    names: Sequence[str],
    *,
    backend: Backend,
    config: FitConfig | None = None,
    folds: int = 3,
) -> NestedModels:
    """Fit alternative structures, each with and without its physics, and compare them on held-out folds."""
    found = compare_structures(
        twin, episodes, backend=backend, structures=select_structures(names), folds=folds, config=config
    )
    return _build_nested(found.to_json(), "compared now")


def _build_nested(compared: Mapping[str, Any], source: str) -> NestedModels:
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


_MOST_ROWS = 24  # rows of a forest plot: significant ones, then the largest


def unexplained_section(page: ReportPage, found: UnexplainedResult) -> None:
    """Write shares, model terms to try first, events, states, and the worst moments."""
    names = [channel.removeprefix("position/") for channel in found.channels]
    page.section(
        "What no parameter explains",
        f"The mean squared error of the {found.reference} twin by channel: the part removed by the identified "
        f"parameters, noise ({found.noise_source}), and the unexplained rest. Over {found.episodes} episodes.",
    )
    page.plot(
        share_bars(
            names,
            {
                "explained by parameters": np.maximum(found.explained.estimate, 0.0),
                "explained by nothing in the twin": found.unexplained.estimate,
                "noise": found.noise.estimate,
            },
        )
    )
    for sentence in found.sentences():
        page.text(sentence)
    rows = [[name, *_format_shares(found, i)] for i, name in enumerate(names)]
    page.table(
        ["channel", "error left (RMS)", "unit", "explained", "unexplained", "noise", "predictable from states"],
        rows,
        caption="In parentheses the 95 % interval over episodes. Predictable is the part of the rest that the "
        "states below predict on held-out episodes: a better model could remove that much.",
    )
    if found.hints:
        page.table(
            ["channel", "where", "model term to try", "behind it", "evidence", "the test of it"],
            [
                [h.channel, h.rule.where, h.term, f"{h.share:.0%}", "; ".join(h.evidence), h.command()]
                for h in found.hints
            ],
            caption="Terms to try first, by rule; the command tests whether they are missing.",
        )
    _events(page, found)
    _states(page, found)
    _moments(page, found)


def nested_section(page: ReportPage, nested: NestedModels) -> None:
    """Add the results of nested models on held-out episodes."""
    page.section("What nested models say", " ".join(nested.sentences()))
    page.table(
        ["structure", "physics", "error it takes away", "p (Holm)", "verdict"],
        [
            [r.name, r.meaning, f"{r.improvement:+.1%} ({r.low:+.1%} to {r.high:+.1%})", f"{r.p_value:.2g}", r.verdict]
            for r in nested.rows
        ],
        caption="; ".join(f"{name} was not compared: {why}" for name, why in nested.skipped.items()),
    )


def _format_shares(found: UnexplainedResult, i: int) -> list[str]:
    rmse = [float(part[i]) for part in (found.rmse.estimate, found.rmse.low, found.rmse.high)]
    return [
        f"{rmse[0]:.3g} ({rmse[1]:.3g} to {rmse[2]:.3g})",
        found.units[i],
        format_percent(found.explained, i),
        format_percent(found.unexplained, i),
        format_percent(found.noise, i),
        format_percent(found.predicted, i),
    ]


def _events(page: ReportPage, found: UnexplainedResult) -> None:
    tested = [place for place in found.places if place.ratio is not None]
    if not tested:
        return
    tested.sort(key=lambda place: (not is_relevant(place), -_ratio_bounds(place)[0]))
    shown = tested[:_MOST_ROWS]
    page.section(
        "When it arises",
        f"New error per frame inside an event over that outside. {len(found.places)} events and channels and "
        f"{len(found.states)} states are tested together (Holm, {LEVEL:.0%}).",
    )
    ends = np.array([_ratio_bounds(place) for place in shown])
    page.plot(
        share_forest(
            [f"{place.channel.removeprefix('position/')}: {place.event}" for place in shown],
            ends[:, 0],
            (ends[:, 1], ends[:, 2]),
            [is_relevant(place) for place in shown],
            title="error per frame, inside over outside",
            null=1.0,
            words=[_describe_event(place) for place in shown],
        )
    )


def _states(page: ReportPage, found: UnexplainedResult) -> None:
    if not found.states:
        return
    rows = sorted(found.states, key=lambda s: (not _is_significant(s), -float(s.share.estimate)))[:_MOST_ROWS]
    page.section(
        "What it depends on",
        "Part of the rest that functions of a state predict on held-out "
        "episodes; `linear` is the part of the whole residual that slightly different parameters would explain.",
    )
    ends = 100 * np.array([[float(part) for part in (s.share.estimate, s.share.low, s.share.high)] for s in rows])
    page.plot(
        share_forest(
            [f"{s.channel.removeprefix('position/')}: {s.state}" for s in rows],
            ends[:, 0],
            (ends[:, 1], ends[:, 2]),
            [_is_significant(s) for s in rows],
            title="share of the residual's power / %",
            null=0.0,
            words=[f"{STATES[s.state]}: {format_percent(s.share, 0)}, p {s.p_value:.2g}" for s in rows],
        )
    )


def _moments(page: ReportPage, found: UnexplainedResult) -> None:
    unit = dict(zip(found.channels, found.units, strict=True))
    page.table(
        ["channel", "episode", "time / s", "new error", "unit", "what happens then"],
        [
            [m.channel, m.episode, round(m.time, 2), m.error, unit[m.channel], ", ".join(m.events) or "–"]
            for m in found.moments
        ],
        caption="The moments at which most error arises, worst first.",
    )


def _ratio_bounds(place: EventClassError) -> tuple[float, float, float]:
    ratio = place.ratio
    return (0.0, 0.0, 0.0) if ratio is None else (float(ratio.estimate), float(ratio.low), float(ratio.high))


def _describe_event(place: EventClassError) -> str:
    ratio, low, high = _ratio_bounds(place)
    held = "" if place.share is None else f", holds {format_percent(place.share, 0)} more of the error than its frames"
    return (
        f"{EVENTS[place.event]}: {ratio:.2f} times ({low:.2f} to {high:.2f}) in {place.frames:.0%} of the frames{held}"
        f", p {place.p_value:.2g}, {place.episodes} episodes"
    )


def _is_significant(state: StateShare) -> bool:
    return state.p_value <= LEVEL and float(state.share.estimate) >= LEAST_SHARE
