"""Load robot logs: recognize the format, read the files, and return episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict, Unpack

from twinloop.core.errors import InputError, LogError
from twinloop.core.records import Episode
from twinloop.core.registry import Registry
from twinloop.core.units import UnitMap
from twinloop.dataset.logs.importers.csv import list_tables
from twinloop.dataset.logs.importers.protocol import Importer, LogOptions, RawEpisode

IMPORTERS: Registry[Importer] = Registry(
    "importer",
    {
        "lerobot_v3": "twinloop.dataset.logs.importers.lerobot_v3:IMPORTER",
        "lerobot_v21": "twinloop.dataset.logs.importers.lerobot_v21:IMPORTER",
        "arrow": "twinloop.dataset.logs.importers.arrow:IMPORTER",
        "csv": "twinloop.dataset.logs.importers.csv:IMPORTER",
        "ros": "twinloop.dataset.logs.importers.ros.importer:IMPORTER",
        "robomimic": "twinloop.dataset.logs.importers.robomimic:IMPORTER",
        "crazyflie": "twinloop.dataset.logs.importers.crazyflie:IMPORTER",
    },
    group="twinloop.importers",
)


def list_importers() -> tuple[Importer, ...]:
    """Return all importers, those of installed packages first, because a built-in one may recognize the same logs."""
    names = [*(name for name in IMPORTERS if name not in IMPORTERS.builtin), *IMPORTERS.builtin]
    return tuple(IMPORTERS[name] for name in names)


class LogMetadata(TypedDict, total=False):
    """Metadata of a log that the log itself lacks. All keys are optional.

    Attributes:
        units: Unit of every joint, or one unit per joint (see `LogOptions`).
        calibration: LeRobot's ``calibration.json``, which converts the units ±100 and 0–100 to radians.
        joints: Names of the joint columns if the log has none; otherwise the joints to read.
        numbered: Names for joints of which the columns have only the numbers (see `LogOptions`).
        task: Task that replaces the log's.
        robot_type: Robot type that replaces the log's.
        origin: Recorded origin of the episodes; by default the path.
        topics: Topic of a ROS recording by role (``state``, ``command``, ``imu:SITE``, …).
        description: YAML file that describes the columns of a table.
        guess: Whether the meaning of a table's columns may be guessed from their names.
    """

    units: UnitMap | str | Sequence[str] | None
    calibration: Path | str | None
    joints: Sequence[str] | None
    numbered: Sequence[str]
    task: str
    robot_type: str
    origin: str
    topics: Mapping[str, str]
    description: Path | str | None
    guess: bool


def load_log(path: Path | str, **metadata: Unpack[LogMetadata]) -> list[Episode]:
    """Return the episodes of a robot log of any known format.

    Args:
        path: LeRobot v2.1 or v3.0 folder, Arrow folder or file, CSV or Parquet file, a folder or glob of such files,
            ROS recording, robomimic HDF5 file, or µSD log of a Crazyflie.
        **metadata: Metadata that the log lacks, see `LogMetadata`.

    Raises:
        InputError: If the path does not exist, or no importer recognizes it.
        UnitsError: If the units of the joints are neither in the log nor given.
        LogError: If there is no episode, a value is NaN, times do not increase, a joint is missing, or several
            topics match.
        DatasetError: If a file is damaged.
        MissingDependencyError: If the format needs a package that is not installed.
    """
    return [episode.to_episode() for episode in read_raw(path, **metadata)]


def read_raw(path: Path | str, **metadata: Unpack[LogMetadata]) -> list[RawEpisode]:
    """Return the episodes of a log unchecked: they may have NaN, repeated times and other defects.

    Args:
        path: Log, as for `load_log`.
        **metadata: Metadata that the log lacks, see `LogMetadata`.

    Raises:
        TwinloopError: The same errors as `load_log`. NaN and times that do not increase are no errors here.
    """
    path = Path(path)
    if not path.exists() and not list_tables(path):
        raise InputError(f"{path} does not exist.")
    files = {key: Path(file) for key in ("calibration", "description") if (file := metadata.get(key)) is not None}
    options = LogOptions(**{**metadata, **files})  # pyright: ignore[reportArgumentType]
    known = list_importers()
    for importer in known:
        if importer.recognizes(path):
            episodes = importer.read(path, options)
            if not episodes:
                raise LogError(f"{path} has no episodes.")
            return episodes
    raise InputError(
        f"The log format of {str(path)!r} is not known. Known formats: {', '.join(i.name for i in known)}."
    )
