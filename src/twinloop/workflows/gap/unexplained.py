"""Locate the error that no parameter of a twin explains, and load or compute comparisons of nested models.

The error is located by replays of held-out episodes: at which events it arises and on which states it depends. A
comparison of nested models fits the twin with and without an additional physical effect (model structure).
"""

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
from twinloop.report.gap_attribution import plot_share_bars, plot_share_forest
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
    replayed_part: ThinnedLog | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> UnexplainedResult:
    """Measure how much of the nominal twin's error remains after identification, and at which events and states.

    Every parameter is perturbed once, so the number of replays is the number of parameters plus two.

    Args:
        twin: the twin.
        episodes: episodes that were held out from the fit of ``params``.
        backend: runs the replays.
        params: the identified parameters, with the noise of the fit if it is known.
        options: windows of episodes and compared channels.
        floor: half the mean squared difference between real repeats of one motion, by channel, ``(nchannel,)``.
        physics_hz: rate of the physics, at most the twin's; by default that of a fit and of an attribution.
        steps: limit on the physics steps of all replays together; of a longer log an evenly spaced part is replayed.
        replayed_part: part of the log to replay, instead of one chosen by ``steps``. With the part that an attribution
            replayed, the shares of the error can be compared with the shares of the attribution.
        level: confidence level of the intervals.
        seed: seed of the resampling.

    Raises:
        LogError: If the episodes do not fit the twin.
        InputError: If a replay diverges.
    """
    coarse, replay_options = change_physics_rate(twin, physics_hz), options or ReplayOptions()
    known = {name: value for name, value in params.estimate.items() if name in coarse.params}
    perturbed = _perturb_by_standard_error(params, known)
    replayed_part = replayed_part or thin_log(coarse, episodes, replay_options, worlds=2 + len(perturbed), steps=steps)
    logs = prepare_replay(coarse, replayed_part.episodes, replayed_part.options)
    nominal = replay(backend, logs, logs.twin.table(1))[0]
    best, tangents = replay_with_tangents(backend, logs, known, perturbed)
    noise = params.noise if params.noise is not None and params.noise.hz == logs.twin.control_hz else None
    found = measure_unexplained(
        logs, best, values=known, nominal=nominal, noise=noise, floor=floor, tangents=tangents, level=level, seed=seed
    )
    return replace(found, replayed_part=replayed_part.description)


def replay_with_tangents(
    backend: Backend, logs: ReplayLogs, values: Mapping[str, float], perturbed: Mapping[str, float]
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Replay windows with given parameters, and once more for each parameter with that parameter changed.

    Args:
        backend: runs the replays.
        logs: the windows to replay.
        values: the unchanged parameters, in SI units.
        perturbed: the changed value of each parameter, in SI units.

    Returns:
        The readings ``(nwindow, nframe, nchannel)`` with the unchanged parameters, and the change of the readings by
        each parameter ``(nparam, nwindow, nframe, nchannel)``, which is 0 where a replay diverged. The change is None
        if ``perturbed`` is empty.
    """
    table = logs.twin.table(
        1 + len(perturbed), {name: np.full(1 + len(perturbed), value) for name, value in values.items()}
    )
    rows = table.values.copy()
    for row, (name, value) in enumerate(perturbed.items(), start=1):
        rows[row, table.names.index(name)] = value
    readings = replay(backend, logs, ParamTable(names=table.names, values=rows))
    if not perturbed:
        return readings[0], None
    return readings[0], np.where(np.isinf(readings[1:]), 0.0, readings[1:] - readings[:1])


def _perturb_by_standard_error(params: ParamDistribution, known: Mapping[str, float]) -> dict[str, float]:
    """Return each parameter's estimate plus one standard error, or minus it if that exceeds the upper bound; SI units.

    Args:
        params: the identified distribution.
        known: estimates by name, in SI units; other parameters, and those with no standard error, are left out.
    """
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
    """Result of adding one model structure (optional physical effect) to the twin.

    Attributes:
        name: name of the structure.
        meaning: description of the physical effect.
        improvement: share of the held-out error that the structure removes.
        low: lower bound of the interval of ``improvement``.
        high: upper bound of the interval of ``improvement``.
        p_value: p-value of an improvement, adjusted by Holm's method over all compared structures.
        verdict: conclusion as a text.
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
        """True if the twin lacks this physical effect, and no other compared effect improves the fit more."""
        return self.verdict.startswith("MISSING")


@dataclass(frozen=True, kw_only=True)
class NestedModels:
    """Comparison of model structures (optional physical effects) of a twin on held-out episodes.

    Attributes:
        twin: name of the twin.
        rows: results of the compared structures.
        skipped: reasons by name of the structures that were not compared.
        source: origin of the comparison, such as the folder of an identify run.
    """

    twin: str
    rows: tuple[NestedModel, ...]
    skipped: Mapping[str, str]
    source: str

    def sentences(self) -> list[str]:
        """Return a sentence on each structure that reduces the error significantly; one sentence if none does."""
        found = [row for row in self.rows if row.p_value <= ALPHA and row.improvement >= LEAST_GAIN]
        if not found:
            names = ", ".join(row.name for row in self.rows) or "none"
            return [f"Nested models: none of {len(self.rows)} structures reduces the error on new episodes ({names})."]
        order = sorted(found, key=lambda row: (not row.missing, -row.improvement))
        return [
            f"Nested models: {row.name} ({row.meaning}) removes {row.improvement:.0%} "
            f"({row.low:.0%} to {row.high:.0%}) of the held-out error, Holm p {row.p_value:.2g}: {row.verdict}."
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
    """Return the comparison of model structures that an earlier ``twinloop identify --compare`` stored.

    Args:
        path: folder of the identify run.

    Raises:
        InputError: If there is no such run, or it has no comparison.
    """
    found = parse_nested(read_identified(path), str(path))
    if found is None:
        raise InputError(
            f"{path} compared no structures. Run `twinloop identify --twin … --data … --compare --output …` and give "
            "its folder."
        )
    return found


def parse_nested(run: Mapping[str, Any], source: str) -> NestedModels | None:
    """Return the comparison of nested models in the result of an identify run; None if it has none.

    Nested models are the twin with and without a physical effect.

    Args:
        run: content of the run's result.json.
        source: origin of the run, copied into the result.
    """
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
    """Fit a twin with and without each named model structure, and compare the fits by cross-validation over episodes.

    Args:
        twin: the twin.
        episodes: the recorded episodes.
        names: names of the structures; all if empty.
        backend: runs the fits.
        config: configuration of the fits.
        folds: number of folds.
    """
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
    """Add to a report the explained, unexplained and noise shares of a twin's error, and where the error arises.

    The report lists model terms to try first, the events in which most new error arises, the states that predict the
    residual, and the moments with the most new error.
    """
    names = [channel.removeprefix("position/") for channel in found.channels]
    page.section(
        "Error that no parameter explains",
        f"The mean squared error of the {found.reference} twin by channel: the part removed by the identified "
        f"parameters, noise ({found.noise_source}), and the unexplained rest. Over {found.episodes} episodes.",
    )
    page.plot(
        plot_share_bars(
            names,
            {
                "explained by parameters": np.maximum(found.explained.estimate, 0.0),
                "not explained by the twin": found.unexplained.estimate,
                "noise": found.noise.estimate,
            },
        )
    )
    for sentence in found.sentences():
        page.text(sentence)
    rows = [[name, *_format_shares(found, i)] for i, name in enumerate(names)]
    page.table(
        ["channel", "remaining error (RMS)", "unit", "explained", "unexplained", "noise", "predictable from states"],
        rows,
        caption="In parentheses the 95 % interval over episodes. Predictable is the part of the rest that the "
        "states below predict on held-out episodes: a better model could remove that much.",
    )
    if found.hints:
        page.table(
            ["channel", "where", "model term to try", "share", "evidence", "command that tests it"],
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
    """Add to a report the comparison of model structures on held-out episodes."""
    page.section("Nested models on held-out episodes", " ".join(nested.sentences()))
    page.table(
        ["structure", "physics", "removed error", "p (Holm)", "verdict"],
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
    tested = [place for place in found.events if place.ratio is not None]
    if not tested:
        return
    tested.sort(key=lambda place: (not is_relevant(place), -_ratio_bounds(place)[0]))
    shown = tested[:_MOST_ROWS]
    page.section(
        "Events at which it arises",
        f"New error per frame inside an event over that outside. {len(found.events)} events and channels and "
        f"{len(found.states)} states are tested together (Holm, {LEVEL:.0%}).",
    )
    ends = np.array([_ratio_bounds(place) for place in shown])
    page.plot(
        plot_share_forest(
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
        "States on which it depends",
        "Part of the rest that functions of a state predict on held-out "
        "episodes; `linear` is the part of the whole residual that slightly different parameters would explain.",
    )
    ends = 100 * np.array([[float(part) for part in (s.share.estimate, s.share.low, s.share.high)] for s in rows])
    page.plot(
        plot_share_forest(
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
        ["channel", "episode", "time / s", "new error", "unit", "events"],
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
