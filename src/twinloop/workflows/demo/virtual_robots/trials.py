"""Run trials of policies on a virtual robot, with the same initial conditions for all policies of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twinloop.core.evaluation import Evaluation
from twinloop.evaluate.candidates import Candidate
from twinloop.evaluate.real import SUITE
from twinloop.evaluate.run import evaluate
from twinloop.evaluate.suite import SliceSpec, SuiteSpec
from twinloop.evaluate.worlds import InitialWorlds, Suite, SuiteSlice
from twinloop.hardware.hidden import HiddenCell, make_hidden_cell
from twinloop.policies import open_policy
from twinloop.rollout import BatchResult, run_batch
from twinloop.rollout.actor import Actor
from twinloop.rollout.observing import RenderImages
from twinloop.rollout.policy_actor import PolicyActor
from twinloop.simulate import open_backend
from twinloop.tasks import Task, open_task
from twinloop.twin import Twin, load_twin
from twinloop.workflows.demo.virtual_robots.settings import FIRST_ROBOT, PLACES, TASK, TWIN


def run_trials(cell: HiddenCell, numbers: Sequence[int], actor: Actor, *, nthread: int = 1) -> BatchResult:
    """Run an actor (policy or scripted expert) on one virtual robot from numbered initial conditions.

    Args:
        cell: the virtual robot in its scene.
        numbers: numbers of the initial conditions; equal numbers give equal conditions for every actor.
        actor: the actor.
        nthread: number of worlds that are simulated at once; 0 uses every core.
    """
    task, params = open_task(TASK, cell.twin), cell.table(cell.plan(PLACES).draw(numbers))
    backend = open_backend("threads", nthread=nthread)
    return run_batch(cell.twin, task, params, run_seed=PLACES, episodes=numbers, actor=actor, backend=backend)


def policy_actor(cell: HiddenCell, policy: Path, render_images: RenderImages | None = None) -> PolicyActor:
    """Return an actor that runs a saved policy on a virtual robot, with observations from a simulated object tracker.

    Args:
        cell: the virtual robot in its scene.
        policy: folder of the policy.
        render_images: function that renders the images of an observation; None for observations without images.
    """
    return PolicyActor(
        policy=open_policy(policy),
        task=open_task(TASK, cell.twin),
        twin=cell.twin,
        tracker=cell.tracker,
        render_images=render_images,
    )


@dataclass(frozen=True, kw_only=True)
class _CellSuite(Suite):
    """Evaluation suite of one virtual robot, with the initial conditions that all policies of a comparison share."""

    cell: HiddenCell

    def create_worlds(
        self,
        item: SuiteSlice,  # noqa: ARG002
        trials: NDArray[np.int64],
        *,
        twin: Twin,  # noqa: ARG002
        task: Task,  # noqa: ARG002
        run_seed: int,  # noqa: ARG002
    ) -> InitialWorlds:
        """Return the worlds of these trials: object poses drawn by trial number, and the robot's true parameters."""
        params = self.cell.table(self.cell.plan(PLACES).draw(trials.tolist()))
        return InitialWorlds(params=params, numbers=trials, run_seed=PLACES)


def evaluate_on_robot(policy: Path, episodes: int, output: Path) -> Evaluation:
    """Evaluate a policy on the first virtual robot as `twinloop evaluate` does, and store the evaluation.

    Args:
        policy: folder of the policy.
        episodes: number of trials.
        output: folder of the evaluation.
    """
    cell, opened = make_hidden_cell(load_twin(TWIN), FIRST_ROBOT), open_policy(policy)
    spec = SliceSpec(name=f"robot{FIRST_ROBOT}")
    suite = _CellSuite(
        spec=SuiteSpec(name=SUITE, base="none", episodes=episodes, slices=[spec]),
        twin=cell.twin,
        slices=(SuiteSlice(name=spec.name, spec=spec, episodes=episodes, values={}),),
        cell=cell,
    )

    def make(twin: Twin, task: Task) -> PolicyActor:
        return PolicyActor(policy=opened, task=task, twin=twin, tracker=cell.tracker)

    who = Candidate(name=policy.name, hash=opened.hash, make=make)
    made = evaluate(who, cell.twin, TASK, suite, run_seed=PLACES)
    made.write(output)
    return made
