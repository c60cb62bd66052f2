"""Which episodes no real data supports: far from every real clip, by neighbours and by density.

P-values are conformal, of whole episodes against held-out real ones (`stats.novelty`), and adjusted over all episodes
that are judged: of those whose adjusted p-value is at most the level, no more than that share are like real ones in
truth. With n real episodes no p-value is below 1 / (n + 1), so that one odd episode among m can be certified from
m / level − 1 real ones on; one that lies beyond the fence of real episodes' own distances is flagged without that
promise. To lie where nobody has recorded yet is no fault, so that the worst verdict is ``suspect``; the reason says
which of the two it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from twinloop.curate.check import Measured, MeasuringCheck, Score
from twinloop.curate.learned.clips import Array, ClipNumbers, clip_facts, comparable, is_real
from twinloop.curate.recording import Recording
from twinloop.curate.registry import Twins
from twinloop.stats.interval import benjamini_hochberg
from twinloop.stats.novelty import Fence, Kind, Novelty, fence, novelty

LEVEL = 0.05
LEAST_EPISODES = 20  # real ones: with fewer no p-value is below 0.05
_WORDS: Mapping[Kind, str] = {
    "neighbours": "distance to the fifth nearest real clip",
    "density": "distance from the middle of real clips by their covariance",
}


class Support(MeasuringCheck):
    """Episodes that lie where no real episode does, with the nearest real clip.

    Args:
        twins: whose joint ranges stand in where a real log has no calibration.
        level: share of false alarms among those called certain, of each of the two measures half of it.
    """

    name = "learned/support"
    meaning = "how far clips lie from real ones: neighbours and density, conformal p-values of whole episodes"
    unit = "log"

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
            real = [place for place in places if is_real(recordings[place])]
            sim = [place for place in places if not is_real(recordings[place])]
            why = table if isinstance(table, str) else _too_few(len(real))
            if why or isinstance(table, str):
                for place in places:
                    yield self.of(recordings[place], Measured(value=None, said=f"Not judged: {why}."), "unknown")
                continue
            kinds: tuple[Kind, ...] = ("neighbours", "density")
            for kind in kinds:
                yield from self._judged(recordings, table, real, sim, kind)
        for place in sorted(set(range(len(recordings))) - judged):
            yield self.of(recordings[place], measured[place][0], "unknown")

    def _judged(
        self, recordings: Sequence[Recording], table: ClipNumbers, real: Sequence[int], sim: Sequence[int], kind: Kind
    ) -> Iterator[Score]:
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
            measured = Measured(value=float(found.scores[here]), channel=kind, first_frame=first)
            yield self.of(recordings[place], measured, "suspect" if odd else "good", limit=usual.high, reason=reason)

    def _of_real(self, recording: Recording, value: float, usual: Fence, kind: Kind) -> Score:
        far = np.exp(value - usual.median)
        verdict = "suspect" if value > usual.high else "good"
        reason = f"It is real; held out, its {_WORDS[kind]} is {far:.2f} times the usual one."
        measured = Measured(value=value, channel=kind)
        return self.of(recording, measured, verdict, limit=usual.high, reason=reason)


def _nearest(
    recordings: Sequence[Recording], known: ClipNumbers, given: ClipNumbers, found: Novelty, place: int, scale: Array
) -> tuple[int, str]:
    """First frame of an episode's clip that is furthest out, and the real clip nearest to it, in words."""
    rows = np.flatnonzero(given.episode == place)
    worst = rows[int(np.argmax(found.row_scores[rows]))]
    _, near = found.space.neighbours(_tamed(given.rows[[worst]], scale), 1)
    row = int(near[0, 0])
    real = recordings[int(known.episode[row])]
    fps = real.fps
    where = f"{real.where} ({real.episode_id[:12]}) from {known.first[row] / fps:.1f} s on"
    return int(given.first[worst]), f"the nearest real clip to the one from frame {given.first[worst]} on is {where}"


def _scales(rows: Array) -> Array:
    """Of columns without negative values a tenth of the median, NaN of others: see `_tamed`."""
    middle = np.median(rows, axis=0)
    return np.where((rows.min(axis=0) >= 0) & (middle > 0), 0.1 * middle, np.nan)


def _tamed(rows: Array, scale: Array) -> Array:
    """Logarithms of sizes (speeds, ranges, noise), so that a factor counts alike wherever it is; others as they are."""
    sizes = np.isfinite(scale)
    return np.where(sizes, np.log(np.maximum(rows, 0.0) + np.where(sizes, scale, 1.0)), rows)


def _too_few(count: int) -> str:
    if count >= LEAST_EPISODES:
        return ""
    return f"{count} real episodes of this robot are too few to say where reality ends; it takes {LEAST_EPISODES}"
