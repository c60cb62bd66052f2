"""The door to `rosbags`: topics of a recording, and their messages in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinloop.core.errors import LogError, MissingDependencyError

SUFFIXES = (".mcap", ".db3", ".bag")


@dataclass(frozen=True, kw_only=True)
class Topic:
    """A topic of a recording; ``kind`` is its type without the ROS version (``sensor_msgs/JointState``)."""

    name: str
    kind: str
    count: int

    def __str__(self) -> str:
        """As a question lists it."""
        return f"{self.name} ({self.kind}, {self.count} messages)"


class Bag:
    """One open recording; make it with `open_bag`."""

    def __init__(self, reader: Any, path: Path) -> None:
        self._reader, self._path = reader, path

    def topics(self) -> list[Topic]:
        """All topics by name; a topic with two types stands there twice."""
        counts: dict[tuple[str, str], int] = {}
        for connection in self._reader.connections:
            key = connection.topic, _kind(connection.msgtype)
            counts[key] = counts.get(key, 0) + connection.msgcount
        return [Topic(name=name, kind=kind, count=count) for (name, kind), count in sorted(counts.items())]

    def messages(self, names: Sequence[str]) -> Iterator[tuple[str, int, Any]]:
        """Topic, time of recording in ns and message, of the named topics, in the order of recording.

        Raises:
            LogError: a message cannot be decoded; says which.
        """
        connections = [c for c in self._reader.connections if c.topic in names]
        if not connections:
            return
        for connection, stamp, data in self._recorded(connections):
            try:
                yield connection.topic, stamp, self._reader.deserialize(data, connection.msgtype)
            except Exception as error:
                raise LogError(
                    f"{self._path}: a message of {connection.topic} ({connection.msgtype}) at {stamp} ns cannot be "
                    f"decoded ({type(error).__name__}: {error}). The recording holds no definition of that type, or "
                    "is damaged."
                ) from error

    def _recorded(self, connections: list[Any]) -> Iterator[tuple[Any, int, Any]]:
        try:
            yield from self._reader.messages(connections=connections)
        except LogError:
            raise
        except Exception as error:
            said = (str(error).splitlines() or [""])[0]
            raise LogError(
                f"{self._path} is damaged ({type(error).__name__}: {said}). {_advice(self._path, said)}"
            ) from error


@contextmanager
def open_bag(path: Path) -> Iterator[Bag]:
    """A recording: a folder with ``metadata.yaml``, or one file of it.

    Raises:
        MissingDependencyError: `rosbags` is not installed.
        LogError: it is damaged, was cut off, or is not of ROS.
    """
    try:
        from rosbags.highlevel import AnyReader  # pyright: ignore[reportMissingImports]
        from rosbags.typesys import Stores, get_typestore  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependencyError(
            f"{path} is a ROS or MCAP recording, and nothing here reads those.", remedy="pip install 'twinloop[ros]'"
        ) from error
    try:
        reader = AnyReader([path], default_typestore=get_typestore(_store(path, Stores)))
        reader.open()
    except Exception as error:
        said = (str(error).splitlines() or [""])[0]
        raise LogError(f"{path} cannot be opened ({type(error).__name__}: {said}). {_advice(path, said)}") from error
    try:
        yield Bag(reader, path)
    finally:
        reader.close()


def _store(path: Path, stores: Any) -> Any:
    """Which definitions stand in where a recording holds none (sqlite3 before Iron)."""
    return stores.ROS1_NOETIC if path.suffix == ".bag" else stores.LATEST


def _advice(path: Path, said: str) -> str:
    if "rofile" in said:
        return "Only recordings of ROS 2 are read from MCAP: record with ros2 bag, or export to CSV."
    if path.suffix == ".mcap" or "magic" in said:
        return "If the recorder was killed, `mcap recover` mends the file."
    return "If the recorder was killed, `ros2 bag reindex` mends the folder."


def is_recording(path: Path) -> bool:
    """Whether a path is one recording: a folder of rosbag2, or a file of one of the known kinds."""
    if path.is_dir():
        return (path / "metadata.yaml").is_file() and _says_rosbag2(path / "metadata.yaml")
    return path.suffix in SUFFIXES and path.is_file()


def recordings(path: Path) -> list[Path]:
    """The recordings that a path names: itself, or those in a folder, by name; a split recording is one."""
    if is_recording(path):
        return [path]
    return sorted(inner for inner in path.iterdir() if is_recording(inner)) if path.is_dir() else []


def _says_rosbag2(path: Path) -> bool:
    with path.open("rb") as file:
        return b"rosbag2_bagfile_information" in file.read(1024)


def _kind(name: str) -> str:
    package, _, rest = name.partition("/")
    return f"{package}/{rest.removeprefix('msg/')}"
