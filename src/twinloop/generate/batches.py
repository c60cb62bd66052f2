"""Draw, simulate and evaluate one batch of worlds on a worker, with ranges that may adapt over a run."""

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
from twinloop.generate.readings import Felt, add_environment, add_readings
from twinloop.randomize import AdaptiveDraw, Plan, run_rounds
from twinloop.randomize.adaptive import AdaptiveRound, Counts, Ranges
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
    """Return the next blocks, from ``first`` on, that known ranges allow to simulate, and these ranges.

    Args:
        outcomes: counts of every committed block.
    """
    last, draw = -(-config.episodes // config.block_size), plan.adaptive
    if draw is None:
        return range(first, last), {}
    blocks = draw.every // config.block_size
    number = first // blocks
    _, ranges = run_rounds(draw, _sum_by_round(draw, outcomes, blocks)[:number])
    return range(first, min((number + 1) * blocks, last)), {number: ranges}


def count_boundaries(plan: Plan, numbers: Sequence[int], success: NDArray[np.bool_]) -> dict[str, int]:
    """Count attempts and successes at every boundary that a batch evaluated."""
    draw = plan.adaptive
    if draw is None:
        return {}
    boundary = draw.find_boundary(plan.run_seed, np.asarray(numbers, dtype=np.int64))
    counts: dict[str, int] = {}
    for index in np.unique(boundary[boundary >= 0]):
        chosen = boundary == index
        counts[f"{_PREFIX}{index}:attempted"] = int(chosen.sum())
        counts[f"{_PREFIX}{index}:success"] = int(success[chosen].sum())
    return counts


def adaptive_history(
    config: GenerateConfig, plan: Plan, outcomes: Sequence[Mapping[str, int]]
) -> dict[str, Any] | None:
    """Return every complete round and the ranges after the last; None without adaptive ranges."""
    draw = plan.adaptive
    if draw is None:
        return None
    rounds, ranges = _complete_rounds(config, draw, outcomes)
    return {
        "schema": 1,
        "names": list(draw.names),
        "units": [plan.twin.params[name].unit for name in draw.names],
        "limits": {name: list(pair) for name, pair in zip(draw.names, draw.limits, strict=True)},
        "thresholds": list(draw.thresholds),
        "every": draw.every,
        "rounds": [item.to_json(draw) for item in rounds],
        "ranges": {name: list(pair) for name, pair in zip(draw.names, ranges, strict=True)},
    }


def read_known_rounds(record: Mapping[str, Any]) -> Rounds:
    """Return the ranges of every round of a `adaptive_history`, and those after the last."""
    rows = [*(item["ranges"] for item in record["rounds"]), record["ranges"]]
    return {number: tuple((row[name][0], row[name][1]) for name in record["names"]) for number, row in enumerate(rows)}


def with_known_rounds(config: GenerateConfig, plan: Plan, outcomes: Sequence[Mapping[str, int]]) -> Plan:
    """Return the plan with the ranges of every started round."""
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
    """Return counts at each boundary, summed over the blocks of each round; the last round may be incomplete."""
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
    """Input of a worker: the configuration as JSON, its C threads, the block and its episode numbers.

    ``versions`` and ``plan_hash`` are those of the main process; with others the results would differ. ``rounds`` are
    the adaptive ranges of these episodes. ``profile`` requests timings; it changes nothing else.
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
    """Result of a batch: the stored episodes, the invalid worlds, counts of all attempts, seconds by step.

    ``felt`` holds every sample of the recorded sensors, in the order of the episodes.
    """

    kept: list[SimEpisode]
    aside: list[InvalidAttempt]
    counts: dict[str, int]
    felt: Felt = field(default_factory=dict[str, list[pa.Table]])
    seconds: dict[str, float] = field(default_factory=dict[str, float])


def run_batch_job(batch: GenerateBatch) -> BatchOutcome:
    """Simulate a batch on a worker process or machine.

    Raises:
        TwinloopError: the worker has other versions, or what `simulate_batch` raises.
    """
    if not batch.profile:
        return _run_job(batch)
    profile = Profile()
    with record_spans(profile), profile.span("start"):
        outcome = _run_job(batch)
    return replace(outcome, seconds=profile.seconds)


def run_batch_job_locally(batch: GenerateBatch) -> BatchOutcome:
    """Simulate a batch in the main process, whose profile already counts the spans."""
    with span("start"):
        return _run_job(batch)


def _run_job(batch: GenerateBatch) -> BatchOutcome:
    here = software_versions()
    if dict(here) != dict(batch.versions):
        raise InputError(
            f"A worker has {_format_versions(here)}, the run was started with {_format_versions(batch.versions)}: the "
            "bytes would "
            "differ. Install the same versions everywhere."
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
        return BatchOutcome(kept=kept, aside=_list_invalid_attempts(result), counts=counts, felt=felt)


def _format_versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))


@functools.lru_cache(maxsize=1)
def load_setup(config: str) -> tuple[GenerateConfig, Plan, Task]:
    """Return configuration, plan and task of a run from its JSON; computed once per process."""
    resolved = GenerateConfig.model_validate_json(config)
    plan = load_plan(resolved)
    return resolved, plan, open_task(resolved.task, plan.twin)


@functools.lru_cache(maxsize=1)
def _body_sensors(config: str) -> BodySensors | None:
    """Return the sensors that a run records, or None; computed once per process."""
    resolved, plan, _ = load_setup(config)
    asked = resolved.file.rollout.sensors
    return BodySensors(plan.twin, asked) if asked else None


def simulate_batch(
    config: GenerateConfig, plan: Plan, task: Task, numbers: Sequence[int], *, nthread: int = 1
) -> BatchResult:
    """Draw, reset, simulate and evaluate the episodes with these numbers."""
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
    """Return the unit map of the generate file, or the twin's."""
    return twin.unit_map(config.file.units) if config.file.units else twin.units


@contextmanager
def convert_task_errors(reference: str, task: Task) -> Generator[None]:
    """Convert an exception of a user's task to one message with its location; built-in tasks are not covered.

    Raises:
        InputError: the task raised; the message gives the user's file, line and exception.
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
    """Return an episode up to its world's last valid state; its provenance marks an earlier end."""
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
    """Return the invalid worlds, up to their last valid state and with the command after it."""
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
    """Count the worlds with placed clutter, and the draws for it."""
    trials = batch.initial.notes.get("scene/trials")
    if trials is None:
        return {}
    refused = sum(bool(reason) for reason in batch.initial.refused)
    return {"placed": int((trials > 0).sum()) - refused, "placements": int(trials.sum())}
