"""Run one loop on one virtual robot: log, fit, gap, policies, slices, search for failures, and retraining.

Each step is the command of `twinloop` that a user would type. A step whose result exists is not repeated.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.loops.logs import record_task_log
from benchmarks.loops.settings import (
    ARM_FIT,
    FREE_EPISODES,
    FREE_SECONDS,
    HELD,
    RETRAINING,
    SEARCH,
    TEACHING,
    TRIALS,
    LoopSettings,
)
from twinloop.cli.main import main
from twinloop.core.documents import read_json
from twinloop.core.errors import CheckFailedError
from twinloop.core.evaluation import Evaluation
from twinloop.core.files import write_json, write_text
from twinloop.dataset.logs.conversion import write_log_dataset
from twinloop.hardware import virtual_log
from twinloop.rollout import ExpertActor, run_batch
from twinloop.tasks import open_task
from twinloop.twin import load_twin
from twinloop.workflows.demo.virtual_robot import PLACES, VirtualRobot

_LOGGED = 78  # run seed of the places in the log
_RESULT = "result.json"


@dataclass(frozen=True, kw_only=True)
class RobotLoop:
    """One loop on one virtual robot.

    Attributes:
        settings: settings of the loop.
        seed: seed of the robot.
        folder: folder of the loops on all robots, which share the policy that was taught in the twin's ranges.
        console: output for people.
    """

    settings: LoopSettings
    seed: int
    folder: Path
    console: Console

    @cached_property
    def robot(self) -> VirtualRobot:
        """The virtual robot."""
        return VirtualRobot(self.settings.twin, self.settings.task, self.seed)

    @property
    def path(self) -> Path:
        """Folder of the robot."""
        return self.folder / f"robot{self.seed}"

    @property
    def arm(self) -> Path:
        """Folder of the identified arm, which the loops on all tasks share."""
        return self.folder.parent / self.settings.base / f"robot{self.seed}" / "identified"

    @property
    def policies(self) -> dict[str, Path]:
        """Folders of the policies: taught in the twin's ranges, around the identified twin, and retrained."""
        return {
            "ranges": self.folder / "ranges",
            "identified": self.path / "taught",
            "retrained": self.path / "retrained" / "policy",
        }

    def run(self) -> None:
        """Run the steps that have no result yet."""
        said, at, log = self.settings, self.path, self.path / "log"
        scene, policy = at / "identified", self.policies["identified"]
        self.identify_arm()
        if not log.is_dir():
            motion = {"run_seed": _LOGGED, "seconds": said.seconds, "shake": said.shake, "extra": said.signals}
            write_log_dataset(record_task_log(self.robot.cell, said.task, range(said.episodes), **motion), log)
        fit, data = self._write_yaml("scene.yaml", dict(said.scene)), ("--twin", said.twin, "--data", log)
        self._do(scene, "identify", *data, "--given", self.arm, "--fit", fit, "--holdout", f"last:{HELD}")
        compared = [word for kind in said.scene["replay"]["compare"] for word in ("--compare", kind)]
        contacts = ["--contacts"] * bool(said.scene["replay"].get("contacts"))
        self._do(at / "gap", "gap", *data, "--params", scene, *contacts, "--window", 0, "--no-why", *compared)

        worlds = {"scene": {"twin": said.twin, "task": said.task}}
        ranges = self._write_yaml("ranges.yaml", worlds | {"randomization": "default"})
        self._do(self.policies["ranges"], "distill", ranges, *_flags(TEACHING))
        self._do(policy, "distill", ranges, "--randomize-from", scene, *_flags(TEACHING))
        slices = [{"name": "all"}, *({"name": name, "set": dict(values)} for name, values in said.slices.items())]
        suite = self._write_yaml("slices.yaml", {"name": "slices", "base": "default", "slices": slices})
        measured = ("--suite", suite, "--episodes", TRIALS)
        self._do(at / "slices-identified", "evaluate", policy, *measured)

        near = {"randomization": {"identified": str(scene.absolute() / _RESULT)}}
        searched = self._write_yaml(f"robot{self.seed}/searched.yaml", worlds | near)
        stored = ("--policy", policy, "--scenarios", at / "scenarios")
        self._do(at / "search", "scenario", "search", searched, *stored, "--keep", 1, *_flags(SEARCH))
        for found in read_json(at / "search" / _RESULT)["kept"]:
            around = (*stored, "--randomize-from", scene, *_flags(RETRAINING))
            self._do(at / "retrained", "scenario", "loop", Path(found).name, *around)
            self._do(at / "slices-retrained", "evaluate", self.policies["retrained"], *measured)
        self._try_on_robot()

    def identify_arm(self) -> None:
        """Identify the robot from a log without contact, unless a loop on another task has done so."""
        base, log = self.settings.base, self.arm.parent / "log"
        if not log.is_dir():
            tracker, sizes = self.robot.cell.tracker, {"episodes": FREE_EPISODES, "seconds": FREE_SECONDS}
            write_log_dataset(virtual_log(self.seed, twin=base, tracker=tracker, **sizes), log)
        compare = ["position", f"place/{load_twin(base).robot.tcp}"]
        fit = self._write_yaml("arm.yaml", ARM_FIT | {"replay": {"compare": compare}})
        self._do(self.arm, "identify", "--twin", base, "--data", log, "--fit", fit)

    def _write_yaml(self, name: str, value: Mapping[str, Any]) -> Path:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, yaml.safe_dump(dict(value), sort_keys=False))
        return file

    def _do(self, output: Path, *words: object) -> None:
        """Run a command unless its result exists; its exit code may be 1, which is an answer such as a gate's no."""
        if (output / _RESULT).is_file():
            return
        line = [*map(str, words), "--output", str(output)]
        self.console.print(f"twinloop {shlex.join(line)}", soft_wrap=True)
        code = main([*line, "--quiet"])
        if code > 1 or not (output / _RESULT).is_file():
            raise CheckFailedError(f"twinloop {shlex.join(line)} ended with exit code {code}.")

    def _try_on_robot(self) -> None:
        for name, policy in self.policies.items():
            output = self.path / "trials" / name
            if policy.is_dir() and not output.is_dir():
                self.robot.evaluate(policy, TRIALS, output)
        file = self.path / "trials" / "expert.json"
        if not file.is_file():
            cell, numbers = self.robot.cell, range(TRIALS)
            task, params = open_task(self.settings.task, cell.twin), cell.table(cell.plan(PLACES).draw(numbers))
            made = run_batch(cell.twin, task, params, run_seed=PLACES, episodes=numbers, actor=ExpertActor(task=task))
            write_json(file, made.success.tolist())

    def success(self, name: str) -> NDArray[np.bool_]:
        """Return the outcomes ``(ntrial,)`` of a policy or of the ``expert`` on the robot; empty if not tried."""
        if name == "expert":
            return np.array(read_json(self.path / "trials" / "expert.json"), dtype=bool)
        folder = self.path / "trials" / name
        return np.asarray(Evaluation.read(folder).trials["success"]) if folder.is_dir() else np.zeros(0, dtype=bool)

    def result(self, name: str) -> dict[str, Any]:
        """Return the result of a step; empty if there is none."""
        file = self.path / name / _RESULT
        return read_json(file) if file.is_file() else {}

    def truth(self, name: str) -> float:
        """Return the true value of a parameter, in SI units."""
        return self.robot.cell.values.get(name, load_twin(self.settings.twin).params[name].nominal)


def _flags(options: Mapping[str, Any]) -> list[object]:
    return [word for key, value in options.items() for word in (f"--{key}", value)]
