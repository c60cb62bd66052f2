"""Generate from a YAML file: states, then images if requested; results for people and programs."""

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
    identified_range_notes,
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
    """Return seconds, share of all processes' time and milliseconds per attempted episode, by step.

    Args:
        profile: of the writing process, with the workers' measurements.
        seconds: wall time.
        workers: processes besides the writing one.
        attempted: episodes attempted in this time.
    """
    elsewhere = dict(profile.elsewhere)
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
                    "what": STEPS.get(step, ""),
                    "writer_s": here,
                    "workers_s": there,
                    "share": (here + there) / total,
                    "ms_per_episode": 1e3 * (here + there) / attempted,
                }
            )
    return {"seconds": seconds, "processes": workers + 1, "episodes": attempted, "steps": rows}


def profile_table(figures: dict[str, Any]) -> Table:
    """Return the profile as a table; steps with at least a tenth of the time are bold."""
    title = f"{figures['seconds']:.1f} s on {figures['processes']} processes, {figures['episodes']} episodes attempted"
    table = Table("step", title=title)
    for name in ("writer, s", "workers, s", "share", "ms per episode"):
        table.add_column(name, justify="right")
    for row in figures["steps"]:
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
    """Generate a dataset from a YAML file and print the result."""
    names = ("episodes", "seed", "keep", "backend", "randomize_from")
    config = read_config(request.file, **{name: getattr(request, name) for name in names})
    ranges = (
        identified_range_notes(config.identified, config.kappa, load_twin(config.twin)) if config.identified else []
    )
    for line in ranges:
        console.print(f"Ranges: {line}", soft_wrap=True)
    images = _images_folder(config, request.output, resume=request.resume)
    with open_run_engine(config, request.engine, workers=request.workers) as place:
        figures = run_states_pass(
            config, request.output, place, resume=request.resume, profile=Profile() if request.profile else None
        )
    console.print(format_states(figures, request.output))
    for line in format_draws(figures):
        console.print(line)
    if request.profile:
        console.print(profile_table(figures["profile"]))
    if not figures["episodes"]:
        raise CheckFailedError(
            f"None of {figures['attempted']} attempts succeeded, so {request.output} holds no episode. Look at some "
            "with --keep all, narrow the randomization, or check the twin with `twinloop twin check`."
        )
    if config.render is not None and images is not None:
        figures["render"] = run_images_pass(
            local_path(request.output), images, config.render, workers=request.workers, resume=request.resume
        )
        console.print(format_rendering(figures["render"]))
    return {**figures, "ranges": ranges} if ranges else figures


def _images_folder(config: GenerateConfig, output: str, *, resume: bool) -> Path | None:
    """Return the folder of the images, after checking that they can be rendered; None if none are requested."""
    if config.render is None:
        return None
    if is_address(output):
        raise InputError(
            f"Pixels are made from a local dataset, not from {output}. Leave out `render:`, bring the states here with "
            "`twinloop fetch`, or choose a local --output."
        )
    check_render(config.render, load_twin(config.twin))
    folder = local_path(output)
    images = folder.with_name(f"{folder.name}-images")
    if images.exists() and not resume:
        raise InputError(f"{images} is there already, and would take the pixels. Move it, or choose another --output.")
    return images


def resolve_workers(workers: int) -> int:
    """Return the number of processes to use; 0 means every core.

    Raises:
        InputError: the number is negative.
    """
    if workers < 0:
        raise InputError(f"--workers {workers}: give a number of processes, or 0 for every core.")
    return workers or count_cores()


def open_run_engine(config: GenerateConfig, engine: str, *, workers: int) -> WorkEngine:
    """Return the engine of a run; a local one has no more processes than the run has batches."""
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
    """Run the first pass, and write its timing to ``OUTPUT.log.jsonl`` (in a store to ``log/``), not into the data."""
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
    figures = {**result, "output": str(output), "timing": timing}
    if profile is not None:
        attempted = max(1, result["attempted"] - before["attempted"])
        figures["profile"] = profile_metrics(
            profile, seconds=seconds, workers=workers if engine.elsewhere else 0, attempted=attempted
        )
    return figures


def format_states(figures: Mapping[str, Any], output: Path | str) -> str:
    """Return the result of a states pass as one line."""
    low, high = figures["yield_interval"]
    timing = figures["timing"]
    return (
        f"{figures['success']} of {figures['attempted']} attempts succeeded "
        f"(yield {figures['yield']:.1%}, 95 % interval {low:.1%} to {high:.1%}), {_format_invalid(figures)}; "
        f"{figures['episodes']} episodes, {figures['frames']} frames kept, "
        f"{timing['episodes_per_second']:.1f} episodes/s, "
        f"{timing['frames_per_second']:.0f} frames/s on {timing['workers']} workers: {output}"
    )


def _format_invalid(figures: Mapping[str, Any]) -> str:
    """Return the number of invalid worlds, with the reasons, as text."""
    reasons = ", ".join(f"{reason} {count}" for reason, count in figures["reasons"].items())
    return f"{figures['invalid']} invalid" + (f" and stored apart ({reasons})" if reasons else "")


def format_rendering(figures: Mapping[str, Any]) -> str:
    """Return the result of a rendering pass as one line."""
    return (
        f"{figures['episodes']} episodes rendered by {figures['renderer']}: {_format_views(figures)}; "
        f"{figures['pictures_per_second']:.3g} images/s ({figures['frames_per_second']:.3g} frames/s): "
        f"{figures['output']}"
    )


def _format_views(figures: Mapping[str, Any]) -> str:
    """Return the rendered cameras with their sizes, and those whose images were copied, as text."""
    made = ", ".join(f"{camera} {size.replace('x', '×')}" for camera, size in figures["sizes"].items())
    kept = f", and {', '.join(figures['carried'])} as before" if figures["carried"] else ""
    return made + kept


def run_images_pass(
    source: Path, target: Path, settings: RenderConfig, *, workers: int, resume: bool
) -> dict[str, Any]:
    """Run and time the second pass; its rates exclude blocks that were committed before a resumed run."""
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
        "pictures_per_second": frames * len(rendered["cameras"]),
        "episodes_per_second": (rendered["episodes"] - before["episodes"]) / seconds,
    }


def _count_committed(output: Path | str) -> dict[str, int]:
    """Return the counts that an interrupted run has committed."""
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
    """Simulate a stored episode again and compare; return 1 if equality was required and does not hold."""
    result = (replay_invalid_attempt if request.invalid else replay_episode)(request.dataset, request.episode)
    console.print(result.summary_line())
    return result.to_json(), 1 if request.verify and not result.equal else 0
