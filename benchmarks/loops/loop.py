"""Run one loop on one virtual robot: log, fit, gap, policies, slices, search for failures, and retraining.

Each step is the command of `twinloop` that a user would type. A step whose result exists is not repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from benchmarks.loops.logs import record_task_log
from benchmarks.loops.settings import LoopSettings
from twinloop.cli.main import main
from twinloop.core.documents import read_json
from twinloop.core.errors import CheckFailedError
from twinloop.core.evaluation import Evaluation
from twinloop.core.files import write_json, write_text
from twinloop.dataset.logs.conversion import write_log_dataset
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
        folder: folder of all loops on tasks like this; the policy that was taught without a robot is shared.
    """

    settings: LoopSettings
    seed: int
    folder: Path

    @cached_property
    def robot(self) -> VirtualRobot:
        """The virtual robot."""
        return VirtualRobot(self.settings.twin, self.settings.task, self.seed)

    @property
    def path(self) -> Path:
        """Folder of the robot."""
        return self.folder / f"robot{self.seed}"

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
        settings, at = self.settings, self.path
        file, log, fit = self.folder / "worlds.yaml", at / "log", at / "identified"
        scene = {"twin": settings.twin, "task": settings.task}
        self.path.mkdir(parents=True, exist_ok=True)
        write_text(file, yaml.safe_dump({"scene": scene, "randomization": "default"}))
        write_text(self.folder / "fit.yaml", yaml.safe_dump(dict(settings.fit)))
        write_text(self.folder / "slices.yaml", yaml.safe_dump(dict(settings.suite)))
        if not (log / "meta" / "info.json").is_file():
            numbers = range(settings.log)
            episodes = record_task_log(
                self.robot.cell, settings.task, numbers, run_seed=_LOGGED, seconds=settings.seconds,
                shake=settings.shake, extra=settings.signals,
            )  # fmt: skip
            write_log_dataset(episodes, log)
        told = ["--twin", settings.twin, "--data", str(log)]
        flags = ["--fit", str(self.folder / "fit.yaml"), "--holdout", f"last:{settings.held}"]
        self._do(fit, ["identify", *told, *flags])
        compared = [word for kind in settings.fit["replay"]["compare"] for word in ("--compare", kind)]
        window = ["--contacts", "--window", "0", "--no-why"]
        self._do(at / "gap", ["gap", *told, "--params", str(fit), *window, *compared])
        taught = [word for key, value in settings.teaching.items() for word in (f"--{key}", str(value))]
        self._do(self.policies["ranges"], ["distill", str(file), *taught])
        self._do(self.policies["identified"], ["distill", str(file), "--randomize-from", str(fit), *taught])
        suite = ["--suite", str(self.folder / "slices.yaml"), "--episodes", str(settings.trials)]
        policy = self.policies["identified"]
        self._do(at / "slices-identified", ["evaluate", str(policy), *suite])
        near, kept = at / "near.yaml", ["--scenarios", str(at / "scenarios")]
        write_text(near, yaml.safe_dump({"scene": scene, "randomization": {"identified": str(fit / _RESULT)}}))
        sizes = [word for key, value in settings.search.items() for word in (f"--{key}", str(value))]
        flags = ["--policy", str(policy), "--keep", "1", *sizes, *kept]
        self._do(at / "search", ["scenario", "search", str(near), *flags])
        found = read_json(at / "search" / _RESULT)["kept"]
        if found:
            sizes = [word for key, value in settings.retraining.items() for word in (f"--{key}", str(value))]
            flags = ["--policy", str(policy), "--randomize-from", str(fit), *sizes, *kept]
            self._do(at / "retrained", ["scenario", "loop", Path(found[0]).name, *flags])
            self._do(at / "slices-retrained", ["evaluate", str(self.policies["retrained"]), *suite])
        self._try_on_robot()

    def _do(self, output: Path, words: Sequence[str]) -> None:
        """Run a command unless its result exists; its exit code may be 1, which is an answer such as a gate's no."""
        if (output / _RESULT).is_file():
            return
        code = main([*words, "--output", str(output), "--quiet"])
        if code > 1 or not (output / _RESULT).is_file():
            raise CheckFailedError(f"twinloop {' '.join(words)} ended with exit code {code}.")

    def _try_on_robot(self) -> None:
        for name, policy in self.policies.items():
            output = self.path / "trials" / name
            if policy.is_dir() and not output.is_dir():
                self.robot.evaluate(policy, self.settings.trials, output)
        file = self.path / "trials" / "expert.json"
        if not file.is_file():
            cell, numbers = self.robot.cell, range(self.settings.trials)
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
