"""Check with learned models whether simulated episodes look simulated, and whether real data supports them.

A discriminator is trained on some episodes and scores the other episodes, so that no clip is scored by a model that was
trained on its episode. An episode's score is the mean over its clips.

The p-value of an episode is conformal: its score is compared with those of held-out real episodes (`stats.novelty`).
The p-values are adjusted over all judged episodes (Benjamini & Hochberg). An episode is certified as different if its
adjusted p-value is at most the level. The false discovery rate, the expected share of episodes among the certified ones
that do not differ from real episodes, is then at most the level. With n real episodes no p-value is below 1 / (n + 1).
To certify a single odd episode among m judged episodes, n must be at least m / level - 1.

An episode whose score is an outlier among the scores of the real episodes is reported too, but without this guarantee.
The reason states which of the two cases applies. Data outside the recorded region is not an error, so the worst verdict
is ``suspect``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.curate.check import CheckScore, Measurement, MeasuringCheck
from twinloop.curate.demonstration.peers import format_unit
from twinloop.curate.learned.clips import (
    Array,
    ClipFeatures,
    compute_clip_facts,
    describe_feature,
    group_comparable,
    is_real,
)
from twinloop.curate.recording import RecordedEpisode
from twinloop.curate.registry import EpisodeTwins
from twinloop.stats.classifier import auc_interval
from twinloop.stats.conformal import conformal_p_values
from twinloop.stats.discriminant import CrossFittedScores, cross_fit
from twinloop.stats.interval import benjamini_hochberg
from twinloop.stats.novelty import Kind, NoveltyScores, ValueFence, fence, score_novelty

LEVEL = 0.05
LEAST_EPISODES = 20  # real episodes; with fewer, no held-out p-value is below 0.05
# Held-out scores of the judged side spread more than those of the side that defines the score's unit. A fence 1.5
# times as wide keeps the number of false alarms low (measured; docs/evidence/curation.md).
_FAR = 1.5
_MOST_FEATURES = 3  # number of features in a reason
_OUTSIDE = 0.5  # share of clips outside the range of all real clips; then one feature is enough (our choice)


class _LearnedCheck(MeasuringCheck):
    """Base class of checks that compare the clips (sections of 2 s) of each episode with those of real episodes.

    The episodes of each robot type are judged together. A subclass implements `_judge_group` and sets ``name``,
    ``meaning`` and ``unit``.
    """

    def __init__(self, twins: EpisodeTwins | None = None, *, level: float = LEVEL) -> None:
        self._twins, self.level = twins, level

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings of the check, namely the level of false alarms; they are part of the check's hash."""
        return {"level": self.level}

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return one measurement, whose ``facts`` hold the features of the episode's clips."""
        return [Measurement(value=0.0, facts=compute_clip_facts(recording, self._twins))]

    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """Judge the episodes of each robot type together; an episode without clips is ``unknown``."""
        judged: set[int] = set()
        for places, table in group_comparable(recordings, measured):
            judged |= set(places)
            real = [place for place in places if is_real(recordings[place])]
            sim = [place for place in places if not is_real(recordings[place])]
            yield from self._judge_group(recordings, real, sim, table)
        for place in sorted(set(range(len(recordings))) - judged):
            yield self.make_score(recordings[place], measured[place][0], "unknown")

    def _make_unknown_scores(
        self, recordings: Sequence[RecordedEpisode], places: Sequence[int], why: str
    ) -> Iterator[CheckScore]:
        for place in places:
            yield self.make_score(recordings[place], Measurement(value=None, text=f"Not judged: {why}."), "unknown")

    @abstractmethod
    def _judge_group(
        self, recordings: Sequence[RecordedEpisode], real: Sequence[int], sim: Sequence[int], table: ClipFeatures | str
    ) -> Iterator[CheckScore]:
        """Yield the scores of the episodes of one robot type.

        Args:
            recordings: all episodes.
            real: indices of the real episodes of this robot.
            sim: indices of the simulated episodes of this robot.
            table: clips of these episodes, or the reason why they cannot be compared.
        """


class LooksSimulated(_LearnedCheck):
    """Check for simulated episodes that a discriminator separates from real episodes, with the features that differ.

    A difference is not an error, because it may be another task. The worst verdict is therefore ``suspect``. The reason
    also states whether a single feature separates the episode: in half of its clips, the feature is outside the range
    of all real clips.

    Args:
        twins: function that returns the twin of an episode, whose joint ranges replace a missing calibration of a real
            log.
        level: false discovery rate: largest expected share of false alarms among the reported episodes whose adjusted
            p-value is at most this level.
    """

    name = "learned/fake"
    meaning = "held-out score of looking simulated, in standard deviations of real clips, and the features that differ"
    unit = "sd"

    def _judge_group(
        self, recordings: Sequence[RecordedEpisode], real: Sequence[int], sim: Sequence[int], table: ClipFeatures | str
    ) -> Iterator[CheckScore]:
        for place in real:
            yield self.make_score(recordings[place], Measurement(value=None, text="It is real."), "good")
        why = table if isinstance(table, str) else _explain_too_few(real, sim)
        if why or isinstance(table, str):
            yield from self._make_unknown_scores(recordings, sim, why)
        else:
            yield from self._compare_clips(recordings, table.select_clips(real), table.select_clips(sim))

    def _compare_clips(
        self, recordings: Sequence[RecordedEpisode], real: ClipFeatures, sim: ClipFeatures
    ) -> Iterator[CheckScore]:
        found = cross_fit(real.rows, sim.rows, real_clusters=real.episode, sim_clusters=sim.episode)
        names, of = np.unique(sim.episode, return_inverse=True)
        score = _compute_episode_means(found.sim, of)
        usual = _compute_episode_means(found.real, np.unique(real.episode, return_inverse=True)[1])
        p = benjamini_hochberg(conformal_p_values(usual, score))
        auc = auc_interval(np.concatenate([score, usual]), np.arange(len(score) + len(usual)) < len(score))
        limit = fence(usual, stretch=_FAR).high
        ranked = f"{100 * float(auc.estimate):.0f} % of pairs of held-out episodes are separated"
        for here, place in enumerate(names):
            rows = np.flatnonzero(of == here)
            measured = Measurement(value=float(score[here]))
            if p[here] > self.level and score[here] <= limit:
                reason = f"It does not differ from real episodes (adjusted p = {p[here]:.2g}; {ranked})."
                yield self.make_score(recordings[place], measured, "good", limit=limit, reason=reason)
                continue
            words, alone = describe_differing_features(real, sim, found, rows)
            by = "one feature is enough" if alone else "by these features"
            reason = f"It looks simulated, {by}: {words} (adjusted p = {p[here]:.2g}; {ranked})."
            yield self.make_score(recordings[place], measured, "suspect", limit=limit, reason=reason)


def describe_differing_features(
    real: ClipFeatures, sim: ClipFeatures, found: CrossFittedScores, rows: NDArray[np.intp]
) -> tuple[str, bool]:
    """Describe the three features by which simulated clips differ most from real ones.

    Args:
        real: real clips.
        sim: simulated clips.
        found: scores of the discriminator, with the contribution of each feature.
        rows: indices of the simulated clips to describe, for example those of one episode.

    Returns:
        The description, and whether one feature alone separates these clips from the real ones.
    """
    parts = found.sim_parts[rows].mean(axis=0)
    low, high = real.rows.min(axis=0), real.rows.max(axis=0)
    span = 1e-6 * np.maximum(np.abs(low), np.abs(high))
    outside = ((sim.rows[rows] < low - span) | (sim.rows[rows] > high + span)).mean(axis=0)
    alone = outside >= _OUTSIDE
    order = np.lexsort((-parts, ~alone))[:_MOST_FEATURES]
    texts = []
    for column in order:
        feature = sim.features[column]
        middle = float(np.median(sim.rows[rows, column]))
        few, many = np.quantile(real.rows[:, column], (0.05, 0.95))
        unit = format_unit(feature.unit)
        texts.append(
            f"{describe_feature(feature)} is {middle:.3g}{unit}, 90 % of real clips have {few:.3g} to {many:.3g}"
        )
    return "; ".join(texts), bool(alone.any())


def _explain_too_few(real: Sequence[int], sim: Sequence[int]) -> str:
    if len(real) >= LEAST_EPISODES and len(sim) >= LEAST_EPISODES // 2:
        return ""
    return (
        f"{len(real)} real and {len(sim)} simulated episodes of this robot are too few for training; at least "
        f"{LEAST_EPISODES} real and {LEAST_EPISODES // 2} simulated ones are needed"
    )


def _compute_episode_means(values: Array, of: NDArray[np.intp]) -> Array:
    return np.bincount(of, weights=values) / np.bincount(of)


_WORDS: Mapping[Kind, str] = {
    "neighbours": "distance to the fifth nearest real clip",
    "density": "distance from the middle of real clips by their covariance",
}


class OutOfSupport(_LearnedCheck):
    """Check for episodes that are far from all real episodes; the reason names the nearest real clip.

    Two measures are used: the distance to the fifth nearest real clip, and the Mahalanobis distance from the mean of
    the real clips.

    Args:
        twins: function that returns the twin of an episode, whose joint ranges replace a missing calibration of a real
            log.
        level: false discovery rate: largest expected share of false alarms among the episodes that are reported because
            of a small adjusted p-value. Each of the two measures gets half.
    """

    name = "learned/support"
    meaning = "distance of clips from real ones: neighbours and density, conformal p-values of whole episodes"
    unit = "log"

    def _judge_group(
        self, recordings: Sequence[RecordedEpisode], real: Sequence[int], sim: Sequence[int], table: ClipFeatures | str
    ) -> Iterator[CheckScore]:
        why = table if isinstance(table, str) else _explain_too_few_real(len(real))
        if why or isinstance(table, str):
            yield from self._make_unknown_scores(recordings, sorted([*real, *sim]), why)
            return
        for kind in _WORDS:
            yield from self._judge_kind(recordings, table, real, sim, kind)

    def _judge_kind(
        self,
        recordings: Sequence[RecordedEpisode],
        table: ClipFeatures,
        real: Sequence[int],
        sim: Sequence[int],
        kind: Kind,
    ) -> Iterator[CheckScore]:
        known, given = table.select_clips(real), table.select_clips(sim or real)
        scale = _compute_scales(known.rows)
        found = score_novelty(
            _log_columns(known.rows, scale),
            _log_columns(given.rows, scale),
            reference_clusters=known.episode,
            clusters=given.episode,
            kind=kind,
        )
        usual = fence(found.reference)
        for place, value in zip(np.unique(known.episode), found.reference, strict=True):
            yield self._score_real(recordings[place], float(value), usual, kind)
        if not sim:
            return
        adjusted = np.minimum(benjamini_hochberg(found.p_values), 1.0)
        for here, place in enumerate(found.names):
            certain = adjusted[here] <= self.level / len(_WORDS)
            odd = certain or float(found.scores[here]) > usual.high
            far = np.exp(found.scores[here] - usual.median)
            promise = f"p = {found.p_values[here]:.2g}, {adjusted[here]:.2g} adjusted for {len(found.names)} episodes"
            reason = f"Its {_WORDS[kind]} is {far:.2f} times the usual one of held-out real episodes ({promise})."
            first = None
            if odd:
                first, nearest = _find_nearest_clip(recordings, known, given, found, int(place), scale)
                sure = "No real data supports it" if certain else "Little real data supports it"
                reason = f"{sure}: {reason[0].lower()}{reason[1:-1]}; {nearest}."
            measured = Measurement(value=float(found.scores[here]), channel=kind, first_frame=first)
            yield self.make_score(
                recordings[place], measured, "suspect" if odd else "good", limit=usual.high, reason=reason
            )

    def _score_real(self, recording: RecordedEpisode, value: float, usual: ValueFence, kind: Kind) -> CheckScore:
        far = np.exp(value - usual.median)
        verdict = "suspect" if value > usual.high else "good"
        reason = f"It is real; held out, its {_WORDS[kind]} is {far:.2f} times the usual one."
        measured = Measurement(value=value, channel=kind)
        return self.make_score(recording, measured, verdict, limit=usual.high, reason=reason)


def _find_nearest_clip(
    recordings: Sequence[RecordedEpisode],
    real_clips: ClipFeatures,
    judged_clips: ClipFeatures,
    scores: NoveltyScores,
    episode: int,
    scale: Array,
) -> tuple[int, str]:
    """Find the clip of an episode with the largest novelty score, and the real clip that is nearest to it.

    Args:
        recordings: all episodes.
        real_clips: real clips.
        judged_clips: judged clips.
        scores: novelty scores of the judged clips.
        episode: index of the episode.
        scale: number that is added to each feature before its logarithm ``(d,)``, from `_compute_scales`: a tenth of
            the feature's median; NaN for a feature without logarithm.

    Returns:
        The first frame of the episode's clip, and a text for the user that names the nearest real clip.
    """
    rows = np.flatnonzero(judged_clips.episode == episode)
    worst = rows[int(np.argmax(scores.row_scores[rows]))]
    _, near = scores.space.find_neighbours(_log_columns(judged_clips.rows[[worst]], scale), 1)
    row = int(near[0, 0])
    real = recordings[int(real_clips.episode[row])]
    where = f"{real.where} ({real.episode_id[:12]}) from {real_clips.first[row] / real.fps:.1f} s on"
    first = int(judged_clips.first[worst])
    return first, f"the nearest real clip to the one from frame {first} on is {where}"


def _compute_scales(rows: Array) -> Array:
    """Return the offset that `_log_columns` adds to each feature before the logarithm ``(d,)``: a tenth of its median.

    The offset is NaN for features that are not converted to logarithms, because they have negative values or a median
    of 0.

    Args:
        rows: features of the real clips ``(n, d)``.
    """
    middle = np.median(rows, axis=0)
    return np.where((rows.min(axis=0) >= 0) & (middle > 0), 0.1 * middle, np.nan)


def _log_columns(rows: Array, scale: Array) -> Array:
    """Replace nonnegative features (speeds, ranges, noise) by their logarithms, so that ratios count.

    Args:
        rows: features ``(n, d)``.
        scale: offset of each feature before the logarithm ``(d,)``; NaN leaves the feature unchanged.
    """
    sizes = np.isfinite(scale)
    return np.where(sizes, np.log(np.maximum(rows, 0.0) + np.where(sizes, scale, 1.0)), rows)


def _explain_too_few_real(count: int) -> str:
    if count >= LEAST_EPISODES:
        return ""
    return f"{count} real episodes of this robot are too few; at least {LEAST_EPISODES} are needed"
