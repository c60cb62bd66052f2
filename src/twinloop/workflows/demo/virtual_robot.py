"""Run policies on the demo's virtual robot, whose true parameters the twin does not have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twinloop.core.evaluation import Evaluation
from twinloop.core.files import write_json
from twinloop.evaluate.candidates import Candidate
from twinloop.evaluate.real import SUITE
from twinloop.evaluate.run import evaluate
from twinloop.evaluate.suite import SliceSpec, SuiteSpec
from twinloop.evaluate.worlds import InitialWorlds, Suite, SuiteSlice
from twinloop.hardware.hidden import HiddenCell, make_hidden_cell
from twinloop.hardware.virtual import virtual_log
from twinloop.identify import FitConfig, HoldoutSpec, identify
from twinloop.policies import open_policy
from twinloop.render import contact_sheet
from twinloop.rollout import run_batch
from twinloop.rollout.policy_actor import PolicyActor
from twinloop.rollout.world_camera import WorldCamera
from twinloop.simulate import open_backend
from twinloop.simulate.replay_logs import ReplayOptions
from twinloop.tasks import Task, open_task
from twinloop.twin import Twin, load_twin

PLACES = 77  # run seed of the initial conditions of the trials
_LOG_SECONDS = 8.0  # of each episode
_ITERATIONS = 8  # of the fit: later ones change the estimates by less than a tenth of their error
_CAMERA, _MOMENTS, _SIZE = "front", 6, (180, 240)
_Trial = tuple[NDArray[np.uint8], NDArray[np.float64], bool]  # images (n, h, w, 3), their times in s (n,), and success


@dataclass(frozen=True)
class VirtualRobot:
    """A virtual robot in its cell, drawn by a seed; see `hardware.make_hidden_cell`.

    Attributes:
        twin_name: name of the nominal twin.
        task: name of the task.
        seed: seed of the hidden parameters.
    """

    twin_name: str
    task: str
    seed: int

    @cached_property
    def cell(self) -> HiddenCell:
        """The robot with its true parameters."""
        return make_hidden_cell(load_twin(self.twin_name), self.seed)

    def address(self, trial: int) -> str:
        """Return the address with which `twinloop run` opens the robot at the initial condition of a trial."""
        return f"virtual:{self.twin_name}?seed={self.seed}&task={self.task}&run_seed={PLACES}&session={trial}"

    def identify(self, episodes: int, run: Path) -> None:
        """Record a log of the robot, and identify the twin from it.

        A tracker measures the tool in the log: joint readings alone do not determine the zeros of the joints.

        Args:
            episodes: number of episodes of the log.
            run: folder for the identified distribution, as of an identification run.
        """
        tracker, twin = self.cell.tracker, load_twin(self.twin_name)
        log = virtual_log(self.seed, twin=self.twin_name, episodes=episodes, seconds=_LOG_SECONDS, tracker=tracker)
        replay = ReplayOptions(compare=("position", f"place/{twin.robot.tcp}"))
        config = FitConfig(iterations=_ITERATIONS, polish=0, replay=replay)
        found = identify(twin, log, backend=open_backend(), holdout=HoldoutSpec(kind="none"), config=config)
        write_json(run / "result.json", {"distribution": found.distribution.to_json()})

    def evaluate(self, policy: Path, trials: int, output: Path) -> Evaluation:
        """Evaluate a policy on the robot as `twinloop evaluate` does, and store the evaluation.

        Equal numbers of trials have equal initial conditions.

        Args:
            policy: folder of the policy.
            trials: number of trials.
            output: folder of the evaluation.
        """
        opened, spec = open_policy(policy), SliceSpec(name=f"robot{self.seed}")
        suite = _CellSuite(
            spec=SuiteSpec(name=SUITE, base="none", episodes=trials, slices=[spec]),
            twin=self.cell.twin,
            slices=(SuiteSlice(name=spec.name, spec=spec, episodes=trials, values={}),),
            limited_by=load_twin(self.twin_name),
            cell=self.cell,
        )

        def make(twin: Twin, task: Task) -> PolicyActor:
            return PolicyActor(policy=opened, task=task, twin=twin, tracker=self.cell.tracker)

        who = Candidate(name=policy.name, hash=opened.hash, make=make)
        made = evaluate(who, self.cell.twin, self.task, suite, run_seed=PLACES)
        made.write(output)
        return made

    def render_trials(self, rows: list[tuple[str, int, Path]]) -> NDArray[np.uint8]:
        """Render trials of policies at six moments each; return one image ``(h, w, 3)`` with a row per trial.

        Args:
            rows: label, number of the trial, and folder of the policy of each row.
        """
        rendered = dict[tuple[Path, int], _Trial]()
        for folder in dict.fromkeys(folder for _, _, folder in rows):
            numbers = list(dict.fromkeys(number for _, number, used in rows if used == folder))
            rendered |= {(folder, number): trial for number, trial in self._render(numbers, folder)}
        sheet, labels = list[NDArray[np.uint8]](), list[str]()
        for label, number, folder in rows:
            images, times, success = rendered[folder, number]
            sheet += list(images)
            labels += [f"{label}, {time:.1f} s" for time in times]
            labels[-1] = f"{label}: {'success' if success else 'failure'}"
        return contact_sheet(sheet, labels, columns=_MOMENTS)

    def _render(self, numbers: list[int], folder: Path) -> Iterator[tuple[int, _Trial]]:
        cell = self.cell
        task, params = open_task(self.task, cell.twin), cell.table(cell.plan(PLACES).draw(numbers))
        actor = PolicyActor(policy=open_policy(folder), task=task, twin=cell.twin, tracker=cell.tracker)
        batch = run_batch(cell.twin, task, params, run_seed=PLACES, episodes=numbers, actor=actor)
        photographer = WorldCamera(cell.twin, [_CAMERA], height=_SIZE[0], width=_SIZE[1])
        try:
            for row, number in enumerate(numbers):
                states = batch.trajectories.states[row]
                at = np.linspace(0, len(states) - 1, _MOMENTS).round().astype(int)
                images = photographer.take_images(states[at], batch.params.take([row] * _MOMENTS))
                yield number, (images[_CAMERA], at / batch.twin.control_hz, bool(batch.success[row]))
        finally:
            photographer.close()


@dataclass(frozen=True, kw_only=True)
class _CellSuite(Suite):
    """Evaluation suite of one virtual robot, with the same initial conditions for all policies."""

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
