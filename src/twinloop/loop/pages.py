"""Sections of reports: the same figures that were printed, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from twinloop.core.distribution import ParamDistribution
from twinloop.core.params import ParamTable
from twinloop.core.records import Episode
from twinloop.gap import GapReport
from twinloop.randomize import Plan
from twinloop.report import Report
from twinloop.report.plots import drawn_parameters, episode_series, error_by_joint
from twinloop.simulate import open_backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import prepare_replay
from twinloop.twin import Twin


def gap_section(
    page: Report,
    gap: GapReport,
    twin: Twin,
    episodes: Sequence[Episode],
    params: ParamDistribution | None,
    *,
    target: Sequence[float] | None = None,
) -> None:
    """Errors per joint beside the baselines, and one episode commanded, measured and simulated."""
    everything = {**gap.baselines, **{f"twin, {name}": interval for name, interval in gap.twins.items()}}
    page.section(
        "How far the twin is from the recorded robot",
        f"Mean absolute error over {len(gap.episodes)} episodes ({gap.source}), replayed open loop from the first "
        "frame of each, in the log's own units. Bars are 95 % intervals, bootstrapped over episodes.",
    )
    drawn = {name: interval for name, interval in everything.items() if name != "hold"}
    page.plot(
        error_by_joint(
            gap.joints,
            {name: interval.estimate for name, interval in drawn.items()},
            intervals={name: (interval.low, interval.high) for name, interval in drawn.items()},
            target=target,
            unit="log units",
        ),
        "Hold, the first frame held to the end, is in the table only: it would flatten the rest.",
    )
    rows = [[name, *(f"{value:.3f}" for value in interval.estimate)] for name, interval in everything.items()]
    best = gap.best
    rows.append(["95 % interval", *(f"{low:.3f} to {high:.3f}" for low, high in zip(best.low, best.high, strict=True))])
    if target is not None:
        rows.append(["to beat: second-order fit", *(f"{value:.2f}" for value in target)])
    page.table(["", *gap.joints], rows, caption="; ".join(f"{k}: {v}" for k, v in gap.meanings.items()))
    _episode_plot(page, twin, episodes[0], params)


def _episode_plot(page: Report, twin: Twin, episode: Episode, params: ParamDistribution | None) -> None:
    logs = prepare_replay(twin, [episode])
    series = {
        "commanded": logs.units.from_si(logs.commands)[0],
        "measured": logs.measured[0],
        "nominal twin": replay(open_backend(), logs, logs.twin.table(1))[0, 0],
    }
    if params is not None:
        series["identified twin"] = replay(open_backend(), logs, logs.twin.table(1, params.estimate))[0, 0]
    units = [unit.unit for unit in logs.units.joints]
    figure = episode_series(episode.time - episode.time[0], logs.joints, series, units=units)
    page.plot(figure, f"Episode {episode.index} of {episode.origin}.")


def draws_section(page: Report, plan: Plan, table: ParamTable) -> None:
    """What the generated worlds drew, within which ranges."""
    names = [name for name in table.names if np.ptp(table[name]) > 0]
    page.section(
        "What varied between worlds",
        f"{len(names)} parameters were drawn in {table.nworld} attempts; a row per parameter, darker where more fell.",
    )
    values = np.stack([table[name] for name in names], axis=-1)
    units = [plan.twin.params[name].unit for name in names]
    page.plot(drawn_parameters(names, values, values.min(axis=0), values.max(axis=0), units=units))


def dataset_section(page: Report, figures: Sequence[Any], rows: Sequence[Sequence[Any]], sheet: Path) -> None:
    """Yield, speed, verdicts, and a contact sheet."""
    page.section("The dataset").figures(list(figures))
    page.table(["check", "verdict"], [list(row) for row in rows])
    page.image(sheet, "Both cameras, several episodes, at the same moments.")
