"""One door for robot logs: recognise the format, read it, return episodes."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

from twinloop.core.errors import InputError, LogError
from twinloop.core.records import Episode
from twinloop.core.units import UnitMap
from twinloop.dataset.importers import arrow, crazyflie, csv, lerobot_v3, lerobot_v21
from twinloop.dataset.importers.options import Importer, LogOptions
from twinloop.dataset.importers.raw import RawEpisode

ENTRY_POINTS = "twinloop.importers"  # where an installed package offers an `Importer` of its own


def importers() -> tuple[Importer, ...]:
    """The formats that can be read: those of installed packages first, then the built-in ones."""
    added = tuple(entry.load() for entry in entry_points(group=ENTRY_POINTS))
    return (
        *added,
        lerobot_v3.IMPORTER,
        lerobot_v21.IMPORTER,
        arrow.IMPORTER,
        csv.IMPORTER,
        crazyflie.IMPORTER,
    )


def load_log(
    path: Path | str,
    *,
    units: UnitMap | str | Sequence[str] | None = None,
    calibration: Path | str | None = None,
    joints: Sequence[str] | None = None,
    task: str = "",
    robot_type: str = "",
    origin: str = "",
) -> list[Episode]:
    """The episodes of a robot log, whatever its format.

    Args:
        path: a LeRobot v2.1 or v3.0 folder, an Arrow folder or file, a CSV file, a Crazyflie's µSD log.
        units: the unit of every joint, or one per joint, where the log does not say (see `LogOptions`).
        calibration: LeRobot's ``calibration.json``, which gives ±100 and 0–100 their radians.
        joints: names of the joint columns where the log has none; a selection where it has.
        task: what the robot was doing, in place of what the log says.
        robot_type: the robot, in place of what the log says.
        origin: what the episodes say they come from; by default the path.

    Raises:
        InputError: nothing is there, or no format recognises it.
        UnitsError: the log does not say its units; the message is the question to answer.
        LogError: empty, NaN, time that does not increase, a missing joint.
        DatasetError: a damaged file; names it.
    """
    raw = read_raw(
        path,
        units=units,
        calibration=calibration,
        joints=joints,
        task=task,
        robot_type=robot_type,
        origin=origin,
    )
    return [episode.episode() for episode in raw]


def read_raw(
    path: Path | str,
    *,
    units: UnitMap | str | Sequence[str] | None = None,
    calibration: Path | str | None = None,
    joints: Sequence[str] | None = None,
    task: str = "",
    robot_type: str = "",
    origin: str = "",
) -> list[RawEpisode]:
    """As `load_log`, with NaN, repeated times and whatever else is wrong left as it is.

    Raises:
        InputError: nothing is there, or no format recognises it.
        UnitsError: the log does not say its units; the message is the question to answer.
        LogError: no episode, or a missing joint.
        DatasetError: a damaged file; names it.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path} does not exist.")
    options = LogOptions(
        units=units,
        calibration=None if calibration is None else Path(calibration),
        joints=joints,
        task=task,
        robot_type=robot_type,
        origin=origin,
    )
    known = importers()
    for importer in known:
        if importer.recognizes(path):
            episodes = importer.read(path, options)
            if not episodes:
                raise LogError(f"{path} has no episodes.")
            return episodes
    raise InputError(f"{path} is no log that can be read. Known formats: {', '.join(i.name for i in known)}.")
