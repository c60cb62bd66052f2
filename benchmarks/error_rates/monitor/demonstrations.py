"""Generate the demonstrations of the monitor study: in randomized worlds, by a scripted expert with perturbed commands.

The learned actions are the commands without noise (DART: Laskey et al., "Noise injection for robust imitation
learning", CoRL 2017).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from benchmarks.error_rates.monitor.settings import TASK, TWIN
from twinloop.core.contract import ENVIRONMENT, STATE
from twinloop.core.errors import CheckFailedError
from twinloop.core.records import SimEpisode
from twinloop.core.seeds import uniforms
from twinloop.dataset.lerobot.writer import DatasetWriter
from twinloop.dataset.spec import DatasetSpec
from twinloop.generate.readings import environment_spec
from twinloop.randomize import Plan, default_draws
from twinloop.rollout import EpisodeStart, Observation, TrackerNoise, WorldObserver, run_batch
from twinloop.simulate import Controller, Simulation, open_backend
from twinloop.tasks import Task, open_task
from twinloop.twin import Twin, load_twin

_SEED, _BATCH = 11, 64
_SHAKE, _MEMORY = 0.0175, 0.9  # rad, standard deviation of the noise; its correlation from one command to the next
_TRACKER = TrackerNoise(noise=0.001)


@dataclass(kw_only=True)
class PerturbedExpert:
    """Scripted expert of a task with correlated noise on its arm commands; implements `Actor`.

    Attributes:
        task: the task.
        twin: its twin.
        unperturbed_commands: commands of the script without noise in the last batch: one array ``(nworld, njoint)`` per
            step, in SI units.
        observations: observations that a policy would have received in the last batch, one per step.
    """

    task: Task
    twin: Twin
    unperturbed_commands: list[NDArray[np.float64]] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the expert: version of its script, and standard deviation of the noise in rad."""
        return f"{self.task.expert_version}, shaken by {_SHAKE:g} rad"

    def begin(self, worlds: EpisodeStart) -> Controller:
        """Return a controller that adds noise to the scripted expert's commands."""
        script = self.task.expert(worlds.initial)
        observer = WorldObserver(self.twin, self.task, worlds, tracker=_TRACKER)
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
            return command + _SHAKE * weight * shake

        return act


def write_demonstrations(folder: Path, count: int) -> None:
    """Write successful demonstrations in the twin's default ranges as a LeRobotDataset.

    Args:
        folder: the new folder.
        count: number of attempts.

    Raises:
        CheckFailedError: If no attempt succeeded.
    """
    twin = load_twin(TWIN)
    plan = Plan(twin=twin, run_seed=_SEED, draws=tuple(default_draws(twin)))
    kept = list[SimEpisode]()
    for first in range(0, count, _BATCH):
        kept += _collect(plan, range(first, min(first + _BATCH, count)))
    if not kept:
        raise CheckFailedError(f"The scripted expert of {TASK} succeeded in none of {count} worlds of {TWIN}.")
    task = open_task(TASK, twin)
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


def _collect(plan: Plan, numbers: range) -> list[SimEpisode]:
    """Simulate demonstrations; return the successful ones, with the unperturbed commands as their actions."""
    task = open_task(TASK, plan.twin)
    actor, backend = PerturbedExpert(task=task, twin=plan.twin), open_backend("threads", nthread=1)
    batch = run_batch(
        plan.twin, task, plan.draw(numbers), run_seed=_SEED, episodes=numbers, actor=actor, backend=backend
    )
    unperturbed = batch.units.from_si(np.stack(actor.unperturbed_commands, axis=1))
    seen = {key: np.stack([step[key] for step in actor.observations], axis=1) for key in actor.observations[0]}
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
