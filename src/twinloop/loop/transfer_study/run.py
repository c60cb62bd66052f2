"""`bench transfer`: plan the parts, make those that are missing, and say what came out."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from twinloop.core.errors import InputError
from twinloop.core.files import read_json, write_json
from twinloop.core.pool import LocalProcesses, cores
from twinloop.core.progress import track
from twinloop.loop.marked import around, write_between
from twinloop.loop.runs import write_report, write_result
from twinloop.loop.studies import printed
from twinloop.loop.transfer_study import pages
from twinloop.loop.transfer_study.conditions import NUMBERS
from twinloop.loop.transfer_study.figures import TransferResult
from twinloop.loop.transfer_study.parts import Part, demos_of, make, policy_of, successes
from twinloop.loop.transfer_study.settings import TransferSettings
from twinloop.policies.door import require_torch
from twinloop.report import Report

PAGE, MARK = "transfer.md", "twinloop bench transfer"
_ASKED = "study.json"


def run_bench_transfer(
    console: Console, settings: TransferSettings, output: Path, *, workers: int = 0, docs: Path | None = None
) -> dict[str, Any]:
    """Measure, print, and store ``result.json`` and ``report.html``; with ``docs``, put the tables into their page.

    A study that was interrupted goes on where it was: whatever is whole in ``output`` is kept.

    Raises:
        InputError: the folder holds a study of other settings, or the page has no place for the tables.
        MissingDependencyError: torch is not installed.
    """
    require_torch()
    if docs is not None:
        around(docs / PAGE, MARK)
    _claim(output, settings)
    trials, scripts = _wanted(settings, output)
    seconds = _make_all([*trials, *scripts], console, workers or cores())
    result = _result(settings, trials, scripts, seconds)
    for table in pages.tables(result):
        console.print(printed(table))
        if table.note:
            console.print(table.note, soft_wrap=True)
    page = Report("Does the gap close?", f"{len(result.robots)} virtual robots")
    write_report(page, lambda report: pages.page(report, result), output / "report.html", console)
    figures = write_result(output, result.to_json())
    if docs is not None:
        write_between(docs / PAGE, MARK, "\n\n".join(table.markdown() for table in pages.tables(result)))
    return figures


def _claim(output: Path, settings: TransferSettings) -> None:
    """Refuse a folder of another study."""
    asked, file = settings.made_of(), output / _ASKED
    if file.is_file():
        before = read_json(file)
        unlike = sorted(key for key in asked if key != "hash" and before.get(key) != _as_stored(asked[key]))
        if unlike:
            raise InputError(
                f"{output} holds a study with another {', '.join(unlike)}. Give the same, or choose another --output."
            )
        return
    output.mkdir(parents=True, exist_ok=True)
    write_json(file, asked)


def _as_stored(value: Any) -> Any:
    """A plain value as it comes back from a file."""
    return json.loads(json.dumps(value))


def _wanted(settings: TransferSettings, output: Path) -> tuple[list[Part], list[Part]]:
    """The trials of all policies, and those of the script."""
    folder = str(output)
    trials = [
        Part(kind="trials", folder=folder, settings=settings, robot=robot, seed=seed, condition=condition.number)
        for robot, seed, condition in itertools.product(settings.robot_seeds, range(settings.seeds), settings.chosen)
    ]
    scripts = [Part(kind="script", folder=folder, settings=settings, robot=robot) for robot in settings.robot_seeds]
    return trials, scripts


def _needs(part: Part) -> list[Part]:
    """What must be there before a part can be made."""
    if part.kind == "trials":
        return [policy_of(part)]
    if part.kind == "policy":
        condition = NUMBERS[part.condition]
        kinds = [*([condition.worlds] if condition.worlds else []), *(["real"] if condition.real else [])]
        return [demos_of(part, kind) for kind in kinds]
    if part.kind == "demos" and part.worlds in ("point", "posterior"):
        return [Part(kind="log", folder=part.folder, settings=part.settings, robot=part.robot)]
    return []


def _make_all(wanted: Sequence[Part], console: Console, workers: int) -> dict[str, dict[str, float]]:
    """Make parts and what they need, stage by stage, on some processes; returns what each kind took."""
    ordered = stages(wanted)
    took: dict[str, dict[str, float]] = {}
    with LocalProcesses(workers) as engine:
        for stage in ordered:
            kinds = ", ".join(sorted({part.kind for part in stage}))
            console.print(f"{kinds}: {sum(not part.done for part in stage)} of {len(stage)} to make")
            for part, seconds in track(engine.map(make, stage), label=kinds, total=len(stage)):
                sums = took.setdefault(part.kind, {})
                for clock, value in seconds.items():
                    sums[clock] = sums.get(clock, 0.0) + value
    return dict(sorted(took.items()))


def stages(wanted: Iterable[Part]) -> list[list[Part]]:
    """Parts in an order in which each finds what it needs: what is needed first, first."""
    ordered = [_by_path(wanted)]
    while True:
        needed = _by_path(itertools.chain.from_iterable(map(_needs, ordered[0])))
        if not needed:
            return ordered
        ordered.insert(0, needed)


def _by_path(parts: Iterable[Part]) -> list[Part]:
    return list({part.path: part for part in parts}.values())


def _result(
    settings: TransferSettings, trials: Sequence[Part], scripts: Sequence[Part], seconds: dict[str, dict[str, float]]
) -> TransferResult:
    share = {(part.condition, part.robot, part.seed): float(np.mean(successes(part))) for part in trials}
    robots = settings.robot_seeds
    return TransferResult(
        robots=tuple(robots),
        trials=settings.episodes,
        success={
            condition.number: np.array(
                [[share[condition.number, robot, seed] for seed in range(settings.seeds)] for robot in robots]
            )
            for condition in settings.chosen
        },
        script=np.array([float(np.mean(successes(part))) for part in scripts]),
        seconds=seconds,
        made_of=settings.made_of(),
    )
