"""Declare the quantities of actuators, encoders, rotors of a drone, and the timing of commands and readings.

A rotor is an actuator whose force acts at a site. Its command u is a throttle from 0 to 1. `simulate.drives` computes
the thrust in N as T = c0 + c1 u + c2 u², after first-order lags of the throttle (Eschmann, Albani, Loianno,
"Data-Driven System Identification of Quadrotors Subject to Motor Delays", IROS 2024).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.twin.quantities.gains import GAINS, explain_missing_kp
from twinloop.twin.quantities.kinds import (
    ONSETS,
    PUBLISHED,
    SPEEDS,
    Alias,
    DefaultRange,
    FaultDeclaration,
    FieldSlot,
    FitDeclaration,
    MissingPhysics,
    ObjectWriter,
    Prior,
    Quantity,
    Stage,
    field_slots,
)

NO_CURVE = 1e6  # rad/s; an actuator with this no-load speed keeps its torque at any speed it can reach


def _explain_missing_limit(model: mujoco.MjModel, name: str) -> str:
    """Return the reason why an actuator has no symmetric force limit, or an empty text."""
    index = model.actuator(name).id
    low, high = model.actuator_forcerange[index]
    limited = model.actuator_forcelimited[index] and high > 0 and low == -high
    return "" if limited else "torque_limit and no_load_speed belong to an actuator with a forcerange"


def _voltage_quantities() -> Iterator[Quantity]:
    """Yield the quantities of a servo's torque-voltage relation: torque limit, firmware gain, supply, no-load speed."""
    yield Quantity(
        family="actuator",
        quantity="torque_limit",
        unit="N·m",
        low=1e-6,
        high=1e4,
        transform="log",
        slots=(
            FieldSlot(field="actuator_forcerange", column=0, factor=-1.0),
            FieldSlot(field="actuator_forcerange", column=1),
        ),
        lacks=_explain_missing_limit,
        meaning="largest torque, at full duty",
        cause="torque limit",
        term="torque limit",
        default_range=DefaultRange(low=0.9, high=1.1, op="scale", source=PUBLISHED),
        alias=Alias(name="torque_limit_scale", op="scale"),
        fit=FitDeclaration(
            # The limit follows the supply: 6 V (flat battery) to 9 V where 7.4 V is nominal.
            prior=Prior(spread=0.2),
            rank=4,
            shared=True,
            excitation="moves so fast or loads so large that the drive saturates",
        ),
    )
    yield Quantity(
        family="actuator",
        quantity="firmware_gain",
        unit="1",
        low=1e-3,
        high=1e6,
        transform="log",
        slots=(
            FieldSlot(field="actuator_gainprm", column=0, rule="factor"),
            FieldSlot(field="actuator_biasprm", column=1, rule="factor"),
        ),
        nominal_outside_model=True,
        lacks=explain_missing_kp,
        meaning="position gain in firmware units; kp is proportional to it, the torque limit is not",
        cause="servo gain",
    )
    fields = ("actuator_gainprm", "actuator_biasprm", "actuator_forcerange")
    yield Quantity(
        family="actuator",
        quantity="voltage",
        unit="V",
        low=0.1,
        high=1e3,
        slots=tuple(FieldSlot(field=field, rule="factor") for field in fields),
        nominal_outside_model=True,
        meaning="supply voltage; gain and torque limit are proportional to it, back-EMF is not",
        cause="motor & supply",
        term="torque limit",
    )
    yield Quantity(
        family="supply",
        member="bus",
        quantity="resistance",
        unit="ohm",
        low=0.0,
        high=1e2,
        default=0.0,
        stage="drive",
        meaning="resistance of supply and wiring; all servos' voltage drops by it times the sum of their currents",
        cause="motor & supply",
        term="supply sag",
        neutral=0.0,
        fit=FitDeclaration(residual="heat"),
    )
    yield Quantity(
        family="actuator",
        quantity="no_load_speed",
        unit="rad/s",
        low=1e-2,
        high=NO_CURVE,
        default=NO_CURVE,
        transform="log",
        stage="drive",
        lacks=_explain_missing_limit,
        meaning="speed at which the available torque, which falls linearly, is zero; for drives whose joint damping "
        "does not include back-EMF",
        cause="torque limit",
        neutral=NO_CURVE,
        fit=FitDeclaration(missing=MissingPhysics(structure="voltage_limit", above_speed=True)),
    )


def _motor_quantities() -> Iterator[Quantity]:
    """Yield torque constant and resistance of a servo's DC motor, at the gear's output (see ``twin/servos.yaml``)."""
    for quantity, unit, low, high, meaning in (
        (
            "torque_constant",
            "N·m/A",
            1e-4,
            1e3,
            "torque constant at the output; gain and torque limit are proportional to it, back-EMF to its square",
        ),
        (
            "resistance",
            "ohm",
            1e-3,
            1e4,
            "cold resistance of winding, driver and wiring; gain, torque limit and back-EMF damping fall as it rises",
        ),
    ):
        yield Quantity(
            family="actuator",
            quantity=quantity,
            unit=unit,
            low=low,
            high=high,
            transform="log",
            stage="drive",
            nominal_outside_model=True,
            meaning=meaning,
            cause="motor & supply",
        )


def _heat_quantities() -> Iterator[Quantity]:
    """Yield the quantities of the winding temperature, which increases the resistance of the copper winding."""
    for quantity, unit, low, high, default, neutral, fit, meaning in (
        (
            "thermal_resistance",
            "K/W",
            0.0,
            1e3,
            0.0,
            0.0,
            FitDeclaration(residual="heat"),
            "final temperature rise of the winding per watt of I²R",
        ),
        ("thermal_time", "s", 1e-2, 1e5, 200.0, None, FitDeclaration(residual="heat"), "time constant of that rise"),
        (
            "temperature_rise",
            "K",
            -100.0,
            200.0,
            0.0,
            0.0,
            FitDeclaration(),
            "winding temperature above the room (25 °C) at the start of an episode",
        ),
    ):
        yield Quantity(
            family="actuator",
            quantity=quantity,
            unit=unit,
            low=low,
            high=high,
            default=default,
            stage="drive",
            meaning=meaning,
            cause="motor & supply",
            term="" if neutral is None else "motor heat",
            neutral=neutral,
            fit=fit,
        )


def _encoder_quantities() -> Iterator[Quantity]:
    """Yield the quantities of a joint encoder: offset, scale, resolution, noise and lag."""
    half = math.pi
    zero = FitDeclaration(
        prior=Prior(spread=0.1),  # of a calibration done by hand
        rank=10,
        position_only=True,
        excitation="poses over the whole range, with different gravity torques",
        residual="position",
    )
    span = FitDeclaration(
        prior=Prior(spread=0.05),  # of a calibration by hand, where a turn may be 128 or 360 degrees wide for another
        rank=11,
        position_only=True,
        excitation="motion over the whole range, against gravity",
        residual="position",
    )
    for quantity, unit, low, high, default, term, fit, meaning in (
        ("offset", "rad", -half, half, 0.0, "offset and scale", zero, "true position at which the encoder reads zero"),
        ("scale", "1", 0.5, 2.0, 1.0, "offset and scale", span, "true change per change of the reading"),
        ("resolution", "rad", 0.0, 0.5, 0.0, "noise and counts", FitDeclaration(), "size of one count of the reading"),
        (
            "noise",
            "rad",
            0.0,
            0.5,
            0.0,
            "noise and counts",
            FitDeclaration(),
            "standard deviation of a reading before it is rounded to counts",
        ),
        ("lag", "s", 0.0, 1.0, 0.0, "", FitDeclaration(), "time constant of the encoder's own low-pass"),
    ):
        calibrated = quantity == "offset"
        yield Quantity(
            family="sensor",
            quantity=quantity,
            unit=unit,
            low=low,
            high=high,
            default=default,
            stage="encoder",
            history=quantity in ("noise", "lag"),
            meaning=meaning,
            cause="encoder",
            term=f"encoder {term}" if term else "reading delay",
            neutral=default,
            default_range=DefaultRange(low=-0.02, high=0.02, source="0.02 rad initial joint noise, squint")
            if calibrated
            else None,
            alias=Alias(name="encoder_offset") if calibrated else None,
            fit=fit,
        )


ACTUATORS: tuple[Quantity, ...] = (
    *GAINS,
    *_voltage_quantities(),
    *_motor_quantities(),
    *_heat_quantities(),
    Quantity(
        family="actuator",
        quantity="delay",
        unit="s",
        low=0.0,
        high=1.0,
        default=0.0,
        stage="command",
        meaning="latency of a command, from its issue to the motor",
        cause="delay",
        term="command delay",
        neutral=0.0,
        default_range=DefaultRange(low=0.005, high=0.015, source="1–3 × 5 ms, mujoco_playground push_cube"),
        alias=Alias(name="command_delay", tied=True),
        fit=FitDeclaration(
            prior=Prior(spread=0.05),  # lags of 100 to 133 ms in the SO-101 log, most of it the servo's own
            rank=5,
            first=True,
            scanned=True,
            shared=True,
            excitation=ONSETS,
            missing=MissingPhysics(structure="delay", start=0.01),
        ),
        fault=FaultDeclaration(name="latency", op="add", change=1.0, unit="control periods", per_period=True),
    ),
    Quantity(
        family="actuator",
        quantity="bias",
        unit="rad",
        low=-0.5,
        high=0.5,
        default=0.0,
        stage="command",
        meaning="offset added to every command",
        cause="command zero",
        term="command bias",
        neutral=0.0,
        fit=FitDeclaration(
            prior=Prior(spread=0.05),  # sag under load and dead band found on STS3215: 1.8 to 2.6 degrees
            rank=6,
            position_only=True,
            first=True,
            excitation="rest in many poses, each reached from both sides",
        ),
    ),
    *_encoder_quantities(),
)


FAMILY, MEMBER = "rotors", "all"
_FREE = int(mujoco.mjtJoint.mjJNT_FREE)
_TURN = 5  # of an actuator's gear: the torque about the site's z axis per force along it


def rotor_rows(model: mujoco.MjModel) -> NDArray[np.intp]:
    """Return the ids of the rotors of a drone: actuators whose force acts at a site along its z axis."""
    at_site = model.actuator_trntype == int(mujoco.mjtTrn.mjTRN_SITE)
    return np.flatnonzero(at_site & (model.actuator_gear[:, 2] != 0.0))


def write_rotor_drag(target: ObjectWriter) -> None:
    """Write the quantity ``drag`` (torque per thrust) into ``actuator_gear`` of every rotor.

    The sign of the torque (the direction of rotation) remains that of the model.
    """
    model, chosen = target.model, rotor_rows(target.model)
    gear = np.repeat(model.actuator_gear[None, chosen], len(target.value("drag")), axis=0)
    gear[..., _TURN] = np.sign(model.actuator_gear[chosen, _TURN]) * target.value("drag")[:, None]
    target.write_field("actuator_gear", chosen, gear)


def carrier_dofs(model: mujoco.MjModel) -> NDArray[np.intp]:
    """Return the indices of the two rotational degrees of freedom of a drone's body about its x and y axes.

    The result is empty if the model has no rotors.
    """
    if not len(chosen := rotor_rows(model)):
        return np.zeros(0, dtype=np.intp)
    body = int(model.site_bodyid[model.actuator_trnid[chosen[0], 0]])
    return int(model.body_dofadr[model.body_rootid[body]]) + np.array([3, 4])


def _nominal_drag(model: mujoco.MjModel, name: str) -> float:  # noqa: ARG001  # the table's
    return float(np.abs(model.actuator_gear[rotor_rows(model)[0], _TURN]))


def _explain_missing_rotors(model: mujoco.MjModel, name: str) -> str:  # noqa: ARG001  # the table's
    free = len(rotor_rows(model)) and model.jnt_type[model.dof_jntid[carrier_dofs(model)[0]]] == _FREE
    return "" if free else "no free body of the model has an actuator that pushes at a site of it along its z axis"


def _rotor_quantity(
    quantity: str, unit: str, low: float, high: float, meaning: str, *, default: float | None = None
) -> Quantity:
    return Quantity(
        family=FAMILY,
        member=MEMBER,
        quantity=quantity,
        unit=unit,
        low=low,
        high=high,
        default=default,
        nominal_outside_model=default is None,
        stage="drive",
        lacks=_explain_missing_rotors,
        meaning=meaning,
        cause=FAMILY,
    )


def _rotor_quantities() -> Iterator[Quantity]:
    yield _rotor_quantity(
        "thrust/constant", "N", -10.0, 10.0, "c0 of a rotor's thrust c0 + c1 u + c2 u², u its throttle"
    )
    yield _rotor_quantity("thrust/linear", "N", -100.0, 100.0, "c1 of a rotor's thrust")
    yield _rotor_quantity("thrust/quadratic", "N", -100.0, 100.0, "c2 of a rotor's thrust")
    yield _rotor_quantity("lag", "s", 0.0, 1.0, "time constant of a rotor's response to its throttle", default=0.0)
    yield _rotor_quantity(
        "second_lag", "s", 0.0, 1.0, "time constant of a second lag before it: electronics, filters", default=0.0
    )
    yield Quantity(
        family=FAMILY,
        member=MEMBER,
        quantity="drag",
        unit="m",
        low=0.0,
        high=1.0,
        compute=write_rotor_drag,
        writes=("actuator_gear",),
        nominal=_nominal_drag,
        lacks=_explain_missing_rotors,
        meaning="torque about its own axis per thrust of a rotor",
        cause=FAMILY,
    )
    yield Quantity(
        family=FAMILY,
        member=MEMBER,
        quantity="damping",
        unit="N·m·s/rad",
        low=0.0,
        high=10.0,
        slots=field_slots("dof_damping"),
        lacks=_explain_missing_rotors,
        meaning="roll and pitch damping of all rotors: a blade that meets the air faster has more lift",
        cause=FAMILY,
        fit=FitDeclaration(first=True, excitation=SPEEDS),
    )


ROTORS: tuple[Quantity, ...] = tuple(_rotor_quantities())


_TERMS = {"command": "command jitter and loss", "control": "control clock", "readings": "reading delay"}
_FIT = FitDeclaration(prior=Prior(spread=0.02))


def _timing_quantity(
    member: str,
    quantity: str,
    unit: str,
    low: float,
    high: float,
    default: float,
    stage: Stage,
    meaning: str,
    fit: FitDeclaration = _FIT,
) -> Quantity:
    return Quantity(
        family="timing",
        member=member,
        quantity=quantity,
        unit=unit,
        low=low,
        high=high,
        default=default,
        stage=stage,
        history=stage == "encoder",
        meaning=meaning,
        cause="delay",
        term=_TERMS[member],
        neutral=default,
        fit=fit,
    )


TIMING: tuple[Quantity, ...] = (
    _timing_quantity(
        "command", "jitter", "s", 0.0, 1.0, 0.0, "command", "largest extra latency; uniform from 0 to this"
    ),
    _timing_quantity("command", "drop_rate", "1", 0.0, 1.0, 0.0, "command", "probability that a command is lost"),
    _timing_quantity("control", "period", "1", 0.5, 2.0, 1.0, "clock", "control period over the nominal one"),
    _timing_quantity(
        "control", "jitter", "s", 0.0, 0.1, 0.0, "clock", "largest delay of a step; uniform from 0 to this"
    ),
    _timing_quantity(
        "readings",
        "rate",
        "Hz",
        0.0,
        1e5,
        0.0,
        "encoder",
        "readings per second, by their own clock; 0: one at every control step",
    ),
    _timing_quantity(
        "readings", "phase", "1", 0.0, 1.0, 0.0, "encoder", "phase of the first reading, in reading periods"
    ),
    _timing_quantity(
        "readings",
        "delay",
        "s",
        0.0,
        1.0,
        0.0,
        "encoder",
        "age of a reading when it is delivered",
        replace(_FIT, first=True, scanned=True, excitation=ONSETS),
    ),
)
