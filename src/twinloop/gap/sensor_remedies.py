"""Which parameter of a twin makes a simulated sensor read as the real one does, and to what value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from twinloop.twin.quantities import find_kind, find_quantities

# Stems of quantities that a device's channels share, by family of signals and, of servos, by signal.
_STEMS = {"angular_velocity": "gyro_", "acceleration": "accel_"}
_SERVO = {"joint_velocity": "velocity_", "joint_current": "current_"}


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """``parameter`` of the twin, and ``value`` in SI that would close the difference; NaN where that takes a fit."""

    parameter: str
    value: float
    how: str = ""


def remedy(
    channel: str, quantity: str, *, real: float, sim: float, hz: float, nominal: Mapping[str, float]
) -> Remedy | None:
    """What to change where a figure of a channel differs; None where no parameter of a twin does that.

    Noise of the twin adds to what its readings have besides: σ_new² = σ_old² + (real² − sim²)/g², g being what the
    sensor's own low-pass leaves of it in the upper half of the band. A density N of IEEE 952 is the deviation over
    √(rate) (`sensors.imu`).

    Args:
        channel: name of the simulated channel.
        quantity: ``noise``, ``step``, ``lag`` or ``jitter``.
        real: figure of the real channel, in SI.
        sim: figure of the simulated one.
        hz: samples per second of the simulated channel.
        nominal: values that the simulation had, by name; empty where no twin was given.
    """
    family, _, column = channel.rpartition("/")
    kind, _, device = family.partition("/")
    if quantity == "lag" and kind == "position":
        return _later(column, real, sim, nominal)
    if quantity == "jitter":
        return Remedy(parameter="timing/control/jitter", value=math.nan, how="try values until the jitter agrees")
    name = _servo(kind, quantity, nominal) if kind in _SERVO else _name(kind, device, column, quantity)
    if name is None or (nominal and name not in nominal):
        return None
    if quantity == "step":
        return Remedy(parameter=name, value=real)
    over = math.sqrt(hz) if kind in _STEMS else 1.0
    before = nominal.get(name, 0.0) * over
    bandwidth = nominal.get(f"sensor/{device}/bandwidth", 0.0) if kind in _STEMS else 0.0
    square = before**2 + (real**2 - sim**2) / _left(bandwidth, hz)
    if square < 0:
        return Remedy(parameter=name, value=0.0, how="the simulation is noisier than this parameter makes it")
    return Remedy(parameter=name, value=math.sqrt(square) / over)


def _later(joint: str, real: float, sim: float, nominal: Mapping[str, float]) -> Remedy:
    """A reading may be late, or what moves the joint: the sum is what is seen."""
    name = "timing/readings/delay"
    value = nominal.get(name, 0.0) + real - sim
    how = f"or actuator/{joint}/delay, stiffness and damping: identify tells them apart"
    return Remedy(parameter=name, value=value if value >= 0 else math.nan, how=how)


def _left(bandwidth: float, hz: float) -> float:
    """Part of white noise's power that a sampled low-pass leaves between a quarter and half of the sampling rate.

    |H|² of y = a y + (1 − a) n, the filter of `sensors.filters.low_pass_noise`, averaged over the band.
    """
    if bandwidth <= 0:
        return 1.0
    decay = math.exp(-2 * math.pi * bandwidth / hz)
    turns = np.linspace(np.pi / 2, np.pi, 64)
    return float(np.mean((1 - decay) ** 2 / (1 - 2 * decay * np.cos(turns) + decay**2)))


def _servo(kind: str, quantity: str, nominal: Mapping[str, float]) -> str | None:
    """The servos' signals do not say which device they are of; the twin has one that reports them."""
    wanted = find_quantities("sensor", f"{_SERVO[kind]}{quantity}")
    return next((name for name in nominal if find_kind(name) in wanted), None)


def _name(kind: str, device: str, column: str, quantity: str) -> str | None:
    """The parameter behind noise or counts of a channel."""
    if quantity not in ("noise", "step"):
        return None
    if kind == "position":
        return f"sensor/{column}/{'resolution' if quantity == 'step' else 'noise'}"
    if kind in _STEMS:
        return f"sensor/{device}/{_STEMS[kind]}{quantity}"
    if kind == "wrench":  # columns are force.x … torque.z; counts are the same on all axes
        what, _, axis = column.partition(".")
        return f"sensor/{device}/{what}_step" if quantity == "step" else f"sensor/{device}/{what}_noise_{axis}"
    return None
