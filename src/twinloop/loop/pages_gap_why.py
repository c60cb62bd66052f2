"""The sections of a report that say why a twin errs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from twinloop.gap.attribution_result import Attribution, Explanation, percent
from twinloop.gap.sensitivity import Sensitivity
from twinloop.gap.unexplained_result import Unexplained
from twinloop.loop.pages_gap_where import where_section
from twinloop.report import Report
from twinloop.report.gap_attribution import index_matrix, share_panels

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_LEFT = "nothing in the twin"


def why_section(
    page: Report,
    sentences: Sequence[str],
    found: Attribution,
    where: Unexplained | None = None,
    moved: Sensitivity | None = None,
) -> None:
    """The ranked answer, its bars, one-at-a-time exchanges, where the rest lives, and what moves the predictions."""
    page.section(
        "Why the twin errs",
        "The twin was replayed with its nominal parameters, with the identified ones, and with mixtures of both, "
        f"always on the same windows of {len(found.episodes)} episodes ({found.note}). The error that goes away is "
        "shared out among groups of parameters by Shapley values: the mean of what a group takes away over all orders "
        "in which groups can be exchanged. Shares are of the mean squared error with nominal parameters, and with what "
        "no parameter explains they add up to 100 %. A negative share adds error. Groups that the data cannot tell "
        "apart are told of together.",
    )
    for sentence in sentences:
        page.text(sentence)
    page.plot(
        _panels(found.explanations()),
        "Bars are shares of each channel's squared error, lines their 95 % intervals over episodes and over what is "
        "not known of the parameters. Blue takes error away, orange adds it, violet is what no parameter explains. "
        "Grey is not told apart from 0: bars of a panel are judged together (Holm), so that an interval may miss 0 by "
        "a little and still be grey.",
    )
    _exchanges(page, found)
    if where is not None:
        where_section(page, where)
    if moved is not None:
        _sensitivity(page, moved)


def _panels(explanations: Sequence[Explanation]) -> Figure:
    names, shares, ends, told = [], [], [], []
    for item in explanations:
        rows = [*((cause.name, cause.share, cause.claimed) for cause in item.causes), (_LEFT, item.left, True)]
        names.append([row[0] for row in rows])
        shares.append([float(row[1].estimate) for row in rows])
        ends.append(([float(row[1].low) for row in rows], [float(row[1].high) for row in rows]))
        told.append([row[2] for row in rows])
    return share_panels([item.about for item in explanations], names, shares, ends, told, rest=_LEFT)


def _exchanges(page: Report, found: Attribution) -> None:
    columns = [name.removeprefix("position/") for name in found.columns]
    tables = (
        ("Shapley value of each group", found.share),
        ("Only this group identified, all others nominal: error taken away", found.alone),
        ("Only this group nominal, all others identified: error that comes back", found.back),
    )
    for caption, table in tables:
        rows = [
            [group, *(percent(table.interval.at(row, column)) for column in range(len(columns)))]
            for row, group in enumerate(found.names)
        ]
        page.table(["group", *columns], rows, caption=f"{caption}, in per cent of the nominal squared error.")
    page.table(
        ["group", "parameters"],
        [[group.name, group.text().partition(": ")[2]] for group in found.groups],
        caption=f"What is in each group. {found.worlds} worlds were replayed: {found.coalitions}"
        + (f", and {found.ndraw} draws of the identified parameters." if found.ndraw else ".")
        + f" Beyond pairs, groups interact by up to {100 * float(np.nan_to_num(found.interactions).max()):.0f} % of a "
        "channel's error."
        + (f" Not told by the data and held at their estimates: {', '.join(found.held)}." if found.held else ""),
    )


def _sensitivity(page: Report, moved: Sensitivity) -> None:
    what = "what identification leaves open" if moved.over == "identified" else "the twin's default ranges"
    page.section(
        "What moves the predictions",
        f"Parameters were drawn from {what}, group by group independently, in {moved.worlds} worlds. The total Sobol' "
        "index of a group is the part of the predictions' variance that goes away when it is known, its interactions "
        "with others included; those of a channel may add up to more than 1.",
    )
    total, first = moved.motion.total, moved.motion.first
    shape = total.estimate.shape
    words = [
        [
            f"total {total.estimate[r, c]:.2f} ({total.low[r, c]:.2f} to {total.high[r, c]:.2f}), alone "
            f"{first.estimate[r, c]:.2f}"
            for c in range(shape[1])
        ]
        for r in range(shape[0])
    ]
    channels = [name.removeprefix("position/") for name in moved.channels]
    page.plot(index_matrix([group.name for group in moved.groups], channels, total.estimate, words))
    rows = [
        [channel, f"{moved.spread[c]:.3g} {moved.units[c]}", *(_index(moved, row, c) for row in range(shape[0]))]
        for c, channel in enumerate(channels)
    ]
    page.table(
        ["channel", "spread (RMS)", *(group.name for group in moved.groups)],
        rows,
        caption="Total index of predicted motion / of each episode's mean squared error, with 95 % intervals over rows "
        "of the design and episodes." + (f" Not drawn: {', '.join(moved.fixed)}." if moved.fixed else ""),
    )


def _index(moved: Sensitivity, row: int, column: int) -> str:
    parts = []
    for of in (moved.motion.total, moved.error.total):
        value, low, high = (float(end[row, column]) for end in (of.estimate, of.low, of.high))
        parts.append("–" if np.isnan(value) else f"{value:.2f} ({low:.2f} to {high:.2f})")
    return " / ".join(parts)
