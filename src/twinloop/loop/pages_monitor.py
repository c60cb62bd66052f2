"""The report of a monitor on recorded episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from twinloop.loop.monitor_data import Watched
from twinloop.report import KeyFigure, Report

_LISTED = 40


def monitor_section(page: Report, told: Sequence[Watched], figures: Mapping[str, Any]) -> None:
    """All of the page."""
    wrong = figures["low"] > figures["promised"] or bool(figures["course"])
    page.figures(
        [
            KeyFigure(label="episodes", value=figures["episodes"]),
            KeyFigure(label="with an alarm", value=figures["alarmed"], tone="bad" if wrong else None),
            KeyFigure(label="promised where nothing is wrong", value=100 * figures["promised"], unit="%"),
        ]
    )
    page.text(
        f"Between {100 * figures['low']:.1f} and {100 * figures['high']:.1f} % of such episodes alarm (95 %, Wilson)."
    )
    for said in figures["course"]:
        page.text(said)
    if figures["causes"]:
        page.section("What the alarms point to")
        page.table(["cause", "episodes"], [[cause, str(count)] for cause, count in figures["causes"].items()])
    names = list(told[0].scores)
    page.section("Signals", "The largest score of each episode, in units of the limit: from 1 on it is an alarm.")
    rows = []
    for name in names:
        values = sorted(one.scores[name] for one in told)
        over = sum(value > 1.0 for value in values)
        rows.append([name, f"{values[len(values) // 2]:.2f}", f"{values[-1]:.2f}", str(over)])
    page.table(["signal", "median episode", "worst episode", "episodes beyond"], rows)
    alarmed = [one for one in told if one.alarms]
    if alarmed:
        page.section("Alarms", f"The first of each episode, {min(len(alarmed), _LISTED)} of {len(alarmed)} episodes.")
        page.table(
            ["episode", "points to", "first alarm"],
            [[one.name, one.cause, str(one.alarms[0])] for one in alarmed[:_LISTED]],
        )
