"""Run ``twinloop compare``: run two policies in the same worlds until a test decides, or compare stored evaluations."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from twinloop.core.errors import InputError
from twinloop.core.evaluation import Evaluation
from twinloop.evaluate.comparison import PairedComparison, compare_running, compare_stored
from twinloop.evaluate.run import TrialRunner, make_evaluation
from twinloop.simulate import open_backend
from twinloop.workflows.evaluate.evaluate import build_suite, open_candidate, record_trials
from twinloop.workflows.evaluate.page import comparison_section
from twinloop.workflows.evaluate.requests import CompareRequest
from twinloop.workflows.run.results import MeasuredRun, Outcome
from twinloop.workflows.run.twin_and_task import choose_twin_and_task

_STORED = "evaluation.json"


def run_compare(request: CompareRequest, console: Console) -> Outcome:
    """Compare two policies or two stored evaluations; print and store the result.

    For stored evaluations, the options of the trials are ignored.

    Returns:
        The metrics, and exit code 1 if a condition of ``--fail-if`` is true, else 0.

    Raises:
        InputError: If only one of the two is a stored evaluation, they were not evaluated in the same conditions, or
            alpha is not between 0 and 1.
    """
    a, b, alpha, margin = request.a, request.b, request.alpha, request.margin
    if not 0 < alpha < 1:
        raise InputError(f"--alpha {alpha:g} is not a probability between 0 and 1. Write 5 % as 0.05.")
    run = MeasuredRun.begin(
        "compare", "stored" if _is_stored(a) else request.suite, request.output, request.fail_if, console
    )
    started = datetime.now(UTC)
    if _is_stored(a) != _is_stored(b):
        stored, other = (a, b) if _is_stored(a) else (b, a)
        open_candidate(other)
        raise InputError(
            f"{stored} is a stored evaluation and {other} is a policy. Evaluate {other} in the same suite first, or "
            "give two policies."
        )
    if _is_stored(a):
        made = [Evaluation.read(Path(name)) for name in (a, b)]
        found = compare_stored(made[0], made[1], alpha=alpha, margin=margin, seed=request.seed)
        console.print(found.format_sentence(), soft_wrap=True)
        console.print(
            f"McNemar's exact p-value, which is valid for a fixed number of pairs as here: {found.fixed_p_value:.2g}."
        )
        return _finish_comparison(run, found, {"stored": [a, b]})
    found, made = _run_comparison(request, console)
    console.print(found.format_sentence(), soft_wrap=True)
    short = {key: found.to_json()[key] for key in ("a", "b", "answer", "decided", "pairs")}
    minutes = sum(one.extra["seconds"] for one in made[:1]) / 60.0
    with run.lock_output():
        output = request.output
        if output is not None:
            for side, one in zip(("a", "b"), made, strict=True):
                one.write(output / side)
        run_id = record_trials(output, made, short, started, verb="compare")
        return _finish_comparison(run, found, {"run_id": run_id, "suite": request.suite, "minutes": minutes})


def _run_comparison(request: CompareRequest, console: Console) -> tuple[PairedComparison, list[Evaluation]]:
    first, second = (open_candidate(name, sensors=request.sensors) for name in (request.a, request.b))
    place = choose_twin_and_task(request.twin, request.task, [request.a, request.b], request.output, console)
    suite = build_suite(request, first if first.images else second, place)
    runner = TrialRunner(
        suite=suite,
        task=place.task_name,
        run_seed=request.seed,
        backend=open_backend(request.backend),
        batch=request.batch,
    )

    def tell(pairs: int, only_a: int, only_b: int) -> None:
        console.print(f"{pairs} pairs: {only_a} won by {first.name} alone, {only_b} by {second.name} alone")

    found, rows_a, rows_b = compare_running(
        first, second, runner, alpha=request.alpha, margin=request.margin, max_pairs=request.max_episodes, done=tell
    )
    made = [
        make_evaluation(who, runner, rows, twin=place.twin, latency=runner.measure_latency(who))
        for who, rows in ((first, rows_a), (second, rows_b))
    ]
    return found, [
        replace(one, policy=name, task=place.identity) for one, name in zip(made, (found.a, found.b), strict=True)
    ]


def _is_stored(name: str) -> bool:
    return (Path(name) / _STORED).is_file()


def _finish_comparison(run: MeasuredRun, found: PairedComparison, result: dict[str, Any]) -> Outcome:
    return run.end(
        {**found.to_json(), **result},
        found.headline(),
        title=f"{found.a} against {found.b}",
        subtitle=f"{found.counts.pairs} pairs of trials in the same worlds",
        fill=lambda page: comparison_section(page, found),
    )
