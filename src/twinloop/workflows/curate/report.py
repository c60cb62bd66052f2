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
from twinloop.report.curves import plot_score_strips
from twinloop.workflows.curate.scores import WRONG, CurateResult, count_verdicts

_SHOWN = 8  # printed episodes
_REASON = 160  # characters of a shortened reason
_TONES = {"unreadable": "red", "bad": "red", "suspect": "yellow"}


def print_result(console: Console, result: CurateResult, *, stored: bool) -> None:
    """Print the findings, the worst episodes, unknown verdicts, and the commands that show or use the scores.

    Args:
        console: output for people.
        result: the result.
        stored: whether a workspace stores the scores.
    """
    counts = ", ".join(f"{count} {verdict}" for verdict, count in result.by_verdict.items() if count)
    console.print(f"{len(result.recordings)} episodes of {result.label}, {len(result.checks)} checks: {counts}")
    _print_unreadable(console, result)
    _print_findings(console, result)
    _print_worst(console, result)
    _print_unknown(console, result)
    if stored:
        console.print(
            "\nAll scores of an episode: `twinloop curate --show BATCH:INDEX`, or a query of the view `scores`."
        )
        console.print("To select the episodes that are readable and not bad (nothing was deleted):")
        console.print(f'  twinloop datasets freeze good --sql "{result.selection}"', soft_wrap=True)
    elif result.ranked_episodes:
        console.print("\nFor all scores give --output FOLDER, which writes report.html and result.json.")


def print_scores(console: Console, episode_id: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print every score of one episode with complete reasons.

    Args:
        console: output for people.
        episode_id: id of the episode.
        rows: rows of the view ``scores``.
    """
    decided = [row for row in rows if row["verdict"] != "unknown"]
    wrong = sum(row["verdict"] in WRONG for row in rows)
    console.print(f"{episode_id}: {len(rows)} scores, {wrong} suspect or bad, {len(rows) - len(decided)} unknown")
    table = Table(Column("verdict", no_wrap=True), Column("check", overflow="fold"), "channel", "frames", "reason")
    for row in rows:
        frames = _frames(row["first_frame"], row["last_frame"], whole="")
        tone = _TONES.get(row["verdict"], "")
        table.add_row(row["verdict"], row["check"], row["channel"], frames, row["reason"], style=tone)
    console.print(table)


def shorten_reason(reason: str) -> str:
    """Shorten the reason of a score to at most 160 characters, at the end of a clause if possible."""
    if len(reason) <= _REASON:
        return reason
    cut = reason[:_REASON]
    end = max(cut.rfind(mark) for mark in ("; ", ". ", " ("))
    if end < _REASON // 3:
        end = cut.rfind(" ")
    return f"{cut[:end].rstrip(' ;,.:(')} …"


def episode_name(recording: RecordedEpisode) -> str:
    """Return ``BATCH:INDEX``, the name of an episode that ``twinloop curate --show`` accepts."""
    return f"{recording.batch}:{recording.index}"


def _print_unreadable(console: Console, result: CurateResult) -> None:
    for recording, reason in result.unreadable[:_SHOWN]:
        console.print(f"{episode_name(recording)} cannot be read: {reason}", style="red", soft_wrap=True)
    if len(result.unreadable) > _SHOWN:
        console.print(f"  … and {len(result.unreadable) - _SHOWN} more")


def _print_findings(console: Console, result: CurateResult) -> None:
    found = {
        name: wrong
        for name, said in result.by_check.items()
        if (wrong := [score for score in said.values() if score.verdict in WRONG])
    }
    if not found:
        console.print("No check has findings.")
        return
    names = {recording.episode_id: episode_name(recording) for recording in result.recordings}
    rows: list[tuple[str, str, str, str]] = []
    for name, scores in sorted(found.items(), key=lambda item: -sum(s.verdict == "bad" for s in item[1])):
        counts = count_verdicts(scores)
        said = ", ".join(f"{counts[verdict]} {verdict}" for verdict in WRONG if counts[verdict])
        top = max(scores, key=CheckScore.badness)
        worst = f"{names[top.episode_id]} {_channel_prefix(top)}{shorten_reason(top.reason)}"
        rows.append((name, said, worst, _TONES[top.verdict]))
    _print_lines(console, ("check", "episodes", "worst finding"), rows)


def _print_worst(console: Console, result: CurateResult) -> None:
    if not result.ranked_episodes:
        return
    rows: list[tuple[str, str, str, str]] = []
    for recording, scores in result.ranked_episodes[:_SHOWN]:
        top, more = scores[0], len(scores) - 1
        finding = f"{top.check} {_channel_prefix(top)}{shorten_reason(top.reason)}"
        rows.append(
            (episode_name(recording), f"{top.verdict}{f', {more} more' * bool(more)}", finding, _TONES[top.verdict])
        )
    _print_lines(console, ("worst episodes", "verdict", "worst finding"), rows)
    if len(result.ranked_episodes) > _SHOWN:
        console.print(f"  … and {len(result.ranked_episodes) - _SHOWN} more")


def _print_unknown(console: Console, result: CurateResult) -> None:
    rows: list[tuple[str, str, str, str]] = []
    for name, by_episode in result.by_check.items():
        why = Counter(score.reason for score in by_episode.values() if score.verdict == "unknown")
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


_WITH_IMAGES, _MOMENTS = 12, 5  # episodes with images, and frames of each
_LISTED = 20
_HEIGHT = 160  # px of a shown frame

Wrong = Sequence[tuple[RecordedEpisode, Sequence[CheckScore]]]


def curate_section(page: ReportPage, result: CurateResult) -> None:
    """Add to a report the verdicts, findings, distances to limits, worst episodes with images, and the checks."""
    scores, verdicts, wrong = result.scores, result.by_verdict, result.ranked_episodes
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
    if result.unreadable:
        _unreadable_table(page, result)
    if wrong:
        _findings_table(page, result)
        _distributions(page, scores)
        _episodes(page, wrong)
        _images_section(page, wrong)
    else:
        page.text("No episode is suspect or bad.")
        _distributions(page, scores)
    _checks(page, result)


def _findings_table(page: ReportPage, result: CurateResult) -> None:
    """Add a table of the checks that found bad or suspect episodes, with the worst finding of each check."""
    rows = []
    for name, by_episode in result.by_check.items():
        wrong = [score for score in by_episode.values() if score.verdict in WRONG]
        if wrong:
            counts = count_verdicts(wrong)
            rows.append((name, counts["bad"], counts["suspect"], max(wrong, key=CheckScore.badness).reason))
    page.section("Findings", "Episodes by check, with the worst finding of each check.")
    page.table(("check", "bad", "suspect", "worst finding"), rows)


def _unreadable_table(page: ReportPage, result: CurateResult) -> None:
    page.section("Unreadable episodes", "These episodes are in no selection, and no check judged them.")
    rows = [(recording.where, reason) for recording, reason in result.unreadable[:_LISTED]]
    page.table(("episode", "reason"), rows)
    _note_omitted_episodes(page, result.unreadable)


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
    shown = [(recording, scores) for recording, scores in wrong if recording.cameras][:_WITH_IMAGES]
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
    """Return 5 frames around a finding next to each other, and their frame numbers.

    The frames extend from shortly before to shortly after the affected frames, or over the whole episode.

    Args:
        recording: the episode.
        camera: name of the camera.
        score: the finding.
    """
    from twinloop.dataset.media.images import resize_images

    last = recording.frame_count - 1
    first = 0 if score.first_frame is None else score.first_frame
    stop = last if score.first_frame is None else max(score.last_frame or first, first)
    around = max(3, (stop - first) // 4)
    rows = sorted({int(row) for row in np.linspace(max(first - around, 0), min(stop + around, last), _MOMENTS)})
    images = recording.read_images(camera, rows)
    height, width = images.shape[1:3]
    images = resize_images(images, (_HEIGHT, max(1, round(width * _HEIGHT / height))))
    gap = np.full((_HEIGHT, 4, 3), 255, dtype=np.uint8)
    parts: list[NDArray[np.uint8]] = [part for image in images for part in (image, gap)]
    return np.concatenate(parts[:-1], axis=1), rows


def _distributions(page: ReportPage, scores: Sequence[CheckScore]) -> None:
    rows: dict[str, list[tuple[float, str, str]]] = defaultdict(list)
    for score in scores:
        if score.value is not None and score.limit:
            hover = f"{score.episode_id[:12]} {score.channel}: {score.value:.4g} {score.unit}, limit {score.limit:.4g}"
            rows[score.check].append((score.value / score.limit, score.verdict, hover))
    if rows:
        page.section("Metrics relative to their limits", "One point for each score that has a limit.")
        page.plot(plot_score_strips(rows), "Points to the right of the line are suspect or bad.")


def _checks(page: ReportPage, result: CurateResult) -> None:
    """Add a table of the checks with the number of episodes by verdict, and one of the reasons for ``unknown``."""
    rows, reasons = [], []
    shown = [verdict for verdict in VERDICTS if any(score.verdict == verdict for score in result.scores)]
    for check in result.checks:
        scores = result.by_check[check.name].values()
        counts = count_verdicts(scores)
        rows.append((check.name, *(counts[verdict] for verdict in shown), check.meaning))
        reasons += [(check.name, score.reason) for score in scores if score.verdict == "unknown"][:1]
    page.section("Checks", "Number of episodes by check and verdict.")
    page.table(("check", *shown, "detects"), rows)
    if reasons:
        page.table(("check", "reason for unknown"), reasons)
