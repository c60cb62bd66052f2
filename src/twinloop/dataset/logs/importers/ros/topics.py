"""Open a ROS recording with `rosbags`, and determine the role of each topic (measurement, command, IMU or wrench).

The caller gives the roles, or they follow from message types and topic names. If these are ambiguous, an error
requests the caller's choice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twinloop.core.errors import LogError, MissingDependencyError, UnknownNameError
from twinloop.core.units import COMMANDED

SUFFIXES = (".mcap", ".db3", ".bag")


@dataclass(frozen=True, kw_only=True)
class Topic:
    """Topic of a recording.

    Attributes:
        name: Name of the topic.
        kind: Message type without the ROS version (``sensor_msgs/JointState``).
        count: Number of messages.
    """

    name: str
    kind: str
    count: int

    def __str__(self) -> str:
        """Return name, message type and number of messages, for error messages."""
        return f"{self.name} ({self.kind}, {self.count} messages)"


class Bag:
    """Open ROS recording, as returned by `open_bag`."""

    def __init__(self, reader: Any, path: Path) -> None:
        self._reader, self._path = reader, path

    def topics(self) -> list[Topic]:
        """Return all topics, sorted by name. A topic with two message types occurs twice."""
        counts: dict[tuple[str, str], int] = {}
        for connection in self._reader.connections:
            key = connection.topic, _strip_version(connection.msgtype)
            counts[key] = counts.get(key, 0) + connection.msgcount
        return [Topic(name=name, kind=kind, count=count) for (name, kind), count in sorted(counts.items())]

    def messages(self, names: Sequence[str]) -> Iterator[tuple[str, int, Any]]:
        """Yield topic, recording time in ns and message of each message on the named topics, in recorded order.

        Raises:
            LogError: If a message cannot be decoded, or the recording is damaged.
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
            message = (str(error).splitlines() or [""])[0]
            raise LogError(
                f"{self._path} is damaged ({type(error).__name__}: {message}). {_suggest_repair(self._path, message)}"
            ) from error


@contextmanager
def open_bag(path: Path) -> Iterator[Bag]:
    """Open a recording as a context manager: a folder with ``metadata.yaml``, or a single file.

    Raises:
        MissingDependencyError: If `rosbags` is not installed.
        LogError: If the recording is damaged, truncated, or not of ROS.
    """
    try:
        from rosbags.highlevel import AnyReader  # pyright: ignore[reportMissingImports]
        from rosbags.typesys import Stores, get_typestore  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependencyError(
            f"{path} is a ROS or MCAP recording, which needs the package rosbags.", remedy="pip install 'twinloop[ros]'"
        ) from error
    try:
        reader = AnyReader([path], default_typestore=get_typestore(_choose_typestore(path, Stores)))
        reader.open()
    except Exception as error:
        message = (str(error).splitlines() or [""])[0]
        raise LogError(
            f"{path} cannot be opened ({type(error).__name__}: {message}). {_suggest_repair(path, message)}"
        ) from error
    try:
        yield Bag(reader, path)
    finally:
        reader.close()


def _choose_typestore(path: Path, stores: Any) -> Any:
    """Return the message definitions for a recording that does not contain them (sqlite3 files before ROS 2 Iron).

    A file with the suffix .bag gets those of ROS 1 Noetic, any other recording those of the latest ROS 2.

    Args:
        path: The recording.
        stores: The class ``rosbags.typesys.Stores``.
    """
    return stores.ROS1_NOETIC if path.suffix == ".bag" else stores.LATEST


def _suggest_repair(path: Path, message: str) -> str:
    if "rofile" in message:
        return "Only recordings of ROS 2 are read from MCAP: record with ros2 bag, or export to CSV."
    if path.suffix == ".mcap" or "magic" in message:
        return "If the recorder was killed, `mcap recover` repairs the file."
    return "If the recorder was killed, `ros2 bag reindex` repairs the folder."


def is_recording(path: Path) -> bool:
    """Return whether a path is one recording: a rosbag2 folder, or a file with the suffix .mcap, .db3 or .bag."""
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

NO_TOPIC = "none"  # topic of a role that no topic has
_COMMANDS = ("command", *COMMANDED)  # all but the first declare the command type
_SIGNALS = {"imu": IMU, "wrench": WRENCH}
_WANTED = "cmd|commands?|desired|targets?|goals?|refs?|references?|set_?points?|leader|actions?"
_COMMANDING = re.compile(rf"(^|[/_])({_WANTED})([/_]|$)")
_COMMAND_KINDS = (JOINTS, ARRAY, TRAJECTORY, CONTROLLER)
_HOW = "Answer with topics={…} (--topics ROLE=TOPIC,…)"


@dataclass(frozen=True, kw_only=True)
class TopicRoles:
    """Topics of a recording by their role.

    Attributes:
        state: Topic of the measured joint positions; None if there is none.
        command: Topic of the joint commands; None if there is none.
        command_type: Command type that the caller declares; "" if none.
        signals: Sites and topics of IMUs and wrenches. If a site is "", the frame id of the messages names it.
        unread: Topics that are not read.
    """

    state: Topic | None
    command: Topic | None
    command_type: str = ""
    signals: tuple[tuple[str, Topic], ...] = ()
    unread: tuple[Topic, ...] = field(default=())

    @property
    def names(self) -> list[str]:
        """Names of all topics to read."""
        chosen = [self.state, self.command, *(topic for _, topic in self.signals)]
        return list(dict.fromkeys(topic.name for topic in chosen if topic is not None))


def assign_roles(topics: Sequence[Topic], given: Mapping[str, str], *, where: str) -> TopicRoles:
    """Determine which topics are read as measurements, commands, IMUs and wrenches.

    Args:
        topics: All topics of the recording.
        given: Topic that the caller gives for a role: ``state``, ``command`` (or ``position``, ``velocity``,
            ``torque``: a command of this type), ``imu:SITE``, ``wrench:SITE``. The topic ``none`` declares that the
            recording has no such topic.
        where: Name of the recording, for messages.

    Raises:
        LogError: If several topics match a role, or no topic has a role.
        UnknownNameError: If a given role or topic does not exist.
    """
    nonempty = [topic for topic in topics if topic.count]
    by_name = {topic.name: topic for topic in nonempty}
    for role, name in given.items():
        if role.partition(":")[0] not in ("state", *_COMMANDS, *_SIGNALS):
            raise UnknownNameError("role of a topic", role, ["state", *_COMMANDS, "imu:SITE", "wrench:SITE"])
        if name != NO_TOPIC and name not in by_name:
            raise UnknownNameError("topic", name, by_name, where=where)
    state = _find_state(nonempty, given, by_name, where)
    command = _find_command(nonempty, given, by_name, where, state)
    signals = _find_signals(nonempty, given, by_name)
    used = {topic.name for topic in (state, command, *(topic for _, topic in signals)) if topic is not None}
    if not used:
        raise LogError(
            f"{where} has no topic of a type that is read ({', '.join((*_COMMAND_KINDS, IMU, WRENCH))}). "
            f"It has: {_format_topics(topics)}."
        )
    return TopicRoles(
        state=state,
        command=command,
        command_type=next((role for role in COMMANDED if role in given), ""),
        signals=tuple(signals),
        unread=tuple(topic for topic in nonempty if topic.name not in used),
    )


def _find_state(
    topics: Sequence[Topic], roles: Mapping[str, str], by_name: Mapping[str, Topic], where: str
) -> Topic | None:
    if "state" in roles:
        return _require_topic(roles["state"], by_name, (JOINTS, CONTROLLER), "state", where)
    taken = {roles[role] for role in _COMMANDS if role in roles}
    measured = [t for t in topics if t.kind == JOINTS and not is_command_name(t.name) and t.name not in taken]
    measured = measured or [t for t in topics if t.kind == CONTROLLER]
    if len(measured) > 1:
        raise LogError(
            f"{where} has several topics that may be the measured joint positions: {_format_topics(measured)}. Which "
            "is it? "
            f"{_HOW}, such as state={measured[0].name}."
        )
    return measured[0] if measured else None


def _find_command(
    topics: Sequence[Topic], roles: Mapping[str, str], by_name: Mapping[str, Topic], where: str, state: Topic | None
) -> Topic | None:
    for role in _COMMANDS:
        if role in roles:
            return _require_topic(roles[role], by_name, _COMMAND_KINDS, role, where)
    found = [t for t in topics if t.kind in (JOINTS, ARRAY) and is_command_name(t.name)]
    found += [t for t in topics if t.kind in (TRAJECTORY, CONTROLLER)]
    found = [t for t in found if not _has_controller(t, found)]
    if state is not None and state.kind == JOINTS:
        found = [t for t in found if t.name != state.name]
    if len(found) > 1:
        raise LogError(
            f"{where} has several topics that may be the commands: {_format_topics(found)}. Which is it? "
            f"{_HOW}, such as command={found[0].name}, or command={NO_TOPIC}."
        )
    return found[0] if found else None


def _has_controller(topic: Topic, found: Sequence[Topic]) -> bool:
    """Return whether a trajectory topic has a controller-state topic, which has the commands, in its namespace."""
    spaces = {t.name.rpartition("/")[0] for t in found if t.kind == CONTROLLER}
    return topic.kind == TRAJECTORY and topic.name.rpartition("/")[0] in spaces


def _find_signals(
    topics: Sequence[Topic], roles: Mapping[str, str], by_name: Mapping[str, Topic]
) -> list[tuple[str, Topic]]:
    """Return site and topic of each IMU and wrench.

    If ``roles`` has topics of one of these two types, only they are used for this type. Otherwise all topics of
    this type are used, with the site "".

    Args:
        topics: Topics of the recording that have messages.
        roles: Name of the topic that the caller gives for a role, such as ``imu:SITE`` or ``wrench:SITE``.
        by_name: The same topics by name.
    """
    chosen: list[tuple[str, Topic]] = []
    for role, kind in _SIGNALS.items():
        given = {key.partition(":")[2]: name for key, name in roles.items() if key.partition(":")[0] == role}
        if given:
            named = (
                (site, _require_topic(name, by_name, (kind,), role, "the recording")) for site, name in given.items()
            )
            chosen += [(site, topic) for site, topic in named if topic is not None]
        else:
            chosen += [("", topic) for topic in topics if topic.kind == kind]
    return chosen


def _require_topic(
    name: str, by_name: Mapping[str, Topic], kinds: Sequence[str], role: str, where: str
) -> Topic | None:
    if name == NO_TOPIC:
        return None
    topic = by_name[name]
    if topic.kind not in kinds:
        raise LogError(f"{where}: {topic} cannot be the {role}, which is read from {' or '.join(kinds)}.")
    return topic


def is_command_name(name: str) -> bool:
    """Return whether a topic's name indicates a command rather than a measurement, such as ``/joint_commands``."""
    return _COMMANDING.search(name.lower()) is not None


def _format_topics(topics: Sequence[Topic]) -> str:
    return ", ".join(map(str, topics)) or "no topic with messages"
