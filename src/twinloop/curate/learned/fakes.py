"""Which simulated episodes can be told from real ones, and by what.

A discriminator learns from some episodes and scores the others, so that no clip is scored by a model that saw its
episode. An episode's score is the mean of its clips'; how often real episodes look as simulated, held out, is its
p-value, adjusted over all episodes (Benjamini & Hochberg). Few real episodes certify nothing about a few odd ones among
many, so that what lies beyond the fence of real episodes' own scores is told too, without that promise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.curate.check import Measured, MeasuringCheck, Score
from twinloop.curate.learned.clips import Array, ClipNumbers, clip_facts, comparable, in_words, is_real
from twinloop.curate.recording import Recording
from twinloop.curate.registry import Twins
from twinloop.stats.classifier import auc_interval
from twinloop.stats.conformal import conformal_p_values
from twinloop.stats.discriminant import CrossFit, cross_fit
from twinloop.stats.interval import benjamini_hochberg
from twinloop.stats.novelty import fence

LEVEL = 0.05
LEAST_EPISODES = 20  # of each side; with fewer no p-value gets below 0.05 held out in folds
# Held-out scores of the side that is judged spread more than those of the side that a score's unit is of: a fence half
# as far again leaves as few good ones outside (measured; docs/quality.md).
_FAR = 1.5
_TOLD = 3  # features that are named
_OUTSIDE = 0.5  # of an episode's clips beyond every real clip in one feature: told by that alone (our choice)


class Fakes(MeasuringCheck):
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

    def __init__(self, twins: Twins | None = None, *, level: float = LEVEL) -> None:
        self._twins, self.level = twins, level

    @property
    def settings(self) -> Mapping[str, Any]:
        """The level."""
        return {"level": self.level}

    def measure(self, recording: Recording) -> Sequence[Measured]:
        """See `MeasuringCheck`: numbers of clips."""
        return [Measured(value=0.0, facts=clip_facts(recording, self._twins))]

    def judge(self, recordings: Sequence[Recording], measured: Sequence[Sequence[Measured]]) -> Iterator[Score]:
        """See `MeasuringCheck`."""
        judged: set[int] = set()
        for places, table in comparable(recordings, measured):
            judged |= set(places)
            yield from self._group(recordings, places, table)
        for place in sorted(set(range(len(recordings))) - judged):
            yield self.of(recordings[place], measured[place][0], "unknown")

    def _group(
        self, recordings: Sequence[Recording], places: Sequence[int], table: ClipNumbers | str
    ) -> Iterator[Score]:
        real = [place for place in places if is_real(recordings[place])]
        sim = [place for place in places if not is_real(recordings[place])]
        for place in real:
            yield self.of(recordings[place], Measured(value=None, said="It is real."), "good")
        why = table if isinstance(table, str) else _too_few(real, sim)
        if why or isinstance(table, str):
            for place in sim:
                yield self.of(recordings[place], Measured(value=None, said=f"Not judged: {why}."), "unknown")
            return
        yield from self._compared(recordings, table.of(real), table.of(sim))

    def _compared(self, recordings: Sequence[Recording], real: ClipNumbers, sim: ClipNumbers) -> Iterator[Score]:
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
            measured = Measured(value=float(score[here]))
            if p[here] > self.level and score[here] <= limit:
                reason = f"It does not stand out from real episodes (adjusted p = {p[here]:.2g}; {ranked})."
                yield self.of(recordings[place], measured, "good", limit=limit, reason=reason)
                continue
            words, alone = given_away(real, sim, found, rows)
            by = "one feature alone gives it away" if alone else "what gives it away"
            reason = f"It looks simulated, {by}: {words} (adjusted p = {p[here]:.2g}; {ranked})."
            yield self.of(recordings[place], measured, "suspect", limit=limit, reason=reason)


def given_away(real: ClipNumbers, sim: ClipNumbers, found: CrossFit, rows: NDArray[np.intp]) -> tuple[str, bool]:
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
        unit = "" if feature.unit == "1" else f" {feature.unit}"
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
