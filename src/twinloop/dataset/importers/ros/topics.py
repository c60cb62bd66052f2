"""Which topic is what: guessed by type and name, said by the caller, or asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from twinloop.core.errors import LogError, UnknownNameError
from twinloop.dataset.importers.ros.bag import Topic

JOINTS = "sensor_msgs/JointState"
ARRAY = "std_msgs/Float64MultiArray"
TRAJECTORY = "trajectory_msgs/JointTrajectory"
CONTROLLER = "control_msgs/JointTrajectoryControllerState"
IMU = "sensor_msgs/Imu"
WRENCH = "geometry_msgs/WrenchStamped"

NOTHING = "none"  # what a role is given that no topic has
_COMMANDS = ("command", "position", "torque")  # the last two say what the numbers are
_SIGNALS = {"imu": IMU, "wrench": WRENCH}
_WANTED = "cmd|commands?|desired|targets?|goals?|refs?|references?|set_?points?|leader|actions?"
_COMMANDING = re.compile(rf"(^|[/_])({_WANTED})([/_]|$)")
_COMMAND_KINDS = (JOINTS, ARRAY, TRAJECTORY, CONTROLLER)
_HOW = "Answer with topics={…} (--topics ROLE=TOPIC,…)"


@dataclass(frozen=True, kw_only=True)
class Roles:
    """The topics to read: ``state`` and ``command`` (None: there is none), and IMUs and wrenches by their site.

    A site of "" is named after the messages' frame. ``command_is`` says what commanded numbers are, where the caller
    said it. ``left`` are the topics that are read for nothing.
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


def choose(topics: Sequence[Topic], said: Mapping[str, str], *, where: str) -> Roles:
    """The role of each topic.

    Args:
        topics: what the recording has.
        said: topic by role: ``state``, ``command`` (or ``position`` or ``torque``: a command whose numbers are that),
            ``imu:SITE``, ``wrench:SITE``; ``none`` where the recording has no such topic.
        where: the recording's name, for messages.

    Raises:
        LogError: several topics could have a role, or none has any; the message is the question to answer.
        UnknownNameError: a role or a topic that does not exist.
    """
    heard = [topic for topic in topics if topic.count]
    by_name = {topic.name: topic for topic in heard}
    for role, name in said.items():
        if role.partition(":")[0] not in ("state", *_COMMANDS, *_SIGNALS):
            raise UnknownNameError("role of a topic", role, ["state", *_COMMANDS, "imu:SITE", "wrench:SITE"])
        if name != NOTHING and name not in by_name:
            raise UnknownNameError("topic", name, by_name, where=where)
    state = _state(heard, said, by_name, where)
    command = _command(heard, said, by_name, where, state)
    signals = _signals(heard, said, by_name)
    used = {topic.name for topic in (state, command, *(topic for _, topic in signals)) if topic is not None}
    if not used:
        raise LogError(
            f"{where} has no topic of a type that is read ({', '.join((*_COMMAND_KINDS, IMU, WRENCH))}). "
            f"It has: {_listed(topics)}."
        )
    return Roles(
        state=state,
        command=command,
        command_is=next((role for role in ("position", "torque") if role in said), ""),
        signals=tuple(signals),
        left=tuple(topic for topic in heard if topic.name not in used),
    )


def _state(heard: Sequence[Topic], said: Mapping[str, str], by_name: Mapping[str, Topic], where: str) -> Topic | None:
    if "state" in said:
        return _given(said["state"], by_name, (JOINTS, CONTROLLER), "state", where)
    taken = {said[role] for role in _COMMANDS if role in said}
    measured = [t for t in heard if t.kind == JOINTS and not commanding(t.name) and t.name not in taken]
    measured = measured or [t for t in heard if t.kind == CONTROLLER]
    if len(measured) > 1:
        raise LogError(
            f"{where} has several topics that may be the measured joint positions: {_listed(measured)}. Which is it? "
            f"{_HOW}, such as state={measured[0].name}."
        )
    return measured[0] if measured else None


def _command(
    heard: Sequence[Topic], said: Mapping[str, str], by_name: Mapping[str, Topic], where: str, state: Topic | None
) -> Topic | None:
    for role in _COMMANDS:
        if role in said:
            return _given(said[role], by_name, _COMMAND_KINDS, role, where)
    found = [t for t in heard if t.kind in (JOINTS, ARRAY) and commanding(t.name)]
    found += [t for t in heard if t.kind in (TRAJECTORY, CONTROLLER)]
    found = [t for t in found if not _reported(t, found)]
    if state is not None and state.kind == JOINTS:
        found = [t for t in found if t.name != state.name]
    if len(found) > 1:
        raise LogError(
            f"{where} has several topics that may be the commands: {_listed(found)}. Which is it? "
            f"{_HOW}, such as command={found[0].name}, or command={NOTHING}."
        )
    return found[0] if found else None


def _reported(topic: Topic, found: Sequence[Topic]) -> bool:
    """Whether a trajectory's controller reports, in the same namespace, what it made of it at each moment."""
    spaces = {t.name.rpartition("/")[0] for t in found if t.kind == CONTROLLER}
    return topic.kind == TRAJECTORY and topic.name.rpartition("/")[0] in spaces


def _signals(heard: Sequence[Topic], said: Mapping[str, str], by_name: Mapping[str, Topic]) -> list[tuple[str, Topic]]:
    """Site and topic of every IMU and wrench; where the caller names some of a kind, only those."""
    chosen: list[tuple[str, Topic]] = []
    for role, kind in _SIGNALS.items():
        given = {key.partition(":")[2]: name for key, name in said.items() if key.partition(":")[0] == role}
        if given:
            named = ((site, _given(name, by_name, (kind,), role, "the recording")) for site, name in given.items())
            chosen += [(site, topic) for site, topic in named if topic is not None]
        else:
            chosen += [("", topic) for topic in heard if topic.kind == kind]
    return chosen


def _given(name: str, by_name: Mapping[str, Topic], kinds: Sequence[str], role: str, where: str) -> Topic | None:
    if name == NOTHING:
        return None
    topic = by_name[name]
    if topic.kind not in kinds:
        raise LogError(f"{where}: {topic} cannot be the {role}, which is read from {' or '.join(kinds)}.")
    return topic


def commanding(name: str) -> bool:
    """Whether a topic's name says that it tells what is wanted, not what is."""
    return _COMMANDING.search(name.lower()) is not None


def _listed(topics: Sequence[Topic]) -> str:
    return ", ".join(map(str, topics)) or "no topic with messages"
