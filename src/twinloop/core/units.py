"""Convert between SI units, which twinloop uses internally, and the units in files; define units of joint columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import LogError, UnitsError, UnknownNameError
from twinloop.core.plain import JsonRecord

# Suffixes of configuration keys: (SI unit, factor to SI).
SUFFIXES: dict[str, tuple[str, float]] = {
    "kg": ("kg", 1.0),
    "g": ("kg", 1e-3),
    "m": ("m", 1.0),
    "cm": ("m", 1e-2),
    "mm": ("m", 1e-3),
    "rad": ("rad", 1.0),
    "deg": ("rad", math.pi / 180.0),
    "s": ("s", 1.0),
    "ms": ("s", 1e-3),
    "hz": ("Hz", 1.0),
    "n": ("N", 1.0),
    "nm": ("N·m", 1.0),
}


_SMALL_UNITS = MappingProxyType({"s": "ms", "rad": "mrad", "m": "mm", "N·m": "mN·m", "kg": "g"})
_SMALL = 0.1  # a value below it is shown in the smaller unit
_DECIMALS = 3  # of a value from 1 on; a smaller one gets more, so that it has as many significant digits
_MOST_DECIMALS = 9
_ROUNDING = 1e-14  # smaller than any physical value in SI units that a twin has


def choose_display_unit(unit: str, size: float) -> tuple[float, str]:
    """Return factor and unit with which values of about a size are shown: 1000 and ms for a delay of 0.03 s."""
    small = 0 < abs(size) < _SMALL and unit in _SMALL_UNITS
    return (1e3, _SMALL_UNITS[unit]) if small else (1.0, unit)


def count_decimals(value: float) -> int:
    """Return the number of decimals that shows an error: three, or for a small one three significant digits."""
    if not math.isfinite(value) or value == 0:
        return _DECIMALS
    return int(np.clip(_DECIMALS - 1 - math.floor(math.log10(abs(value))), _DECIMALS, _MOST_DECIMALS))


def drop_rounding(value: float) -> float:
    """Return 0 for a value that is only a rounding error, such as an angle of 4e-16 rad, and other values unchanged."""
    return 0.0 if abs(value) < _ROUNDING else value


# Kind of a robot's commands, with its plural for messages.
CommandKind = Literal["position", "velocity", "torque"]
COMMANDED: Mapping[CommandKind, str] = MappingProxyType(
    {"position": "positions", "velocity": "velocities", "torque": "torques"}
)


def split_unit(key: str) -> tuple[str, str, float]:
    """Split a configuration key into its name and unit: ``object_mass_g`` into (``object_mass``, ``kg``, 0.001).

    Returns:
        The key without its unit suffix, the SI unit (``"1"``, dimensionless, if the key has no unit suffix), and the
        factor from the key's unit to the SI unit.
    """
    stem, _, suffix = key.rpartition("_")
    if stem and suffix in SUFFIXES:
        unit, factor = SUFFIXES[suffix]
        return stem, unit, factor
    return key, "1", 1.0


@dataclass(frozen=True, kw_only=True)
class JointUnit:
    """Unit of one logged joint column: ``position = offset + scale · value``, in rad or m.

    ``scale`` and ``offset`` are None if the log does not determine them (LeRobot's ±100 without a calibration). They
    must then be assumed from the joint's range, or identified, and reports must state this.

    Attributes:
        joint: Name of the joint.
        unit: Unit of the logged values, for example ``deg`` or ``range_m100_100``.
        scale: Factor from the logged value to rad or m.
        offset: Joint position in rad or m at the logged value 0.
    """

    joint: str
    unit: str
    scale: float | None
    offset: float | None

    @property
    def known(self) -> bool:
        """True if the log determines the conversion to radians or metres."""
        return self.scale is not None and self.offset is not None


@dataclass(frozen=True, kw_only=True)
class UnitMap(JsonRecord):
    """Units of all joint columns of a log or a dataset, in column order.

    Attributes:
        source: Origin of the map, for example ``calibration.json``, ``twin range`` or ``log header``.
        joints: Unit of each column.
    """

    source: str  # origin of the map: "calibration.json", "twin range", "log header", …
    joints: tuple[JointUnit, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Joint names in column order."""
        return tuple(unit.joint for unit in self.joints)

    @property
    def known(self) -> bool:
        """True if the conversion to rad or m is known for every column."""
        return all(unit.known for unit in self.joints)

    def to_si(self, values: ArrayLike) -> NDArray[np.float64]:
        """Convert values in log units, shape ``(…, n)`` for n joints, to joint positions in rad or m."""
        scale, offset = self._coefficients()
        return np.asarray(values, dtype=np.float64) * scale + offset

    def from_si(self, positions: ArrayLike) -> NDArray[np.float64]:
        """Convert joint positions in rad or m, shape ``(…, n)`` for n joints, to values in log units."""
        scale, offset = self._coefficients()
        return (np.asarray(positions, dtype=np.float64) - offset) / scale

    def of_commands(self, kind: str) -> UnitMap:
        """Return the units of commands: velocities are in log units per second, and torques in SI units.

        Args:
            kind: Kind of the commands, a `CommandKind`.
        """
        if kind == "position":
            return self
        joints = (replace(unit, scale=1.0 if kind == "torque" else unit.scale, offset=0.0) for unit in self.joints)
        return replace(self, joints=tuple(joints))

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> UnitMap:
        """Create the unit map from the dictionary that `to_json` returns."""
        return cls(joints=tuple(JointUnit(**row) for row in value["joints"]), source=value["source"])

    def _coefficients(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        unknown = [f"{u.joint} ({u.unit})" for u in self.joints if not u.known]
        if unknown:
            raise UnitsError(
                f"The conversion to radians of {', '.join(unknown)} is unknown. Give LeRobot's calibration.json, or "
                "use the twin's joint ranges (in a class of your own robot: twin = NAME)."
            )
        scale = np.array([u.scale for u in self.joints], dtype=np.float64)
        return scale, np.array([u.offset for u in self.joints], dtype=np.float64)


NORMALIZED = "range_m100_100"
PERCENT = "range_0_100"
DEGREES = "deg"
RADIANS = "rad"
METRES = "m"  # of slides


def unit_map_from_ranges(joints: Sequence[str], ranges: ArrayLike, units: Sequence[str], *, source: str) -> UnitMap:
    """Return the unit map of joints with LeRobot units, from the calibrated ranges of the joints.

    LeRobot's degrees and ±100 are zero at the middle of the range; its 0–100 is zero at the lower bound (lerobot 0.6.1,
    ``motors/motors_bus.py``).

    Args:
        joints: Names of the n joints.
        ranges: Lower and upper bounds in rad or m, shape ``(n, 2)``.
        units: Unit of each joint's values, for example ``deg`` or ``range_m100_100``.
        source: Origin of the ranges, stored in the map.
    """
    rows: list[JointUnit] = []
    for joint, (low, high), unit in zip(joints, np.asarray(ranges, dtype=np.float64), units, strict=True):
        middle = (low + high) / 2
        scale, offset = {
            NORMALIZED: ((high - low) / 200, middle),
            PERCENT: ((high - low) / 100, low),
            DEGREES: (math.pi / 180, middle),
            RADIANS: (1.0, 0.0),
            METRES: (1.0, 0.0),
        }.get(unit, (None, None))
        if scale is None:
            raise UnknownNameError("joint unit", unit, [NORMALIZED, PERCENT, DEGREES, RADIANS, METRES])
        rows.append(JointUnit(joint=joint, unit=unit, scale=float(scale), offset=float(offset)))
    return UnitMap(joints=tuple(rows), source=source)


def find_joint_columns(required: Sequence[str], available: Sequence[str], *, where: str) -> list[int]:
    """Return the column number of each required joint.

    Args:
        required: Names of the required joints.
        available: Names of the columns, in their order.
        where: Start of the error message, for example the name of the log.

    Raises:
        LogError: If a required joint is missing.
    """
    missing = [joint for joint in required if joint not in available]
    if missing:
        raise LogError(
            f"{where} has no joint {', '.join(missing)}. It has: {', '.join(available)}. "
            "Choose a twin with these joints, or import the log with the twin's names: import --joints NAME,…"
        )
    return [list(available).index(joint) for joint in required]


_ABSOLUTE = {
    RADIANS: (1.0, 0.0),
    DEGREES: (math.pi / 180, 0.0),
    METRES: (1.0, 0.0),
    "cm": (1e-2, 0.0),
    "mm": (1e-3, 0.0),
}


def parse_unit(joint: str, unit: str) -> JointUnit:
    """Return the joint unit with a given name; scale and offset are None for normalized values.

    Raises:
        UnknownNameError: If there is no such unit.
    """
    if unit in (NORMALIZED, PERCENT):
        return JointUnit(joint=joint, unit=unit, scale=None, offset=None)
    if unit not in _ABSOLUTE:
        raise UnknownNameError("joint unit", unit, [*_ABSOLUTE, NORMALIZED, PERCENT], where=f"the unit of {joint}")
    scale, offset = _ABSOLUTE[unit]
    return JointUnit(joint=joint, unit=unit, scale=scale, offset=offset)
