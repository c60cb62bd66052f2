"""Make the parts of a transfer study: logs, policies, and trials.

Each part is made once, in a folder of its name, so that an interrupted study can be continued.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from benchmarks.transfer.retraining import NEAR, Retraining, draw_near, retrain_on_robot
from benchmarks.transfer.robots import HiddenRobots, RobotFamily, open_family
from benchmarks.transfer.settings import NUMBERS, TransferSettings
from benchmarks.transfer.worlds import training_plans
from twinloop.core.documents import read_json
from twinloop.core.files import write_json
from twinloop.train import SourceConfig, read_config, train
from twinloop.train.distill import DistillConfig, distill

Kind = Literal["log", "demonstrations", "policy", "trials", "script", "retraining"]
DONE = "seconds.json"  # file of a complete part
_DISTRIBUTION, _TRIALS, _RETRAINING = "distribution.json", "trials.json", "retraining.json"
_DATA, _SPENT = "data", "spent.json"
_STORED_S = 10.0


@dataclass(frozen=True, kw_only=True)
class StudyPart:
    """One part of a study, whose files are in one folder.

    Attributes:
        kind: ``log`` (log of a robot and identification from it), ``demonstrations`` (of the scripted expert on a
            robot), ``policy`` (training), ``trials`` (trials of a policy
            on a robot), ``script`` (trials of the scripted expert), or ``retraining`` (retraining of the policy from
            one of its failures on the robot, and trials of both).
        folder: folder of the study.
        settings: settings of the study.
        robot: seed of the robot; -1 for a policy that all robots share.
        seed: seed of the training run.
        condition: number of the training condition; 0 for none.
    """

    kind: Kind
    folder: str
    settings: TransferSettings
    robot: int = -1
    seed: int = 0
    condition: int = 0

    @property
    def path(self) -> Path:
        """Folder of the part."""
        robot = "shared" if self.robot < 0 else f"robot{self.robot}"
        policy = f"-{NUMBERS[self.condition].folder}-seed{self.seed}" if self.condition else ""
        return Path(self.folder) / self.kind / f"{robot}{policy}"

    @property
    def done(self) -> bool:
        """True if the part is complete."""
        return (self.path / DONE).is_file()

    @property
    def family(self) -> RobotFamily:
        """The robots of the study."""
        return open_family(self.settings.family)

    @property
    def needs(self) -> tuple[StudyPart, ...]:
        """Parts that must be complete before this one can be made."""
        if self.kind == "retraining":
            return (self.log, self.trials)
        if self.kind == "trials":
            return (self.policy,)
        if self.kind != "policy" or not NUMBERS[self.condition].per_robot:
            return ()
        return (self.base, self.demonstrations) if NUMBERS[self.condition].base else (self.log,)

    @property
    def trials(self) -> StudyPart:
        """The part that tries the policy of this one on the robot."""
        return replace(self, kind="trials")

    @property
    def policy(self) -> StudyPart:
        """The part that trains the policy of these trials."""
        robot = self.robot if NUMBERS[self.condition].per_robot else -1
        return replace(self, kind="policy", robot=robot)

    @property
    def base(self) -> StudyPart:
        """The part that trains the policy that this one adapts."""
        return replace(self, condition=NUMBERS[self.condition].base).policy

    @property
    def demonstrations(self) -> StudyPart:
        """The part that records demonstrations on the robot."""
        return replace(self, kind="demonstrations", seed=0, condition=0)

    @property
    def log(self) -> StudyPart:
        """The part that logs and identifies the robot."""
        return replace(self, kind="log", seed=0, condition=0)

    @property
    def resumable(self) -> bool:
        """False: an interrupted part is made again."""
        return False

    def build(self) -> None:
        """Make the files of the part."""
        _MAKERS[self.kind](self)

    def read_trials(self) -> tuple[list[bool], float]:
        """Return the outcomes of the trials in the order of their numbers, and the share of commands that were cut."""
        stored = read_json(self.path / _TRIALS)
        return stored["success"], stored["cut"]

    def read_retraining(self) -> Retraining | None:
        """Return the result of a retraining; None if the policy did not fail on the robot."""
        stored = read_json(self.path / _RETRAINING)
        return None if stored["trial"] < 0 else Retraining(**stored)


class Part(Protocol):
    """Part of a study, whose files are in one folder."""

    @property
    def kind(self) -> str:
        """Kind of the part, for messages."""
        ...

    @property
    def path(self) -> Path:
        """Folder of the part."""
        ...

    @property
    def done(self) -> bool:
        """True if the part is complete."""
        ...

    @property
    def needs(self) -> Sequence[Part]:
        """Parts that must be complete before this one can be made."""
        ...

    @property
    def resumable(self) -> bool:
        """Whether `build` goes on with the files of an interrupted call."""
        ...

    def build(self) -> None:
        """Make the files of the part in its folder, which is empty unless a resumable part was interrupted."""
        ...


def make(part: Part) -> dict[str, float]:
    """Make a part unless it is complete; return its duration in s of real time (``wall_s``) and ``processor_s``.

    An incomplete part of an interrupted study is continued if it is resumable, otherwise deleted first.
    """
    if part.done:
        return read_json(part.path / DONE)
    if not part.resumable:
        shutil.rmtree(part.path, ignore_errors=True)
    part.path.mkdir(parents=True, exist_ok=True)
    with _Stopwatch(part.path / _SPENT) as watch:
        part.build()
    took = watch.read()
    write_json(part.path / DONE, took)
    return took


class _Stopwatch:
    """Durations that are stored every few seconds, and counted on from what an interrupted process stored."""

    def __init__(self, file: Path) -> None:
        self._file, self._stop = file, threading.Event()
        self._before = read_json(file) if file.is_file() else {"wall_s": 0.0, "processor_s": 0.0}
        self._wall, self._processor = time.perf_counter(), time.process_time()
        self._thread = threading.Thread(target=self._store, daemon=True)

    def read(self) -> dict[str, float]:
        """Return the durations until now."""
        spent = {"wall_s": time.perf_counter() - self._wall, "processor_s": time.process_time() - self._processor}
        return {key: self._before[key] + value for key, value in spent.items()}

    def _store(self) -> None:
        while not self._stop.wait(_STORED_S):
            write_json(self._file, self.read())

    def __enter__(self) -> _Stopwatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def _log(part: StudyPart) -> None:
    part.family.identify(part.robot, part.settings.log, part.path / _DISTRIBUTION)


def _demonstrations(part: StudyPart) -> None:
    family = part.family
    assert isinstance(family, HiddenRobots)  # checked by the settings
    family.demonstrate(part.robot, part.path / _DATA)


def _adapt(part: StudyPart) -> None:
    data = SourceConfig(data=str(part.demonstrations.path / _DATA), name="robot", kind="real")
    config = read_config(None, sources=[data.model_dump()], adapt={"from": str(part.base.path)}, seed=part.seed)
    train(config, part.path)


def _policy(part: StudyPart) -> None:
    condition = NUMBERS[part.condition]
    if condition.base:
        _adapt(part)
        return
    twin = part.family.twin
    identified = part.log.path / _DISTRIBUTION
    plan, other = training_plans(condition.worlds, twin, identified, part.seed)
    recipe = {**part.settings.recipe, **condition.policy, "seed": part.seed}
    recipe["settings"] = {**part.settings.recipe.get("settings", {}), **condition.policy.get("settings", {})}
    config = DistillConfig(**recipe)
    distill(plan, part.family.open_task(twin), config, part.path, other=other)


def _trials(part: StudyPart) -> None:
    policy = None if part.kind == "script" else part.policy.path
    done = part.family.run(part.robot, range(part.settings.episodes), policy)
    write_json(part.path / _TRIALS, {"success": [bool(one) for one in done.success], "cut": done.cut})


def _retraining(part: StudyPart) -> None:
    family = part.family
    assert isinstance(family, HiddenRobots)
    won = part.trials.read_trials()[0]
    failed = [number for number, success in enumerate(won) if not success]
    trial = retrain_on_robot(
        family.twin_name,
        family.task,
        part.robot,
        failed,
        part.path,
        policy=part.policy.path,
        identified=part.log.path / _DISTRIBUTION,
    )
    rates: dict[str, list[float]] = {"near": [], "elsewhere": []}
    for policy in (part.path / "before", part.path / "loop" / "policy") if trial >= 0 else ():
        start = draw_near(family.twin, part.robot, trial, NEAR)
        rates["near"].append(float(family.run_from(start, part.robot, range(NEAR), policy).success.mean()))
        others = [number for number in range(len(won)) if number != trial]
        rates["elsewhere"].append(float(family.run(part.robot, others, policy).success.mean()))
    write_json(part.path / _RETRAINING, {"robot": part.robot, "trial": trial, **rates})


_MAKERS: dict[Kind, Callable[[StudyPart], None]] = {
    "log": _log,
    "demonstrations": _demonstrations,
    "policy": _policy,
    "trials": _trials,
    "script": _trials,
    "retraining": _retraining,
}
