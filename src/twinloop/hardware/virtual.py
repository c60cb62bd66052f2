"""Simulate a virtual robot behind the robot protocol, and make logs of it under teleoperation.

A virtual robot is a twin with hidden parameters and with physical effects that the twin does not model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.records import Episode, LoggedSignal, Source
from twinloop.core.seeds import uniforms
from twinloop.core.units import UnitMap
from twinloop.hardware.arms import VirtualArms
from twinloop.hardware.hidden import HiddenParameters, draw_hidden
from twinloop.hardware.protocol import COMMAND_KEYS, POSITION, NotConnectedError, check_keys
from twinloop.hardware.record import drive, make_episodes
from twinloop.hardware.teleop_motion import teleop_commands
from twinloop.rollout.observing import TrackerNoise
from twinloop.tasks.kinematics import Chain
from twinloop.twin import Twin, load_twin


class VirtualClock:
    """Clock of a virtual robot: time passes only in `wait_until`, which returns a little late, like a real clock."""

    def __init__(self, arms: Callable[[], VirtualArms]) -> None:
        self._arms = arms

    def now(self) -> float:
        """Return the time since the robot was connected, in s; raise NotConnectedError before."""
        return float(self._arms().now()[0])

    def wait_until(self, moment: float) -> None:
        """Simulate the robot until the time ``moment`` in s, or a little longer."""
        self._arms().wait_until(moment)


class TwinRobot:
    """Base class of all robots that are simulated with a twin; see `hardware.protocol.Robot`.

    Attributes:
        name: the type of robot, as in datasets.
        origin: the address that opens this robot again.
        source: always ``sim``, because logs of a virtual robot are simulated.
    """

    source: Source = "sim"

    def __init__(self, twin: Twin, origin: str) -> None:
        self._twin, self.origin, self.name = twin, origin, twin.robot.type

    @property
    def units(self) -> UnitMap:
        """Unit of every joint, as in the twin's datasets."""
        return self._twin.units

    @property
    def action_features(self) -> Mapping[str, type]:
        """Keys and types of an action, in the order of ``units``."""
        return {f"{joint}.{COMMAND_KEYS[self._twin.robot.control]}": float for joint in self.units.names}

    @property
    def is_calibrated(self) -> bool:
        """Always true: the virtual robot counts as calibrated by hand. The calibration error is a hidden parameter."""
        return True

    def calibrate(self) -> None:
        """Do nothing, because a virtual robot is always calibrated; see `is_calibrated`."""

    def configure(self) -> None:
        """Do nothing, because the servo's settings are hidden parameters."""


class VirtualRobot(TwinRobot):
    """Virtual robot without a task; see `hardware.protocol.Robot`.

    After connecting, the arm is at rest at the twin's home, at time 0.

    Args:
        twin: type of robot: a built-in twin or a twin's file.
        seed: number of the individual robot, which also seeds its noise.
        session: number of the first connection; each later connection adds one. The noise of a session depends only on
            ``seed`` and its number.
    """

    def __init__(self, twin: str | Path, *, seed: int = 0, session: int = 0) -> None:
        super().__init__(load_twin(twin), f"virtual:{twin}?seed={seed}")
        self._seed, self._session = seed, session
        self._hidden = draw_hidden(self._twin, seed)
        self._arms: VirtualArms | None = None

    @property
    def observation_features(self) -> Mapping[str, type]:
        """Keys and types of an observation: the joints' positions."""
        return {f"{joint}.{POSITION}": float for joint in self.units.names}

    @property
    def is_connected(self) -> bool:
        """Whether the robot is connected."""
        return self._arms is not None

    def connect(self, calibrate: bool = True) -> None:  # noqa: ARG002  # LeRobot's signature; see `calibrate`
        """Connect the robot and start a session. If it is already connected, do nothing. ``calibrate`` is not used."""
        if self._arms is None:
            self._arms = VirtualArms(self._twin, self._hidden, seed=self._seed, sessions=[self._session], nthread=1)
            self._session += 1

    def get_observation(self) -> dict[str, float]:
        """Return the present encoder readings by key, in the units of ``units``."""
        values = self._require_arms().observe()[0]
        return {key: float(value) for key, value in zip(self.observation_features, values, strict=True)}

    def send_action(self, action: Mapping[str, float]) -> dict[str, float]:
        """Issue a command; return it clipped to the robot's limits. It reaches the servo with latency.

        Raises:
            UnknownNameError: If the robot has no such action key.
            InputError: If a joint is missing or its command is not finite.
        """
        arms, keys = self._require_arms(), list(self.action_features)
        check_keys(action, keys, origin=self.origin)
        sent = arms.command(np.array([[action[key] for key in keys]]))[0]
        return {key: float(value) for key, value in zip(keys, sent, strict=True)}

    def disconnect(self) -> None:
        """Disconnect the robot and end the session; the arm returns to its home."""
        self._arms = None

    @property
    def clock(self) -> VirtualClock:
        """Clock of the simulated time."""
        return VirtualClock(self._require_arms)

    def reveal(self) -> HiddenParameters:
        """Return the true parameters, for tests and benchmarks. Identification must not use them."""
        return self._hidden

    def _require_arms(self) -> VirtualArms:
        if self._arms is None:
            raise NotConnectedError(f"{self.origin} is not connected. Call connect() first.")
        return self._arms


TASK = "pick and place, teleoperated"


def virtual_log(
    seed: int,
    *,
    twin: str | Path,
    episodes: int | Sequence[int] = 40,
    seconds: float = 10.0,
    hz: float | None = None,
    nthread: int = 0,
    tracker: TrackerNoise | None = None,
) -> list[Episode]:
    """Simulate episodes of one virtual robot under human-like commands, all in one batch.

    Episode number i equals, bit for bit, a recording of `teleop_commands` with `record` in session i of
    ``VirtualRobot(twin, seed=seed)``.

    Args:
        seed: number of the robot; also seeds noise and motions.
        twin: type of robot: a built-in twin or a twin's file.
        episodes: number of episodes, or a list of their numbers.
        seconds: duration of each episode.
        hz: commands per second; by default the twin's.
        nthread: C threads (0: every core).
        tracker: errors of a tracker that measures the tool's position. If given, the episodes have the signal
            ``place/SITE``: the measured position x, y, z of the twin's tool site in m.

    Raises:
        InputError: If the episode is too short for a motion, or a tracker is given and the twin has no tool site.
    """
    numbers = range(episodes) if isinstance(episodes, int) else episodes
    compiled = load_twin(twin)
    rate = hz or compiled.control_hz
    commands = teleop_commands(compiled, seed=seed, episodes=numbers, seconds=seconds, hz=rate)
    arms = VirtualArms(compiled, draw_hidden(compiled, seed), seed=seed, sessions=numbers, nthread=nthread)
    watched = _TrackedArms(arms)
    recording = drive(watched, iter(commands.swapaxes(0, 1)), rate)
    logged = make_episodes(recording, VirtualRobot(twin, seed=seed), numbers, task=TASK)
    return logged if tracker is None else _add_tracking(logged, compiled, watched.link_positions, tracker, seed)


class _TrackedArms:
    """Virtual arms of several sessions that also record the true joint positions at each reading.

    ``link_positions`` ``(nsession, T, n)`` holds them for T readings of n joints.
    """

    def __init__(self, arms: VirtualArms) -> None:
        self._arms, self._links = arms, list[NDArray[np.float64]]()
        self.now, self.wait_until, self.command = arms.now, arms.wait_until, arms.command

    @property
    def link_positions(self) -> NDArray[np.float64]:
        return np.stack(self._links, axis=1)

    def observe(self) -> NDArray[np.float64]:
        self._links.append(self._arms.link_positions)
        return self._arms.observe()


def _add_tracking(
    logged: list[Episode], twin: Twin, links: NDArray[np.float64], tracker: TrackerNoise, seed: int
) -> list[Episode]:
    """Return the episodes with tracked tool positions; their noise depends on robot, episode and frame.

    Args:
        logged: the episodes.
        twin: twin of the robot.
        links: true joint positions ``(nsession, T, n)``.
        tracker: errors of the tracker.
        seed: number of the robot.
    """
    site = twin.robot.tcp
    if site is None:
        raise InputError(f"The robot of {twin.name} has no tool site to track. Add `robot.tcp` to its YAML.")
    chain = Chain(twin.model, site, twin.home()[0])
    columns = [list(twin.joint_qpos).index(row) for row in chain.qpos]
    names, found = [f"tool.{axis}" for axis in "xyz"], list[Episode]()
    for episode, true in zip(logged, links, strict=True):
        chance = uniforms(seed, f"virtual/tracker/{episode.index}", np.arange(len(true)), size=3)
        seen = tracker.add_errors(chain.pose(true[:, columns]).position, names, chance)
        signal = LoggedSignal(time=episode.time, values=seen, columns=("x", "y", "z"), unit="m")
        found.append(replace(episode, signals={**episode.signals, f"place/{site}": signal}))
    return found
