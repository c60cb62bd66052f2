"""Compare `generate` with the bare engine: the same commands and parameters replayed through ``Batch.step``.

The bare loop has no expert, sensors, delays and writing: it sets recorded controls and steps, with the same worlds,
substeps and threads. The ratio counts only steps of episodes that were written. It is computed from wall-clock time and
from CPU time over all processes; CPU time depends little on other work on the machine.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from twinloop.core.pool import count_cores
from twinloop.generate import generate_states, resolve_config
from twinloop.generate.batches import load_setup, simulate_batch
from twinloop.rollout import BatchResult
from twinloop.simulate.threads import make_batch

EPISODES = 1024  # so many that start-up and the coverage measurement are 5 % of the time
TARGET = 0.8
CONFIG = {
    "scene": {"robot": "so101", "task": "pick_and_place"},
    "randomization": "default",
    "rollout": {"parallel_envs": EPISODES},
}


def run(episodes: int = EPISODES, rounds: int = 3) -> dict:
    """Return ratios of several rounds, each with the bare loop and generate, and their spread."""
    rows = [_round(episodes) for _ in range(rounds)]
    ratios = [row["generate_steps_per_s"] / row["bare_steps_per_s"] for row in rows]
    busy = [row["generate_steps_per_processor_s"] / row["bare_steps_per_processor_s"] for row in rows]
    return {
        "name": "generate, states only, SO-101 pick and place, default randomization",
        "against": "bare Batch.step loop, same commands, parameters, worlds and threads",
        "ratio": float(np.median(ratios)),
        "ratio_min": float(min(ratios)),
        "ratio_max": float(max(ratios)),
        "processor_ratio": float(np.median(busy)),
        "processor_ratio_min": float(min(busy)),
        "processor_ratio_max": float(max(busy)),
        "target": TARGET,
        "episodes_per_s": float(np.median([row["episodes_per_s"] for row in rows])),
        "yield": rows[0]["yield"],
        "cores": count_cores(),
        "rounds": rows,
    }


def _round(episodes: int) -> dict:
    config = resolve_config(CONFIG, where="benchmark", folder=Path.cwd(), episodes=episodes)
    with tempfile.TemporaryDirectory() as folder:
        began, busy = time.perf_counter(), _processor_s()
        result = generate_states(config, Path(folder) / "batch", workers=count_cores())
        seconds, processor = time.perf_counter() - began, _processor_s() - busy
    _, plan, task = load_setup(config.model_dump_json())
    substeps, bare_steps = plan.twin.substeps, 0
    bare = np.zeros(2)
    for start in range(0, episodes, config.batch_size):
        numbers = range(start, min(start + config.batch_size, episodes))
        batch = simulate_batch(config, plan, task, numbers, nthread=count_cores())
        bare += _bare(batch)
        bare_steps += batch.trajectories.commands.shape[0] * batch.trajectories.commands.shape[1] * substeps
    return {
        "generate_steps_per_s": result["frames"] * substeps / seconds,
        "generate_steps_per_processor_s": result["frames"] * substeps / processor,
        "bare_steps_per_s": bare_steps / bare[0],
        "bare_steps_per_processor_s": bare_steps / bare[1],
        "episodes_per_s": result["episodes"] / seconds,
        "yield": result["yield"],
    }


def _processor_s() -> float:
    """Return the CPU time of this process and of its finished child processes."""
    return sum(os.times()[:4])


def _bare(batch: BatchResult) -> tuple[float, float]:
    """Return wall-clock and CPU seconds of the bare loop for one batch."""
    commands = np.ascontiguousarray(batch.trajectories.commands.swapaxes(0, 1))
    engine = make_batch(batch.twin, batch.params, batch.initial, count_cores())
    control = engine.bind("ctrl")
    began, busy = time.perf_counter(), _processor_s()
    for command in commands:
        control[:] = command
        engine.step(nstep=batch.twin.substeps)
    return time.perf_counter() - began, _processor_s() - busy


if __name__ == "__main__":
    metrics = run(int(sys.argv[1]) if len(sys.argv) > 1 else EPISODES)
    for key, value in metrics.items():
        print(f"{key}: {value}")
