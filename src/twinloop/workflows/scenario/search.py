"""Search for rare failures: their rate, their region, and the most probable ones stored as scenarios."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from twinloop.core.console import track
from twinloop.core.headline import HeadlineMetric
from twinloop.generate.config import load_plan, read_config
from twinloop.report import KeyMetric, ReportPage
from twinloop.report.scenario import failure_map
from twinloop.rollout.pinned import PinnedWorld, WorldOrigin
from twinloop.rollout.pinned_files import write_pinned
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
from twinloop.tasks import open_task
from twinloop.workflows.run.results import MeasuredRun
from twinloop.workflows.scenario import places
from twinloop.workflows.scenario.requests import ScenarioSearchRequest

_NAMED = 6  # shown parameters of a failure: those farthest from the middle of their distribution
_SHOWN = 8  # shown failures
_OFF = 1.0  # standard deviations from the middle below which a parameter is not shown


class _CountedSearch:
    """A search that shows its progress and counts its worlds."""

    def __init__(self, search: PlanSearch) -> None:
        self._search, self.worlds = search, 0

    def __call__(self, z: Any) -> ScoredPoints:
        halves = np.array_split(z, max(1, len(z) // 128))
        done = [self._search(part) for part in track(halves, label="search", total=len(halves))]
        self.worlds += len(z)
        return ScoredPoints.concatenate_points(done)


def run_search(asked: ScenarioSearchRequest, console: Console) -> tuple[dict[str, Any], int]:
    """Search, print the result, and store the most probable failures."""
    run = MeasuredRun.begin("scenario", "search", asked.output, asked.fail_if, console)
    config = read_config(asked.file, seed=None, keep="all")
    plan = load_plan(config)
    task = open_task(config.task, plan.twin)
    actor = places.open_actor(asked.policy, plan.twin, task)
    backend = open_backend(config.file.rollout.backend)
    worlds = PlanSearch(plan, task, actor, backend)
    try_ = _CountedSearch(worlds)
    search = SearchOptions(
        round_size=asked.worlds, rounds=asked.rounds, modes=asked.modes, draws=asked.draws, seed=asked.seed
    )
    found = estimate_failure_rate(try_, len(worlds.axes), search, level=asked.level)
    archive = _build_failure_map(asked, found, worlds, try_)
    plain = _simplify_failures(asked, archive, try_)
    figures = _collect_metrics(asked, found, archive, plain, worlds, actor.name) | {"worlds": try_.worlds}
    _print_search(figures, console)
    figures["kept"] = _store_failures(asked, plain, worlds, plan.twin, task, config.twin)
    for folder in figures["kept"]:
        console.print(f"Kept {folder}", soft_wrap=True)
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
    subtitle = f"{asked.file.name}, {asked.policy}, {figures['worlds']} worlds"
    return run.end(
        figures,
        headline,
        title="Search for rare failures",
        subtitle=subtitle,
        fill=lambda page: _fill_report(page, figures, archive, worlds),
    )


def _build_failure_map(
    asked: ScenarioSearchRequest, found: SearchResult, worlds: PlanSearch, try_: _CountedSearch
) -> FailureMap:
    axes = choose_map_axes(worlds.axes, asked.by, found.proposal, found.seen)
    archive = FailureMap.of(axes, found.seen)
    if asked.illuminate and found.seen.failed.any():
        rng = np.random.default_rng([asked.seed, 1])
        size = asked.worlds
        rounds = -(-asked.illuminate // size)
        extend_failure_map(archive, try_, active_axes(found.proposal), worlds=size, rounds=rounds, rng=rng)
    return archive


def _simplify_failures(asked: ScenarioSearchRequest, archive: FailureMap, try_: _CountedSearch) -> ScoredPoints:
    """Return the failures to show and store, most probable first, without unnecessary deviations of parameters."""
    rows = archive.failures[: max(asked.keep, _SHOWN)]
    shown = _select_rows(archive.seen, rows)
    if not rows or not asked.simplify:
        return shown
    rng = np.random.default_rng([asked.seed, 2])
    best, tried = simplify_failures(try_, shown.z, rounds=asked.simplify, rng=rng)
    known = ScoredPoints.concatenate_points([tried, archive.seen])
    order = np.argsort(-log_density(best), kind="stable")
    rows = [int(np.flatnonzero((known.z == row).all(axis=1))[0]) for row in best[order]]
    return _select_rows(known, list(dict.fromkeys(rows)))  # different failures may have become equal


def _select_rows(seen: ScoredPoints, rows: list[int]) -> ScoredPoints:
    return ScoredPoints(z=seen.z[rows], score=seen.score[rows], failed=seen.failed[rows], lost=seen.lost[rows])


def _collect_metrics(
    asked: ScenarioSearchRequest,
    found: SearchResult,
    archive: FailureMap,
    plain: ScoredPoints,
    worlds: PlanSearch,
    actor: str,
) -> dict[str, Any]:
    fresh = found.seen.failed[-found.fresh :]
    return {
        "schema": 1,
        "file": str(asked.file),
        "policy": asked.policy,
        "actor": actor,
        "axes": len(worlds.axes),
        "depends_on": [name for name, moved in zip(worlds.axes, _influential_axes(found), strict=True) if moved],
        "rate": found.rate.to_json(),
        "levels": [list(level) for level in found.levels],
        "lost": int(archive.seen.lost.sum()),
        "failing_share_of_final_draws": float(fresh.mean()),
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


def _print_search(figures: dict[str, Any], console: Console) -> None:
    rate = figures["rate"]
    console.print(
        f"Failure rate {rate['rate']:.2g} ({rate['low']:.2g} to {rate['high']:.2g}, {rate['level']:.0%}) from "
        f"{rate['draws']} weighted draws, as narrow as {rate['plain_draws']:,.0f} plain ones; {figures['worlds']} "
        "worlds in all.",
        soft_wrap=True,
    )
    if rate["warning"]:
        console.print(rate["warning"], style="yellow", soft_wrap=True, markup=False)
    named = ", ".join(figures["depends_on"]) or "no parameter that the search could identify"
    console.print(f"It depends on {named}.", soft_wrap=True)
    table = Table(
        "failure", "progress", "distance", "farthest from the centre of the distribution, in standard deviations"
    )
    for number, failure in enumerate(figures["failures"]):
        said = ", ".join(f"{name} {value:+.1f}" for name, value in failure["deviations"].items())
        table.add_row(
            str(number), f"{failure['progress']:.2f}", f"{failure['distance']:.1f}", said or "nothing beyond 1"
        )
    console.print(table)


def _store_failures(
    asked: ScenarioSearchRequest, plain: ScoredPoints, worlds: PlanSearch, twin: Any, task: Any, reference: str
) -> list[str]:
    kept: list[str] = []
    for number in range(min(asked.keep, len(plain))):
        name = f"searched-{asked.file.stem}-{number}"
        pinned = PinnedWorld.of_episode(
            worlds.episode(plain.z[number]),
            twin,
            task,
            name=name,
            twin_reference=reference,
            reason="found by search",
            origin=WorldOrigin(source="sim", place=str(asked.file), actor=asked.policy),
        )
        kept.append(str(write_pinned(pinned, places.scenarios_folder(asked.scenarios) / name)))
    return kept


def _fill_report(page: ReportPage, figures: dict[str, Any], archive: FailureMap, worlds: PlanSearch) -> None:
    rate = figures["rate"]
    page.section("How often?", rate["warning"])
    page.key_metrics(
        [
            KeyMetric(
                label="failure rate",
                value=f"{rate['rate']:.2g}",
                source=f"{rate['low']:.2g} to {rate['high']:.2g}, {rate['level']:.0%}",
            ),
            KeyMetric(label="worlds run", value=figures["worlds"], source="search, estimate and map"),
            KeyMetric(
                label="plain draws for the same interval", value=round(rate["plain_draws"]), source="by its width"
            ),
        ]
    )
    page.section(
        "Where?",
        f"Each of {CELLS} × {CELLS} cells is as probable as any other. Its number is ½ z² of its likeliest failure, "
        "over all that is drawn: how far that is from the middle. Empty cells: no failure was found.",
    )
    page.plot(failure_map(archive.log_density_drop, [worlds.axes[axis] for axis in archive.axes]))
    page.table(
        ["failure", "progress", "distance from the middle", "farthest parameters (standard deviations)"],
        [
            [
                number,
                failure["progress"],
                failure["distance"],
                ", ".join(f"{name} {value:+.1f}" for name, value in failure["deviations"].items()),
            ]
            for number, failure in enumerate(figures["failures"])
        ],
    )
