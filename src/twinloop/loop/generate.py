"""Generate from a YAML file: states, then pixels where asked for; figures for people and programs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from twinloop.core.errors import CheckFailedError, InputError
from twinloop.core.files import dumps
from twinloop.core.pool import cores
from twinloop.generate import GenerateConfig, check_render, generate_states, read_config, render_dataset
from twinloop.twin import load_twin


def run_generate(
    file: Path,
    output: Path,
    *,
    episodes: int | None,
    seed: int | None,
    workers: int,
    resume: bool,
    keep: Literal["success", "all"],
    console: Console,
) -> dict[str, Any]:
    """Generate what a YAML file asks for and print its figures."""
    config = read_config(file, episodes=episodes, seed=seed, keep=keep)
    workers, images = checked_workers(workers), output.with_name(f"{output.name}-images")
    if config.render is not None:
        check_render(config.render, load_twin(config.twin))
        if images.exists() and not resume:
            raise InputError(
                f"{images} is there already, and would take the pixels. Move it, or choose another --output."
            )
    figures = states_pass(config, output, workers=workers, resume=resume)
    console.print(states_line(figures, output))
    if not figures["episodes"]:
        raise CheckFailedError(
            f"None of {figures['attempted']} attempts succeeded, so {output} holds no episode. Look at some with "
            "--keep all, narrow the randomization, or check the twin with `twinloop twin check`."
        )
    if config.render is not None:
        began = time.perf_counter()
        rendered = render_dataset(output, images, config.render, workers=workers, resume=resume and images.exists())
        figures["render"] = {**rendered, "output": str(images), **timed_rate(rendered, time.perf_counter() - began)}
        console.print(render_line(figures["render"]))
    return figures


def checked_workers(workers: int) -> int:
    """The number of processes to use; 0 means every core.

    Raises:
        InputError: a negative number.
    """
    if workers < 0:
        raise InputError(f"--workers {workers}: give a number of processes, or 0 for every core.")
    return workers or cores()


def states_pass(config: GenerateConfig, output: Path, *, workers: int, resume: bool = False) -> dict[str, Any]:
    """Pass one, timed; the clock goes to ``OUTPUT.log.jsonl``, never into the data."""
    began, workers = time.perf_counter(), min(workers, -(-config.episodes // config.block_size))
    before = _frames_so_far(output) if resume else {"episodes": 0, "frames": 0}
    result = generate_states(config, output, workers=workers, resume=resume)
    seconds = time.perf_counter() - began
    timing = {
        "seconds": seconds,
        "workers": workers,
        "episodes_per_second": (result["episodes"] - before["episodes"]) / seconds,
        "frames_per_second": (result["frames"] - before["frames"]) / seconds,
    }
    _log(output, {"verb": "generate", **timing})
    return {**result, "output": str(output), "timing": timing}


def states_line(figures: Mapping[str, Any], output: Path) -> str:
    """One line about a states pass."""
    low, high = figures["yield_interval"]
    timing = figures["timing"]
    return (
        f"{figures['success']} of {figures['attempted']} attempts succeeded "
        f"(yield {figures['yield']:.1%}, 95 % interval {low:.1%} to {high:.1%}), {figures['invalid']} invalid; "
        f"{figures['episodes']} episodes, {figures['frames']} frames kept, "
        f"{timing['episodes_per_second']:.1f} episodes/s, "
        f"{timing['frames_per_second']:.0f} frames/s on {timing['workers']} workers: {output}"
    )


def render_line(figures: Mapping[str, Any]) -> str:
    """One line about a rendering pass."""
    return (
        f"{figures['episodes']} episodes rendered by {figures['renderer']}, {len(figures['cameras'])} cameras "
        f"{figures['height']}×{figures['width']}, {figures['pictures_per_second']:.0f} pictures/s "
        f"({figures['frames_per_second']:.0f} frames/s): {figures['output']}"
    )


def timed_rate(rendered: Mapping[str, Any], seconds: float) -> dict[str, float]:
    """Rates of a rendering pass."""
    frames = rendered["frames"] / seconds
    return {
        "seconds": seconds,
        "frames_per_second": frames,
        "pictures_per_second": frames * len(rendered["cameras"]),
        "episodes_per_second": rendered["episodes"] / seconds,
    }


def _frames_so_far(output: Path) -> dict[str, int]:
    info = output / "meta" / "info.json"
    if not info.is_file():
        return {"episodes": 0, "frames": 0}
    value = json.loads(info.read_text())
    return {"episodes": value["total_episodes"], "frames": value["total_frames"]}


def _log(output: Path, entry: Mapping[str, Any]) -> None:
    path = output.with_name(f"{output.name}.log.jsonl")
    with path.open("a") as file:
        file.write(dumps({"finished": datetime.now(UTC).isoformat(timespec="seconds"), **entry}) + "\n")
