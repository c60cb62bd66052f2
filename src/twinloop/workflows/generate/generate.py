"""Run ``twinloop generate`` and ``replay``: simulate a dataset from a YAML file, and repeat a stored episode.

A first pass simulates states; a second pass renders images if they are requested.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from twinloop.core.errors import CheckFailedError, InputError
from twinloop.core.files import dumps
from twinloop.core.pool import WorkEngine, count_cores
from twinloop.core.profile import Profile
from twinloop.dataset.storage.targets import is_address, local_path, read_committed_progress
from twinloop.generate import (
    GenerateConfig,
    RenderConfig,
    check_render,
    generate_states,
    open_engine,
    read_config,
    render_dataset,
    replay_episode,
    replay_invalid_attempt,
)
from twinloop.generate.states import count_batches
from twinloop.twin import load_twin
from twinloop.workflows.coverage.coverage import format_draws
from twinloop.workflows.generate.requests import GenerateRequest, ReplayRequest
from twinloop.workflows.run.taught_worlds import print_ranges

# Steps of an episode in their order, each with a description.
STEPS = {
    "start": "loading the twin and the task, starting processes",
    "draw": "parameters of every world",
    "reset": "initial states of the worlds",
    "expert": "computing the commands",
    "command path": "encoder map, bias and delay of the commands",
    "physics": "MuJoCo",
    "recording": "copying states, detecting invalid worlds",
    "sensing and success": "readings in the dataset's units, success predicate",
    "provenance": "records of the kept episodes",
    "idle": "worker processes without work, results in transfer",
    "waiting": "the writing process, without results to write",
    "encode parquet": "tables, hashes and statistics of the episodes",
    "statistics": "the dataset's metadata and quantiles",
    "commit": "links, syncing to the disk, replacing the folder",
}


def profile_metrics(profile: Profile, *, seconds: float, workers: int, attempted: int) -> dict[str, Any]:
    """Return the time of each step of a run in s, as a share of the total time, and in ms per attempted episode.

    Args:
        profile: times of the writing process, which include those measured by the worker processes.
        seconds: duration of the run in s of real time.
        workers: number of worker processes, excluding the writing process.
        attempted: number of episodes attempted in this time.
    """
    elsewhere = dict(profile.other_process_seconds)
    if workers:
        elsewhere["idle"] = max(0.0, seconds * workers - sum(elsewhere.values()))
    total = sum(profile.seconds.values()) + sum(elsewhere.values())
    rows: list[dict[str, Any]] = []
    for step in dict.fromkeys([*STEPS, *profile.seconds, *elsewhere]):
        here, there = profile.seconds.get(step, 0.0), elsewhere.get(step, 0.0)
        if here + there > 0:
            rows.append(
                {
                    "step": step,
                    "description": STEPS.get(step, ""),
                    "writer_s": here,
                    "workers_s": there,
                    "share": (here + there) / total,
                    "ms_per_episode": 1e3 * (here + there) / attempted,
                }
            )
    return {"seconds": seconds, "processes": workers + 1, "episodes": attempted, "steps": rows}


def profile_table(metrics: dict[str, Any]) -> Table:
    """Return the metrics of `profile_metrics` as a table, with steps of at least a tenth of the time in bold."""
    title = f"{metrics['seconds']:.1f} s on {metrics['processes']} processes, {metrics['episodes']} episodes attempted"
    table = Table("step", title=title)
    for name in ("writer, s", "workers, s", "share", "ms per episode"):
        table.add_column(name, justify="right")
    for row in metrics["steps"]:
        style = "bold" if row["share"] >= 0.1 else ""
        table.add_row(
            row["step"],
            f"{row['writer_s']:.2f}",
            f"{row['workers_s']:.2f}",
            f"{row['share']:.1%}",
            f"{row['ms_per_episode']:.3f}",
            style=style,
        )
    return table


_NOTHING = {"attempted": 0, "episodes": 0, "frames": 0}  # counts before a run that is not resumed


def run_generate(request: GenerateRequest, console: Console) -> dict[str, Any]:
    """Generate a dataset from a YAML file, render its images if requested, and print the result.

    Raises:
        CheckFailedError: If no attempt succeeded, so that the dataset has no episode.
    """
    names = ("episodes", "seed", "keep", "backend", "randomize_from")
    config = read_config(request.file, **{name: getattr(request, name) for name in names})
    ranges = print_ranges(config, load_twin(config.twin), console) if config.identified else []
    images = _images_folder(config, request.output, resume=request.resume)
    with open_run_engine(config, request.engine, workers=request.workers) as place:
        metrics = run_states_pass(
            config, request.output, place, resume=request.resume, profile=Profile() if request.profile else None
        )
    console.print(format_states(metrics, request.output))
    for line in format_draws(metrics):
        console.print(line)
    if request.profile:
        console.print(profile_table(metrics["profile"]))
    if not metrics["episodes"]:
        raise CheckFailedError(
            f"None of {metrics['attempted']} attempts succeeded, so {request.output} holds no episode. Look at some "
            "with --keep all, narrow the randomization, or check the twin with `twinloop twin check`."
        )
    if config.render is not None and images is not None:
        metrics["render"] = run_images_pass(
            local_path(request.output), images, config.render, workers=request.workers, resume=request.resume
        )
        console.print(format_rendering(metrics["render"]))
    return {**metrics, "ranges": ranges} if ranges else metrics


def _images_folder(config: GenerateConfig, output: str, *, resume: bool) -> Path | None:
    """Return the folder for the images, after a check that they can be rendered; None if no images are requested.

    Args:
        config: content of the generate file.
        output: folder or address of the dataset.
        resume: whether an interrupted run is continued, for which the folder may exist.

    Raises:
        InputError: If the output is an address in a store, or the folder exists.
    """
    if config.render is None:
        return None
    if is_address(output):
        raise InputError(
            f"Images are rendered from a local dataset, not from {output}. Leave out `render:`, copy the states here "
            "with `twinloop fetch`, or choose a local --output."
        )
    check_render(config.render, load_twin(config.twin))
    folder = local_path(output)
    images = folder.with_name(f"{folder.name}-images")
    if images.exists() and not resume:
        raise InputError(
            f"{images} exists already, and the images would be written there. Move it, or choose another --output."
        )
    return images


def resolve_workers(workers: int) -> int:
    """Return the number of processes to use: ``workers``, or the number of cores for 0.

    Raises:
        InputError: If the number is negative.
    """
    if workers < 0:
        raise InputError(f"--workers {workers}: give a number of processes, or 0 for every core.")
    return workers or count_cores()


def open_run_engine(config: GenerateConfig, engine: str, *, workers: int) -> WorkEngine:
    """Open the engine that runs the worlds of a run; a local engine gets at most one process per batch of worlds.

    Args:
        config: content of the generate file.
        engine: ``local``, ``ray`` or ``ray:HOST:PORT``.
        workers: number of processes; 0 for every core.
    """
    if engine == "local":
        workers = min(resolve_workers(workers), count_batches(config))
    return open_engine(engine, workers=workers)


def run_states_pass(
    config: GenerateConfig,
    output: Path | str,
    engine: WorkEngine,
    *,
    resume: bool = False,
    profile: Profile | None = None,
) -> dict[str, Any]:
    """Simulate the episodes of a dataset and store their states, without images; measure the duration.

    The duration is written to ``OUTPUT.log.jsonl`` (in a store to ``log/``), so that the dataset itself stays
    reproducible.

    Args:
        config: content of the generate file.
        output: folder or address of the dataset.
        engine: engine that runs the worlds.
        resume: whether to continue an interrupted run.
        profile: profile that collects the time of each step, or None.

    Returns:
        The metrics of the run. Rates exclude episodes that were written before a resumed run.
    """
    began, workers = time.perf_counter(), engine.workers
    before = _count_committed(output) if resume else _NOTHING
    result = generate_states(config, output, engine=engine, resume=resume, profile=profile)
    seconds = time.perf_counter() - began
    timing = {
        "seconds": seconds,
        "workers": workers,
        "episodes_per_second": (result["episodes"] - before["episodes"]) / seconds,
        "frames_per_second": (result["frames"] - before["frames"]) / seconds,
    }
    _append_log(output, {"verb": "generate", **timing})
    metrics = {**result, "output": str(output), "timing": timing}
    if profile is not None:
        attempted = max(1, result["attempted"] - before["attempted"])
        metrics["profile"] = profile_metrics(
            profile, seconds=seconds, workers=workers if engine.in_other_processes else 0, attempted=attempted
        )
    return metrics


def format_states(metrics: Mapping[str, Any], output: Path | str) -> str:
    """Return one line on a simulation: yield (share of successful attempts), invalid worlds, episodes and speed.

    Args:
        metrics: metrics of the simulation, as `run_states_pass` returns them.
        output: folder or address of the dataset.
    """
    low, high = metrics["yield_interval"]
    timing = metrics["timing"]
    return (
        f"{metrics['success']} of {metrics['attempted']} attempts succeeded "
        f"(yield {metrics['yield']:.1%}, 95 % interval {low:.1%} to {high:.1%}), {_format_invalid(metrics)}; "
        f"{metrics['episodes']} episodes, {metrics['frames']} frames kept, "
        f"{timing['episodes_per_second']:.1f} episodes/s, "
        f"{timing['frames_per_second']:.0f} frames/s on {timing['workers']} workers: {output}"
    )


def _format_invalid(metrics: Mapping[str, Any]) -> str:
    """Return the number of invalid worlds, and how many were invalid for each reason, as text."""
    reasons = ", ".join(f"{reason} {count}" for reason, count in metrics["reasons"].items())
    return f"{metrics['invalid']} invalid" + (f" and stored apart ({reasons})" if reasons else "")


def format_rendering(metrics: Mapping[str, Any]) -> str:
    """Return one line on a rendering pass: renderer, cameras, image sizes and speed."""
    return (
        f"{metrics['episodes']} episodes rendered by {metrics['renderer']}: {_format_views(metrics)}; "
        f"{metrics['images_per_second']:.3g} images/s ({metrics['frames_per_second']:.3g} frames/s): "
        f"{metrics['output']}{_format_meshes(metrics['meshes'])}"
    )


def _format_meshes(meshes: Mapping[str, Any]) -> str:
    """Return a sentence on simplified meshes; empty if the renderer drew the meshes as they are."""
    if not meshes:
        return ""
    return (
        f"\nMeshes were drawn with {meshes['triangles']:,} instead of {meshes['original_triangles']:,} triangles, "
        f"within {1e3 * meshes['tolerance_m']:g} mm; --quality mesh_tolerance=0 draws all."
    )


def _format_views(metrics: Mapping[str, Any]) -> str:
    """Return the rendered cameras with their image sizes, and the cameras whose images were copied, as text."""
    made = ", ".join(f"{camera} {size.replace('x', '×')}" for camera, size in metrics["sizes"].items())
    kept = f", and {', '.join(metrics['carried'])} as before" if metrics["carried"] else ""
    return made + kept


def run_images_pass(
    source: Path, target: Path, settings: RenderConfig, *, workers: int, resume: bool
) -> dict[str, Any]:
    """Render the images of a dataset into a new dataset and measure the time.

    Args:
        source: dataset with states.
        target: folder of the new dataset.
        settings: settings of the renderer.
        workers: number of processes; 0 for every core.
        resume: whether to continue an interrupted run.

    Returns:
        The metrics of the run. Rates exclude images that were committed before a resumed run.
    """
    began = time.perf_counter()
    before = _count_committed(target) if resume else _NOTHING
    rendered = render_dataset(source, target, settings, workers=resolve_workers(workers), resume=resume)
    seconds = time.perf_counter() - began
    frames = (rendered["frames"] - before["frames"]) / seconds
    return {
        **rendered,
        "output": str(target),
        "seconds": seconds,
        "frames_per_second": frames,
        "images_per_second": frames * len(rendered["cameras"]),
        "episodes_per_second": (rendered["episodes"] - before["episodes"]) / seconds,
    }


def _count_committed(output: Path | str) -> dict[str, int]:
    """Return the numbers of attempts, episodes and frames that an interrupted run has already written."""
    progress = read_committed_progress(output)
    attempted = sum(entry.outcome.get("attempted", 0) for entry in progress.blocks)
    return {"attempted": attempted, "episodes": progress.episodes, "frames": progress.frames}


def _append_log(output: Path | str, entry: Mapping[str, Any]) -> None:
    finished = {"finished": datetime.now(UTC).isoformat(timespec="seconds"), **entry}
    if is_address(output):
        from twinloop.dataset.storage.store import write_log

        write_log(str(output), finished)
        return
    folder = local_path(output)
    with folder.with_name(f"{folder.name}.log.jsonl").open("a") as file:
        file.write(dumps(finished) + "\n")


def run_replay(request: ReplayRequest, console: Console) -> tuple[dict[str, Any], int]:
    """Simulate a stored episode again, and compare its states with the stored ones.

    Returns:
        The result, and exit code 1 if ``--verify`` is given and the states differ, else 0.
    """
    result = (replay_invalid_attempt if request.invalid else replay_episode)(request.dataset, request.episode)
    console.print(result.summary_line())
    return result.to_json(), 1 if request.verify and not result.equal else 0
