"""Define the protocol of importers, the caller's options, and the raw episode that an importer returns.

`RawEpisode.to_episode` converts a raw episode to the `Episode` of all other packages and refuses an invalid one. Checks
of defects read the raw one, because `Episode` refuses defects.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import LogError, UnitsError, UnknownNameError
from twinloop.core.records import Episode, LoggedSignal, Source, StoredSimulation
from twinloop.core.units import DEGREES, NORMALIZED, PERCENT, RADIANS, JointUnit, UnitMap, require_joints
from twinloop.dataset.lerobot.calibration import calibrated_units, read_calibration


@dataclass(frozen=True, kw_only=True)
class RawEpisode:
    """The fields of an `Episode`, unchecked: possibly with NaN, repeated or decreasing times, or no frame.

    ``time`` ``(T,)`` and ``state`` ``(T, n)`` belong together, and ``action`` ``(T, n)`` too, unless commands have
    their own times ``action_time`` ``(K,)``: then ``action`` is ``(K, n)``. Both count from the same zero. ``notes``
    record the choices made while reading the file.
    """

    index: int
    time: NDArray[np.float64]
    action: NDArray[np.float64]
    state: NDArray[np.float64]
    units: UnitMap
    action_time: NDArray[np.float64] | None = None
    task: str = ""
    source: Source = "real"
    origin: str = ""
    robot_type: str = ""
    command: Literal["position", "torque", "none"] = "position"
    signals: Mapping[str, LoggedSignal] = field(default_factory=dict[str, LoggedSignal])
    conditions: Mapping[str, float] = field(default_factory=dict[str, float])
    notes: tuple[str, ...] = ()
    simulation: StoredSimulation | None = None

    @classmethod
    def of(cls, episode: Episode) -> RawEpisode:
        """Return a checked episode as a raw one."""
        return cls(**{item.name: getattr(episode, item.name) for item in fields(episode)})

    @property
    def joints(self) -> tuple[str, ...]:
        """Joint names in column order."""
        return self.units.names

    def __len__(self) -> int:
        return len(self.time)

    def to_episode(self) -> Episode:
        """Return the checked episode. A command with its own time is valid from then until the next one.

        Frames before the first command are removed, because their command is unknown.

        Raises:
            LogError: as `Episode`; commands whose times do not increase, or none before the last frame.
        """
        shared = self._shared_fields()
        if self.action_time is None or self.command == "none":
            return Episode(time=self.time, action=self.action, state=self.state, **shared)
        where = f"Episode {self.index} of {self.origin or 'the log'}"
        _check_commands(self.action_time, where)
        held = np.searchsorted(self.action_time, self.time, side="right") - 1
        begun = held >= 0
        if not begun.any():
            raise LogError(
                f"{where}: the first command is at {self.action_time[0]:.6f} s, after the last measurement. "
                "The two have different clocks, or this is another run's command topic."
            )
        return Episode(time=self.time[begun], action=self.action[held[begun]], state=self.state[begun], **shared)

    def _shared_fields(self) -> dict[str, Any]:
        return {
            "index": self.index,
            "units": self.units,
            "task": self.task,
            "source": self.source,
            "origin": self.origin,
            "robot_type": self.robot_type,
            "command": self.command,
            "signals": self.signals,
            "conditions": self.conditions,
            "simulation": self.simulation,
        }


def _check_commands(time: NDArray[np.float64], where: str) -> None:
    """Check that there are commands and that their times are finite and increase."""
    if not len(time):
        raise LogError(f"{where} has measurements but no command. Leave it out, or declare that nothing was commanded.")
    wrong = np.flatnonzero(~np.isfinite(time[1:]) | ~(np.diff(time) > 0)) + 1
    if not np.isfinite(time[0]) or len(wrong):
        at = int(wrong[0]) if np.isfinite(time[0]) else 0
        raise LogError(
            f"{where}: the time of command {at} is {time[at]:.6f} s, which does not increase. "
            "Sort the commands or remove duplicates before importing."
        )


# Units that are converted to rad or m without a calibration: (scale, offset).
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
    "Answer with units=… (--units deg, or one per joint), and with LeRobot's calibration.json if there is one."
)
_SHOWN = 8  # most joints whose values a message shows
_NOMINAL_TOLERANCE_S = 1e-4  # LeRobot's default tolerance_s for timestamps


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """The caller's metadata of a log.

    ``units`` is a unit map, one unit name for every joint, or one per joint (`rad`, `deg`, `m`, `cm`, `mm`,
    `range_m100_100`, `range_0_100`). ``joints`` names the columns if the log does not, otherwise it selects and orders
    them. ``calibration`` is LeRobot's ``calibration.json``. ``origin`` is the recorded origin of the episodes, by
    default the path. ``topics`` assigns roles to the topics of a ROS recording (see `ros.topics`). ``description`` is a
    YAML file that describes a table's columns (see `describe`).
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
    """One log format: its name, a function that recognizes its paths, and a function that reads them."""

    name: str
    recognizes: Callable[[Path], bool]
    read: Callable[[Path, LogOptions], list[RawEpisode]]


def resolve_units(joints: Sequence[str], options: LogOptions, *, where: str, sample: NDArray[np.float64]) -> UnitMap:
    """Return the unit map of a log without its own.

    Degrees and radians are assumed to count from the joint's zero. ±100 and 0–100 have no radians without a
    calibration: scale and offset stay None.

    Args:
        joints: joint names in column order.
        options: the caller's metadata.
        where: the log's name, for messages.
        sample: some positions ``(T, n)``, whose ranges the message shows.

    Raises:
        UnitsError: the units are unknown; the message requests them.
        UnknownNameError: an unknown unit name.
    """
    if isinstance(options.units, UnitMap):
        require_joints(joints, options.units.names, where="The unit map")
        by_name = {unit.joint: unit for unit in options.units.joints}
        return UnitMap(joints=tuple(by_name[joint] for joint in joints), source=options.units.source)
    if options.units is None:
        raise UnitsError(_format_units_question(joints, where, sample))
    units = [options.units] * len(joints) if isinstance(options.units, str) else list(options.units)
    if len(units) != len(joints):
        raise UnitsError(
            f"{where} has {len(joints)} joints ({', '.join(joints)}) and {len(units)} units were given. "
            "Give one unit for all, or one for each."
        )
    if options.calibration is not None:
        return calibrated_units(read_calibration(options.calibration), joints, units, source=str(options.calibration))
    return UnitMap(joints=tuple(map(parse_unit, joints, units)), source="given with the log")


def parse_unit(joint: str, unit: str) -> JointUnit:
    """Return the joint unit of a unit name; scale and offset are None for normalized values.

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
    """Return joint names and their column indices, from the names in the log and the caller's options.

    Raises:
        LogError: a requested joint is missing, or there are no names; the message requests names and units.
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
    """Return the times of an episode's frames in s as float64, from timestamps that may be rounded to float32.

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


def _format_units_question(joints: Sequence[str], where: str, sample: NDArray[np.float64]) -> str:
    low, high = np.nanmin(sample, axis=0), np.nanmax(sample, axis=0)
    rows = list(zip(joints, low, high, strict=True))
    spans = ", ".join(f"{joint} {a:.3g} to {b:.3g}" for joint, a, b in rows[:_SHOWN])
    spans += ", …" if len(rows) > _SHOWN else ""
    return (
        f"{where} does not say its units. {_WHICH_UNIT[0].upper()}{_WHICH_UNIT[1:]}? "
        f"The values are: {spans}. {_ANSWER_UNITS}"
    )
