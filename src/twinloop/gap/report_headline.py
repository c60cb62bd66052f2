"""The figures of the dynamics gap that programs watch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from twinloop.core.headline import Better, Headline
from twinloop.stats import Interval

if TYPE_CHECKING:
    from twinloop.gap.report import GapReport


def dynamics_headline(report: GapReport) -> list[Headline]:
    """Overall skill, gap ratio and scaled error, and skill, gap ratio, RMSE and delay of every channel."""
    judged = report.judged
    rows = [
        _one(
            "skill",
            report.overall_skill,
            better="higher",
            meaning=f"1 − error of the {judged} twin over that of each channel's best baseline; errors are RMSE in "
            "units of the channel's scale, mean over channels",
        ),
        _one("nrmse", report.nrmse[judged], meaning="RMSE in units of the channel's scale, mean over channels"),
    ]
    rows += _each(
        report, "skill", report.skills["best"], better="higher", meaning="1 − RMSE / RMSE of the best baseline"
    )
    rows += _each(report, "rmse", report.rmse[judged], unit=None, meaning="root mean square error")
    if report.floor is not None:
        meaning = "error over the noise floor of repeats: 1 for a perfect twin"
        rows.append(_one("gap_ratio", report.floor.overall[judged], meaning=meaning))
        rows += _each(report, "gap_ratio", report.floor.ratios[judged], meaning=meaning)
    if report.delay is not None:
        late = "by how much the measured motion is later than the simulated"
        rows += _each(report, "delay", report.delay.delay, unit="s", meaning=late)
    return rows


def _one(name: str, interval: Interval, *, better: Better = "lower", unit: str = "", meaning: str) -> Headline:
    values = (float(np.ravel(part)[0]) for part in (interval.estimate, interval.low, interval.high))
    estimate, low, high = values
    return Headline(
        name=name,
        estimate=estimate,
        low=low,
        high=high,
        level=interval.level,
        unit=unit,
        better=better,
        method=interval.method,
        meaning=meaning,
    )


def _each(
    report: GapReport,
    word: str,
    interval: Interval,
    *,
    better: Better = "lower",
    unit: str | None = "",
    meaning: str,
) -> Iterator[Headline]:
    """One figure for each channel that has it; ``unit`` None takes the channel's."""
    for row, (name, channel) in enumerate(zip(report.joints, report.channels, strict=True)):
        if np.isnan(interval.estimate[row]):
            continue
        own = Interval(
            estimate=interval.estimate[row],
            low=interval.low[row],
            high=interval.high[row],
            level=interval.level,
            method=interval.method,
        )
        said = channel.unit if unit is None else unit
        yield _one(f"{word}/{name}", own, better=better, unit=said, meaning=f"{meaning}, {channel.name}")
