"""Steps that no joint makes: values that wrap around, and single frames that are far from their neighbours."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from twinloop.dataset.log_checks.expectations import LogRecord
from twinloop.dataset.log_checks.finding import Finding

# What a value jumps by where it wraps, in the log's own units: turns, and the counts of encoders of 10 to 16 bits.
_PERIODS = {
    "2π rad": 2 * math.pi,
    "360°": 360.0,
    "1024 counts": 1024.0,
    "4096 counts": 4096.0,
    "16384 counts": 16384.0,
    "65536 counts": 65536.0,
}
_NEAR = 0.12  # of a period, from it: what the joint itself moves in that frame
_QUIET = 0.12  # of a period: the steps around a wrap
_SPIKE = 8.0  # times the median step in motion, and twice the 98th percentile of all
_FEWEST = 16


def check_jumps(record: LogRecord) -> Iterator[Finding]:
    """Wrap-around and spikes in measured positions and, where they are positions, in commands."""
    own = getattr(record, "action_time", None)
    tables = [("", record.time, record.state)]
    if record.command == "position":
        tables.append(("action/", record.time if own is None else own, record.action))
    for prefix, time, values in tables:
        for column, joint in enumerate(record.joints[: values.shape[1]]):
            good = np.isfinite(values[:, column])
            if good.sum() >= _FEWEST:
                yield from _column(record, prefix + joint, time[good], values[good, column])


def wraps(series: NDArray[np.float64]) -> tuple[str, float, NDArray[np.intp]] | None:
    """The period by which a series ``(T,)`` wraps, in words and its own units, and the rows after each wrap."""
    steps = np.diff(series)
    for name, period in _PERIODS.items():
        near = np.abs(np.abs(steps) - period) < _NEAR * period
        rest = np.where(near, 0.0, steps)
        if near.any() and np.abs(rest).max() < _QUIET * period and np.ptp(series) < 1.2 * period:
            return name, period, np.flatnonzero(near) + 1
    return None


def _column(record: LogRecord, name: str, time: NDArray[np.float64], series: NDArray[np.float64]) -> Iterator[Finding]:
    joint = name.removeprefix("action/")
    wrapped = wraps(series)
    if wrapped is not None:
        period, size, rows = wrapped
        yield Finding(
            kind="wraps", severity="error", column=name, episodes=(record.index,), begin_s=float(time[rows[0]]),
            evidence=f"jumps {len(rows)} times by {period}, first from {series[rows[0] - 1]:.5g} to "
            f"{series[rows[0]]:.5g}.",
            remedy=f"--unwrap {joint} joins the turns.",
            figures={"count": float(len(rows)), "period": size, "frame": float(rows[0])},
        )  # fmt: skip
        return
    rows = _spikes(series)
    if len(rows):
        row = int(rows[0])
        yield Finding(
            kind="spike", severity="warning", column=name, episodes=(record.index,), begin_s=float(time[row]),
            evidence=f"{len(rows)} single frames lie far off, first {series[row]:.5g} between {series[row - 1]:.5g} "
            f"and {series[row + 1]:.5g}.",
            remedy="Leave those frames out, or make them NaN and use --drop-missing; a lost packet reads so.",
            figures={"count": float(len(rows)), "frame": float(row)},
        )  # fmt: skip


def _spikes(series: NDArray[np.float64]) -> NDArray[np.intp]:
    """Rows that leave and come back within one frame, further than any usual step goes."""
    steps = np.diff(series)
    usual = float(np.percentile(np.abs(steps), 98))
    moves = np.abs(steps[steps != 0])
    floor = max(_SPIKE * float(np.median(moves)) if len(moves) else 0.0, 2.0 * usual)
    out, back = steps[:-1], steps[1:]
    apart = np.minimum(np.abs(out), np.abs(back))
    around = np.abs(series[2:] - series[:-2])
    return np.flatnonzero((out * back < 0) & (apart > floor) & (around < 0.5 * apart)) + 1
