"""Compare real trajectories with simulated trajectories or a twin's replays, as distributions (`twinloop gap data`).

If neither is given, one half of the real episodes is compared with the other half: the result without any gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError
from twinloop.core.headline import HeadlineMetric
from twinloop.core.records import Episode
from twinloop.core.seeds import generator
from twinloop.core.units import UnitMap, find_joint_columns
from twinloop.gap.trajectories.measure import (
    SIDES,
    TrajectoryGap,
    format_verdict,
    list_differences,
    measure_trajectories,
)
from twinloop.randomize import read_identified
from twinloop.report import KeyMetric, ReportPage
from twinloop.report.gap_plots import plot_feature_histograms, plot_feature_map, plot_group_auc
from twinloop.simulate import Backend, open_backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import prepare_replay
from twinloop.stats import ClassifierTest, Interval
from twinloop.twin import Twin, load_twin
from twinloop.workflows.data.logs import LogEpisodes, open_log
from twinloop.workflows.gap.options import require_two_sides
from twinloop.workflows.gap.requests import GapDataRequest
from twinloop.workflows.run.results import MeasuredRun, Outcome

_DRAWN = 6


def data_section(page: ReportPage, gap: TrajectoryGap, real: str, sim: str) -> None:
    """Add to a report whether two sets of trajectories can be distinguished, and by which features.

    Args:
        page: the report.
        gap: the measured differences.
        real: label of the first set, such as the name of the real log.
        sim: label of the second set.
    """
    _summary(page, gap, real, sim)
    _groups(page, gap)
    _features(page, gap)
    _distances(page, gap)


def _summary(page: ReportPage, gap: TrajectoryGap, real: str, sim: str) -> None:
    mine, other = gap.sides
    unit = "pairs of the same trials" if gap.paired else "episodes"
    page.section(
        f"Can {other} trajectories be distinguished from {mine} ones?",
        f"{real} ({mine}) against {sim}. Episodes were cut into clips of {gap.clip_s:g} s at {gap.rate_hz:.4g} Hz, and "
        f"every clip described by {len(gap.features)} numbers: positions, velocities and jerk of the joints, "
        "and the error and delay of following their commands. A small classifier was trained on some episodes to find "
        f"{mine} clips, and scored on the others. 0.5 is chance, 1 is always right; "
        "values below 0.5 occur by chance with few episodes, and only values above 0.5 indicate a gap.\n\n"
        + format_verdict(gap),
    )
    auc = gap.classifier.auc
    tone = "bad" if gap.classifier.p_value <= 1 - gap.level else None  # no significant gap does not mean a good twin
    page.key_metrics(
        [
            KeyMetric(label="area under the curve", value=float(auc.estimate), source=_format_range(auc), tone=tone),
            KeyMetric(
                label=f"{mine} clips that have {other} ones nearby", value=_percent(gap.neighbours.coverage), unit="%"
            ),
            KeyMetric(
                label=f"{other} clips that have {mine} ones nearby", value=_percent(gap.neighbours.precision), unit="%"
            ),
            KeyMetric(label=f"clips, {mine} and {other}", value=f"{gap.real_clips} and {gap.sim_clips}"),
            KeyMetric(label=unit, value=f"{gap.classifier.nreal} and {gap.classifier.nsim}"),
        ]
    )
    for note in gap.notes:
        page.text(note)


def _groups(page: ReportPage, gap: TrajectoryGap) -> None:
    page.section(
        "Which features differ",
        "The same classifier with the features of one channel alone, and of one kind of feature alone. Bars are "
        f"{gap.level:.0%} intervals over episodes; p-values are adjusted for the number of rows.",
    )
    for groups, p_values in ((gap.by_channel, gap.p_channel), (gap.by_family, gap.p_family)):
        _group_plot(page, groups, p_values, 1 - gap.level)
    lines = list_differences(gap)
    if lines:
        page.text("\n\n".join(lines))


def _group_plot(
    page: ReportPage, groups: Mapping[str, ClassifierTest], p_values: Mapping[str, float], alpha: float
) -> None:
    intervals = [test.auc for test in groups.values()]
    page.plot(
        plot_group_auc(
            list(groups),
            [i.estimate for i in intervals],
            [i.low for i in intervals],
            [i.high for i in intervals],
            [p_values[name] <= alpha for name in groups],
        ),
        "; ".join(f"{name}: p = {p_values[name]:.2g}" for name in groups if not np.isnan(p_values[name])),
    )


def _features(page: ReportPage, gap: TrajectoryGap) -> None:
    channels = list(dict.fromkeys(feature.channel for feature in gap.features))
    kinds = list(dict.fromkeys(feature.kind for feature in gap.features))
    table = gap.columns
    effect = np.full((len(channels), len(kinds)), np.nan)
    hover = np.full(effect.shape, "", dtype=object)
    for row, feature in enumerate(gap.features):
        place = channels.index(feature.channel), kinds.index(feature.kind)
        effect[place] = table.distance.estimate[row] / gap.scale[row]
        hover[place] = (
            f"{feature.channel}: {feature.meaning}<br>W₁ {table.distance.estimate[row]:.3g} "
            f"[{table.distance.low[row]:.3g}, {table.distance.high[row]:.3g}] {feature.unit}"
            f"<br>p = {table.p_adjusted[row]:.2g}, adjusted"
        )
    page.section(
        "Difference of each feature",
        f"W₁ is how far the {gap.sides[1]} values must be moved on average to make the {gap.sides[0]} ones; here over "
        "the feature's own standard deviation. Move the pointer over a cell to see its unit and interval.",
    )
    page.plot(plot_feature_map(channels, kinds, effect, hover))
    order = np.argsort(-table.distance.estimate / gap.scale)[:_DRAWN]
    titles = [f"{gap.features[i].channel}: {gap.features[i].kind.replace('_', ' ')}" for i in order]
    units = [gap.features[i].unit for i in order]
    page.plot(
        plot_feature_histograms(titles, units, gap.real_rows[:, order], gap.sim_rows[:, order], names=gap.sides),
        "The features with the largest difference: shares of clips over their values.",
    )


def _distances(page: ReportPage, gap: TrajectoryGap) -> None:
    page.section(
        "Distances",
        "MMD² and the energy distance are zero on average if both sets come from one source, with positive and "
        "negative values. Precision and recall, density and coverage test whether clips of one set are near "
        f"those of the other ({gap.sides[0]}: recall, coverage; {gap.sides[1]}: precision, density); their values "
        "without a gap depend on the number of clips and are listed with them.",
    )
    rows = [
        [name, float(found.distance.estimate), _format_range(found.distance), "0", found.p_value]
        for name, found in (("MMD²", gap.mmd), ("energy distance", gap.energy))
    ]
    rows.append(
        [
            "area under the curve",
            float(gap.classifier.auc.estimate),
            _format_range(gap.classifier.auc),
            "0.5",
            gap.classifier.p_value,
        ]
    )
    around = gap.neighbours
    for name in ("precision", "recall", "density", "coverage"):
        found: Interval = getattr(around, name)
        rows.append(
            [name, float(found.estimate), _format_range(found), _format_floor(around.floor[name]), around.p_value[name]]
        )
    page.table(["", "estimate", f"{gap.level:.0%} interval", "without a gap", "p"], rows)


def _format_range(interval: Interval) -> str:
    return f"{float(interval.low):.3g} to {float(interval.high):.3g}"


def _format_floor(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.2f}"


def _percent(interval: Interval) -> float:
    return 100 * float(interval.estimate)


_FEWEST = 4  # smallest number of episodes to divide, two in each half
_HALF = "its other half, as a reference without any gap"
_HALVES = ("half A", "half B")


@dataclass(frozen=True, kw_only=True)
class ComparisonTarget:
    """The two sets of episodes to compare.

    Attributes:
        real: the real episodes.
        sim: the episodes that they are compared with: simulated episodes, replays, or the other half of the real ones.
        paired: True if ``sim`` are replays of ``real``, in the same order.
        label: description of ``sim`` for the user.
        sides: short names of the two sets, such as real and simulated.
    """

    real: Sequence[Episode]
    sim: Sequence[Episode]
    paired: bool
    label: str
    sides: tuple[str, str] = SIDES


def run_gap_data(request: GapDataRequest, console: Console) -> Outcome:
    """Open the logs that a request gives, compare them with `compare_logs`, and print and store the result."""
    real = open_log(request.real, request.reading)
    return compare_logs(request, real, None if request.sim is None else open_log(request.sim), console)


def compare_logs(request: GapDataRequest, real: LogEpisodes, sim: LogEpisodes | None, console: Console) -> Outcome:
    """Print and store the distance between the distributions of simulated and real trajectories.

    Args:
        request: the options.
        real: the recorded episodes.
        sim: the simulated episodes. None compares with replays in the twin of the request, or if it has no twin, one
            half of ``real`` with the other.
        console: output for people.

    Raises:
        InputError: If both ``sim`` and a twin are given, or the request has ``params`` but no twin.
    """
    run = MeasuredRun.begin("gap", "data", request.output, request.fail_if, console)
    against = _choose_target(real, sim, request.twin, request.params, request.seed)
    if request.ranges is not None:
        against = apply_twin_ranges(against, load_twin(request.ranges))
    gap = measure_trajectories(
        against.real,
        against.sim,
        clip_s=request.clip,
        paired=against.paired,
        level=request.level,
        draws=request.draws,
        seed=request.seed,
        sides=against.sides,
    )
    headline = headline_metrics(gap)
    for line in text_lines(real.label, against, gap):
        console.print(line, soft_wrap=True)
    result: dict[str, Any] = {
        **gap.to_json(),
        "data": real.describe(),
        "real": real.describe(),
        "sim": {"label": against.label, **({} if sim is None else sim.describe())},
        "verdict": format_verdict(gap),
        "findings": list_differences(gap),
    }
    return run.end(
        result,
        headline,
        title=f"States and actions: {' against '.join(against.sides)}",
        subtitle=f"{real.label} against {against.label}",
        fill=lambda page: data_section(page, gap, real.label, against.label),
    )


def headline_metrics(gap: TrajectoryGap) -> list[HeadlineMetric]:
    """Return the metrics of a trajectory gap that ``--fail-if`` conditions and `twinloop gap history` can use."""
    around = gap.neighbours
    mine, other = gap.sides
    auc_meaning = f"share of pairs of held-out clips, one {mine} and one {other}, in the right order; 0.5 is chance"
    return [
        gap.classifier.auc.headline("auc", meaning=auc_meaning),
        gap.mmd.distance.headline("mmd", meaning="squared maximum mean discrepancy of all features"),
        gap.energy.distance.headline("energy", meaning="energy distance of all features, in standard deviations"),
        around.coverage.headline(
            "coverage", better="higher", meaning=f"share of {mine} clips with a {other} one nearby"
        ),
        around.precision.headline(
            "precision", better="higher", meaning=f"share of {other} clips with {mine} ones nearby"
        ),
        *(test.auc.headline(f"auc/{name}", meaning=f"auc of {name} alone") for name, test in gap.by_channel.items()),
    ]


def text_lines(label: str, against: ComparisonTarget, gap: TrajectoryGap) -> list[str]:
    """Return the result of a comparison as lines for a terminal.

    Args:
        label: label of the real log.
        against: the compared episodes.
        gap: the measured differences.
    """
    kind = "pairs, replays of the same trials" if gap.paired else "unpaired"
    lines = [
        f"{label}: {gap.classifier.nreal} episodes, {gap.real_clips} clips of {gap.clip_s:g} s",
        f"against {against.label}: {gap.classifier.nsim} episodes, {gap.sim_clips} clips; {kind}",
        *gap.notes,
        "",
        format_verdict(gap),
        *(f"  {line}" for line in list_differences(gap)),
        "",
    ]
    for name, found in (("MMD²", gap.mmd), ("energy distance", gap.energy)):
        lines.append(f"{name:<16}{_format_interval(found.distance)}{_format_p_value(found.p_value)}")
    lines.append(
        f"{'classifier AUC':<16}{_format_interval(gap.classifier.auc)}{_format_p_value(gap.classifier.p_value)}"
    )
    for name in ("precision", "recall", "density", "coverage"):
        floor = gap.neighbours.floor[name]
        suffix = (
            "" if np.isnan(floor) else f"   {floor:.2f} without a gap{_format_p_value(gap.neighbours.p_value[name])}"
        )
        lines.append(f"{name:<16}{_format_interval(getattr(gap.neighbours, name))}{suffix}")
    lines += ["", f"{'channel':<22}{'AUC alone':<24}p (Holm)"]
    lines += [
        f"{n:<22}{_format_interval(t.auc):<24}{_format_value(gap.p_channel[n])}" for n, t in gap.by_channel.items()
    ]
    lines += ["", f"{'kind of feature':<22}{'AUC alone':<24}p (Holm)"]
    lines += [f"{n:<22}{_format_interval(t.auc):<24}{_format_value(gap.p_family[n])}" for n, t in gap.by_family.items()]
    return lines


def replay_episodes(
    twin: Twin, episodes: Sequence[Episode], values: dict[str, float], backend: Backend
) -> list[Episode]:
    """Replay recorded commands in a twin; return episodes with the same numbers and the simulated joint positions.

    Each episode is replayed open loop from its first frame, until the motors were switched off.

    Args:
        twin: the twin.
        episodes: the recorded episodes.
        values: parameter values in SI units; other parameters are nominal.
        backend: runs the replays.

    Raises:
        LogError: If the episodes do not fit the twin, for example because a joint is missing.
        InputError: If a replay diverges.
    """
    logs = prepare_replay(twin, episodes)
    readings = replay(backend, logs, logs.twin.table(1, values))[0][..., : len(logs.joints)]
    by_number = {episode.index: episode for episode in episodes}
    made = []
    for row, number in enumerate(logs.episode_numbers):
        episode, count = by_number[number], int(logs.lengths[row])
        state = readings[row, :count]
        if not np.isfinite(state).all():
            raise InputError(
                f"The twin {twin.name} diverges in episode {number} with these parameters. More substeps in the twin's "
                "YAML, or less extreme parameters, keep it finite."
            )
        columns = [episode.joints.index(joint) for joint in logs.joints]
        chosen = replace(episode.units, joints=tuple(episode.units.joints[i] for i in columns))
        made.append(
            replace(
                episode,
                time=episode.time[:count],
                action=episode.action[:count, columns],
                state=state,
                units=chosen,
                source="sim",
                origin=twin.name,
                signals={},
            )
        )
    return made


def apply_twin_ranges(against: ComparisonTarget, twin: Twin) -> ComparisonTarget:
    """Return the comparison, in which logs without calibration use the twin's joint ranges.

    The label of the comparison also states this.

    Raises:
        LogError: If a log lacks a joint of the twin.
    """
    sides = [[apply_joint_ranges(episode, twin) for episode in side] for side in (against.real, against.sim)]
    label = f"{against.label}; logs without calibration use the joint ranges of {twin.name}"
    return replace(against, real=sides[0], sim=sides[1], label=label)


def apply_joint_ranges(episode: Episode, twin: Twin) -> Episode:
    """Return the episode with joint units that are converted by the twin's joint ranges, if its log has no calibration.

    A calibration is the conversion of joint positions to rad or m. An episode with one is returned unchanged.

    Raises:
        LogError: If the log lacks a joint of the twin.
    """
    if episode.units.known:
        return episode
    columns = find_joint_columns(twin.robot.joints, episode.joints, where=episode.origin or "The log")
    known = twin.unit_map([episode.units.joints[column].unit for column in columns])
    joints = list(episode.units.joints)
    for column, unit in zip(columns, known.joints, strict=True):
        joints[column] = unit if not joints[column].known else joints[column]
    return replace(episode, units=UnitMap(joints=tuple(joints), source=known.source))


def _choose_target(
    real: LogEpisodes, sim: LogEpisodes | None, twin: str | None, params: Path | None, seed: int
) -> ComparisonTarget:
    if sim is not None and twin is not None:
        raise InputError("Both --sim and --twin were given. Compare with stored episodes, or with a twin's replays.")
    if params is not None and twin is None:
        raise InputError("--params gives the values of a twin, but --twin is missing. Give --twin too.")
    if sim is not None:
        require_two_sides(real, sim)
        return ComparisonTarget(real=real.episodes, sim=sim.episodes, paired=False, label=sim.label)
    if twin is not None:
        return _make_replay_target(real, twin, params)
    if len(real.episodes) < _FEWEST:
        count = f"{len(real.episodes)} episode{'' if len(real.episodes) == 1 else 's'}"
        raise InputError(
            f"{real.label} has {count}, and half of it is too little to compare episodes. Give a log of at least "
            f"{_FEWEST}, or something to compare with: --sim or --twin."
        )
    mixed = generator(seed, "gap/data/halves").permutation(len(real.episodes))
    half = len(mixed) // 2
    sides = [[real.episodes[i] for i in sorted(part)] for part in (mixed[:half], mixed[half:])]
    return ComparisonTarget(real=sides[0], sim=sides[1], paired=False, label=_HALF, sides=_HALVES)


def _make_replay_target(real: LogEpisodes, reference: str, params: Path | None) -> ComparisonTarget:
    loaded = load_twin(reference)
    run = None if params is None else read_identified(params)
    values = {} if run is None else dict(ParamDistribution.from_json(run["distribution"]).estimate)
    episodes = real.episodes
    if run is not None and run.get("data", {}).get("hash") == real.hash and run["holdout"]:
        episodes = tuple(e for e in episodes if e.index in set(run["holdout"]))
    sim = replay_episodes(loaded, episodes, values, open_backend())
    lengths = {episode.index: len(episode) for episode in sim}
    cut = [_first_frames(episode, lengths[episode.index]) for episode in episodes]
    which = "nominal" if run is None else "identified"
    return ComparisonTarget(real=cut, sim=sim, paired=True, label=f"replays by {loaded.name}, {which} parameters")


def _first_frames(episode: Episode, count: int) -> Episode:
    """Return the first ``count`` frames of an episode; a shortened episode has no sensor signals."""
    if len(episode) == count:
        return episode
    return replace(
        episode, time=episode.time[:count], action=episode.action[:count], state=episode.state[:count], signals={}
    )


def _format_interval(interval: Interval) -> str:
    return f"{float(interval.estimate):.3g} [{float(interval.low):.3g}, {float(interval.high):.3g}]"


def _format_p_value(value: float) -> str:
    return "" if np.isnan(value) else f"   p = {value:.2g}"


def _format_value(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.2g}"
