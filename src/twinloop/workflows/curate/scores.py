"""Summarize scores of episodes, worst first, and choose the twin that an episode is checked with."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from twinloop.core.errors import InputError, TwinloopError
from twinloop.core.headline import HeadlineMetric
from twinloop.curate.check import VERDICTS, CheckScore, EpisodeCheck, select_worst_scores
from twinloop.curate.recording import RecordedEpisode
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.generate.config import GenerateConfig
from twinloop.generate.replay import read_root_config
from twinloop.twin import Twin, load_twin

WRONG = ("bad", "suspect")


@dataclass(frozen=True, kw_only=True)
class CurateResult:
    """The scored episodes, the checks and their scores; ``where`` is the condition on the workspace's episodes."""

    label: str
    recordings: Sequence[RecordedEpisode]
    checks: Sequence[EpisodeCheck]
    scores: Sequence[CheckScore]
    where: str = ""

    @functools.cached_property
    def by_verdict(self) -> dict[str, int]:
        """Number of episodes by their worst verdict, worst first."""
        return count_verdicts(select_worst_scores(self.scores).values())

    @functools.cached_property
    def by_check(self) -> dict[str, dict[str, CheckScore]]:
        """The worst score of each episode, by check."""
        return {
            check.name: select_worst_scores(score for score in self.scores if score.check == check.name)
            for check in self.checks
        }

    @functools.cached_property
    def ranked_episodes(self) -> list[tuple[RecordedEpisode, list[CheckScore]]]:
        """Suspect and bad episodes with their scores, worst first; findings that few episodes have come first."""
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
        """Return the metrics that ``--fail-if`` can use."""
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
        """SQL that selects the episodes that are neither bad nor unreadable."""
        good = "episode_id NOT IN (SELECT episode_id FROM scores WHERE verdict IN ('bad', 'unreadable'))"
        return f"SELECT episode_id FROM episodes WHERE {f'({self.where}) AND ' if self.where else ''}{good}"  # noqa: S608 - text for a person


def metric_names(checks: Sequence[EpisodeCheck]) -> list[str]:
    """Return the names of the metrics of `CurateResult.headline`, before any episode is scored."""
    told = [verdict for verdict in VERDICTS if verdict != "good"]
    return [*told, "share_bad", *(f"{verdict}/{check.name}" for check in checks for verdict in WRONG)]


def count_verdicts(scores: Iterable[CheckScore]) -> dict[str, int]:
    """Return the number of scores with each verdict, worst first."""
    counts = Counter(score.verdict for score in scores)
    return {verdict: counts[verdict] for verdict in VERDICTS}


@dataclass(frozen=True, kw_only=True)
class CatalogTwins:
    """The twin of an episode; implements `curate.registry.EpisodeTwins`.

    For a simulated episode it is the twin named in its provenance, if it can be loaded unchanged; for any other it is
    ``named``, a reference as `load_twin` takes it, or "" for none.
    """

    named: str = ""

    def __call__(self, recording: RecordedEpisode) -> Twin:
        """Return the twin; raise `InputError` if there is none."""
        if recording.provenance is not None and recording.provenance.twin_hash:
            found = _load_generation_twin(recording.reader.path)
            if found is not None and found.hash == recording.provenance.twin_hash:
                return found
        if not self.named:
            raise InputError(f"{recording.where} names no twin. Give one with --twin.")
        return _load_cached_twin(self.named)


def require_matching_twin(reference: str, recordings: Sequence[RecordedEpisode]) -> list[str]:
    """Return one line for each batch with joints that the twin given by the user lacks.

    Args:
        reference: the twin, as `load_twin` takes it.
        recordings: the episodes to score. Only the first of each batch is read, unless it is simulated or unreadable.

    Raises:
        InputError: the twin has no joint of any batch.
        UnknownNameError: there is no such twin.
    """
    twin, firsts = _load_cached_twin(reference), {recording.batch: recording for recording in reversed(recordings)}
    asked = {batch: joints for batch, recording in sorted(firsts.items()) if (joints := _real_joints(recording))}
    known = set(twin.robot.joints)
    if asked and known.isdisjoint(*asked.values()):
        batch, joints = next(iter(asked.items()))
        raise InputError(
            f"--twin {reference} has no joint of the data: its joints are {', '.join(twin.robot.joints)}, those of "
            f"{batch} are {', '.join(joints)}. Name the twin of that robot, or leave --twin out."
        )
    return [
        f"{reference} lacks joints of {batch}: {', '.join(lacks)}. Checks that need all joints run without the twin."
        for batch, joints in asked.items()
        if (lacks := [joint for joint in joints if joint not in known])
    ]


def _real_joints(recording: RecordedEpisode) -> tuple[str, ...]:
    """Return the joints of a real episode; empty for a simulated one, and for one that cannot be read."""
    with contextlib.suppress(TwinloopError):
        if recording.provenance is None or not recording.provenance.twin_hash:
            return recording.raw.joints
    return ()


@functools.lru_cache(maxsize=4)
def _load_cached_twin(reference: str) -> Twin:
    return load_twin(reference)


@functools.lru_cache(maxsize=4)
def _load_generation_twin(folder: Path) -> Twin | None:
    """Return the twin that a dataset was generated with, or None if it is not recorded or cannot be loaded."""
    try:
        config = read_root_config(DatasetReader(folder))
        return load_twin(GenerateConfig.model_validate(config["generate"]).twin) if "generate" in config else None
    except (TwinloopError, ValueError):
        return None
