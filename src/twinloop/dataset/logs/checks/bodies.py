"""Check measurements of bodies: poses (quaternion norm and order, unit), accelerations and angular velocities."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from twinloop.core.records import LoggedSignal
from twinloop.dataset.logs.checks.finding import LogFinding, LogRecord, make_finding
from twinloop.dataset.logs.checks.series import select_increasing
from twinloop.stats import uncentered_correlation

_OFF, _WRONG = 1e-3, 0.05  # error of a quaternion's norm: rounding to four digits, and no quaternion
_FAR = 100.0  # m from the origin; no motion-capture room is larger
_IDENTITY = 0.99  # least fourth component of an identity quaternion in the order xyzw


def check_poses(record: LogRecord) -> Iterator[LogFinding]:
    """Find wrong quaternions and positions in mm in the signals ``pose/BODY`` of one episode.

    `dynamics.check_twists` compares poses with velocities.
    """
    for name, signal in record.signals.items():
        if not name.startswith("pose/") or signal.values.shape[1:] != (7,) or not len(signal.time):
            continue
        place, wxyz = signal.values[:, :3], signal.values[:, 3:]
        norm = np.linalg.norm(wxyz, axis=1)
        off = np.flatnonzero(np.abs(norm - 1) > _OFF)
        if len(off):
            worst = float(np.nanmax(np.abs(norm - 1)))
            yield make_finding(
                record, name, float(signal.time[off[0]]), "quaternion_norm", "error" if worst > _WRONG else "warning",
                f"{len(off)} quaternions are not of unit length, {norm[off[0]]:.5g} at frame {off[0]}.",
                "If this is rounding, divide by the length; otherwise the columns are not a quaternion.",
                count=float(len(off)), worst=worst,
            )  # fmt: skip
        elif (
            f"twist/{name.removeprefix('pose/')}" not in record.signals
            and np.abs(wxyz[0, 3]) > _IDENTITY
            and np.median(np.abs(wxyz[:, 3])) > _IDENTITY
        ):
            yield make_finding(
                record, name, signal.time[0], "quaternion_order", "note",
                f"stays near ({', '.join(f'{x:.3g}' for x in wxyz[0])}): half a turn about z if the order is wxyz, no "
                "rotation if it is xyzw.",
                "--quaternions xyzw if the order is xyzw.", last=float(wxyz[0, 3]),
            )  # fmt: skip
        far = np.flatnonzero(np.abs(place).max(axis=1) > _FAR)
        if len(far):
            yield make_finding(
                record, name, float(signal.time[far[0]]), "pose_unit", "error",
                f"is {np.nanmax(np.abs(place)):.4g} m from the origin: these look like mm.", f"--scale {name}=0.001",
                reach=float(np.nanmax(np.abs(place))),
            )  # fmt: skip


GRAVITY = 9.80665  # m/s², CGPM 1901
# Allowed factor between the median specific force and gravity: the scale of an accelerometer is accurate to a few
# percent, and a quadrotor in flight carries its own weight on average.
_NEAR, _RAW = 1.6, 60.0
_HELD = 0.4  # least ratio of the 10th percentile to the median: gravity is always present, motion is not
_ABSENT = 0.25  # of gravity; below it gravity was subtracted, or the body is in free fall
_FULL_SCALE = np.radians(2000)  # rad/s: the widest range of common MEMS gyroscopes (BMI055, MPU-6050, ICM-20948)
_STEADY = 0.15  # allowed relative deviation of the specific force's norm while its direction counts as gravity's
_FEWEST = 64
_ALIKE = 0.6
_TURNS = 0.05  # rad; least rotation of a segment that is used


def check_inertial(record: LogRecord) -> Iterator[LogFinding]:
    """Find wrong units, wrong signs and missing gravity in the IMU signals of one episode.

    The signals are ``acceleration/SITE`` and ``angular_velocity/SITE``.
    """
    for name, signal in record.signals.items():
        if not len(signal.time) or signal.values.shape[1:] != (3,) or not np.isfinite(signal.values).any():
            continue
        if name.startswith("acceleration/"):
            yield from _check_accelerometer(record, name, signal)
        elif name.startswith("angular_velocity/"):
            yield from _check_gyroscope(record, name, signal)


def _check_accelerometer(record: LogRecord, name: str, signal: LoggedSignal) -> Iterator[LogFinding]:
    size = np.linalg.norm(signal.values[np.isfinite(signal.values).all(axis=1)], axis=1)
    if not len(size):
        return
    median = float(np.median(size))
    if GRAVITY / _NEAR < median < GRAVITY * _NEAR:
        return
    low = float(np.percentile(size, 10))
    if 1 / _NEAR < median < _NEAR and low > _HELD * median:
        kind, severity, conclusion, remedy = (
            "acceleration_unit", "error", "it is in g.", f"--scale {name}={GRAVITY}")  # fmt: skip
    elif median > _RAW:
        milli = 1000 / _NEAR < median < 1000 * _NEAR
        kind, severity, conclusion, remedy = (
            "acceleration_unit", "error", "it is in mg." if milli else "these are raw counts, or mm/s².",
            f"--scale {name}={GRAVITY / median:.6g}")  # fmt: skip
    elif median < _ABSENT * GRAVITY:
        kind, severity, conclusion, remedy = (
            "gravity_missing", "warning",
            "gravity was subtracted, or the body is in free fall. A specific force includes gravity.",
            "Record the output of the accelerometer, not an acceleration without gravity.")  # fmt: skip
    else:
        kind, severity, conclusion, remedy = (
            "acceleration_scale", "warning", "neither m/s² nor g at rest.", f"--scale {name}=FACTOR")  # fmt: skip
    yield LogFinding(
        kind=kind, severity=severity, column=name, episodes=(record.index,), begin_s=_first_time(signal),
        evidence=f"the median size is {median:.4g} m/s², gravity {GRAVITY:.3f}: {conclusion}", remedy=remedy,
        metrics={"median": median},
    )  # fmt: skip


def _check_gyroscope(record: LogRecord, name: str, signal: LoggedSignal) -> Iterator[LogFinding]:
    size = np.linalg.norm(signal.values, axis=1)
    fast = np.flatnonzero(np.isfinite(size) & (size > _FULL_SCALE))
    turn = _compare_with_gravity(record, name, signal)
    if turn is not None:
        slope, correlation = turn
        if correlation > _ALIKE and slope > 10:
            yield _degrees_finding(
                record, name, _first_time(signal),
                f"turns {slope:.3g} times as fast as the direction of gravity does (correlation {correlation:.2f})",
                slope=slope,
            )  # fmt: skip
            return
        if correlation < -_ALIKE:
            yield LogFinding(
                kind="gyro_sign", severity="error", column=name, episodes=(record.index,), begin_s=_first_time(signal),
                evidence=f"turns against the direction of gravity (correlation {correlation:.2f}).",
                remedy=f"--flip {name} if all axes have the wrong sign; otherwise check the axes of both sensors.",
                metrics={"correlation": correlation},
            )  # fmt: skip
    if len(fast) > 0.001 * len(size):
        yield _degrees_finding(
            record, name, float(signal.time[fast[0]]),
            f"reaches {np.nanmax(size):.4g} rad/s, beyond the ±{_FULL_SCALE:.1f} rad/s (2000°/s) of a MEMS gyroscope",
            largest=float(np.nanmax(size)),
        )  # fmt: skip


def _compare_with_gravity(record: LogRecord, name: str, signal: LoggedSignal) -> tuple[float, float] | None:
    """Compare the gyroscope's rate with the rate at which the gravity direction in the accelerometer's data turns.

    Only segments in which the specific force is near its median are used, because its direction is then that of
    gravity. A fixed direction u, expressed in sensor axes, obeys du/dt = −ω × u; a rotation ω about u itself is not
    observable.

    Args:
        record: Episode with the signal ``acceleration/SITE`` of the same site.
        name: Name of the gyroscope's signal, ``angular_velocity/SITE``.
        signal: Signal of the gyroscope.

    Returns:
        Slope and correlation of the regression of the gyroscope's rotation on that of the gravity direction (1 and 1
        for a correct gyroscope); None if there are too few samples.
    """
    force = record.signals.get(name.replace("angular_velocity/", "acceleration/"))
    if force is None or force.values.shape[1:] != (3,) or len(force.time) < _FEWEST:
        return None
    time, rows = select_increasing(force.time)
    clock, own = select_increasing(signal.time)
    if len(time) < _FEWEST or len(clock) < _FEWEST:
        return None
    stride = max(1, round(0.1 / float(np.median(np.diff(time)))))
    values = force.values[rows]
    size = np.linalg.norm(values, axis=1)
    typical = float(np.median(size))
    direction = values / np.where(size > 0, size, 1.0)[:, None]
    rate = np.stack([np.interp(time, clock, column) for column in signal.values[own].T], axis=1)
    sums = np.concatenate([np.zeros((1, 3)), np.cumsum((rate[1:] + rate[:-1]) / 2 * np.diff(time)[:, None], axis=0)])
    turned = sums[stride:] - sums[:-stride]
    middle = direction[stride // 2 :][: len(turned)]
    gravity_turn = direction[stride:] - direction[:-stride]
    gyro_turn = -np.cross(turned, middle)
    steady = np.abs(size - typical) < _STEADY * typical
    good = steady[stride:] & steady[:-stride] & (np.linalg.norm(gravity_turn, axis=1) > _TURNS)
    good &= np.isfinite(gyro_turn).all(axis=1) & np.isfinite(gravity_turn).all(axis=1)
    if good.sum() < _FEWEST:
        return None
    x, y = gravity_turn[good].ravel(), gyro_turn[good].ravel()
    return (float(x @ y) / float(x @ x), uncentered_correlation(x, y)) if x.any() and y.any() else None


def _degrees_finding(record: LogRecord, name: str, begin: float, evidence: str, **metrics: float) -> LogFinding:
    remedy = f"--scale {name}=0.017453292519943295"
    return make_finding(record, name, begin, "gyro_unit", "error", f"{evidence}: it is in deg/s.", remedy, **metrics)


def _first_time(signal: LoggedSignal) -> float:
    finite: NDArray[np.float64] = signal.time[np.isfinite(signal.time)]
    return float(finite[0]) if len(finite) else 0.0
