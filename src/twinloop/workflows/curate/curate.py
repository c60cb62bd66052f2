"""Score the episodes of a dataset folder or a workspace, store and print the scores, and write the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console

from twinloop.catalog import Workspace
from twinloop.catalog.episode_lookup import MAX_SELECTED_EPISODES, resolve_episodes
from twinloop.catalog.label_checks import YES
from twinloop.catalog.schema import SCORES
from twinloop.core.errors import InputError
from twinloop.core.pool import LocalProcesses, count_cores
from twinloop.core.progress import show_progress
from twinloop.curate.check import VERDICTS, CheckScore, EpisodeCheck
from twinloop.curate.recording import RecordedEpisode, open_recordings
from twinloop.curate.registry import add_readable_check, open_checks
from twinloop.curate.run import score_all, scores_table
from twinloop.report import ReportPage
from twinloop.workflows.curate.report import curate_section, print_result, print_scores
from twinloop.workflows.curate.requests import CurateRequest
from twinloop.workflows.curate.scores import CatalogTwins, CurateResult, metric_names, require_matching_twin
from twinloop.workflows.run.results import (
    check_conditions,
    check_names,
    claim_output,
    parse_conditions,
    recorded_words,
    write_run,
)

_FEW = 32  # smallest number of recordings for which several processes are faster than one


def run_curate(request: CurateRequest, console: Console) -> tuple[dict[str, Any], int]:
    """Score episodes, print the findings, and store the scores.

    Returns:
        The result, and the exit code that the ``--fail-if`` conditions give.

    Raises:
        InputError: If there is neither a dataset nor a workspace, no episode to score, or the twin is of another robot.
        UnknownNameError: If there is no such check or twin.
    """
    if request.show:
        return show_scores(request, console)
    started, where, dataset = datetime.now(UTC), request.where, request.dataset
    conditions = parse_conditions(request.fail_if)
    if request.output is not None:
        claim_output(request.output)
    if dataset is not None and where:
        raise InputError("--where selects episodes of a workspace. Leave out DATASET, or `twinloop add` it.")
    held = None if dataset is not None and request.workspace is None else Workspace.open(request.workspace)
    try:
        named = request.twin or (str(held.config.get("twin") or "") if held is not None else "")
        twins = CatalogTwins(named=named)
        checks = add_readable_check(open_checks(_requested_checks(request), twins), twins)
        check_names(conditions, metric_names(checks))
        recordings = open_recordings(dataset) if dataset is not None else []
        if held is not None:
            recordings = _select_recordings(held, recordings, where)
        if not recordings:
            raise InputError(f"There is no episode to score in {dataset or request.workspace or 'the workspace'}.")
        for line in require_matching_twin(request.twin, recordings) if request.twin else ():
            console.print(line, soft_wrap=True)
        scores = _score_recordings(recordings, checks, request.workers)
        curated = CurateResult(
            label=str(dataset or (held.root if held else "")), recordings=recordings, checks=checks, scores=scores,
            where=where,
        )  # fmt: skip
        result = _collect_metrics(curated)
        if held is not None:
            _store_scores(held, curated, request.output, result, started)
    finally:
        if held is not None:
            held.close()
    print_result(console, curated, stored=held is not None)
    return _write_and_judge(curated, result, request.output, conditions, console)


def show_scores(request: CurateRequest, console: Console) -> tuple[dict[str, Any], int]:
    """Print the latest stored scores of the episode that ``request.show`` names.

    Returns:
        The scores, and exit code 0.

    Raises:
        UnknownNameError: If there is no such episode.
        InputError: If there is no such workspace, or the episode was never scored.
    """
    episode, only = request.show, _requested_checks(request)
    with Workspace.open(request.workspace) as held:
        (name,) = resolve_episodes(held, [episode])
        rows = held.query("SELECT * FROM scores WHERE episode_id = ?", [name]).to_pylist()
    chosen = [row for row in rows if not only or row["check"] in only or row["check"].partition("/")[0] in only]
    if not chosen:
        raise InputError(f"No score of {episode} is stored{' by these checks' if rows else ''}. Run `twinloop curate`.")
    chosen.sort(key=lambda row: (VERDICTS.index(row["verdict"]), row["check"], row["channel"]))
    print_scores(console, name, chosen)
    return {"schema": 1, "verb": "curate", "episode": name, "scores": chosen}, 0


def _requested_checks(request: CurateRequest) -> list[str]:
    """Return the names of the requested checks and families of checks; an empty list means all."""
    return [word.strip() for word in request.checks.split(",") if word.strip()]


def _select_recordings(held: Workspace, given: Sequence[RecordedEpisode], where: str) -> list[RecordedEpisode]:
    """Return readers of the workspace's episodes that meet a condition and, if ``given`` is not empty, are also in it.

    Args:
        held: the workspace.
        given: episodes of a dataset folder; empty to select by the condition only.
        where: SQL condition on the view ``episodes``; empty for all episodes.
    """
    # The user's own condition; the query is read-only.
    sql = f"SELECT episode_id, batch, episode_index FROM episodes WHERE {where or 'TRUE'}"  # noqa: S608
    rows = held.query(f"{sql} ORDER BY batch, episode_index", max_rows=MAX_SELECTED_EPISODES).to_pylist()
    labels = held.query("SELECT episode_id, value FROM consensus WHERE kind = 'success' AND value IS NOT NULL")
    successes = {str(row["episode_id"]): row["value"] == YES for row in labels.to_pylist()}
    if given:
        given_ids = {recording.episode_id for recording in given}
        rows = [row for row in rows if str(row["episode_id"]) in given_ids]
    made = []
    for batch in dict.fromkeys(str(row["batch"]) for row in rows):
        batch_rows = [row for row in rows if row["batch"] == batch]
        made += open_recordings(
            held.reader(batch), [int(row["episode_index"]) for row in batch_rows], batch=batch,
            episode_ids=[str(row["episode_id"]) for row in batch_rows], successes=successes,
        )  # fmt: skip
    return made


def _score_recordings(
    recordings: Sequence[RecordedEpisode], checks: Sequence[EpisodeCheck], workers: int
) -> list[CheckScore]:
    count = workers or (count_cores() if len(recordings) >= _FEW else 1)
    with LocalProcesses(count) as engine, show_progress(label="episodes", total=len(recordings)) as done:
        return score_all(recordings, checks, engine, done=done)


def _collect_metrics(curated: CurateResult) -> dict[str, Any]:
    names = {recording.episode_id: recording for recording in curated.recordings}
    return {
        "schema": 1,
        "verb": "curate",
        "data": curated.label,
        "where": curated.where,
        "episodes": len(curated.recordings),
        "verdicts": curated.by_verdict,
        "checks": {check.name: {"hash": check.hash, "meaning": check.meaning} for check in curated.checks},
        "scores": [
            {**score.to_json(), "batch": names[score.episode_id].batch, "episode_index": names[score.episode_id].index}
            for score in curated.scores
        ],
        "selection": curated.selection,
        "headline": [metric.to_json() for metric in curated.headline()],
    }


def _store_scores(
    held: Workspace, curated: CurateResult, output: Path | None, result: Mapping[str, Any], started: datetime
) -> None:
    short = {key: value for key, value in result.items() if key not in ("scores", "headline")}
    run_id = held.record_run("curate", output, short, started, datetime.now(UTC), recorded_words())
    scores = scores_table(curated.scores, curated.checks, run_id)
    held.append("scores", pa.concat_tables([scores, _unreadable_rows(held, curated, run_id)]), run_id=run_id)


def _unreadable_rows(held: Workspace, curated: CurateResult, run_id: str) -> pa.Table:
    """Return rows that replace stored scores by the verdict ``unreadable``, for episodes that can no longer be read.

    Only scores of other checks than those of this run are replaced, because this run has scored its own checks.

    Args:
        held: the open workspace.
        curated: result of this run.
        run_id: id of this run.
    """
    reasons = {recording.episode_id: reason for recording, reason in curated.unreadable}
    names = ", ".join("?" * len(reasons))
    sql = f'SELECT DISTINCT episode_id, "check", check_hash FROM scores WHERE episode_id IN ({names})'  # noqa: S608
    found = held.query(sql, list(reasons)).to_pylist() if reasons else []
    names_of_run = {check.name for check in curated.checks}
    rows = [
        {**CheckScore(episode_id=row["episode_id"], check=row["check"], verdict="unreadable",
                 reason=reasons[row["episode_id"]]).to_json(),
         "check_hash": row["check_hash"], "run_id": run_id}
        for row in found
        if row["check"] not in names_of_run
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=SCORES.schema)


def _write_and_judge(
    curated: CurateResult, result: dict[str, Any], output: Path | None, conditions: Sequence[Any], console: Console
) -> tuple[dict[str, Any], int]:
    if output is not None:
        page = ReportPage("Quality of episodes", f"{curated.label}; {len(curated.recordings)} episodes")
        result = write_run(output, result, page, lambda made: curate_section(made, curated), console)
    verdict = check_conditions(conditions, {metric.name: metric for metric in curated.headline()})
    for line in verdict.lines():
        console.print(line, soft_wrap=True)
    return {**result, "failed": verdict.to_json()}, verdict.code
