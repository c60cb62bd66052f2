"""Convert the messages of a ROS topic to arrays over time, and commands of any message type to joint commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import LogError
from twinloop.dataset.logs.importers.ros import topics as kinds

Array = NDArray[np.float64]
_NS = 1_000_000_000


@dataclass(kw_only=True)
class TopicSeries:
    """Messages of one topic as arrays.

    Attributes:
        topic: Name of the topic.
        kind: Message type without the ROS version (``sensor_msgs/JointState``).
        recorded: Time in ns at which the recorder received each message.
        stamped: Time in ns in the header of each message; 0 if it has no header.
        names: Joint names of each message, or its frame id.
        values: Arrays by field of the message, one per message; an array may be empty.
    """

    topic: str
    kind: str
    recorded: list[int] = field(default_factory=list[int])
    stamped: list[int] = field(default_factory=list[int])
    names: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    values: dict[str, list[Array]] = field(default_factory=dict[str, list[Array]])

    def add(self, recorded: int, message: Any) -> None:
        """Append one message.

        Args:
            recorded: Time in ns at which the recorder received the message.
            message: Message, as `rosbags` decodes it.
        """
        names, values = _READERS[self.kind](message)
        header = getattr(message, "header", None)
        self.recorded.append(recorded)
        self.stamped.append(0 if header is None else _to_nanoseconds(header.stamp))
        self.names.append(names)
        for key, row in values.items():
            self.values.setdefault(key, []).append(np.asarray(row, dtype=np.float64))

    def __len__(self) -> int:
        return len(self.recorded)

    def common_joints(self, wanted: Sequence[str] | None = None) -> tuple[str, ...]:
        """Return the joints to read, in the order of ``wanted`` or else of the first message.

        Args:
            wanted: Joints that the caller selects; by default all joints of the messages.

        Raises:
            LogError: If messages name different joints and none are selected, or no message has all selected joints.
        """
        groups = dict.fromkeys(frozenset(names) for names in self.names)
        if wanted is None:
            if len(groups) > 1:
                shown = "; ".join(", ".join(sorted(group)) for group in list(groups)[:4])
                raise LogError(
                    f"Messages of {self.topic} name different joints: {shown}. Which are meant? Answer with joints=[…] "
                    "(--joints a,b,…): joints that one message holds together."
                )
            return self.names[0]
        if not any(group.issuperset(wanted) for group in groups):
            shown = "; ".join(", ".join(sorted(group)) for group in list(groups)[:4])
            raise LogError(f"No message of {self.topic} holds the joints {', '.join(wanted)}. They hold: {shown}.")
        return tuple(wanted)

    def select_rows(self, key: str, joints: Sequence[str]) -> tuple[list[int], Array]:
        """Return the indices of the k messages that have a field for all given joints, and the values of the field.

        Args:
            key: Field of the message, for example ``position``.
            joints: Names of n joints.

        Returns:
            Message indices, and values of shape ``(k, n)``.
        """
        chosen, values = [], []
        order: dict[tuple[str, ...], list[int] | None] = {}
        for at, (names, row) in enumerate(zip(self.names, self.values.get(key, []), strict=True)):
            if names not in order:
                order[names] = [names.index(j) for j in joints] if set(joints) <= set(names) else None
            columns = order[names]
            if columns is not None and len(row) == len(names):
                chosen.append(at)
                values.append(row[columns])
        return chosen, np.array(values, dtype=np.float64).reshape(len(chosen), len(joints))


def read_series(messages: Any, by_name: Mapping[str, str]) -> dict[str, TopicSeries]:
    """Collect messages by topic.

    Args:
        messages: Tuples of topic, recording time in ns, and message.
        by_name: Message type of each topic.
    """
    series = {name: TopicSeries(topic=name, kind=kind) for name, kind in by_name.items()}
    for name, recorded, message in messages:
        series[name].add(recorded, message)
    return series


def to_seconds(duration: Any) -> float:
    """Convert a ROS duration or time to s."""
    return _to_nanoseconds(duration) / _NS


def _to_nanoseconds(stamp: Any) -> int:
    return int(stamp.sec) * _NS + int(stamp.nanosec)


def _parse_joints(message: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    fields = {"position": message.position, "velocity": message.velocity, "effort": message.effort}
    return tuple(message.name), fields


def _parse_array(message: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    return (), {"data": message.data}


def _parse_trajectory(message: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the joint names and the points of a trajectory message as flat arrays.

    The arrays are the times from the start in s, the positions, and the velocities if all points have them.
    """
    points, n = message.points, len(message.joint_names)
    moving = all(len(point.velocities) == n for point in points)
    if any(len(point.positions) != n for point in points):
        raise LogError("a trajectory has points without positions; only positions are read from trajectories.")
    return tuple(message.joint_names), {
        "from_start": [to_seconds(point.time_from_start) for point in points],
        "positions": np.array([point.positions for point in points]).ravel(),
        "velocities": np.array([point.velocities for point in points]).ravel() if moving else [],
    }


def _parse_controller(message: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return joint names, target and measurement of a controller-state message.

    They are in the fields reference and feedback, or desired and actual before ROS 2 Humble.
    """
    wanted, found = (
        _first_filled_point(message, names) for names in (("reference", "desired"), ("feedback", "actual"))
    )
    return tuple(message.joint_names), {
        "wanted_position": wanted.positions,
        "wanted_effort": wanted.effort,
        "wanted_velocity": wanted.velocities,
        "position": found.positions,
        "velocity": found.velocities,
        "effort": found.effort,
    }


def _first_filled_point(message: Any, names: Sequence[str]) -> Any:
    """Return the first of the named fields that has positions, else the first that exists."""
    points = [getattr(message, name) for name in names if hasattr(message, name)]
    return next((point for point in points if len(point.positions)), points[0])


def _parse_imu(message: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    rate, force = message.angular_velocity, message.linear_acceleration
    # A covariance that begins with -1 means that the device does not measure this quantity (sensor_msgs/Imu).
    return (message.header.frame_id,), {
        "angular_velocity": [] if message.angular_velocity_covariance[0] == -1 else [rate.x, rate.y, rate.z],
        "acceleration": [] if message.linear_acceleration_covariance[0] == -1 else [force.x, force.y, force.z],
    }


def _parse_wrench(message: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    force, torque = message.wrench.force, message.wrench.torque
    return (message.header.frame_id,), {"wrench": [force.x, force.y, force.z, torque.x, torque.y, torque.z]}


_READERS: dict[str, Callable[[Any], tuple[tuple[str, ...], dict[str, Any]]]] = {
    kinds.JOINTS: _parse_joints,
    kinds.ARRAY: _parse_array,
    kinds.TRAJECTORY: _parse_trajectory,
    kinds.CONTROLLER: _parse_controller,
    kinds.IMU: _parse_imu,
    kinds.WRENCH: _parse_wrench,
}


# Fields with commands of each kind, in the order in which they are tried.
_FIELDS = {"position": "position", "torque": "effort", "velocity": "velocity"}
_PREFIXES = {kinds.JOINTS: "", kinds.CONTROLLER: "wanted_"}


@dataclass(frozen=True, kw_only=True)
class CommandSeries:
    """Commands of n joints over time.

    Attributes:
        time: Times of K commands in s, shape ``(K,)``.
        values: Commanded positions, velocities or torques, shape ``(K, n)``.
        joints: Names of the joints.
        kind: Type of the commands: "position", "velocity" or "torque".
    """

    time: Array
    values: Array
    joints: tuple[str, ...]
    kind: str


def read_commands(
    series: TopicSeries,
    time: Array,
    joints: Sequence[str],
    *,
    declared: str,
    chosen: bool,
    measured: tuple[Array, Array],
) -> CommandSeries:
    """Return the commands on a topic for the measured joints.

    Args:
        series: Messages of the topic.
        time: Time of each message in s.
        joints: Names of the n measured joints.
        declared: "position", "velocity" or "torque" if the caller declares the command type, else "".
        chosen: Whether the caller selected the joints; then each of them must have commands.
        measured: Times, shape ``(T,)``, and positions, shape ``(T, n)``; the first trajectory starts from them.

    Raises:
        LogError: If the messages have no commands of the type, do not name their joints, or name other joints.
    """
    if series.kind == kinds.ARRAY:
        return _array_commands(series, time, joints, declared, chosen)
    named = set().union(*map(set, series.names))
    common = tuple(joint for joint in joints if joint in named)
    if not common or (chosen and len(common) < len(joints)):
        raise LogError(
            f"{series.topic} commands {', '.join(sorted(named)) or 'nothing by name'}; the measured joints are "
            f"{', '.join(joints)}. Choose another command topic (--topics command=…) or joints (--joints)."
        )
    if series.kind == kinds.TRAJECTORY:
        return _sample_trajectories(series, time, common, joints, measured)
    for kind, name in _FIELDS.items():
        rows, values = series.select_rows(_PREFIXES[series.kind] + name, common)
        if rows and not np.isnan(values).all() and declared in ("", kind):
            return CommandSeries(time=time[rows], values=values, joints=common, kind=kind)
    raise LogError(
        f"{series.topic} holds no {declared or 'positions, efforts or velocities'} for {', '.join(common)}. Give "
        "another topic (--topics command=…), or command=none."
    )


def _array_commands(
    series: TopicSeries, time: Array, joints: Sequence[str], declared: str, chosen: bool
) -> CommandSeries:
    """Return the commands of messages without joint names, in the order of ``joints``.

    Args:
        series: Messages of the topic.
        time: Time of each message in s.
        joints: Names of the measured joints.
        declared: "position", "velocity" or "torque" if the caller declares the command type, else "".
        chosen: Whether the caller selected the joints; required if there are several.
    """
    rows = series.values["data"]
    widths = {len(row) for row in rows}
    if widths != {len(joints)}:
        raise LogError(
            f"{series.topic} holds {' or '.join(map(str, sorted(widths)))} numbers a message, for {len(joints)} "
            f"joints: {', '.join(joints)}. Which joints does it command, in its order? Answer with joints=[…] "
            "(--joints a,b,…)."
        )
    if len(joints) > 1 and not chosen:
        raise LogError(
            f"{series.topic} holds numbers without names. Which joints are they, in its order? "
            f"Answer with joints=[…] (--joints a,b,…); measured are {', '.join(joints)}."
        )
    kind = declared or _kind_from_name(series.topic)
    if not kind:
        raise LogError(
            f"{series.topic} does not declare the kind of its numbers. Answer with --topics position={series.topic}, "
            f"velocity={series.topic} or torque={series.topic}, or with command=none if they are something else."
        )
    return CommandSeries(time=time, values=np.array(rows), joints=tuple(joints), kind=kind)


def _kind_from_name(topic: str) -> str:
    """Return the command type that the name of a topic contains, as in ros2_control; "" if it contains none."""
    for kind in ("position", "velocity"):
        if kind in topic.lower():
            return kind
    return "torque" if re.search(r"effort|torque", topic.lower()) else ""


def _sample_trajectories(
    series: TopicSeries, time: Array, common: tuple[str, ...], joints: Sequence[str], measured: tuple[Array, Array]
) -> CommandSeries:
    """Return the commands of a trajectory controller at the times of the measurements.

    A new trajectory replaces the previous one when it is received. It starts at the previous command (the first one
    at the measured position) and is linear up to its first point. Between points it is linear, or cubic if they
    have velocities (ros2_controllers, "Trajectory Representation"); after the last point it is held.

    Args:
        series: Trajectory messages.
        time: Time of each message in s.
        common: Joints that are measured and commanded.
        joints: Names of the n measured joints.
        measured: Times in s, shape ``(T,)``, and positions, shape ``(T, n)``.
    """
    frames, positions = measured
    columns = [list(joints).index(joint) for joint in common]
    values = np.full((len(frames), len(common)), np.nan)
    held: Array | None = None
    for at in range(len(series)):
        until = time[at + 1] if at + 1 < len(series) else np.inf
        if not set(common) <= set(series.names[at]):
            raise LogError(f"Trajectories on {series.topic} name different joints. Choose with --joints.")
        if held is None:
            held = positions[max(0, int(np.searchsorted(frames, time[at], side="right")) - 1), columns]
        knots, slopes = _trajectory_knots(series, at, common, time[at], held)
        chosen = (frames >= time[at]) & (frames < until)
        values[chosen] = _interpolate_trajectory(knots, slopes, frames[chosen])
        held = _interpolate_trajectory(knots, slopes, np.array([min(until, knots[0][-1])]))[0]
    started = ~np.isnan(values[:, 0])
    return CommandSeries(time=frames[started], values=values[started], joints=common, kind="position")


def _trajectory_knots(
    series: TopicSeries, at: int, joints: Sequence[str], received: float, held: Array
) -> tuple[tuple[Array, Array], Array | None]:
    """Return the knots of one trajectory for interpolation: its start, and the points of its message.

    Args:
        series: Trajectory messages.
        at: Index of the message.
        joints: Names of n joints.
        received: Time of the message in s, which is the time of the start.
        held: Command before the trajectory, shape ``(n,)``, which is the position at the start.

    Returns:
        Times, shape ``(m,)``, and positions, shape ``(m, n)``, of the start and the points; and the velocities of
        the points, shape ``(m − 1, n)``, or None if they have none.
    """
    n, columns = len(series.names[at]), [series.names[at].index(joint) for joint in joints]
    stamp = series.stamped[at]
    begin = received + max(0.0, (stamp - series.recorded[at]) / _NS) if stamp else received
    times = begin + series.values["from_start"][at]
    points = series.values["positions"][at].reshape(-1, n)[:, columns]
    speeds = series.values["velocities"][at]
    slopes = speeds.reshape(-1, n)[:, columns] if len(speeds) else None
    if not len(times):  # an empty trajectory stops where it is
        return (np.array([received]), held[None]), None
    later = times > received
    if not later.all():  # skip points that are already in the past
        points = points[np.argmax(later) if later.any() else -1 :]
        slopes = None if slopes is None else slopes[np.argmax(later) if later.any() else -1 :]
        times = times[later] if later.any() else np.array([received + 1e-9])
    return (np.concatenate([[received], times]), np.concatenate([held[None], points])), slopes


def _interpolate_trajectory(knots: tuple[Array, Array], slopes: Array | None, at: Array) -> Array:
    """Return the positions of a trajectory of n joints at k times, shape ``(k, n)``.

    Args:
        knots: Times, shape ``(m,)``, and positions, shape ``(m, n)``, of the start and then of the message's points.
        slopes: Velocities of the points, excluding the start, shape ``(m − 1, n)``; None for linear interpolation.
        at: Times in s, shape ``(k,)``.
    """
    times, points = knots
    straight = np.stack([np.interp(at, times, column) for column in points.T], axis=1)
    if slopes is None or len(times) <= 2 or not len(at):
        return straight
    from scipy.interpolate import CubicHermiteSpline  # half a second to import, for a rare case

    curve = CubicHermiteSpline(times[1:], points[1:], slopes)
    inside = (at >= times[1]) & (at <= times[-1])
    straight[inside] = curve(at[inside])
    return straight
