"""Report of a gap: metrics with intervals, tables and text for a terminal, and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.headline import Better, HeadlineMetric
from twinloop.core.plain import JsonRecord, to_plain_value
from twinloop.gap.dynamics.clips import ErrorClip
from twinloop.gap.dynamics.delay import DelayResult
from twinloop.gap.dynamics.noise_floor import NoiseFloor
from twinloop.simulate.channels import MeasuredChannel
from twinloop.stats import Interval

Array = NDArray[np.float64]
Intervals = Mapping[str, Interval]


@dataclass(frozen=True, kw_only=True)
class PhaseError(JsonRecord):
    """RMSE of each twin in the frames of one phase of contact; ``frames`` ``(nchannel,)`` is their number."""

    name: str
    frames: Array
    rmse: Intervals


@dataclass(frozen=True, kw_only=True)
class GapReport:
    """Gap between a twin and a log, open loop in windows, compared with non-physics baselines.

    The first frame of a window is given and does not count. The keys of mappings are names of twins (``nominal``, and
    ``identified`` if parameters were given) or of baselines; an interval has one value per channel, in its unit.

    Attributes:
        channels: the compared channels.
        episodes: numbers of the measured episodes; ``lengths`` are the numbers of frames of their windows.
        windows: number of windows; ``length`` is that of the longest, in s; ``hz`` is the rate of the frames.
        scale: divisor of each channel's error when channels are averaged, in its unit, see `LogSummary.scale`;
            ``sizes`` are those of objects in m.
        source: source of the episodes.
        meanings: descriptions of the baselines.
        names: names of the twins; skill and gap ratio are those of the last one.
        rmse, mae: root mean square and mean absolute errors.
        edges: edges of the horizon bins in s; ``curves`` are RMSE by bin, ``(nbin, nchannel)``.
        nrmse: mean over channels of RMSE / scale, one number each.
        skills: 1 − RMSE / RMSE of a baseline, by baseline and for the ``best`` baseline of each channel.
        overall_skill: 1 − nrmse / nrmse of each channel's best baseline.
        improvement: MAE of the identified twin minus the nominal one's, paired: negative is better.
        phases: errors by contact phase, if contacts are simulated and can be determined.
        delays: by twin, the delay and its share of the error; empty if windows are too short for it.
        floor: difference between real repeats, if a motion is repeated; ``repeats`` is how repeats were looked for.
        worst: the three worst clips.
        episode_errors: mean absolute errors ``(nepisode, nchannel)``.
        drawn: method of the intervals, or the reason why there are none.
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
    drawn: str

    @cached_property
    def joints(self) -> tuple[str, ...]:
        """Names of the channels; a joint's position has the joint's name."""
        return tuple(channel.name.removeprefix("position/") for channel in self.channels)

    @property
    def log_units(self) -> tuple[str, ...]:
        """Units of the channels."""
        return tuple(channel.unit for channel in self.channels)

    @property
    def evaluated_twin(self) -> str:
        """The twin to which skill and gap ratio belong: the identified one if it exists, else the nominal one."""
        return self.names[-1]

    @property
    def twins(self) -> Intervals:
        """Mean absolute errors of the twins."""
        return {name: self.mae[name] for name in self.names}

    @property
    def baselines(self) -> Intervals:
        """Mean absolute errors of the baselines."""
        return {name: self.mae[name] for name in self.meanings}

    @property
    def best(self) -> Interval:
        """Mean absolute error of the identified twin if it exists, else of the nominal one."""
        return self.mae[self.evaluated_twin]

    @property
    def delay(self) -> DelayResult | None:
        """The delay and its share of the error, of the twin in `judged`."""
        return self.delays.get(self.evaluated_twin)

    def skill(self, baseline: str = "best") -> Array:
        """Return 1 − RMSE / RMSE of a baseline, per channel: 1 is perfect, 0 is no better than the baseline."""
        return self.skills[baseline].estimate

    def headline(self) -> list[HeadlineMetric]:
        """Return overall skill, gap ratio and scaled error, and skill, gap ratio, RMSE and delay of every channel."""
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
            "joints": list(self.joints),
            "channels": [{"name": channel.name, "unit": channel.unit} for channel in self.channels],
            "log_units": list(self.log_units),
            "episodes": list(self.episodes),
            "frames": int(self.lengths.sum()),
            "windows": {"count": self.windows, "length": self.length, "hz": self.hz},
            "scale": self.scale.tolist(),
            "sizes": dict(self.sizes),
            "source": self.source,
            "intervals": self.drawn,
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
        """Return the report for a terminal: compared data, headline, tables, and meanings of the baselines."""
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
    """Yield one metric for each channel that has it; if ``unit`` is None, in the channel's unit."""
    for row, (name, channel) in enumerate(zip(report.joints, report.channels, strict=True)):
        if not np.isnan(interval.estimate[row]):
            said = channel.unit if unit is None else unit
            yield interval.headline(
                f"{word}/{name}", row, unit=said, better=better, meaning=f"{meaning}, {channel.name}"
            )


_HORIZONS = 4  # columns of the curve in the terminal


Rows = list[list[str]]
Shown = tuple[list[str], Rows, str]


def gap_tables(report: GapReport) -> Iterator[Shown]:
    """Yield head, rows and caption of every table: errors, change, horizons, delay, phases of contact, worst clips."""
    yield _error_table(report)
    if report.improvement is not None:
        rows = [[name, unit, format_estimate(report.improvement, row)] for row, name, unit in _list_channels(report)]
        yield ["mean absolute error", "unit", "identified − nominal"], rows, "Paired by episode; negative is better."
    yield _horizon_table(report)
    if report.delay is not None:
        yield _delay_table(report, report.delay)
    if report.phases:
        yield _phase_table(report)
    yield _worst_clip_table(report)


def format_estimate(interval: Interval, row: int | None = None, *, factor: float = 1.0, digits: int = 3) -> str:
    """Format a metric as ``0.123 [0.101, 0.150]``, without an interval as ``0.123``; a dash without a value."""
    estimate, low, high = (
        np.ravel(part)[row or 0] * factor for part in (interval.estimate, interval.low, interval.high)
    )
    if np.isnan(estimate):
        return "–"
    if np.isnan(low):
        return f"{estimate:.{digits}f}"
    return f"{estimate:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table as text, with the first column aligned to the left and the others to the right."""
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
    said = f"{report.best.level:.0%} intervals in brackets" if not np.isnan(report.best.low).all() else "no intervals"
    return (
        f"Gap between the twin and {episodes} ({report.source}), open loop, {cut} at {report.hz:.4g} Hz\n"
        f"{said}: {report.drawn}"
    )


def _format_summary(report: GapReport) -> str:
    judged = report.evaluated_twin
    rival = "each channel's best baseline (1 is perfect, 0 is no better)"
    lines = [
        f"skill      {format_estimate(report.overall_skill)}: the {judged} twin against {rival}",
        f"error      {format_estimate(report.nrmse[judged])}: RMSE divided by the channel's scale, mean over channels",
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
        if name in report.joints and size > 0:
            share = format_estimate(report.rmse[judged], report.joints.index(name), factor=100 / size, digits=1)
            lines.append(f"{body:<9}  {share} %: RMSE of its distance divided by its largest extent, {size:.3g} m")
    return "\n".join(lines)


def _error_table(report: GapReport) -> Shown:
    others = [*report.meanings, *report.names[:-1]]
    head = ["RMSE", "unit", *others, f"twin, {report.evaluated_twin}", "skill"]
    head += [] if report.floor is None else ["floor", "gap ratio"]
    rows = []
    for row, name, unit in _list_channels(report):
        line = [name, unit, *(_format_metric(report.rmse[other], row) for other in others)]
        line += [
            format_estimate(report.rmse[report.evaluated_twin], row),
            format_estimate(report.skills["best"], row, digits=2),
        ]
        if report.floor is not None:
            line += [
                _format_metric(report.floor.floor, row),
                format_estimate(report.floor.ratios[report.evaluated_twin], row, digits=2),
            ]
        rows.append(line)
    caption = "Skill is 1 − RMSE / RMSE of the best baseline. " + (
        "" if report.floor is None else "The floor is the RMS difference between repeats of one motion, divided by √2."
    )
    return head, rows, caption.strip()


def _horizon_table(report: GapReport) -> Shown:
    bins = np.unique(np.linspace(0, len(report.edges) - 1, _HORIZONS + 1).round().astype(int))[1:] - 1
    head = [f"RMSE of the {report.evaluated_twin} twin after", "unit", *(f"{report.edges[k + 1]:.3g} s" for k in bins)]
    curve = report.curves[report.evaluated_twin].estimate
    rows = [[name, unit, *(_format_number(curve[k, row]) for k in bins)] for row, name, unit in _list_channels(report)]
    return head, rows, f"Errors in the last {report.edges[1]:.3g} s before each time; times are since a window's start."


def _delay_table(report: GapReport, delays: DelayResult) -> Shown:
    head = ["reality later than the twin by", "ms", "gain", "of squared error: delay", "amplitude", "shape"]
    rows = [
        [
            name,
            format_estimate(delays.delay, row, factor=1e3, digits=1),
            format_estimate(delays.gain, row),
            *(f"{share:.0%}" for share in delays.shares.estimate[:, row]),
        ]
        for row, name in enumerate(report.joints)
        if not np.isnan(delays.delay.estimate[row])
    ]
    return head, rows, "Gain is measured / simulated amplitude without the delay; shape is the remaining share."


def _phase_table(report: GapReport) -> Shown:
    head = ["RMSE by contact", "unit", *(phase.name for phase in report.phases)]
    rows = [
        [name, unit, *(format_estimate(phase.rmse[report.evaluated_twin], row) for phase in report.phases)]
        for row, name, unit in _list_channels(report)
    ]
    return head, rows, "Free: no contact; contact onset: just after a first touch."


def _worst_clip_table(report: GapReport) -> Shown:
    rows = [
        [f"episode {c.episode}", f"{c.begin:.2f} s", f"{c.length:.2f} s", c.channel, _format_number(c.error), c.unit]
        for c in report.worst
    ]
    caption = "The worst window of each of the three worst episodes, by RMSE divided by the channel's scale."
    return ["worst clips", "from", "for", "channel", "RMSE", "unit"], rows, caption


def _list_channels(report: GapReport) -> list[tuple[int, str, str]]:
    """Return number, name and unit of each channel."""
    return [(row, name, unit) for row, (name, unit) in enumerate(zip(report.joints, report.log_units, strict=True))]


def _format_metric(interval: Interval, row: int) -> str:
    return _format_number(float(interval.estimate[row]))


def _format_number(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.3f}"
