"""Declare the gains of servos and motors, and the filter, integral and slew limit of an actuator.

MuJoCo's actuators have the force gain · control + b0 + b1 · position + b2 · speed, with ``gainprm`` = (gain) and
``biasprm`` = (b0, b1, b2). The names of the coefficients depend on the kind of actuator: kp and kd of a position servo,
kv of a velocity servo, gain of a motor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import mujoco

from twinloop.twin.quantities.kinds import (
    ONSETS,
    PUBLISHED,
    Alias,
    DefaultRange,
    FaultDeclaration,
    FieldSlot,
    FitDeclaration,
    Prior,
    Quantity,
    field_slots,
)

_FIXED, _PID = int(mujoco.mjtGain.mjGAIN_FIXED), int(mujoco.mjtGain.mjGAIN_PID)
_AFFINE, _NONE = int(mujoco.mjtBias.mjBIAS_AFFINE), int(mujoco.mjtBias.mjBIAS_NONE)


def is_pid(model: mujoco.MjModel, name: str) -> bool:
    """Return whether an actuator is MuJoCo's PID controller; its ``gainprm`` is the integral gain."""
    return int(model.actuator_gaintype[model.actuator(name).id]) == _PID


def _read_law(model: mujoco.MjModel, name: str) -> tuple[float, tuple[float, float, float]]:
    """Return g and (b0, b1, b2) of an actuator with the force g · control + b0 + b1 · position + b2 · speed.

    The control of a PID controller is its position setpoint. All numbers are NaN if the force has another form.
    """
    index = model.actuator(name).id
    gain, bias = float(model.actuator_gainprm[index, 0]), model.actuator_biasprm[index, :3].tolist()
    forms = int(model.actuator_gaintype[index]), int(model.actuator_biastype[index])
    if forms == (_PID, _AFFINE):
        gain = -bias[1]
    elif forms == (_FIXED, _NONE):
        bias = [0.0, 0.0, 0.0]
    elif forms != (_FIXED, _AFFINE):
        gain, bias = math.nan, [math.nan] * 3
    return gain, (bias[0], bias[1], bias[2])


def explain_missing_kp(model: mujoco.MjModel, name: str) -> str:
    """Return the reason why an actuator is not a position servo, or an empty text.

    A position servo has a gain kp and an affine bias of −kp times the position.
    """
    gain, (constant, position, _) = _read_law(model, name)
    servo = gain > 0 and (constant, position) == (0, -gain)
    return "" if servo else "kp belongs to a position servo (gainprm kp, biasprm 0 -kp, or a pid actuator)"


def _explain_missing_kd(model: mujoco.MjModel, name: str) -> str:
    damped = not explain_missing_kp(model, name) and _read_law(model, name)[1][2] < 0
    return "" if damped else "kd belongs to a servo with a velocity gain (biasprm[2] < 0)"


def _explain_missing_kv(model: mujoco.MjModel, name: str) -> str:
    gain, bias = _read_law(model, name)
    return "" if gain > 0 and bias == (0, 0, -gain) else "kv belongs to a velocity servo (gainprm kv, biasprm 0 0 -kv)"


def _explain_missing_gain(model: mujoco.MjModel, name: str) -> str:
    gain, bias = _read_law(model, name)
    motor = gain > 0 and bias == (0, 0, 0)
    return "" if motor else "gain belongs to an actuator without feedback (gainprm > 0, no bias), such as a motor"


def _explain_missing_filter(model: mujoco.MjModel, name: str) -> str:
    index = model.actuator(name).id
    filters = (mujoco.mjtDyn.mjDYN_FILTER, mujoco.mjtDyn.mjDYN_FILTEREXACT)
    filtered = int(model.actuator_dyntype[index]) in filters and model.actuator_dynprm[index, 0] > 0
    return "" if filtered else "time_constant belongs to an actuator with dyntype filter or filterexact"


def _explain_missing_pid(model: mujoco.MjModel, name: str, *, attribute: str, field: str, column: int) -> str:
    has = is_pid(model, name) and getattr(model, field)[model.actuator(name).id, column] > 0
    return "" if has else f"it belongs to MuJoCo's pid actuator with {attribute} > 0"


def _gain_quantities() -> Iterator[Quantity]:
    """Yield the gains of servos and motors: torque per position error, per speed, per speed error, and per command."""
    yield Quantity(
        family="actuator",
        quantity="kp",
        unit="N·m/rad",
        low=1e-6,
        high=1e5,
        transform="log",
        slots=(
            FieldSlot(field="actuator_gainprm", column=0),
            FieldSlot(field="actuator_biasprm", column=1, factor=-1.0),
        ),
        nominal=lambda model, name: -model.actuator_biasprm[model.actuator(name).id, 1],
        lacks=explain_missing_kp,
        meaning="gain of a position servo",
        cause="servo gain",
        term="servo stiffness",
        default_range=DefaultRange(low=0.9, high=1.1, op="scale", source=PUBLISHED),
        alias=Alias(name="servo_gain_scale", op="scale"),
        fit=FitDeclaration(
            # Published gains of one servo, the STS3215: 8.9 (kt V/R · 0.166 P), 17.8, 23.5 N·m/rad: a factor of two.
            prior=Prior(spread=0.7),
            rank=0,
            position_only=True,
            first=True,
            shared=True,
            excitation="hold several poses against gravity, and start and stop quickly",
        ),
        fault=FaultDeclaration(name="gain", op="scale", change=0.8, unit="fifths lost"),
    )
    # The servo's part of the viscous torque is a duty cycle: it is within the torque limit, and scales as kp with
    # voltage, torque constant and resistance, which scale all of biasprm. Joint damping (back-EMF, friction) is
    # neither. The firmware's position gain (firmware_gain) is another register and leaves kd as it is.
    yield Quantity(
        family="actuator",
        quantity="kd",
        unit="N·m·s/rad",
        low=0.0,
        high=1e4,
        slots=field_slots("actuator_biasprm", 2, -1.0),
        lacks=_explain_missing_kd,
        meaning="velocity gain of a position servo, inside its torque limit",
        cause="servo gain",
        term="servo stiffness",
        default_range=DefaultRange(low=0.9, high=1.1, op="scale", source=PUBLISHED),
        fit=FitDeclaration(
            # Our choice. The Panda has 450 in MuJoCo Menagerie and 90 in the built-in twin: a factor of five.
            prior=Prior(spread=0.7, relative=True),
            rank=1,
            position_only=True,
            shared=True,
            excitation="quick starts and stops, within the torque limit and beyond it",
        ),
    )
    yield Quantity(
        family="actuator",
        quantity="kv",
        unit="N·m·s/rad",
        low=1e-6,
        high=1e5,
        transform="log",
        slots=(
            FieldSlot(field="actuator_gainprm", column=0),
            FieldSlot(field="actuator_biasprm", column=2, factor=-1.0),
        ),
        lacks=_explain_missing_kv,
        meaning="gain of a velocity servo",
        cause="servo gain",
        term="servo stiffness",
        fit=FitDeclaration(
            prior=Prior(spread=0.7),  # as of kp: our choice
            rank=2,
            first=True,
            shared=True,
            excitation="quick starts and stops, and constant speeds against gravity",
        ),
    )
    yield Quantity(
        family="actuator",
        quantity="gain",
        unit="1",
        low=1e-6,
        high=1e6,
        transform="log",
        slots=field_slots("actuator_gainprm", 0),
        lacks=_explain_missing_gain,
        meaning="torque per command of an actuator without feedback",
        cause="motor & supply",
        term="servo stiffness",
        fit=FitDeclaration(
            # A motor's torque constant is known to about 10 %: our choice. Masses that are known determine the scale.
            prior=Prior(spread=0.1),
            rank=3,
            shared=True,
            excitation="hold several poses against gravity, and accelerate quickly",
        ),
    )


def _dynamics_quantities() -> Iterator[Quantity]:
    """Yield the quantities of an actuator's own state: filter of its command, integrator and slew limit of a PID."""
    yield Quantity(
        family="actuator",
        quantity="time_constant",
        unit="s",
        low=1e-4,
        high=10.0,
        transform="log",
        slots=field_slots("actuator_dynprm", 0),
        lacks=_explain_missing_filter,
        meaning="time constant of an actuator's first-order filter of its command",
        cause="delay",
        term="command delay",
        fit=FitDeclaration(excitation=ONSETS),
    )
    for quantity, attribute, unit, field, column, meaning in (
        ("ki", "ki", "N·m/(rad·s)", "actuator_gainprm", 0, "integral gain of a PID controller"),
        ("integral_limit", "imax", "rad·s", "actuator_dynprm", 0, "largest integral of a PID controller's error"),
        ("slew_limit", "slewmax", "rad/s", "actuator_dynprm", 1, "largest speed of a PID controller's setpoint"),
    ):
        yield Quantity(
            family="actuator",
            quantity=quantity,
            unit=unit,
            low=1e-6,
            high=1e5,
            transform="log",
            slots=field_slots(field, column),
            lacks=partial(_explain_missing_pid, attribute=attribute, field=field, column=column),
            meaning=meaning,
            cause="servo gain",
            term="servo stiffness",
            fit=FitDeclaration(excitation="hold several poses against gravity, and long moves"),
        )


GAINS: tuple[Quantity, ...] = (*_gain_quantities(), *_dynamics_quantities())
