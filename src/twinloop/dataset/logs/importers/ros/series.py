"""Convert the messages of a ROS topic to arrays over time, and commands of any type to joint commands."""

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
    """A topic's messages as arrays.

    ``recorded`` and ``stamped`` are times in ns: of the recorder, and of the header (0 without a header). ``names`` are
    the joint names of each message, or its frame id. ``values`` has one row per message by field; a row may be empty.
    """

    topic: str
    kind: str
    recorded: list[int] = field(default_factory=list[int])
    stamped: list[int] = field(default_factory=list[int])
    names: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    values: dict[str, list[Array]] = field(default_factory=dict[str, list[Array]])

    def add(self, recorded: int, message: Any) -> None:
        """Append one message."""
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
        """Return the joints that every message names, in the order of the first message or of ``wanted``.

        Raises:
            LogError: messages name different joints and none are selected, or no message has all selected joints.
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
        """Return the indices of messages with field ``key`` for all these joints, and their values ``(k, n)``."""
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
    """Collect messages, given as (topic, time in ns, message), by topic."""
    series = {name: TopicSeries(topic=name, kind=kind) for name, kind in by_name.items()}
    for name, recorded, message in messages:
        series[name].add(recorded, message)
    return series


def to_seconds(duration: Any) -> float:
    """Convert a ROS duration to s."""
    return _to_nanoseconds(duration) / _NS


def _to_nanoseconds(stamp: Any) -> int:
    return int(stamp.sec) * _NS + int(stamp.nanosec)


def _parse_joints(message: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    fields = {"position": message.position, "velocity": message.velocity, "effort": message.effort}
    return tuple(message.name), fields


def _parse_array(message: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    return (), {"data": message.data}


def _parse_trajectory(message: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the points of a trajectory: time from start, positions, and velocities if all points have them."""
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
    """Return the controller's target and measurement: reference and feedback, or desired and actual before Humble."""
    wanted, found = (
        _first_filled_point(message, names) for names in (("reference", "desired"), ("feedback", "actual"))
    )
    return tuple(message.joint_names), {
        "wanted_position": wanted.positions,
        "wanted_effort": wanted.effort,
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


_FIELDS = {kinds.JOINTS: ("position", "effort"), kinds.CONTROLLER: ("wanted_position", "wanted_effort")}


@dataclass(frozen=True, kw_only=True)
class CommandSeries:
    """Commanded values ``(K, n)`` at ``time`` ``(K,)`` in s, of ``joints``; ``kind`` is "position" or "torque"."""

    time: Array
    values: Array
    joints: tuple[str, ...]
    kind: str


def read_commands(
    series: TopicSeries,
    time: Array,
    joints: Sequence[str],
    *,
    said: str,
    chosen: bool,
    measured: tuple[Array, Array],
) -> CommandSeries:
    """Return the commands of a topic for its measured joints.

    Args:
        series: the topic's messages.
        time: of each message, in s.
        joints: the measured joints.
        said: "position" or "torque" if the caller declared the command type, else "".
        chosen: the caller named the joints; then all of them must be commanded.
        measured: times ``(T,)`` and positions ``(T, n)``; the first trajectory starts from them.

    Raises:
        LogError: the messages have neither positions nor torques, do not name their joints, or name other joints.
    """
    if series.kind == kinds.ARRAY:
        return _array_commands(series, time, joints, said, chosen)
    named = set().union(*map(set, series.names))
    common = tuple(joint for joint in joints if joint in named)
    if not common or (chosen and len(common) < len(joints)):
        raise LogError(
            f"{series.topic} commands {', '.join(sorted(named)) or 'nothing by name'}; the measured joints are "
            f"{', '.join(joints)}. Choose another command topic (--topics command=…) or joints (--joints)."
        )
    if series.kind == kinds.TRAJECTORY:
        return _sample_trajectories(series, time, common, joints, measured)
    order = reversed(_FIELDS[series.kind]) if said == "torque" else _FIELDS[series.kind]
    for name in order:
        rows, values = series.select_rows(name, common)
        if rows and not np.isnan(values).all() and (not said or said == _command_kind(name)):
            return CommandSeries(time=time[rows], values=values, joints=common, kind=_command_kind(name))
    raise LogError(
        f"{series.topic} holds no {said or 'positions and no efforts'} for {', '.join(common)}. Commands of velocity "
        "are not read: give another topic (--topics command=…), or command=none."
    )


def _command_kind(field: str) -> str:
    return "torque" if field.endswith("effort") else "position"


def _array_commands(series: TopicSeries, time: Array, joints: Sequence[str], said: str, chosen: bool) -> CommandSeries:
    """Return commands without joint names, in the order of ``joints``."""
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
    kind = said or _kind_from_name(series.topic)
    if not kind:
        raise LogError(
            f"{series.topic} does not declare the kind of its numbers. Answer with --topics position={series.topic} or "
            f"torque={series.topic}, or with command=none if they are something else."
        )
    return CommandSeries(time=time, values=np.array(rows), joints=tuple(joints), kind=kind)


def _kind_from_name(topic: str) -> str:
    """Return the command type in a controller's name, as in ros2_control."""
    if re.search(r"position", topic.lower()):
        return "position"
    return "torque" if re.search(r"effort|torque", topic.lower()) else ""


def _sample_trajectories(
    series: TopicSeries, time: Array, common: tuple[str, ...], joints: Sequence[str], measured: tuple[Array, Array]
) -> CommandSeries:
    """Sample trajectories at the times of the measurements, as a controller follows them.

    A new trajectory replaces the previous one when it is received. It starts at the previous command (the first one at
    the measured position) and is linear up to its first point. Between points it is linear, or cubic if they have
    velocities (ros2_controllers, "Trajectory Representation"); after the last point it is held.
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
    begun = ~np.isnan(values[:, 0])
    return CommandSeries(time=frames[begun], values=values[begun], joints=common, kind="position")


def _trajectory_knots(
    series: TopicSeries, at: int, joints: Sequence[str], heard: float, held: Array
) -> tuple[tuple[Array, Array], Array | None]:
    """Return times and positions of a trajectory's start and points, and the velocities of the points or None."""
    n, columns = len(series.names[at]), [series.names[at].index(joint) for joint in joints]
    stamp = series.stamped[at]
    begin = heard + max(0.0, (stamp - series.recorded[at]) / _NS) if stamp else heard
    times = begin + series.values["from_start"][at]
    points = series.values["positions"][at].reshape(-1, n)[:, columns]
    speeds = series.values["velocities"][at]
    slopes = speeds.reshape(-1, n)[:, columns] if len(speeds) else None
    if not len(times):  # an empty trajectory stops where it is
        return (np.array([heard]), held[None]), None
    later = times > heard
    if not later.all():  # skip points that are already in the past
        points = points[np.argmax(later) if later.any() else -1 :]
        slopes = None if slopes is None else slopes[np.argmax(later) if later.any() else -1 :]
        times = times[later] if later.any() else np.array([heard + 1e-9])
    return (np.concatenate([[heard], times]), np.concatenate([held[None], points])), slopes


def _interpolate_trajectory(knots: tuple[Array, Array], slopes: Array | None, at: Array) -> Array:
    """Return trajectory positions ``(k, n)`` at times ``at``; ``slopes``: velocities of all points but the first."""
    times, points = knots
    straight = np.stack([np.interp(at, times, column) for column in points.T], axis=1)
    if slopes is None or len(times) <= 2 or not len(at):
        return straight
    from scipy.interpolate import CubicHermiteSpline  # half a second to import, for a rare case

    curve = CubicHermiteSpline(times[1:], points[1:], slopes)
    inside = (at >= times[1]) & (at <= times[-1])
    straight[inside] = curve(at[inside])
    return straight
