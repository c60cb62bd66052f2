"""Scores of episodes put together, worst first, and which twin an episode is held against."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from twinloop.core.errors import InputError, TwinloopError
from twinloop.core.headline import HeadlineMetric
from twinloop.curate.check import VERDICTS, CheckScore, EpisodeCheck, worst
from twinloop.curate.recording import RecordedEpisode
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.generate.config import GenerateConfig
from twinloop.generate.replay import root_config
from twinloop.twin import Twin, load_twin

WRONG = ("bad", "suspect")


@dataclass(frozen=True, kw_only=True)
class CurateResult:
    """What was scored, by which checks, and what they said; ``where`` is the workspace's condition."""

    label: str
    recordings: Sequence[RecordedEpisode]
    checks: Sequence[EpisodeCheck]
    scores: Sequence[CheckScore]
    where: str = ""

    @functools.cached_property
    def by_verdict(self) -> dict[str, int]:
        """Episodes by their worst verdict, worst first."""
        return counted_verdicts(worst(self.scores).values())

    @functools.cached_property
    def by_check(self) -> dict[str, dict[str, CheckScore]]:
        """By check the worst that it says of each episode."""
        return {check.name: worst(score for score in self.scores if score.check == check.name) for check in self.checks}

    @functools.cached_property
    def ranked(self) -> list[tuple[RecordedEpisode, list[CheckScore]]]:
        """Episodes that are suspect or bad with what is wrong, worst first; what few have comes before others."""
        common = {name: sum(score.verdict in WRONG for score in said.values()) for name, said in self.by_check.items()}
        wrong: dict[str, list[CheckScore]] = {}
        for score in self.scores:
            if score.verdict in WRONG:
                wrong.setdefault(score.episode_id, []).append(score)
        for scores in wrong.values():
            scores.sort(key=lambda score: (VERDICTS.index(score.verdict), common[score.check]))
        rows = [(recording, wrong[recording.episode_id]) for recording in self.recordings
                if recording.episode_id in wrong]  # fmt: skip
        return sorted(rows, key=lambda row: (-sum(s.verdict == "bad" for s in row[1]), common[row[1][0].check]))

    @functools.cached_property
    def unreadable(self) -> list[tuple[RecordedEpisode, str]]:
        """Episodes that cannot be read, with the reason."""
        reasons = {score.episode_id: score.reason for score in self.scores if score.verdict == "unreadable"}
        return [(recording, reasons[recording.episode_id]) for recording in self.recordings
                if recording.episode_id in reasons]  # fmt: skip

    def headline(self) -> list[HeadlineMetric]:
        """The figures that conditions see."""
        share = self.by_verdict["bad"] / max(len(self.recordings), 1)
        ids = {(score.verdict, score.check, score.episode_id) for score in self.scores}
        counts = Counter(f"{verdict}/{check}" for verdict, check, _ in ids)
        return [
            *(
                HeadlineMetric(
                    name=verdict, estimate=float(count), unit="episodes", meaning=f"episodes whose worst is {verdict}"
                )
                for verdict, count in self.by_verdict.items()
                if verdict != "good"
            ),
            HeadlineMetric(name="share_bad", estimate=share, meaning="episodes that are bad"),
            *(
                HeadlineMetric(name=name, estimate=float(counts[name]), unit="episodes")
                for name in (f"{verdict}/{check.name}" for check in self.checks for verdict in WRONG)
            ),
        ]

    @property
    def selection(self) -> str:
        """SQL that leaves out what is bad or cannot be read."""
        good = "episode_id NOT IN (SELECT episode_id FROM scores WHERE verdict IN ('bad', 'unreadable'))"
        return f"SELECT episode_id FROM episodes WHERE {f'({self.where}) AND ' if self.where else ''}{good}"  # noqa: S608 - text for a person


def figure_names(checks: Sequence[EpisodeCheck]) -> list[str]:
    """The figures that there will be of episodes, whatever the checks say of them."""
    told = [verdict for verdict in VERDICTS if verdict != "good"]
    return [*told, "share_bad", *(f"{verdict}/{check.name}" for check in checks for verdict in WRONG)]


def counted_verdicts(scores: Iterable[CheckScore]) -> dict[str, int]:
    """How many there are of each verdict, worst first."""
    counts = Counter(score.verdict for score in scores)
    return {verdict: counts[verdict] for verdict in VERDICTS}


@dataclass(frozen=True, kw_only=True)
class CatalogTwins:
    """The twin of an episode, see `curate.registry.EpisodeTwins`.

    A simulated episode is held against the twin that its provenance names, where that can be loaded; any other against
    ``named``. ``named`` is a reference as `load_twin` takes it, "" for none.
    """

    named: str = ""

    def __call__(self, recording: RecordedEpisode) -> Twin:
        """The twin; raises `InputError` where there is none."""
        if recording.provenance is not None and recording.provenance.twin_hash:
            found = _made_with(recording.reader.path)
            if found is not None and found.hash == recording.provenance.twin_hash:
                return found
        if not self.named:
            raise InputError(f"There is no twin for {recording.where}. Name one with --twin.")
        return _loaded(self.named)


def require_fit(reference: str, recordings: Sequence[RecordedEpisode]) -> list[str]:
    """What a twin that a person named lacks of the joints of each batch that is held against it, a line each.

    Args:
        reference: as `load_twin` takes it.
        recordings: what is scored; the first of each batch is looked at, where no twin made it and it can be read.

    Raises:
        InputError: it has not one joint of any of them.
        UnknownNameError: no such twin.
    """
    twin, firsts = _loaded(reference), {recording.batch: recording for recording in reversed(recordings)}
    asked = {batch: joints for batch, recording in sorted(firsts.items()) if (joints := _joints_to_hold(recording))}
    known = set(twin.robot.joints)
    if asked and known.isdisjoint(*asked.values()):
        batch, joints = next(iter(asked.items()))
        raise InputError(
            f"--twin {reference} has no joint of the data's: its joints are {', '.join(twin.robot.joints)}, those of "
            f"{batch} are {', '.join(joints)}. Name the twin of that robot, or leave --twin out."
        )
    return [
        f"{reference} lacks joints of {batch}: {', '.join(lacks)}. Checks that need all of them do without the twin."
        for batch, joints in asked.items()
        if (lacks := [joint for joint in joints if joint not in known])
    ]


def _joints_to_hold(recording: RecordedEpisode) -> tuple[str, ...]:
    """The joints of an episode that no twin made; none where it cannot be read, which the checks say."""
    with contextlib.suppress(TwinloopError):
        if recording.provenance is None or not recording.provenance.twin_hash:
            return recording.raw.joints
    return ()


@functools.lru_cache(maxsize=4)
def _loaded(reference: str) -> Twin:
    return load_twin(reference)


@functools.lru_cache(maxsize=4)
def _made_with(folder: Path) -> Twin | None:
    """The twin that a dataset was generated with, None where it does not say or it cannot be loaded any more."""
    try:
        config = root_config(DatasetReader(folder))
        return load_twin(GenerateConfig.model_validate(config["generate"]).twin) if "generate" in config else None
    except (TwinloopError, ValueError):
        return None
