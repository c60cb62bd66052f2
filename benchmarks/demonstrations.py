"""Record demonstrations of a scripted expert as a LeRobotDataset, optionally with noise on its commands.

The learned actions are the commands without noise (DART: Laskey et al., "Noise injection for robust imitation
learning", CoRL 2017).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from twinloop.core.contract import ENVIRONMENT, STATE
from twinloop.core.errors import CheckFailedError
from twinloop.core.records import SimEpisode
from twinloop.core.seeds import uniforms
from twinloop.dataset.lerobot.writer import DatasetWriter
from twinloop.dataset.spec import DatasetSpec
from twinloop.generate.readings import environment_spec
from twinloop.rollout import Actor, BatchResult, EpisodeStart, Observation, TrackerNoise, WorldObserver
from twinloop.simulate import Controller, Simulation
from twinloop.tasks import Task
from twinloop.twin import Twin

_MEMORY = 0.9  # correlation of the noise from one command to the next


@dataclass(kw_only=True)
class PerturbedExpert:
    """Scripted expert of a task with correlated noise on its arm commands; implements `Actor`.

    Attributes:
        task: the task.
        twin: its twin.
        tracker: errors of the tracked positions.
        shake: standard deviation of the noise in rad.
        unperturbed_commands: commands of the script without noise in the last batch: one array ``(nworld, njoint)`` per
            step, in SI units.
        observations: observations that a policy would have received in the last batch, one per step.
    """

    task: Task
    twin: Twin
    tracker: TrackerNoise
    shake: float = 0.0
    unperturbed_commands: list[NDArray[np.float64]] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the expert: version of its script, and standard deviation of the noise in rad."""
        return f"{self.task.expert_version}, shaken by {self.shake:g} rad"

    def begin(self, worlds: EpisodeStart) -> Controller:
        """Return a controller that adds noise to the scripted expert's commands."""
        script = self.task.expert(worlds.initial)
        observer = WorldObserver(self.twin, self.task, worlds, tracker=self.tracker)
        self.unperturbed_commands, self.observations = [], []
        shake = np.zeros_like(worlds.initial.command)
        hand = self.twin.robot.gripper
        weight = np.array([float(hand is None or joint != hand.joint) for joint in self.twin.robot.joints])

        def act(simulation: Simulation) -> NDArray[np.float64]:
            step = simulation.step_index
            self.observations.append(observer.observe_worlds(simulation.state, step))
            command = np.array(script(simulation))
            self.unperturbed_commands.append(command)
            where = {"size": command.shape[1], "attempt": worlds.attempt, "step": step}
            chance = ndtri(uniforms(worlds.run_seed, "transfer/shake", worlds.numbers, **where))
            shake[...] = _MEMORY * shake + np.sqrt(1 - _MEMORY**2) * chance
            return command + self.shake * weight * shake

        return act


def write_demonstrations(
    folder: Path, expert: PerturbedExpert, run: Callable[[Actor, Sequence[int]], BatchResult], batches: Sequence[range]
) -> None:
    """Write successful demonstrations as a LeRobotDataset.

    Args:
        folder: the new folder.
        expert: the expert.
        run: function that simulates numbered episodes in which an actor acts.
        batches: numbers of the attempts that are simulated together.

    Raises:
        CheckFailedError: If no attempt succeeded.
    """
    twin, task = expert.twin, expert.task
    kept = [episode for numbers in batches for episode in _keep_successes(expert, run(expert, numbers))]
    if not kept:
        raise CheckFailedError(f"The scripted expert of {task.name} succeeded in no attempt on {twin.name}.")
    spec = DatasetSpec(
        name=f"{twin.name} {task.name}",
        robot_type=twin.robot.type,
        fps=round(twin.control_hz),
        joints=tuple(twin.robot.joints),
        units=twin.units,
        cameras=(),
        twin_hash=twin.hash,
        block_size=max(one.number for one in kept) + 1,
        readings=(environment_spec(task),),
    )
    with DatasetWriter.open(folder, spec) as writer:
        writer.commit_block(0, kept, outcome={"kept": len(kept)})
        writer.finish()


def _keep_successes(expert: PerturbedExpert, batch: BatchResult) -> list[SimEpisode]:
    """Return the successful episodes of a batch, with the unperturbed commands as their actions."""
    unperturbed = batch.units.from_si(np.stack(expert.unperturbed_commands, axis=1))
    seen = {key: np.stack([step[key] for step in expert.observations], axis=1) for key in expert.observations[0]}
    none = np.empty((0, 0))
    return [
        replace(
            batch.episode(int(world)),
            action=unperturbed[world],
            observation=seen[STATE][world],
            readings={ENVIRONMENT: seen[ENVIRONMENT][world]},
            commands=none,
            states=none,
        )
        for world in np.flatnonzero(batch.success)
    ]
