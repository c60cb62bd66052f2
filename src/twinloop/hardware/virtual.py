"""A robot without hardware: a twin with hidden parameters and effects that it lacks, behind the robot protocol.

And the log that anybody can have: a virtual robot teleoperated through some episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.records import Episode, LoggedSignal, Source
from twinloop.core.seeds import uniforms
from twinloop.core.units import UnitMap
from twinloop.hardware.arms import VirtualArms
from twinloop.hardware.hidden import HiddenParameters, draw_hidden
from twinloop.hardware.protocol import POSITION, TORQUE, NotConnectedError
from twinloop.hardware.record import drive, episodes_of
from twinloop.hardware.teleop_motion import teleop_commands
from twinloop.rollout.observing import TrackerNoise
from twinloop.tasks import DEFAULT_TWIN
from twinloop.tasks.kinematics import Chain
from twinloop.twin import Twin, load_twin


class VirtualClock:
    """The time of a virtual robot: it stands still until told to move on, and then oversleeps like any other."""

    def __init__(self, arms: Callable[[], VirtualArms]) -> None:
        self._arms = arms

    def now(self) -> float:
        """Seconds since the robot was connected; it has no time before."""
        return float(self._arms().now()[0])

    def wait_until(self, moment: float) -> None:
        """Let the robot live until ``moment`` or a little longer."""
        self._arms().wait_until(moment)


class TwinRobot:
    """What is the same in all robots that a twin is behind; see `hardware.protocol.Robot`.

    Attributes:
        name: the type of robot, as datasets call it.
        origin: the address that opens this robot again.
        source: ``sim``: what a virtual robot logs is simulated.
    """

    source: Source = "sim"

    def __init__(self, twin: Twin, origin: str) -> None:
        self._twin, self.origin, self.name = twin, origin, twin.robot.type

    @property
    def units(self) -> UnitMap:
        """See the protocol."""
        return self._twin.units

    @property
    def action_features(self) -> Mapping[str, type]:
        """See the protocol."""
        quantity = POSITION if self._twin.robot.control == "position" else TORQUE
        return {f"{joint}.{quantity}": float for joint in self.units.names}

    @property
    def is_calibrated(self) -> bool:
        """Always: somebody calibrated it by hand, as well as hands do, which is part of what is hidden."""
        return True

    def calibrate(self) -> None:
        """Nothing to do, see `is_calibrated`."""

    def configure(self) -> None:
        """Nothing to do: the servo's settings are part of what is hidden."""


class VirtualRobot(TwinRobot):
    """See `hardware.protocol.Robot`. Connecting finds the arm at rest at the twin's home, at time 0.

    Args:
        twin: the kind of robot: a built-in twin or a twin's file.
        seed: which robot of that kind, and its noise.
        session: number of the first connection; every later one counts on. The noise of a session depends on ``seed``
            and its number alone.
    """

    def __init__(self, twin: str | Path = DEFAULT_TWIN, *, seed: int = 0, session: int = 0) -> None:
        super().__init__(load_twin(twin), f"virtual:{twin}?seed={seed}")
        self._seed, self._session = seed, session
        self._hidden = draw_hidden(self._twin, seed)
        self._arms: VirtualArms | None = None

    @property
    def observation_features(self) -> Mapping[str, type]:
        """See the protocol."""
        return {f"{joint}.{POSITION}": float for joint in self.units.names}

    @property
    def is_connected(self) -> bool:
        """See the protocol."""
        return self._arms is not None

    def connect(self, calibrate: bool = True) -> None:  # noqa: ARG002  # LeRobot's signature; see `calibrate`
        """Power up. A second call without `disconnect` in between changes nothing."""
        if self._arms is None:
            self._arms = VirtualArms(self._twin, self._hidden, seed=self._seed, sessions=[self._session], nthread=1)
            self._session += 1

    def get_observation(self) -> dict[str, float]:
        """See the protocol."""
        values = self._connected().observe()[0]
        return {key: float(value) for key, value in zip(self.observation_features, values, strict=True)}

    def send_action(self, action: Mapping[str, float]) -> dict[str, float]:
        """Issue a command; it reaches the servo late.

        Raises:
            UnknownNameError: a key that is no action of this robot.
            InputError: a joint is missing or its command is not finite.
        """
        arms, keys = self._connected(), list(self.action_features)
        check_keys(action, keys, origin=self.origin)
        sent = arms.command(np.array([[action[key] for key in keys]]))[0]
        return {key: float(value) for key, value in zip(keys, sent, strict=True)}

    def disconnect(self) -> None:
        """Power down; the arm is put back to its home."""
        self._arms = None

    @property
    def clock(self) -> VirtualClock:
        """See the protocol."""
        return VirtualClock(self._connected)

    def reveal(self) -> HiddenParameters:
        """The truth, for tests and benchmarks; whoever identifies the robot must not look."""
        return self._hidden

    def _connected(self) -> VirtualArms:
        if self._arms is None:
            raise NotConnectedError(f"{self.origin} is not connected. Call connect() first.")
        return self._arms


def check_keys(action: Mapping[str, float], keys: list[str], *, origin: str) -> None:
    """Refuse an action whose keys are not exactly a robot's.

    Raises:
        UnknownNameError: a key that it does not have.
        InputError: one that is missing.
    """
    for key in action:
        if key not in keys:
            raise UnknownNameError("action", key, keys, where=origin)
    missing = [key for key in keys if key not in action]
    if missing:
        raise InputError(f"The action for {origin} lacks {', '.join(missing)}. Give every joint: {', '.join(keys)}.")


TASK = "pick and place, teleoperated"


def virtual_log(
    seed: int,
    *,
    twin: str | Path = DEFAULT_TWIN,
    episodes: int | Sequence[int] = 40,
    seconds: float = 10.0,
    hz: float | None = None,
    nthread: int = 0,
    tracker: TrackerNoise | None = None,
) -> list[Episode]:
    """Episodes of one virtual robot under human-like commands, all of them in one batch.

    The same, number by number and bit for bit, as recording `teleop_commands` with `record` in session ``i`` of
    ``VirtualRobot(twin, seed=seed)``.

    Args:
        seed: which robot, its noise, and the motions.
        twin: the kind of robot.
        episodes: how many, or their numbers.
        seconds: length of each.
        hz: commands per second; by default the twin's.
        nthread: C threads (0: every core).
        tracker: watches the tool, which the episodes then hold as the signal ``place/SITE`` of the twin's tool site.

    Raises:
        InputError: an episode too short to go anywhere, or a tracker where the twin names no tool site.
    """
    numbers = range(episodes) if isinstance(episodes, int) else episodes
    compiled = load_twin(twin)
    rate = hz or compiled.control_hz
    commands = teleop_commands(compiled, seed=seed, episodes=numbers, seconds=seconds, hz=rate)
    arms = VirtualArms(compiled, draw_hidden(compiled, seed), seed=seed, sessions=numbers, nthread=nthread)
    watched = _TrackedArms(arms)
    recording = drive(watched, iter(commands.swapaxes(0, 1)), rate)
    logged = episodes_of(recording, VirtualRobot(twin, seed=seed), numbers, task=TASK)
    return logged if tracker is None else _tracked(logged, compiled, watched.links, tracker, seed)


class _TrackedArms:
    """Arms, and where their links truly were at each reading: ``links`` ``(nsession, T, n)``."""

    def __init__(self, arms: VirtualArms) -> None:
        self._arms, self._links = arms, list[NDArray[np.float64]]()
        self.now, self.wait_until, self.command = arms.now, arms.wait_until, arms.command

    @property
    def links(self) -> NDArray[np.float64]:
        return np.stack(self._links, axis=1)

    def observe(self) -> NDArray[np.float64]:
        self._links.append(self._arms.links)
        return self._arms.observe()


def _tracked(
    logged: list[Episode], twin: Twin, links: NDArray[np.float64], tracker: TrackerNoise, seed: int
) -> list[Episode]:
    """Episodes with what a tracker saw of the tool, its noise a function of robot, episode and frame."""
    site = twin.robot.tcp
    if site is None:
        raise InputError(f"The robot of {twin.name} names no tool site for a tracker. Add `robot.tcp` to its YAML.")
    chain = Chain(twin.model, site, twin.home()[0])
    columns = [list(twin.joint_qpos).index(row) for row in chain.qpos]
    names, found = [f"tool.{axis}" for axis in "xyz"], list[Episode]()
    for episode, true in zip(logged, links, strict=True):
        chance = uniforms(seed, f"virtual/tracker/{episode.index}", np.arange(len(true)), size=3)
        seen = tracker.see(chain.pose(true[:, columns]).position, names, chance)
        signal = LoggedSignal(time=episode.time, values=seen, columns=("x", "y", "z"), unit="m")
        found.append(replace(episode, signals={**episode.signals, f"place/{site}": signal}))
    return found
