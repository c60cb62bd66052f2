"""``python -m benchmarks monitor``: a policy, virtual robots with and without faults, and what their monitors say."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.error_rates.monitor.settings import POLICY, RECIPE, ROBOTS, SMALL, TWIN, MonitorSettings
from benchmarks.error_rates.monitor.tables import tables
from benchmarks.error_rates.monitor.trials import Robot, try_pictures, try_robot
from benchmarks.studies import around, printed, write_between
from twinloop.core.pool import LocalProcesses, count_cores
from twinloop.train import SourceConfig, TrainConfig, train
from twinloop.twin import load_twin
from twinloop.workflows.demo.virtual_robots.demonstrations import training_worlds, write_demonstrations

PLACE, PAGE = "benchmarks monitor", "evidence/release.md"
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
    """Run the study, print its tables and, with ``docs``, put each into its page of that folder.

    Args:
        console: gets the tables.
        settings: how large it is.
        small: a small one, without pictures.
        policy: acts in the place of one that is trained here.
        seed: run seed.
        workers: processes; 0 takes every core.
        docs: folder of the page.

    Raises:
        InputError: a page without a place for its table; said before anything runs.
    """
    size = settings or (SMALL if small else MonitorSettings())
    if docs is not None:
        for name in TABLES:
            around(docs / PAGE, f"{PLACE} {name}")
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        acting = policy or taught(Path(folder), size, seed)
        console.print(f"Policy: {acting} ({time.perf_counter() - began:.0f} s)")
        robots, pictures = _tried(acting, size, seed, workers)
    made = tables(robots, pictures, size)
    for name, table in made.items():
        console.print(printed(table))
        console.print(f"{table.note}\n", soft_wrap=True)
        if docs is not None:
            write_between(docs / PAGE, f"{PLACE} {name}", table.markdown())
    seconds = time.perf_counter() - began
    console.print(f"{seconds:.0f} s")
    return {"seed": seed, "seconds": seconds, "tables": {name: table.to_json() for name, table in made.items()}}


def taught(folder: Path, size: MonitorSettings, seed: int) -> Path:
    """A policy of demonstrations in randomized worlds."""
    write_demonstrations(
        training_worlds("ranges", load_twin(TWIN), RECIPE), folder / "demos", count=size.demos, recipe=RECIPE
    )
    config = TrainConfig(
        policy=RECIPE.policy,
        settings=POLICY,
        sources=(SourceConfig(data=str(folder / "demos"), name="sim", kind="sim"),),
        steps=size.steps,
        batch=RECIPE.batch,
        lr=RECIPE.lr,
        seed=seed,
        threads=1,
        holdout=0.0,
        evaluations=1,
    )
    train(config, folder / "policy")
    return folder / "policy"


def _tried(policy: Path, size: MonitorSettings, seed: int, workers: int) -> tuple[list[Robot], list[Robot]]:
    items = [(ROBOTS + number, size, str(policy), seed) for number in range(size.robots)]
    with LocalProcesses(workers or count_cores()) as engine:
        every = [(False, *item) for item in items] + [(True, *item) for item in items[: bool(size.pictured)]]
        made = [robot for _, robot in engine.map(_try, every)]
    return made[: size.robots], made[size.robots :]


def _try(item: tuple[bool, int, MonitorSettings, str, int]) -> Robot:
    return (try_pictures if item[0] else try_robot)(item[1:])
