"""Search for rare failures of a policy: estimate their rate, map where they occur, and store the most probable ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from twinloop.core.headline import HeadlineMetric
from twinloop.core.progress import track
from twinloop.generate.config import GenerateConfig, load_plan, read_config
from twinloop.report import KeyMetric, ReportPage
from twinloop.report.scenario import plot_failure_map
from twinloop.rollout.scenario import Scenario, WorldOrigin
from twinloop.rollout.scenario_files import write_scenario
from twinloop.scenario.rare_failures import (
    CELLS,
    FailureMap,
    ScoredPoints,
    SearchOptions,
    SearchResult,
    active_axes,
    choose_map_axes,
    estimate_failure_rate,
    extend_failure_map,
    log_density,
)
from twinloop.scenario.search import PlanSearch, simplify_failures
from twinloop.simulate import open_backend
from twinloop.tasks import Task, open_task
from twinloop.twin import Twin
from twinloop.workflows.run.results import MeasuredRun
from twinloop.workflows.run.taught_worlds import print_ranges
from twinloop.workflows.scenario import references
from twinloop.workflows.scenario.requests import ScenarioSearchRequest

_NAMED = 6  # shown parameters of a failure: those farthest from the middle of their distribution
_SHOWN = 8  # shown failures
_OFF = 1.0  # standard deviations from the middle below which a parameter is not shown


class _CountedSearch:
    """Simulator of a search that shows the progress, and counts the simulated worlds in ``worlds``."""

    def __init__(self, search: PlanSearch) -> None:
        self._search, self.worlds = search, 0

    def __call__(self, z: Any) -> ScoredPoints:
        halves = np.array_split(z, max(1, len(z) // 128))
        done = [self._search(part) for part in track(halves, label="search", total=len(halves))]
        self.worlds += len(z)
        return ScoredPoints.concatenate_points(done)


def run_search(request: ScenarioSearchRequest, console: Console) -> tuple[dict[str, Any], int]:
    """Search for rare failures of a policy, print the result, and store the most probable failures as scenarios.

    Returns:
        The metrics, and exit code 1 if a condition of ``--fail-if`` is true, else 0.
    """
    run = MeasuredRun.begin("scenario", "search", request.output, request.fail_if, console)
    config = read_config(request.file, seed=None, keep="all")
    plan = load_plan(config)
    print_ranges(config, plan.twin, console)
    task = open_task(config.task, plan.twin)
    actor = references.open_actor(request.policy, plan.twin, task)
    backend = open_backend(config.file.rollout.backend)
    worlds = PlanSearch(plan, task, actor, backend)
    simulate = _CountedSearch(worlds)
    search = SearchOptions(
        round_size=request.worlds, rounds=request.rounds, modes=request.modes, draws=request.draws, seed=request.seed
    )
    found = estimate_failure_rate(simulate, len(worlds.axes), search, level=request.level)
    archive = _build_failure_map(request, found, worlds, simulate)
    plain = _simplify_failures(request, archive, simulate)
    result = _collect_metrics(request, found, archive, plain, worlds, actor.name) | {"worlds": simulate.worlds}
    _print_search(result, console)
    result["kept"] = _store_failures(request, plain, worlds, plan.twin, task, config)
    for folder in result["kept"]:
        console.print(f"Stored: {folder}", soft_wrap=True)
    rate = found.rate.interval
    headline = [
        HeadlineMetric(
            name="failure rate",
            estimate=float(rate.estimate),
            low=float(rate.low),
            high=float(rate.high),
            level=rate.level,
            better="lower",
        )
    ]
    subtitle = f"{request.file.name}, {request.policy}, {result['worlds']} worlds"
    return run.end(
        result,
        headline,
        title="Search for rare failures",
        subtitle=subtitle,
        fill=lambda page: _fill_report(page, result, archive, worlds),
    )


def _build_failure_map(
    request: ScenarioSearchRequest, found: SearchResult, worlds: PlanSearch, simulate: _CountedSearch
) -> FailureMap:
    axes = choose_map_axes(worlds.axes, request.by, found.proposal, found.points)
    archive = FailureMap.of(axes, found.points)
    if request.illuminate and found.points.failed.any():
        rng = np.random.default_rng([request.seed, 1])
        size = request.worlds
        rounds = -(-request.illuminate // size)
        extend_failure_map(archive, simulate, active_axes(found.proposal), worlds=size, rounds=rounds, rng=rng)
    return archive


def _simplify_failures(request: ScenarioSearchRequest, archive: FailureMap, simulate: _CountedSearch) -> ScoredPoints:
    """Return the failures to show and store, most probable first, after simplification.

    The simplification moves parameters that a failure does not need back towards the centre of their distribution.

    Args:
        request: flags of the command.
        archive: failures of the search, by cell of a map.
        simulate: simulator of the search.
    """
    rows = archive.failures[: max(request.keep, _SHOWN)]
    shown = _select_rows(archive.points, rows)
    if not rows or not request.simplify:
        return shown
    rng = np.random.default_rng([request.seed, 2])
    best, tried = simplify_failures(simulate, shown.z, rounds=request.simplify, rng=rng)
    known = ScoredPoints.concatenate_points([tried, archive.points])
    order = np.argsort(-log_density(best), kind="stable")
    rows = [int(np.flatnonzero((known.z == row).all(axis=1))[0]) for row in best[order]]
    return _select_rows(known, list(dict.fromkeys(rows)))  # different failures may have become equal


def _select_rows(points: ScoredPoints, rows: list[int]) -> ScoredPoints:
    return ScoredPoints(
        z=points.z[rows], score=points.score[rows], failed=points.failed[rows], invalid=points.invalid[rows]
    )


def _collect_metrics(
    request: ScenarioSearchRequest,
    found: SearchResult,
    archive: FailureMap,
    plain: ScoredPoints,
    worlds: PlanSearch,
    actor: str,
) -> dict[str, Any]:
    final = found.points.failed[-found.estimate_draws :]
    return {
        "schema": 1,
        "file": str(request.file),
        "policy": request.policy,
        "actor": actor,
        "axes": len(worlds.axes),
        "depends_on": [name for name, moved in zip(worlds.axes, _influential_axes(found), strict=True) if moved],
        "rate": found.rate.to_json(),
        "levels": [list(level) for level in found.levels],
        "lost": int(archive.points.invalid.sum()),
        "failing_share_of_final_draws": float(final.mean()),
        "map": [worlds.axes[axis] for axis in archive.axes],
        "cells_with_failures": len(archive.failures),
        "cells_reached": len(archive.rows),
        "failures": [_failure_to_json(plain, row, worlds) for row in range(len(plain))],
    }


def _influential_axes(found: SearchResult) -> list[bool]:
    return (found.proposal.mean != 0.0).any(axis=0).tolist() if found.proposal.modes else [False] * found.proposal.axes


def _failure_to_json(plain: ScoredPoints, row: int, worlds: PlanSearch) -> dict[str, Any]:
    z = plain.z[row]
    order = [int(axis) for axis in np.argsort(-np.abs(z), kind="stable")[:_NAMED] if abs(z[axis]) >= _OFF]
    values = worlds.values(z)
    return {
        "progress": float(plain.score[row]),
        "distance": float(np.linalg.norm(z)),
        "parameters_off": int((np.abs(z) >= _OFF).sum()),
        "log_density": float(log_density(z[None])[0]),
        "parameters": {name: values[name] for axis in order for name in worlds.axes[axis].split("+")[:1]},
        "deviations": {worlds.axes[axis]: float(z[axis]) for axis in order},
    }


def _print_search(result: dict[str, Any], console: Console) -> None:
    rate = result["rate"]
    console.print(
        f"Failure rate {rate['rate']:.2g} ({rate['low']:.2g} to {rate['high']:.2g}, {rate['level']:.0%}) from "
        f"{rate['draws']} weighted draws, with an interval as narrow as from "
        f"{rate['plain_draws']:,.0f} unweighted draws; {result['worlds']} worlds in all.",
        soft_wrap=True,
    )
    if rate["warning"]:
        console.print(rate["warning"], style="yellow", soft_wrap=True, markup=False)
    named = ", ".join(result["depends_on"]) or "no parameter that the search could identify"
    console.print(f"It depends on {named}.", soft_wrap=True)
    table = Table(
        "failure", "progress", "distance", "farthest from the centre of the distribution, in standard deviations"
    )
    for number, failure in enumerate(result["failures"]):
        said = ", ".join(f"{name} {value:+.1f}" for name, value in failure["deviations"].items())
        table.add_row(
            str(number), f"{failure['progress']:.2f}", f"{failure['distance']:.1f}", said or "nothing beyond 1"
        )
    console.print(table)


def _store_failures(
    request: ScenarioSearchRequest,
    plain: ScoredPoints,
    worlds: PlanSearch,
    twin: Twin,
    task: Task,
    config: GenerateConfig,
) -> list[str]:
    kept: list[str] = []
    for number in range(min(request.keep, len(plain))):
        name = f"searched-{request.file.stem}-{number}"
        scenario = Scenario.of_episode(
            worlds.episode(plain.z[number]),
            twin,
            task,
            name=name,
            reason="found by search",
            origin=WorldOrigin(source="sim", place=str(request.file), actor=request.policy),
        )
        scenario = scenario.with_references(config.twin, config.task, twin, task)
        kept.append(str(write_scenario(scenario, references.scenarios_folder(request.scenarios) / name)))
    return kept


def _fill_report(page: ReportPage, result: dict[str, Any], archive: FailureMap, worlds: PlanSearch) -> None:
    rate = result["rate"]
    page.section("Failure rate", rate["warning"])
    page.key_metrics(
        [
            KeyMetric(
                label="failure rate",
                value=f"{rate['rate']:.2g}",
                source=f"{rate['low']:.2g} to {rate['high']:.2g}, {rate['level']:.0%}",
            ),
            KeyMetric(label="worlds run", value=result["worlds"], source="search, estimate and map"),
            KeyMetric(
                label="unweighted draws for the same interval", value=round(rate["plain_draws"]), source="by its width"
            ),
        ]
    )
    page.section(
        "Map of failures",
        f"The map has {CELLS} × {CELLS} equally probable cells. The number in a cell is ½ ‖z‖² of its most probable "
        "failure, where z are all drawn parameters in standard deviations from the middle of their distribution. A "
        "larger number is less probable. In an empty cell no failure was found.",
    )
    page.plot(plot_failure_map(archive.log_density_drop, [worlds.axes[axis] for axis in archive.axes]))
    page.table(
        ["failure", "progress", "distance from the middle", "farthest parameters (standard deviations)"],
        [
            [
                number,
                failure["progress"],
                failure["distance"],
                ", ".join(f"{name} {value:+.1f}" for name, value in failure["deviations"].items()),
            ]
            for number, failure in enumerate(result["failures"])
        ],
    )
