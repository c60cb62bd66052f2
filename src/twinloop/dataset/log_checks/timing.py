"""Time itself: not finite, back, twice, gaps, uneven, in another unit; and frames that were recorded twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from twinloop.dataset.log_checks.expectations import LogRecord
from twinloop.dataset.log_checks.finding import Finding, Severity, in_episode
from twinloop.dataset.resample import GAP_FACTOR

Array = NDArray[np.float64]
Found = Callable[..., Finding]  # a finding of one clock, from a row on

# No log in the registry is slower than 30 Hz or faster than 2 kHz; beyond these steps the unit is another one.
_SLOWEST_S, _IMPOSSIBLE_S, _FASTEST_S = 0.5, 10.0, 2e-5
_UNEVEN = 0.2  # of a step, between the 5th and the 95th percentile: replay needs a grid (our choice)
_RATE_TOLERANCE = 0.02  # what replay allows between episodes (simulate/replay.py)
_REPEATED = 0.01  # part of the moving frames; a bus that is read faster than it answers repeats frames
_FEWEST_REPEATS, _FEWEST_FRAMES = 3, 8
_MOTION = 3  # smallest steps ever seen


def check_timing(record: LogRecord) -> Iterator[Finding]:
    """Every clock of one episode: its frames', its commands', its signals'."""
    seen: list[Array] = []
    for name, time in _clocks(record):
        if any(time is other or np.array_equal(time, other, equal_nan=True) for other in seen):
            continue
        seen.append(time)
        yield from _check_clock(record, name, np.asarray(time, dtype=np.float64))
    yield from _repeated_frames(record)


def check_rates(records: Sequence[LogRecord]) -> Iterator[Finding]:
    """Episodes whose rate is not that of the log."""
    steps = {record.index: np.diff(record.time) for record in records if len(record.time) > 2}
    medians = {index: float(np.nanmedian(values[values > 0])) for index, values in steps.items() if (values > 0).any()}
    if len(medians) < 2:
        return
    usual = float(np.percentile(list(medians.values()), 50, method="lower"))
    for index, step in medians.items():
        if abs(usual / step - 1) > _RATE_TOLERANCE:
            yield Finding(
                kind="rate_differs",
                severity="note",
                column="",
                episodes=(index,),
                begin_s=0.0,
                evidence=f"{1 / step:.2f} Hz, the log's median is {1 / usual:.2f} Hz.",
                remedy="Fit it apart, or resample the log to one rate.",
                figures={"rate_hz": 1 / step, "usual_hz": 1 / usual},
            )


def _clocks(record: LogRecord) -> Iterator[tuple[str, Array]]:
    yield "", record.time
    own = getattr(record, "action_time", None)
    if own is not None:
        yield "action", own
    for name, signal in record.signals.items():
        yield name, signal.time


def _check_clock(record: LogRecord, name: str, time: Array) -> Iterator[Finding]:
    def found(kind: str, severity: Severity, row: int, evidence: str, remedy: str, **figures: float) -> Finding:
        begin = float(time[row]) if np.isfinite(time[row]) else _last_finite(time, row)
        return in_episode(record, name, begin, kind, severity, evidence, remedy, frame=float(row), **figures)

    holes = np.flatnonzero(~np.isfinite(time))
    if len(holes):
        yield found(
            "time_not_finite", "error", int(holes[0]), f"{len(holes)} times are no numbers, first at frame {holes[0]}.",
            "Remove those frames.", count=float(len(holes)),
        )  # fmt: skip
    finite = time[np.isfinite(time)]
    rows, steps = np.flatnonzero(np.isfinite(time)), np.diff(finite)
    if not (steps > 0).any():
        return
    median = float(np.median(steps[steps > 0]))
    back = np.flatnonzero(steps < 0)
    if len(back):
        row = int(rows[back[0] + 1])
        yield found(
            "time_backwards", "error", row,
            f"time jumps back by {-steps[back[0]]:.6g} s at frame {row} ({len(back)} such jumps).",
            "Sort the rows, or split the episode where its clock began again.",
            jump_s=float(steps[back[0]]), count=float(len(back)),
        )  # fmt: skip
    twice = np.flatnonzero(steps == 0)
    if len(twice):
        row = int(rows[twice[0] + 1])
        yield found(
            "time_duplicate", "error", row, f"{len(twice)} times stand there twice, first at frame {row}.",
            "--drop-duplicates keeps the first of each.", count=float(len(twice)),
        )  # fmt: skip
    yield from _gaps(found, name, rows, steps, median)
    yield from _steps(found, name, steps, median)


def _gaps(found: Found, name: str, rows: NDArray[np.intp], steps: Array, median: float) -> Iterator[Finding]:
    if name == "enabled":  # a switch is logged when it switches
        return
    gaps = np.flatnonzero(steps > GAP_FACTOR * median)
    if len(gaps):
        row = int(rows[gaps[0] + 1])
        yield found(
            "gap", "warning", row - 1,
            f"{len(gaps)} gaps, the longest of {steps[gaps].max():.4g} s (a usual step is {median:.4g} s); the first "
            f"before frame {row} lasts {steps[gaps[0]]:.4g} s.",
            "--resample HZ splits the episode there; nothing is filled in.",
            count=float(len(gaps)), longest_s=float(steps[gaps].max()), usual_s=median,
        )  # fmt: skip


def _steps(found: Found, name: str, steps: Array, median: float) -> Iterator[Finding]:
    if name in ("enabled", "action"):  # neither a switch nor a command has to come regularly
        return
    if median > _SLOWEST_S or median < _FASTEST_S:
        faster = median > _SLOWEST_S
        unit = "milliseconds" if faster else "kiloseconds" if median < 1e-6 else "another unit"
        yield found(
            "time_unit", "error" if median > _IMPOSSIBLE_S or not faster else "warning", 0,
            f"frames are {median:.4g} s apart, {1 / median:.4g} Hz; if these are {unit}, say so.",
            "--time-scale 0.001 reads milliseconds, 1e-6 microseconds, 1e-9 nanoseconds.", step_s=median,
        )  # fmt: skip
        return
    usual = steps[(steps > 0) & (steps <= GAP_FACTOR * median)]
    low, high = np.percentile(usual, [5, 95])
    if (high - low) / median > _UNEVEN:
        yield found(
            "uneven", "note", 0,
            f"steps are {1e3 * low:.3g} to {1e3 * high:.3g} ms (5 to 95 %), the median {1e3 * median:.3g} ms.",
            "--resample HZ brings the log onto a uniform grid.",
            low_s=float(low), high_s=float(high), median_s=median,
        )  # fmt: skip


def repeated_rows(record: LogRecord) -> tuple[NDArray[np.intp], int]:
    """Frames equal to the one before while the robot moves on both sides of them, and how many frames are in motion.

    Motion is at least three of the smallest steps ever seen: slower, an encoder repeats itself rightly.
    """
    state = record.state
    if len(state) < _FEWEST_FRAMES or not state.shape[1]:
        return np.empty(0, dtype=np.intp), 0
    step = np.abs(np.diff(state, axis=0))
    grains = [column[column > 0].min() if (column > 0).any() else np.inf for column in step.T]
    size = np.max(step / np.asarray(grains), axis=1)
    same = ~np.any(step > 0, axis=1)
    if getattr(record, "action_time", None) is None and record.command != "none" and len(record.action) == len(state):
        same &= ~np.any(np.diff(record.action, axis=0) != 0, axis=1)
    moving = np.zeros(len(size), dtype=np.bool_)
    moving[1:-1] = np.minimum(size[:-2], size[2:]) >= _MOTION
    return np.flatnonzero(same & moving) + 1, int(moving.sum())


def _repeated_frames(record: LogRecord) -> Iterator[Finding]:
    rows, moving = repeated_rows(record)
    if len(rows) >= max(_FEWEST_REPEATS, _REPEATED * moving):
        yield Finding(
            kind="repeated_frames",
            severity="warning",
            column="",
            episodes=(record.index,),
            begin_s=float(record.time[rows[0]]),
            evidence=f"{len(rows)} frames ({100 * len(rows) / moving:.1f} % of those in motion) repeat the one before, "
            f"first frame {rows[0]}.",
            remedy="--drop-duplicates leaves them out; the recorder reads faster than the robot answers.",
            figures={"count": float(len(rows)), "part": len(rows) / moving, "frame": float(rows[0])},
        )


def _last_finite(time: Array, row: int) -> float:
    before = time[:row][np.isfinite(time[:row])]
    return float(before[-1]) if len(before) else 0.0
