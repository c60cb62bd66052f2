"""Compare the sensors of a real log with those of a simulated log (`twinloop gap sensors`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Column, Table

from twinloop.core.errors import InputError
from twinloop.gap.sensors.measure import ALPHA, SensorDifference, SensorGap, measure_sensors
from twinloop.report import ReportPage
from twinloop.report.gap_sensors import plot_allan_pair, plot_spectra_pair
from twinloop.twin import load_twin
from twinloop.workflows.data.logs import open_log
from twinloop.workflows.gap.options import require_two_sides
from twinloop.workflows.gap.requests import GapSensorsRequest
from twinloop.workflows.run.results import MeasuredRun, Outcome

_SHOWN = ("noise", "lag", "jitter", "missing", "repeated", "step")
_MOST_PLOTS = 8  # plotted spectra; channels with significant differences come first


def sensors_section(page: ReportPage, gap: SensorGap) -> None:
    """Add to a report the significant differences with remedies, spectra, noise at rest, and every metric."""
    tested = [row for row in gap.differences if not math.isnan(row.p_value)]
    page.section(
        "Differences between real and simulated readings",
        f"{len(gap.significant_differences)} of {len(tested)} metrics differ significantly: {gap.episodes[0]} real "
        f"and {gap.episodes[1]} "
        f"simulated episodes, Welch's test of each metric, Holm's correction over all of them at {ALPHA:.0%}.",
    )
    if gap.significant_differences:
        page.table(
            [
                "channel",
                "metric",
                "real",
                "simulated",
                "unit",
                "real − simulated, 95 %",
                "p (Holm)",
                "recommended change",
            ],
            [
                [*_difference_cells(row), remedy_text(row) or "none: no parameter of a twin has this effect"]
                for row in gap.significant_differences
            ],
        )
    chosen = _select_channels(gap)
    page.section("Spectra", "The median over episodes; the band holds the middle half of them.")
    for name in chosen:
        real, sim = gap.metrics[name]
        higher = [band for band in gap.bands if band.channel == name and band.p_value <= ALPHA]
        words = "; ".join(
            f"{band.low:.3g} to {band.high:.3g} Hz: {float(band.level.estimate):+.1f} dB "
            f"[{float(band.level.low):+.1f}, {float(band.level.high):+.1f}]"
            for band in higher
        )
        page.plot(plot_spectra_pair(real.spectra, sim.spectra, gap.units[name]), f"{name}. {_describe_bands(words)}")
    at_rest = [name for name in chosen if any(side.allan is not None for side in gap.metrics[name])]
    if at_rest:
        page.section(
            "Noise at rest", "Allan deviations of the longest stretch in which no joint moved, with intervals."
        )
        for name in at_rest:
            real, sim = gap.metrics[name]
            page.plot(plot_allan_pair(real.allan, sim.allan, gap.units[name]), name)
    page.section(
        "All metrics",
        "Real | simulated, means over episodes. Noise is the standard deviation of white noise with the density "
        "in the upper half of the common band; lag is relative to the command, for velocities relative to the slope of "
        "the position; missing samples are those that a regular clock would have in addition, repeated ones equal the "
        "previous one although the channel moves; a step is the size of one count. A dash: unknown; a star: differs.",
    )
    page.table(["channel", "unit", *_SHOWN], [_channel_row(gap, name) for name in gap.metrics])


def remedy_text(row: SensorDifference) -> str:
    """Return the recommended change of a twin's parameter as a text; empty if there is none."""
    if row.remedy is None:
        return ""
    value = "" if math.isnan(row.remedy.value) else f" = {row.remedy.value:.4g}"
    return f"{row.remedy.parameter}{value}" + (f" ({row.remedy.remark})" if row.remedy.remark else "")


def _describe_bands(words: str) -> str:
    return f"The real spectrum is higher or lower at {words}." if words else "No octave differs beyond chance."


def _difference_cells(row: SensorDifference) -> list[str]:
    estimate, low, high = (float(getattr(row.difference, end)) for end in ("estimate", "low", "high"))
    between = f"{estimate:.3g} [{low:.3g}, {high:.3g}]"
    return [row.channel, row.quantity, f"{row.real:.4g}", f"{row.sim:.4g}", row.unit, between, f"{row.p_value:.2g}"]


def _channel_row(gap: SensorGap, name: str) -> list[str]:
    rows = {row.quantity: row for row in gap.differences if row.channel == name}
    return [name, gap.units[name], *(_format_pair(rows.get(quantity)) for quantity in _SHOWN)]


def _format_pair(row: SensorDifference | None) -> str:
    if row is None or math.isnan(row.real) or math.isnan(row.sim):
        return "–"
    mark = " *" if row.differs else ""
    return f"{row.real:.3g} | {row.sim:.3g}{mark}"


def _select_channels(gap: SensorGap) -> list[str]:
    """Return the names of at most 8 channels to plot; channels with significant differences come first."""
    return list(dict.fromkeys([*(row.channel for row in gap.significant_differences), *gap.metrics]))[:_MOST_PLOTS]


def run_gap_sensors(request: GapSensorsRequest, console: Console) -> Outcome:
    """Compare simulated sensors with real ones; print and store the differences.

    Raises:
        InputError: If both logs are the same, ``real`` is marked as simulated and ``sim`` as real, or an entry of
            ``same`` (signal with different names in the two logs) is not of the form REAL=SIM.
    """
    real, sim = open_log(request.real, request.reading), open_log(request.sim)
    run = MeasuredRun.begin("gap", "sensors", request.output, request.fail_if, console)
    require_two_sides(real, sim)
    params = {} if request.twin is None else load_twin(request.twin).params
    nominal = {name: param.nominal for name, param in params.items()}
    gap = measure_sensors(real.episodes, sim.episodes, same=_parse_name_pairs(request.same), nominal=nominal)
    console.print(f"real: {real.label}\nsimulated: {sim.label}", soft_wrap=True)
    _print_gap(console, gap)
    return run.end(
        {**gap.to_json(), "data": real.describe(), "sim": sim.describe()},
        gap.headline(),
        title="Real and simulated sensors",
        subtitle=f"{real.label}; {sim.label}",
        fill=lambda page: sensors_section(page, gap),
    )


def _parse_name_pairs(words: Sequence[str]) -> Mapping[str, str]:
    pairs = [word.partition("=") for word in words]
    for word, (name, sign, other) in zip(words, pairs, strict=True):
        if not (name and sign and other):
            raise InputError(f"--same {word}: write REAL=SIM, such as acceleration/imu=acceleration/tool_imu.")
    return {name: other for name, _, other in pairs}


def _print_gap(console: Console, gap: SensorGap) -> None:
    tested = [row for row in gap.differences if not math.isnan(row.p_value)]
    console.print(
        f"{len(gap.significant_differences)} of {len(tested)} metrics of {len(gap.metrics)} channels differ "
        "significantly "
        f"({gap.episodes[0]} real, {gap.episodes[1]} simulated episodes)."
    )
    if gap.significant_differences:
        table = Table(
            Column("channel", no_wrap=True), "metric", "real", "simulated", "unit", "real − simulated", "p (Holm)"
        )
        for row in gap.significant_differences:
            ends = f"{float(row.difference.estimate):.3g} [{float(row.difference.low):.3g}, "
            table.add_row(
                row.channel, row.quantity, f"{row.real:.4g}", f"{row.sim:.4g}", row.unit,
                f"{ends}{float(row.difference.high):.3g}]", f"{row.p_value:.2g}",
            )  # fmt: skip
        console.print(table)
        for row in gap.significant_differences:
            if row.remedy is not None:
                console.print(f"{row.quantity} of {row.channel}: {remedy_text(row)}", soft_wrap=True)
    unknown = [row for row in gap.differences if math.isnan(row.p_value)]
    if unknown:
        console.print(
            f"{len(unknown)} metrics were not tested, such as {unknown[0].quantity} of {unknown[0].channel}: "
            f"{unknown[0].reason}.",
            soft_wrap=True,
        )
    if gap.missing_channels:
        console.print(f"Not in the simulated log: {', '.join(gap.missing_channels)}.", soft_wrap=True)
