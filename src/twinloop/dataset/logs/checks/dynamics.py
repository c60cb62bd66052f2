"""Check velocities against the derivative of positions, and torques against accelerations.

A torque with the right sign is positively correlated with the joint's acceleration, because the diagonal of a
mass matrix is positive. This is a partial correlation: velocity, Coulomb friction, gravity and the
accelerations of the other joints are first regressed out of both torque and acceleration.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.signal import savgol_filter
from scipy.spatial.transform import Rotation

from twinloop.dataset.logs.checks.finding import (
    VELOCITIES,
    JointExpectations,
    LogFinding,
    LogRecord,
    make_finding,
    name_factor,
)
from twinloop.dataset.logs.checks.series import UnbrokenSeries, select_increasing
from twinloop.stats import cross_lag, slope_change, uncentered_correlation

Array = NDArray[np.float64]

_ALIKE = 0.6  # least correlation of two series of the same quantity
_UNLIKE = 0.3  # below this correlation a velocity does not belong to the position
_MOVES_S = 0.02  # rad or m; least motion of a joint in an episode
_SKEW_S, _SKEW_FRAMES = 0.05, 3.0  # filters of drives delay velocities by 10 to 30 ms
_SPLIT = 0.5
_TURNED = 0.5  # a velocity with the wrong sign is about -1 times the derivative, also after filtering
_FEWEST = 16


def check_velocities(record: LogRecord, series: UnbrokenSeries) -> Iterator[LogFinding]:
    """Find measured joint velocities with a wrong sign, unit or delay, compared with the derivative of the positions.

    Args:
        record: Episode. If it lacks the signal ``joint_velocity``, nothing is checked.
        series: Uninterrupted part of the episode.
    """
    signal = record.signals.get("joint_velocity")
    if signal is None or not record.units.known:
        return
    velocity = series.sample_signal(signal)
    if velocity is None:
        return
    position = record.units.to_si(series.state)
    moved, mean = series.movement(position), series.moving_mean(velocity) * series.stride * series.dt
    for column, name in enumerate(signal.columns):
        if name in record.joints:
            joint = record.joints.index(name)
            if np.ptp(position[:, joint]) > _MOVES_S:
                yield from _compare_velocity(
                    record, series, f"joint_velocity/{name}", moved[:, joint], mean[:, column], "rad/s or m/s"
                )


def check_twists(record: LogRecord) -> Iterator[LogFinding]:
    """Find velocities of bodies (``twist/BODY``) that do not fit the derivative of their poses (``pose/BODY``).

    Linear velocities are expected in world axes, angular velocities in body axes.
    """
    for name, pose in record.signals.items():
        twist = record.signals.get(f"twist/{name.removeprefix('pose/')}")
        if not name.startswith("pose/") or twist is None or pose.values.shape[1] != 7 or twist.values.shape[1] != 6:
            continue
        if pose.time.shape != twist.time.shape or not np.array_equal(pose.time, twist.time, equal_nan=True):
            continue
        time, rows = select_increasing(pose.time)
        if len(time) < _FEWEST:
            continue
        dt = float(np.median(np.diff(time)))
        place = pose.values[rows]
        rates = twist.values[rows]
        if not np.isfinite(place).all() or not np.isfinite(rates).all():
            continue
        steps = np.diff(time) < 2 * dt
        yield from _check_linear(record, twist_name := f"twist/{name.removeprefix('pose/')}", time, place, rates, steps)
        yield from _check_angular(record, name, twist_name, time, place, rates, steps)


def _compare_velocity(
    record: LogRecord, series: UnbrokenSeries, name: str, moved: Array, mean: Array, unit: str
) -> Iterator[LogFinding]:
    """Compare a measured velocity of one joint with the joint's movement, both over `UnbrokenSeries.stride` frames.

    Args:
        record: Episode of the velocity.
        series: Uninterrupted part of the episode with N frames.
        name: Column name for the finding.
        moved: Movement of the joint in rad or m, shape ``(N − stride,)``.
        mean: Mean of the measured velocity times the duration of ``stride`` frames, in rad or m, shape
            ``(N − stride,)``.
        unit: Expected unit of the velocity, for the message.
    """
    dt = series.dt
    if np.ptp(mean) == 0:
        yield make_finding(record, name, series.time[0], "velocity_constant", "warning",
            f"is {mean[0] / (series.stride * dt):.4g} throughout while the joint moves.",
            "Leave the signal out; velocities are then computed from the positions.")  # fmt: skip
        return
    lag, correlation = cross_lag(moved, mean, earliest=-0.2 / dt, latest=0.2 / dt)
    shift = round(lag)
    x, y = (moved[: len(moved) - shift], mean[shift:]) if shift >= 0 else (moved[-shift:], mean[:shift])
    change = slope_change(x, y, least=max(8, len(x) // 20))
    parts = [(0, len(x), float(x @ y / max(x @ x, 1e-300)))]
    if change.gain > _SPLIT and change.before * change.after < 0:
        parts = [(0, change.index, change.before), (change.index, len(x), change.after)]
    elif abs(correlation) < _UNLIKE:
        yield make_finding(record, name, series.time[0], "velocity_unlike", "warning",
            f"is not the derivative of the position (largest correlation {correlation:.2f}).",
            "Check the column or leave it out; velocities then follow from positions.",
            correlation=correlation)  # fmt: skip
        return
    for first, stop, slope in parts:
        strength = uncentered_correlation(x[first:stop], y[first:stop])
        if abs(strength) >= _ALIKE:
            yield from _judge_slope(record, name, float(series.time[first]), slope, strength, unit)
    if abs(correlation) >= _ALIKE and abs(lag * dt) > max(_SKEW_S, _SKEW_FRAMES * dt):
        yield make_finding(record, name, series.time[0], "signal_skew", "warning",
            f"is {1e3 * lag * dt:+.0f} ms behind the position's derivative (correlation {abs(correlation):.2f}).",
            f"--shift {name.partition('/')[0]}={-lag * dt:.3f} brings it onto the joints' clock.",
            lag_s=lag * dt)  # fmt: skip


def _judge_slope(
    record: LogRecord, name: str, begin: float, slope: float, strength: float, unit: str
) -> Iterator[LogFinding]:
    if slope < -_TURNED:
        yield make_finding(record, name, begin, "velocity_sign", "error",
            f"is {slope:.3g} times the derivative of the position (correlation {strength:.2f}): the sign is wrong.",
            f"--flip {name}", slope=slope, correlation=strength)  # fmt: skip
    factor = name_factor(abs(slope), VELOCITIES)
    if factor is not None:
        yield make_finding(record, name, begin, "velocity_unit", "error",
            f"is {abs(slope):.4g} times the derivative of the position: {factor}.",
            f"Convert it to {unit}, or declare the unit of the positions (--units).",
            slope=slope, correlation=strength)  # fmt: skip


def _check_linear(
    record: LogRecord, name: str, time: Array, place: Array, rates: Array, steps: NDArray[np.bool_]
) -> Iterator[LogFinding]:
    gone = np.diff(place[:, :3], axis=0)[steps]
    expected = ((rates[1:, :3] + rates[:-1, :3]) / 2 * np.diff(time)[:, None])[steps]
    if np.sum(gone**2) == 0 or np.abs(gone).sum() < _MOVES_S:
        return
    x, y = gone.ravel(), expected.ravel()
    strength = uncentered_correlation(x, y)
    slope = float(x @ y / (x @ x))
    if strength > _ALIKE or strength < -_ALIKE:
        yield from _judge_slope(record, f"{name} linear", float(time[0]), slope, strength, "m/s")
    elif strength < _UNLIKE:
        yield make_finding(record, f"{name} linear", time[0], "velocity_unlike", "warning",
            f"is not the derivative of the pose's position (correlation {strength:.2f}).",
            "Linear velocities must be in world axes.", correlation=strength)  # fmt: skip


def _check_angular(
    record: LogRecord, pose: str, twist: str, time: Array, place: Array, rates: Array, steps: NDArray[np.bool_]
) -> Iterator[LogFinding]:
    """Find a wrong quaternion order, wrong axes, sign or unit of a body's angular velocity, compared with its pose.

    Args:
        record: Episode of the signals.
        pose: Name of the pose signal.
        twist: Name of the velocity signal.
        time: Common times of T samples in s, shape ``(T,)``.
        place: Position and quaternion wxyz, shape ``(T, 7)``.
        rates: Linear and angular velocity, shape ``(T, 6)``.
        steps: Intervals between samples to use (those that are not gaps), shape ``(T − 1,)``.
    """
    dt = np.diff(time)[:, None]
    measured = ((rates[1:, 3:] + rates[:-1, 3:]) / 2 * dt)[steps]
    if np.sqrt(np.sum(measured**2)) < _MOVES_S:
        return
    readings = {
        "": rotation_vectors(place[:, 3:], body=True)[steps],
        "xyzw": rotation_vectors(place[:, [6, 3, 4, 5]], body=True)[steps],
        "world": rotation_vectors(place[:, 3:], body=False)[steps],
    }
    errors = {}
    for name, turn in readings.items():
        errors[name] = 1 - uncentered_correlation(turn.ravel(), measured.ravel())
    best = min(errors, key=errors.__getitem__)
    metrics = {f"correlation_{name or 'wxyz'}": 1 - error for name, error in errors.items()}
    if errors[""] > 0.2 and errors[best] < 0.5 * errors[""] and 1 - errors[best] > _ALIKE:
        if best == "xyzw":
            yield make_finding(record, pose, time[0], "quaternion_order", "error",
                "agrees with its angular velocity only if it is read as xyzw "
                f"(correlation {1 - errors[best]:.2f} instead of {1 - errors['']:.2f}).",
                "--quaternions xyzw", **metrics)  # fmt: skip
        else:
            yield make_finding(record, twist, time[0], "twist_axes", "error",
                f"angular velocity fits the pose in the world's axes (correlation {1 - errors[best]:.2f}), not in the "
                f"body's ({1 - errors['']:.2f}).", "Rotate it into body axes.", **metrics)  # fmt: skip
        return
    x, y = readings[""].ravel(), measured.ravel()
    strength, slope = uncentered_correlation(x, y), float(x @ y / max(x @ x, 1e-300))
    if abs(strength) > _ALIKE:
        yield from _judge_slope(record, f"{twist} angular", float(time[0]), slope, strength, "rad/s")


def rotation_vectors(wxyz: Array, *, body: bool) -> Array:
    """Return the rotation between successive orientations as rotation vectors in rad.

    Args:
        wxyz: Quaternions, shape ``(T, 4)``.
        body: Return the vectors in body axes, not in world axes.

    Returns:
        Rotation vectors, shape ``(T − 1, 3)``.
    """
    norm = np.linalg.norm(wxyz, axis=1, keepdims=True)
    rotations = Rotation.from_quat(np.where(norm > 0, wxyz, [1, 0, 0, 0]), scalar_first=True)
    earlier, later = rotations[:-1], rotations[1:]
    return ((earlier.inv() * later) if body else (later * earlier.inv())).as_rotvec()


_SMOOTH_S = 0.08  # s; window of the cubic fit to positions: arm accelerations have most of their power below 5 Hz
_FEWEST_FOR_TORQUE = 64
_MOVES = 0.02  # rad or m; least motion of a joint in an episode
_AGAINST = -0.3  # partial correlation with acceleration below which the sign is wrong; noise stays above
_AGAINST_TWIN = -0.6  # the same for the twin's torques, whose parameters may be inaccurate
_SHARE = 0.02  # least share of torque variance that acceleration explains; errors of friction and gravity hide less
_DRIVEN = 0.3  # of the largest joint's torque; below it a joint is moved by the others
_MILLI = 100.0  # times the twin's torque; no twin is that inaccurate
_COULOMB_RAD_S = 0.1  # rad/s; speed over which Coulomb friction changes its sign


def check_torques(
    record: LogRecord, series: UnbrokenSeries, expectations: JointExpectations | None
) -> Iterator[LogFinding]:
    """Find measured or commanded joint torques with a wrong sign or unit.

    Torques are compared with the twin's inverse dynamics, or with the joint's acceleration if the twin cannot
    compute them.

    Args:
        record: Episode. If it has neither torque commands nor the signal ``joint_torque``, nothing is checked.
        series: Uninterrupted part of the episode.
        expectations: Joints of the twin, if there is one.
    """
    window = max(5, round(_SMOOTH_S / series.dt) | 1)
    if not record.joints or not record.units.known or len(series.time) < max(_FEWEST_FOR_TORQUE, 2 * window):
        return
    q, v, a = estimate_motion(record.units.to_si(series.state), series.dt, window)
    predicted = _predict_torques(record, expectations, q, v, a)
    for name, torque in _read_torques(record, series):
        spread = torque.std(axis=0)
        if spread.max() == 0:
            continue
        smooth = np.asarray(savgol_filter(torque, window, 3, axis=0), dtype=np.float64)
        for joint in range(len(record.joints)):
            if spread[joint] < _DRIVEN * spread.max() or np.ptp(q[:, joint]) < _MOVES:
                continue
            if predicted is not None and not np.isnan(predicted[0, joint]):
                yield from _compare_with_twin(record, series, name, joint, smooth[:, joint], predicted[:, joint])
            else:
                yield from _compare_with_acceleration(record, series, name, joint, smooth[:, joint], q, v, a)


def estimate_motion(position: Array, dt: float, window: int) -> tuple[Array, Array, Array]:
    """Estimate positions, velocities and accelerations by local cubic fits (Savitzky–Golay filter).

    Args:
        position: Positions of n joints at N frames, shape ``(N, n)``.
        dt: Time between frames in s.
        window: Number of frames of each fit, odd.

    Returns:
        Positions, velocities and accelerations, shape ``(N, n)`` each.
    """
    made = np.array([savgol_filter(position, window, 3, deriv=order, delta=dt, axis=0) for order in range(3)])
    return made[0], made[1], made[2]


def _read_torques(record: LogRecord, series: UnbrokenSeries) -> Iterator[tuple[str, Array]]:
    if record.command == "torque" and series.action is not None and series.action.shape == series.state.shape:
        yield "action/", series.action
    signal = record.signals.get("joint_torque")
    if signal is not None and signal.columns == record.joints:
        measured = series.sample_signal(signal)
        if measured is not None:
            yield "joint_torque/", measured


def _predict_torques(
    record: LogRecord, expectations: JointExpectations | None, q: Array, v: Array, a: Array
) -> Array | None:
    """Return the torques of the twin's inverse dynamics, in the column order of the log.

    Args:
        record: Episode of the log with n joints.
        expectations: Joints of the twin, if there is one.
        q: Joint positions in SI units, shape ``(N, n)`` for N frames.
        v: Joint velocities, same shape.
        a: Joint accelerations, same shape.

    Returns:
        Torques, shape ``(N, n)``, NaN for joints that the twin lacks. None if the log lacks a joint of the twin, or
        if the twin has no inverse dynamics.
    """
    if expectations is None or expectations.inverse_dynamics is None:
        return None
    pairs = expectations.match_joints(record.joints)
    if len(pairs) != len(expectations.joints):
        return None
    columns = [column for _, column in pairs]
    made = np.full(q.shape, np.nan)
    made[:, columns] = expectations.inverse_dynamics(q[:, columns], v[:, columns], a[:, columns])
    return made


def _compare_with_twin(
    record: LogRecord, series: UnbrokenSeries, name: str, joint: int, torque: Array, predicted: Array
) -> Iterator[LogFinding]:
    x, y = predicted - predicted.mean(), torque - torque.mean()
    power = float(x @ x)
    correlation = uncentered_correlation(x, y)
    slope = float(x @ y) / power if power > 0 else 0.0
    if correlation < _AGAINST_TWIN:
        yield _torque_sign_finding(record, series, name, joint,
            f"is opposite to the torque of the twin's inverse dynamics (correlation {correlation:.2f}, "
            f"{slope:.3g} times).", correlation=correlation, slope=slope)  # fmt: skip
    elif correlation > -_AGAINST_TWIN and slope > _MILLI:
        yield LogFinding(
            kind="torque_unit", severity="warning", column=name + record.joints[joint], episodes=(record.index,),
            begin_s=float(series.time[0]),
            evidence=f"is {slope:.4g} times the torque of the twin's inverse dynamics (correlation "
            f"{correlation:.2f}).", remedy="Give it in N·m: it may be mN·m, or a current.",
            metrics={"correlation": correlation, "slope": slope},
        )  # fmt: skip


def _compare_with_acceleration(
    record: LogRecord, series: UnbrokenSeries, name: str, joint: int, torque: Array, q: Array, v: Array, a: Array
) -> Iterator[LogFinding]:
    others = [column for column in range(q.shape[1]) if column != joint]
    angle = np.cumsum(q, axis=1)
    nuisance = np.column_stack([
        np.ones(len(q)), v[:, joint], np.tanh(v[:, joint] / _COULOMB_RAD_S),
        np.sin(q[:, joint]), np.cos(q[:, joint]), np.sin(angle[:, joint]), np.cos(angle[:, joint]),
        np.sin(angle[:, -1]), np.cos(angle[:, -1]), a[:, others],
    ])  # fmt: skip
    x, y = (_residual(nuisance, column) for column in (a[:, joint], torque))
    correlation = uncentered_correlation(x, y)
    share = correlation**2 * float(y @ y) / (len(y) * float(torque.var()))
    if correlation < _AGAINST and share > _SHARE:
        yield _torque_sign_finding(record, series, name, joint,
            f"is opposite to the joint's own acceleration (partial correlation {correlation:.2f}; the diagonal of a "
            "mass matrix is positive).", correlation=correlation, share=share)  # fmt: skip


def _residual(nuisance: Array, values: Array) -> Array:
    solution = np.linalg.lstsq(nuisance, values, rcond=1e-9)[0]
    return values - nuisance @ solution


def _torque_sign_finding(
    record: LogRecord, series: UnbrokenSeries, name: str, joint: int, evidence: str, **metrics: float
) -> LogFinding:
    """Return the finding that the torque of one joint has the wrong sign."""
    column = name + record.joints[joint]
    return make_finding(record, column, series.time[0], "torque_sign", "error", evidence, f"--flip {column}", **metrics)
