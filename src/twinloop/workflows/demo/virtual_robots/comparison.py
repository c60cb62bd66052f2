"""Compare policies that were trained under different conditions on virtual robots.

A comparison (study) consists of parts, such as demonstrations, trained policies and trials. The missing parts are made
in several processes, and success rates are summarized over robots.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from scipy import stats as distributions

from twinloop.core.documents import read_json
from twinloop.core.errors import InputError
from twinloop.core.files import write_json
from twinloop.core.pool import LocalProcesses, count_cores
from twinloop.core.progress import track
from twinloop.policies.factory import require_torch
from twinloop.workflows.demo.virtual_robots.parts import (
    StudyPart,
    demonstrations_part,
    make,
    policy_part,
    read_outcomes,
)
from twinloop.workflows.demo.virtual_robots.settings import NUMBERS, TransferSettings

_ASKED = "study.json"
DIFFERENCES = ((4, 1), (5, 6), (2, 1), (3, 1), (4, 2), (4, 3), (5, 4))
REQUIRED_DIFFERENCES = {(4, 1): 0.25, (5, 6): 0.25}  # required differences, fixed before anything was measured


@dataclass(frozen=True, kw_only=True)
class RobotMean:
    """A mean over robots with Student's t interval; the robots are independent, identically distributed samples.

    Attributes:
        each: mean over the training runs and trials of every robot, ``(nrobot,)``.
        between_seeds: standard deviation between training runs on one robot, root mean square over robots; NaN for a
            single run.
        level: confidence level of the interval.
    """

    each: NDArray[np.float64]
    between_seeds: float
    level: float = 0.95

    @property
    def mean(self) -> float:
        """Mean success rate, or difference of rates, over robots."""
        return float(self.each.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """Confidence interval of the mean over all robots of this kind; NaN with a single robot."""
        n = len(self.each)
        if n < 2:
            return float("nan"), float("nan")
        half = float(distributions.t.ppf((1 + self.level) / 2, n - 1) * self.each.std(ddof=1) / np.sqrt(n))
        return self.mean - half, self.mean + half

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        return {
            "mean": self.mean,
            "interval": list(self.interval),
            "level": self.level,
            "each": self.each.tolist(),
            "between_seeds": self.between_seeds,
        }


def average_over_robots(success: NDArray[np.float64]) -> RobotMean:
    """Return the mean over robots of success rates, or of differences between success rates.

    Args:
        success: one value per robot and training run, ``(nrobot, nseed)``.
    """
    spread = success.var(axis=1, ddof=1).mean() if success.shape[1] > 1 else np.nan
    return RobotMean(each=success.mean(axis=1), between_seeds=float(np.sqrt(spread)))


@dataclass(frozen=True, kw_only=True)
class TransferResult:
    """Result of a comparison of training conditions on virtual robots.

    Each training condition has a number, see `TransferCondition`.

    Attributes:
        robots: seeds of the robots.
        trials: number of trials per policy and robot.
        success: success rate of each robot and training run ``(nrobot, nseed)``, by number of the training condition.
        script: success rate of the scripted expert on each robot, ``(nrobot,)``.
        seconds: total durations ``wall_s`` and ``processor_s`` in s, by kind of step: ``log``, ``demos``, ``policy``,
            ``trials`` or ``script``.
        made_of: settings with which the comparison was made, from `TransferSettings.made_of`.
    """

    robots: tuple[int, ...]
    trials: int
    success: Mapping[int, NDArray[np.float64]]
    script: NDArray[np.float64]
    seconds: Mapping[str, Mapping[str, float]]
    made_of: Mapping[str, Any]

    def condition(self, number: int) -> RobotMean:
        """Return the success rate of the policies of one training condition, given by `TransferCondition.number`."""
        return average_over_robots(self.success[number])

    def differences(self) -> dict[tuple[int, int], RobotMean]:
        """Return differences of success rates between two training conditions, for the pairs in `DIFFERENCES`.

        Each key is a pair of `TransferCondition.number`; its value is the success rate of the first condition minus
        that of the second. Differences are paired: same robots, same initial conditions, and training runs with the
        same seed. Pairs with a condition that was not compared are left out.
        """
        there = [pair for pair in DIFFERENCES if pair[0] in self.success and pair[1] in self.success]
        return {(one, other): average_over_robots(self.success[one] - self.success[other]) for one, other in there}

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        conditions = [
            {"number": n, "name": NUMBERS[n].name, "words": NUMBERS[n].label, **self.condition(n).to_json()}
            | {"success": self.success[n].tolist()}
            for n in self.success
        ]
        differences = [
            {"of": one, "over": other, "wanted": REQUIRED_DIFFERENCES.get((one, other)), **found.to_json()}
            for (one, other), found in self.differences().items()
        ]
        return {
            "schema": 1,
            "verb": "bench transfer",
            "robots": list(self.robots),
            "trials": self.trials,
            "conditions": conditions,
            "differences": differences,
            "script": average_over_robots(self.script[:, None]).to_json(),
            "seconds": {kind: dict(took) for kind, took in self.seconds.items()},
            "made_of": dict(self.made_of),
        }


def compare_on_robots(settings: TransferSettings, output: Path, *, workers: int, console: Console) -> TransferResult:
    """Compare training conditions on virtual robots; make the missing logs, demonstrations, policies and trials.

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
    _claim_study_folder(output, settings)
    trials, scripts = _list_required_parts(settings, output)
    seconds = _make_all([*trials, *scripts], console, workers or count_cores())
    return _collect_result(settings, trials, scripts, seconds)


def _claim_study_folder(output: Path, settings: TransferSettings) -> None:
    """Create a study's folder, or check that the study in it has the same settings.

    Raises:
        InputError: If the folder contains a study with other settings.
    """
    current, file = settings.made_of(), output / _ASKED
    if file.is_file():
        before = read_json(file)
        unlike = sorted(key for key in current if key != "hash" and before.get(key) != _round_trip_json(current[key]))
        if unlike:
            raise InputError(
                f"{output} contains a study with another {', '.join(unlike)}. Use the same settings, or choose another "
                "--output."
            )
        return
    output.mkdir(parents=True, exist_ok=True)
    write_json(file, current)


def _round_trip_json(value: Any) -> Any:
    """Return a value as JSON represents it, such as tuples as lists, to compare it with a stored value."""
    return json.loads(json.dumps(value))


def _list_required_parts(settings: TransferSettings, output: Path) -> tuple[list[StudyPart], list[StudyPart]]:
    """Return the parts (steps with their own folder) of a comparison whose results are needed.

    Returns:
        The parts with the trials of all policies, and the parts with the trials of the scripted expert.
    """
    folder = str(output)
    trials = [
        StudyPart(kind="trials", folder=folder, settings=settings, robot=robot, seed=seed, condition=condition.number)
        for robot, seed, condition in itertools.product(
            settings.robot_seeds, range(settings.seeds), settings.selected_conditions
        )
    ]
    scripts = [
        StudyPart(kind="script", folder=folder, settings=settings, robot=robot) for robot in settings.robot_seeds
    ]
    return trials, scripts


def _list_prerequisites(part: StudyPart) -> list[StudyPart]:
    """Return the parts that must be complete before a part can be made."""
    if part.kind == "trials":
        return [policy_part(part)]
    if part.kind == "policy":
        condition = NUMBERS[part.condition]
        kinds = [*([condition.worlds] if condition.worlds else []), *(["real"] if condition.real else [])]
        return [demonstrations_part(part, kind) for kind in kinds]
    if part.kind == "demos" and part.worlds in ("point", "posterior"):
        return [StudyPart(kind="log", folder=part.folder, settings=part.settings, robot=part.robot)]
    return []


def _make_all(required: Sequence[StudyPart], console: Console, workers: int) -> dict[str, dict[str, float]]:
    """Make parts (steps) of a comparison and their prerequisites in several processes.

    Args:
        required: the required parts.
        console: gets a line for each stage.
        workers: number of processes.

    Returns:
        Total durations ``wall_s`` and ``processor_s`` in s, by kind of part.
    """
    ordered = order_stages(required)
    took: dict[str, dict[str, float]] = {}
    with LocalProcesses(workers) as engine:
        for stage in ordered:
            kinds = ", ".join(sorted({part.kind for part in stage}))
            console.print(f"{kinds}: {sum(not part.done for part in stage)} of {len(stage)} to make")
            for part, seconds in track(engine.map(make, stage), label=kinds, total=len(stage)):
                sums = took.setdefault(part.kind, {})
                for clock, value in seconds.items():
                    sums[clock] = sums.get(clock, 0.0) + value
    return dict(sorted(took.items()))


def order_stages(required: Iterable[StudyPart]) -> list[list[StudyPart]]:
    """Return the required parts and their prerequisites in stages: a stage needs only parts of earlier stages."""
    ordered = [_unique_parts(required)]
    while True:
        needed = _unique_parts(itertools.chain.from_iterable(map(_list_prerequisites, ordered[0])))
        if not needed:
            return ordered
        ordered.insert(0, needed)


def _unique_parts(parts: Iterable[StudyPart]) -> list[StudyPart]:
    return list({part.path: part for part in parts}.values())


def _collect_result(
    settings: TransferSettings,
    trials: Sequence[StudyPart],
    scripts: Sequence[StudyPart],
    seconds: dict[str, dict[str, float]],
) -> TransferResult:
    share = {(part.condition, part.robot, part.seed): float(np.mean(read_outcomes(part))) for part in trials}
    robots = settings.robot_seeds
    return TransferResult(
        robots=tuple(robots),
        trials=settings.episodes,
        success={
            condition.number: np.array(
                [[share[condition.number, robot, seed] for seed in range(settings.seeds)] for robot in robots]
            )
            for condition in settings.selected_conditions
        },
        script=np.array([float(np.mean(read_outcomes(part))) for part in scripts]),
        seconds=seconds,
        made_of=settings.made_of(),
    )
