"""Convert the topics of a ROS recording to one episode: joint positions, commands, IMUs and wrenches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import LogError
from twinloop.core.records import LoggedSignal
from twinloop.core.units import RADIANS, UnitMap
from twinloop.dataset.logs.importers.protocol import Importer, LogOptions, RawEpisode, resolve_units
from twinloop.dataset.logs.importers.ros import topics as kinds
from twinloop.dataset.logs.importers.ros.series import CommandSeries, TopicSeries, read_commands, read_series
from twinloop.dataset.logs.importers.ros.topics import TopicRoles, assign_roles, find_recordings, open_bag
from twinloop.dataset.logs.importers.tables import make_unit_map

Array = NDArray[np.float64]
_NS = 1_000_000_000
_SAME_CLOCK_NS = _NS  # most difference between header and recorder clock; more than any message latency
_MOST_MESSAGES = 20_000_000  # an hour of five topics at 1 kHz; more Python objects do not fit in memory
_FIELDS = {"joint_velocity": ("velocity", "rad/s"), "joint_torque": ("effort", "N·m")}
_FELT = {  # signals by message type: (field, columns, unit)
    kinds.IMU: {
        "angular_velocity": ("angular_velocity", ("x", "y", "z"), "rad/s"),
        "acceleration": ("acceleration", ("x", "y", "z"), "m/s²"),
    },
    kinds.WRENCH: {"wrench": ("wrench", ("fx", "fy", "fz", "tx", "ty", "tz"), "")},
}


def recognizes(path: Path) -> bool:
    """Return whether a path is a ROS recording or a folder of recordings."""
    return bool(find_recordings(path))


def read(path: Path, options: LogOptions) -> list[RawEpisode]:
    """Return one episode per ROS recording (rosbag2 folder, or file .mcap, .db3 or .bag), sorted by name.

    Args:
        path: A recording, or a folder of recordings.
        options: Metadata that the caller gives. Its ``topics`` give the topic of a role, for example ``command`` or
            ``imu:SITE``.

    Raises:
        MissingDependencyError: If `rosbags` is not installed.
        LogError: If a file is damaged, or several topics match and the caller must choose.
        UnknownNameError: If a given topic or role does not exist.
    """
    files = find_recordings(path)
    return [_read_episode(index, file, options) for index, file in enumerate(files)]


def _read_episode(index: int, path: Path, options: LogOptions) -> RawEpisode:
    with open_bag(path) as bag:
        found = bag.topics()
        roles = assign_roles(found, options.topics, where=str(path))
        count = sum(topic.count for topic in found if topic.name in roles.names)
        if count > _MOST_MESSAGES:
            raise LogError(f"{path} has {count:,} messages to read, more than {_MOST_MESSAGES:,}. Split the recording.")
        by_name = {topic.name: topic.kind for topic in found if topic.name in roles.names}
        series = read_series(bag.messages(roles.names), by_name)
    if silent := [name for name, found in series.items() if not len(found)]:
        raise LogError(f"{path} has no message of {', '.join(silent)}, although its index lists some. It is damaged.")
    times, clock = _message_times(series)
    raw = _read_joints(path, roles, series, times, options) if roles.state else _empty_episode(path, roles)
    signals = {**raw.signals, **_read_signals(path, roles, series, times)}
    time = raw.time if roles.state else max((signal.time for signal in signals.values()), key=len)
    nothing = np.empty((len(time), 0))
    return replace(
        raw,
        index=index,
        time=time,
        action=raw.action if roles.state else nothing,
        state=raw.state if roles.state else nothing,
        signals=signals,
        task=options.task,
        origin=options.origin or str(path),
        robot_type=options.robot_type,
        notes=(*raw.notes, clock, *_note_unread_topics(roles)),
    )


def _empty_episode(path: Path, roles: TopicRoles) -> RawEpisode:
    """Return an episode without joints and frames, for a recording without measured joint positions."""
    if roles.command is not None:
        raise LogError(
            f"{path} has commands on {roles.command.name} and no measured joint positions. Which topic holds them? "
            "Answer with topics={…} (--topics state=TOPIC), or leave the commands (--topics command=none)."
        )
    empty = np.empty((0, 0))
    units = UnitMap(joints=(), source="a body without joints")
    return RawEpisode(index=0, time=np.empty(0), action=empty, state=empty, units=units, command="none")


def _read_joints(
    path: Path, roles: TopicRoles, series: Mapping[str, TopicSeries], times: Mapping[str, Array], options: LogOptions
) -> RawEpisode:
    assert roles.state is not None  # noqa: S101 — checked by the caller
    measured = series[roles.state.name]
    joints = measured.common_joints(options.joints)
    rows, state = measured.select_rows("position", joints)
    if not rows:
        raise LogError(f"{path}: {measured.topic} holds no positions of {', '.join(joints)}.")
    time = times[measured.topic][rows]
    commands = _read_topic_commands(roles, series, times, joints, (time, state), options)
    selected = joints if commands is None else commands.joints
    state = state[:, [joints.index(joint) for joint in selected]]
    notes = [f"joints measured on {measured.topic}"]
    if commands is None or roles.command is None:
        notes.append("no commands")
    else:
        notes.append(f"commands ({commands.kind}) on {roles.command.name}")
    if left := [joint for joint in joints if joint not in selected]:
        notes.append(f"without a command, left out: {', '.join(left)}")
    return RawEpisode(
        index=0,
        time=time,
        state=state,
        action=np.zeros_like(state) if commands is None else commands.values,
        action_time=None if commands is None else commands.time,
        units=_resolve_joint_units(path, selected, state, options),
        command="none" if commands is None else commands.kind,  # pyright: ignore[reportArgumentType]
        signals=_read_joint_signals(measured, times[measured.topic], selected),
        notes=tuple(notes),
    )


def _read_topic_commands(
    roles: TopicRoles,
    series: Mapping[str, TopicSeries],
    times: Mapping[str, Array],
    joints: tuple[str, ...],
    measured: tuple[Array, Array],
    options: LogOptions,
) -> CommandSeries | None:
    if roles.command is None:
        return None
    topic = series[roles.command.name]
    return read_commands(
        topic,
        times[topic.topic],
        joints,
        declared=roles.command_type,
        chosen=options.joints is not None,
        measured=measured,
    )


def _resolve_joint_units(path: Path, joints: tuple[str, ...], state: Array, options: LogOptions) -> UnitMap:
    """Return the caller's units if they are given, and otherwise radians (ROS convention REP 103).

    For a slide joint, the unit ``rad`` in a unit map means m.
    """
    if options.units is not None:
        return resolve_units(joints, options, where=str(path), sample=state)
    return make_unit_map(dict.fromkeys(joints, RADIANS), source="REP 103")


def _read_joint_signals(measured: TopicSeries, time: Array, joints: tuple[str, ...]) -> dict[str, LoggedSignal]:
    """Return measured joint velocities and torques, as far as the messages have values that are not NaN."""
    signals: dict[str, LoggedSignal] = {}
    for name, (field, unit) in _FIELDS.items():
        rows, values = measured.select_rows(field, joints)
        if rows and not np.isnan(values).all():
            signals[name] = LoggedSignal(time=time[rows], values=values, columns=joints, unit=unit)
    return signals


def _read_signals(
    path: Path, roles: TopicRoles, series: Mapping[str, TopicSeries], times: Mapping[str, Array]
) -> dict[str, LoggedSignal]:
    signals: dict[str, LoggedSignal] = {}
    for given_site, topic in roles.signals:
        found = series[topic.name]
        site = given_site or found.names[0][0].strip("/").replace("/", "_") or topic.name.strip("/").split("/")[-1]
        for kind, (field, columns, unit) in _FELT[topic.kind].items():
            rows = [at for at, row in enumerate(found.values[field]) if len(row)]
            if not rows:
                continue
            name = f"{kind}/{site}"
            if name in signals:
                raise LogError(
                    f"{path}: two topics measure {name}, one of them {topic.name}. Give each its own site "
                    "(--topics imu:LEFT=…,imu:RIGHT=…)."
                )
            values = np.array([found.values[field][at] for at in rows])
            signals[name] = LoggedSignal(time=times[topic.name][rows], values=values, columns=columns, unit=unit)
    return signals


def _message_times(series: Mapping[str, TopicSeries]) -> tuple[dict[str, Array], str]:
    """Return the times of the messages of each topic, in s from the first message, and a note on their clock.

    Header times are used if the headers of all topics use the recorder's clock, and otherwise the recording times.
    """
    stamped = {
        name: np.asarray(found.stamped, dtype=np.int64)
        for name, found in series.items()
        if found.kind not in (kinds.ARRAY, kinds.TRAJECTORY) and len(found)
    }
    recorded = {name: np.asarray(found.recorded, dtype=np.int64) for name, found in series.items()}
    ours = all(
        stamps.all() and np.median(np.abs(stamps - recorded[name])) < _SAME_CLOCK_NS for name, stamps in stamped.items()
    )
    used = recorded | stamped if ours and stamped else recorded
    start = min(int(values.min()) for values in used.values() if len(values))
    clock = "times from headers" if used is not recorded else "times as recorded"
    if stamped and not ours:
        clock += ", because headers are empty or on another clock"
    return {name: (values - start) / _NS for name, values in used.items()}, clock


def _note_unread_topics(roles: TopicRoles) -> list[str]:
    return [f"topics not read: {', '.join(topic.name for topic in roles.unread)}"] if roles.unread else []


IMPORTER = Importer(name="ros", recognizes=recognizes, read=read)
