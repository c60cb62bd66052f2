"""Run the stored scenarios again, with another policy or on another version of their twin, to find regressions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from twinloop.core.errors import InputError, TwinloopError
from twinloop.rollout.scenario import Scenario
from twinloop.rollout.scenario_files import rebase, rewrite_scenario
from twinloop.scenario.regress import (
    RegressionVerdict,
    compare_trials,
    decide_verdicts,
    format_stored_outcomes,
    parse_stored_outcomes,
)
from twinloop.scenario.trials import TrialOutcomes, try_actor
from twinloop.simulate import Backend, open_backend
from twinloop.tasks import Task, open_task
from twinloop.twin import Twin, load_twin
from twinloop.workflows.run.results import MeasuredRun
from twinloop.workflows.scenario import references
from twinloop.workflows.scenario.interventions import resolve_actor
from twinloop.workflows.scenario.requests import RegressRequest

_TRIES = 32  # trials of a scenario without stored outcomes


def run_regress(request: RegressRequest, console: Console) -> tuple[dict[str, Any], int]:
    """Run stored scenarios again in the same worlds, and compare the outcomes with the stored ones world by world.

    Returns:
        The result and the exit code. The code is 1 if a scenario regressed or could not be run, or if a given twin no
        longer reproduces the failure of a real robot; else 0.

    Raises:
        InputError: If there is no scenario, or no scenario has stored outcomes and ``--accept`` is not given.
    """
    run = MeasuredRun.begin("scenario", "regress", request.output, (), console)
    backend = open_backend()
    found = references.open_scenarios(request.names, request.scenarios)
    if not request.accept:
        _require_stored_outcomes([scenario for _, scenario in found])
    loaded = load_twin(request.twin) if request.twin else None
    tried = [
        _regress_scenario(world, request.policy, loaded, request.twin, backend, accept=request.accept)
        for _, world in found
    ]
    real = [scenario.readings is not None for _, scenario in found] if loaded is not None else ()
    verdicts = decide_verdicts([verdict for verdict, _ in tried], alpha=request.alpha, real=real)
    console.print(_table(verdicts))
    for row in verdicts:
        if row.note:
            console.print(f"{row.name}: {row.note}", soft_wrap=True)
    failed = [row.name for row in verdicts if row.fails_build]
    if request.accept:
        moved = [(folder, world) for (folder, _), (_, world) in zip(found, tried, strict=True)]
        _store_outcomes(moved, verdicts, request.policy, console)
    metrics = {
        "policy": request.policy,
        "twin": request.twin,
        "alpha": request.alpha,
        "accepted": request.accept,
        "scenarios": [row.to_json(request.level) for row in verdicts],
        "regressed": failed,
    }
    result, _ = run.end(metrics, [])
    if failed and not request.accept:
        console.print(f"{len(failed)} of {len(verdicts)} scenarios fail: {', '.join(failed)}.", soft_wrap=True)
    return result, int(bool(failed) and not request.accept)


def _regress_scenario(
    scenario: Scenario, policy: str, loaded: Twin | None, reference: str, backend: Backend, *, accept: bool
) -> tuple[RegressionVerdict, Scenario]:
    """Run one scenario again and compare the outcomes.

    Args:
        scenario: the scenario.
        policy: the requested actor, or "" for the stored one.
        loaded: another version of the twin, or None.
        reference: name or file of this twin.
        backend: backend that simulates the worlds.
        accept: whether a scenario without stored outcomes is allowed.

    Returns:
        The verdict, ``refused`` with the reason after an error; and the scenario, on the other twin if one is given.
    """
    before = TrialOutcomes.of_outcomes("")
    try:
        before = _load_stored_outcomes(scenario, accept=accept)
        world, twin, task, note = _move_to_twin(scenario, loaded, reference)
        after = try_actor(
            world,
            twin,
            task,
            references.open_actor(resolve_actor(scenario, policy), twin, task),
            len(before) or _TRIES,
            backend=backend,
        )
        return compare_trials(scenario.name, before if len(before) else after, after, note=note), world
    except TwinloopError as error:
        return RegressionVerdict(
            name=scenario.name, verdict="refused", before=before, after=None, note=str(error)
        ), scenario


def _require_stored_outcomes(worlds: Sequence[Scenario]) -> None:
    """Check that at least one scenario has stored outcomes to compare with.

    A single scenario without stored outcomes is refused later, in its row of the table.

    Raises:
        InputError: If no scenario has stored outcomes.
    """
    for at, scenario in enumerate(worlds, start=1):
        try:
            parse_stored_outcomes(scenario.evidence, scenario.name)
        except InputError:
            if at == len(worlds):
                raise
        else:
            return


def _load_stored_outcomes(scenario: Scenario, *, accept: bool) -> TrialOutcomes:
    """Return the stored outcomes of a scenario; empty if there are none and ``accept`` is true.

    Raises:
        InputError: If there are none and ``accept`` is false.
    """
    try:
        return parse_stored_outcomes(scenario.evidence, scenario.name)[1]
    except InputError:
        if not accept:
            raise
        return TrialOutcomes.of_outcomes("")


def _move_to_twin(scenario: Scenario, loaded: Twin | None, reference: str) -> tuple[Scenario, Twin, Task, str]:
    """Return a scenario on the twin of this run.

    Args:
        scenario: the scenario.
        loaded: another version of its twin; None to keep the twin that the scenario names.
        reference: name or file of this other version.

    Returns:
        The scenario, its twin, its task, and a text on the changes.
    """
    if loaded is None or loaded.hash == scenario.twin_hash:
        twin, task = scenario.open(loaded)
        return scenario, twin, task, _describe_version_change(scenario, task)
    task = open_task(scenario.task_reference, loaded)
    moved = rebase(scenario, loaded, task)
    said = f"moved from {scenario.twin_hash[:12]} to {loaded.hash[:12]}: {moved.text}"
    world = moved.world.with_references(reference, scenario.task_reference, loaded, task)
    return world, loaded, task, "; ".join(part for part in (said, _describe_version_change(scenario, task)) if part)


def _describe_version_change(scenario: Scenario, task: Task) -> str:
    if task.success_version == scenario.success_version:
        return ""
    return f"what counts as success changed from {scenario.success_version} to {task.success_version}"


def _store_outcomes(
    moved: Sequence[tuple[Path, Scenario]], verdicts: Sequence[RegressionVerdict], policy: str, console: Console
) -> None:
    """Store the present results, with the present twin, as the outcomes that later regressions are compared with.

    Args:
        moved: folder of each scenario, and the scenario on the twin of this run.
        verdicts: verdict of each scenario; those without new outcomes are not stored.
        policy: the requested actor, or "" for the stored one.
        console: console for a line with the number of stored scenarios.
    """
    kept = 0
    for (folder, world), verdict in zip(moved, verdicts, strict=True):
        if verdict.after is None:
            continue
        evidence = {**world.evidence, "expected": format_stored_outcomes(resolve_actor(world, policy), verdict.after)}
        rewrite_scenario(replace(world, evidence=evidence), folder)
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
            _format_rate(row.before),
            "–" if row.after is None else _format_rate(row.after),
            str(row.gained),
            str(row.lost),
            f"{row.p_fell:.2g}",
            f"{row.p_rose:.2g}",
            row.verdict,
        )
    return table


def _format_rate(tried: TrialOutcomes) -> str:
    if not tried.trials:
        return "–"
    rate = tried.success_rate()
    low, high = float(rate.low), float(rate.high)
    return f"{tried.successes}/{tried.trials} ({low:.0%} to {high:.0%})"
