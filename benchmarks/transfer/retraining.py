"""Measure what retraining from one failure gives on the robot: near the failure, and elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.studies import StudyTable
from benchmarks.transfer.means import average_over_robots
from benchmarks.transfer.settings import PLACES
from twinloop.core.documents import read_json
from twinloop.core.files import write_json
from twinloop.core.params import ParamTable
from twinloop.core.seeds import generator
from twinloop.generate.config import resolve_config
from twinloop.hardware import make_hidden_cell
from twinloop.scenario.target_box import WIDTH
from twinloop.twin import Twin
from twinloop.workflows.deploy.requests import RunRequest
from twinloop.workflows.deploy.run import run_policy
from twinloop.workflows.run.taught_worlds import write_worlds
from twinloop.workflows.scenario.failure import run_from_failure
from twinloop.workflows.scenario.requests import FromFailureRequest, RetrainRequest
from twinloop.workflows.scenario.retrain import run_retrain

NEAR = 30  # trials near a failure
_QUIET = Console(quiet=True)


@dataclass(frozen=True, kw_only=True)
class Retraining:
    """Success on one robot before and after a policy was retrained from one of its failures there.

    Attributes:
        robot: seed of the robot.
        trial: number of the trial that failed.
        near: success rates before and after, from initial conditions near those of the failure.
        elsewhere: success rates before and after, from the other initial conditions of the study.
    """

    robot: int
    trial: int
    near: tuple[float, float]
    elsewhere: tuple[float, float]


def retrain_on_robot(
    twin_name: str, task: str, robot: int, trials: Sequence[int], folder: Path, *, policy: Path, identified: Path
) -> int:
    """Run failed trials again on a virtual robot, reconstruct the first that fails, and retrain the policy from it.

    Uses the commands of a user: `twinloop run`, `scenario from-failure` and `scenario loop`. The new policy is in
    ``FOLDER/loop/policy``.

    Args:
        twin_name: name of the nominal twin.
        task: name of the task.
        robot: seed of the robot.
        trials: numbers of the failed trials.
        folder: folder for all files.
        policy: folder of the policy, taught in the twin's own ranges.
        identified: file of the robot's distribution.

    Returns:
        The number of the trial; -1 if no trial failed.
    """
    before, run, scenarios = folder / "before", folder / "identified", folder / "scenarios"
    shutil.copytree(policy, before)
    worlds = {"scene": {"twin": twin_name, "task": task}, "randomization": "default"}
    write_worlds(before, resolve_config(worlds, where="the study", folder=folder, episodes=1))
    write_json(run / "result.json", {"distribution": read_json(identified)})
    for trial in trials:
        address = f"virtual:{twin_name}?seed={robot}&task={task}&run_seed={PLACES}&session={trial}"
        output = folder / f"run-{trial}"
        ran, _ = run_policy(RunRequest(robot=address, policy=str(before), output=output), console=_QUIET)
        if ran["successes"]:
            continue
        failure = FromFailureRequest(
            episode=f"{output}:0",
            name="failure",
            policy=str(before),
            twin=twin_name,
            task=task,
            identified=run / "result.json",
            force=True,
            scenarios=scenarios,
        )
        run_from_failure(failure, _QUIET)
        request = RetrainRequest(
            output=folder / "loop", scenarios=scenarios, name="failure", policy=str(before), randomize_from=run
        )
        run_retrain(request, _QUIET)
        return trial
    return -1


def draw_near(twin: Twin, robot: int, trial: int, count: int) -> ParamTable:
    """Draw initial conditions near those of a trial on a virtual robot, in a box as `scenario loop` trains in.

    Args:
        twin: the nominal twin.
        robot: seed of the robot.
        trial: number of the trial.
        count: number of initial conditions.
    """
    plan = make_hidden_cell(twin, robot).plan(PLACES)
    table = plan.draw([trial]).take([0] * count)
    values, random = table.values.copy(), generator(PLACES, "near", trial)
    for draw in plan.draws:
        for name in draw.names:
            param = twin.params[name]
            if param.default_range is not None:
                half = WIDTH * float(np.ptp(param.absolute(param.default_range, param.op)))
                column = table.names.index(name)
                moved = values[:, column] + random.uniform(-half, half, count)
                values[:, column] = np.clip(moved, param.low, param.high)
    return replace(table, values=values)


def retraining_table(made: Sequence[Retraining]) -> StudyTable:
    """Tabulate success before and after, by robot, and the mean differences with intervals over robots."""
    rows = [
        (f"{one.robot}, trial {one.trial}", *(f"{100 * rate:.0f}" for rate in (*one.near, *one.elsewhere)))
        for one in made
    ]
    near, elsewhere = (_gain(np.array([getattr(one, part) for one in made])) for part in ("near", "elsewhere"))
    note = (
        f"One failure on each robot on which the policy of the hand-written ranges failed: {len(made)} robots. Success "
        f"in %; near: {NEAR} trials in a box of an eighth of each range to either side. Mean gain near the failures "
        f"{near}, elsewhere {elsewhere} points, with 95 % intervals (Student's over robots)."
    )
    head = ("robot and failure", "near, before", "near, after", "elsewhere, before", "elsewhere, after")
    return StudyTable(title="Retraining from one failure on the robot", head=head, rows=tuple(rows), note=note)


def _gain(rates: NDArray[np.float64]) -> str:
    found = average_over_robots(rates[:, 1:] - rates[:, :1])
    low, high = found.interval
    return f"{100 * found.mean:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
