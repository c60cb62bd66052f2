"""Run ``twinloop evaluate``: evaluate a policy in a suite of simulated conditions, or evaluate real trials.

Prints tables, writes result files, and adds the trials to the catalog of the workspace.
"""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from rich.console import Console
from rich.table import Table

from twinloop.catalog import Workspace
from twinloop.core.errors import InputError
from twinloop.core.evaluation import Evaluation
from twinloop.core.pool import LocalProcesses, count_cores
from twinloop.core.progress import show_progress
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.evaluate.candidates import EXPERT, Candidate, make_candidate
from twinloop.evaluate.real import read_real_trials
from twinloop.evaluate.run import Row, TrialRunner, make_evaluation
from twinloop.evaluate.suite import builtin_suites, open_suite
from twinloop.evaluate.summary import OVERALL, SUCCESS, WORST, EvaluationSummary, SliceSummary
from twinloop.evaluate.worlds import Suite, expand_suite
from twinloop.policies.folder import is_policy_path
from twinloop.report import ReportPage
from twinloop.simulate import open_backend
from twinloop.workflows.evaluate.page import evaluation_section
from twinloop.workflows.evaluate.requests import CompareRequest, EvaluateRequest
from twinloop.workflows.run.results import MeasuredRun, Outcome, recorded_words
from twinloop.workflows.run.taught_worlds import TAUGHT, read_worlds, taught_suite
from twinloop.workflows.run.twin_and_task import TwinAndTask, choose_twin_and_task, load_requested_twin
from twinloop.workflows.scenario.references import policy_folder

_SHOWN = 30  # printed slices; result.json and the page have all
_PART = 32  # trials that a process runs at once; it takes about 6 s to start
_DESCRIBED = (
    "policy",
    "policy_hash",
    "suite",
    "hash",
    "domain",
    "twin",
    "run_seed",
)  # fields of an evaluation in result.json


def print_summary(console: Console, made: Evaluation, summary: EvaluationSummary) -> None:
    """Print the success rate of every slice (condition of the suite), the lowest first, and notes on omitted trials.

    Args:
        console: console for the table.
        made: the evaluation.
        summary: its success rates by slice.
    """
    title = f"{made.policy} in {made.suite}" + (f" ({made.domain})" if made.domain == "real" else f" on {made.twin}")
    head = ("slice", "success", f"{summary.level:.0%} exact", "progress", "time s", "smooth", "peak N", "unsafe")
    table = Table(*head, title=title, title_justify="left")
    for item in summary.slices[:_SHOWN]:
        table.add_row(*_slice_cells(item))
    console.print(table)
    if len(summary.slices) > _SHOWN:
        console.print(f"{len(summary.slices) - _SHOWN} more slices have higher success than these.")
    worst, overall = summary.worst, summary.overall
    said = f"success {float(overall.estimate):.3f} [{float(overall.low):.3f}, {float(overall.high):.3f}] of {len(made)}"
    if len(summary.slices) > 1:
        ends = f"[{float(worst.low):.3f}, {float(worst.high):.3f}] over {len(summary.slices)} slices"
        said += f"; worst slice {summary.slices[0].name} {float(worst.estimate):.3f}, lowest true rate in {ends}"
    console.print(said, soft_wrap=True)
    if summary.invalid:
        console.print(format_invalid(made, summary), soft_wrap=True)
    for line in made.extra.get("left_out", []):
        console.print(f"Left out: {line}", soft_wrap=True)
    speed = made.extra.get("episodes_per_minute")
    if speed:
        console.print(f"{speed:.0f} episodes per minute on {made.extra['backend']}.")


def format_invalid(made: Evaluation, summary: EvaluationSummary) -> str:
    """Return a sentence on the number of invalid trials, the reasons, and how they are counted."""
    given = dict.fromkeys(reason for item in summary.slices for reason in item.reasons)
    reasons = "; ".join(given) or "no reason given"
    if made.domain == "sim":
        return f"{summary.invalid} worlds were invalid and count as failures: {reasons}."
    return (
        f"{summary.invalid} trials are invalid: they count as failures, and their times, forces and smoothness are "
        f"left out ({reasons})."
    )


def _slice_cells(item: SliceSummary) -> list[str]:
    def number(value: float, digits: int) -> str:
        return "–" if math.isnan(value) else f"{value:.{digits}f}"

    ends = f"[{float(item.success.low):.2f}, {float(item.success.high):.2f}]"
    numbers = ((item.progress, 2), (item.time_s, 2), (item.smoothness, 2), (item.peak_force_n, 1), (item.violating, 2))
    return [item.name, f"{item.successes} / {item.trials}", ends, *(number(value, digits) for value, digits in numbers)]


def run_evaluate(request: EvaluateRequest, console: Console) -> Outcome:
    """Evaluate a policy in every slice (condition) of a suite, evaluate real trials, or list suites, as requested.

    Real trials of several policies are stored in one folder per policy, below the output.

    Returns:
        The metrics, and exit code 1 if a rate is below ``--fail-under``, else 0.
    """
    if request.list_suites or request.show_suite is not None:
        return run_list_suites(request, console)
    if request.real is not None:
        return run_evaluate_real(request, request.real, console)
    output, fail_under = request.output, request.fail_under
    run = MeasuredRun.begin("evaluate", request.suite, output, parse_fail_under(fail_under), console)
    started = datetime.now(UTC)
    who, place, runner = _open_trials(request, console)
    suite = runner.suite
    suite.select_slices([stem for stem, _, _ in map(_split_fail_under, fail_under) if stem not in (OVERALL, WORST)])
    workers = _count_workers(request, who, suite)
    with show_progress(label=f"{who.name} in {suite.name}", total=suite.episodes) as done:
        if workers == 1:
            rows = runner.run(who, suite.trials, done=done)
        else:
            rows = _run_in_processes(request, who, place, runner, workers, done)
    made = make_evaluation(who, runner, rows, twin=place.twin, latency=runner.measure_latency(who))
    with run.lock_output():
        return _finish_evaluation(run, [replace(made, task=place.identity)], request.level, started)


def _open_trials(request: EvaluateRequest, console: Console) -> tuple[Candidate, TwinAndTask, TrialRunner]:
    """Open policy, twin and task, and return them with the runner of the requested suite."""
    who = open_candidate(request.policy, request.name, sensors=request.sensors)
    place = choose_twin_and_task(request.twin, request.task, [request.policy], request.output, console)
    runner = TrialRunner(
        suite=build_suite(request, who, place),
        task=place.task_name,
        run_seed=request.seed,
        backend=open_backend(request.backend, nthread=count_cores()),
        batch=request.batch,
    )
    return who, place, runner


def _count_workers(request: EvaluateRequest, who: Candidate, suite: Suite) -> int:
    if request.workers is None:
        return min(count_cores(), 1 + suite.episodes // _PART) if who.images else 1
    if request.workers < 1:
        raise InputError(f"--workers {request.workers} runs nothing. Give at least 1, or leave it out.")
    return min(request.workers, -(-suite.episodes // _PART))


def _run_in_processes(
    request: EvaluateRequest,
    who: Candidate,
    place: TwinAndTask,
    runner: TrialRunner,
    workers: int,
    done: Callable[[int], None],
) -> list[Row]:
    """Run all trials of a suite in worker processes, which open policy and suite by themselves."""
    policy = request.policy if request.policy == EXPERT else str(policy_folder(request.policy))
    fixed = replace(request, policy=policy, name=who.name, twin=place.twin_name, task=place.task_name)
    size, count, began = min(request.batch, _PART), runner.suite.episodes, time.perf_counter()
    parts = [range(at, min(at + size, count)) for at in range(0, count, size)]
    rows = list[Row]()
    with LocalProcesses(workers) as engine:
        for part, found in engine.map(functools.partial(_run_trials, fixed), parts):
            rows += found
            done(len(part))
    runner.simulated, runner.seconds = count, time.perf_counter() - began
    return rows


def _run_trials(request: EvaluateRequest, numbers: range) -> list[Row]:
    who, _, runner = _open_in_worker(request)
    return runner.run(who, runner.suite.trials[numbers.start : numbers.stop])


@functools.lru_cache(maxsize=1)
def _open_in_worker(request: EvaluateRequest) -> tuple[Candidate, TwinAndTask, TrialRunner]:
    return _open_trials(request, Console(quiet=True))


def run_evaluate_real(request: EvaluateRequest, path: Path, console: Console) -> Outcome:
    """Convert real trials to evaluations; print and store them like simulated ones.

    Outcomes that people gave as labels in the workspace replace those in the data.

    Args:
        request: flags of ``twinloop evaluate``.
        path: table, dataset or folder with the trials.
        console: console for the tables.
    """
    output, twin = request.output, request.twin
    run = MeasuredRun.begin("evaluate", "real", output, parse_fail_under(request.fail_under), console)
    started = datetime.now(UTC)
    outcomes = _load_labelled_outcomes(path, output)
    if outcomes:
        console.print(f"{len(outcomes)} outcomes are from the workspace's labels.")
    known = load_requested_twin(twin, output) if twin is not None else None
    made = list(read_real_trials(path, policy=request.name or None, twin=known, outcomes=outcomes))
    with run.lock_output():
        return _finish_evaluation(run, made, request.level, started)


def run_list_suites(request: EvaluateRequest, console: Console) -> Outcome:
    """Print the built-in suites, or one suite as YAML."""
    if request.show_suite is not None:
        spec = open_suite(request.show_suite)
        plain = spec.model_dump(mode="json", exclude_defaults=True)
        console.print(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=110), soft_wrap=True)
        return {"suite": plain, "hash": spec.hash}, 0
    place = choose_twin_and_task(request.twin, request.task, [], None, console)
    opened_on, made = place.twin, place.task
    table = Table("suite", "slices", "episodes", "slices with images", "description", title=f"on {opened_on.name}")
    rows: list[dict[str, Any]] = []
    for name, spec in builtin_suites().items():
        row: dict[str, Any] = {"name": name, "hash": spec.hash, "about": spec.about, "each": spec.episodes}
        if not spec.scenarios:
            bare, seen = (expand_suite(spec, opened_on, made, images=images) for images in (False, True))
            row |= {"slices": len(bare.slices), "episodes": bare.episodes, "slices_with_images": len(seen.slices)}
        cells = [str(row.get(key, "as stored")) for key in ("slices", "episodes", "slices_with_images")]
        table.add_row(name, *cells, spec.about)
        rows.append(row)
    console.print(table)
    console.print("For your own suite give FILE.yaml; `--show-suite NAME` prints a template.")
    return {"suites": rows, "twin": opened_on.name}, 0


def parse_fail_under(fail_under: Sequence[str]) -> list[str]:
    """Convert the words ``SLICE=RATE`` of ``--fail-under`` to conditions such as ``success/nominal < 0.9``.

    ``overall`` and ``worst`` are metrics over all slices. ``SLICE.low`` is the lower bound of the interval.

    Raises:
        InputError: If a word has another form.
    """
    whole = {OVERALL: SUCCESS, WORST: WORST}
    return [
        f"{whole.get(stem, f'{SUCCESS}/{stem}')}{end} < {rate}"
        for stem, end, rate in map(_split_fail_under, fail_under)
    ]


def _split_fail_under(text: str) -> tuple[str, str, str]:
    """Split one word ``SLICE=RATE`` of ``--fail-under``.

    Returns:
        The pattern of slice names, ``.low`` if the lower bound of the interval is compared (else ""), and the rate as
        text.

    Raises:
        InputError: If the word has another form, or the rate is not from 0 to 1.
    """
    name, sign, rate = text.rpartition("=")
    try:
        value = float(rate)
    except ValueError:
        value = -1.0
    if not sign or not name or not 0 <= value <= 1:
        raise InputError(
            f"--fail-under '{text}' is not SLICE=RATE with a rate from 0 to 1. Write nominal=0.9, 'hand_*=0.5', "
            "nominal.low=0.8 for the lower end of the interval, overall=0.8 or worst=0.3."
        )
    return name.removesuffix(".low"), ".low" if name.endswith(".low") else "", rate


def open_candidate(policy: str, name: str = "", *, sensors: str = "clean") -> Candidate:
    """Open the policy to evaluate.

    Args:
        policy: ``expert`` for the scripted expert of the task, a policy's folder, NAME@VERSION or an alias.
        name: name in the results; by default derived from ``policy``.
        sensors: what it sees, ``clean`` or ``device``, see `requests.TrialOptions`.

    Raises:
        InputError, UnknownNameError: If there is no such policy.
    """
    if policy == EXPERT:
        return make_candidate(EXPERT, name=name)
    from twinloop.policies import open_policy

    folder = policy_folder(policy)
    called = name or (folder.name if is_policy_path(policy) else policy)
    return make_candidate(open_policy(folder), name=called, sensors=sensors == "device")


def build_suite(request: EvaluateRequest | CompareRequest, who: Candidate, place: TwinAndTask) -> Suite:
    """Return the requested suite on a twin, reduced to the requested slices and numbers of trials.

    Args:
        request: flags of the command.
        who: the policy, which determines whether images are needed.
        place: twin and task.
    """
    if request.suite == TAUGHT:
        return _build_taught_suite(request, place)
    if request.randomize_from is not None:
        raise InputError(
            f"--randomize-from draws the worlds of --suite {TAUGHT} only. Add it, or leave the option out."
        )
    root = Workspace.find(request.output or Path.cwd())
    folder = request.scenarios or (None if root is None else root / "scenarios")
    spec = open_suite(request.suite)
    suite = expand_suite(spec, place.twin, place.task, images=who.images, scenarios=folder)
    return suite.with_episodes(getattr(request, "episodes", None)).select_slices(request.slices)


def _build_taught_suite(request: EvaluateRequest | CompareRequest, place: TwinAndTask) -> Suite:
    """Return the suite of the worlds in which the policy, the first one of a comparison, was taught."""
    policy = request.policy if isinstance(request, EvaluateRequest) else request.a
    if policy == EXPERT:
        raise InputError(
            f"--suite {TAUGHT} has the worlds in which a policy was taught, and the expert was not taught."
        )
    config = read_worlds(policy_folder(policy), randomize_from=request.randomize_from)
    suite = taught_suite(config, getattr(request, "episodes", None))
    if suite.twin.hash != place.twin.hash:
        raise InputError(
            f"{policy} was taught in worlds of another twin ({suite.twin.name}) than {place.twin.name}. Leave --twin "
            "out, or give another suite."
        )
    return suite


def record_trials(
    output: Path | None, evaluations: Sequence[Evaluation], result: dict[str, Any], started: datetime, *, verb: str
) -> str | None:
    """Record a run and its trials in the catalog of the surrounding workspace.

    Args:
        output: output folder of the run, or None.
        evaluations: the evaluations with the trials.
        result: metrics of the run.
        started: time at which the run started.
        verb: name of the command.

    Returns:
        The id of the run; None if there is no workspace.
    """
    root = Workspace.find(output or Path.cwd())
    if root is None:
        return None
    with Workspace.open(root) as held:
        run_id = held.record_run(verb, output, result, started, datetime.now(UTC), recorded_words())
        held.append("evaluations", pa.concat_tables([trial_rows(made) for made in evaluations]), run_id=run_id)
    return run_id


def trial_rows(made: Evaluation) -> pa.Table:
    """Return the trials of an evaluation as rows of the catalog's table ``evaluations``.

    An invalid trial is a failure in these rows.
    """
    trials, n = made.trials, len(made)
    won = [s and v for s, v in zip(trials["success"].to_pylist(), trials["valid"].to_pylist(), strict=True)]
    return pa.table(
        {
            "policy": pa.array([made.policy_hash or made.policy] * n),
            "suite": pa.array([made.suite] * n),
            "trial": trials["trial"],
            "episode_id": trials["episode_id"],
            "source": pa.array([made.domain] * n),
            "success": pa.array(won),
            "score": trials["progress"],
            "condition": trials["slice"],
        }
    )


def _load_labelled_outcomes(path: Path, output: Path | None) -> dict[int, bool]:
    """Return the outcomes that the labels in the workspace give to a dataset's episodes, by ``episode_index``.

    Args:
        path: folder of the dataset.
        output: output folder of the run, above which the workspace is searched.
    """
    root = Workspace.find(output or Path.cwd())
    if root is None or not (path / layout.INFO).is_file() or not DatasetReader(path).written_by_twinloop:
        return {}
    names = DatasetReader(path).episode_ids
    with Workspace.open(root) as held:
        rows = held.query("SELECT episode_id, value FROM consensus WHERE kind = 'success' AND value IS NOT NULL")
    said = {str(row["episode_id"]): row["value"] == "yes" for row in rows.to_pylist()}
    return {index: said[name] for index, name in enumerate(names) if name in said}


def _folder_names(made: Sequence[Evaluation]) -> list[str]:
    """Return a folder name for each evaluation, derived from the policy's name; "." if there is only one evaluation."""
    if len(made) == 1:
        return ["."]
    words = [re.sub(r"[^A-Za-z0-9_-]+", "_", one.policy).strip("_") or "policy" for one in made]
    return [word if words.count(word) == 1 else f"{word}_{at}" for at, word in enumerate(words)]


def _finish_evaluation(run: MeasuredRun, made: list[Evaluation], level: float, started: datetime) -> Outcome:
    """Print and store evaluations, add their trials to the catalog, and check the conditions on their metrics.

    Args:
        run: the run, begun before the evaluation.
        made: the evaluations.
        level: confidence level of the intervals.
        started: time at which the run started.
    """
    summaries = [EvaluationSummary.of(one, level=level) for one in made]
    headline = []
    for one, summary, folder in zip(made, summaries, _folder_names(made), strict=True):
        print_summary(run.console, one, summary)
        of = f"/{one.policy}" if len(made) > 1 else ""
        headline += [replace(metric, name=f"{metric.name}{of}") for metric in summary.headline()]
        if run.output is not None:
            one.write(run.output / folder)
    result: dict[str, Any] = {
        "evaluations": [
            {
                **{key: getattr(one, key) for key in _DESCRIBED},
                **summary.to_json(),
                "extra": dict(one.extra),
            }
            for one, summary in zip(made, summaries, strict=True)
        ],
    }
    short = {"policies": [one.policy for one in made], "suite": made[0].suite}
    short |= {metric.name: metric.estimate for metric in headline if "/" not in metric.name}
    result["run_id"] = record_trials(run.output, made, short, started, verb="evaluate")

    def fill(page: ReportPage) -> None:
        for one, summary in zip(made, summaries, strict=True):
            evaluation_section(page, one, summary)

    return run.end(
        result,
        headline,
        title=f"{', '.join(one.policy for one in made)} in {made[0].suite}",
        subtitle=f"{sum(len(one) for one in made)} trials" + (f" on {made[0].twin}" if made[0].twin else ""),
        fill=fill,
    )
