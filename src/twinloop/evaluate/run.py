"""Run a policy in every slice of a suite, many worlds at a time; every policy has its trials in the same worlds."""

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
from twinloop.tasks import DEFAULT_TASK, Task, open_task
from twinloop.twin import Twin, load_twin

# Worlds at a time. 256 pick-and-place episodes of the SO-101 are 17 MB of states and keep 16 threads busy for seconds.
BATCH = 256
_QUANTILES = (0.5, 0.95, 1.0)

Trial = tuple[SuiteSlice, int]
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class _SliceRunner:
    """Environment of the slices of one variant: the twin with contact sensors, its task, its motion limits."""

    twin: Twin
    task: Task
    limits: MotionLimits


@dataclass(kw_only=True)
class Arena:
    """Runner of the trials of a suite; the world of a trial does not depend on the candidate or on other trials.

    ``simulated`` is the number of simulated episodes, ``seconds`` their wall time.
    """

    suite: Suite
    task: str
    run_seed: int = 0
    backend: Backend = field(default_factory=open_backend)
    batch: int = BATCH
    simulated: int = 0
    seconds: float = 0.0
    versions: Mapping[str, str] = field(default_factory=software_versions)
    _places: dict[str, _SliceRunner] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise InputError(f"Batches of {self.batch} worlds are empty. Give at least 1; 256 is the default.")

    def run(self, who: Candidate, trials: Sequence[Trial], *, done: Callable[[int], None] | None = None) -> list[Row]:
        """Return rows of `core.evaluation.TRIALS` for some trials of a candidate, in their order, without latency.

        A row also has the number of control steps that violate each kind of limit, ``broken/KIND``.
        """
        began = time.perf_counter()
        rows: dict[tuple[str, int], Row] = {}
        actors: dict[str, Actor] = {}
        for part in self._split_batches(trials):
            first = part[0][0]
            place = self.open_slice(first)
            if first.variant not in actors:
                actors[first.variant] = who.make(place.twin, place.task)
            for (item, number), row in zip(part, self._score_trials(place, actors[first.variant], part), strict=True):
                rows[item.name, number] = row
            if done is not None:
                done(len(part))
        self.simulated += len(rows)
        self.seconds += time.perf_counter() - began
        return [rows[item.name, number] for item, number in trials]

    def measure_latency(self, who: Candidate) -> dict[str, float]:
        """Return the computation time per command with a single robot: quantiles and mean over an episode, in s."""
        item = self.suite.slices[0]
        place = self.open_slice(item)
        timed = TimedActor(actor=who.make(place.twin, place.task))
        self._score_trials(place, timed, [(item, 0)])
        rest = np.array(timed.seconds[1:] or timed.seconds)  # the first call loads and compiles
        names = ("median_s", "p95_s", "most_s")
        quantiles = dict(zip(names, np.quantile(rest, _QUANTILES).tolist(), strict=True))
        return {"mean_s": float(rest.mean()), **quantiles, "first_s": timed.seconds[0]}

    def open_slice(self, item: SuiteSlice) -> _SliceRunner:
        """Return the twin, task and limits with which a slice runs."""
        if item.variant not in self._places:
            twin = with_contact_sensors(self.suite.open_variant(item))
            task = open_task(self.task if item.scenario is None else item.scenario.task_reference, twin)
            self._places[item.variant] = _SliceRunner(twin=twin, task=task, limits=compute_arm_limits(twin))
        return self._places[item.variant]

    def _split_batches(self, trials: Sequence[Trial]) -> Iterator[list[Trial]]:
        """Yield trials that can run together: those of one twin; each stored scenario runs separately."""
        groups: dict[tuple[str, str], list[Trial]] = {}
        for item, number in trials:
            own = item.name if item.scenario is not None else ""
            groups.setdefault((item.variant, own), []).append((item, number))
        for group in groups.values():
            for at in range(0, len(group), self.batch):
                yield group[at : at + self.batch]

    def _score_trials(self, place: _SliceRunner, actor: Actor, trials: Sequence[Trial]) -> list[Row]:
        worlds = self._make_worlds(place, trials)
        result = run_batch(
            place.twin,
            place.task,
            worlds.params,
            run_seed=worlds.run_seed,
            episodes=worlds.numbers.tolist(),
            attempt=worlds.attempt,
            backend=self.backend,
            actor=actor,
            initial=worlds.initial,
            record=("sensordata",),
        )
        scores = score_batch(result, place.limits)
        reasons = result.trajectories.reason
        return [_make_row(trial, scores, world, reasons[world]) for world, trial in enumerate(trials)]

    def _make_worlds(self, place: _SliceRunner, trials: Sequence[Trial]) -> InitialWorlds:
        """Return the initial worlds of trials, in their order."""
        by_slice: dict[str, list[int]] = {}
        for at, (item, _) in enumerate(trials):
            by_slice.setdefault(item.name, []).append(at)
        parts: list[InitialWorlds] = []
        for rows in by_slice.values():
            numbers = np.array([trials[at][1] for at in rows])
            where = {"twin": place.twin, "task": place.task, "run_seed": self.run_seed}
            parts.append(self.suite.create_worlds(trials[rows[0]][0], numbers, **where))
        if len(parts) == 1:
            return parts[0]
        back = np.argsort(np.concatenate([np.asarray(rows) for rows in by_slice.values()]))
        table = concatenate_tables([part.params for part in parts]).take(back)
        numbers = np.concatenate([part.numbers for part in parts])[back]
        return InitialWorlds(params=table, numbers=numbers, run_seed=self.run_seed)


def evaluate(
    who: Any,
    twin: Twin | str,
    task: str = DEFAULT_TASK,
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
    """Evaluate a policy in every slice of a suite.

    A world depends only on run seed, slice and number of the trial, so that policies with the same seed are paired by
    the names of their trials. An invalid world (it diverged, or its objects could not be placed) is not a success.

    Args:
        who: ``"expert"``, a policy, an actor, or a function from twin and task to an actor; see
        `acting.make_candidate`.
        twin: the twin or its name.
        task: name of a task.
        suite: a name, a file, or a suite.
        episodes: number of episodes per slice; by default that of the suite.
        run_seed: seed of all random draws.
        backend: backend of the simulation; ``threads`` on every core by default.
        slices: patterns of the slices to try; all by default.
        batch: number of worlds at a time.
        name: name of the candidate.
        done: function that is called with the number of finished trials, during the run.
        places: ``scenarios``, the folder of stored scenarios, for suites that have them.

    Raises:
        TwinloopError: suite, twin or policy is wrong.
    """
    made = make_candidate(who, name=name)
    opened = load_twin(twin) if isinstance(twin, str) else twin
    if not isinstance(suite, Suite):
        spec = open_suite(suite) if isinstance(suite, str) else suite
        suite = expand_suite(spec, opened, open_task(task, opened), pictures=made.pictures, **places)
    suite = suite.with_episodes(episodes).select_slices(slices)
    arena = Arena(suite=suite, task=task, run_seed=run_seed, backend=backend or open_backend(), batch=batch)
    trials = [(item, number) for item in suite.slices for number in range(item.episodes)]
    rows = arena.run(made, trials, done=done)
    return make_evaluation(made, arena, rows, twin=opened, latency=arena.measure_latency(made))


def make_evaluation(
    who: Candidate, arena: Arena, rows: Sequence[Row], *, twin: Twin, latency: Mapping[str, float] | None = None
) -> Evaluation:
    """Return the evaluation of a candidate from the rows of `Arena.run`.

    Every trial has the mean latency of a separate run with one world: in a batch, hundreds of worlds share one call.
    """
    kinds = [f"broken/{kind}" for kind in VIOLATIONS]
    columns = {key: [row[key] for row in rows] for key in rows[0] if key not in kinds}
    columns["latency_s"] = [latency["mean_s"] if latency else None] * len(rows)
    suite, simulated = arena.suite, max(arena.simulated, 1)
    return Evaluation(
        policy=who.name,
        policy_hash=who.hash,
        suite=suite.name,
        twin=twin.name,
        twin_hash=twin.hash,
        task=arena.task,
        run_seed=arena.run_seed,
        trials=pa.table({key: pa.array(values) for key, values in columns.items()}),
        extra={
            "suite_hash": suite.spec.hash,
            "left_out": list(suite.left_out),
            "pairs": list(suite.pairs),
            "ends": {item.name: dict(item.spec.ends) for item in suite.slices if item.spec.ends},
            "violations": {kind: int(sum(row[f"broken/{kind}"] for row in rows)) for kind in VIOLATIONS},
            "latency": dict(latency or {}),
            "seconds": arena.seconds,
            "episodes_per_minute": 60.0 * simulated / arena.seconds if arena.seconds else None,
            "backend": arena.backend.name,
            "versions": dict(arena.versions),
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
        "violations": int(scores.broken[world]),
        "valid": not reason,
        "reason": reason or None,
        **{f"broken/{kind}": int(count) for kind, count in zip(VIOLATIONS, scores.violations[world], strict=True)},
    }
