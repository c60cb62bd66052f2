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


Rows = list[list[str]]
Shown = tuple[list[str], Rows, str]


def gap_text(report: GapReport) -> Iterator[str]:
    """Paragraphs: what was compared, the headline, tables of errors, horizons, delay, phases and clips, meanings."""
    yield _head(report)
    yield _summary(report)
    for head, rows, _ in gap_tables(report):
        yield plain_table(head, rows)
    yield "\n".join(f"{name}: {meaning}" for name, meaning in report.meanings.items())


def gap_tables(report: GapReport) -> Iterator[Shown]:
    """Head, rows and caption of every table: errors, change, horizons, delay, phases of contact, worst clips."""
    yield _errors(report)
    if report.improvement is not None:
        pairs = zip(report.joints, report.log_units, strict=True)
        rows = [[name, unit, cell(report.improvement, row)] for row, (name, unit) in enumerate(pairs)]
        yield ["mean absolute error", "unit", "identified − nominal"], rows, "Paired by episode; negative is better."
    yield _horizons(report)
    if report.delay is not None:
        yield _delays(report, report.delay)
    if report.phases:
        yield _phases(report)
    yield _worst(report)


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
        motions = "one motion" if len(report.floor.groups) == 1 else f"{len(report.floor.groups)} motions"
        repeats = f"{sum(map(len, report.floor.groups))} repeats of {motions}"
        lines.append(
            f"gap ratio  {cell(report.floor.overall[judged])}: error over the noise floor of {repeats} "
            f"({report.repeats}); 1 perfect"
        )
    for body, size in report.sizes.items():
        name = f"pose_error/{body}/distance"
        if name in report.joints and size > 0:
            share = cell(report.rmse[judged], report.joints.index(name), factor=100 / size, digits=1)
            lines.append(f"{body:<9}  {share} %: RMSE of its distance over its largest extent, {size:.3g} m")
    return "\n".join(lines)


def _errors(report: GapReport) -> Shown:
    others = [*report.meanings, *report.names[:-1]]
    head = ["RMSE", "unit", *others, f"twin, {report.judged}", "skill"]
    head += [] if report.floor is None else ["floor", "gap ratio"]
    rows = []
    for row, (name, unit) in enumerate(zip(report.joints, report.log_units, strict=True)):
        line = [name, unit, *(_figure(report.rmse[other], row) for other in others)]
        line += [cell(report.rmse[report.judged], row), cell(report.skills["best"], row, digits=2)]
        if report.floor is not None:
            line += [_figure(report.floor.floor, row), cell(report.floor.ratios[report.judged], row, digits=2)]
        rows.append(line)
    caption = "Skill is 1 − RMSE / RMSE of the best of the guesses. " + (
        "" if report.floor is None else "The floor is what repeats of one motion differ by, over √2."
    )
    return head, rows, caption.strip()


def _horizons(report: GapReport) -> Shown:
    nbin = len(report.edges) - 1
    bins = np.unique(np.linspace(0, nbin, _HORIZONS + 1).round().astype(int))[1:] - 1
    head = [f"RMSE of the {report.judged} twin after", "unit", *(f"{report.edges[k + 1]:.3g} s" for k in bins)]
    curve = report.curves[report.judged].estimate
    pairs = enumerate(zip(report.joints, report.log_units, strict=True))
    rows = [[name, unit, *(_number(curve[k, row]) for k in bins)] for row, (name, unit) in pairs]
    return head, rows, f"Of the last {report.edges[1]:.3g} s before each time, since a window's beginning."


def _delays(report: GapReport, delays: Delays) -> Shown:
    head = ["reality later than the twin by", "ms", "gain", "of squared error: delay", "amplitude", "shape"]
    rows = []
    for row, name in enumerate(report.joints):
        if np.isnan(delays.delay.estimate[row]):
            continue
        shares = [f"{share:.0%}" for share in delays.shares.estimate[:, row]]
        rows.append([name, cell(delays.delay, row, factor=1e3, digits=1), cell(delays.gain, row), *shares])
    return head, rows, "Gain is measured over simulated amplitude once the delay is removed; shape is neither of both."


def _phases(report: GapReport) -> Shown:
    head = ["RMSE by contact", "unit", *(phase.name for phase in report.phases)]
    rows = []
    for row, (name, unit) in enumerate(zip(report.joints, report.log_units, strict=True)):
        rows.append([name, unit, *(cell(phase.rmse[report.judged], row) for phase in report.phases)])
    return head, rows, "Free: nothing touches; contact onset: just after a first touch."


def _worst(report: GapReport) -> Shown:
    rows = [
        [f"episode {c.episode}", f"{c.begin:.2f} s", f"{c.length:.2f} s", c.channel, _number(c.error), c.unit]
        for c in report.worst
    ]
    caption = "The worst window of each of the three worst episodes, by RMSE over the channel's scale."
    return ["worst clips", "from", "for", "channel", "RMSE", "unit"], rows, caption


def _figure(interval: Interval, row: int) -> str:
    return _number(float(interval.estimate[row]))


def _number(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.3f}"
