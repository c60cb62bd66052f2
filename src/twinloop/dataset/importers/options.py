"""What a person may add to a log, and the question that is asked when its units are missing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import LogError, UnitsError, UnknownNameError
from twinloop.core.units import DEGREES, NORMALIZED, PERCENT, RADIANS, JointUnit, UnitMap, require_joints
from twinloop.dataset.calibration import calibrated_units, read_calibration
from twinloop.dataset.importers.raw import RawEpisode

# Units whose meaning in rad or m needs no calibration: (scale, offset).
_ABSOLUTE = {
    RADIANS: (1.0, 0.0),
    DEGREES: (math.pi / 180, 0.0),
    "m": (1.0, 0.0),
    "cm": (1e-2, 0.0),
    "mm": (1e-3, 0.0),
}
_WHICH_UNIT = (
    "in which unit is each joint: deg (LeRobot's default since 0.4.4), range_m100_100 with the gripper in range_0_100 "
    "(its default before), or rad"
)
_ANSWER_UNITS = (
    "Answer with units=… (--units deg, or one per joint), and with LeRobot's calibration.json where there is one."
)
_SHOWN = 8  # joints whose values a question shows
_NOMINAL_TOLERANCE_S = 1e-4  # LeRobot's default tolerance_s for timestamps


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """What the caller says about a log.

    ``units`` is a unit map, one unit name for every joint, or one per joint (`rad`, `deg`, `m`, `cm`, `mm`,
    `range_m100_100`, `range_0_100`). ``joints`` names the columns where the log does not, and selects and orders
    them where it does. ``calibration`` is LeRobot's ``calibration.json``. ``origin`` is what the episodes say they
    come from, by default the path. ``topics`` gives the topics of a ROS recording their roles (see `ros.topics`).
    ``description`` is a YAML file that says what a table's columns are (see `describe`).
    """

    units: UnitMap | str | Sequence[str] | None = None
    joints: Sequence[str] | None = None
    calibration: Path | None = None
    task: str = ""
    robot_type: str = ""
    origin: str = ""
    topics: Mapping[str, str] = field(default_factory=dict[str, str])
    description: Path | None = None
    action_key: str = "action"
    state_key: str = "observation.state"


@dataclass(frozen=True, kw_only=True)
class Importer:
    """One log format: its name, whether a path is of it, and how to read it."""

    name: str
    recognizes: Callable[[Path], bool]
    read: Callable[[Path, LogOptions], list[RawEpisode]]


def resolve_units(joints: Sequence[str], options: LogOptions, *, where: str, sample: NDArray[np.float64]) -> UnitMap:
    """The unit map of a log whose own file does not give one.

    Degrees and radians are taken to count from the joint's zero. ±100 and 0–100 have no radians without a
    calibration: scale and offset stay None.

    Args:
        joints: joint names in column order.
        options: what the caller says.
        where: the log's name, for messages.
        sample: some positions ``(T, n)``, shown in the question.

    Raises:
        UnitsError: nothing says the units; the message is the question to answer.
        UnknownNameError: an unknown unit name.
    """
    if isinstance(options.units, UnitMap):
        require_joints(joints, options.units.names, where="The unit map")
        by_name = {unit.joint: unit for unit in options.units.joints}
        return UnitMap(joints=tuple(by_name[joint] for joint in joints), source=options.units.source)
    if options.units is None:
        raise UnitsError(_question(joints, where, sample))
    units = [options.units] * len(joints) if isinstance(options.units, str) else list(options.units)
    if len(units) != len(joints):
        raise UnitsError(
            f"{where} has {len(joints)} joints ({', '.join(joints)}) and {len(units)} units were given. "
            "Give one unit for all, or one for each."
        )
    if options.calibration is not None:
        return calibrated_units(read_calibration(options.calibration), joints, units, source=str(options.calibration))
    return UnitMap(joints=tuple(map(stated_unit, joints, units)), source="given with the log")


def stated_unit(joint: str, unit: str) -> JointUnit:
    """The unit of a joint as a log or a person names it.

    Raises:
        UnknownNameError: no such unit.
    """
    if unit in (NORMALIZED, PERCENT):
        return JointUnit(joint=joint, unit=unit, scale=None, offset=None)
    if unit not in _ABSOLUTE:
        raise UnknownNameError("joint unit", unit, [*_ABSOLUTE, NORMALIZED, PERCENT], where=f"the unit of {joint}")
    scale, offset = _ABSOLUTE[unit]
    return JointUnit(joint=joint, unit=unit, scale=scale, offset=offset)


def name_columns(names: Sequence[str], width: int, options: LogOptions, *, where: str) -> tuple[list[str], list[int]]:
    """Joint names and the columns they are in, from the log's own names and the caller's.

    Raises:
        LogError: a wanted joint is missing, or there are no names at all; then asks for the units too, if not given.
    """
    bare = [name.removesuffix(".pos") for name in names]
    if len(bare) == width:
        wanted = list(options.joints) if options.joints is not None else bare
        return wanted, require_joints(wanted, bare, where=where)
    if options.joints is None:
        units = f" And {_WHICH_UNIT}? {_ANSWER_UNITS}" if options.units is None else ""
        raise LogError(
            f"{where} has {width} joint columns without names. Which joints are they, in column order? "
            f"Answer with joints=[…] (--joints a,b,…).{units}"
        )
    if len(options.joints) != width:
        raise LogError(f"{where} has {width} joint columns; {len(options.joints)} joint names were given.")
    return list(options.joints), list(range(width))


def frame_times(timestamps: NDArray[np.float64], fps: float | None = None) -> NDArray[np.float64]:
    """Times of an episode's frames in float64 seconds, from timestamps that may have been rounded to float32.

    Timestamps within LeRobot's tolerance of ``frame / fps`` are that nominal time; others are kept as they are.
    """
    if len(timestamps) < 2 or not np.isfinite(timestamps).all():
        return timestamps
    step = float(np.median(np.diff(timestamps)))
    rate = fps or (round(1 / step) if step > 0 else 0)
    if not rate:
        return timestamps
    nominal = timestamps[0] + np.arange(len(timestamps)) / rate
    return nominal if np.abs(nominal - timestamps).max() < _NOMINAL_TOLERANCE_S else timestamps


def _question(joints: Sequence[str], where: str, sample: NDArray[np.float64]) -> str:
    low, high = np.nanmin(sample, axis=0), np.nanmax(sample, axis=0)
    rows = list(zip(joints, low, high, strict=True))
    spans = ", ".join(f"{joint} {a:.3g} to {b:.3g}" for joint, a, b in rows[:_SHOWN])
    spans += ", …" if len(rows) > _SHOWN else ""
    return (
        f"{where} does not say its units. {_WHICH_UNIT[0].upper()}{_WHICH_UNIT[1:]}? "
        f"The values are: {spans}. {_ANSWER_UNITS}"
    )
