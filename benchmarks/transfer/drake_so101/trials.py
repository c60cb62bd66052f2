"""Record logs of an SO-101 in Drake, and run trials of policies and experts on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.transfer.drake_so101.hidden import DrakeRobot, draw_robot
from benchmarks.transfer.drake_so101.simulation import DrakeBackend, DrakeSimulation
from twinloop.core.contract import STATE
from twinloop.core.records import Episode
from twinloop.rollout import BatchResult, EpisodeStart, ExpertActor, WorldObserver, run_batch
from twinloop.rollout.actor import Actor
from twinloop.rollout.policy_actor import HashedPolicy, PolicyActor
from twinloop.simulate import Controller
from twinloop.tasks import open_task
from twinloop.twin import load_twin
from twinloop.workflows.demo.virtual_robots.settings import PLACES, TASK, TWIN


@dataclass(frozen=True, kw_only=True)
class MemorylessActor:
    """Actor that runs the task's memoryless expert, which reads the joints as a policy does."""

    task: Any
    name: str = "memoryless"

    def begin(self, worlds: EpisodeStart) -> Controller:
        """Return the expert for these worlds."""
        return self.task.memoryless_expert(worlds.initial, worlds.params, informed=False)


def run_expert(seed: int, numbers: Sequence[int], *, memoryless: bool = False) -> BatchResult:
    robot = draw_robot(load_twin(TWIN), seed)
    task = open_task(TASK, robot.twin)
    return _run(robot, numbers, MemorylessActor(task=task) if memoryless else ExpertActor(task=task))


def _run(robot: DrakeRobot, numbers: Sequence[int], actor: Actor, **options) -> BatchResult:
    return run_batch(
        robot.twin,
        open_task(TASK, robot.twin),
        robot.draw_params(PLACES, numbers),
        run_seed=PLACES,
        episodes=numbers,
        actor=actor,
        backend=DrakeBackend(robot=robot, numbers=numbers, **options),
    )
