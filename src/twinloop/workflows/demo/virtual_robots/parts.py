"""Make the parts of a study: logs, demonstrations, policies and trials.

Each part is made once, in a folder of its name, so that an interrupted study can be continued.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from twinloop.core.documents import read_json
from twinloop.core.files import write_json
from twinloop.hardware import HiddenCell, make_hidden_cell
from twinloop.rollout import BatchResult, ExpertActor
from twinloop.rollout.world_camera import WorldCamera
from twinloop.tasks import open_task
from twinloop.train import SourceConfig, TrainConfig, train
from twinloop.twin import Twin, load_twin
from twinloop.workflows.demo.virtual_robots.demonstrations import (
    DemonstrationWorlds,
    log_and_identify,
    training_worlds,
    write_demonstrations,
)
from twinloop.workflows.demo.virtual_robots.settings import (
    CAMERA,
    NUMBERS,
    TASK,
    TWIN,
    TransferCondition,
    TransferSettings,
)
from twinloop.workflows.demo.virtual_robots.trials import policy_actor, run_trials

_DONE = "seconds.json"  # in the folder of a complete part: its duration
_ATTEMPTS = 3  # per requested demonstration on a robot; scripts succeed in most


@dataclass(frozen=True, kw_only=True)
class StudyPart:
    """One part of a study: a step whose files are in one folder.

    Attributes:
        kind: ``log`` (log of a robot and identification from it), ``demos`` (demonstrations), ``policy`` (training),
            ``trials`` (trials of a policy on a robot), or ``script`` (trials of the scripted expert).
        folder: folder of the study.
        settings: settings of the study.
        robot: seed of the virtual robot; -1 for a part that all robots share.
        seed: seed of the training run, which is also its number.
        condition: number of the training condition; 0 for none.
        worlds: kind of worlds of demonstrations, see `TransferCondition.worlds`, or ``real`` for the virtual robot.
    """

    kind: str
    folder: str
    settings: TransferSettings
    robot: int = -1
    seed: int = 0
    condition: int = 0
    worlds: str = ""

    @property
    def path(self) -> Path:
        """Folder of the part."""
        return Path(self.folder) / self.kind / self._name

    @property
    def done(self) -> bool:
        """True if the part is complete."""
        return (self.path / _DONE).is_file()

    @property
    def _name(self) -> str:
        robot = f"robot{self.robot}" if self.robot >= 0 else "any"
        names = {
            "log": robot,
            "script": robot,
            "demos": f"{robot}-{self.worlds}",
            "policy": f"{robot}-{self._condition}-seed{self.seed}",
            "trials": f"robot{self.robot}-{self._condition}-seed{self.seed}",
        }
        return names[self.kind]

    @property
    def _condition(self) -> str:
        return NUMBERS[self.condition].name if self.condition else ""


def make(part: StudyPart) -> dict[str, float]:
    """Make a part unless it is complete; return its duration in s of real time (``wall_s``) and ``processor_s``.

    An incomplete part of an interrupted study is deleted first.
    """
    if part.done:
        return read_json(part.path / _DONE)
    shutil.rmtree(part.path, ignore_errors=True)
    part.path.parent.mkdir(parents=True, exist_ok=True)
    wall, processor = time.perf_counter(), time.process_time()
    _MAKERS[part.kind](part)
    took = {"wall_s": time.perf_counter() - wall, "processor_s": time.process_time() - processor}
    part.path.mkdir(parents=True, exist_ok=True)
    write_json(part.path / _DONE, took)
    return took


@cache
def _twin() -> Twin:
    return load_twin(TWIN)


@cache
def _cell(robot: int) -> HiddenCell:
    return make_hidden_cell(_twin(), robot)


def _log(part: StudyPart) -> None:
    part.path.mkdir(parents=True)
    log_and_identify(_twin(), part.robot, part.settings.log, part.path / "distribution.json")


def _demos(part: StudyPart) -> None:
    settings = part.settings
    how = {"recipe": settings.recipe, "images": settings.images}
    if part.worlds == "real":
        cell = _cell(part.robot)
        worlds = DemonstrationWorlds(
            twin=cell.twin, plan=cell.plan(part.robot), tracker=cell.tracker, transform=cell.table
        )
        write_demonstrations(worlds, part.path, count=_ATTEMPTS * settings.real, successes=settings.real, **how)
        return
    log = _related_part(part, "log").path / "distribution.json"
    write_demonstrations(
        training_worlds(part.worlds, _twin(), settings.recipe, log), part.path, count=settings.demos, **how
    )


def _policy(part: StudyPart) -> None:
    settings, condition = part.settings, NUMBERS[part.condition]
    config = TrainConfig(
        policy=settings.recipe.policy,
        settings=settings.recipe.settings,
        sources=_sources(part, condition),
        inputs=("state", CAMERA[0]) if settings.images else None,
        steps=settings.steps,
        batch=settings.recipe.batch,
        lr=settings.recipe.lr,
        seed=part.seed,
        threads=1,
        holdout=0.0,
        evaluations=1,
    )
    train(config, part.path)


def _sources(part: StudyPart, condition: TransferCondition) -> tuple[SourceConfig, ...]:
    share = part.settings.recipe.real_share
    found = []
    if condition.worlds:
        weight = 1.0 - share if condition.real else None
        found.append(
            SourceConfig(
                data=str(demonstrations_part(part, condition.worlds).path), name="sim", weight=weight, kind="sim"
            )
        )
    if condition.real:
        weight = share if condition.worlds else None
        found.append(SourceConfig(data=str(demonstrations_part(part, "real").path), name="robot", weight=weight))
    return tuple(found)


def _trials(part: StudyPart) -> None:
    cell, owner = _cell(part.robot), policy_part(part)
    camera, height, width = CAMERA
    photographer = WorldCamera(cell.twin, [camera], height=height, width=width)
    actor = policy_actor(cell, owner.path, photographer.take_images if part.settings.images else None)
    try:
        _write_outcomes(part, run_trials(cell, range(part.settings.episodes), actor))
    finally:
        photographer.close()


def _script(part: StudyPart) -> None:
    """Run the trials of the scripted expert on the virtual robot, and write their outcomes to the folder of ``part``.

    The expert's success rate is about the highest that a policy can reach.
    """
    cell = _cell(part.robot)
    _write_outcomes(part, run_trials(cell, range(part.settings.episodes), ExpertActor(task=open_task(TASK, cell.twin))))


def _write_outcomes(part: StudyPart, batch: BatchResult) -> None:
    part.path.mkdir(parents=True)
    write_json(part.path / "trials.json", {"success": [bool(done) for done in batch.success]})


def read_outcomes(part: StudyPart) -> list[bool]:
    """Return the outcomes of a part's trials, in the order of the numbers of their initial conditions."""
    return read_json(part.path / "trials.json")["success"]


def demonstrations_part(part: StudyPart, worlds: str) -> StudyPart:
    """Return the part (step) that makes the demonstrations on which a policy is trained.

    It has the study's folder and settings. Demonstrations in nominal or default-randomized worlds are shared by all
    robots.

    Args:
        part: the part that trains the policy.
        worlds: kind of worlds, see `TransferCondition.worlds`, or ``real`` for demonstrations on the robot.
    """
    shared = worlds in ("nominal", "ranges")
    return _related_part(part, "demos", worlds=worlds, robot=-1 if shared else part.robot)


def policy_part(part: StudyPart) -> StudyPart:
    """Return the part (step) that trains a policy, for a part that runs trials of this policy."""
    own = NUMBERS[part.condition].per_robot
    return _related_part(part, "policy", robot=part.robot if own else -1, seed=part.seed, condition=part.condition)


def _related_part(
    part: StudyPart, kind: str, *, robot: int | None = None, seed: int = 0, condition: int = 0, worlds: str = ""
) -> StudyPart:
    return StudyPart(
        kind=kind,
        folder=part.folder,
        settings=part.settings,
        robot=part.robot if robot is None else robot,
        seed=seed,
        condition=condition,
        worlds=worlds,
    )


_MAKERS: dict[str, Callable[[StudyPart], None]] = {
    "log": _log,
    "demos": _demos,
    "policy": _policy,
    "trials": _trials,
    "script": _script,
}
