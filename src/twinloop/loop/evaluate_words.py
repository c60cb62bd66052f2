"""An evaluation in words, for a terminal."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table

from twinloop.core.evaluation import Evaluation
from twinloop.evaluate.summary import SliceSummary, Summary

_SHOWN = 30  # slices that are printed; result.json and the page have all


def print_summary(console: Console, made: Evaluation, summary: Summary) -> None:
    """The table of slices, the worst first, and what must be said beside it."""
    title = f"{made.policy} in {made.suite}" + (f" ({made.domain})" if made.domain == "real" else f" on {made.twin}")
    head = ("slice", "success", f"{summary.level:.0%} exact", "progress", "time s", "smooth", "peak N", "unsafe")
    table = Table(*head, title=title, title_justify="left")
    for item in summary.slices[:_SHOWN]:
        table.add_row(*_cells(item))
    console.print(table)
    if len(summary.slices) > _SHOWN:
        console.print(f"{len(summary.slices) - _SHOWN} more slices are better than these.")
    worst, overall = summary.worst, summary.overall
    said = f"success {float(overall.estimate):.3f} [{float(overall.low):.3f}, {float(overall.high):.3f}] of {len(made)}"
    if len(summary.slices) > 1:
        ends = f"[{float(worst.low):.3f}, {float(worst.high):.3f}] over {len(summary.slices)} slices"
        said += f"; worst slice {summary.slices[0].name} {float(worst.estimate):.3f}, the lowest true rate in {ends}"
    console.print(said, soft_wrap=True)
    if summary.invalid:
        console.print(invalid_words(made, summary), soft_wrap=True)
    for line in made.extra.get("left_out", []):
        console.print(f"Left out: {line}", soft_wrap=True)
    speed = made.extra.get("episodes_per_minute")
    if speed:
        console.print(f"{speed:.0f} episodes per minute on {made.extra['backend']}.")


def invalid_words(made: Evaluation, summary: Summary) -> str:
    """How many trials do not count, why, and what that means."""
    reasons = (
        "; ".join(dict.fromkeys(reason for item in summary.slices for reason in item.reasons)) or "no reason given"
    )
    if made.domain == "sim":
        return f"{summary.invalid} worlds were lost and count as no success: {reasons}."
    return (
        f"{summary.invalid} trials are not valid: they count as no success, and their times, forces and smoothness are "
        f"left out ({reasons})."
    )


def _cells(item: SliceSummary) -> list[str]:
    def number(value: float, digits: int) -> str:
        return "–" if math.isnan(value) else f"{value:.{digits}f}"

    ends = f"[{float(item.success.low):.2f}, {float(item.success.high):.2f}]"
    numbers = ((item.progress, 2), (item.time_s, 2), (item.smoothness, 2), (item.peak_force_n, 1), (item.violating, 2))
    return [item.name, f"{item.successes} / {item.trials}", ends, *(number(value, digits) for value, digits in numbers)]
