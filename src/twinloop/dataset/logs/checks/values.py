"""Check single columns for NaN, constant, frozen, clipped and coarse values, and for jumps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from twinloop.dataset.logs.checks.finding import LogFinding, LogRecord, Severity, make_finding

Array = NDArray[np.float64]

_FROZEN_S, _FROZEN_FRAMES = 0.3, 8  # shorter standstills are pauses between two steps of an encoder
_FROZEN_COMMAND = 0.05  # least motion of the command meanwhile, as a share of its range
_FROZEN_JUMP = 4.0  # least jump at the end, times the 99th percentile of the steps
_CUT_PART, _CUT_VISITS, _CUT_RUN = 0.01, 2, 4  # least share of frames at the extreme, visits, frames per visit
_CUT_SPEED = 0.5  # least last step before a clipped extreme, times the median step in motion
_COARSE = 20  # least number of steps in the range of a moving joint
_STILL = 0.005  # rad or m, or share of the largest range if units are unknown; less motion is no excitation
_FEWEST = 16


def check_numbers(record: LogRecord) -> Iterator[LogFinding]:
    """Find NaN and infinity in measurements, commands and signals."""
    own = getattr(record, "action_time", None)
    tables = [("", record.joints, record.time, record.state)]
    if record.command != "none":
        tables.append(("action/", record.joints, record.time if own is None else own, record.action))
    tables += [(f"{name}/", s.columns, s.time, s.values) for name, s in record.signals.items()]
    for prefix, columns, time, values in tables:
        for column, name in enumerate(columns[: values.shape[1]]):
            bad = np.flatnonzero(~np.isfinite(values[:, column]))
            if len(bad):
                yield _finding_at_row(
                    "not_finite", "error", record, prefix + name, time, int(bad[0]),
                    f"{len(bad)} of {len(values)} values are not finite, first {values[bad[0], column]} at frame "
                    f"{bad[0]}.",
                    "--drop-missing removes those frames. Do not import a column without numbers.",
                    count=float(len(bad)),
                )  # fmt: skip


def check_standstill(record: LogRecord) -> Iterator[LogFinding]:
    """Find joints that do not move, always or for some time, although their position command does."""
    if record.command != "position" or record.action.shape != record.state.shape:
        return
    for column, joint in enumerate(record.joints):
        state, action = record.state[:, column], record.action[:, column]
        if len(state) < _FEWEST or not np.isfinite(state).all() or not np.isfinite(action).all():
            continue
        reach = float(np.ptp(action))
        if reach > 0 and np.ptp(state) == 0:
            yield _finding_at_row(
                "constant", "error", record, joint, record.time, 0,
                f"reads {state[0]:.6g} in every frame while its command moves by {reach:.4g}.",
                "Leave the joint out (--joints), or check the cable of its encoder.", command_range=reach,
            )  # fmt: skip
        elif np.ptp(state) > 0:
            yield from _check_frozen(record, joint, state, action, reach)


def _check_frozen(record: LogRecord, joint: str, state: Array, action: Array, reach: float) -> Iterator[LogFinding]:
    """Find a frozen sensor: no change under a moving command, until a jump or the end of the episode.

    Args:
        record: Episode.
        joint: Name of the joint.
        state: Positions, shape ``(T,)``.
        action: Position commands, shape ``(T,)``.
        reach: Range of the commands.
    """
    steps = np.abs(np.diff(state))
    usual = float(np.percentile(steps, 99))
    for first, stop in _find_runs(steps == 0):
        lasts = float(record.time[stop] - record.time[first])
        moved = float(np.ptp(action[first : stop + 1]))
        jump = float(steps[stop]) if stop < len(steps) else 0.0
        if lasts < _FROZEN_S or stop - first < _FROZEN_FRAMES or moved < _FROZEN_COMMAND * reach:
            continue
        to_the_end = stop == len(steps) and moved > 5 * _FROZEN_COMMAND * reach
        if jump > _FROZEN_JUMP * usual or to_the_end:
            end = "until the end" if to_the_end else f"and then jumps by {jump:.4g}"
            yield _finding_at_row(
                "frozen", "error" if not to_the_end else "warning", record, joint, record.time, first,
                f"reads {state[first]:.6g} for {lasts:.3g} s {end}, while its command moves by {moved:.4g}.",
                "Leave that part out: split the episode there.",
                lasts_s=lasts, command_moves=moved, jump=jump,
            )  # fmt: skip
            return


def check_clipping(record: LogRecord) -> Iterator[LogFinding]:
    """Find clipped positions: a joint reaches its smallest or largest value at speed and stays there, repeatedly."""
    for column, joint in enumerate(record.joints[: record.state.shape[1]]):
        series = record.state[:, column]
        if len(series) < _FEWEST or not np.isfinite(series).all() or np.ptp(series) == 0:
            continue
        for extreme in (float(series.min()), float(series.max())):
            found = _find_cut_off(series, extreme)
            if found is not None:
                row, count, visits = found
                yield _finding_at_row(
                    "cut_off", "warning", record, joint, record.time, row,
                    f"stays at exactly {extreme:.6g} on {visits} visits, {count} frames in all: values are clipped.",
                    "If the joint does not touch a mechanical stop, the range of the log is too small. Leave those "
                    "parts out of a fit.",
                    level=extreme, frames=float(count), visits=float(visits),
                )  # fmt: skip


def _find_cut_off(series: Array, extreme: float) -> tuple[int, int, int] | None:
    """Return where and how often a series is clipped at its smallest or largest value.

    Args:
        series: Positions, shape ``(T,)``.
        extreme: Smallest or largest value.

    Returns:
        First clipped frame, number of clipped frames, and number of times that the series reaches the value at speed
        and keeps it for at least 4 frames. None if the series is not clipped.
    """
    steps = np.abs(np.diff(series))
    typical = float(np.median(steps[steps > 0]))
    runs = [(a, b) for a, b in _find_runs(series == extreme) if b - a >= _CUT_RUN]
    # A joint that comes to rest is slow before; a clipped value reaches the limit at full speed.
    sharp = [
        (a, b)
        for a, b in runs
        if a >= 2
        and abs(series[a - 1] - series[a - 2]) >= _CUT_SPEED * typical
        and abs(series[a - 1] - series[a - 2]) > 2.5 * steps[steps > 0].min()
    ]
    count = sum(b - a for a, b in sharp)
    if len(sharp) < _CUT_VISITS or count < _CUT_PART * len(series):
        return None
    return sharp[0][0], count, len(sharp)


def check_resolution(record: LogRecord) -> Iterator[LogFinding]:
    """Find moving joints whose encoder resolution is too coarse for a fit (fewer than 20 steps in their range)."""
    for column, joint in enumerate(record.joints[: record.state.shape[1]]):
        series = record.state[:, column]
        series = series[np.isfinite(series)]
        steps = np.abs(np.diff(series))
        moves = steps[steps > 0]
        if len(moves) < _FEWEST:
            continue
        grain, reach = float(moves.min()), float(np.ptp(series))
        whole = np.abs(moves / grain - np.round(moves / grain)).max() < 0.05
        if whole and reach / grain < _COARSE:
            yield _finding_at_row(
                "coarse", "warning", record, joint, record.time, 0,
                f"moves by {reach:.4g} in {reach / grain:.0f} steps of {grain:.4g}.",
                "Move it further, or give the fit the encoder's resolution as noise.", grain=grain, range=reach,
            )  # fmt: skip


def check_excitation(records: Sequence[LogRecord]) -> Iterator[LogFinding]:
    """Find joints that do not move in any episode. They are errors if no joint moves, and otherwise warnings."""
    joints = records[0].joints
    alike = [record for record in records if record.joints == joints and record.state.shape[1:] == (len(joints),)]
    if not joints or not alike:
        return
    state = np.concatenate([record.state for record in alike])
    if not len(state):
        return
    reach = np.nan_to_num([np.ptp(c[np.isfinite(c)]) if np.isfinite(c).any() else 0.0 for c in state.T])
    scale = np.array([abs(unit.scale) if unit.scale else np.nan for unit in records[0].units.joints])
    least = np.where(np.isnan(scale), _STILL * max(reach.max(), 1.0), _STILL / np.where(np.isnan(scale), 1.0, scale))
    still = reach < least
    numbers = tuple(dict.fromkeys(record.index for record in alike))
    for column in np.flatnonzero(still):
        unit = records[0].units.joints[column].unit
        yield LogFinding(
            kind="no_excitation", severity="error" if still.all() else "warning", column=joints[column],
            episodes=numbers, begin_s=0.0, evidence=f"moves by {reach[column]:.3g} {unit} in the whole log.",
            remedy="Nothing about this joint can be identified; record a log in which it moves.",
            metrics={"range": float(reach[column])},
        )  # fmt: skip


def _find_runs(true: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return start and stop row of each run of True."""
    edges = np.diff(np.concatenate([[0], true.astype(np.int8), [0]]))
    return list(zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True))


def _finding_at_row(
    kind: str, severity: Severity, record: LogRecord, column: str, time: Array, row: int, evidence: str, remedy: str,
    **metrics: float,
) -> LogFinding:  # fmt: skip
    return make_finding(record, column, time[row], kind, severity, evidence, remedy, frame=float(row), **metrics)


# Jumps at a wrap-around in the log's own units: full turns, and the counts of encoders of 10 to 16 bits.
_PERIODS = {
    "2π rad": 2 * math.pi,
    "360°": 360.0,
    "1024 counts": 1024.0,
    "4096 counts": 4096.0,
    "16384 counts": 16384.0,
    "65536 counts": 65536.0,
}
_NEAR = 0.12  # of a period; tolerance of a wrap's size, because the joint moves in that frame
_QUIET = 0.12  # of a period; most size of all other steps
_SPIKE = 8.0  # times the median step in motion; a spike also exceeds twice the 98th percentile of all steps


def check_jumps(record: LogRecord) -> Iterator[LogFinding]:
    """Find wrap-around and single-frame outliers in measured positions and in position commands."""
    own = getattr(record, "action_time", None)
    tables = [("", record.time, record.state)]
    if record.command == "position":
        tables.append(("action/", record.time if own is None else own, record.action))
    for prefix, time, values in tables:
        for column, joint in enumerate(record.joints[: values.shape[1]]):
            good = np.isfinite(values[:, column])
            if good.sum() >= _FEWEST:
                yield from _check_column(record, prefix + joint, time[good], values[good, column])


def find_wraps(series: NDArray[np.float64]) -> tuple[str, float, NDArray[np.intp]] | None:
    """Find jumps of a series by a full turn (2π, 360°, or the counts of an encoder of 10 to 16 bits).

    Args:
        series: Angles, shape ``(T,)``.

    Returns:
        Name and size of the turn, and the rows after each jump; None if the series does not wrap.
    """
    steps = np.diff(series)
    for name, period in _PERIODS.items():
        near = np.abs(np.abs(steps) - period) < _NEAR * period
        rest = np.where(near, 0.0, steps)
        if near.any() and np.abs(rest).max() < _QUIET * period and np.ptp(series) < 1.2 * period:
            return name, period, np.flatnonzero(near) + 1
    return None


def _check_column(
    record: LogRecord, name: str, time: NDArray[np.float64], series: NDArray[np.float64]
) -> Iterator[LogFinding]:
    joint = name.removeprefix("action/")
    wrapped = find_wraps(series)
    if wrapped is not None:
        period, size, rows = wrapped
        yield LogFinding(
            kind="wraps", severity="error", column=name, episodes=(record.index,), begin_s=float(time[rows[0]]),
            evidence=f"jumps {len(rows)} times by {period}, first from {series[rows[0] - 1]:.5g} to "
            f"{series[rows[0]]:.5g}.",
            remedy=f"--unwrap {joint} removes the jumps.",
            metrics={"count": float(len(rows)), "period": size, "frame": float(rows[0])},
        )  # fmt: skip
        return
    rows = _find_spikes(series)
    if len(rows):
        row = int(rows[0])
        yield LogFinding(
            kind="spike", severity="warning", column=name, episodes=(record.index,), begin_s=float(time[row]),
            evidence=f"{len(rows)} single frames are outliers, first {series[row]:.5g} between {series[row - 1]:.5g} "
            f"and {series[row + 1]:.5g}.",
            remedy="Remove those frames, or set them to NaN and use --drop-missing. Lost packets cause such values.",
            metrics={"count": float(len(rows)), "frame": float(row)},
        )  # fmt: skip


def _find_spikes(series: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the rows of single-frame outliers: a large step followed by a step back.

    Both steps must be larger than 8 times the median step in motion and twice the 98th percentile of all steps. The
    values before and after the outlier differ by less than half of the smaller step.
    """
    steps = np.diff(series)
    usual = float(np.percentile(np.abs(steps), 98))
    moves = np.abs(steps[steps != 0])
    floor = max(_SPIKE * float(np.median(moves)) if len(moves) else 0.0, 2.0 * usual)
    out, back = steps[:-1], steps[1:]
    apart = np.minimum(np.abs(out), np.abs(back))
    around = np.abs(series[2:] - series[:-2])
    return np.flatnonzero((out * back < 0) & (apart > floor) & (around < 0.5 * apart)) + 1
