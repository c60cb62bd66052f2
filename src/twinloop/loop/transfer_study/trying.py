"""A policy's trials on a virtual robot, at the places where all policies of the study are tried."""

from __future__ import annotations

from collections.abc import Sequence

from twinloop.hardware.hidden_cell import HiddenCell
from twinloop.loop.transfer_study.settings import PLACES, TASK
from twinloop.rollout import BatchResult, run_batch
from twinloop.rollout.actor import Actor
from twinloop.simulate import open_backend
from twinloop.tasks import open_task


def tried(cell: HiddenCell, numbers: Sequence[int], actor: Actor, *, nthread: int = 1) -> BatchResult:
    """What an actor does at the places of these numbers on one virtual robot; ``nthread`` worlds at once, 0 for all."""
    task, params = open_task(TASK, cell.twin), cell.table(cell.plan(PLACES).draw(numbers))
    backend = open_backend("threads", nthread=nthread)
    return run_batch(cell.twin, task, params, run_seed=PLACES, episodes=numbers, actor=actor, backend=backend)
