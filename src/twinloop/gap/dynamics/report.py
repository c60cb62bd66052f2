"""Format the result of a gap measurement: metrics with intervals, tables and text for a terminal, and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.headline import Better, HeadlineMetric
from twinloop.core.plain import JsonRecord, to_plain_value
from twinloop.core.units import choose_display_unit, count_decimals
from twinloop.gap.dynamics.clips import ErrorClip
from twinloop.gap.dynamics.delay import DelayResult
from twinloop.gap.dynamics.noise_floor import NoiseFloor
from twinloop.simulate.channels import MeasuredChannel
from twinloop.stats import Interval

Array = NDArray[np.float64]
Intervals = Mapping[str, Interval]


@dataclass(frozen=True, kw_only=True)
class PhaseError(JsonRecord):
    """RMSE of each twin in the frames of one phase of contact.

    Attributes:
        name: Phase: ``free``, ``contact onset`` or ``contact``.
        frames: Number of measured frames, shape ``(nchannel,)``.
        rmse: RMSE in the channels' units, shape ``(nchannel,)``, by name of the twin.
    """

    name: str
    frames: Array
    rmse: Intervals


@dataclass(frozen=True, kw_only=True)
class GapReport:
    """Gap between a twin and a log, measured by open-loop replay in windows and compared with non-physics baselines.

    The first frame of a window is the initial state of the simulation and does not count. Mappings have names of twins
    (``nominal``, and ``identified`` if parameters were given) or of baselines as keys. An interval has one value per
    channel, in its unit.

    Attributes:
        channels: The compared channels.
        episodes: Numbers of the measured episodes.
        lengths: Number of frames of each episode's windows, shape ``(nepisode,)``.
        windows: Number of windows.
        length: Duration of the longest window in s.
        hz: Frames per second of the replay.
        scale: Divisor of each channel's error when channels are averaged, in its unit, see `LogSummary`.
        sizes: Largest extent in m of each object whose pose is compared, by body.
        source: Text with the origin of the episodes.
        meanings: Descriptions of the baselines, by name.
        names: Names of the twins. ``skills``, ``overall_skill`` and the gap ratio (RMSE / noise floor, in ``floor``)
            are reported for the last one.
        rmse: Root mean square errors of twins and baselines.
        mae: Mean absolute errors of twins and baselines.
        edges: Edges in s of the horizon bins (intervals of the time since the beginning of a window), shape ``(nbin +
            1,)``.
        curves: RMSE by horizon bin, shape ``(nbin, nchannel)``, of twins and baselines.
        nrmse: Mean over channels of RMSE / scale, one number for each twin and baseline.
        skills: 1 − RMSE / RMSE of a baseline, by name of the baseline; the key ``best`` compares with the best baseline
            of each channel.
        overall_skill: 1 − nrmse / nrmse of each channel's best baseline, one number.
        improvement: MAE of the identified twin minus the nominal one's, paired by episode; negative is better.
        phases: Errors by contact phase, if contacts are simulated and can be determined.
        delays: Delay and its share of the error, by name of the twin; empty if windows are too short to estimate it.
        floor: Noise floor; None if no motion is repeated.
        repeats: Text that describes how repeats were searched.
        worst: The three clips with the largest errors.
        episode_errors: Mean absolute errors of twins and baselines, shape ``(nepisode, nchannel)``.
        interval_method: Method of the intervals, or the reason why there are none.
    """

    channels: tuple[MeasuredChannel, ...]
    episodes: tuple[int, ...]
    lengths: Array
    windows: int
    length: float
    hz: float
    scale: Array
    sizes: Mapping[str, float]
    source: str
    meanings: Mapping[str, str]
    names: tuple[str, ...]
    rmse: Intervals
    mae: Intervals
    edges: Array
    curves: Intervals
    nrmse: Intervals
    skills: Intervals
    overall_skill: Interval
    improvement: Interval | None
    phases: tuple[PhaseError, ...]
    delays: Mapping[str, DelayResult]
    floor: NoiseFloor | None
    repeats: str
    worst: tuple[ErrorClip, ...]
    episode_errors: Mapping[str, Array]
    interval_method: str

    @cached_property
    def channel_labels(self) -> tuple[str, ...]:
        """Names of the channels, for tables; the channel of a joint's position has the joint's name."""
        return tuple(channel.name.removeprefix("position/") for channel in self.channels)

    @property
    def log_units(self) -> tuple[str, ...]:
        """Units of ``channels``, in the same order; joint positions are in the log's units."""
        return tuple(channel.unit for channel in self.channels)

    @property
    def evaluated_twin(self) -> str:
        """Name of the twin to which skill and gap ratio belong: ``identified`` if it exists, else ``nominal``.

        Skill is 1 − RMSE / RMSE of the best baseline; the gap ratio is RMSE / noise floor.
        """
        return self.names[-1]

    @property
    def twins(self) -> Intervals:
        """Mean absolute errors of the twins, by name."""
        return {name: self.mae[name] for name in self.names}

    @property
    def baselines(self) -> Intervals:
        """Mean absolute errors of the baselines described in ``meanings``, by name; one value per channel, in its unit.

        An example of a baseline is ``hold``, which predicts that nothing moves.
        """
        return {name: self.mae[name] for name in self.meanings}

    @property
    def best(self) -> Interval:
        """Mean absolute error by channel of the identified twin if parameters were given, else of the nominal twin.

        The key ``best`` in ``skills`` has another meaning: the best baseline.
        """
        return self.mae[self.evaluated_twin]

    @property
    def delay(self) -> DelayResult | None:
        """Delay and its share of the error for `evaluated_twin`; None if windows are too short to estimate it."""
        return self.delays.get(self.evaluated_twin)

    def skill(self, baseline: str = "best") -> Array:
        """Return 1 − RMSE / RMSE of a baseline, shape ``(nchannel,)``: 1 is perfect, 0 is no better than the baseline.

        ``best`` is the best baseline of each channel.
        """
        return self.skills[baseline].estimate

    def headline(self) -> list[HeadlineMetric]:
        """Return the metrics for reports and ``--fail-if``, first those over all channels.

        These are the overall skill and the mean over channels of RMSE / scale. For each channel follow the skill, the
        RMSE, the gap ratio (RMSE / noise floor) and the delay. The gap ratio is also reported over all channels. Gap
        ratio and delay are left out if they are unknown.
        """
        scaled = "RMSE in units of the channel's scale, mean over channels"
        own = (
            f"1 − error of the {self.evaluated_twin} twin / error of each channel's best baseline; errors are {scaled}"
        )
        late = "delay of the measured motion behind the simulated one"
        perfect = "error divided by the noise floor of repeats: 1 for a perfect twin"
        rows = [
            self.overall_skill.headline("skill", better="higher", meaning=own),
            self.nrmse[self.evaluated_twin].headline("nrmse", meaning=scaled),
            *_channel_metrics(
                self, "skill", self.skills["best"], better="higher", meaning="1 − RMSE / RMSE of the best baseline"
            ),
            *_channel_metrics(
                self, "rmse", self.rmse[self.evaluated_twin], unit=None, meaning="root mean square error"
            ),
        ]
        if self.floor is not None:
            rows.append(self.floor.overall[self.evaluated_twin].headline("gap_ratio", meaning=perfect))
            rows += _channel_metrics(self, "gap_ratio", self.floor.ratios[self.evaluated_twin], meaning=perfect)
        if self.delay is not None:
            rows += _channel_metrics(self, "delay", self.delay.delay, unit="s", meaning=late)
        return rows

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary (schema 2)."""
        return {
            "schema": 2,
            "joints": list(self.channel_labels),
            "channels": [{"name": channel.name, "unit": channel.unit} for channel in self.channels],
            "log_units": list(self.log_units),
            "episodes": list(self.episodes),
            "frames": int(self.lengths.sum()),
            "windows": {"count": self.windows, "length": self.length, "hz": self.hz},
            "scale": self.scale.tolist(),
            "sizes": dict(self.sizes),
            "source": self.source,
            "intervals": self.interval_method,
            "twins": to_plain_value(self.twins),
            "baselines": to_plain_value(self.baselines),
            "rmse": to_plain_value(self.rmse),
            "horizon": {"edges": self.edges.tolist(), "rmse": to_plain_value(self.curves)},
            "nrmse": to_plain_value(self.nrmse),
            "meanings": dict(self.meanings),
            "improvement": to_plain_value(self.improvement),
            "skill": to_plain_value(self.skills),
            "overall_skill": self.overall_skill.to_json(),
            "phases": to_plain_value(self.phases),
            "delay": to_plain_value(self.delays),
            "noise_floor": to_plain_value(self.floor),
            "repeats": self.repeats,
            "worst": to_plain_value(self.worst),
            "episode_errors": to_plain_value(self.episode_errors),
        }

    def text(self) -> str:
        """Return the report for a terminal: compared data, main metrics, tables, and descriptions of the baselines."""
        tables = (format_table(head, rows) for head, rows, _ in gap_tables(self))
        meanings = "\n".join(f"{name}: {meaning}" for name, meaning in self.meanings.items())
        return "\n\n".join([_format_head(self), _format_summary(self), *tables, meanings])


def _channel_metrics(
    report: GapReport,
    word: str,
    interval: Interval,
    *,
    better: Better = "lower",
    unit: str | None = "",
    meaning: str,
) -> Iterator[HeadlineMetric]:
    """Yield one metric for each channel that has a value.

    Args:
        report: Report with the channels.
        word: First part of the metrics' names, such as ``rmse`` in ``rmse/elbow_flex``.
        interval: Values by channel.
        better: Whether lower or higher values are better.
        unit: Unit of the metric; None for the channel's unit.
        meaning: Explanation of the metric in a few words.
    """
    for row, (name, channel) in enumerate(zip(report.channel_labels, report.channels, strict=True)):
        if not np.isnan(interval.estimate[row]):
            yield interval.headline(
                f"{word}/{name}",
                row,
                unit=channel.unit if unit is None else unit,
                better=better,
                meaning=f"{meaning}, {channel.name}",
            )


_HORIZONS = 4  # columns of the curve in the terminal


Rows = list[list[str]]
Table = tuple[list[str], Rows, str]


def gap_tables(report: GapReport) -> Iterator[Table]:
    """Yield the column titles, rows and caption of every table of the report.

    Tables: errors, change by identification, error by horizon, delay, contact phases, and clips with the largest
    errors.
    """
    yield _error_table(report)
    if report.improvement is not None:
        rows = [
            [channel.name, channel.unit, channel.format_estimate(report.improvement)]
            for channel in list_channels(report)
        ]
        yield ["mean absolute error", "unit", "identified − nominal"], rows, "Paired by episode; negative is better."
    yield _horizon_table(report)
    if report.delay is not None:
        yield _delay_table(report, report.delay)
    if report.phases:
        yield _phase_table(report)
    yield _worst_clip_table(report)


def format_estimate(interval: Interval, row: int | None = None, *, factor: float = 1.0, digits: int = 3) -> str:
    """Format a metric as ``0.123 [0.101, 0.150]``, or as ``0.123`` if it has no interval; NaN is a dash.

    Args:
        interval: The metric.
        row: Element of an array; None for a single number.
        factor: Factor by which the values are multiplied, for example 1000 for ms.
        digits: Number of decimals.
    """
    estimate, low, high = (
        np.ravel(part)[row or 0] * factor for part in (interval.estimate, interval.low, interval.high)
    )
    if np.isnan(estimate):
        return "–"
    if np.isnan(low):
        return f"{estimate:.{digits}f}"
    return f"{estimate:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table as text, with the first column aligned to the left and the other columns to the right."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(text.ljust(width) if column == 0 else text.rjust(width) for column, (text, width) in enumerate(line))
        for line in (list(zip(line, widths, strict=True)) for line in lines)
    )


def _format_head(report: GapReport) -> str:
    whole = report.windows == len(report.episodes)
    cut = "whole episodes" if whole else f"{report.windows} windows of {report.length:.3g} s"
    episodes = "1 episode" if len(report.episodes) == 1 else f"{len(report.episodes)} episodes"
    brackets = (
        f"{report.best.level:.0%} intervals in brackets" if not np.isnan(report.best.low).all() else "no intervals"
    )
    return (
        f"Gap between the twin and {episodes} ({report.source}), open loop, {cut} at {report.hz:.4g} Hz\n"
        f"{brackets}: {report.interval_method}"
    )


def _format_summary(report: GapReport) -> str:
    judged = report.evaluated_twin
    rival = "each channel's best baseline (1 is perfect, 0 is no better)"
    error = report.nrmse[judged]
    scaled = format_estimate(error, digits=count_decimals(float(error.estimate)))
    lines = [
        f"skill      {format_estimate(report.overall_skill)}: the {judged} twin against {rival}",
        f"error      {scaled}: RMSE divided by the channel's scale, mean over channels",
    ]
    if report.floor is None:
        lines.append(f"gap ratio  none: no repeats of one motion ({report.repeats})")
    else:
        motions = "one motion" if len(report.floor.groups) == 1 else f"{len(report.floor.groups)} motions"
        repeats = f"{sum(map(len, report.floor.groups))} repeats of {motions}"
        lines.append(
            f"gap ratio  {format_estimate(report.floor.overall[judged])}: error divided by the noise floor of "
            f"{repeats} "
            f"({report.repeats}); 1 is perfect"
        )
    for body, size in report.sizes.items():
        name = f"pose_error/{body}/distance"
        if name in report.channel_labels and size > 0:
            share = format_estimate(report.rmse[judged], report.channel_labels.index(name), factor=100 / size, digits=1)
            lines.append(f"{body:<9}  {share} %: RMSE of its distance divided by its largest extent, {size:.3g} m")
    return "\n".join(lines)


def _error_table(report: GapReport) -> Table:
    others = [*report.meanings, *report.names[:-1]]
    head = ["RMSE", "unit", *others, f"twin, {report.evaluated_twin}", "skill"]
    head += [] if report.floor is None else ["floor", "gap ratio"]
    rows = []
    for channel in list_channels(report):
        line = [channel.name, channel.unit, *(channel.format_value(report.rmse[other].estimate) for other in others)]
        line += [
            channel.format_estimate(report.rmse[report.evaluated_twin]),
            format_estimate(report.skills["best"], channel.row, digits=2),
        ]
        if report.floor is not None:
            line += [
                channel.format_value(report.floor.floor.estimate),
                format_estimate(report.floor.ratios[report.evaluated_twin], channel.row, digits=2),
            ]
        rows.append(line)
    caption = "Skill is 1 − RMSE / RMSE of the best baseline. " + (
        "" if report.floor is None else "The floor is the RMS difference between repeats of one motion, divided by √2."
    )
    return head, rows, caption.strip()


def _horizon_table(report: GapReport) -> Table:
    bins = np.unique(np.linspace(0, len(report.edges) - 1, _HORIZONS + 1).round().astype(int))[1:] - 1
    head = [f"RMSE of the {report.evaluated_twin} twin after", "unit", *(f"{report.edges[k + 1]:.3g} s" for k in bins)]
    curve = report.curves[report.evaluated_twin].estimate
    rows = [
        [channel.name, channel.unit, *(channel.format_value(curve[k]) for k in bins)]
        for channel in list_channels(report)
    ]
    return head, rows, f"Errors in the last {report.edges[1]:.3g} s before each time; times are since a window's start."


def _delay_table(report: GapReport, delays: DelayResult) -> Table:
    head = ["reality later than the twin by", "ms", "gain", "of squared error: delay", "amplitude", "shape"]
    rows = [
        [
            name,
            format_estimate(delays.delay, row, factor=1e3, digits=1),
            format_estimate(delays.gain, row),
            *("–" if np.isnan(share) else f"{share:.0%}" for share in delays.shares.estimate[:, row]),
        ]
        for row, name in enumerate(report.channel_labels)
        if not np.isnan(delays.delay.estimate[row])
    ]
    return head, rows, "Gain is measured / simulated amplitude without the delay; shape is the remaining share."


def _phase_table(report: GapReport) -> Table:
    head = ["RMSE by contact", "unit", *(phase.name for phase in report.phases)]
    rows = [
        [
            channel.name,
            channel.unit,
            *(channel.format_estimate(phase.rmse[report.evaluated_twin]) for phase in report.phases),
        ]
        for channel in list_channels(report)
    ]
    return head, rows, "Free: no contact; contact onset: just after a first touch."


def _worst_clip_table(report: GapReport) -> Table:
    rows = [
        [
            f"episode {c.episode}",
            f"{c.begin:.2f} s",
            f"{c.length:.2f} s",
            c.channel,
            format_error(factor * c.error),
            unit,
        ]
        for c in report.worst
        for factor, unit in [choose_display_unit(c.unit, c.error)]
    ]
    caption = "The worst window of each of the three worst episodes, by RMSE divided by the channel's scale."
    return ["worst clips", "from", "for", "channel", "RMSE", "unit"], rows, caption


@dataclass(frozen=True, kw_only=True)
class ChannelRow:
    """Row of one channel in a table of errors.

    Attributes:
        row: Number of the channel.
        name: Its name.
        unit: Unit in which its errors are shown, such as mrad instead of rad if the twin's error is small.
        factor: Factor from the channel's unit to ``unit``.
    """

    row: int
    name: str
    unit: str
    factor: float

    def format_value(self, values: Array) -> str:
        """Format the value of this channel among ``values``, shape ``(nchannel,)``."""
        return format_error(self.factor * float(values[self.row]))

    def format_estimate(self, interval: Interval) -> str:
        """Format the metric of this channel with its interval."""
        digits = count_decimals(self.factor * float(interval.estimate[self.row]))
        return format_estimate(interval, self.row, factor=self.factor, digits=digits)


def list_channels(report: GapReport) -> list[ChannelRow]:
    """Return the rows of all channels, each in a unit that suits the RMSE of the evaluated twin."""
    size = report.rmse[report.evaluated_twin].estimate
    shown = [choose_display_unit(unit, float(size[row])) for row, unit in enumerate(report.log_units)]
    return [
        ChannelRow(row=row, name=name, unit=unit, factor=factor)
        for row, (name, (factor, unit)) in enumerate(zip(report.channel_labels, shown, strict=True))
    ]


def format_error(value: float) -> str:
    """Format an error with three decimals, or three significant digits if it is small; NaN is a dash."""
    return "–" if np.isnan(value) else f"{value:.{count_decimals(value)}f}"
