"""Plant defects of signals: velocities, torques, inertial units, poses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from scipy.spatial.transform import Rotation

from benchmarks.error_rates.logs.planted.defect import Log, Planted, defect
from twinloop.core.records import LoggedSignal


def _change_signal(
    log: Log, prefix: str, change: Callable[[Mapping[str, LoggedSignal], str], Mapping[str, LoggedSignal]]
) -> Planted | None:
    """Change the first signal whose name begins with ``prefix``, in every episode; None if there is no such signal."""
    name = next((name for name in log[0].signals if name.startswith(prefix)), None)
    if name is None:
        return None
    made = [replace(record, signals={**record.signals, **change(record.signals, name)}) for record in log]
    return Planted(records=made, column=name, episode=log[0].index, begin_s=math.nan)


def _scale_signal(log: Log, prefix: str, factor: float) -> Planted | None:
    return _change_signal(
        log, prefix, lambda signals, name: {name: replace(signals[name], values=factor * signals[name].values)}
    )


@defect("velocity with the wrong sign", "velocity_sign")
def _velocity_sign(log: Log, _random: np.random.Generator) -> Planted | None:
    return _scale_signal(log, "joint_velocity", -1.0)


@defect("velocity in degrees", "velocity_unit")
def _velocity_degrees(log: Log, _random: np.random.Generator) -> Planted | None:
    return _scale_signal(log, "joint_velocity", 180 / math.pi)


@defect("velocity in turns per minute", "velocity_unit")
def _velocity_rpm(log: Log, _random: np.random.Generator) -> Planted | None:
    return _scale_signal(log, "joint_velocity", 30 / math.pi)


@defect("torque with the wrong sign", "torque_sign", also=("wrong_sign",))
def _torque_sign(log: Log, _random: np.random.Generator) -> Planted | None:
    return _scale_signal(log, "joint_torque", -1.0)


@defect("accelerometer in g", "acceleration_unit")
def _in_g(log: Log, _random: np.random.Generator) -> Planted | None:
    return _scale_signal(log, "acceleration/", 1 / 9.80665)


@defect("acceleration without gravity", "gravity_missing")
def _no_gravity(log: Log, _random: np.random.Generator) -> Planted | None:
    def change(signals: Mapping[str, LoggedSignal], name: str) -> Mapping[str, LoggedSignal]:
        values = signals[name].values
        size = np.linalg.norm(values, axis=1, keepdims=True)
        return {name: replace(signals[name], values=values - 9.80665 * values / np.where(size > 0, size, 1.0))}

    return _change_signal(log, "acceleration/", change)


@defect("gyroscope in degrees", "gyro_unit")
def _gyro_degrees(log: Log, _random: np.random.Generator) -> Planted | None:
    return _scale_signal(log, "angular_velocity/", 180 / math.pi)


@defect("quaternions as xyzw", "quaternion_order", also=("velocity_sign", "velocity_unlike"))
def _xyzw(log: Log, _random: np.random.Generator) -> Planted | None:
    def change(signals: Mapping[str, LoggedSignal], name: str) -> Mapping[str, LoggedSignal]:
        return {name: replace(signals[name], values=signals[name].values[:, [0, 1, 2, 4, 5, 6, 3]])}

    return _change_signal(log, "pose/", change)


@defect("quaternions not of unit length", "quaternion_norm")
def _norm(log: Log, _random: np.random.Generator) -> Planted | None:
    def change(signals: Mapping[str, LoggedSignal], name: str) -> Mapping[str, LoggedSignal]:
        return {name: replace(signals[name], values=signals[name].values * [1, 1, 1, 1.1, 1.1, 1.1, 1.1])}

    return _change_signal(log, "pose/", change)


@defect("positions in mm", "velocity_unit", "pose_unit", also=("pose_unit", "velocity_unit"))
def _millimetres(log: Log, _random: np.random.Generator) -> Planted | None:
    def change(signals: Mapping[str, LoggedSignal], name: str) -> Mapping[str, LoggedSignal]:
        return {name: replace(signals[name], values=signals[name].values * [1e3, 1e3, 1e3, 1, 1, 1, 1])}

    return _change_signal(log, "pose/", change)


@defect("angular velocity in the world's axes", "twist_axes", also=("velocity_unlike",))
def _world_axes(log: Log, _random: np.random.Generator) -> Planted | None:
    def change(signals: Mapping[str, LoggedSignal], name: str) -> Mapping[str, LoggedSignal]:
        pose = signals[f"pose/{name.removeprefix('twist/')}"]
        values = signals[name].values.copy()
        values[:, 3:] = Rotation.from_quat(pose.values[:, 3:], scalar_first=True).apply(values[:, 3:])
        return {name: replace(signals[name], values=values)}

    return _change_signal(log, "twist/", change)
