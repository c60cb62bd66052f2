"""The gap in words and tables of text, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from twinloop.gap.delay import Delays
from twinloop.stats import Interval

if TYPE_CHECKING:
    from twinloop.gap.report import GapReport

_HORIZONS = 4  # of the curve, in the terminal


def gap_text(report: GapReport) -> Iterator[str]:
    """Paragraphs: what was compared, the headline, tables of errors, horizons, delay, phases and clips, meanings."""
    yield _head(report)
    yield _summary(report)
    yield _errors(report)
    yield _horizons(report)
    if report.delay is not None:
        yield _delays(report, report.delay)
    if report.phases:
        yield _phases(report)
    yield _worst(report)
    yield "\n".join(f"{name}: {meaning}" for name, meaning in report.meanings.items())


def cell(interval: Interval, row: int | None = None, *, factor: float = 1.0, digits: int = 3) -> str:
    """``0.123 [0.101, 0.150]``, or the figure alone where it has no interval; a dash where there is none."""
    parts = (np.ravel(part)[row or 0] * factor for part in (interval.estimate, interval.low, interval.high))
    estimate, low, high = parts
    if np.isnan(estimate):
        return "–"
    if np.isnan(low):
        return f"{estimate:.{digits}f}"
    return f"{estimate:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def plain_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of text, the first to the left and the others to the right."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(text.ljust(width) if column == 0 else text.rjust(width) for column, (text, width) in enumerate(line))
        for line in (list(zip(line, widths, strict=True)) for line in lines)
    )


def _head(report: GapReport) -> str:
    whole = report.windows == len(report.episodes)
    cut = "whole episodes" if whole else f"{report.windows} windows of {report.length:.3g} s"
    episodes = "1 episode" if len(report.episodes) == 1 else f"{len(report.episodes)} episodes"
    said = f"{report.best.level:.0%} intervals in brackets" if not np.isnan(report.best.low).all() else "no intervals"
    return (
        f"How far the twin is from {episodes} ({report.source}), open loop, {cut} at {report.hz:.4g} Hz\n"
        f"{said}: {report.drawn}"
    )


def _summary(report: GapReport) -> str:
    judged = report.judged
    rival = "each channel's best baseline (1 perfect, 0 no better)"
    lines = [
        f"skill      {cell(report.overall_skill)}: the {judged} twin against {rival}",
        f"error      {cell(report.nrmse[judged])}: RMSE over the channel's scale, mean over channels",
    ]
    if report.floor is None:
        lines.append(f"gap ratio  none: no repeats of one motion ({report.repeats})")
    else:
        repeats = f"{sum(map(len, report.floor.groups))} repeats of {len(report.floor.groups)} motions"
        lines.append(
            f"gap ratio  {cell(report.floor.overall[judged])}: error over the noise floor of {repeats} "
            f"({report.repeats}); 1 perfect"
        )
    return "\n".join(lines)


def _errors(report: GapReport) -> str:
    head = ["RMSE", "unit", *report.meanings, *report.names[:-1], f"twin, {report.judged}", "skill"]
    head += [] if report.floor is None else ["floor", "gap ratio"]
    rows = []
    for row, (name, unit) in enumerate(zip(report.joints, report.log_units, strict=True)):
        others = [*report.meanings, *report.names[:-1]]
        line = [name, unit, *(_figure(report.rmse[other], row) for other in others)]
        line += [cell(report.rmse[report.judged], row), cell(report.skills["best"], row, digits=2)]
        if report.floor is not None:
            line += [_figure(report.floor.floor, row), cell(report.floor.ratios[report.judged], row, digits=2)]
        rows.append(line)
    parts = [plain_table(head, rows)]
    if report.improvement is not None:
        pairs = zip(report.joints, report.log_units, strict=True)
        changes = [[name, unit, cell(report.improvement, row)] for row, (name, unit) in enumerate(pairs)]
        parts.append(plain_table(["mean absolute error", "unit", "identified − nominal"], changes))
    return "\n\n".join(parts)


def _horizons(report: GapReport) -> str:
    nbin = len(report.edges) - 1
    bins = np.unique(np.linspace(0, nbin, _HORIZONS + 1).round().astype(int))[1:] - 1
    head = [f"RMSE of the {report.judged} twin after", "unit", *(f"{report.edges[k + 1]:.3g} s" for k in bins)]
    curve = report.curves[report.judged].estimate
    pairs = enumerate(zip(report.joints, report.log_units, strict=True))
    return plain_table(head, [[name, unit, *(_number(curve[k, row]) for k in bins)] for row, (name, unit) in pairs])


def _delays(report: GapReport, delays: Delays) -> str:
    head = ["reality later than the twin by", "ms", "gain", "of squared error: delay", "amplitude", "shape"]
    rows = []
    for row, name in enumerate(report.joints):
        if np.isnan(delays.delay.estimate[row]):
            continue
        shares = [f"{share:.0%}" for share in delays.shares.estimate[:, row]]
        rows.append([name, cell(delays.delay, row, factor=1e3, digits=1), cell(delays.gain, row), *shares])
    return plain_table(head, rows)


def _phases(report: GapReport) -> str:
    head = ["RMSE by contact", "unit", *(f"{phase.name}" for phase in report.phases)]
    pairs = enumerate(zip(report.joints, report.log_units, strict=True))
    return plain_table(
        head,
        [
            [name, unit, *(cell(phase.rmse[report.judged], row) for phase in report.phases)]
            for row, (name, unit) in pairs
        ],
    )


def _worst(report: GapReport) -> str:
    rows = [
        [
            f"episode {clip.episode}",
            f"{clip.begin:.2f} s",
            f"{clip.length:.2f} s",
            clip.channel,
            _number(clip.error),
            clip.unit,
        ]
        for clip in report.worst
    ]
    return plain_table(["worst clips", "from", "for", "channel", "RMSE", "unit"], rows)


def _figure(interval: Interval, row: int) -> str:
    return _number(float(interval.estimate[row]))


def _number(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.3f}"
