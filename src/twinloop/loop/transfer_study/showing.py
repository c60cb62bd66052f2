"""Demonstrations: a task's script drives worlds whose commands are shaken, and what it meant is what is learned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from twinloop.core.contract import ENVIRONMENT, STATE
from twinloop.core.errors import CheckFailedError
from twinloop.core.params import ParamTable
from twinloop.core.records import SimEpisode
from twinloop.core.seeds import uniforms
from twinloop.dataset.lerobot_v3 import DatasetWriter
from twinloop.dataset.spec import DatasetSpec
from twinloop.generate.readings import environment_spec
from twinloop.loop.transfer_study.settings import DEMONSTRATIONS, TASK, Recipe
from twinloop.randomize import Plan
from twinloop.rollout import BatchResult, Beginning, Observation, Observer, Tracker, run_batch
from twinloop.simulate import Controller, Simulation, open_backend
from twinloop.tasks import Task, open_task
from twinloop.twin import Twin

_BATCH = 64  # worlds at a time


@dataclass(kw_only=True)
class ShakenExpert:
    """An `Actor`: the task's script, its commands of the arm shaken by noise that lasts.

    ``meant`` and ``seen`` are of the last batch, a list of arrays by step: what the script commanded, in SI, and what a
    policy would have observed.
    """

    task: Task
    recipe: Recipe
    still: Sequence[int]
    tracker: Tracker
    meant: list[NDArray[np.float64]] = field(default_factory=list)
    seen: list[Observation] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The script and how it is shaken."""
        return f"{self.task.expert_version}, shaken by {self.recipe.shake:g} rad"

    def begin(self, worlds: Beginning) -> Controller:
        """See `rollout.Actor`."""
        script = self.task.expert(worlds.initial)
        observer = Observer(self.task.twin, self.task, worlds, tracker=self.tracker)
        self.meant, self.seen = [], []
        shake = np.zeros_like(worlds.initial.command)
        weight = np.ones(shake.shape[1])
        weight[list(self.still)] = 0.0

        def act(simulation: Simulation) -> NDArray[np.float64]:
            step = simulation.step_index
            self.seen.append(observer.look(simulation.state, step))
            command = np.array(script(simulation))
            self.meant.append(command)
            where = {"size": command.shape[1], "attempt": worlds.attempt, "step": step}
            chance = ndtri(uniforms(worlds.run_seed, "transfer/shake", worlds.numbers, **where))
            shake[...] = self.recipe.memory * shake + np.sqrt(1 - self.recipe.memory**2) * chance
            return command + self.recipe.shake * weight * shake

        return act


def show(
    twin: Twin,
    plan: Plan,
    folder: Path,
    *,
    count: int,
    recipe: Recipe,
    tracker: Tracker,
    worlds: Callable[[ParamTable], ParamTable] | None = None,
    wanted: int | None = None,
) -> int:
    """Write demonstrations as a LeRobotDataset; failures are left out.

    Args:
        twin: whose worlds they are.
        plan: what is drawn, episode by episode.
        folder: where to; an absent one.
        count: attempts.
        recipe: how the script is shaken.
        tracker: how the tracker errs.
        worlds: turns drawn parameters into those of the worlds; by default they are.
        wanted: how many successes are enough.

    Returns:
        How many were written.

    Raises:
        CheckFailedError: none succeeded.
    """
    task, kept = open_task(TASK, twin), list[SimEpisode]()
    backend = open_backend("threads", nthread=1)
    at_once = _BATCH if wanted is None else min(_BATCH, wanted)
    for first in range(0, count, at_once):
        numbers = range(first, min(first + at_once, count))
        table = plan.draw(numbers)
        params = table if worlds is None else worlds(table)
        actor = ShakenExpert(task=task, recipe=recipe, still=_gripper(twin), tracker=tracker)
        batch = run_batch(twin, task, params, run_seed=DEMONSTRATIONS, episodes=numbers, actor=actor, backend=backend)
        kept += _episodes(batch, actor)
        if wanted is not None and len(kept) >= wanted:
            kept = kept[:wanted]
            break
    if not kept:
        raise CheckFailedError(f"The script of {TASK} succeeded in none of {count} worlds of {twin.name}.")
    _write(twin, task, kept, folder)
    return len(kept)


def _gripper(twin: Twin) -> list[int]:
    hand = twin.robot.gripper
    return [] if hand is None else [list(twin.robot.joints).index(hand.joint)]


def _episodes(batch: BatchResult, actor: ShakenExpert) -> list[SimEpisode]:
    """The successes, with what was meant as their action, and without states: they are there to be learned."""
    meant = batch.units.from_si(np.stack(actor.meant, axis=1))
    seen = {key: np.stack([step[key] for step in actor.seen], axis=1) for key in (STATE, ENVIRONMENT)}
    none = np.empty((0, 0))
    return [
        replace(
            batch.episode(int(world)),
            action=meant[world],
            observation=seen[STATE][world],
            readings={ENVIRONMENT: seen[ENVIRONMENT][world]},
            commands=none,
            states=none,
        )
        for world in np.flatnonzero(batch.success)
    ]


def _write(twin: Twin, task: Task, episodes: Sequence[SimEpisode], folder: Path) -> None:
    spec = DatasetSpec(
        name=f"{twin.name} {task.name}",
        robot_type=twin.robot.type,
        fps=round(twin.control_hz),
        joints=tuple(twin.robot.joints),
        units=twin.units,
        twin_hash=twin.hash,
        block_size=max(episode.number for episode in episodes) + 1,
        readings=(environment_spec(task),),
    )
    with DatasetWriter.open(folder, spec) as writer:
        writer.commit_block(0, list(episodes), outcome={"kept": len(episodes)})
        writer.finish()
