"""Pass one: physics at full speed. Blocks of episodes are simulated by workers and committed in order."""

from __future__ import annotations

import functools
import traceback
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from twinloop.core.errors import InputError, TwinloopError
from twinloop.core.pool import cores, ordered_map
from twinloop.core.progress import track
from twinloop.core.records import SimEpisode
from twinloop.core.units import UnitMap
from twinloop.dataset.lerobot_v3 import DatasetWriter
from twinloop.dataset.spec import DatasetSpec
from twinloop.generate.config import GenerateConfig, load_plan
from twinloop.randomize import Plan
from twinloop.rollout import BatchResult, run_batch
from twinloop.simulate import open_backend
from twinloop.stats import wilson
from twinloop.tasks import Task, open_task
from twinloop.twin import Twin

# A world that failed at once leaves too little to call an episode; LeRobot's tools want at least two frames.
_SHORTEST = 2


@dataclass(frozen=True, kw_only=True)
class _Block:
    """What a worker needs to simulate one block: the configuration as JSON, the episode numbers, its C threads."""

    config: str
    numbers: tuple[int, ...]
    nthread: int


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    """What became of a block: the kept episodes, and counts of all attempts."""

    kept: list[SimEpisode]
    counts: dict[str, int]


def generate_states(
    config: GenerateConfig,
    output: Path,
    *,
    workers: int = 1,
    resume: bool = False,
) -> dict[str, Any]:
    """Generate a dataset of states; returns its figures, which are a function of the configuration alone.

    Args:
        output: an absent or empty folder, or with ``resume`` one that was begun with the same configuration.
        workers: processes; the bytes written do not depend on it.

    Raises:
        TwinloopError: wrong input, a folder in use, a full disk; committed blocks stay.
    """
    plan = load_plan(config)
    spec = dataset_spec(config, plan)
    with DatasetWriter.open(output, spec, resume=resume) as writer:
        blocks = range(writer.next_block, -(-config.episodes // config.block_size))
        processes = max(1, min(workers, len(blocks)))
        nthread = max(1, cores() // processes)
        text = config.model_dump_json()
        jobs = [
            _Block(config=text, nthread=nthread, numbers=tuple(n for n in writer.attempts(b) if n < config.episodes))
            for b in blocks
        ]
        done = ordered_map(_simulate, jobs, workers=processes)
        for block, (_, outcome) in zip(blocks, track(done, label="simulate", total=len(jobs)), strict=True):
            writer.commit_block(block, outcome.kept, outcome=outcome.counts)
        result = _result(config, plan, writer)
        writer.finish(result)
    return result


def _result(config: GenerateConfig, plan: Plan, writer: DatasetWriter) -> dict[str, Any]:
    counts = writer.outcome
    attempted, success = counts["attempted"], counts["success"]
    interval = wilson(success, attempted)
    return {
        "schema": 1,
        "verb": "generate",
        "twin": plan.twin.name,
        "twin_hash": plan.twin.hash,
        "task": config.task,
        "seed": config.seed,
        "plan_hash": plan.hash,
        "config_hash": config.hash,
        "attempted": attempted,
        "success": success,
        "yield": success / attempted,
        "yield_interval": [float(interval.low), float(interval.high)],
        "invalid": counts.get("invalid", 0),
        "reasons": {key[8:]: count for key, count in sorted(counts.items()) if key.startswith("invalid:")},
        "episodes": writer.episodes,
        "frames": writer.frames,
    }


def dataset_spec(config: GenerateConfig, plan: Plan) -> DatasetSpec:
    """What the dataset of a run is."""
    twin = plan.twin
    return DatasetSpec(
        name=f"{twin.name} {open_task(config.task, twin).name}",
        robot_type=twin.robot.type,
        fps=round(twin.control_hz),
        joints=tuple(twin.robot.joints),
        units=_units(config, twin),
        config={"generate": config.model_dump(mode="json"), "plan": plan.to_json()},
        twin_hash=twin.hash,
        config_hash=config.hash,
        block_size=config.block_size,
    )


def _units(config: GenerateConfig, twin: Twin) -> UnitMap:
    """The unit map that the file asks for, or the twin's own."""
    return twin.unit_map(config.file.units) if config.file.units else twin.units


@functools.lru_cache(maxsize=1)
def setup(config: str) -> tuple[GenerateConfig, Plan, Task]:
    """Configuration, plan and task of a run from its JSON, made once per process."""
    resolved = GenerateConfig.model_validate_json(config)
    plan = load_plan(resolved)
    return resolved, plan, open_task(resolved.task, plan.twin)


def _simulate(job: _Block) -> _Outcome:
    config, plan, task = setup(job.config)
    batch = simulate_block(config, plan, task, job.numbers, nthread=job.nthread)
    return _Outcome(kept=_kept(batch, config.keep), counts=_counts(batch))


def simulate_block(
    config: GenerateConfig, plan: Plan, task: Task, numbers: Sequence[int], *, nthread: int = 1
) -> BatchResult:
    """Draw, reset, act and judge the episodes of these numbers."""
    with own_task_errors(config.task, task):
        return _run(config, plan, task, numbers, nthread)


def _run(config: GenerateConfig, plan: Plan, task: Task, numbers: Sequence[int], nthread: int) -> BatchResult:
    twin = plan.twin
    return run_batch(
        twin,
        task,
        plan.draw(numbers, nstep=task.nstep),
        run_seed=config.seed,
        episodes=numbers,
        backend=open_backend("threads", nthread=nthread),
        units=_units(config, twin),
        config_hash=config.hash,
        extra={"plan_hash": plan.hash},
    )


@contextmanager
def own_task_errors(reference: str, task: Task) -> Generator[None]:
    """Turn whatever a user's own task raises into one message with its place; the built-in ones are ours to mend.

    Raises:
        InputError: the user's file, line and what it raised.
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


def _kept(batch: BatchResult, keep: str) -> list[SimEpisode]:
    if keep == "success":
        return batch.episodes(np.flatnonzero(batch.success))
    cut = [_until_invalid(batch, world) for world in range(len(batch.numbers))]
    return [episode for episode in cut if len(episode) >= _SHORTEST]


def _until_invalid(batch: BatchResult, world: int) -> SimEpisode:
    """An episode up to where its world could still be trusted; marked in its provenance where that is not the end."""
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


def _counts(batch: BatchResult) -> dict[str, int]:
    reasons = Counter(f"invalid:{reason}" for reason in batch.trajectories.reason if reason)
    return {
        "attempted": len(batch.numbers),
        "success": int(batch.success.sum()),
        "invalid": int((~batch.trajectories.valid).sum()),
        **dict(sorted(reasons.items())),
    }
