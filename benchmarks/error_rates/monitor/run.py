"""Evaluate the monitor on virtual robots with and without faults: ``python -m benchmarks monitor``."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.demonstrations import PerturbedExpert, write_demonstrations
from benchmarks.error_rates.monitor.settings import POLICY, ROBOTS, SMALL, TASK, TWIN, MonitorSettings
from benchmarks.error_rates.monitor.tables import tables
from benchmarks.error_rates.monitor.trials import Robot, evaluate_images, evaluate_robot
from benchmarks.studies import around, printed, write_between
from twinloop.core.pool import LocalProcesses, count_cores
from twinloop.randomize import Plan, default_draws
from twinloop.rollout import Actor, BatchResult, TrackerNoise, run_batch
from twinloop.simulate import open_backend
from twinloop.tasks import open_task
from twinloop.train import SourceConfig, TrainConfig, train
from twinloop.twin import load_twin

PLACE, PAGE = "benchmarks monitor", "evidence/release.md"
_DEMOS, _BATCH = 11, 64  # run seed of the demonstrations, and how many are simulated together
_SHAKE = 0.0175  # rad, standard deviation of the noise on the expert's commands
TABLES = ("alarms", "faults", "causes", "unlikeness")


def run_bench_monitor(
    console: Console,
    *,
    settings: MonitorSettings | None = None,
    small: bool = False,
    policy: Path | None = None,
    seed: int = 0,
    workers: int = 0,
    docs: Path | None = None,
) -> dict[str, Any]:
    """Run the study and print its tables; if ``docs`` is given, also replace the tables in that folder's page.

    Args:
        console: Where to print.
        settings: Size of the study.
        small: Use the small settings, without images, if ``settings`` is None.
        policy: Folder of a policy to use instead of training one.
        seed: Run seed.
        workers: Number of processes; 0 uses every core.
        docs: Documentation folder.

    Raises:
        InputError: If the page has no place for a table; raised before anything runs.
    """
    size = settings or (SMALL if small else MonitorSettings())
    if docs is not None:
        for name in TABLES:
            around(docs / PAGE, f"{PLACE} {name}")
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        acting = policy or train_policy(Path(folder), size, seed)
        console.print(f"Policy: {acting} ({time.perf_counter() - began:.0f} s)")
        robots, images = _run_robots(acting, size, seed, workers)
    made = tables(robots, images, size)
    for name, table in made.items():
        console.print(printed(table))
        console.print(f"{table.note}\n", soft_wrap=True)
        if docs is not None:
            write_between(docs / PAGE, f"{PLACE} {name}", table.markdown())
    seconds = time.perf_counter() - began
    console.print(f"{seconds:.0f} s")
    return {"seed": seed, "seconds": seconds, "tables": {name: table.to_json() for name, table in made.items()}}


def train_policy(folder: Path, size: MonitorSettings, seed: int) -> Path:
    """Train a policy on demonstrations in randomized worlds and return its folder."""
    _demonstrate(folder / "demos", size.demos)
    config = TrainConfig(
        policy="mlp",
        settings=POLICY,
        sources=(SourceConfig(data=str(folder / "demos"), name="sim", kind="sim"),),
        steps=size.steps,
        batch=256,
        lr=1.5e-3,
        seed=seed,
        threads=1,
        holdout=0.0,
        evaluations=1,
    )
    train(config, folder / "policy")
    return folder / "policy"


def _demonstrate(folder: Path, count: int) -> None:
    """Write demonstrations in the twin's default ranges, of a number of attempts."""
    twin = load_twin(TWIN)
    task, plan = open_task(TASK, twin), Plan(twin=twin, run_seed=_DEMOS, draws=tuple(default_draws(twin)))
    expert = PerturbedExpert(task=task, twin=twin, tracker=TrackerNoise(noise=0.001), shake=_SHAKE)

    def run(actor: Actor, numbers: Sequence[int]) -> BatchResult:
        backend = open_backend("threads", nthread=1)
        return run_batch(
            twin, task, plan.draw(numbers), run_seed=_DEMOS, episodes=numbers, actor=actor, backend=backend
        )

    batches = [range(first, min(first + _BATCH, count)) for first in range(0, count, _BATCH)]
    write_demonstrations(folder, expert, run, batches)


def _run_robots(policy: Path, size: MonitorSettings, seed: int, workers: int) -> tuple[list[Robot], list[Robot]]:
    items = [(ROBOTS + number, size, str(policy), seed) for number in range(size.robots)]
    with LocalProcesses(workers or count_cores()) as engine:
        every = [(False, *item) for item in items] + [(True, *item) for item in items[: bool(size.has_images)]]
        made = [robot for _, robot in engine.map(_run_item, every)]
    return made[: size.robots], made[size.robots :]


def _run_item(item: tuple[bool, int, MonitorSettings, str, int]) -> Robot:
    return (evaluate_images if item[0] else evaluate_robot)(item[1:])
