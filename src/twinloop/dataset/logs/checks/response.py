"""Check that each measurement follows its own command, with the right sign and in the same unit.

The changes of measurement and command within about 0.05 s are compared, so constant offsets and the arm's weight have
no effect. A position command is compared with the joint's position, a torque command with the measured torque.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from twinloop.dataset.logs.checks.finding import POSITIONS, LogFinding, LogRecord, name_factor
from twinloop.dataset.logs.checks.series import UnbrokenSeries
from twinloop.stats import correlation_at_lags, slope_change, uncentered_correlation

EARLIEST_S, LATEST_S = -0.3, 0.8  # range of tested lags; servos respond after 0.1 to 0.17 s (SO-101, G1)
_WINDOW_S = 2.0  # s; correlations of segments of this length are averaged, so that a fault that begins halfway is found
_ANSWERS = 0.5  # least absolute correlation at which a measurement follows a command
_OWN, _OTHER, _BETTER = 0.6, 0.75, 0.25  # swapped columns: most own correlation, least other one, least difference
_SPLIT = 0.5  # least share of the squared residuals that a change of sign or unit explains
_STILL = 1e-9
_AS_HIGH = 0.85  # of the highest peak


@dataclass(frozen=True, kw_only=True)
class CommandResponse:
    """Delay and correlation of one measured column with its command.

    Attributes:
        joint: Name of the column.
        lag_s: Delay in s of the measurement behind the command, estimated to a fraction of a frame.
        correlation: Correlation at this delay; negative if the measurement moves against the command.
    """

    joint: str
    lag_s: float
    correlation: float


@dataclass(frozen=True, kw_only=True)
class CommandPair:
    """Commands of an episode and the measurements that should follow them.

    Attributes:
        series: Uninterrupted part of the episode with N frames.
        commands: Commands of n joints, shape ``(N, n)``.
        measured: Measurements, shape ``(N, n)``.
        columns: Names of the measured columns, for messages.
        flip: Prefix of a joint's name in the ``--flip`` option that changes the sign of its measurement.
    """

    series: UnbrokenSeries
    commands: NDArray[np.float64]
    measured: NDArray[np.float64]
    columns: tuple[str, ...]
    flip: str


def find_command_pair(record: LogRecord, series: UnbrokenSeries) -> CommandPair | None:
    """Return the commands of an episode with the measurements that should follow them; None if the log lacks either."""
    if series.action is None or series.action.shape[1] != len(record.joints) or not record.joints:
        return None
    if record.command == "position":
        return CommandPair(series=series, commands=series.action, measured=series.state, columns=record.joints, flip="")
    signal = record.signals.get("joint_torque") if record.command == "torque" else None
    torque = None if signal is None or signal.columns != record.joints else series.sample_signal(signal)
    if torque is None or np.array_equal(torque, series.action):
        return None
    names = tuple(f"joint_torque/{joint}" for joint in record.joints)
    return CommandPair(series=series, commands=series.action, measured=torque, columns=names, flip="joint_torque/")


def check_response(record: LogRecord, pair: CommandPair) -> Iterator[LogFinding]:
    """Find measured columns of one episode that follow the command of another joint, or have a wrong sign or unit."""
    swapped = _find_swapped_columns(pair)
    for column, (other, own, better) in swapped.items():
        yield LogFinding(
            kind="swapped", severity="error", column=pair.columns[column], episodes=(record.index,),
            begin_s=float(pair.series.time[0]),
            evidence=f"follows the command of {record.joints[other]} (correlation {better:.2f}) and not its own "
            f"({own:.2f}).",
            remedy=f"Correct the columns: {record.joints[column]} contains {record.joints[other]}.",
            metrics={"own": own, "other": better, "other_column": float(other)},
        )  # fmt: skip
    for column, name in enumerate(pair.columns):
        if column not in swapped:
            yield from _check_sign_and_unit(record, pair, column, name)


def find_responses(pair: CommandPair) -> list[CommandResponse]:
    """Return the response of each column whose absolute correlation with its command is at least 0.5."""
    found = []
    for column, name in enumerate(pair.columns):
        answer = _best_lag(pair, column)
        if answer is not None and abs(answer.correlation) >= _ANSWERS:
            found.append(CommandResponse(joint=name, lag_s=answer.lag_s, correlation=answer.correlation))
    return found


def _best_lag(pair: CommandPair, column: int) -> CommandResponse | None:
    """Return the delay at which one measured column fits its command best; None if one of them does not move.

    The series is divided into segments of 2 s. Their absolute correlations at each delay are averaged, weighted by
    the energy of the command, so that a fault that begins halfway is found, too.
    """
    dt = pair.series.dt
    x, y = pair.series.movement(pair.commands[:, column]), pair.series.movement(pair.measured[:, column])
    if np.ptp(x) <= _STILL or np.ptp(y) <= _STILL:
        return None
    earliest, latest = (round(end / dt) for end in (EARLIEST_S, LATEST_S))
    earliest, latest = max(earliest, -(len(x) // 6)), min(latest, len(x) // 3)
    lags = np.arange(earliest, latest + 1)
    window = min(max(16, round(_WINDOW_S / dt)), len(x) - (latest - earliest))
    correlations, signed, total = np.zeros(len(lags)), np.zeros(len(lags)), 0.0
    for first in range(-earliest, len(x) - window - latest + 1, window):
        correlation, weight = _sliding_correlation(
            x[first : first + window], y[first + earliest : first + window + latest]
        )
        correlations += weight * np.abs(correlation)
        signed += weight * correlation
        total += weight
    if total == 0:
        return None
    best = _nearest_peak(lags, correlations)
    correlation = float(correlations[best] / total * (np.sign(signed[best]) or 1.0))
    return CommandResponse(
        joint=pair.columns[column],
        lag_s=float(_interpolate_peak(lags, correlations, best)) * dt,
        correlation=correlation,
    )


def _sliding_correlation(part: NDArray[np.float64], around: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Return the correlation of ``part`` with each equally long segment of ``around``, and the energy of ``part``.

    All segments have full length, because padding with zeros would bias slow movements to zero lag.

    Args:
        part: Segment of the command, shape ``(n,)``.
        around: Longer segment of the measurement, shape ``(m,)``; there are m − n + 1 correlations.
    """
    n, centred = len(part), part - part.mean()
    sums, squares = (np.concatenate([[0.0], np.cumsum(around**power)]) for power in (1, 2))
    energy = (squares[n:] - squares[:-n]) - (sums[n:] - sums[:-n]) ** 2 / n
    weight = float(centred @ centred)
    size = np.sqrt(weight * np.maximum(energy, 0.0))
    tiny = 1e-9 * np.sqrt(weight * float(around @ around) + np.finfo(float).tiny)
    product = np.correlate(around, centred, "valid")
    return np.divide(product, size, out=np.zeros(len(size)), where=size > tiny), weight


def _nearest_peak(lags: NDArray[np.int64], correlations: NDArray[np.float64]) -> int:
    """Return the index of the smallest absolute lag among the peaks that have at least 85 % of the highest peak.

    An oscillation has such a peak in each half period, and the smallest lag is the most plausible one.

    Args:
        lags: Tested lags in frames, shape ``(k,)``.
        correlations: Mean absolute correlation at each lag, up to a common factor, shape ``(k,)``.
    """
    above = np.concatenate([[-np.inf], correlations, [-np.inf]])
    peaks = np.flatnonzero(
        (correlations >= above[:-2]) & (correlations >= above[2:]) & (correlations >= _AS_HIGH * correlations.max())
    )
    return int(peaks[np.argmin(np.abs(lags[peaks]))])


def _interpolate_peak(lags: NDArray[np.int64], correlations: NDArray[np.float64], best: int) -> float:
    """Return the lag in frames at the vertex of the parabola through the best lag and its two neighbours.

    Args:
        lags: Tested lags in frames, shape ``(k,)``.
        correlations: Mean absolute correlation at each lag, up to a common factor, shape ``(k,)``.
        best: Index of the best lag.
    """
    if not 0 < best < len(correlations) - 1:
        return float(lags[best])
    left, middle, right = correlations[best - 1 : best + 2]
    curvature = left - 2 * middle + right
    return float(lags[best]) + (0.5 * (left - right) / curvature if curvature < 0 else 0.0)


def _check_sign_and_unit(record: LogRecord, pair: CommandPair, column: int, name: str) -> Iterator[LogFinding]:
    answer = _best_lag(pair, column)
    if answer is None or abs(answer.correlation) < _ANSWERS:
        return
    shift = round(answer.lag_s / pair.series.dt)
    x = pair.series.movement(pair.commands[:, column])
    y = pair.series.movement(pair.measured[:, column])
    x, y = (x[: len(x) - shift], y[shift:]) if shift >= 0 else (x[-shift:], y[:shift])
    change = slope_change(x, y, least=max(8, len(x) // 20))
    differ = change.before * change.after < 0 or not 0.2 < abs(change.before / (change.after or np.inf)) < 5
    parts = [(0, len(x), float(x @ y / (x @ x)))]
    if change.gain > _SPLIT and differ:
        parts = [(0, change.index, change.before), (change.index, len(x), change.after)]
    for first, stop, slope in parts:
        a, b = x[first:stop], y[first:stop]
        strength = uncentered_correlation(a, b)
        if abs(strength) < _ANSWERS:
            continue
        begin = float(pair.series.time[0] if first == 0 else pair.series.time[first + max(shift, 0)])
        yield from _judge_slope(record, pair, name, begin, slope, strength, answer.lag_s, whole=len(parts) == 1)


def _judge_slope(
    record: LogRecord,
    pair: CommandPair,
    name: str,
    begin: float,
    slope: float,
    strength: float,
    lag_s: float,
    *,
    whole: bool,
) -> Iterator[LogFinding]:
    factor = name_factor(abs(slope), POSITIONS)
    joint = name.rpartition("/")[2]
    until = "" if whole else " This part of the episode differs from the rest."
    if slope < 0 and _moves_against_command(pair, name):
        yield LogFinding(
            kind="wrong_sign", severity="error", column=name, episodes=(record.index,), begin_s=begin,
            evidence=f"moves against its command (correlation {strength:.2f}, {slope:.3g} per unit of command, "
            f"{1e3 * lag_s:.0f} ms later).{until}",
            remedy=f"--flip {pair.flip}{joint} changes the sign of the measurement, --flip action/{joint} that of the "
            "command. Flip the one that disagrees with the joint axis of the twin.",
            metrics={"correlation": strength, "slope": slope, "lag_s": lag_s},
        )  # fmt: skip
    if factor is not None:
        yield LogFinding(
            kind="unit_mismatch", severity="error", column=name, episodes=(record.index,), begin_s=begin,
            evidence=f"moves by {abs(slope):.4g} per unit of its command: {factor}.{until}",
            remedy="Give command and measurement in one unit (--units takes one per joint).",
            metrics={"slope": slope, "correlation": strength},
        )  # fmt: skip


def _moves_against_command(pair: CommandPair, name: str) -> bool:
    """Return whether a column has a strong negative correlation with its command: −min(r) > max(r) − 0.35.

    Here r is the correlation over all lags. The margin of 0.35 also finds a sign error that begins during the episode,
    which gives positive and negative correlations. A fast oscillation with the right sign also correlates negatively,
    half a period later, but by much less.
    """
    column = pair.columns.index(name)
    dt = pair.series.dt
    x, y = pair.series.movement(pair.commands[:, column]), pair.series.movement(pair.measured[:, column])
    _, values = correlation_at_lags(
        x[:, None], y[:, None], earliest=round(EARLIEST_S / dt), latest=round(LATEST_S / dt)
    )
    return float(-values.min()) > float(values.max()) - 0.35  # a fault in the second half leaves both


def _find_swapped_columns(pair: CommandPair) -> dict[int, tuple[int, float, float]]:
    """Return the measured columns that follow the command of another joint.

    Returns:
        For each such column: the index of the other command, the correlation with its own command, and the correlation
        with the other command.
    """
    dt, n = pair.series.dt, len(pair.columns)
    if n < 2:
        return {}
    x, y = pair.series.movement(pair.commands), pair.series.movement(pair.measured)
    _, values = correlation_at_lags(x, y, earliest=round(EARLIEST_S / dt), latest=round(LATEST_S / dt))
    strength = np.abs(values).max(axis=0)  # (command, measurement)
    commands, measured = linear_sum_assignment(-strength)
    found = {}
    for command, column in zip(commands.tolist(), measured.tolist(), strict=True):
        own, other = float(strength[column, column]), float(strength[command, column])
        if command != column and own < _OWN and other > _OTHER and other - own > _BETTER:
            found[column] = (command, own, other)
    return found
