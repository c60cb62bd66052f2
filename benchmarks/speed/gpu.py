"""Compare simulation and rendering on a CUDA device with the bare step loop and renderer of ``mujoco_warp``."""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from twinloop.core.errors import InputError, MissingDependencyError
from twinloop.core.params import ParamTable
from twinloop.randomize import Plan, default_draws
from twinloop.render import Fields, SceneStates
from twinloop.render.warp import WarpQuality, WarpRenderer
from twinloop.rollout import BatchResult, run_batch
from twinloop.simulate import InitialState, Simulation
from twinloop.simulate.rollout import BACKENDS
from twinloop.stats import clopper_pearson
from twinloop.tasks import Task, open_task
from twinloop.twin import Twin, load_twin

if TYPE_CHECKING:
    from twinloop.simulate.warp import BackendWarp

WORLDS = tuple(4**power for power in range(8))  # 1 to 16,384
TARGET = 0.9  # of the bare loop's rate
_TASK = "pick_and_place"
_COLUMNS = ("worlds", "steps/s", "bare steps/s", "ratio", "trajectories/s", "successful/s", "success", "memory")


def run_bench_gpu(
    console: Console,
    *,
    device: str = "cuda",
    worlds: Sequence[int] = WORLDS,
    twin: str = "so101_tabletop",
    rounds: int = 3,
    deterministic: bool = True,
) -> dict[str, Any]:
    """Run whole episodes of the expert and the bare step loop for each number of worlds, and print a table.

    Steps per second are measured from the first command to the last state on the host. Trajectories per second include
    everything, from the parameter draw to the success check. Kernels are compiled before.

    Raises:
        MissingDependencyError: If the device or a package is missing.
        InputError: If there is no number of worlds, or a number is below 1.
    """
    if not worlds or min(worlds) < 1 or rounds < 1:
        raise InputError("Give at least one number of worlds, each at least 1, and at least one round.")
    warp: Any = BACKENDS["warp"](device, deterministic=deterministic)
    backend, built = _Timed(warp), load_twin(twin)
    task = open_task(_TASK, built)
    _episodes(built, task, backend, 1)
    table = Table(*_COLUMNS, title=f"{twin}, {_TASK}, mujoco_warp on {device}, median of {rounds}")
    rows = []
    for count in worlds:
        rows.append(_measure(built, task, backend, count, rounds))
        table.add_row(*_cells(rows[-1]))
    console.print(table)
    return {
        "device": device,
        "twin": twin,
        "task": _TASK,
        "deterministic": deterministic,
        "rounds": rounds,
        "target": TARGET,
        "rows": rows,
    }


class _Timed:
    """A backend that measures the time of `start`, and stores the running simulation."""

    name = "warp"

    def __init__(self, backend: BackendWarp) -> None:
        self.backend, self.seconds = backend, 0.0
        self.simulation: Any = None

    def start(
        self, twin: Twin, params: ParamTable, initial: InitialState, nstep: int, *, derived: Sequence[str] = ()
    ) -> Simulation:
        self.simulation = None  # frees its memory first
        began = time.perf_counter()
        self.simulation = self.backend.start(twin, params, initial, nstep, derived=derived)
        self.seconds = time.perf_counter() - began
        return self.simulation


def _episodes(twin: Twin, task: Task, backend: _Timed, count: int) -> tuple[BatchResult, float, float]:
    """Run one batch; return the result, seconds of its control steps, and total seconds."""
    began = time.perf_counter()
    params = Plan(twin=twin, run_seed=0, draws=tuple(default_draws(twin))).draw(range(count))
    drawn = time.perf_counter()
    result = run_batch(twin, task, params, run_seed=0, episodes=range(count), backend=backend)
    ended = time.perf_counter()
    return result, ended - drawn - backend.seconds, ended - began


def _measure(twin: Twin, task: Task, backend: _Timed, count: int, rounds: int) -> dict[str, Any]:
    stepping, whole, bare, success, memory = [], [], [], 0.0, 0
    for _ in range(rounds):
        result, steps_s, whole_s = _episodes(twin, task, backend, count)
        memory = max(memory, backend.backend.memory_used() or _peak_memory())
        backend.simulation.restart(np.arange(count), result.params, result.initial)
        bare.append(backend.backend.measure_bare_seconds(backend.simulation, result.trajectories.commands))
        stepping.append(steps_s)
        whole.append(whole_s)
        success = float(result.success.mean())
    steps = count * task.nstep * twin.substeps
    ratios = [alone / ours for alone, ours in zip(bare, stepping, strict=True)]
    return {
        "worlds": count,
        "steps_per_s": steps / float(np.median(stepping)),
        "bare_steps_per_s": steps / float(np.median(bare)),
        "ratio": float(np.median(ratios)),
        "trajectories_per_s": count / float(np.median(whole)),
        "successful_per_s": success * count / float(np.median(whole)),
        "success": success,
        "memory_bytes": memory,
    }


def _peak_memory() -> int:
    """Return the peak memory of this process in bytes (Linux reports KiB)."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _cells(row: dict[str, Any]) -> list[str]:
    rates = [f"{row[name]:,.0f}" for name in ("steps_per_s", "bare_steps_per_s")]
    made = [f"{row[name]:,.1f}" for name in ("trajectories_per_s", "successful_per_s")]
    memory = f"{row['memory_bytes'] / 2**30:.2f} GiB"
    success = clopper_pearson(round(row["success"] * row["worlds"]), row["worlds"]).percent(1)
    return [f"{row['worlds']:,}", *rates, f"{row['ratio']:.2f}", *made, success, memory]


IMAGE_WORLDS = tuple(4**power for power in range(7))  # 1 to 4,096
_IMAGE_COLUMNS = ("worlds", "images/s", "bare images/s", "ratio")


def run_bench_images(
    console: Console,
    *,
    device: str = "cuda",
    worlds: Sequence[int] = IMAGE_WORLDS,
    twin: str = "so101_tabletop",
    rounds: int = 3,
    height: int = 128,
    width: int = 128,
) -> dict[str, Any]:
    """Render worlds with different appearance from the twin's first camera, for each number of worlds; print a table.

    Images per second include everything from states and model fields to pixels, both in host memory. The bare rate is
    for the same worlds already on the device, where the pixels stay. Kernels are compiled before.

    Raises:
        MissingDependencyError: If the device or a package is missing.
        InputError: If there is no number of worlds, or a number is below 1.
    """
    if not worlds or min(worlds) < 1 or rounds < 1:
        raise InputError("Give at least one number of worlds, each at least 1, and at least one round.")
    built = load_twin(twin)
    size = {"height": height, "width": width, "cameras": built.spec.cameras[:1]}
    quality = WarpQuality(device=device, batch=max(worlds))
    table = Table(*_IMAGE_COLUMNS, title=f"{twin}, {width}×{height}, mujoco_warp on {device}, median of {rounds}")
    rows = []
    with WarpRenderer(built.model, quality=quality, **size) as renderer:
        for count in worlds:
            params = Plan(twin=built, run_seed=0, draws=tuple(default_draws(built))).draw(range(count))
            fields = built.fields(params, visual=True).arrays
            states = SceneStates(qpos=InitialState.home(built, count).qpos)
            rows.append(_measure_images(renderer, states, fields, rounds))
            cells = [f"{rows[-1][name]:,.0f}" for name in ("images_per_s", "bare_images_per_s")]
            table.add_row(f"{count:,}", *cells, f"{rows[-1]['ratio']:.2f}")
    console.print(table)
    return {"device": device, "twin": twin, "height": height, "width": width, "rounds": rounds, "rows": rows}


def _measure_images(renderer: WarpRenderer, states: SceneStates, fields: Fields, rounds: int) -> dict[str, float]:
    renderer.render(states, fields)
    ours, bare = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        renderer.render(states, fields)
        ours.append(time.perf_counter() - began)
        bare.append(renderer.measure_bare_seconds(1))
    ratios = [alone / whole for alone, whole in zip(bare, ours, strict=True)]
    return {
        "worlds": len(states),
        "images_per_s": len(states) / float(np.median(ours)),
        "bare_images_per_s": len(states) / float(np.median(bare)),
        "ratio": float(np.median(ratios)),
    }


def run(device: str = "cuda") -> dict:
    """Return the metrics, or the reason why they cannot be measured on this machine."""
    try:
        metrics = run_bench_gpu(Console(), device=device, worlds=WORLDS)
        return metrics | {"images": run_bench_images(Console(), device=device)}
    except MissingDependencyError as error:
        return {"skipped": str(error), "target": TARGET}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    print(run(parser.parse_args().device))
