"""Provide the robots of the transfer study: log and identify each robot, and run policies on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.demonstrations import PerturbedExpert, write_demonstrations
from benchmarks.transfer import ur5e
from benchmarks.transfer.settings import DEMONSTRATED, DEMONSTRATIONS, PLACES, Family
from twinloop.core.files import write_json
from twinloop.core.params import ParamTable
from twinloop.core.records import Episode
from twinloop.hardware import HiddenCell, make_hidden_cell, virtual_log
from twinloop.identify import FitConfig, HoldoutSpec, identify
from twinloop.policies import open_policy
from twinloop.release.envelope import Envelope
from twinloop.rollout import Actor, BatchResult, ExpertActor, run_batch
from twinloop.rollout.policy_actor import PolicyActor
from twinloop.simulate import open_backend
from twinloop.simulate.replay_logs import ReplayOptions
from twinloop.tasks import Task, open_task
from twinloop.twin import Twin, load_twin

_SECONDS = 8.0  # of each episode of a log
_JUDGED = 10  # trials of each policy whose commands the envelope judges; it takes as long as their simulation


@dataclass(frozen=True, kw_only=True)
class Trials:
    """Results of the trials of a policy on a robot.

    Attributes:
        success: outcome of each trial, ``(ntrial,)``.
        cut: share of the judged commands that the safety envelope of the nominal twin would change.
    """

    success: NDArray[np.bool_]
    cut: float


class RobotFamily(Protocol):
    """Robots of one kind, numbered by seeds, whose true parameters the twin does not have."""

    @property
    def twin(self) -> Twin:
        """The nominal twin."""
        ...

    def open_task(self, twin: Twin, /) -> Task:
        """Return the task for the nominal twin or one of the same layout."""
        ...

    def identify(self, robot: int, episodes: int, file: Path) -> None:
        """Record a log of a robot, identify the twin from it, and write the distribution to a JSON file."""
        ...

    def run(self, robot: int, numbers: Sequence[int], policy: Path | None) -> Trials:
        """Run a policy from numbered initial conditions; None runs the task's scripted expert."""
        ...


@dataclass(frozen=True)
class HiddenRobots:
    """Virtual robots with hidden parameters and effects that the twin lacks; see `hardware.make_hidden_cell`.

    Attributes:
        twin_name: name or path of the nominal twin.
        open_task: function that opens the task on a twin.
        task: name of the task in commands; empty if it has none.
    """

    twin_name: str
    open_task: Callable[[Twin], Task]
    task: str = ""

    @property
    def twin(self) -> Twin:
        """The nominal twin."""
        return _load(self.twin_name)

    def identify(self, robot: int, episodes: int, file: Path) -> None:
        """Log teleoperation with a tracked tool, and identify the twin from it; see `RobotFamily`.

        Joint readings alone do not determine the zeros of the joints, so the tracker measures the tool as well.
        """
        tracker = make_hidden_cell(self.twin, robot).tracker
        log = virtual_log(robot, twin=self.twin_name, episodes=episodes, seconds=_SECONDS, nthread=1, tracker=tracker)
        _identify(self.twin, log, file)

    def run(self, robot: int, numbers: Sequence[int], policy: Path | None) -> Trials:
        """Run a policy or the scripted expert on a robot; see `RobotFamily`."""
        return self.run_from(make_hidden_cell(self.twin, robot).plan(PLACES).draw(numbers), robot, numbers, policy)

    def demonstrate(self, robot: int, folder: Path) -> None:
        """Record demonstrations of the scripted expert on a robot as a LeRobotDataset in a new folder."""
        cell = make_hidden_cell(self.twin, robot)
        places, task = cell.plan(DEMONSTRATED), self.open_task(cell.twin)

        def run(actor: Actor, numbers: Sequence[int]) -> BatchResult:
            params, backend = cell.table(places.draw(numbers)), open_backend("threads", nthread=1)
            return run_batch(
                cell.twin, task, params, run_seed=DEMONSTRATED, episodes=numbers, actor=actor, backend=backend
            )

        expert = PerturbedExpert(task=task, twin=cell.twin, tracker=cell.tracker)
        write_demonstrations(folder, expert, run, [range(DEMONSTRATIONS)])

    def run_from(self, start: ParamTable, robot: int, numbers: Sequence[int], policy: Path | None) -> Trials:
        """Run a policy or the scripted expert on a robot from given initial conditions.

        Args:
            start: initial conditions, one row per trial.
            robot: seed of the robot.
            numbers: numbers of the trials, which seed their random effects.
            policy: folder of the policy; None for the scripted expert.
        """
        cell = make_hidden_cell(self.twin, robot)
        task = self.open_task(cell.twin)
        actor = ExpertActor(task=task) if policy is None else _policy_actor(policy, task, cell)
        batch = run_batch(
            cell.twin,
            task,
            cell.table(start),
            run_seed=PLACES,
            episodes=numbers,
            actor=actor,
            backend=open_backend("threads", nthread=1),
        )
        return Trials(success=batch.success, cut=cut_share(self.twin, batch.observation, batch.action))


@dataclass(frozen=True)
class DrakeRobots:
    """SO-101 robots that Drake simulates; see `drake_so101`."""

    @property
    def twin(self) -> Twin:
        """The nominal twin."""
        return _load("so101_tabletop")

    def open_task(self, twin: Twin) -> Task:
        """Return the task; see `RobotFamily`."""
        return open_task("pick_and_place", twin)

    def identify(self, robot: int, episodes: int, file: Path) -> None:
        """Log teleoperation with a tracked tool, and identify the twin from it; see `RobotFamily`."""
        from benchmarks.transfer.drake_so101 import record_log

        _identify(self.twin, record_log(robot, episodes, _SECONDS), file)

    def run(self, robot: int, numbers: Sequence[int], policy: Path | None) -> Trials:
        """Run a policy or the scripted expert on a robot; see `RobotFamily`."""
        from benchmarks.transfer.drake_so101 import run_expert, run_trials

        batch = run_expert(robot, numbers) if policy is None else run_trials(robot, policy, numbers)
        return Trials(success=batch.success, cut=cut_share(self.twin, batch.observation, batch.action))


def _identify(twin: Twin, log: Sequence[Episode], file: Path) -> None:
    options = ReplayOptions(compare=("position", f"place/{twin.robot.tcp}"))
    config, backend = FitConfig(replay=options), open_backend("threads", nthread=1)
    found = identify(twin, log, backend=backend, holdout=HoldoutSpec(kind="none"), config=config)
    write_json(file, found.distribution.to_json())


@cache
def _load(name: str) -> Twin:
    return load_twin(name)


def _policy_actor(policy: Path, task: Task, cell: HiddenCell) -> Actor:
    return PolicyActor(policy=open_policy(policy), task=task, twin=cell.twin, tracker=cell.tracker)


def cut_share(twin: Twin, readings: NDArray[np.float64], commands: NDArray[np.float64]) -> float:
    """Return the share of the commands of the first trials that a robot's safety envelope would change.

    Args:
        twin: the nominal twin, from which the envelope is made.
        readings: joint readings of each trial, ``(ntrial, T, n)`` in the twin's units.
        commands: commands, of the same shape.
    """
    envelope, changed, total = Envelope(twin), 0, 0
    for seen, asked in zip(readings[:_JUDGED], commands[:_JUDGED], strict=True):
        motion = envelope.begin(seen[0])
        for reading, command in zip(seen, asked, strict=True):
            decision = envelope.judge(motion, command, reading)
            motion, total = decision.motion, total + 1
            changed += decision.kind != "passed"
    return changed / total


@cache
def open_family(name: Family) -> RobotFamily:
    """Return the robots of a family by its name."""
    families: dict[Family, RobotFamily] = {
        "hidden": HiddenRobots("so101_tabletop", partial(open_task, "pick_and_place"), "pick_and_place"),
        "drake": DrakeRobots(),
        "ur5e": HiddenRobots(str(ur5e.CELL), ur5e.Push),
    }
    return families[name]
