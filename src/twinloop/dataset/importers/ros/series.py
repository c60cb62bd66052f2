"""Messages of one topic as arrays over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import LogError
from twinloop.dataset.importers.ros import topics as kinds

Array = NDArray[np.float64]
_NS = 1_000_000_000


@dataclass(kw_only=True)
class Series:
    """What a topic's messages hold, message by message.

    ``recorded`` and ``stamped`` are times in ns: when the recorder heard a message, and what its header says (0 where
    there is none). ``names`` are the joints of each message, or its frame. ``values`` are rows by field; a field that a
    message leaves empty is an empty row.
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
        self.stamped.append(0 if header is None else _ns(header.stamp))
        self.names.append(names)
        for key, row in values.items():
            self.values.setdefault(key, []).append(np.asarray(row, dtype=np.float64))

    def __len__(self) -> int:
        return len(self.recorded)

    def joints(self, wanted: Sequence[str] | None = None) -> tuple[str, ...]:
        """The joints that every message names, in the order of the first message or as wanted.

        Raises:
            LogError: messages name different joints and nobody chose; a wanted joint is in none.
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

    def rows(self, key: str, joints: Sequence[str]) -> tuple[list[int], Array]:
        """The messages that hold ``key`` for all these joints, by position, and their values ``(k, n)``."""
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


def read_series(messages: Any, by_name: Mapping[str, str]) -> dict[str, Series]:
    """All messages by topic, from (topic, time, message)."""
    series = {name: Series(topic=name, kind=kind) for name, kind in by_name.items()}
    for name, recorded, message in messages:
        series[name].add(recorded, message)
    return series


def seconds(duration: Any) -> float:
    """A ROS duration in s."""
    return _ns(duration) / _NS


def _ns(stamp: Any) -> int:
    return int(stamp.sec) * _NS + int(stamp.nanosec)


def _joints(message: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    fields = {"position": message.position, "velocity": message.velocity, "effort": message.effort}
    return tuple(message.name), fields


def _array(message: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    return (), {"data": message.data}


def _trajectory(message: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Points one after another: time from start, positions, and velocities where every point has them."""
    points, n = message.points, len(message.joint_names)
    moving = all(len(point.velocities) == n for point in points)
    if any(len(point.positions) != n for point in points):
        raise LogError("a trajectory has points without positions; only positions are read from trajectories.")
    return tuple(message.joint_names), {
        "from_start": [seconds(point.time_from_start) for point in points],
        "positions": np.array([point.positions for point in points]).ravel(),
        "velocities": np.array([point.velocities for point in points]).ravel() if moving else [],
    }


def _controller(message: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """What the controller wanted and measured: reference and feedback, or desired and actual before Humble."""
    wanted, found = (_filled(message, names) for names in (("reference", "desired"), ("feedback", "actual")))
    return tuple(message.joint_names), {
        "wanted_position": wanted.positions,
        "wanted_effort": wanted.effort,
        "position": found.positions,
        "velocity": found.velocities,
        "effort": found.effort,
    }


def _filled(message: Any, names: Sequence[str]) -> Any:
    """The first of some points that has positions, else the first that there is."""
    points = [getattr(message, name) for name in names if hasattr(message, name)]
    return next((point for point in points if len(point.positions)), points[0])


def _imu(message: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    rate, force = message.angular_velocity, message.linear_acceleration
    # A covariance that begins with -1 says that the device does not measure this (sensor_msgs/Imu).
    return (message.header.frame_id,), {
        "angular_velocity": [] if message.angular_velocity_covariance[0] == -1 else [rate.x, rate.y, rate.z],
        "acceleration": [] if message.linear_acceleration_covariance[0] == -1 else [force.x, force.y, force.z],
    }


def _wrench(message: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    force, torque = message.wrench.force, message.wrench.torque
    return (message.header.frame_id,), {"wrench": [force.x, force.y, force.z, torque.x, torque.y, torque.z]}


_READERS: dict[str, Callable[[Any], tuple[tuple[str, ...], dict[str, Any]]]] = {
    kinds.JOINTS: _joints,
    kinds.ARRAY: _array,
    kinds.TRAJECTORY: _trajectory,
    kinds.CONTROLLER: _controller,
    kinds.IMU: _imu,
    kinds.WRENCH: _wrench,
}
