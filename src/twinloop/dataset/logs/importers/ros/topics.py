"""Open a ROS recording with `rosbags`, and determine the role of each topic.

Roles are given by the caller or follow from types and names; if they are ambiguous, an error requests them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twinloop.core.errors import LogError, MissingDependencyError, UnknownNameError

SUFFIXES = (".mcap", ".db3", ".bag")


@dataclass(frozen=True, kw_only=True)
class Topic:
    """A topic of a recording; ``kind`` is its type without the ROS version (``sensor_msgs/JointState``)."""

    name: str
    kind: str
    count: int

    def __str__(self) -> str:
        """Return name, type and count, for messages."""
        return f"{self.name} ({self.kind}, {self.count} messages)"


class Bag:
    """An open recording, see `open_bag`."""

    def __init__(self, reader: Any, path: Path) -> None:
        self._reader, self._path = reader, path

    def topics(self) -> list[Topic]:
        """Return all topics by name; a topic with two types occurs twice."""
        counts: dict[tuple[str, str], int] = {}
        for connection in self._reader.connections:
            key = connection.topic, _strip_version(connection.msgtype)
            counts[key] = counts.get(key, 0) + connection.msgcount
        return [Topic(name=name, kind=kind, count=count) for (name, kind), count in sorted(counts.items())]

    def messages(self, names: Sequence[str]) -> Iterator[tuple[str, int, Any]]:
        """Yield topic, recording time in ns and message, of the named topics, in the order of recording.

        Raises:
            LogError: a message cannot be decoded; names it.
        """
        connections = [c for c in self._reader.connections if c.topic in names]
        if not connections:
            return
        for connection, stamp, data in self._read_raw_messages(connections):
            try:
                yield connection.topic, stamp, self._reader.deserialize(data, connection.msgtype)
            except Exception as error:
                raise LogError(
                    f"{self._path}: a message of {connection.topic} ({connection.msgtype}) at {stamp} ns cannot be "
                    f"decoded ({type(error).__name__}: {error}). The recording holds no definition of that type, or "
                    "is damaged."
                ) from error

    def _read_raw_messages(self, connections: list[Any]) -> Iterator[tuple[Any, int, Any]]:
        try:
            yield from self._reader.messages(connections=connections)
        except LogError:
            raise
        except Exception as error:
            said = (str(error).splitlines() or [""])[0]
            raise LogError(
                f"{self._path} is damaged ({type(error).__name__}: {said}). {_suggest_repair(self._path, said)}"
            ) from error


@contextmanager
def open_bag(path: Path) -> Iterator[Bag]:
    """Open a recording: a folder with ``metadata.yaml``, or a single file.

    Raises:
        MissingDependencyError: `rosbags` is not installed.
        LogError: it is damaged, truncated, or not a ROS recording.
    """
    try:
        from rosbags.highlevel import AnyReader  # pyright: ignore[reportMissingImports]
        from rosbags.typesys import Stores, get_typestore  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependencyError(
            f"{path} is a ROS or MCAP recording, and nothing here reads those.", remedy="pip install 'twinloop[ros]'"
        ) from error
    try:
        reader = AnyReader([path], default_typestore=get_typestore(_choose_typestore(path, Stores)))
        reader.open()
    except Exception as error:
        said = (str(error).splitlines() or [""])[0]
        raise LogError(
            f"{path} cannot be opened ({type(error).__name__}: {said}). {_suggest_repair(path, said)}"
        ) from error
    try:
        yield Bag(reader, path)
    finally:
        reader.close()


def _choose_typestore(path: Path, stores: Any) -> Any:
    """Return the message definitions for a recording without its own (sqlite3 before Iron)."""
    return stores.ROS1_NOETIC if path.suffix == ".bag" else stores.LATEST


def _suggest_repair(path: Path, said: str) -> str:
    if "rofile" in said:
        return "Only recordings of ROS 2 are read from MCAP: record with ros2 bag, or export to CSV."
    if path.suffix == ".mcap" or "magic" in said:
        return "If the recorder was killed, `mcap recover` mends the file."
    return "If the recorder was killed, `ros2 bag reindex` mends the folder."


def is_recording(path: Path) -> bool:
    """Return whether a path is one recording: a rosbag2 folder, or a file with a known suffix."""
    if path.is_dir():
        return (path / "metadata.yaml").is_file() and _is_rosbag2(path / "metadata.yaml")
    return path.suffix in SUFFIXES and path.is_file()


def find_recordings(path: Path) -> list[Path]:
    """Return the path itself if it is a recording, else the recordings in the folder, sorted by name."""
    if is_recording(path):
        return [path]
    return sorted(inner for inner in path.iterdir() if is_recording(inner)) if path.is_dir() else []


def _is_rosbag2(path: Path) -> bool:
    with path.open("rb") as file:
        return b"rosbag2_bagfile_information" in file.read(1024)


def _strip_version(name: str) -> str:
    package, _, rest = name.partition("/")
    return f"{package}/{rest.removeprefix('msg/')}"


JOINTS = "sensor_msgs/JointState"
ARRAY = "std_msgs/Float64MultiArray"
TRAJECTORY = "trajectory_msgs/JointTrajectory"
CONTROLLER = "control_msgs/JointTrajectoryControllerState"
IMU = "sensor_msgs/Imu"
WRENCH = "geometry_msgs/WrenchStamped"

NOTHING = "none"  # topic of a role that no topic has
_COMMANDS = ("command", "position", "torque")  # the last two declare the command type
_SIGNALS = {"imu": IMU, "wrench": WRENCH}
_WANTED = "cmd|commands?|desired|targets?|goals?|refs?|references?|set_?points?|leader|actions?"
_COMMANDING = re.compile(rf"(^|[/_])({_WANTED})([/_]|$)")
_COMMAND_KINDS = (JOINTS, ARRAY, TRAJECTORY, CONTROLLER)
_HOW = "Answer with topics={…} (--topics ROLE=TOPIC,…)"


@dataclass(frozen=True, kw_only=True)
class TopicRoles:
    """The topics to read: ``state`` and ``command`` (or None), and in ``signals`` IMUs and wrenches with their site.

    An empty site is named after the frame id of the messages. ``command_is`` is the caller's command type, if any.
    ``left`` are the unused topics.
    """

    state: Topic | None
    command: Topic | None
    command_is: str = ""
    signals: tuple[tuple[str, Topic], ...] = ()
    left: tuple[Topic, ...] = field(default=())

    @property
    def names(self) -> list[str]:
        """Names of all topics that are read."""
        chosen = [self.state, self.command, *(topic for _, topic in self.signals)]
        return list(dict.fromkeys(topic.name for topic in chosen if topic is not None))


def assign_roles(topics: Sequence[Topic], said: Mapping[str, str], *, where: str) -> TopicRoles:
    """Return the role of each topic.

    Args:
        topics: all topics of the recording.
        said: the caller's topic by role: ``state``, ``command`` (or ``position``, ``torque``: a command of this type),
            ``imu:SITE``, ``wrench:SITE``; ``none`` if the recording has no such topic.
        where: the recording's name, for messages.

    Raises:
        LogError: several topics match a role, or no topic has a role; the message requests the topics.
        UnknownNameError: a role or a topic that does not exist.
    """
    heard = [topic for topic in topics if topic.count]
    by_name = {topic.name: topic for topic in heard}
    for role, name in said.items():
        if role.partition(":")[0] not in ("state", *_COMMANDS, *_SIGNALS):
            raise UnknownNameError("role of a topic", role, ["state", *_COMMANDS, "imu:SITE", "wrench:SITE"])
        if name != NOTHING and name not in by_name:
            raise UnknownNameError("topic", name, by_name, where=where)
    state = _find_state(heard, said, by_name, where)
    command = _find_command(heard, said, by_name, where, state)
    signals = _find_signals(heard, said, by_name)
    used = {topic.name for topic in (state, command, *(topic for _, topic in signals)) if topic is not None}
    if not used:
        raise LogError(
            f"{where} has no topic of a type that is read ({', '.join((*_COMMAND_KINDS, IMU, WRENCH))}). "
            f"It has: {_format_topics(topics)}."
        )
    return TopicRoles(
        state=state,
        command=command,
        command_is=next((role for role in ("position", "torque") if role in said), ""),
        signals=tuple(signals),
        left=tuple(topic for topic in heard if topic.name not in used),
    )


def _find_state(
    heard: Sequence[Topic], said: Mapping[str, str], by_name: Mapping[str, Topic], where: str
) -> Topic | None:
    if "state" in said:
        return _require_topic(said["state"], by_name, (JOINTS, CONTROLLER), "state", where)
    taken = {said[role] for role in _COMMANDS if role in said}
    measured = [t for t in heard if t.kind == JOINTS and not is_command_name(t.name) and t.name not in taken]
    measured = measured or [t for t in heard if t.kind == CONTROLLER]
    if len(measured) > 1:
        raise LogError(
            f"{where} has several topics that may be the measured joint positions: {_format_topics(measured)}. Which "
            "is it? "
            f"{_HOW}, such as state={measured[0].name}."
        )
    return measured[0] if measured else None


def _find_command(
    heard: Sequence[Topic], said: Mapping[str, str], by_name: Mapping[str, Topic], where: str, state: Topic | None
) -> Topic | None:
    for role in _COMMANDS:
        if role in said:
            return _require_topic(said[role], by_name, _COMMAND_KINDS, role, where)
    found = [t for t in heard if t.kind in (JOINTS, ARRAY) and is_command_name(t.name)]
    found += [t for t in heard if t.kind in (TRAJECTORY, CONTROLLER)]
    found = [t for t in found if not _has_controller(t, found)]
    if state is not None and state.kind == JOINTS:
        found = [t for t in found if t.name != state.name]
    if len(found) > 1:
        raise LogError(
            f"{where} has several topics that may be the commands: {_format_topics(found)}. Which is it? "
            f"{_HOW}, such as command={found[0].name}, or command={NOTHING}."
        )
    return found[0] if found else None


def _has_controller(topic: Topic, found: Sequence[Topic]) -> bool:
    """Return whether a trajectory topic has a controller-state topic, which has the reference, in its namespace."""
    spaces = {t.name.rpartition("/")[0] for t in found if t.kind == CONTROLLER}
    return topic.kind == TRAJECTORY and topic.name.rpartition("/")[0] in spaces


def _find_signals(
    heard: Sequence[Topic], said: Mapping[str, str], by_name: Mapping[str, Topic]
) -> list[tuple[str, Topic]]:
    """Return site and topic of each IMU and wrench; only the caller's topics if any of that type are given."""
    chosen: list[tuple[str, Topic]] = []
    for role, kind in _SIGNALS.items():
        given = {key.partition(":")[2]: name for key, name in said.items() if key.partition(":")[0] == role}
        if given:
            named = (
                (site, _require_topic(name, by_name, (kind,), role, "the recording")) for site, name in given.items()
            )
            chosen += [(site, topic) for site, topic in named if topic is not None]
        else:
            chosen += [("", topic) for topic in heard if topic.kind == kind]
    return chosen


def _require_topic(
    name: str, by_name: Mapping[str, Topic], kinds: Sequence[str], role: str, where: str
) -> Topic | None:
    if name == NOTHING:
        return None
    topic = by_name[name]
    if topic.kind not in kinds:
        raise LogError(f"{where}: {topic} cannot be the {role}, which is read from {' or '.join(kinds)}.")
    return topic


def is_command_name(name: str) -> bool:
    """Return whether a topic's name denotes a command rather than a measurement."""
    return _COMMANDING.search(name.lower()) is not None


def _format_topics(topics: Sequence[Topic]) -> str:
    return ", ".join(map(str, topics)) or "no topic with messages"
