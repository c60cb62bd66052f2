"""Load robot logs: recognize the format, read the files, and return episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict, Unpack

from twinloop.core.errors import InputError, LogError
from twinloop.core.records import Episode
from twinloop.core.registry import Registry
from twinloop.core.units import UnitMap
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
    """Return the importers: those of installed packages first, because a built-in one may recognize their logs too."""
    names = [*(name for name in IMPORTERS if name not in IMPORTERS.builtin), *IMPORTERS.builtin]
    return tuple(IMPORTERS[name] for name in names)


class LogMetadata(TypedDict, total=False):
    """Metadata of a log that the log itself lacks.

    ``units``: the unit of every joint, or one per joint (see `LogOptions`). ``calibration``: LeRobot's
    ``calibration.json``, which maps ±100 and 0–100 to radians. ``joints``: names of the joint columns if the log has
    none; otherwise a selection. ``task``, ``robot_type``: replace those of the log. ``origin``: the recorded origin of
    the episodes; by default the path. ``topics``: the topics of a ROS recording by role (``state``, ``command``,
    ``imu:SITE``, …). ``description``: a YAML file that describes a table's columns.
    """

    units: UnitMap | str | Sequence[str] | None
    calibration: Path | str | None
    joints: Sequence[str] | None
    task: str
    robot_type: str
    origin: str
    topics: Mapping[str, str]
    description: Path | str | None


def load_log(path: Path | str, **said: Unpack[LogMetadata]) -> list[Episode]:
    """Return the episodes of a robot log of any format.

    Args:
        path: a LeRobot v2.1 or v3.0 folder, an Arrow folder or file, a CSV file, a ROS recording, a robomimic HDF5
            file, a Crazyflie's µSD log.
        **said: metadata that the log lacks, see `LogMetadata`.

    Raises:
        InputError: there is no such file, or no importer recognizes it.
        UnitsError: the log does not declare its units; the message requests them.
        LogError: no episodes, NaN, times that do not increase, a missing joint, or several matching topics.
        DatasetError: a damaged file; names it.
        MissingDependencyError: the format needs a package that is not installed; names it.
    """
    return [episode.to_episode() for episode in read_raw(path, **said)]


def read_raw(path: Path | str, **said: Unpack[LogMetadata]) -> list[RawEpisode]:
    """Return the episodes of a log without checks: they may have NaN, repeated times and other defects.

    Raises:
        TwinloopError: as `load_log`, except for defects of values and times.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path} does not exist.")
    files = {key: Path(file) for key in ("calibration", "description") if (file := said.get(key)) is not None}
    options = LogOptions(**{**said, **files})  # pyright: ignore[reportArgumentType]
    known = list_importers()
    for importer in known:
        if importer.recognizes(path):
            episodes = importer.read(path, options)
            if not episodes:
                raise LogError(f"{path} has no episodes.")
            return episodes
    raise InputError(f"{path} is no log that can be read. Known formats: {', '.join(i.name for i in known)}.")
