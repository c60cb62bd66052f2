"""Define the protocol of log importers, the caller's options, and the raw episode that an importer returns.

`RawEpisode.to_episode` converts a raw episode to the `Episode` of all other packages and refuses an invalid
one. Checks of logs use the raw episode, because `Episode` refuses defects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import LogError, UnitsError
from twinloop.core.records import Episode, LoggedSignal, Source, StoredSimulation
from twinloop.core.units import (
    CommandKind,
    UnitMap,
    find_joint_columns,
    parse_unit,
)
from twinloop.dataset.lerobot.calibration import calibrated_units, read_calibration


@dataclass(frozen=True, kw_only=True)
class RawEpisode:
    """Unchecked episode of a log: it may have NaN, repeated or decreasing times, or no frame.

    Attributes:
        index: Number of the episode in the log.
        time: Times of T frames in s, shape ``(T,)``.
        action: Commands of n joints, shape ``(T, n)``, or ``(K, n)`` if the commands have their own times.
        state: Joint positions, shape ``(T, n)``, in ``units``.
        units: Units of the joint columns.
        action_time: Times of K commands in s, shape ``(K,)``, with the same zero as ``time``; None if each frame
            has its command.
        task: Task of the episode.
        source: Origin of the motion.
        origin: File or log from which the episode comes.
        robot_type: LeRobot's name of the robot.
        command: Type of the commands; ``none`` if there are no commands.
        signals: Further measurements with their own times, by name.
        conditions: Values of experimental conditions in SI units, by name.
        notes: Choices that were made while the file was read.
        simulation: Stored simulation of the episode, if there is one.
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
    command: CommandKind | Literal["none"] = "position"
    signals: Mapping[str, LoggedSignal] = field(default_factory=dict[str, LoggedSignal])
    conditions: Mapping[str, float] = field(default_factory=dict[str, float])
    notes: tuple[str, ...] = ()
    simulation: StoredSimulation | None = None

    @classmethod
    def of(cls, episode: Episode) -> RawEpisode:
        """Return a checked episode as a raw episode."""
        return cls(**{item.name: getattr(episode, item.name) for item in fields(episode)})

    @property
    def joints(self) -> tuple[str, ...]:
        """Joint names in column order."""
        return self.units.names

    def __len__(self) -> int:
        return len(self.time)

    def to_episode(self) -> Episode:
        """Return the checked episode. A command with its own time is valid until the time of the next command.

        Frames before the first command are removed, because their command is unknown.

        Raises:
            LogError: If `Episode` refuses the values, the times of the commands do not increase, or there is no command
                before the last frame.
        """
        shared = self._shared_fields()
        if self.action_time is None or self.command == "none":
            return Episode(time=self.time, action=self.action, state=self.state, **shared)
        where = f"Episode {self.index} of {self.origin or 'the log'}"
        _check_commands(self.action_time, where)
        held = np.searchsorted(self.action_time, self.time, side="right") - 1
        started = held >= 0
        if not started.any():
            raise LogError(
                f"{where}: the first command is at {self.action_time[0]:.6f} s, after the last measurement. "
                "The two have different clocks, or this is another run's command topic."
            )
        return Episode(time=self.time[started], action=self.action[held[started]], state=self.state[started], **shared)

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
    """Check that there are commands, and that their times are finite and increase.

    Args:
        time: Times of the commands in s, shape ``(n,)``.
        where: Name of the episode, at the start of the error message.

    Raises:
        LogError: If there is no command, or a time is not finite or not later than the time before it.
    """
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
    """Metadata of a log that the caller gives.

    Attributes:
        units: Unit map, one unit name for all joints, or one unit name per joint (`rad`, `deg`, `m`, `cm`, `mm`,
            `range_m100_100`, `range_0_100`).
        joints: Names of the joint columns if the log has none; otherwise the joints to read, in order.
        numbered: Names for joints of which the columns have only the numbers, such as ``q_1``, if they are as many.
        calibration: LeRobot's ``calibration.json``, which converts the normalized units to radians.
        task: Task that replaces the log's.
        robot_type: Robot type that replaces the log's.
        origin: Recorded origin of the episodes; by default the path.
        topics: Topic of a ROS recording by role (see `ros.topics`).
        description: YAML file that describes the columns of a table (see `table_description`).
        guess: Whether the meaning of a table's columns may be guessed from their names (see `guess`).
        action_key: Column or feature of the action in LeRobot's formats.
        state_key: Column or feature of the joint positions.
    """

    units: UnitMap | str | Sequence[str] | None = None
    joints: Sequence[str] | None = None
    numbered: Sequence[str] = ()
    calibration: Path | None = None
    task: str = ""
    robot_type: str = ""
    origin: str = ""
    topics: Mapping[str, str] = field(default_factory=dict[str, str])
    description: Path | None = None
    guess: bool = False
    action_key: str = "action"
    state_key: str = "observation.state"


@dataclass(frozen=True, kw_only=True)
class Importer:
    """Importer of one log format.

    Attributes:
        name: Name of the format.
        recognizes: Function that returns whether a path has this format.
        read: Function that returns the raw episodes of a path.
    """

    name: str
    recognizes: Callable[[Path], bool]
    read: Callable[[Path, LogOptions], list[RawEpisode]]


def resolve_units(joints: Sequence[str], options: LogOptions, *, where: str, sample: NDArray[np.float64]) -> UnitMap:
    """Return the unit map of a log that has none, from the caller's options.

    Degrees and radians are assumed to count from the joint's zero. The normalized units ±100 and 0–100 cannot be
    converted to radians without a calibration: their scale and offset stay None.

    Args:
        joints: Joint names in column order.
        options: Metadata that the caller gives.
        where: Name of the log, for messages.
        sample: Some positions of n joints, shape ``(T, n)``, whose ranges the error message shows.

    Raises:
        UnitsError: If the units are not given, or their number differs from that of the joints.
        UnknownNameError: If a unit name is unknown.
    """
    if isinstance(options.units, UnitMap):
        find_joint_columns(joints, options.units.names, where="The unit map")
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


def name_columns(names: Sequence[str], width: int, options: LogOptions, *, where: str) -> tuple[list[str], list[int]]:
    """Return the names of the joints to read and their column indices.

    Args:
        names: Column names in the log, if any.
        width: Number of columns.
        options: Metadata that the caller gives.
        where: Name of the log, for messages.

    Raises:
        LogError: If a requested joint is missing, or neither the log nor the caller gives names for all columns.
    """
    bare = [name.removesuffix(".pos") for name in names]
    if len(bare) == width:
        wanted = list(options.joints) if options.joints is not None else bare
        return wanted, find_joint_columns(wanted, bare, where=where)
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
    """Return the times of an episode's frames in s as float64, without the rounding of float32 timestamps.

    If all timestamps are within LeRobot's tolerance (0.1 ms) of a uniform grid, the times of the grid are returned,
    otherwise the unchanged timestamps.

    Args:
        timestamps: Stored times in s, shape ``(T,)``.
        fps: Frame rate of the grid in Hz; by default it is estimated from the timestamps.
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
        f"The units of the joints in {where} are not known. {_WHICH_UNIT[0].upper()}{_WHICH_UNIT[1:]}? "
        f"The values are: {spans}. {_ANSWER_UNITS}"
    )
