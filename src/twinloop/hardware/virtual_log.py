"""The log that anybody can have: a virtual robot teleoperated through some episodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from twinloop.core.records import Episode
from twinloop.hardware.arms import VirtualArms
from twinloop.hardware.hidden import draw_hidden
from twinloop.hardware.record import drive, episodes_of
from twinloop.hardware.teleop_motion import teleop_commands
from twinloop.hardware.virtual import VirtualRobot
from twinloop.twin import load_twin

TASK = "pick and place, teleoperated"


def virtual_log(
    seed: int,
    *,
    twin: str | Path = "so101_tabletop",
    episodes: int | Sequence[int] = 40,
    seconds: float = 10.0,
    hz: float | None = None,
    nthread: int = 0,
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

    Raises:
        InputError: an episode too short to go anywhere.
    """
    numbers = range(episodes) if isinstance(episodes, int) else episodes
    compiled = load_twin(twin)
    rate = hz or compiled.control_hz
    commands = teleop_commands(compiled, seed=seed, episodes=numbers, seconds=seconds, hz=rate)
    arms = VirtualArms(compiled, draw_hidden(compiled, seed), seed=seed, sessions=numbers, nthread=nthread)
    recording = drive(arms, iter(commands.swapaxes(0, 1)), rate)
    return episodes_of(recording, VirtualRobot(twin, seed=seed), numbers, task=TASK)
