"""Record logs of robots whose true parameters are known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.planted.chain import simulate
from benchmarks.planted.draws import EFFECTS, TWINS, draw_truth, load_robot
from benchmarks.planted.motions import KINDS, make_commands
from benchmarks.planted.quadrotor import EFFECTS as FLIGHT_EFFECTS
from benchmarks.planted.quadrotor import FLIGHTS, SECONDS, draw_quadrotor, fly, load_quadrotor
from twinloop.core.records import Episode
from twinloop.core.seeds import generator
from twinloop.twin import Twin

__all__ = ["EFFECTS", "KINDS", "ROBOTS", "TWINS", "PlantedLog", "effects_of", "make_log"]

QUADROTOR = "quadrotor"
ROBOTS = (*TWINS, QUADROTOR)
_EPISODES, _SECONDS = 12, 6.0  # of a robot with joints: our choice


@dataclass(frozen=True, kw_only=True)
class PlantedLog:
    """A log of a robot with known parameters.

    Attributes:
        twin: Twin with nominal parameters.
        episodes: The log, in the twin's units.
        planted: True values by parameter name, in SI units; only parameters of the twin.
    """

    twin: Twin
    episodes: list[Episode]
    planted: dict[str, float]


def make_log(
    robot: str,
    kind: str,
    seed: int,
    effect: str | None = None,
    episodes: int | None = None,
    seconds: float | None = None,
) -> PlantedLog:
    """Draw a robot and record a log of it; the same arguments give the same log.

    Logs of the same robot and seed have the same true values and motions, with any effect or without.

    Args:
        robot: One of `ROBOTS`.
        kind: Kind of the motion, one of `KINDS`.
        seed: Seed of true values, motion and noise.
        effect: Effect that the twin lacks, one of `effects_of` the robot; None or empty for none.
        episodes: Number of episodes. Default: 12, or 8 flights.
        seconds: Length of an episode, s. Default: 6, or 5 of a flight.
    """
    truth, motion, noise = (generator(seed, f"planted/{robot}/{name}") for name in ("truth", kind, f"{kind}/noise"))
    if robot == QUADROTOR:
        quadrotor, values = draw_quadrotor(truth, effect or None)
        flights = fly(quadrotor, kind, motion, episodes or FLIGHTS, seconds or SECONDS)
        return PlantedLog(twin=load_quadrotor(), episodes=flights, planted=values)
    twin = load_robot(robot)
    chain, values = draw_truth(robot, truth, effect or None)
    commands = make_commands(twin, kind, episodes or _EPISODES, seconds or _SECONDS, motion)
    readings = simulate(twin, chain, commands, twin.control_hz, noise)
    time = np.arange(commands.shape[1]) / twin.control_hz
    log = [
        Episode(
            index=index,
            time=time,
            action=twin.units.from_si(command),
            state=twin.units.from_si(reading),
            units=twin.units,
            task=kind,
            robot_type=twin.robot.type,
        )
        for index, (command, reading) in enumerate(zip(commands, readings, strict=True))
    ]
    return PlantedLog(twin=twin, episodes=log, planted=values)


def effects_of(robot: str) -> tuple[str, ...]:
    """Return the effects that a robot of `ROBOTS` can have and its twin lacks."""
    return FLIGHT_EFFECTS if robot == QUADROTOR else EFFECTS
