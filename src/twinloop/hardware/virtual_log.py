"""The log that anybody can have: a virtual robot teleoperated through some episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.records import Episode, Signal
from twinloop.core.seeds import uniforms
from twinloop.hardware.arms import VirtualArms
from twinloop.hardware.hidden import draw_hidden
from twinloop.hardware.record import drive, episodes_of
from twinloop.hardware.teleop_motion import teleop_commands
from twinloop.hardware.virtual import VirtualRobot
from twinloop.rollout.observing import Tracker
from twinloop.tasks import DEFAULT_TWIN
from twinloop.tasks.kinematics import Chain
from twinloop.twin import Twin, load_twin

TASK = "pick and place, teleoperated"


def virtual_log(
    seed: int,
    *,
    twin: str | Path = DEFAULT_TWIN,
    episodes: int | Sequence[int] = 40,
    seconds: float = 10.0,
    hz: float | None = None,
    nthread: int = 0,
    tracker: Tracker | None = None,
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
    watched = _Watched(arms)
    recording = drive(watched, iter(commands.swapaxes(0, 1)), rate)
    logged = episodes_of(recording, VirtualRobot(twin, seed=seed), numbers, task=TASK)
    return logged if tracker is None else _tracked(logged, compiled, watched.links, tracker, seed)


class _Watched:
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
    logged: list[Episode], twin: Twin, links: NDArray[np.float64], tracker: Tracker, seed: int
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
        signal = Signal(time=episode.time, values=seen, columns=("x", "y", "z"), unit="m")
        found.append(replace(episode, signals={**episode.signals, f"place/{site}": signal}))
    return found
