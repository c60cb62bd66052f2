"""Run the stored scenarios again, with a policy or on another version of their twin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from twinloop.core.errors import InputError, TwinloopError
from twinloop.rollout.pinned import PinnedWorld
from twinloop.rollout.pinned_files import rebase, rewrite_pinned
from twinloop.scenario.regress import (
    RegressionVerdict,
    compare_trials,
    decide_verdicts,
    format_expectation,
    parse_expectation,
)
from twinloop.scenario.trials import TrialOutcomes, try_actor
from twinloop.simulate import Backend, open_backend
from twinloop.tasks import Task, open_task
from twinloop.twin import Twin, load_twin
from twinloop.workflows.run.results import MeasuredRun
from twinloop.workflows.scenario import places
from twinloop.workflows.scenario.interventions import resolve_actor
from twinloop.workflows.scenario.requests import RegressRequest

_TRIES = 32  # trials of a scenario without a stored expectation


def run_regress(request: RegressRequest, console: Console) -> tuple[dict[str, Any], int]:
    """Run the scenarios again in the same worlds, and compare the outcomes world by world.

    Returns:
        The result, and exit code 1 if one regressed, could not be run, or (on a new twin) no longer reproduces a
        failure of a robot.

    Raises:
        InputError: there is no scenario, or none has an expectation and ``accept`` is not given.
    """
    run = MeasuredRun.begin("scenario", "regress", request.output, (), console)
    backend = open_backend()
    found = places.open_scenarios(request.names, request.scenarios)
    if not request.accept:
        _require_expectation([pinned for _, pinned in found])
    loaded = load_twin(request.twin) if request.twin else None
    tried = [
        _regress_scenario(world, request.policy, loaded, request.twin, backend, accept=request.accept)
        for _, world in found
    ]
    real = [pinned.readings is not None for _, pinned in found] if loaded is not None else ()
    verdicts = decide_verdicts([verdict for verdict, _ in tried], alpha=request.alpha, real=real)
    console.print(_table(verdicts))
    for row in verdicts:
        if row.note:
            console.print(f"{row.name}: {row.note}", soft_wrap=True)
    failed = [row.name for row in verdicts if row.fails_build]
    if request.accept:
        moved = [(folder, world) for (folder, _), (_, world) in zip(found, tried, strict=True)]
        _store_expectations(moved, verdicts, request.policy, console)
    figures = {
        "policy": request.policy,
        "twin": request.twin,
        "alpha": request.alpha,
        "accepted": request.accept,
        "scenarios": [row.to_json(request.level) for row in verdicts],
        "regressed": failed,
    }
    result, _ = run.end(figures, [])
    if failed and not request.accept:
        console.print(f"{len(failed)} of {len(verdicts)} scenarios fail: {', '.join(failed)}.", soft_wrap=True)
    return result, int(bool(failed) and not request.accept)


def _regress_scenario(
    pinned: PinnedWorld, policy: str, loaded: Twin | None, reference: str, backend: Backend, *, accept: bool
) -> tuple[RegressionVerdict, PinnedWorld]:
    """Run one scenario again; return its verdict (``refused`` with the reason after an error) and its world."""
    was = TrialOutcomes.of_outcomes("")
    try:
        was = _load_stored_outcomes(pinned, accept=accept)
        world, twin, task, note = _move_to_twin(pinned, loaded, reference)
        now = try_actor(
            world,
            twin,
            task,
            places.open_actor(resolve_actor(pinned, policy), twin, task),
            len(was) or _TRIES,
            backend=backend,
        )
        return compare_trials(pinned.name, was if len(was) else now, now, note=note), world
    except TwinloopError as error:
        return RegressionVerdict(name=pinned.name, word="refused", was=was, now=None, note=str(error)), pinned


def _require_expectation(worlds: Sequence[PinnedWorld]) -> None:
    """Refuse if no scenario has an expectation; a single one without is refused in its row.

    Raises:
        InputError: there is no expectation for any.
    """
    for at, pinned in enumerate(worlds, start=1):
        try:
            parse_expectation(pinned.evidence, pinned.name)
        except InputError:
            if at == len(worlds):
                raise
        else:
            return


def _load_stored_outcomes(pinned: PinnedWorld, *, accept: bool) -> TrialOutcomes:
    """Return the stored expectation; empty if the current result will be stored."""
    try:
        return parse_expectation(pinned.evidence, pinned.name)[1]
    except InputError:
        if not accept:
            raise
        return TrialOutcomes.of_outcomes("")


def _move_to_twin(pinned: PinnedWorld, loaded: Twin | None, reference: str) -> tuple[PinnedWorld, Twin, Task, str]:
    """Return the world on the twin of this run, with twin and task, and a text on the changes."""
    if loaded is None or loaded.hash == pinned.twin_hash:
        twin, task = pinned.open(loaded)
        return pinned, twin, task, _describe_version_change(pinned, task)
    task = open_task(pinned.task_reference, loaded)
    moved = rebase(pinned, loaded, task)
    said = f"moved from {pinned.twin_hash[:12]} to {loaded.hash[:12]}: {moved.text}"
    world = replace(moved.world, twin=reference)
    return world, loaded, task, "; ".join(part for part in (said, _describe_version_change(pinned, task)) if part)


def _describe_version_change(pinned: PinnedWorld, task: Task) -> str:
    if task.success_version == pinned.success_version:
        return ""
    return f"what counts as success changed from {pinned.success_version} to {task.success_version}"


def _store_expectations(
    moved: Sequence[tuple[Path, PinnedWorld]], verdicts: Sequence[RegressionVerdict], policy: str, console: Console
) -> None:
    """Store the current results as the expectations, with the current twin."""
    kept = 0
    for (folder, world), verdict in zip(moved, verdicts, strict=True):
        if verdict.now is None:
            continue
        evidence = {**world.evidence, "expected": format_expectation(resolve_actor(world, policy), verdict.now)}
        rewrite_pinned(replace(world, evidence=evidence), folder)
        kept += 1
    console.print(
        f"Accepted: {kept} of {len(verdicts)} scenarios now have the current result as their expectation.",
        soft_wrap=True,
    )


def _table(verdicts: Sequence[RegressionVerdict]) -> Table:
    table = Table("scenario", "was", "is", "gained", "lost", "p fell", "p rose", "verdict")
    for row in verdicts:
        table.add_row(
            row.name,
            _format_rate(row.was),
            "–" if row.now is None else _format_rate(row.now),
            str(row.gained),
            str(row.lost),
            f"{row.p_fell:.2g}",
            f"{row.p_rose:.2g}",
            row.word,
        )
    return table


def _format_rate(tried: TrialOutcomes) -> str:
    if not tried.trials:
        return "–"
    rate = tried.success_rate()
    low, high = float(rate.low), float(rate.high)
    return f"{tried.successes}/{tried.trials} ({low:.0%} to {high:.0%})"
