"""Scores of episodes: of a dataset folder, or of what a workspace holds; stored, shown, and made into a selection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from twinloop.catalog import Workspace
from twinloop.catalog.label_checks import YES
from twinloop.core.errors import InputError
from twinloop.core.headline import Headline
from twinloop.core.pool import LocalProcesses, cores
from twinloop.core.progress import counted
from twinloop.curate.check import VERDICTS, Check, Score, worst
from twinloop.curate.recording import Recording, open_recordings
from twinloop.curate.registry import open_checks
from twinloop.curate.run import score_all
from twinloop.curate.score_rows import scores_table
from twinloop.loop.curate_twins import TwinsOfEpisodes
from twinloop.loop.fail_if import judge, parse_conditions
from twinloop.loop.pages_curate import curate_section
from twinloop.loop.runs import claim_output, write_report, write_result
from twinloop.report import Report

_SHOWN = 12  # episodes in the printed table
_FEW = 32  # recordings from which on another process is worth its start
_COUNTS = 45  # columns of the console that the counts by verdict take, with the lines between them
_TONES = {"bad": "red", "suspect": "yellow"}


@dataclass(frozen=True, kw_only=True)
class Curated:
    """What was scored, by which checks, and what they said; ``where`` is the workspace's condition."""

    label: str
    recordings: Sequence[Recording]
    checks: Sequence[Check]
    scores: Sequence[Score]
    where: str = ""
    run_id: str = ""
    found: Mapping[str, Score] = field(default_factory=dict[str, Score])

    @property
    def by_verdict(self) -> dict[str, int]:
        """Episodes by their worst verdict, worst first."""
        counts = Counter(score.verdict for score in self.found.values())
        return {verdict: counts[verdict] for verdict in VERDICTS}

    def headline(self) -> list[Headline]:
        """The figures that conditions see."""
        total = max(len(self.recordings), 1)
        rows = [
            Headline(name=verdict, estimate=float(count), unit="episodes", meaning=f"episodes whose worst is {verdict}")
            for verdict, count in self.by_verdict.items()
            if verdict != "good"
        ]
        rows.append(
            Headline(name="share_bad", estimate=self.by_verdict["bad"] / total, meaning="episodes that are bad")
        )
        for check in self.checks:
            for verdict in ("bad", "suspect"):
                ids = {s.episode_id for s in self.scores if s.check == check.name and s.verdict == verdict}
                rows.append(Headline(name=f"{verdict}/{check.name}", estimate=float(len(ids)), unit="episodes"))
        return rows

    @property
    def selection(self) -> str:
        """SQL that leaves out what is bad."""
        good = "episode_id NOT IN (SELECT episode_id FROM scores WHERE verdict = 'bad')"
        return f"SELECT episode_id FROM episodes WHERE {f'({self.where}) AND ' if self.where else ''}{good}"  # noqa: S608 - text for a person


def run_curate(
    dataset: Path | None,
    *,
    workspace: Path | None,
    where: str,
    twin: str | None,
    only: Sequence[str],
    output: Path | None,
    fail_if: Sequence[str],
    workers: int,
    console: Console,
) -> tuple[dict[str, Any], int]:
    """Score episodes, print what is wrong, store the scores.

    Args:
        dataset: a LeRobot v3.0 folder; None for what the workspace holds.
        workspace: folder of the workspace; None for the nearest one upwards, or none where a dataset is given.
        where: SQL of a condition over the view ``episodes``.
        twin: what episodes without a twin of their own are held against; by default the workspace's.
        only: checks or families; none for all.
        output: folder for result.json and report.html.
        fail_if: conditions on which to exit with 1.
        workers: processes; 0 for every core.
        console: for people.

    Raises:
        InputError: neither a dataset nor a workspace, or nothing to score.
        UnknownNameError: no such check.
    """
    started = datetime.now(UTC)
    conditions = parse_conditions(fail_if)
    if output is not None:
        claim_output(output)
    if dataset is not None and where:
        raise InputError("--where chooses among the episodes of a workspace. Leave DATASET out, or `twinloop add` it.")
    held = None if dataset is not None and workspace is None else Workspace.open(workspace)
    try:
        named = twin or (str(held.config.get("twin") or "") if held is not None else "")
        checks = open_checks(only, TwinsOfEpisodes(named=named))
        recordings = open_recordings(dataset) if dataset is not None else []
        if held is not None:
            recordings = _chosen(held, recordings, where)
        if not recordings:
            raise InputError(f"There is no episode to score in {dataset or workspace or 'the workspace'}.")
        scores = _scored(recordings, checks, workers)
        curated = Curated(
            label=str(dataset or (held.root if held else "")), recordings=recordings, checks=checks, scores=scores,
            where=where, found=worst(scores),
        )  # fmt: skip
        figures = _figures(curated)
        if held is not None:
            _remember(held, curated, output, figures, started)
    finally:
        if held is not None:
            held.close()
    _print(console, curated, stored=held is not None)
    return _end(curated, figures, output, conditions, console)


def _chosen(held: Workspace, given: Sequence[Recording], where: str) -> list[Recording]:
    """The workspace's episodes, those of a folder that it knows, or those that a condition chooses."""
    # A person's own condition; the statement can only read.
    sql = f"SELECT episode_id, batch, episode_index FROM episodes WHERE {where or 'TRUE'}"  # noqa: S608
    rows = held.query(f"{sql} ORDER BY batch, episode_index").to_pylist()
    labels = held.query(
        "SELECT episode_id, value FROM consensus WHERE kind = 'success' AND value IS NOT NULL"
    ).to_pylist()
    successes = {str(row["episode_id"]): row["value"] == YES for row in labels}
    if given:
        wanted = {recording.episode_id for recording in given}
        rows = [row for row in rows if str(row["episode_id"]) in wanted]
    made = []
    for batch in dict.fromkeys(str(row["batch"]) for row in rows):
        mine = [row for row in rows if row["batch"] == batch]
        made += open_recordings(
            held.reader(batch), [int(row["episode_index"]) for row in mine], batch=batch,
            episode_ids=[str(row["episode_id"]) for row in mine], successes=successes,
        )  # fmt: skip
    return made


def _scored(recordings: Sequence[Recording], checks: Sequence[Check], workers: int) -> list[Score]:
    count = workers or (cores() if len(recordings) >= _FEW else 1)
    with LocalProcesses(count) as engine, counted(label="episodes", total=len(recordings)) as done:
        return score_all(recordings, checks, engine, done=done)


def _figures(curated: Curated) -> dict[str, Any]:
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
        "headline": [figure.to_json() for figure in curated.headline()],
    }


def _remember(
    held: Workspace, curated: Curated, output: Path | None, figures: Mapping[str, Any], started: datetime
) -> None:
    short = {key: value for key, value in figures.items() if key not in ("scores", "headline")}
    arguments = ["--checks", *(check.name for check in curated.checks), "--where", curated.where]
    run_id = held.record_run("curate", output, short, started, datetime.now(UTC), arguments)
    held.append("scores", scores_table(curated.scores, curated.checks, run_id), run_id=run_id)


def _print(console: Console, curated: Curated, *, stored: bool) -> None:
    counts = ", ".join(f"{count} {verdict}" for verdict, count in curated.by_verdict.items() if count)
    console.print(f"{len(curated.recordings)} episodes of {curated.label}, {len(curated.checks)} checks: {counts}")
    width = max(len(check.name) for check in curated.checks)
    checks = Table(
        Column("check", no_wrap=True),
        *(Column(name, justify="right", no_wrap=True) for name in VERDICTS),
        Column("looks for", no_wrap=True, overflow="ellipsis", max_width=max(20, console.width - width - _COUNTS)),
    )
    for check in curated.checks:
        mine = worst(score for score in curated.scores if score.check == check.name)
        verdicts = Counter(score.verdict for score in mine.values())
        checks.add_row(check.name, *(str(verdicts[name] or "") for name in VERDICTS), check.meaning)
    console.print(checks)
    wrong = ranked(curated)
    if wrong:
        table = Table(Column("episode", no_wrap=True), "verdict", "check", "why")
        for recording, scores in wrong[:_SHOWN]:
            for row, score in enumerate(scores[:3]):
                tone = _TONES.get(score.verdict, "")
                table.add_row(
                    recording.where if row == 0 else "", score.verdict, _channel(score), score.reason, style=tone
                )
        console.print(table)
        if len(wrong) > _SHOWN:
            console.print(f"… and {len(wrong) - _SHOWN} more; --output FOLDER keeps all.")
    if stored:
        console.print("What is not bad, as a selection; nothing was deleted:")
        console.print(f'  twinloop datasets freeze good --sql "{curated.selection}"', soft_wrap=True)


def ranked(curated: Curated) -> list[tuple[Recording, list[Score]]]:
    """Episodes that are suspect or bad with what is wrong, worst first."""
    wrong: dict[str, list[Score]] = {}
    for score in curated.scores:
        if score.verdict in ("suspect", "bad"):
            wrong.setdefault(score.episode_id, []).append(score)
    for scores in wrong.values():
        scores.sort(key=lambda score: VERDICTS.index(score.verdict))
    rows = [
        (recording, wrong[recording.episode_id]) for recording in curated.recordings if recording.episode_id in wrong
    ]
    return sorted(rows, key=lambda row: (-sum(s.verdict == "bad" for s in row[1]), -len(row[1])))


def _channel(score: Score) -> str:
    return f"{score.check} {score.channel}".strip()


def _end(
    curated: Curated, figures: dict[str, Any], output: Path | None, conditions: Sequence[Any], console: Console
) -> tuple[dict[str, Any], int]:
    if output is not None:
        figures = write_result(output, figures)
        page = Report("Quality of episodes", f"{curated.label}; {len(curated.recordings)} episodes")
        wrong = ranked(curated)
        write_report(
            page, lambda made: curate_section(made, curated.checks, curated.scores, curated.by_verdict, wrong),
            output / "report.html", console,
        )  # fmt: skip
    verdict = judge(conditions, {figure.name: figure for figure in curated.headline()})
    for line in verdict.lines():
        console.print(line, soft_wrap=True)
    return {**figures, "failed": verdict.to_json()}, verdict.code
