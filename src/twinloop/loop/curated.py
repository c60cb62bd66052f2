"""Scores of episodes put together: by verdict, by check, worst episodes first, and the selection of the others."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from twinloop.core.headline import Headline
from twinloop.curate.check import VERDICTS, Check, Score, worst
from twinloop.curate.recording import Recording

WRONG = ("bad", "suspect")


@dataclass(frozen=True, kw_only=True)
class Curated:
    """What was scored, by which checks, and what they said; ``where`` is the workspace's condition."""

    label: str
    recordings: Sequence[Recording]
    checks: Sequence[Check]
    scores: Sequence[Score]
    where: str = ""

    @functools.cached_property
    def by_verdict(self) -> dict[str, int]:
        """Episodes by their worst verdict, worst first."""
        return counted_verdicts(worst(self.scores).values())

    @functools.cached_property
    def by_check(self) -> dict[str, dict[str, Score]]:
        """By check the worst that it says of each episode."""
        return {check.name: worst(score for score in self.scores if score.check == check.name) for check in self.checks}

    @functools.cached_property
    def ranked(self) -> list[tuple[Recording, list[Score]]]:
        """Episodes that are suspect or bad with what is wrong, worst first; what few have comes before others."""
        common = {name: sum(score.verdict in WRONG for score in said.values()) for name, said in self.by_check.items()}
        wrong: dict[str, list[Score]] = {}
        for score in self.scores:
            if score.verdict in WRONG:
                wrong.setdefault(score.episode_id, []).append(score)
        for scores in wrong.values():
            scores.sort(key=lambda score: (VERDICTS.index(score.verdict), common[score.check]))
        rows = [(recording, wrong[recording.episode_id]) for recording in self.recordings
                if recording.episode_id in wrong]  # fmt: skip
        return sorted(rows, key=lambda row: (-sum(s.verdict == "bad" for s in row[1]), common[row[1][0].check]))

    @functools.cached_property
    def unreadable(self) -> list[tuple[Recording, str]]:
        """Episodes that cannot be read, with the reason."""
        reasons = {score.episode_id: score.reason for score in self.scores if score.verdict == "unreadable"}
        return [(recording, reasons[recording.episode_id]) for recording in self.recordings
                if recording.episode_id in reasons]  # fmt: skip

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
            for verdict in WRONG:
                ids = {s.episode_id for s in self.scores if s.check == check.name and s.verdict == verdict}
                rows.append(Headline(name=f"{verdict}/{check.name}", estimate=float(len(ids)), unit="episodes"))
        return rows

    @property
    def selection(self) -> str:
        """SQL that leaves out what is bad or cannot be read."""
        good = "episode_id NOT IN (SELECT episode_id FROM scores WHERE verdict IN ('bad', 'unreadable'))"
        return f"SELECT episode_id FROM episodes WHERE {f'({self.where}) AND ' if self.where else ''}{good}"  # noqa: S608 - text for a person


def figure_names(checks: Sequence[Check]) -> list[str]:
    """The figures that there will be of episodes, whatever the checks say of them."""
    told = [verdict for verdict in VERDICTS if verdict != "good"]
    return [*told, "share_bad", *(f"{verdict}/{check.name}" for check in checks for verdict in WRONG)]


def counted_verdicts(scores: Iterable[Score]) -> dict[str, int]:
    """How many there are of each verdict, worst first."""
    counts = Counter(score.verdict for score in scores)
    return {verdict: counts[verdict] for verdict in VERDICTS}
