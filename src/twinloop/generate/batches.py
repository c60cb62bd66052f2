"""Draw, simulate and evaluate one batch of worlds on a worker, with parameter ranges that may adapt during a run.

Terms: a batch is the set of worlds that a worker simulates at once. A block is a number of batches that are written to
the dataset together. A round is a fixed number of episodes, after which adaptive ranges (automatic domain
randomization) change. A boundary is one end of one parameter's range.
"""

from __future__ import annotations

import functools
import traceback
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twinloop.core.errors import InputError, TwinloopError
from twinloop.core.profile import Profile, record_spans, span
from twinloop.core.records import SimEpisode
from twinloop.core.units import UnitMap
from twinloop.dataset.invalid_worlds import InvalidAttempt
from twinloop.generate.config import GenerateConfig, load_plan
from twinloop.generate.readings import SensorSamples, add_environment, add_readings
from twinloop.randomize import AdaptiveDraw, Plan, run_rounds
from twinloop.randomize.adaptive import AdaptiveRound, Counts, Ranges, count_at_boundaries, describe_rounds
from twinloop.rollout import BatchResult, BodySensors, run_batch, software_versions
from twinloop.simulate import open_backend
from twinloop.tasks import Task, open_task
from twinloop.tasks.protocol import has_tracked_values
from twinloop.twin import Twin

Rounds = Mapping[int, Ranges]
_PREFIX = "adaptive:"


def find_ready_blocks(
    config: GenerateConfig, plan: Plan, outcomes: Sequence[Mapping[str, int]], first: int
) -> tuple[range, Rounds]:
    """Return the next blocks that can be simulated because their adaptive ranges are known, and these ranges.

    A block is a number of batches that are written to the dataset together. A round is a fixed number of episodes,
    after which adaptive ranges (automatic domain randomization) change. The result has the blocks from ``first`` to the
    end of its round, or to the end of the run if the ranges are not adaptive.

    Args:
        config: configuration of the run.
        plan: plan of the run.
        outcomes: counts of every written block, in order; they include the successes at range ends, see
            `count_boundaries`.
        first: number of the next block to write.

    Returns:
        The numbers of the blocks; and a mapping from the number of their round to its ranges, which is empty if the
            ranges are not adaptive.
    """
    last, draw = -(-config.episodes // config.block_size), plan.adaptive
    if draw is None:
        return range(first, last), {}
    blocks = draw.every // config.block_size
    number = first // blocks
    _, ranges = run_rounds(draw, _sum_by_round(draw, outcomes, blocks)[:number])
    return range(first, min((number + 1) * blocks, last)), {number: ranges}


def count_boundaries(plan: Plan, numbers: Sequence[int], success: NDArray[np.bool_]) -> dict[str, int]:
    """Count the attempts and successes of a batch at every range boundary (end of a parameter's adaptive range).

    Some episodes evaluate a boundary: their parameter is set to this value.

    Args:
        plan: plan of the run.
        numbers: episode numbers of the batch.
        success: whether each of these episodes succeeded.

    Returns:
        Counts with the keys ``adaptive:INDEX:attempted`` and ``adaptive:INDEX:success``, with the index of the
        boundary; empty if the ranges are not adaptive.
    """
    draw = plan.adaptive
    if draw is None:
        return {}
    counts: dict[str, int] = {}
    for index, pair in enumerate(
        count_at_boundaries(draw, plan.run_seed, np.asarray(numbers, dtype=np.int64), success)
    ):
        if pair[0]:
            counts[f"{_PREFIX}{index}:attempted"], counts[f"{_PREFIX}{index}:success"] = pair
    return counts


def adaptive_history(
    config: GenerateConfig, plan: Plan, outcomes: Sequence[Mapping[str, int]]
) -> dict[str, Any] | None:
    """Return the history of adaptive ranges as a JSON-compatible dictionary; None if the plan has no adaptive ranges.

    It has the ranges of every complete round, the success rate at each end of a range, and the ranges of the next
    round. A round is the number of episodes between two changes of the ranges.

    Args:
        config: configuration of the run.
        plan: plan of the run.
        outcomes: counts of every committed block, in order; they include the successes at range ends, see
            `count_boundaries`.
    """
    draw = plan.adaptive
    if draw is None:
        return None
    return describe_rounds(draw, plan.twin, *_complete_rounds(config, draw, outcomes))


def read_known_rounds(record: Mapping[str, Any]) -> Rounds:
    """Return the adaptive ranges by round number, from a result of `adaptive_history`.

    The round after the last complete round is included, because its ranges follow from the complete rounds.
    """
    rows = [*(item["ranges"] for item in record["rounds"]), record["ranges"]]
    return {number: tuple((row[name][0], row[name][1]) for name in record["names"]) for number, row in enumerate(rows)}


def with_known_rounds(config: GenerateConfig, plan: Plan, outcomes: Sequence[Mapping[str, int]]) -> Plan:
    """Return the plan with the adaptive ranges of all rounds that are known from the committed blocks.

    Adaptive ranges change after every round, a fixed number of episodes. Those of the next round are included.

    Args:
        config: configuration of the run.
        plan: plan of the run; it is returned unchanged if it has no adaptive ranges.
        outcomes: counts of every committed block, in order; they include the successes at range ends, see
            `count_boundaries`.
    """
    draw = plan.adaptive
    if draw is None:
        return plan
    rounds, ranges = _complete_rounds(config, draw, outcomes)
    return plan.with_rounds({**{item.number: item.ranges for item in rounds}, len(rounds): ranges})


def _complete_rounds(
    config: GenerateConfig, draw: AdaptiveDraw, outcomes: Sequence[Mapping[str, int]]
) -> tuple[list[AdaptiveRound], Ranges]:
    complete = min(len(outcomes) * config.block_size, config.episodes) // draw.every
    return run_rounds(draw, _sum_by_round(draw, outcomes, draw.every // config.block_size)[:complete])


def _sum_by_round(draw: AdaptiveDraw, outcomes: Sequence[Mapping[str, int]], blocks: int) -> list[Counts]:
    """Return attempts and successes at each boundary (end of a parameter's range), summed over each round's blocks.

    A round is the number of episodes between two changes of adaptive ranges. The last round may be incomplete.

    Args:
        draw: the adaptive ranges.
        outcomes: counts of every committed block, in order; they include the results of `count_boundaries`.
        blocks: number of blocks per round.
    """
    result: list[Counts] = []
    for start in range(0, len(outcomes), blocks):
        part = outcomes[start : start + blocks]
        sums = [
            tuple(sum(block.get(f"{_PREFIX}{i}:{kind}", 0) for block in part) for kind in ("attempted", "success"))
            for i in range(2 * draw.size)
        ]
        result.append(tuple((attempted, success) for attempted, success in sums))
    return result


# Frames of the shortest stored episode; LeRobot's tools need at least two.
_SHORTEST = 2


@dataclass(frozen=True, kw_only=True)
class GenerateBatch:
    """Input of a worker process: the configuration of the run, and the episodes to simulate.

    Attributes:
        config: `GenerateConfig` as JSON.
        plan_hash: hash of the plan in the main process; a worker with another plan refuses the batch.
        versions: software versions of the main process; a worker with other versions refuses the batch.
        nthread: number of threads of the simulation.
        block: number of the block to which the batch belongs.
        numbers: episode numbers to simulate.
        rounds: adaptive ranges of these episodes, by round number.
        profile: whether to measure the time of each step; it changes nothing else.
    """

    config: str
    plan_hash: str
    versions: Mapping[str, str]
    nthread: int
    block: int = 0
    numbers: tuple[int, ...] = ()
    rounds: Rounds = field(default_factory=dict)
    profile: bool = False

    def __str__(self) -> str:
        return f"attempts {self.numbers[0]} to {self.numbers[-1]}" if self.numbers else "no attempts"


@dataclass(frozen=True, kw_only=True)
class BatchOutcome:
    """Result of a simulated batch.

    Attributes:
        episodes: episodes to store.
        invalid_attempts: worlds that became invalid, with the reason.
        counts: numbers of attempts, successes and invalid worlds, and further counts by name.
        sensor_samples: all samples of the recorded sensors, by side table, one table per stored episode.
        seconds: time of each step in s, if it was measured.
    """

    episodes: list[SimEpisode]
    invalid_attempts: list[InvalidAttempt]
    counts: dict[str, int]
    sensor_samples: SensorSamples = field(default_factory=dict[str, list[pa.Table]])
    seconds: dict[str, float] = field(default_factory=dict[str, float])


def run_batch_job(batch: GenerateBatch) -> BatchOutcome:
    """Simulate a batch on a worker process or machine.

    Raises:
        TwinloopError: If the worker has other software versions or another twin than the main process, or if the
            simulation fails.
    """
    if not batch.profile:
        return _run_job(batch)
    profile = Profile()
    with record_spans(profile), profile.span("start"):
        outcome = _run_job(batch)
    return replace(outcome, seconds=profile.seconds)


def run_batch_job_locally(batch: GenerateBatch) -> BatchOutcome:
    """Simulate a batch in the main process; its time is added to the profile of this process."""
    with span("start"):
        return _run_job(batch)


def _run_job(batch: GenerateBatch) -> BatchOutcome:
    here = software_versions()
    if dict(here) != dict(batch.versions):
        raise InputError(
            f"A worker has {_format_versions(here)}, but the run was started with {_format_versions(batch.versions)}, "
            "so the worker's episodes would differ. Install the same versions everywhere."
        )
    config, plan, task = load_setup(batch.config)
    if plan.hash != batch.plan_hash:
        raise InputError(
            f"A worker read a different twin {config.twin} than the one of the run: its files were changed, or "
            "differ on that machine. Do not change them during a run, and use the same ones on all machines."
        )
    plan = plan.with_rounds(batch.rounds) if batch.rounds else plan
    result = simulate_batch(config, plan, task, batch.numbers, nthread=batch.nthread)
    with span("provenance"):
        counts = {**_count_attempts(result), **count_boundaries(plan, batch.numbers, result.success)}
        kept = _select_episodes(result, config.keep)
        if config.file.rollout.environment_state and has_tracked_values(task):
            kept = add_environment(task, kept)
    sensors = _body_sensors(batch.config)
    kept, felt = add_readings(sensors, kept) if sensors else (kept, {})
    with span("provenance"):
        return BatchOutcome(
            episodes=kept, invalid_attempts=_list_invalid_attempts(result), counts=counts, sensor_samples=felt
        )


def _format_versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))


@functools.lru_cache(maxsize=1)
def load_setup(config: str) -> tuple[GenerateConfig, Plan, Task]:
    """Return configuration, plan and task of a run from the configuration's JSON; they are loaded once per process."""
    resolved = GenerateConfig.model_validate_json(config)
    plan = load_plan(resolved)
    return resolved, plan, open_task(resolved.task, plan.twin)


@functools.lru_cache(maxsize=1)
def _body_sensors(config: str) -> BodySensors | None:
    """Return the inertial, force and servo sensors whose readings a run records; None if it records none.

    They are loaded once per process.

    Args:
        config: `GenerateConfig` as JSON.
    """
    resolved, plan, _ = load_setup(config)
    names = resolved.file.rollout.sensors
    return BodySensors(plan.twin, names) if names else None


def simulate_batch(
    config: GenerateConfig, plan: Plan, task: Task, numbers: Sequence[int], *, nthread: int = 1
) -> BatchResult:
    """Draw parameters for the episodes with these numbers, and reset, simulate and evaluate their worlds.

    Args:
        config: configuration of the run.
        plan: plan from which the parameters are drawn.
        task: task of the run.
        numbers: episode numbers.
        nthread: number of threads of the simulation.

    Raises:
        InputError: If a user's task raises an error.
    """
    with convert_task_errors(config.task, task):
        return _run(config, plan, task, numbers, nthread)


def _run(config: GenerateConfig, plan: Plan, task: Task, numbers: Sequence[int], nthread: int) -> BatchResult:
    with span("draw"):
        drawn = plan.draw_worlds(numbers, nstep=task.nstep)
    return run_batch(
        plan.twin,
        task,
        drawn.table,
        run_seed=config.seed,
        episodes=numbers,
        backend=open_backend(config.file.rollout.backend, nthread=nthread),
        units=dataset_units(config, plan.twin),
        config_hash=config.hash,
        extra={"plan_hash": plan.hash, "backend": config.file.rollout.backend},
        notes=plan.world_notes(drawn),
    )


def dataset_units(config: GenerateConfig, twin: Twin) -> UnitMap:
    """Return the unit map of the dataset: that of the generate file, or by default that of the twin."""
    return twin.unit_map(config.file.units) if config.file.units else twin.units


@contextmanager
def convert_task_errors(reference: str, task: Task) -> Generator[None]:
    """Context manager that converts an exception of a user's task to an `InputError` with file and line.

    Errors of built-in tasks are not converted.

    Args:
        reference: reference of the task, ``path/to/file.py:Task``.
        task: the task.

    Raises:
        InputError: If the user's task raises an exception.
    """
    try:
        yield
    except TwinloopError:
        raise
    except Exception as error:
        file = Path(reference.rpartition(":")[0])
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == file]
        if not lines:
            raise
        message = f"{file}, line {lines[-1]}: the task {task.name} raised {type(error).__name__}: {error}."
        raise InputError(message) from error


def _select_episodes(batch: BatchResult, keep: str) -> list[SimEpisode]:
    if keep == "success":
        return batch.episodes(np.flatnonzero(batch.success))
    cut = [_valid_part(batch, world) for world in range(len(batch.numbers))]
    return [episode for episode in cut if len(episode) >= _SHORTEST]


def _valid_part(batch: BatchResult, world: int) -> SimEpisode:
    """Return the episode of a world up to the last valid state; the whole episode if the world stayed valid."""
    episode, end = batch.episode(world), int(batch.trajectories.invalid_step[world])
    if end < 0:
        return episode
    return replace(
        episode,
        commands=episode.commands[:end],
        states=episode.states[: end + 1],
        action=episode.action[:end],
        observation=episode.observation[:end],
        next_success=episode.next_success[:end],
    )


def _list_invalid_attempts(batch: BatchResult) -> list[InvalidAttempt]:
    """Return the invalid worlds, each with its valid states, and its commands up to the one that made it invalid."""
    items: list[InvalidAttempt] = []
    for world in np.flatnonzero(~batch.trajectories.valid):
        episode, step = batch.episode(int(world)), int(batch.trajectories.invalid_step[world])
        items.append(
            InvalidAttempt(
                number=episode.number,
                step=step,
                reason=batch.trajectories.reason[world],
                states=episode.states[: step + 1],
                commands=episode.commands[: step + 1],
                provenance=episode.provenance,
            )
        )
    return items


def _count_attempts(batch: BatchResult) -> dict[str, int]:
    reasons = Counter(f"invalid:{reason}" for reason in batch.trajectories.reason if reason)
    return {
        "attempted": len(batch.numbers),
        "success": int(batch.success.sum()),
        "invalid": int((~batch.trajectories.valid).sum()),
        **dict(sorted(reasons.items())),
        **_count_placements(batch),
    }


def _count_placements(batch: BatchResult) -> dict[str, int]:
    """Count the worlds in which clutter was placed, and the random placements that were needed for it."""
    trials = batch.initial.notes.get("scene/trials")
    if trials is None:
        return {}
    refused = sum(bool(reason) for reason in batch.initial.refused)
    return {"placed": int((trials > 0).sum()) - refused, "placements": int(trials.sum())}
