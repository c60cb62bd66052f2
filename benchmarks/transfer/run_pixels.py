"""Compare policies from images, and print and write the table: ``python -m benchmarks transfer --pixels``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.studies import StudyTable, around, printed, write_between
from benchmarks.transfer.means import RobotMean, average_over_robots
from benchmarks.transfer.pages import format_success
from benchmarks.transfer.parts import DONE
from benchmarks.transfer.pixel_settings import LOOKS, POLICIES, PixelSettings, settings_text
from benchmarks.transfer.pixels import PixelPart
from benchmarks.transfer.study import claim_folder, make_all
from twinloop.core.documents import read_json
from twinloop.core.files import write_json
from twinloop.core.pool import count_cores
from twinloop.policies.factory import require_torch

PAGE = "evidence/pixels.md"


def run_bench_pixels(
    console: Console, settings: PixelSettings, output: Path, *, workers: int = 0, docs: Path | None = None
) -> dict[str, Any]:
    """Run the study for one look, print its table, and write ``result-FAMILY-LOOK-POLICIES.json``.

    If ``docs`` is given, also replace the table of these policies in that folder's page. Complete parts in ``output``
    are reused.

    Raises:
        InputError: If the folder contains a study with other settings, or the page lacks marker comments.
        MissingDependencyError: If torch or the renderer of the look is not installed.
    """
    require_torch()
    name = "-".join((settings.family, settings.look, *settings.policies))
    mark = f"benchmarks transfer pixels {name.replace('-', ' ')}"
    if docs is not None:
        around(docs / PAGE, mark)
    asked = claim_folder(output, settings_text(settings))
    parts = {
        (kind, seed): [
            PixelPart(kind="trials", folder=str(output), settings=settings, seed=seed, robot=robot, policy=kind)
            for robot in settings.robot_seeds
        ]
        for kind in settings.policies
        for seed in range(settings.seeds)
    }
    make_all([part for row in parts.values() for part in row], console, workers or count_cores())
    success = {
        kind: np.array([[part.read_success() for part in parts[kind, seed]] for seed in range(settings.seeds)]).T
        for kind in settings.policies
    }
    means = {kind: average_over_robots(rates, episodes=settings.episodes) for kind, rates in success.items()}
    minutes = {kind: _training_minutes(parts, kind, settings.seeds) for kind in settings.policies}
    trials = [read_json(part.path / DONE)["processor_s"] for row in parts.values() for part in row]
    per_minute = 60.0 * settings.episodes / float(np.mean(trials))
    table = _make_table(settings, means, minutes, per_minute, asked)
    console.print(printed(table))
    console.print(table.note, soft_wrap=True)
    if docs is not None:
        write_between(docs / PAGE, mark, table.markdown())
    made = {
        "schema": 1,
        "verb": "bench transfer pixels",
        "family": settings.family,
        "look": settings.look,
        "robots": settings.robot_seeds,
        "trials": settings.episodes,
        "policies": {
            kind: {
                **means[kind].to_json(),
                "success": rates.tolist(),
                "minutes": minutes[kind],
            }
            for kind, rates in success.items()
        },
        "trials_per_core_minute": per_minute,
        "asked": asked,
    }
    write_json(output / f"result-{name}.json", made)
    return made


def _training_minutes(parts: Mapping[tuple[Any, int], Sequence[PixelPart]], kind: Any, seeds: int) -> float:
    """Return the mean CPU time of all parts that a policy needs, its images included, in minutes."""
    total = 0.0
    for seed in range(seeds):
        waiting, counted = [parts[kind, seed][0].acting], dict[Path, float]()
        while waiting:
            part = waiting.pop()
            counted[part.path] = float(read_json(part.path / DONE)["processor_s"])
            waiting += part.needs
        total += sum(counted.values())
    return total / seeds / 60.0


def _make_table(
    settings: PixelSettings,
    means: Mapping[Any, RobotMean],
    minutes: Mapping[Any, float],
    per_minute: float,
    asked: Mapping[str, Any],
) -> StudyTable:
    rows = [
        (
            POLICIES[kind],
            *format_success(mean),
            f"{minutes[kind]:.0f}",
        )
        for kind, mean in means.items()
    ]
    note = (
        f"{LOOKS[settings.look].label}. Robots of the family {settings.family}: seeds {settings.robot_seeds[0]} to "
        f"{settings.robot_seeds[-1]}; training runs: {settings.seeds}; {settings.episodes} trials per policy and "
        "robot. Intervals: Student's over robots, and at least the exact one of all trials; `sd of runs`: between "
        "training runs on one robot. CPU minutes: of "
        f"one policy, images and the policy from states included. A core makes {per_minute:.2g} trials a minute. "
        f"Settings and code were frozen in commit {asked.get('commit') or 'unknown'}."
    )
    head = ("policies from images", "success", "95 % over robots", "per robot", "worst", "sd of runs", "CPU minutes")
    return StudyTable(title="Policies from images", head=head, rows=tuple(rows), note=note)
