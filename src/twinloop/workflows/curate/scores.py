"""Summarize the scores of episodes, the worst first, and choose the twin for the physics checks of an episode."""

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
    """Result of `twinloop curate`.

    Attributes:
        label: the scored dataset or workspace.
        recordings: the scored episodes.
        checks: the checks that were run.
        scores: all scores; one check may give an episode several, for example one per joint.
        where: SQL condition that selected the workspace's episodes; empty for all.
    """

    label: str
    recordings: Sequence[RecordedEpisode]
    checks: Sequence[EpisodeCheck]
    scores: Sequence[CheckScore]
    where: str = ""

    @functools.cached_property
    def by_verdict(self) -> dict[str, int]:
        """Number of episodes by verdict, worst verdict first. An episode has the worst verdict of its scores."""
        return count_verdicts(select_worst_scores(self.scores).values())

    @functools.cached_property
    def by_check(self) -> dict[str, dict[str, CheckScore]]:
        """Worst score of each episode, by name of the check and id of the episode."""
        return {
            check.name: select_worst_scores(score for score in self.scores if score.check == check.name)
            for check in self.checks
        }

    @functools.cached_property
    def ranked_episodes(self) -> list[tuple[RecordedEpisode, list[CheckScore]]]:
        """Suspect and bad episodes with their suspect and bad scores, episodes with most bad scores first.

        Ties are sorted by how rarely a check finds suspect or bad episodes, the rarest check first.
        """
        common = {
            name: sum(score.verdict in WRONG for score in by_episode.values())
            for name, by_episode in self.by_check.items()
        }
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
        """Return the metrics for ``--fail-if`` conditions: numbers of episodes by verdict, and by verdict and check."""
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
    """Return the names of the metrics of `CurateResult.headline`, to check ``--fail-if`` before episodes are scored."""
    verdicts = [verdict for verdict in VERDICTS if verdict != "good"]
    return [*verdicts, "share_bad", *(f"{verdict}/{check.name}" for check in checks for verdict in WRONG)]


def count_verdicts(scores: Iterable[CheckScore]) -> dict[str, int]:
    """Return the number of scores with each verdict, worst first."""
    counts = Counter(score.verdict for score in scores)
    return {verdict: counts[verdict] for verdict in VERDICTS}


@dataclass(frozen=True, kw_only=True)
class CatalogTwins:
    """Function that returns the twin for the physics checks of an episode; implements `curate.registry.EpisodeTwins`.

    A simulated episode has the twin in its provenance, if that twin can be loaded unchanged. Other episodes have
    `named`.

    Attributes:
        named: reference of a twin, as `load_twin` accepts it; empty for none.
    """

    named: str = ""

    def __call__(self, recording: RecordedEpisode) -> Twin:
        """Return the twin of an episode.

        Raises:
            InputError: If there is no twin for the episode.
        """
        if recording.provenance is not None and recording.provenance.twin_hash:
            found = _load_generation_twin(recording.reader.path)
            if found is not None and found.hash == recording.provenance.twin_hash:
                return found
        if not self.named:
            raise InputError(f"{recording.where} does not record its twin. Give one with --twin.")
        return _load_cached_twin(self.named)


def require_matching_twin(reference: str, recordings: Sequence[RecordedEpisode]) -> list[str]:
    """Check that a twin has joints of the episodes; return one line for each batch with joints that the twin lacks.

    Args:
        reference: the twin, as `load_twin` accepts it.
        recordings: the episodes to score. Only the first of each batch is read, unless it is simulated or unreadable.

    Raises:
        InputError: If the twin has none of the joints of any batch.
        UnknownNameError: If there is no such twin.
    """
    twin, firsts = _load_cached_twin(reference), {recording.batch: recording for recording in reversed(recordings)}
    joints_by_batch = {
        batch: joints for batch, recording in sorted(firsts.items()) if (joints := _real_joints(recording))
    }
    known = set(twin.robot.joints)
    if joints_by_batch and known.isdisjoint(*joints_by_batch.values()):
        batch, joints = next(iter(joints_by_batch.items()))
        raise InputError(
            f"--twin {reference} has no joint of the data: its joints are {', '.join(twin.robot.joints)}, those of "
            f"{batch} are {', '.join(joints)}. Name the twin of that robot, or leave --twin out."
        )
    return [
        f"{reference} lacks joints of {batch}: {', '.join(lacks)}. Checks that need all joints run without the twin."
        for batch, joints in joints_by_batch.items()
        if (lacks := [joint for joint in joints if joint not in known])
    ]


def _real_joints(recording: RecordedEpisode) -> tuple[str, ...]:
    """Return the joints of a real episode; empty if it is simulated or cannot be read."""
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
