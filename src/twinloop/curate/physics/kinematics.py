"""How the joints of a recording move, in SI where anything says what its columns are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import savgol_filter

from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.core.units import UnitMap
from twinloop.curate.recording import Recording
from twinloop.curate.registry import Twins
from twinloop.dataset.logs.checks.series import Series, prepare
from twinloop.rollout.replay import recorded_params
from twinloop.twin import Twin

Array = NDArray[np.float64]

_SMOOTH_S = 0.17  # over which positions are a cubic: five frames of 30 Hz; arms move below 5 Hz
_TOO_SHORT = "The longest stretch without a gap is too short to tell how it moves."


@dataclass(frozen=True, kw_only=True)
class Kinematics:
    """The longest unbroken stretch of an episode, smoothed: ``(N, n)`` each, in ``unit`` and seconds.

    ``frame`` is the frame at which it begins. ``units`` maps the log's columns to rad or m, None where nothing does.
    """

    joints: tuple[str, ...]
    position: Array
    velocity: Array
    acceleration: Array
    jerk: Array
    frame: int
    dt: float
    units: UnitMap | None

    @property
    def unit(self) -> str:
        """Of positions: rad (of a slide m), or the log's own where nothing says what that is in rad."""
        return "rad" if self.units is not None else "of the log's unit"


def kinematics_of(recording: Recording, twin: Twin | None) -> Kinematics:
    """How a recording's joints move.

    Raises:
        InputError: too little of it is unbroken.
    """
    raw = recording.raw
    series = prepare(raw)
    window = 0 if series is None else max(5, round(_SMOOTH_S / series.dt) | 1)
    if series is None or len(series.time) < 2 * window or not raw.joints:
        raise InputError(_TOO_SHORT)
    units = _units(raw.units, twin)
    state = series.state if units is None else units.to_si(series.state)
    made = [savgol_filter(state, window, 3, deriv=order, delta=series.dt, axis=0) for order in range(4)]
    return Kinematics(
        joints=raw.joints,
        position=np.asarray(state),
        velocity=np.asarray(made[1]),
        acceleration=np.asarray(made[2]),
        jerk=np.asarray(made[3]),
        frame=_frame(raw.time, series),
        dt=series.dt,
        units=units,
    )


def _frame(time: Array, series: Series) -> int:
    return int(np.argmin(np.abs(np.nan_to_num(time, nan=np.inf) - series.time[0])))


def _units(units: UnitMap, twin: Twin | None) -> UnitMap | None:
    """The log's map to SI; with the twin's ranges where a calibration is missing."""
    if units.known:
        return units
    if twin is None or set(units.names) != set(twin.robot.joints):
        return None
    order = [twin.robot.joints.index(name) for name in units.names]
    try:
        whole = twin.unit_map([units.joints[units.names.index(name)].unit for name in twin.robot.joints])
    except InputError:
        return None
    return UnitMap(joints=tuple(whole.joints[i] for i in order), source=whole.source)


def robot_twin(recording: Recording, twins: Twins) -> Twin | None:
    """The recording's twin where there is one and it has its joints."""
    try:
        twin = twins(recording)
        return twin if set(recording.raw.joints) <= set(twin.robot.joints) else None
    except InputError:
        return None


def params_of(recording: Recording, twin: Twin) -> ParamTable | None:
    """The parameters that were drawn for a simulated episode, None where it was not made with this twin."""
    record = recording.provenance
    return recorded_params(twin, record) if record is not None and record.twin_hash == twin.hash else None
