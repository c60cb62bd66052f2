"""Check simulated episodes by learned models: can they be told from real ones, does real data support them.

A discriminator learns from some episodes and scores the others, so that no clip is scored by a model that saw its
episode. An episode's score is the mean of its clips'; how often real episodes look as simulated, held out, is its
p-value, adjusted over all episodes (Benjamini & Hochberg). Few real episodes certify nothing about a few odd ones among
many, so that what lies beyond the fence of real episodes' own scores is told too, without that promise.

P-values are conformal, of whole episodes against held-out real ones (`stats.novelty`), and adjusted over all episodes
that are judged: of those whose adjusted p-value is at most the level, no more than that share are like real ones in
truth. With n real episodes no p-value is below 1 / (n + 1), so that one odd episode among m can be certified from
m / level − 1 real ones on; one that lies beyond the fence of real episodes' own distances is flagged without that
promise. To lie where nobody has recorded yet is no fault, so that the worst verdict is ``suspect``; the reason says
which of the two it is.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.curate.check import CheckScore, Measurement, MeasuringCheck
from twinloop.curate.demonstration.peers import unit_words
from twinloop.curate.learned.clips import Array, ClipFeatures, clip_facts, comparable, in_words, is_real
from twinloop.curate.recording import RecordedEpisode
from twinloop.curate.registry import EpisodeTwins
from twinloop.stats.classifier import auc_interval
from twinloop.stats.conformal import conformal_p_values
from twinloop.stats.discriminant import CrossFittedScores, cross_fit
from twinloop.stats.interval import benjamini_hochberg
from twinloop.stats.novelty import Kind, NoveltyScores, ValueFence, fence, novelty

LEVEL = 0.05
LEAST_EPISODES = 20  # of each side; with fewer no p-value gets below 0.05 held out in folds
# Held-out scores of the side that is judged spread more than those of the side that a score's unit is of: a fence half
# as far again leaves as few good ones outside (measured; docs/evidence/curation.md).
_FAR = 1.5
_TOLD = 3  # features that are named
_OUTSIDE = 0.5  # of an episode's clips beyond every real clip in one feature: told by that alone (our choice)


class _LearnedCheck(MeasuringCheck):
    """Measures numbers of clips, and judges the episodes of each robot together."""

    def __init__(self, twins: EpisodeTwins | None = None, *, level: float = LEVEL) -> None:
        self._twins, self.level = twins, level

    @property
    def settings(self) -> Mapping[str, Any]:
        """The level."""
        return {"level": self.level}

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """See `MeasuringCheck`: numbers of clips."""
        return [Measurement(value=0.0, facts=clip_facts(recording, self._twins))]

    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """See `MeasuringCheck`."""
        judged: set[int] = set()
        for places, table in comparable(recordings, measured):
            judged |= set(places)
            real = [place for place in places if is_real(recordings[place])]
            sim = [place for place in places if not is_real(recordings[place])]
            yield from self._group(recordings, real, sim, table)
        for place in sorted(set(range(len(recordings))) - judged):
            yield self.of(recordings[place], measured[place][0], "unknown")

    def _not_judged(
        self, recordings: Sequence[RecordedEpisode], places: Sequence[int], why: str
    ) -> Iterator[CheckScore]:
        for place in places:
            yield self.of(recordings[place], Measurement(value=None, said=f"Not judged: {why}."), "unknown")

    @abstractmethod
    def _group(
        self, recordings: Sequence[RecordedEpisode], real: Sequence[int], sim: Sequence[int], table: ClipFeatures | str
    ) -> Iterator[CheckScore]:
        """Scores of the real and the simulated episodes of one robot; ``table`` is why they cannot be compared."""


class SimulatedLookingEpisodes(_LearnedCheck):
    """Simulated episodes that a discriminator tells from real ones, with the features that give them away.

    Looking simulated is a difference, no fault: it may be another task. So the worst verdict is ``suspect``. Its reason
    says whether a single feature gives an episode away: in half of its clips it lies where no real clip does.

    Args:
        twins: whose joint ranges stand in where a real log has no calibration.
        level: share of false alarms among those that stand out for certain.
    """

    name = "learned/fake"
    meaning = "held-out score of looking simulated, in standard deviations of real clips, and what gives it away"
    unit = "sd"

    def _group(
        self, recordings: Sequence[RecordedEpisode], real: Sequence[int], sim: Sequence[int], table: ClipFeatures | str
    ) -> Iterator[CheckScore]:
        for place in real:
            yield self.of(recordings[place], Measurement(value=None, said="It is real."), "good")
        why = table if isinstance(table, str) else _too_few(real, sim)
        if why or isinstance(table, str):
            yield from self._not_judged(recordings, sim, why)
        else:
            yield from self._compared(recordings, table.of(real), table.of(sim))

    def _compared(
        self, recordings: Sequence[RecordedEpisode], real: ClipFeatures, sim: ClipFeatures
    ) -> Iterator[CheckScore]:
        found = cross_fit(real.rows, sim.rows, real_clusters=real.episode, sim_clusters=sim.episode)
        names, of = np.unique(sim.episode, return_inverse=True)
        score = _means(found.sim, of)
        usual = _means(found.real, np.unique(real.episode, return_inverse=True)[1])
        p = benjamini_hochberg(conformal_p_values(usual, score))
        auc = auc_interval(np.concatenate([score, usual]), np.arange(len(score) + len(usual)) < len(score))
        limit = fence(usual, stretch=_FAR).high
        ranked = f"of pairs of held-out episodes {100 * float(auc.estimate):.0f} % are told apart"
        for here, place in enumerate(names):
            rows = np.flatnonzero(of == here)
            measured = Measurement(value=float(score[here]))
            if p[here] > self.level and score[here] <= limit:
                reason = f"It does not stand out from real episodes (adjusted p = {p[here]:.2g}; {ranked})."
                yield self.of(recordings[place], measured, "good", limit=limit, reason=reason)
                continue
            words, alone = given_away(real, sim, found, rows)
            by = "one feature alone gives it away" if alone else "what gives it away"
            reason = f"It looks simulated, {by}: {words} (adjusted p = {p[here]:.2g}; {ranked})."
            yield self.of(recordings[place], measured, "suspect", limit=limit, reason=reason)


def given_away(
    real: ClipFeatures, sim: ClipFeatures, found: CrossFittedScores, rows: NDArray[np.intp]
) -> tuple[str, bool]:
    """Which features give clips ``rows`` of the simulated side away, in words, and whether one of them does alone."""
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
        unit = unit_words(feature.unit)
        said.append(f"{in_words(feature)} is {middle:.3g}{unit}, nine of ten real clips have {few:.3g} to {many:.3g}")
    return "; ".join(said), bool(alone.any())


def _too_few(real: Sequence[int], sim: Sequence[int]) -> str:
    if len(real) >= LEAST_EPISODES and len(sim) >= LEAST_EPISODES // 2:
        return ""
    return (
        f"{len(real)} real and {len(sim)} simulated episodes of this robot are too few to learn from; it takes "
        f"{LEAST_EPISODES} real and {LEAST_EPISODES // 2} simulated ones"
    )


def _means(values: Array, of: NDArray[np.intp]) -> Array:
    return np.bincount(of, weights=values) / np.bincount(of)


_WORDS: Mapping[Kind, str] = {
    "neighbours": "distance to the fifth nearest real clip",
    "density": "distance from the middle of real clips by their covariance",
}


class OutOfSupport(_LearnedCheck):
    """Episodes that lie where no real episode does, with the nearest real clip.

    Args:
        twins: whose joint ranges stand in where a real log has no calibration.
        level: share of false alarms among those called certain, of each of the two measures half of it.
    """

    name = "learned/support"
    meaning = "how far clips lie from real ones: neighbours and density, conformal p-values of whole episodes"
    unit = "log"

    def _group(
        self, recordings: Sequence[RecordedEpisode], real: Sequence[int], sim: Sequence[int], table: ClipFeatures | str
    ) -> Iterator[CheckScore]:
        why = table if isinstance(table, str) else _too_few_real(len(real))
        if why or isinstance(table, str):
            yield from self._not_judged(recordings, sorted([*real, *sim]), why)
            return
        for kind in _WORDS:
            yield from self._judged(recordings, table, real, sim, kind)

    def _judged(
        self,
        recordings: Sequence[RecordedEpisode],
        table: ClipFeatures,
        real: Sequence[int],
        sim: Sequence[int],
        kind: Kind,
    ) -> Iterator[CheckScore]:
        known, given = table.of(real), table.of(sim or real)
        scale = _scales(known.rows)
        found = novelty(
            _tamed(known.rows, scale),
            _tamed(given.rows, scale),
            reference_clusters=known.episode,
            clusters=given.episode,
            kind=kind,
        )
        usual = fence(found.reference)
        for place, value in zip(np.unique(known.episode), found.reference, strict=True):
            yield self._of_real(recordings[place], float(value), usual, kind)
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
                first, nearest = _nearest(recordings, known, given, found, int(place), scale)
                sure = "No real data supports it" if certain else "Hardly any real data supports it"
                reason = f"{sure}: {reason[0].lower()}{reason[1:-1]}; {nearest}."
            measured = Measurement(value=float(found.scores[here]), channel=kind, first_frame=first)
            yield self.of(recordings[place], measured, "suspect" if odd else "good", limit=usual.high, reason=reason)

    def _of_real(self, recording: RecordedEpisode, value: float, usual: ValueFence, kind: Kind) -> CheckScore:
        far = np.exp(value - usual.median)
        verdict = "suspect" if value > usual.high else "good"
        reason = f"It is real; held out, its {_WORDS[kind]} is {far:.2f} times the usual one."
        measured = Measurement(value=value, channel=kind)
        return self.of(recording, measured, verdict, limit=usual.high, reason=reason)


def _nearest(
    recordings: Sequence[RecordedEpisode],
    known: ClipFeatures,
    given: ClipFeatures,
    found: NoveltyScores,
    place: int,
    scale: Array,
) -> tuple[int, str]:
    """First frame of an episode's clip that is furthest out, and the real clip nearest to it, in words."""
    rows = np.flatnonzero(given.episode == place)
    worst = rows[int(np.argmax(found.row_scores[rows]))]
    _, near = found.space.neighbours(_tamed(given.rows[[worst]], scale), 1)
    row = int(near[0, 0])
    real = recordings[int(known.episode[row])]
    where = f"{real.where} ({real.episode_id[:12]}) from {known.first[row] / real.fps:.1f} s on"
    return int(given.first[worst]), f"the nearest real clip to the one from frame {given.first[worst]} on is {where}"


def _scales(rows: Array) -> Array:
    """Of columns without negative values a tenth of the median, NaN of others: see `_tamed`."""
    middle = np.median(rows, axis=0)
    return np.where((rows.min(axis=0) >= 0) & (middle > 0), 0.1 * middle, np.nan)


def _tamed(rows: Array, scale: Array) -> Array:
    """Logarithms of sizes (speeds, ranges, noise), so that a factor counts alike wherever it is; others as they are."""
    sizes = np.isfinite(scale)
    return np.where(sizes, np.log(np.maximum(rows, 0.0) + np.where(sizes, scale, 1.0)), rows)


def _too_few_real(count: int) -> str:
    if count >= LEAST_EPISODES:
        return ""
    return f"{count} real episodes of this robot are too few to say where reality ends; it takes {LEAST_EPISODES}"
