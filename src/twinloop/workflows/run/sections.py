"""Add sections to reports on gaps, randomization and datasets, with plots of the metrics that the commands print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from twinloop.core.distribution import ParamDistribution
from twinloop.core.params import ParamTable
from twinloop.core.records import Episode
from twinloop.core.units import count_decimals
from twinloop.gap import GapReport
from twinloop.gap.dynamics.report import format_estimate, gap_tables, list_channels
from twinloop.randomize import Plan
from twinloop.report import KeyMetric, ReportPage
from twinloop.report.figure import format_axis_title
from twinloop.report.plots import plot_episode_series, plot_error_by_joint, plot_parameter_draws
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
    """Add the sim-to-real gap of a twin to a report: skill, errors per joint with baselines, and a plot of one episode.

    Args:
        page: the report page.
        gap: the measured gap.
        twin: the twin.
        episodes: the recorded episodes; the first one is plotted.
        params: identified parameters, for a second simulated curve of the episode; None for nominal values only.
        options: options of the replay with which the gap was measured.
        target: mean absolute error per joint of a reference model to compare with (a second-order fit to the same log);
            None for none.
    """
    cut = "whole episodes" if gap.windows == len(gap.episodes) else f"{gap.windows} windows of {gap.length:.3g} s"
    page.section(
        "Difference between the twin and the recorded robot",
        f"{len(gap.episodes)} episodes ({gap.source}), replayed open loop: {cut}, each from its first frame on driven "
        f"by the recorded commands alone. Intervals: {gap.interval_method}.",
    )
    page.key_metrics(_key_metrics(gap))
    everything = {**gap.baselines, **{f"twin, {name}": interval for name, interval in gap.twins.items()}}
    drawn = {name: interval for name, interval in everything.items() if name in _DRAWN or name.startswith("twin")}
    page.plot(
        plot_error_by_joint(
            gap.channel_labels,
            {name: interval.estimate for name, interval in drawn.items()},
            intervals={name: (interval.low, interval.high) for name, interval in drawn.items()},
            target=target,
            unit="log units",
        ),
        "Mean absolute error. Hold and constant velocity are in the table only: because their errors are much larger.",
    )
    best, channels = gap.best, list_channels(gap)
    rows = [
        [name, *(channel.format_value(interval.estimate) for channel in channels)]
        for name, interval in everything.items()
    ]
    limits = ([channel.format_value(each) for channel in channels] for each in (best.low, best.high))
    rows.append([f"{best.level:.0%} interval", *(f"{low} to {high}" for low, high in zip(*limits, strict=True))])
    if target is not None:
        rows.append(["to beat: second-order fit", *(channel.format_value(np.asarray(target)) for channel in channels)])
    meanings = "; ".join(f"{name}: {meaning}" for name, meaning in gap.meanings.items())
    head = [format_axis_title(channel.name, channel.unit) for channel in channels]
    page.table(["mean absolute error", *head], rows, caption=meanings)
    if "position" in (options or ReplayOptions()).compare:
        _episode_plot(page, twin, episodes[0], params, options or ReplayOptions())


def gap_tables_section(page: ReportPage, gap: GapReport) -> None:
    """Add tables of all metrics of a gap to a report: RMSE, skill, horizons, delays, contacts and the worst clips."""
    page.section("All metrics", "Estimates with their intervals in brackets, in the units of each channel.")
    for head, body, caption in gap_tables(gap):
        page.table(head, body, caption=caption)


def _key_metrics(gap: GapReport) -> list[KeyMetric]:
    """Return the skill, the normalized RMSE and, for repeated motions, the gap ratio as key metrics of a report.

    The skill is 1 for a perfect twin and 0 for one that is as good as the best baseline. The gap ratio is the error
    divided by the spread of repeated recordings of one motion.
    """
    rival, scaled = (
        "1 is perfect, 0 is as good as the best baseline of each channel",
        "RMSE divided by the scale of each channel, mean over channels",
    )
    nrmse = gap.nrmse[gap.evaluated_twin]
    error = format_estimate(nrmse, digits=count_decimals(float(nrmse.estimate)))
    metrics = [
        KeyMetric(label="skill", value=format_estimate(gap.overall_skill, digits=2), source=rival),
        KeyMetric(label="error", value=error, source=scaled),
    ]
    if gap.floor is not None:
        value, source = (
            format_estimate(gap.floor.overall[gap.evaluated_twin], digits=2),
            "error divided by the spread of repeated recordings about their mean",
        )
        metrics.append(KeyMetric(label="gap ratio", value=value, source=source))
    return metrics


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
    page.plot(
        plot_episode_series(time, logs.joints, series, units=units), f"Episode {episode.index} of {episode.origin}."
    )


def draws_section(page: ReportPage, plan: Plan, table: ParamTable) -> None:
    """Add the drawn parameter values of the generated worlds to a report.

    Args:
        page: the report page.
        plan: plan of the randomization.
        table: parameter values, one row per world.
    """
    names = [name for name in table.names if np.ptp(table[name]) > 0]
    page.section(
        "Parameters drawn for the worlds",
        f"{len(names)} parameters were drawn in {table.nworld} attempts; one row per parameter, "
        "darker where more worlds have the value.",
    )
    values = np.stack([table[name] for name in names], axis=-1)
    units = [plan.twin.params[name].unit for name in names]
    page.plot(plot_parameter_draws(names, values, values.min(axis=0), values.max(axis=0), units=units))


def dataset_section(page: ReportPage, metrics: Sequence[Any], rows: Sequence[Sequence[Any]], sheet: Path) -> None:
    """Add a dataset to a report: key metrics such as yield and speed, verdicts of checks, and a contact sheet.

    Args:
        page: the report page.
        metrics: the key metrics.
        rows: pairs of a check and its verdict.
        sheet: image file with frames of several episodes.
    """
    page.section("The dataset").key_metrics(list(metrics))
    page.table(["check", "verdict"], [list(row) for row in rows])
    page.image(sheet, "Both cameras, several episodes, at the same moments.")
