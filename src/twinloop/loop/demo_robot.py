"""The demo's trials on its virtual robot, as an evaluation that the gate reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twinloop.core.evaluation import Evaluation
from twinloop.evaluate.acting import Candidate
from twinloop.evaluate.real import SUITE
from twinloop.evaluate.run import evaluate
from twinloop.evaluate.suite import SliceSpec, SuiteSpec
from twinloop.evaluate.worlds import Slice, Suite, Worlds
from twinloop.hardware.hidden_cell import HiddenCell, hidden_cell
from twinloop.loop.transfer_study.settings import FIRST_ROBOT, PLACES, TASK, TWIN
from twinloop.policies import open_policy
from twinloop.rollout.policy_actor import PolicyActor
from twinloop.tasks import Task
from twinloop.twin import Twin, load_twin


@dataclass(frozen=True, kw_only=True)
class _CellSuite(Suite):
    """One virtual robot at the places where all policies of the transfer study are tried."""

    cell: HiddenCell

    def beginning(self, item: Slice, trials: NDArray[np.int64], *, twin: Twin, task: Task, run_seed: int) -> Worlds:  # noqa: ARG002
        """Places by the number of the trial; everything else is the robot's own."""
        params = self.cell.table(self.cell.plan(PLACES).draw(trials.tolist()))
        return Worlds(params=params, numbers=trials, run_seed=PLACES)


def robot_trials(policy: Path, episodes: int, output: Path) -> Evaluation:
    """Try a policy on the virtual robot, score it as `twinloop evaluate` does, and store that in ``output``."""
    cell, opened = hidden_cell(load_twin(TWIN), FIRST_ROBOT), open_policy(policy)
    spec = SliceSpec(name=f"robot{FIRST_ROBOT}")
    suite = _CellSuite(
        spec=SuiteSpec(name=SUITE, base="none", episodes=episodes, slices=[spec]),
        twin=cell.twin,
        slices=(Slice(name=spec.name, spec=spec, episodes=episodes, values={}),),
        cell=cell,
    )

    def make(twin: Twin, task: Task) -> PolicyActor:
        return PolicyActor(policy=opened, task=task, twin=twin, tracker=cell.tracker)

    who = Candidate(name=policy.name, hash=opened.hash, make=make)
    made = evaluate(who, cell.twin, TASK, suite, run_seed=PLACES)
    made.write(output)
    return made
