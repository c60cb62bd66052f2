"""Simulate the episodes of a run (first pass): processes or a Ray cluster simulate batches, one process writes them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.pool import LocalProcesses, WorkEngine, count_cores
from twinloop.core.profile import Profile, record_spans, span
from twinloop.core.progress import track
from twinloop.core.records import SimEpisode
from twinloop.dataset.invalid_worlds import InvalidAttempt
from twinloop.dataset.lerobot.writer import DatasetWriter
from twinloop.dataset.spec import DatasetSpec
from twinloop.generate.batches import (
    BatchOutcome,
    GenerateBatch,
    dataset_units,
    find_ready_blocks,
    run_batch_job,
    run_batch_job_locally,
)
from twinloop.generate.config import GenerateConfig, identified_range_notes, load_plan
from twinloop.generate.coverage import measure_run_draws
from twinloop.generate.readings import SensorSamples, environment_spec, reading_specs
from twinloop.randomize import Plan
from twinloop.rollout import software_versions
from twinloop.simulate import open_backend
from twinloop.stats import wilson
from twinloop.tasks import open_task
from twinloop.tasks.assignment import assign

_ENGINES = ("local", "ray", "ray:HOST:PORT")


def open_engine(name: str = "local", *, workers: int = 0) -> WorkEngine:
    """Open the work engine that runs batches, by name.

    Args:
        name: ``local`` (processes on this machine), ``ray`` (the cluster of RAY_ADDRESS, else only this machine), or
            ``ray:HOST:PORT``.
        workers: number of batches at a time; 0 for one per core of this machine or of the cluster.

    Raises:
        UnknownNameError: If the engine does not exist.
        InputError: If the number of workers is negative.
        MissingDependencyError: If Ray is not installed, or no cluster answers.
    """
    if workers < 0:
        raise InputError(f"--workers {workers}: give a number of processes, or 0 for every core.")
    kind, _, address = name.partition(":")
    if name == "local":
        return LocalProcesses(workers or count_cores())
    if kind == "ray":
        from twinloop.simulate.ray_cluster import RayCluster

        return RayCluster(address, workers=workers)
    raise UnknownNameError("engine", name, _ENGINES)


def generate_states(
    config: GenerateConfig,
    output: Path | str,
    *,
    workers: int = 1,
    engine: WorkEngine | None = None,
    resume: bool = False,
    profile: Profile | None = None,
) -> dict[str, Any]:
    """Generate a dataset of states, and return the result of the run as a dictionary.

    Dataset and result depend only on ``config``, not on the number of processes or on interruptions.

    Args:
        config: configuration of the run.
        output: a missing or empty folder, or the address of one in an object store. If ``resume`` is true, also the
            folder of an earlier run with the same configuration.
        workers: number of processes on this machine; the dataset does not depend on it.
        engine: engine to use instead of processes on this machine; see `open_engine`.
        resume: continue an interrupted run.
        profile: collects the time of each step over all processes.

    Raises:
        TwinloopError: If the input is wrong, the folder is in use, or the disk is full. Committed blocks are kept.
    """
    with record_spans(profile), span("start"):
        open_backend(config.file.rollout.backend)
        plan = load_plan(config)
        spec = dataset_spec(config, plan)
        with DatasetWriter.open(output, spec, resume=resume) as writer:
            here = LocalProcesses(min(workers, count_batches(config, writer.next_block)))
            with nullcontext(engine) if engine else here as place:
                batch = GenerateBatch(
                    config=config.model_dump_json(),
                    plan_hash=plan.hash,
                    versions=dict(software_versions()),
                    nthread=place.threads,
                    profile=profile is not None,
                )
                while count_batches(config, writer.next_block) > 0:
                    blocks, rounds = find_ready_blocks(config, plan, writer.outcomes, writer.next_block)
                    _generate_blocks(config, writer, blocks, replace(batch, rounds=rounds), place, profile)
            with span("coverage"):
                facts, documents = measure_run_draws(config, plan, writer.path, writer.outcomes)
            result = {**_make_result(config, plan, writer), **facts}
            with span("commit"):
                writer.finish(result, documents=documents)
    return result


def count_batches(config: GenerateConfig, first_block: int = 0) -> int:
    """Return the number of batches from block ``first_block`` to the end of the run.

    A batch is the set of worlds that a worker simulates at once; a block is a number of batches that are written to the
    dataset together.
    """
    return -(-(config.episodes - first_block * config.block_size) // config.batch_size)


def _generate_blocks(
    config: GenerateConfig,
    writer: DatasetWriter,
    blocks: range,
    batch: GenerateBatch,
    engine: WorkEngine,
    profile: Profile | None,
) -> None:
    jobs = _make_jobs(config, blocks, batch)
    total = sum(len(_batch_starts(config, block)) for block in blocks)
    done = track(
        engine.map(run_batch_job if engine.in_other_processes else run_batch_job_locally, jobs),
        label="simulate",
        total=total,
    )
    for block, outcomes in itertools.groupby(done, key=lambda pair: pair[0].block):
        kept, aside, counts, felt = _merge_outcomes((outcome for _, outcome in outcomes), profile)
        with span("commit"):
            writer.commit_block(block, kept, outcome=counts, invalid=aside, tables=felt)


def _batch_starts(config: GenerateConfig, block: int) -> range:
    """Return the first episode number of each batch of a block.

    A batch is simulated at once by one worker; a block is a number of batches that are written to the dataset together.
    """
    start = block * config.block_size
    return range(start, min(start + config.block_size, config.episodes), config.batch_size)


def _make_jobs(config: GenerateConfig, blocks: range, batch: GenerateBatch) -> Iterator[GenerateBatch]:
    """Yield one job for each batch of the given blocks.

    Args:
        config: configuration of the run.
        blocks: numbers of the blocks (batches that are written to the dataset together).
        batch: template; each job is a copy of it with its block number and episode numbers.
    """
    for block in blocks:
        for start in _batch_starts(config, block):
            numbers = tuple(range(start, min(start + config.batch_size, config.episodes)))
            yield replace(batch, block=block, numbers=numbers)


def _merge_outcomes(
    outcomes: Iterable[BatchOutcome], profile: Profile | None
) -> tuple[list[SimEpisode], list[InvalidAttempt], dict[str, int], SensorSamples]:
    """Merge the outcomes of the batches of one block.

    Args:
        outcomes: outcomes of the batches.
        profile: profile to which the times that the batches measured are added; None for no profile.

    Returns:
        Stored episodes, invalid attempts, summed counts by name (attempts, successes, invalid worlds and others), and
            sensor samples by side table.
    """
    kept: list[SimEpisode] = []
    aside: list[InvalidAttempt] = []
    felt: SensorSamples = {}
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        kept += outcome.episodes
        aside += outcome.invalid_attempts
        counts.update(outcome.counts)
        for name, parts in outcome.sensor_samples.items():
            felt.setdefault(name, []).extend(parts)
        if profile is not None:
            profile.add_process_seconds(outcome.seconds)
    return kept, aside, dict(sorted(counts.items())), felt


def _make_result(config: GenerateConfig, plan: Plan, writer: DatasetWriter) -> dict[str, Any]:
    counts = writer.total_outcome
    attempted, success = counts["attempted"], counts["success"]
    interval = wilson(success, attempted)
    return {
        "schema": 1,
        "verb": "generate",
        "twin": plan.twin.name,
        "twin_hash": plan.twin.hash,
        "task": config.task,
        "backend": config.file.rollout.backend,
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
        **_placement_acceptance(counts),
    }


def _placement_acceptance(counts: Mapping[str, int]) -> dict[str, Any]:
    """Return how many random placements of clutter were accepted; empty if no clutter was placed.

    Args:
        counts: counts of the run: ``placed`` is the number of accepted placements, ``placements`` that of all.

    Returns:
        ``clutter``: a dictionary with ``placed``, ``drawn`` (all placements) and ``acceptance`` = placed / drawn.
    """
    placed, drawn = counts.get("placed", 0), counts.get("placements", 0)
    return {"clutter": {"placed": placed, "drawn": drawn, "acceptance": placed / drawn}} if drawn else {}


def dataset_spec(config: GenerateConfig, plan: Plan) -> DatasetSpec:
    """Return the specification of the dataset that a run writes: joints, units, rate, configuration and features."""
    twin, rollout = plan.twin, config.file.rollout
    task = open_task(config.task, twin)
    tracked = (environment_spec(task),) if rollout.environment_state else ()
    assignment, files = assign(config.twin, config.task, twin, task)
    return DatasetSpec(
        name=f"{twin.name} {task.name}",
        robot_type=twin.robot.type,
        fps=round(twin.control_hz),
        joints=tuple(twin.robot.joints),
        units=dataset_units(config, twin),
        config={"generate": config.model_dump(mode="json"), "plan": plan.to_json(), "assignment": assignment.to_json()},
        sources=files,
        twin_hash=twin.hash,
        config_hash=config.hash,
        block_size=config.block_size,
        unsteady=_has_variable_period(plan),
        readings=(*tracked, *reading_specs(twin, rollout.sensors)),
        ranges=tuple(identified_range_notes(config, twin)),
    )


def _has_variable_period(plan: Plan) -> bool:
    """Return whether the control period can differ from the nominal one in some world."""
    drawn = {name for draw in plan.draws for name in draw.names}
    clock = [param for name, param in plan.twin.params.items() if param.quantity.stage == "clock"]
    return any(param.name in drawn or param.nominal != param.quantity.default for param in clock)
