"""What a person sees of scores in a terminal: a line for each check that found something, and the worst episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from twinloop.core.console import visible
from twinloop.curate.check import Score
from twinloop.curate.recording import Recording
from twinloop.loop.curated import WRONG, Curated, counted_verdicts

_SHOWN = 8  # episodes
_REASON = 160  # characters
_TONES = {"unreadable": "red", "bad": "red", "suspect": "yellow"}


def print_curated(console: Console, curated: Curated, *, stored: bool) -> None:
    """Print what was found, the worst episodes, what could not be told, and where the rest is.

    Args:
        console: for people.
        curated: what was scored.
        stored: a workspace keeps the scores.
    """
    counts = ", ".join(f"{count} {verdict}" for verdict, count in curated.by_verdict.items() if count)
    console.print(f"{len(curated.recordings)} episodes of {curated.label}, {len(curated.checks)} checks: {counts}")
    _print_unreadable(console, curated)
    _print_found(console, curated)
    _print_worst(console, curated)
    _print_unknown(console, curated)
    if stored:
        console.print("\nAll that is said of an episode: `twinloop curate --show BATCH:INDEX`, or SQL over `scores`.")
        console.print("What can be read and is not bad, as a selection; nothing was deleted:")
        console.print(f'  twinloop datasets freeze good --sql "{curated.selection}"', soft_wrap=True)
    elif curated.ranked:
        console.print("\nAll of it: --output FOLDER, which gets report.html and result.json.")


def print_scores(console: Console, episode_id: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print every score of one episode, as rows of the view ``scores``, with whole reasons."""
    told = [row for row in rows if row["verdict"] != "unknown"]
    wrong = sum(row["verdict"] in WRONG for row in rows)
    console.print(f"{episode_id}: {len(rows)} scores, {wrong} suspect or bad, {len(rows) - len(told)} unknown")
    table = Table(Column("verdict", no_wrap=True), Column("check", overflow="fold"), "of", "frames", "why")
    for row in rows:
        first, last = row["first_frame"], row["last_frame"]
        frames = "" if first is None else str(first) if last in (None, first) else f"{first}–{last}"
        tone = _TONES.get(row["verdict"], "")
        table.add_row(row["verdict"], row["check"], row["channel"], frames, row["reason"], style=tone)
    console.print(table)


def short(reason: str) -> str:
    """A reason for one line: whole clauses of it, at most 160 characters."""
    if len(reason) <= _REASON:
        return reason
    cut = reason[:_REASON]
    end = max(cut.rfind(mark) for mark in ("; ", ". ", " ("))
    if end < _REASON // 3:
        end = cut.rfind(" ")
    return f"{cut[:end].rstrip(' ;,.:(')} …"


def name_of(recording: Recording) -> str:
    """An episode as ``--show`` takes it."""
    return f"{recording.batch}:{recording.index}"


def _print_unreadable(console: Console, curated: Curated) -> None:
    for recording, reason in curated.unreadable[:_SHOWN]:
        console.print(f"{name_of(recording)} cannot be read: {reason}", style="red", soft_wrap=True)
    if len(curated.unreadable) > _SHOWN:
        console.print(f"  … and {len(curated.unreadable) - _SHOWN} more")


def _print_found(console: Console, curated: Curated) -> None:
    wrong = {
        name: [score for score in said.values() if score.verdict in WRONG] for name, said in curated.by_check.items()
    }
    found = {name: scores for name, scores in wrong.items() if scores}
    if not found:
        console.print("No check found anything.")
        return
    names = {recording.episode_id: name_of(recording) for recording in curated.recordings}
    rows: list[tuple[str, str, str, str]] = []
    for name, scores in sorted(found.items(), key=lambda item: -sum(s.verdict == "bad" for s in item[1])):
        counts = counted_verdicts(scores)
        said = ", ".join(f"{counts[verdict]} {verdict}" for verdict in WRONG if counts[verdict])
        top = max(scores, key=Score.badness)
        worst = f"{names[top.episode_id]} {_of(top)}{short(top.reason)}"
        rows.append((name, said, worst, _TONES[top.verdict]))
    _print_lines(console, ("found by", "episodes", "the worst of them"), rows)


def _print_worst(console: Console, curated: Curated) -> None:
    if not curated.ranked:
        return
    rows: list[tuple[str, str, str, str]] = []
    for recording, scores in curated.ranked[:_SHOWN]:
        top, more = scores[0], len(scores) - 1
        said = f"{top.check} {_of(top)}{short(top.reason)}"
        rows.append((name_of(recording), f"{top.verdict}{f', {more} more' * bool(more)}", said, _TONES[top.verdict]))
    _print_lines(console, ("worst episodes", "verdict", "worst of it"), rows)
    if len(curated.ranked) > _SHOWN:
        console.print(f"  … and {len(curated.ranked) - _SHOWN} more")


def _print_unknown(console: Console, curated: Curated) -> None:
    rows: list[tuple[str, str, str, str]] = []
    for name, said in curated.by_check.items():
        why = Counter(score.reason for score in said.values() if score.verdict == "unknown")
        if why:
            rows.append((name, str(why.total()), short(why.most_common(1)[0][0]), ""))
    if rows:
        _print_lines(console, ("not told", "episodes", "because"), rows)


def _print_lines(console: Console, head: tuple[str, str, str], rows: Sequence[tuple[str, str, str, str]]) -> None:
    """Rows of a line each, with their tone last: what does not fit on a line is left to the page."""
    widths = [max(len(row[place]) for row in (head, *rows)) for place in range(2)]
    console.print()
    for one, two, three, tone in ((*head, "bold"), *rows):
        line = Text(visible(f"{one:<{widths[0]}}  {two:<{widths[1]}}  {three}"), style=tone)
        console.print(line, no_wrap=True, overflow="ellipsis")


def _of(score: Score) -> str:
    return f"{score.channel}: " if score.channel else ""
