"""Check simulated episodes with learned models: can they be separated from real ones, and does real data support them?

A discriminator is trained on some episodes and scores the others, so that no clip is scored by a model trained on its
episode. An episode's score is the mean over its clips.

P-values are conformal, of whole episodes against held-out real ones (`stats.novelty`), and adjusted over all judged
episodes (Benjamini & Hochberg): among episodes with an adjusted p-value at or below the level, at most that share is in
truth like real ones. With n real episodes no p-value is below 1 / (n + 1). One odd episode among m can therefore be
certified only with at least m / level − 1 real ones. An episode beyond the fence of the real episodes' own scores is
flagged too, without this guarantee. Data outside the recorded region is not an error, so the worst verdict is
``suspect``; the reason states which of the two cases applies.
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
_TOLD = 3  # number of features in a reason
_OUTSIDE = 0.5  # share of clips outside the range of all real clips; then one feature is enough (our choice)


class _LearnedCheck(MeasuringCheck):
    """Base of checks that compare the clips of all episodes of each robot."""

    def __init__(self, twins: EpisodeTwins | None = None, *, level: float = LEVEL) -> None:
        self._twins, self.level = twins, level

    @property
    def settings(self) -> Mapping[str, Any]:
        """Level of false alarms; part of the check's hash."""
        return {"level": self.level}

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return the features of the episode's clips; see `MeasuringCheck`."""
        return [Measurement(value=0.0, facts=compute_clip_facts(recording, self._twins))]

    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """Judge the episodes of each robot type together; episodes without clips are ``unknown``."""
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
            yield self.make_score(recordings[place], Measurement(value=None, said=f"Not judged: {why}."), "unknown")

    @abstractmethod
    def _judge_group(
        self, recordings: Sequence[RecordedEpisode], real: Sequence[int], sim: Sequence[int], table: ClipFeatures | str
    ) -> Iterator[CheckScore]:
        """Yield scores of one robot's episodes; if ``table`` is a string, it is the reason against a comparison."""


class SimulatedLookingEpisodes(_LearnedCheck):
    """Simulated episodes that a discriminator separates from real ones, with the features that differ.

    A difference is not an error: it may be another task. The worst verdict is therefore ``suspect``. Its reason states
    whether a single feature is enough: in half of the clips it is outside the range of all real clips.

    Args:
        twins: twins whose joint ranges replace a missing calibration of a real log.
        level: share of false alarms among the certified episodes.
    """

    name = "learned/fake"
    meaning = "held-out score of looking simulated, in standard deviations of real clips, and the features that differ"
    unit = "sd"

    def _judge_group(
        self, recordings: Sequence[RecordedEpisode], real: Sequence[int], sim: Sequence[int], table: ClipFeatures | str
    ) -> Iterator[CheckScore]:
        for place in real:
            yield self.make_score(recordings[place], Measurement(value=None, said="It is real."), "good")
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
    """Describe the features by which simulated clips ``rows`` differ; also return whether one is enough."""
    parts = found.sim_parts[rows].mean(axis=0)
    low, high = real.rows.min(axis=0), real.rows.max(axis=0)
    span = 1e-6 * np.maximum(np.abs(low), np.abs(high))
    outside = ((sim.rows[rows] < low - span) | (sim.rows[rows] > high + span)).mean(axis=0)
    alone = outside >= _OUTSIDE
    order = np.lexsort((-parts, ~alone))[:_TOLD]
    said = []
    for column in order:
        feature = sim.features[column]
        middle = float(np.median(sim.rows[rows, column]))
        few, many = np.quantile(real.rows[:, column], (0.05, 0.95))
        unit = format_unit(feature.unit)
        said.append(
            f"{describe_feature(feature)} is {middle:.3g}{unit}, 90 % of real clips have {few:.3g} to {many:.3g}"
        )
    return "; ".join(said), bool(alone.any())


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
    """Episodes far from all real episodes, with the nearest real clip.

    Args:
        twins: twins whose joint ranges replace a missing calibration of a real log.
        level: share of false alarms among the certified episodes; each of the two measures gets half.
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
    known: ClipFeatures,
    given: ClipFeatures,
    found: NoveltyScores,
    place: int,
    scale: Array,
) -> tuple[int, str]:
    """Return the first frame of an episode's most distant clip, and a description of the nearest real clip."""
    rows = np.flatnonzero(given.episode == place)
    worst = rows[int(np.argmax(found.row_scores[rows]))]
    _, near = found.space.find_neighbours(_log_columns(given.rows[[worst]], scale), 1)
    row = int(near[0, 0])
    real = recordings[int(known.episode[row])]
    where = f"{real.where} ({real.episode_id[:12]}) from {known.first[row] / real.fps:.1f} s on"
    return int(given.first[worst]), f"the nearest real clip to the one from frame {given.first[worst]} on is {where}"


def _compute_scales(rows: Array) -> Array:
    """Return a tenth of the median of columns without negative values, NaN for other columns; see `_log_columns`."""
    middle = np.median(rows, axis=0)
    return np.where((rows.min(axis=0) >= 0) & (middle > 0), 0.1 * middle, np.nan)


def _log_columns(rows: Array, scale: Array) -> Array:
    """Return logarithms of nonnegative columns (speeds, ranges, noise), so that ratios count; others unchanged."""
    sizes = np.isfinite(scale)
    return np.where(sizes, np.log(np.maximum(rows, 0.0) + np.where(sizes, scale, 1.0)), rows)


def _explain_too_few_real(count: int) -> str:
    if count >= LEAST_EPISODES:
        return ""
    return f"{count} real episodes of this robot are too few; at least {LEAST_EPISODES} are needed"
