"""Check the robots in Drake on development seeds 0 to 9: convergence of the time step, and success of the experts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from benchmarks.transfer.drake_so101.hidden import draw_robot
from benchmarks.transfer.drake_so101.simulation import SUBSTEPS
from benchmarks.transfer.drake_so101.trials import TWIN, record_episode, run_expert
from twinloop.hardware.teleop_motion import teleop_commands
from twinloop.twin import load_twin

_FINEST = 192  # time steps per control step


def measure_convergence(seed: int, substeps: Iterable[int]) -> dict[int, tuple[float, float]]:
    """Return the differences of a log of 8 s from one with the finest time step, by time steps per control step.

    They are root mean squares over time: of the tool's position in mm, and of the reading of the joint with the largest
    difference in mrad.
    """
    twin = load_twin(TWIN)
    robot = draw_robot(twin, seed)
    robot = replace(robot, drives=replace(robot.drives, loop_jitter=0.0, command_jitter=0.0))
    commands = teleop_commands(twin, seed=seed, episodes=[0], seconds=8.0, hz=twin.control_hz)[0]

    def read(number: int) -> tuple[np.ndarray, np.ndarray]:
        episode = record_episode(robot, 0, commands, substeps=number)
        return episode.signals[f"place/{twin.robot.tcp}"].values, twin.units.to_si(episode.state)

    tool, state = read(_FINEST)
    found = {number: read(number) for number in substeps}
    return {
        number: (
            1e3 * float(np.sqrt(((one - tool) ** 2).sum(axis=1).mean())),
            1e3 * float(np.sqrt(((other - state) ** 2).mean(axis=0)).max()),
        )
        for number, (one, other) in found.items()
    }


def main() -> None:
    """Print both tables for robots 0 to 9."""
    period = 1.0 / load_twin(TWIN).control_hz
    for seed in range(3):
        for number, (tool, joint) in measure_convergence(seed, (32, SUBSTEPS, 64, 96)).items():
            step = 1e3 * period / number
            print(f"robot {seed}, step {step:.2f} ms: tool {tool:.2f} mm, worst joint {joint:.1f} mrad", flush=True)
    for seed in range(10):
        done = [run_expert(seed, range(20), memoryless=memoryless).success.sum() for memoryless in (False, True)]
        print(f"robot {seed}: scripted {done[0]} of 20, memoryless {done[1]} of 20", flush=True)


if __name__ == "__main__":
    main()
