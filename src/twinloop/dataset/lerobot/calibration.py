"""Convert the values of LeRobot's ``calibration.json`` from motor ticks to radians."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ConfigDict, StrictInt, TypeAdapter, ValidationError, with_config

from twinloop.core.documents import read_json
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.units import DEGREES, NORMALIZED, PERCENT, RADIANS, JointUnit, UnitMap, find_joint_columns

# Feetech STS3215: 4096 ticks a turn, and LeRobot counts a turn as 4095 of them (lerobot 0.6.1, motors/motors_bus.py).
RADIANS_PER_TICK = 2 * math.pi / 4095


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True)
class MotorCalibration:
    """Calibration of one motor, as LeRobot's ``calibration.json`` stores it.

    Attributes:
        range_min: Lower end of the motor's range in ticks.
        range_max: Upper end of the motor's range in ticks.
        drive_mode: If not 0, LeRobot inverts the motor's normalized values.
        homing_offset: Offset that LeRobot writes to the motor; not used here.
        id: Bus address of the motor; not used here.
    """

    range_min: StrictInt
    range_max: StrictInt
    drive_mode: StrictInt = 0
    homing_offset: StrictInt = 0
    id: StrictInt = 0


_MOTOR = TypeAdapter(MotorCalibration)


def read_calibration(path: Path) -> dict[str, MotorCalibration]:
    """Read LeRobot's ``calibration.json`` (``{motor: {id, drive_mode, homing_offset, range_min, range_max}}``).

    Returns:
        Calibrations by name of the motor.

    Raises:
        InputError: If the file has another content, a field is missing or not a whole number, or a range is empty. The
            message names the motor and the field.
    """
    value = read_json(path)
    motors = {}
    for name, entry in value.items() if isinstance(value, dict) else ():
        try:
            motors[name] = _MOTOR.validate_python(entry)
        except ValidationError as error:
            raise InputError(
                f"{path}: motor {name}, {_format_first_error(error)}. A motor has id, drive_mode, homing_offset, "
                "range_min and "
                "range_max, all whole numbers. Copy the file that LeRobot's calibration wrote."
            ) from None
        if motors[name].range_max <= motors[name].range_min:
            raise InputError(f"{path}: motor {name} has an empty range. Calibrate the arm again.")
    if not motors:
        raise InputError(f"{path} has no motors. Give a calibration.json of LeRobot, a table of motors.")
    return motors


def _format_first_error(error: ValidationError) -> str:
    """Format the first validation error: the field, the expected value and the actual value."""
    detail = error.errors()[0]
    field = ".".join(map(str, detail["loc"])) or "the whole entry"
    found = "" if detail["type"] == "missing" else f" (found {detail['input']!r})"
    return f"{field}: {detail['msg']}{found}"


def calibrated_units(
    motors: Mapping[str, MotorCalibration], joints: Sequence[str], units: Sequence[str], *, source: str
) -> UnitMap:
    """Return the unit map that converts the LeRobot values of a calibrated arm to radians.

    Zero is the middle of each motor's range. With ``h`` half the range in radians, values of −100 to 100 have the scale
    ``h/100`` and the offset 0, and values of 0 to 100 have the scale ``h/50`` and the offset ``-h``. A nonzero
    ``drive_mode`` changes the sign of scale and offset. Degrees ignore ``drive_mode``, as in LeRobot.

    Args:
        motors: Calibrations by name of the motor.
        joints: Names of the joints; each needs a motor of the same name.
        units: LeRobot unit of each joint.
        source: Origin of the calibration for messages, such as its path.

    Raises:
        LogError: If a joint has no motor.
        UnknownNameError: If LeRobot does not write such a unit.
    """
    find_joint_columns(joints, list(motors), where=source)
    rows = (_joint_unit(joint, motors[joint], unit) for joint, unit in zip(joints, units, strict=True))
    return UnitMap(joints=tuple(rows), source=source)


def _joint_unit(joint: str, motor: MotorCalibration, unit: str) -> JointUnit:
    half = (motor.range_max - motor.range_min) / 2 * RADIANS_PER_TICK
    sign = -1.0 if motor.drive_mode else 1.0
    table = {
        NORMALIZED: (sign * half / 100, 0.0),
        PERCENT: (sign * half / 50, -sign * half),
        DEGREES: (math.pi / 180, 0.0),
        RADIANS: (1.0, 0.0),
    }
    if unit not in table:
        raise UnknownNameError("joint unit", unit, table, where=f"the unit of {joint}")
    scale, offset = table[unit]
    return JointUnit(joint=joint, unit=unit, scale=scale, offset=offset)
