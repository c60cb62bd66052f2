"""A policy's trials on a virtual robot, at the places where all policies of the study are tried."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from twinloop.hardware.hidden_cell import HiddenCell
from twinloop.loop.transfer_study.settings import PLACES, TASK
from twinloop.policies import open_policy
from twinloop.rollout import BatchResult, run_batch
from twinloop.rollout.actor import Actor
from twinloop.rollout.observing import Photograph
from twinloop.rollout.policy_actor import PolicyActor
from twinloop.simulate import open_backend
from twinloop.tasks import open_task


def tried(cell: HiddenCell, numbers: Sequence[int], actor: Actor, *, nthread: int = 1) -> BatchResult:
    """What an actor does at the places of these numbers on one virtual robot; ``nthread`` worlds at once, 0 for all."""
    task, params = open_task(TASK, cell.twin), cell.table(cell.plan(PLACES).draw(numbers))
    backend = open_backend("threads", nthread=nthread)
    return run_batch(cell.twin, task, params, run_seed=PLACES, episodes=numbers, actor=actor, backend=backend)


def acting(cell: HiddenCell, policy: Path, photograph: Photograph | None = None) -> PolicyActor:
    """A saved policy that sees what the tracker of a virtual robot sees, and pictures where it is given them."""
    return PolicyActor(
        policy=open_policy(policy),
        task=open_task(TASK, cell.twin),
        twin=cell.twin,
        tracker=cell.tracker,
        photograph=photograph,
    )
