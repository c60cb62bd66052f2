"""Run a policy in every evaluation slice of a suite, in batches of simulated worlds.

The worlds depend on suite, seed and trial number, but not on the policy. Therefore all policies are tried in the same
worlds and can be compared in pairs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from twinloop.core.errors import InputError
from twinloop.core.evaluation import Evaluation
from twinloop.evaluate.candidates import Candidate, TimedActor, make_candidate
from twinloop.evaluate.scores import VIOLATIONS, TrialScores, compute_arm_limits, score_batch
from twinloop.evaluate.suite import SuiteSpec, open_suite
from twinloop.evaluate.variants import with_contact_sensors
from twinloop.evaluate.worlds import InitialWorlds, Suite, SuiteSlice, concatenate_tables, expand_suite
from twinloop.hardware.limits import MotionLimits
from twinloop.rollout import Actor, run_batch, software_versions
from twinloop.simulate import Backend, open_backend
from twinloop.tasks import Task, find_task_name, open_task
from twinloop.twin import Twin, load_twin

# Worlds that are simulated together. 256 pick-and-place episodes of the SO-101 are 17 MB of states and keep 16 threads
# busy for seconds.
BATCH = 256
_QUANTILES = (0.5, 0.95, 1.0)

Trial = tuple[SuiteSlice, int]
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class _SliceRunner:
    """Twin with contact sensors, task on that twin, and motion limits, with which the trials of a slice are simulated.

    Slices (conditions) with the same variant of the twin share one instance.
    """

    twin: Twin
    task: Task
    limits: MotionLimits


@dataclass(kw_only=True)
class TrialRunner:
    """Runner of a suite's trials; the world of a trial depends neither on the policy nor on the other trials.

    Attributes:
        suite: The suite, resolved to the parameters of a twin by `expand_suite`.
        task: Name of the task.
        run_seed: Seed of all random draws.
        backend: Simulation backend.
        batch: Largest number of worlds that are simulated together.
        simulated: Number of episodes that were simulated so far.
        seconds: Wall time of these episodes in s.
        versions: Versions of the software, by package.
    """

    suite: Suite
    task: str
    run_seed: int = 0
    backend: Backend = field(default_factory=open_backend)
    batch: int = BATCH
    simulated: int = 0
    seconds: float = 0.0
    versions: Mapping[str, str] = field(default_factory=software_versions)
    _runners: dict[str, _SliceRunner] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise InputError(f"Batches of {self.batch} worlds are empty. Give at least 1; 256 is the default.")

    def run(
        self, candidate: Candidate, trials: Sequence[Trial], *, done: Callable[[int], None] | None = None
    ) -> list[Row]:
        """Simulate some trials of a policy and return one row of scores per trial, in the order of ``trials``.

        Args:
            candidate: The policy or expert.
            trials: Slice and trial number, counted from 0, of each trial.
            done: Function that is called after each batch with its number of trials.

        Returns:
            Rows with the columns of `core.evaluation.TRIAL_SCHEMA` except ``latency_s``, and one column ``broken/KIND``
            for each kind of limit in `VIOLATIONS`, for example ``broken/speed``: the number of control steps that
            violate this limit.
        """
        began = time.perf_counter()
        rows: dict[tuple[str, int], Row] = {}
        actors: dict[str, Actor] = {}
        for part in self._split_batches(trials):
            first = part[0][0]
            runner = self.open_slice(first)
            if first.variant not in actors:
                actors[first.variant] = candidate.make(runner.twin, runner.task)
            for (item, number), row in zip(part, self._score_trials(runner, actors[first.variant], part), strict=True):
                rows[item.name, number] = row
            if done is not None:
                done(len(part))
        self.simulated += len(rows)
        self.seconds += time.perf_counter() - began
        return [rows[item.name, number] for item, number in trials]

    def measure_latency(self, candidate: Candidate) -> dict[str, float]:
        """Run one episode in a single world and return the computation time per command in s.

        Returns:
            ``mean_s``, ``median_s``, ``p95_s`` (95 % quantile) and ``most_s`` (maximum), excluding the first command if
            there are several, because it loads and compiles; ``first_s`` is the time of that first command.
        """
        item = self.suite.slices[0]
        runner = self.open_slice(item)
        timed = TimedActor(actor=candidate.make(runner.twin, runner.task))
        self._score_trials(runner, timed, [(item, 0)])
        rest = np.array(timed.seconds[1:] or timed.seconds)  # the first call loads and compiles
        names = ("median_s", "p95_s", "most_s")
        quantiles = dict(zip(names, np.quantile(rest, _QUANTILES).tolist(), strict=True))
        return {"mean_s": float(rest.mean()), **quantiles, "first_s": timed.seconds[0]}

    def open_slice(self, item: SuiteSlice) -> _SliceRunner:
        """Return the twin, the task and the motion limits with which the trials of a slice run."""
        if item.variant not in self._runners:
            twin = with_contact_sensors(self.suite.open_variant(item))
            task = open_task(self.task if item.scenario is None else item.scenario.task_reference, twin)
            limits = compute_arm_limits(self.suite.limited_by or twin)
            self._runners[item.variant] = _SliceRunner(twin=twin, task=task, limits=limits)
        return self._runners[item.variant]

    def _split_batches(self, trials: Sequence[Trial]) -> Iterator[list[Trial]]:
        """Yield batches of at most ``batch`` trials on the same twin.

        An evaluation slice that repeats a stored scenario gets its own batches.
        """
        groups: dict[tuple[str, str], list[Trial]] = {}
        for item, number in trials:
            own = item.name if item.scenario is not None else ""
            groups.setdefault((item.variant, own), []).append((item, number))
        for group in groups.values():
            for at in range(0, len(group), self.batch):
                yield group[at : at + self.batch]

    def _score_trials(self, runner: _SliceRunner, actor: Actor, trials: Sequence[Trial]) -> list[Row]:
        worlds = self._make_worlds(runner, trials)
        result = run_batch(
            runner.twin,
            runner.task,
            worlds.params,
            run_seed=worlds.run_seed,
            episodes=worlds.numbers.tolist(),
            attempt=worlds.attempt,
            backend=self.backend,
            actor=actor,
            initial=worlds.initial,
            record=("sensordata",),
        )
        scores = score_batch(result, runner.limits)
        reasons = result.trajectories.reason
        return [_make_row(trial, scores, world, reasons[world]) for world, trial in enumerate(trials)]

    def _make_worlds(self, runner: _SliceRunner, trials: Sequence[Trial]) -> InitialWorlds:
        """Return the initial worlds of a batch of trials, in the order of ``trials``."""
        by_slice: dict[str, list[int]] = {}
        for at, (item, _) in enumerate(trials):
            by_slice.setdefault(item.name, []).append(at)
        parts: list[InitialWorlds] = []
        for rows in by_slice.values():
            numbers = np.array([trials[at][1] for at in rows])
            where = {"twin": runner.twin, "task": runner.task, "run_seed": self.run_seed}
            parts.append(self.suite.create_worlds(trials[rows[0]][0], numbers, **where))
        if len(parts) == 1:
            return parts[0]
        back = np.argsort(np.concatenate([np.asarray(rows) for rows in by_slice.values()]))
        table = concatenate_tables([part.params for part in parts]).take(back)
        numbers = np.concatenate([part.numbers for part in parts])[back]
        return InitialWorlds(params=table, numbers=numbers, run_seed=self.run_seed)


def evaluate(
    policy: Any,
    twin: Twin | str,
    task: str = "",
    suite: Suite | SuiteSpec | str = "nominal",
    *,
    episodes: int | None = None,
    run_seed: int = 0,
    backend: Backend | None = None,
    slices: Sequence[str] = (),
    batch: int = BATCH,
    name: str = "",
    done: Callable[[int], None] | None = None,
    **places: Any,
) -> Evaluation:
    """Evaluate a policy in every evaluation slice (condition) of a suite, by simulation.

    The world of a trial depends only on run seed, slice and trial number. Evaluations with the same seed can therefore
    be compared in pairs of trials with the same name. An invalid world (it diverged, or its objects could not be
    placed) is not a success.

    Args:
        policy: ``"expert"``, a policy, an actor, or a function from twin and task to an actor; see
            `candidates.make_candidate`.
        twin: Twin or name of a twin.
        task: Name of the task; by default the only task of the twin's YAML.
        suite: Name of a built-in suite, path of a YAML file, or a suite.
        episodes: Number of trials per slice; by default that of the suite.
        run_seed: Seed of all random draws.
        backend: Simulation backend; by default ``threads`` on every core.
        slices: Patterns of slice names; only matching slices are run. By default all slices.
        batch: Largest number of worlds that are simulated together.
        name: Name of the policy in the evaluation; by default its own name.
        done: Function that is called after each batch with the number of trials in it.
        places: Keyword ``scenarios``: the folder of stored scenarios, for suites that have scenarios.

    Raises:
        TwinloopError: If suite, twin or policy cannot be used.
    """
    candidate = make_candidate(policy, name=name)
    opened = load_twin(twin) if isinstance(twin, str) else twin
    task = find_task_name(task, opened)
    if not isinstance(suite, Suite):
        spec = open_suite(suite) if isinstance(suite, str) else suite
        suite = expand_suite(spec, opened, open_task(task, opened), images=candidate.images, **places)
    suite = suite.with_episodes(episodes).select_slices(slices)
    runner = TrialRunner(suite=suite, task=task, run_seed=run_seed, backend=backend or open_backend(), batch=batch)
    rows = runner.run(candidate, suite.trials, done=done)
    return make_evaluation(candidate, runner, rows, twin=opened, latency=runner.measure_latency(candidate))


def make_evaluation(
    candidate: Candidate,
    runner: TrialRunner,
    rows: Sequence[Row],
    *,
    twin: Twin,
    latency: Mapping[str, float] | None = None,
) -> Evaluation:
    """Build the evaluation record of a policy from the rows that `TrialRunner.run` returned.

    Args:
        candidate: The policy.
        runner: Runner that ran the trials.
        rows: One row of scores per trial.
        twin: The twin, for name and hash.
        latency: Computation times from `TrialRunner.measure_latency`. Every trial gets their mean, because the
            commands of a batch are computed together and cannot be timed per world. If None, the latency is unknown.
    """
    kinds = [f"broken/{kind}" for kind in VIOLATIONS]
    columns = {key: [row[key] for row in rows] for key in rows[0] if key not in kinds}
    columns["latency_s"] = [latency["mean_s"] if latency else None] * len(rows)
    suite, simulated = runner.suite, max(runner.simulated, 1)
    return Evaluation(
        policy=candidate.name,
        policy_hash=candidate.hash,
        suite=suite.name,
        twin=twin.name,
        twin_hash=twin.hash,
        task=runner.task,
        run_seed=runner.run_seed,
        trials=pa.table({key: pa.array(values) for key, values in columns.items()}),
        extra={
            "suite_hash": suite.spec.hash,
            "left_out": list(suite.left_out),
            "pairs": list(suite.pairs),
            "ends": {item.name: dict(item.spec.ends) for item in suite.slices if item.spec.ends},
            "violations": {kind: int(sum(row[f"broken/{kind}"] for row in rows)) for kind in VIOLATIONS},
            "latency": dict(latency or {}),
            "seconds": runner.seconds,
            "episodes_per_minute": 60.0 * simulated / runner.seconds if runner.seconds else None,
            "backend": runner.backend.name,
            "versions": dict(runner.versions),
            **({"sensors": "device" if candidate.sensors else "clean"} if candidate.images else {}),
        },
    )


def _make_row(trial: Trial, scores: TrialScores, world: int, reason: str) -> Row:
    item, number = trial
    names = ("progress", "time_s", "smoothness", "peak_force_n")
    numbers = {name: float(getattr(scores, name)[world]) for name in names}
    return {
        "slice": item.name,
        "trial": item.get_trial_name(number),
        "success": bool(scores.success[world]),
        **{key: value if np.isfinite(value) else None for key, value in numbers.items()},
        "violations": int(scores.violating_steps[world]),
        "valid": not reason,
        "reason": reason or None,
        **{f"broken/{kind}": int(count) for kind, count in zip(VIOLATIONS, scores.violations[world], strict=True)},
    }
