"""Generate commands like those of a person who teleoperates an arm with a leader arm.

An episode repeats these motions: reach, adjust, pause, grasp or release, pause. At the end the arm returns home. Each
motion is minimum-jerk (Flash & Hogan 1985) and straight in joint space. Statistics follow the commands of the 40
episodes of the SO-101 log so101_pick_place_tape: about 10 s long; lift and elbow faster than 115 deg/s in a tenth of
all frames and up to 200 deg/s; all joints still (below 3 deg/s) in 20 to 30 % of the frames, in about six pauses per
episode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.seeds import generator
from twinloop.hardware.limits import ClearanceCheck
from twinloop.sensors.servo import STS3215_RESOLUTION
from twinloop.twin import Twin

# Peak speed of the fastest joint in a move, rad/s (60 to 190 deg/s), by the log above.
_PEAK_SPEED = (1.0, 3.3)
_MIN_JERK_PEAK = 1.875  # peak over mean speed of a minimum-jerk move: the derivative 30 s² (1 − s)² at s = ½
# How far from home a reach goes: up to a part of each joint's half range, and to so many rad (the log's arm works
# within about 70 deg of the middle of each joint's travel); an adjustment in rad, a tenth of the half range at most.
_REACH, _FURTHEST, _ADJUST = 0.9, 1.4, 0.08
_PAUSE, _LEAD_IN, _GRASP = (0.05, 0.4), (0.2, 0.7), (0.25, 0.5)  # seconds
_SHORTEST = 0.25  # seconds of the shortest move
# Robots that take torques or velocities: part of the range of commands, and seconds per change.
_DIRECT = {"torque": (0.1, (0.2, 1.0)), "velocity": (0.8, (0.2, 1.5))}
_PATH_POINTS, _TRIES = 10, 60


def teleop_commands(
    twin: Twin, *, seed: int, episodes: Sequence[int], seconds: float = 10.0, hz: float | None = None
) -> NDArray[np.float64]:
    """Return commands of a teleoperated pick-and-place, ``(nepisode, nstep, n)`` for n joints.

    They are in the units of ``twin.units``, start and end at the twin's home, avoid table and objects, and have the
    resolution of a leader arm's encoder. A twin that takes velocities or torques gets smoothly changing ones. Episode
    ``i`` depends only on ``(seed, i)``.

    Args:
        twin: twin of the robot.
        seed: run seed.
        episodes: episode numbers.
        seconds: duration, at least 3.
        hz: commands per second; by default the twin's.

    Raises:
        InputError: If the duration is too short for a motion.
    """
    if seconds < 3.0:
        raise InputError(f"{seconds:g} s are too short for reaching out and coming home. Give at least 3 s.")
    time = np.arange(round(seconds * (hz or twin.control_hz))) / (hz or twin.control_hz)
    if twin.robot.control != "position":
        directly = [_draw_commands(twin, generator(seed, "virtual/teleop", i), time) for i in episodes]
        return twin.command_units.from_si(np.stack(directly))
    space = _FreeSpace(twin)
    motions = [_make_motion(space, generator(seed, "virtual/teleop", i), time) for i in episodes]
    return twin.units.from_si(np.stack(motions))


def interpolate_minimum_jerk(
    knots: Sequence[float], poses: Sequence[NDArray[np.float64]], time: NDArray[np.float64]
) -> NDArray:
    """Return positions ``(T, n)`` on minimum-jerk paths from pose to pose, with a stop at each pose.

    Args:
        knots: time of each pose in s, increasing.
        poses: positions ``(n,)`` of the n joints, one per knot.
        time: times ``(T,)`` of the returned positions in s.
    """
    moments, points = np.asarray(knots), np.asarray(poses)
    segment = np.clip(np.searchsorted(moments, time, side="right") - 1, 0, len(moments) - 2)
    s = np.clip((time - moments[segment]) / (moments[segment + 1] - moments[segment]), 0.0, 1.0)[:, None]
    blend = s**3 * (10.0 - 15.0 * s + 6.0 * s**2)
    return points[segment] + blend * (points[segment + 1] - points[segment])


def _make_motion(space: _FreeSpace, random: np.random.Generator, time: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return joint commands ``(T, n)`` of one episode in rad or m, rounded to the leader arm's encoder resolution."""
    home, end = space.home, time[-1] - random.uniform(*_LEAD_IN)
    knots, poses = [0.0, random.uniform(*_LEAD_IN)], [home, home]
    for pose, least in _draw_stages(space, random):
        arrival = knots[-1] + max(least, _draw_duration(space, poses[-1], pose, random))
        if arrival + max(_SHORTEST, _shortest_duration(space, pose, home)) > end:
            break
        knots.append(arrival)
        poses.append(pose)
    knots += [max(end, knots[-1] + _SHORTEST), max(end, knots[-1] + _SHORTEST) + 1.0]
    poses += [home, home]
    commands = interpolate_minimum_jerk(knots, poses, time)
    counts = np.round(commands / STS3215_RESOLUTION) * STS3215_RESOLUTION
    return np.where(space.hinge, counts, commands)


def _draw_stages(space: _FreeSpace, random: np.random.Generator) -> Iterator[tuple[NDArray[np.float64], float]]:
    """Yield an endless series of random poses, each with the minimum duration of the motion to it, in s.

    The motions are: reach, adjust, pause, grasp or release, pause.
    """
    pose, opened = space.home, True
    while True:
        pose = space.draw_reachable_pose(pose, np.minimum(_REACH * space.half, _FURTHEST), random)
        yield pose, _SHORTEST
        pose = space.draw_reachable_pose(pose, np.minimum(_ADJUST, 0.1 * space.half), random, around=pose)
        yield pose, 2 * _SHORTEST
        yield pose, random.uniform(*_PAUSE)
        opened = not opened
        pose = space.draw_grip(pose, random, opened=opened)
        yield pose, random.uniform(*_GRASP)
        yield pose, random.uniform(*_PAUSE)


def _shortest_duration(space: _FreeSpace, start: NDArray[np.float64], goal: NDArray[np.float64]) -> float:
    return _MIN_JERK_PEAK * float(np.abs(goal - start)[space.arm].max()) / _PEAK_SPEED[1]


def _draw_duration(
    space: _FreeSpace, start: NDArray[np.float64], goal: NDArray[np.float64], random: np.random.Generator
) -> float:
    return _shortest_duration(space, start, goal) * _PEAK_SPEED[1] / random.uniform(*_PEAK_SPEED)


def _draw_commands(twin: Twin, random: np.random.Generator, time: NDArray[np.float64]) -> NDArray[np.float64]:
    low, high = twin.find_command_ranges()
    reach, pause = _DIRECT[twin.robot.control]
    knots, poses = [0.0], [np.zeros(twin.model.nu)]
    while knots[-1] < time[-1]:
        knots.append(knots[-1] + random.uniform(*pause))
        poses.append(reach * random.uniform(low, high))
    return interpolate_minimum_jerk(knots, poses, time)


class _FreeSpace:
    """Random poses ``(n,)`` of the robot's n joints that the arm reaches without collisions.

    The paths from the previous pose to the random pose and from there to home are straight in joint space.
    """

    def __init__(self, twin: Twin) -> None:
        self._clearance = ClearanceCheck(twin)
        self.home = twin.home()[0][twin.joint_qpos]
        low, high = twin.joint_ranges.T
        self.half = (high - low) / 2
        self._low, self._high = low + 0.05 * self.half, high - 0.05 * self.half
        joints = [twin.model.joint(name) for name in twin.robot.joints]
        self.hinge = np.array([joint.type[0] == mujoco.mjtJoint.mjJNT_HINGE for joint in joints])
        self._grip = twin.robot.gripper
        self.arm = np.array([self._grip is None or name != self._grip.joint for name in twin.robot.joints])

    def draw_reachable_pose(
        self,
        start: NDArray[np.float64],
        distance: NDArray[np.float64],
        random: np.random.Generator,
        *,
        around: NDArray[np.float64] | None = None,
    ) -> NDArray[np.float64]:
        """Return a random pose near ``around``, with free paths from ``start`` to it and from it to home.

        A pose is the positions of the n joints, ``(n,)`` in rad or m. A gripper keeps its position from ``start``. If
        no such pose is found, return ``start``.

        Args:
            start: pose before the motion.
            distance: largest distance of each joint from ``around``, ``(n,)`` in rad or m.
            random: random generator.
            around: centre of the poses; by default home.
        """
        centre = self.home if around is None else around
        for attempt in range(_TRIES):
            drawn = np.clip(centre + distance * random.uniform(-1.0, 1.0, len(centre)), self._low, self._high)
            goal = np.where(self.arm, start + (drawn - start) * (1.0 - (attempt / _TRIES) ** 4), start)
            if self._is_free(start, goal) and self._is_free(goal, self.home):
                return goal
        return start

    def draw_grip(self, pose: NDArray[np.float64], random: np.random.Generator, *, opened: bool) -> NDArray[np.float64]:
        """Return the pose with a random opening of the gripper: 80 to 100 % if ``opened`` is true, else 10 to 35 %."""
        if self._grip is None:
            return pose
        part = random.uniform(0.8, 1.0) if opened else random.uniform(0.1, 0.35)
        return np.where(self.arm, pose, self._grip.closed + part * (self._grip.open - self._grip.closed))

    def _is_free(self, start: NDArray[np.float64], goal: NDArray[np.float64]) -> bool:
        parts = np.linspace(1.0, 0.0, _PATH_POINTS)  # check the goal first, which is blocked most often
        poses = (np.where(self.arm, start + part * (goal - start), self.home) for part in parts)
        return all(self._clearance.is_free(pose) for pose in poses)
