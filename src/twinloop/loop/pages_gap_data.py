"""The sections of a report on states and actions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from twinloop.gap.states import StatesGap
from twinloop.gap.states_words import findings, verdict
from twinloop.report import KeyFigure, Report
from twinloop.report.gap_data import feature_map, spread_pairs, told_apart
from twinloop.stats import ClassifierTest, Interval

_DRAWN = 6


def data_section(page: Report, gap: StatesGap, real: str, sim: str) -> None:
    """What was compared, whether it can be told apart, by what, and how far each feature was moved."""
    _summary(page, gap, real, sim)
    _groups(page, gap)
    _features(page, gap)
    _distances(page, gap)


def _summary(page: Report, gap: StatesGap, real: str, sim: str) -> None:
    mine, other = gap.sides
    unit = "pairs of the same trials" if gap.paired else "episodes"
    page.section(
        f"Can {other} trajectories be told from {mine} ones?",
        f"{real} ({mine}) against {sim}. Episodes were cut into clips of {gap.clip_s:g} s at {gap.rate_hz:.4g} Hz, and "
        f"every clip described by {len(gap.features)} numbers: where the joints were, how fast and how jerkily they "
        "moved, how far and how late they followed their commands. A small classifier learned from some episodes which "
        f"clips are {mine} and was asked about the others. 0.5 is guessing, 1 is always right; "
        "below 0.5 it was misled, as chance does with few episodes, and only figures above speak of a gap.\n\n"
        + verdict(gap),
    )
    auc = gap.classifier.auc
    tone = (
        "bad" if gap.classifier.p_value <= 1 - gap.level else None
    )  # that no gap is shown does not make it a good one
    page.figures(
        [
            KeyFigure(label="area under the curve", value=float(auc.estimate), source=_range(auc), tone=tone),
            KeyFigure(
                label=f"{mine} clips that have {other} ones nearby", value=_percent(gap.neighbours.coverage), unit="%"
            ),
            KeyFigure(
                label=f"{other} clips that have {mine} ones nearby", value=_percent(gap.neighbours.precision), unit="%"
            ),
            KeyFigure(label=f"clips, {mine} and {other}", value=f"{gap.real_clips} and {gap.sim_clips}"),
            KeyFigure(label=unit, value=f"{gap.classifier.nreal} and {gap.classifier.nsim}"),
        ]
    )
    for note in gap.notes:
        page.text(note)


def _groups(page: Report, gap: StatesGap) -> None:
    page.section(
        "What gives it away",
        "The same classifier with the features of one channel alone, and of one kind of feature alone. Bars are "
        f"{gap.level:.0%} intervals over episodes; p-values are adjusted for the number of rows.",
    )
    for groups, p_values in ((gap.by_channel, gap.p_channel), (gap.by_family, gap.p_family)):
        _group_plot(page, groups, p_values, 1 - gap.level)
    lines = findings(gap)
    if lines:
        page.text("\n\n".join(lines))


def _group_plot(
    page: Report, groups: Mapping[str, ClassifierTest], p_values: Mapping[str, float], alpha: float
) -> None:
    intervals = [test.auc for test in groups.values()]
    page.plot(
        told_apart(
            list(groups),
            [i.estimate for i in intervals],
            [i.low for i in intervals],
            [i.high for i in intervals],
            [p_values[name] <= alpha for name in groups],
        ),
        "; ".join(f"{name}: p = {p_values[name]:.2g}" for name in groups if not np.isnan(p_values[name])),
    )


def _features(page: Report, gap: StatesGap) -> None:
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
        "How far every feature was moved",
        f"W₁ is how far the {gap.sides[1]} values must be moved on average to make the {gap.sides[0]} ones; here over "
        "the feature's own standard deviation. Point at a cell for the figure in its unit, with its interval.",
    )
    page.plot(feature_map(channels, kinds, effect, hover))
    order = np.argsort(-table.distance.estimate / gap.scale)[:_DRAWN]
    titles = [f"{gap.features[i].channel}: {gap.features[i].kind.replace('_', ' ')}" for i in order]
    units = [gap.features[i].unit for i in order]
    page.plot(
        spread_pairs(titles, units, gap.real_rows[:, order], gap.sim_rows[:, order], names=gap.sides),
        "The features that were moved furthest: shares of clips over their values.",
    )


def _distances(page: Report, gap: StatesGap) -> None:
    page.section(
        "Distances",
        "MMD² and the energy distance are zero on average where both sets come from one source, and then below zero "
        "as often as above. Precision and recall, density and coverage ask whether clips of the one set lie where "
        f"those of the other do ({gap.sides[0]}: recall, coverage; {gap.sides[1]}: precision, density); what they are "
        "where there is no gap depends on the number of clips and stands beside them.",
    )
    rows = [
        [name, float(found.distance.estimate), _range(found.distance), "0", found.p_value]
        for name, found in (("MMD²", gap.mmd), ("energy distance", gap.energy))
    ]
    rows.append(
        [
            "area under the curve",
            float(gap.classifier.auc.estimate),
            _range(gap.classifier.auc),
            "0.5",
            gap.classifier.p_value,
        ]
    )
    around = gap.neighbours
    for name in ("precision", "recall", "density", "coverage"):
        found: Interval = getattr(around, name)
        rows.append([name, float(found.estimate), _range(found), _floor(around.floor[name]), around.p_value[name]])
    page.table(["", "estimate", f"{gap.level:.0%} interval", "without a gap", "p"], rows)


def _range(interval: Interval) -> str:
    return f"{float(interval.low):.3g} to {float(interval.high):.3g}"


def _floor(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.2f}"


def _percent(interval: Interval) -> float:
    return 100 * float(interval.estimate)
