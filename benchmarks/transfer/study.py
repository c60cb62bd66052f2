"""Compare policies that were taught in different worlds on robots whose parameters the twin does not have."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.transfer.means import RobotMean, average_over_robots
from benchmarks.transfer.parts import Part, StudyPart, make
from benchmarks.transfer.retraining import Retraining
from benchmarks.transfer.settings import DIFFERENCES, NUMBERS, TransferSettings
from twinloop.core.documents import read_json
from twinloop.core.errors import InputError
from twinloop.core.files import dumps, write_json
from twinloop.core.pool import LocalProcesses, count_cores
from twinloop.core.progress import track
from twinloop.policies.factory import require_torch

_ASKED = "study.json"


@dataclass(frozen=True, kw_only=True)
class TransferResult:
    """Result of a comparison of training conditions.

    Attributes:
        settings: settings of the study.
        success: success rate of each robot and training run ``(nrobot, nseed)``, by number of the training condition.
        cut: share of the commands that the safety envelope would change, of the same shape.
        script: success rate of the scripted expert on each robot, ``(nrobot,)``.
        seconds: total durations ``wall_s`` and ``processor_s`` in s, by kind of part.
        asked: what was stored when the study began: its settings and the commit of the code.
    """

    settings: TransferSettings
    success: Mapping[int, NDArray[np.float64]]
    cut: Mapping[int, NDArray[np.float64]]
    script: NDArray[np.float64]
    seconds: Mapping[str, Mapping[str, float]]
    asked: Mapping[str, Any]

    def condition(self, number: int) -> RobotMean:
        """Return the success rate of the policies of one training condition."""
        return average_over_robots(self.success[number])

    def differences(self) -> dict[tuple[int, int], RobotMean]:
        """Return the success rate of one condition minus that of another, for the compared pairs in `DIFFERENCES`.

        Differences are paired: same robots, same initial conditions, and training runs with the same seed.
        """
        there = [pair for pair in DIFFERENCES if pair[0] in self.success and pair[1] in self.success]
        return {(one, other): average_over_robots(self.success[one] - self.success[other]) for one, other in there}

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        conditions = [
            {"number": n, "worlds": NUMBERS[n].worlds, "label": NUMBERS[n].label, **self.condition(n).to_json()}
            | {"success": self.success[n].tolist(), "cut": self.cut[n].tolist()}
            for n in self.success
        ]
        differences = [
            {"of": one, "over": other, **found.to_json()} for (one, other), found in self.differences().items()
        ]
        return {
            "schema": 2,
            "verb": "bench transfer",
            "robots": self.settings.robot_seeds,
            "trials": self.settings.episodes,
            "conditions": conditions,
            "differences": differences,
            "script": average_over_robots(self.script[:, None]).to_json(),
            "seconds": {kind: dict(took) for kind, took in self.seconds.items()},
            "asked": dict(self.asked),
        }


def compare_on_robots(settings: TransferSettings, output: Path, *, workers: int, console: Console) -> TransferResult:
    """Compare training conditions on robots; make the missing logs, policies and trials.

    An interrupted comparison is continued: complete parts are kept.

    Args:
        settings: conditions and size of the comparison.
        output: folder of the comparison.
        workers: number of processes; 0 uses every core.
        console: gets a line for each stage, such as training.

    Raises:
        InputError: If the folder contains a comparison with other settings.
        MissingDependencyError: If torch is not installed.
    """
    require_torch()
    asked = claim_folder(output, settings.made_of())
    trials = {
        (condition.number, robot, seed): StudyPart(
            kind="trials",
            folder=str(output),
            settings=settings,
            robot=robot,
            seed=seed,
            condition=condition.number,
        )
        for robot, seed, condition in itertools.product(
            settings.robot_seeds, range(settings.seeds), settings.selected_conditions
        )
    }
    scripts = [
        StudyPart(kind="script", folder=str(output), settings=settings, robot=robot) for robot in settings.robot_seeds
    ]
    seconds = make_all([*trials.values(), *scripts], console, workers or count_cores())
    found = {key: part.read_trials() for key, part in trials.items()}
    shape = (len(settings.robot_seeds), settings.seeds)

    def table(number: int, column: int) -> NDArray[np.float64]:
        rows = [found[number, robot, seed][column] for robot in settings.robot_seeds for seed in range(settings.seeds)]
        return np.array([float(np.mean(row)) for row in rows]).reshape(shape)

    return TransferResult(
        settings=settings,
        success={condition.number: table(condition.number, 0) for condition in settings.selected_conditions},
        cut={condition.number: table(condition.number, 1) for condition in settings.selected_conditions},
        script=np.array([float(np.mean(part.read_trials()[0])) for part in scripts]),
        seconds=seconds,
        asked=asked,
    )


def retrain_from_failures(
    settings: TransferSettings, output: Path, *, workers: int, console: Console
) -> list[Retraining]:
    """Retrain the first policy of the hand-written ranges from one of its failures on each robot where it fails.

    The parts are added to those of a comparison in the same folder, which are made if they are missing.

    Raises:
        InputError: If the robots are not of the family ``hidden``, or the folder contains a study with other settings.
    """
    if settings.family != "hidden":
        raise InputError(f"--retraining: robots of the family {settings.family} cannot be opened by `twinloop run`.")
    require_torch()
    claim_folder(output, settings.made_of())
    number = next(one.number for one in NUMBERS.values() if one.worlds == "ranges")
    parts = [
        StudyPart(kind="retraining", folder=str(output), settings=settings, robot=robot, condition=number)
        for robot in settings.robot_seeds
    ]
    make_all([part.trials for part in parts], console, workers or count_cores())
    failed = [part for part in parts if not all(part.trials.read_trials()[0])]  # only these robots need a log
    make_all(failed, console, workers or count_cores())
    return [made for made in (part.read_retraining() for part in failed) if made is not None]


def claim_folder(output: Path, current: Mapping[str, Any]) -> dict[str, Any]:
    """Store settings and commit in a new folder, or check those of the study in it; return what is stored.

    Raises:
        InputError: If the folder contains a study with other settings.
    """
    file = output / _ASKED
    if not file.is_file():
        output.mkdir(parents=True, exist_ok=True)
        write_json(file, {**current, "commit": _read_commit()})
        return read_json(file)
    before, plain = read_json(file), json.loads(dumps(current))
    unlike = sorted(key for key in plain if before.get(key) != plain[key])
    if unlike:
        raise InputError(
            f"{output} contains a study with another {', '.join(unlike)}. Use the same settings, or choose another "
            "--output."
        )
    return before


def _read_commit() -> str:
    """Return the commit of the code, with a mark if files differ from it; empty outside a git repository."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()


def make_all(required: Sequence[Part], console: Console, workers: int) -> dict[str, dict[str, float]]:
    """Make parts and what they need in several processes; return the durations by kind of part, in s."""
    took: dict[str, dict[str, float]] = {}
    counted = set[Path]()  # a part may be needed in two stages
    with LocalProcesses(workers) as engine:
        for stage in order_stages(required):
            kinds = ", ".join(sorted({part.kind for part in stage}))
            console.print(f"{kinds}: {sum(not part.done for part in stage)} of {len(stage)} to make")
            for part, seconds in track(engine.map(make, stage), label=kinds, total=len(stage)):
                sums = took.setdefault(part.kind, {})
                for clock, value in () if part.path in counted else seconds.items():
                    sums[clock] = sums.get(clock, 0.0) + value
                counted.add(part.path)
    return dict(sorted(took.items()))


def order_stages(required: Iterable[Part]) -> list[list[Part]]:
    """Return the required parts and those that they need in stages: a stage needs only parts of earlier stages."""
    ordered = [_unique_parts(required)]
    while needed := _unique_parts(itertools.chain.from_iterable(part.needs for part in ordered[0])):
        ordered.insert(0, needed)
    return ordered


def _unique_parts(parts: Iterable[Part]) -> list[Part]:
    return list({part.path: part for part in parts}.values())
