"""Write sections of reports, with plots of the printed metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from twinloop.core.distribution import ParamDistribution
from twinloop.core.params import ParamTable
from twinloop.core.records import Episode
from twinloop.gap import GapReport
from twinloop.gap.dynamics.report import format_estimate, gap_tables
from twinloop.randomize import Plan
from twinloop.report import KeyMetric, ReportPage
from twinloop.report.plots import episode_series, error_by_joint, parameter_draws
from twinloop.simulate import open_backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayOptions, prepare_replay
from twinloop.twin import Twin

_DRAWN = ("command", "delay")


def gap_section(
    page: ReportPage,
    gap: GapReport,
    twin: Twin,
    episodes: Sequence[Episode],
    params: ParamDistribution | None,
    *,
    options: ReplayOptions | None = None,
    target: Sequence[float] | None = None,
) -> None:
    """Write skill, mean absolute errors with the baselines, and one episode."""
    cut = "whole episodes" if gap.windows == len(gap.episodes) else f"{gap.windows} windows of {gap.length:.3g} s"
    page.section(
        "How far the twin is from the recorded robot",
        f"{len(gap.episodes)} episodes ({gap.source}), replayed open loop: {cut}, each from its first frame on driven "
        f"by the recorded commands alone. Intervals: {gap.drawn}.",
    )
    page.key_metrics(_key_metrics(gap))
    everything = {**gap.baselines, **{f"twin, {name}": interval for name, interval in gap.twins.items()}}
    drawn = {name: interval for name, interval in everything.items() if name in _DRAWN or name.startswith("twin")}
    page.plot(
        error_by_joint(
            gap.joints,
            {name: interval.estimate for name, interval in drawn.items()},
            intervals={name: (interval.low, interval.high) for name, interval in drawn.items()},
            target=target,
            unit="log units",
        ),
        "Mean absolute error. Hold and constant velocity are in the table only: they would flatten the rest.",
    )
    rows = [[name, *(f"{value:.3f}" for value in interval.estimate)] for name, interval in everything.items()]
    best = gap.best
    rows.append(["95 % interval", *(f"{low:.3f} to {high:.3f}" for low, high in zip(best.low, best.high, strict=True))])
    if target is not None:
        rows.append(["to beat: second-order fit", *(f"{value:.2f}" for value in target)])
    meanings = "; ".join(f"{name}: {meaning}" for name, meaning in gap.meanings.items())
    page.table(["mean absolute error", *gap.joints], rows, caption=meanings)
    if "position" in (options or ReplayOptions()).compare:
        _episode_plot(page, twin, episodes[0], params, options or ReplayOptions())


def gap_tables_section(page: ReportPage, gap: GapReport) -> None:
    """Write every metric: RMSE and skill, change, horizons, delay, contact, the worst clips."""
    page.section("Every figure", "Estimates with their intervals in brackets, in the units of each channel.")
    for head, body, caption in gap_tables(gap):
        page.table(head, body, caption=caption)


def _key_metrics(gap: GapReport) -> list[KeyMetric]:
    """Return skill, scaled error and gap ratio as key metrics."""
    rival, scaled = (
        "1 perfect, 0 as good as each channel's best baseline",
        "RMSE over each channel's scale, mean of them",
    )
    figures = [
        KeyMetric(label="skill", value=format_estimate(gap.overall_skill, digits=2), source=rival),
        KeyMetric(label="error", value=format_estimate(gap.nrmse[gap.evaluated_twin]), source=scaled),
    ]
    if gap.floor is not None:
        value, source = (
            format_estimate(gap.floor.overall[gap.evaluated_twin], digits=2),
            "error over the spread of repeats about their mean",
        )
        figures.append(KeyMetric(label="gap ratio", value=value, source=source))
    return figures


def _episode_plot(
    page: ReportPage, twin: Twin, episode: Episode, params: ParamDistribution | None, options: ReplayOptions
) -> None:
    logs = prepare_replay(twin, [episode], replace(options, window=None, stride=None, compare=("position",)))
    series = {"measured": logs.measured[0], "nominal twin": replay(open_backend(), logs, logs.twin.table(1))[0, 0]}
    if logs.twin.robot.control == "position":
        series = {"commanded": logs.units.from_si(logs.commands)[0]} | series
    if params is not None:
        series["identified twin"] = replay(open_backend(), logs, logs.twin.table(1, params.estimate))[0, 0]
    units = [unit.unit for unit in logs.units.joints]
    time = np.arange(logs.measured.shape[1]) / logs.twin.control_hz
    page.plot(episode_series(time, logs.joints, series, units=units), f"Episode {episode.index} of {episode.origin}.")


def draws_section(page: ReportPage, plan: Plan, table: ParamTable) -> None:
    """Write which parameters the generated worlds drew, and their values within the ranges."""
    names = [name for name in table.names if np.ptp(table[name]) > 0]
    page.section(
        "What varied between worlds",
        f"{len(names)} parameters were drawn in {table.nworld} attempts; a row per parameter, darker where more fell.",
    )
    values = np.stack([table[name] for name in names], axis=-1)
    units = [plan.twin.params[name].unit for name in names]
    page.plot(parameter_draws(names, values, values.min(axis=0), values.max(axis=0), units=units))


def dataset_section(page: ReportPage, figures: Sequence[Any], rows: Sequence[Sequence[Any]], sheet: Path) -> None:
    """Write yield, speed, verdicts, and a contact sheet."""
    page.section("The dataset").key_metrics(list(figures))
    page.table(["check", "verdict"], [list(row) for row in rows])
    page.image(sheet, "Both cameras, several episodes, at the same moments.")
