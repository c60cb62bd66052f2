"""Print the quality of episodes and write the report: findings, distances to limits, and images."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from twinloop.core.console import escape_control
from twinloop.core.errors import TwinloopError
from twinloop.curate.check import VERDICTS, CheckScore
from twinloop.curate.recording import RecordedEpisode
from twinloop.report import KeyMetric, ReportPage
from twinloop.report.curves import score_strips
from twinloop.workflows.curate.scores import WRONG, CurateResult, count_verdicts

_SHOWN = 8  # printed episodes
_REASON = 160  # characters of a shortened reason
_TONES = {"unreadable": "red", "bad": "red", "suspect": "yellow"}


def print_result(console: Console, curated: CurateResult, *, stored: bool) -> None:
    """Print the findings, the worst episodes, unknown verdicts, and how to get the rest.

    Args:
        console: output for people.
        curated: the result.
        stored: whether a workspace stores the scores.
    """
    counts = ", ".join(f"{count} {verdict}" for verdict, count in curated.by_verdict.items() if count)
    console.print(f"{len(curated.recordings)} episodes of {curated.label}, {len(curated.checks)} checks: {counts}")
    _print_unreadable(console, curated)
    _print_findings(console, curated)
    _print_worst(console, curated)
    _print_unknown(console, curated)
    if stored:
        console.print(
            "\nAll scores of an episode: `twinloop curate --show BATCH:INDEX`, or a query of the view `scores`."
        )
        console.print("To select the episodes that are readable and not bad (nothing was deleted):")
        console.print(f'  twinloop datasets freeze good --sql "{curated.selection}"', soft_wrap=True)
    elif curated.ranked_episodes:
        console.print("\nFor all scores give --output FOLDER, which writes report.html and result.json.")


def print_scores(console: Console, episode_id: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print every score of one episode with complete reasons; ``rows`` are rows of the view ``scores``."""
    told = [row for row in rows if row["verdict"] != "unknown"]
    wrong = sum(row["verdict"] in WRONG for row in rows)
    console.print(f"{episode_id}: {len(rows)} scores, {wrong} suspect or bad, {len(rows) - len(told)} unknown")
    table = Table(Column("verdict", no_wrap=True), Column("check", overflow="fold"), "channel", "frames", "reason")
    for row in rows:
        frames = _frames(row["first_frame"], row["last_frame"], whole="")
        tone = _TONES.get(row["verdict"], "")
        table.add_row(row["verdict"], row["check"], row["channel"], frames, row["reason"], style=tone)
    console.print(table)


def shorten_reason(reason: str) -> str:
    """Return a reason for one line: complete clauses, at most 160 characters."""
    if len(reason) <= _REASON:
        return reason
    cut = reason[:_REASON]
    end = max(cut.rfind(mark) for mark in ("; ", ". ", " ("))
    if end < _REASON // 3:
        end = cut.rfind(" ")
    return f"{cut[:end].rstrip(' ;,.:(')} …"


def episode_name(recording: RecordedEpisode) -> str:
    """Return the name of an episode for ``--show``."""
    return f"{recording.batch}:{recording.index}"


def _print_unreadable(console: Console, curated: CurateResult) -> None:
    for recording, reason in curated.unreadable[:_SHOWN]:
        console.print(f"{episode_name(recording)} cannot be read: {reason}", style="red", soft_wrap=True)
    if len(curated.unreadable) > _SHOWN:
        console.print(f"  … and {len(curated.unreadable) - _SHOWN} more")


def _print_findings(console: Console, curated: CurateResult) -> None:
    found = {
        name: wrong
        for name, said in curated.by_check.items()
        if (wrong := [score for score in said.values() if score.verdict in WRONG])
    }
    if not found:
        console.print("No check has findings.")
        return
    names = {recording.episode_id: episode_name(recording) for recording in curated.recordings}
    rows: list[tuple[str, str, str, str]] = []
    for name, scores in sorted(found.items(), key=lambda item: -sum(s.verdict == "bad" for s in item[1])):
        counts = count_verdicts(scores)
        said = ", ".join(f"{counts[verdict]} {verdict}" for verdict in WRONG if counts[verdict])
        top = max(scores, key=CheckScore.badness)
        worst = f"{names[top.episode_id]} {_channel_prefix(top)}{shorten_reason(top.reason)}"
        rows.append((name, said, worst, _TONES[top.verdict]))
    _print_lines(console, ("check", "episodes", "worst finding"), rows)


def _print_worst(console: Console, curated: CurateResult) -> None:
    if not curated.ranked_episodes:
        return
    rows: list[tuple[str, str, str, str]] = []
    for recording, scores in curated.ranked_episodes[:_SHOWN]:
        top, more = scores[0], len(scores) - 1
        said = f"{top.check} {_channel_prefix(top)}{shorten_reason(top.reason)}"
        rows.append(
            (episode_name(recording), f"{top.verdict}{f', {more} more' * bool(more)}", said, _TONES[top.verdict])
        )
    _print_lines(console, ("worst episodes", "verdict", "worst finding"), rows)
    if len(curated.ranked_episodes) > _SHOWN:
        console.print(f"  … and {len(curated.ranked_episodes) - _SHOWN} more")


def _print_unknown(console: Console, curated: CurateResult) -> None:
    rows: list[tuple[str, str, str, str]] = []
    for name, said in curated.by_check.items():
        why = Counter(score.reason for score in said.values() if score.verdict == "unknown")
        if why:
            rows.append((name, str(why.total()), shorten_reason(why.most_common(1)[0][0]), ""))
    if rows:
        _print_lines(console, ("unknown", "episodes", "reason"), rows)


def _print_lines(console: Console, head: tuple[str, str, str], rows: Sequence[tuple[str, str, str, str]]) -> None:
    """Print one line per row, cut at the width of the console; the last item of a row is its style."""
    widths = [max(len(row[place]) for row in (head, *rows)) for place in range(2)]
    console.print()
    for one, two, three, tone in ((*head, "bold"), *rows):
        line = Text(escape_control(f"{one:<{widths[0]}}  {two:<{widths[1]}}  {three}"), style=tone)
        console.print(line, no_wrap=True, overflow="ellipsis")


def _channel_prefix(score: CheckScore) -> str:
    return f"{score.channel}: " if score.channel else ""


_PICTURED, _MOMENTS = 12, 5  # episodes with images, and frames of each
_LISTED = 20
_HEIGHT = 160  # px of a shown frame

Wrong = Sequence[tuple[RecordedEpisode, Sequence[CheckScore]]]


def curate_section(page: ReportPage, curated: CurateResult) -> None:
    """Write the sections of the page: counts, findings, distributions, worst episodes, images, checks."""
    scores, verdicts, wrong = curated.scores, curated.by_verdict, curated.ranked_episodes
    page.key_metrics(
        KeyMetric(
            label=verdict,
            value=verdicts[verdict],
            unit="episodes",
            tone="bad" if verdict in ("bad", "unreadable") else None,
        )
        for verdict in VERDICTS
        if verdicts[verdict]
    )
    page.text("The verdict of an episode is its worst verdict from any check. Nothing was deleted or changed.")
    if curated.unreadable:
        _unreadable_table(page, curated)
    if wrong:
        _findings_table(page, curated)
        _distributions(page, scores)
        _episodes(page, wrong)
        _images_section(page, wrong)
    else:
        page.text("No episode is suspect or bad.")
        _distributions(page, scores)
    _checks(page, curated)


def _findings_table(page: ReportPage, curated: CurateResult) -> None:
    """Write a table of the checks with findings, each with its worst one."""
    rows = []
    for name, said in curated.by_check.items():
        wrong = [score for score in said.values() if score.verdict in WRONG]
        if wrong:
            counts = count_verdicts(wrong)
            rows.append((name, counts["bad"], counts["suspect"], max(wrong, key=CheckScore.badness).reason))
    page.section("Findings", "Episodes by check, with the worst finding of each check.")
    page.table(("check", "bad", "suspect", "worst finding"), rows)


def _unreadable_table(page: ReportPage, curated: CurateResult) -> None:
    page.section("Unreadable episodes", "These episodes are in no selection, and no check judged them.")
    rows = [(recording.where, reason) for recording, reason in curated.unreadable[:_LISTED]]
    page.table(("episode", "reason"), rows)
    _note_omitted_episodes(page, curated.unreadable)


def _episodes(page: ReportPage, wrong: Wrong) -> None:
    page.section("Worst episodes first", "The worst finding of each episode, and the other checks with findings.")
    rows = []
    for recording, (top, *others) in wrong[:_LISTED]:
        also = ", ".join(dict.fromkeys(score.check for score in others if score.check != top.check))
        frames = _frames(top.first_frame, top.last_frame, whole="all")
        rows.append((recording.where, top.verdict, top.check, top.channel, frames, top.reason, also))
    page.table(("episode", "verdict", "check", "channel", "frames", "reason", "other checks"), rows)
    _note_omitted_episodes(page, wrong)


def _note_omitted_episodes(page: ReportPage, episodes: Sequence[Any]) -> None:
    if len(episodes) > _LISTED:
        page.text(f"{len(episodes) - _LISTED} more episodes are in result.json.")


def _frames(first: int | None, last: int | None, *, whole: str) -> str:
    if first is None:
        return whole
    return str(first) if last in (None, first) else f"{first}–{last}"


def _images_section(page: ReportPage, wrong: Wrong) -> None:
    shown = [(recording, scores) for recording, scores in wrong if recording.cameras][:_PICTURED]
    if not shown:
        return
    page.section("Images", "Frames around the finding, from the episode's cameras.")
    for recording, scores in shown:
        score = next((score for score in scores if score.channel.partition("/")[0] in recording.cameras), scores[0])
        camera = score.channel.partition("/")[0]
        camera = camera if camera in recording.cameras else recording.cameras[0]
        try:
            strip, rows = _build_image_strip(recording, camera, score)
        except TwinloopError as error:
            page.text(f"{recording.where}: {error}")
            continue
        numbers = ", ".join(map(str, rows))
        page.image(strip, f"{recording.where}, {camera}, frames {numbers}. {score.check}: {score.reason}")
        recording.free_arrays()


def _build_image_strip(
    recording: RecordedEpisode, camera: str, score: CheckScore
) -> tuple[NDArray[np.uint8], list[int]]:
    """Return frames next to each other, from shortly before to shortly after the affected ones, and their numbers."""
    from twinloop.dataset.media.images import resize_images

    last = recording.frames - 1
    first = 0 if score.first_frame is None else score.first_frame
    stop = last if score.first_frame is None else max(score.last_frame or first, first)
    around = max(3, (stop - first) // 4)
    rows = sorted({int(row) for row in np.linspace(max(first - around, 0), min(stop + around, last), _MOMENTS)})
    pictures = recording.read_images(camera, rows)
    height, width = pictures.shape[1:3]
    pictures = resize_images(pictures, (_HEIGHT, max(1, round(width * _HEIGHT / height))))
    gap = np.full((_HEIGHT, 4, 3), 255, dtype=np.uint8)
    parts: list[NDArray[np.uint8]] = [part for picture in pictures for part in (picture, gap)]
    return np.concatenate(parts[:-1], axis=1), rows


def _distributions(page: ReportPage, scores: Sequence[CheckScore]) -> None:
    rows: dict[str, list[tuple[float, str, str]]] = defaultdict(list)
    for score in scores:
        if score.value is not None and score.limit:
            said = f"{score.episode_id[:12]} {score.channel}: {score.value:.4g} {score.unit}, limit {score.limit:.4g}"
            rows[score.check].append((score.value / score.limit, score.verdict, said))
    if rows:
        page.section("Metrics relative to their limits", "One point for each score that has a limit.")
        page.plot(score_strips(rows), "Points to the right of the line are suspect or bad.")


def _checks(page: ReportPage, curated: CurateResult) -> None:
    rows = []
    for check in curated.checks:
        said = curated.by_check[check.name].values()
        why = next((score.reason for score in said if score.verdict == "unknown"), "")
        rows.append((check.name, *count_verdicts(said).values(), check.meaning, why))
    page.section("Checks")
    page.table(("check", *VERDICTS, "detects", "reason for unknown"), rows)
