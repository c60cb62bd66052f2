"""Torques of the wrong sign: against the twin's inverse dynamics, or against the joint's own acceleration.

Whatever drives a joint, a torque of the right sign has a positive part that goes with the joint's acceleration: the
diagonal of a mass matrix is positive. That part is what correlates once velocity, Coulomb friction, gravity and the
other joints' accelerations are regressed out of both.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.signal import savgol_filter

from twinloop.dataset.log_checks.expectations import Expectations, LogRecord
from twinloop.dataset.log_checks.finding import Finding, in_episode
from twinloop.dataset.log_checks.series import Series
from twinloop.stats import raw_correlation

Array = NDArray[np.float64]

_SMOOTH_S = 0.08  # over which positions are a cubic: accelerations of arms have most of their power below 5 Hz
_FEWEST = 64
_MOVES = 0.02  # rad or m that a joint has to move in an episode
_AGAINST = -0.3  # partial correlation with acceleration that is no noise
_AGAINST_TWIN = -0.6  # correlation with the twin's torques, whose parameters may be far off
_SHARE = 0.02  # of a torque's variance that goes with acceleration: less is lost in friction's and gravity's misfit
_DRIVEN = 0.3  # of the largest joint's torque: a joint that is carried along shows what its rotor resists with
_MILLI = 100.0  # times the twin's torque: no twin is that wrong
_COULOMB_RAD_S = 0.1  # speed over which friction turns round


def check_torques(record: LogRecord, series: Series, expectations: Expectations | None) -> Iterator[Finding]:
    """Measured torques, and commands where they are torques."""
    window = max(5, round(_SMOOTH_S / series.dt) | 1)
    if not record.joints or not record.units.known or len(series.time) < max(_FEWEST, 2 * window):
        return
    q, v, a = motion(record.units.to_si(series.state), series.dt, window)
    predicted = _predicted(record, expectations, q, v, a)
    for name, torque in _torques(record, series):
        spread = torque.std(axis=0)
        if spread.max() == 0:
            continue
        smooth = np.asarray(savgol_filter(torque, window, 3, axis=0), dtype=np.float64)
        for joint in range(len(record.joints)):
            if spread[joint] < _DRIVEN * spread.max() or np.ptp(q[:, joint]) < _MOVES:
                continue
            if predicted is not None and not np.isnan(predicted[0, joint]):
                yield from _against_twin(record, series, name, joint, smooth[:, joint], predicted[:, joint])
            else:
                yield from _against_acceleration(record, series, name, joint, smooth[:, joint], q, v, a)


def motion(position: Array, dt: float, window: int) -> tuple[Array, Array, Array]:
    """Positions, velocities and accelerations ``(N, n)`` of cubics fitted over ``window`` frames."""
    made = np.array([savgol_filter(position, window, 3, deriv=order, delta=dt, axis=0) for order in range(3)])
    return made[0], made[1], made[2]


def _torques(record: LogRecord, series: Series) -> Iterator[tuple[str, Array]]:
    if record.command == "torque" and series.action is not None and series.action.shape == series.state.shape:
        yield "action/", series.action
    signal = record.signals.get("joint_torque")
    if signal is not None and signal.columns == record.joints:
        measured = series.of(signal)
        if measured is not None:
            yield "joint_torque/", measured


def _predicted(record: LogRecord, expectations: Expectations | None, q: Array, v: Array, a: Array) -> Array | None:
    """The twin's torques in the log's columns, NaN for joints that it lacks."""
    if expectations is None or expectations.inverse_dynamics is None:
        return None
    pairs = expectations.shared(record.joints)
    if len(pairs) != len(expectations.joints):
        return None
    columns = [column for _, column in pairs]
    made = np.full(q.shape, np.nan)
    made[:, columns] = expectations.inverse_dynamics(q[:, columns], v[:, columns], a[:, columns])
    return made


def _against_twin(
    record: LogRecord, series: Series, name: str, joint: int, torque: Array, predicted: Array
) -> Iterator[Finding]:
    x, y = predicted - predicted.mean(), torque - torque.mean()
    power = float(x @ x)
    correlation = raw_correlation(x, y)
    slope = float(x @ y) / power if power > 0 else 0.0
    if correlation < _AGAINST_TWIN:
        yield _against(record, series, name, joint,
            f"is against the torque that the twin's inverse dynamics asks for (correlation {correlation:.2f}, "
            f"{slope:.3g} times).", correlation=correlation, slope=slope)  # fmt: skip
    elif correlation > -_AGAINST_TWIN and slope > _MILLI:
        yield Finding(
            kind="torque_unit", severity="warning", column=name + record.joints[joint], episodes=(record.index,),
            begin_s=float(series.time[0]),
            evidence=f"is {slope:.4g} times the torque that the twin's inverse dynamics asks for (correlation "
            f"{correlation:.2f}).", remedy="Give it in N·m: it may be mN·m, or a current.",
            figures={"correlation": correlation, "slope": slope},
        )  # fmt: skip


def _against_acceleration(
    record: LogRecord, series: Series, name: str, joint: int, torque: Array, q: Array, v: Array, a: Array
) -> Iterator[Finding]:
    others = [column for column in range(q.shape[1]) if column != joint]
    angle = np.cumsum(q, axis=1)
    nuisance = np.column_stack([
        np.ones(len(q)), v[:, joint], np.tanh(v[:, joint] / _COULOMB_RAD_S),
        np.sin(q[:, joint]), np.cos(q[:, joint]), np.sin(angle[:, joint]), np.cos(angle[:, joint]),
        np.sin(angle[:, -1]), np.cos(angle[:, -1]), a[:, others],
    ])  # fmt: skip
    x, y = (_residual(nuisance, column) for column in (a[:, joint], torque))
    correlation = raw_correlation(x, y)
    share = correlation**2 * float(y @ y) / (len(y) * float(torque.var()))
    if correlation < _AGAINST and share > _SHARE:
        yield _against(record, series, name, joint,
            f"goes against the joint's own acceleration (partial correlation {correlation:.2f}; the diagonal of a "
            "mass matrix is positive).", correlation=correlation, share=share)  # fmt: skip


def _residual(nuisance: Array, values: Array) -> Array:
    solution = np.linalg.lstsq(nuisance, values, rcond=1e-9)[0]
    return values - nuisance @ solution


def _against(record: LogRecord, series: Series, name: str, joint: int, evidence: str, **figures: float) -> Finding:
    """A torque of the wrong sign."""
    column = name + record.joints[joint]
    return in_episode(record, column, series.time[0], "torque_sign", "error", evidence, f"--flip {column}", **figures)
