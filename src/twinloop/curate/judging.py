"""Turn figures into verdicts: against a limit with its source, or against the good mass of the same data."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from twinloop.curate.check import CheckScore, Measurement, MeasuringCheck, Verdict
from twinloop.curate.recording import RecordedEpisode

LEAST = 8  # episodes of which something can be called usual: fewer have no spread to speak of
_NORMAL = 1.4826  # median absolute deviation of a normal distribution, inverted: its standard deviation
_LEAST_PART = 1e-3  # of the median: what is smaller is as small
_QUARTILE = 0.6745  # of a standard deviation: the upper quartile of a normal distribution


@dataclass(frozen=True, kw_only=True)
class MetricLimit:
    """From ``value`` on a figure is suspect, from ``bad`` on bad; ``source`` says who says so."""

    value: float
    bad: float
    source: str

    def verdict(self, figure: float) -> Literal["good", "suspect", "bad"]:
        """``good``, ``suspect`` or ``bad``."""
        return "bad" if figure > self.bad else "suspect" if figure > self.value else "good"


def usual_limit(
    figures: ArrayLike,
    *,
    floor: float,
    spread: float = 0.1,
    suspect: float = 6.0,
    bad: float = 10.0,
    linear: bool = False,
) -> MetricLimit | None:
    """The limit of a positive figure from its own good mass; None where there are too few to tell.

    The good mass is what lies about the median: its spread is taken from the median absolute deviation and the upper
    quartile, of logarithms or of the figures themselves, so that up to a fifth of the episodes may be bad without
    moving the limit much.

    Args:
        figures: of the episodes that are alike, ``(n,)``; NaN is left out.
        floor: what no limit lies below: a figure that does no harm whatever is usual.
        spread: standard deviation at least: of the logarithm, where 0.1 is 10 %, else of the figure.
        suspect: standard deviations above the median from which on a figure is suspect. Six leave one of a billion
            normal ones out, and few of those with heavy tails (see the false alarms in docs/evidence/curation.md).
        bad: the same, for bad.
        linear: take figures as they are: counts and durations, of which many are 0.
    """
    values = np.asarray(figures, dtype=np.float64)
    values = values[np.isfinite(values)]
    if len(values) < LEAST:
        return None
    least = _LEAST_PART * max(floor, float(np.median(values)), float(np.finfo(float).tiny))
    scaled = values if linear else np.log(np.maximum(values, least))
    middle = float(np.median(scaled))
    deviation = max(
        _NORMAL * float(np.median(np.abs(scaled - middle))),
        (float(np.quantile(scaled, 0.75)) - middle) / _QUARTILE,
        spread,
    )
    first, second = (middle + count * deviation for count in (suspect, bad))
    if not linear:
        first, second = math.exp(first), math.exp(second)
    value = max(floor, first)
    return MetricLimit(
        value=value,
        bad=max(second, 1.5 * value),
        source=f"{suspect:g} deviations above the median of {len(values)} episodes of this data",
    )


LIMIT = "limit"  # the fact of a figure that has a `MetricLimit` of its own


class KnownLimitCheck(MeasuringCheck):
    """Judges each figure by itself: against its own limit where its facts give one, else against the check's.

    ``limit`` and ``bad`` are figures from which on a channel is suspect and bad, ``source`` says who says so.
    """

    limit: float
    bad: float
    source: str

    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """See `MeasuringCheck`: every channel that is not good, or the one nearest to its limit."""
        for recording, rows in zip(recordings, measured, strict=True):
            yield from shortened([self._judged(recording, row) for row in rows])

    def _judged(self, recording: RecordedEpisode, row: Measurement) -> CheckScore:
        if row.value is None:
            return self.of(recording, row, "unknown")
        limit = own_limit(row) or MetricLimit(value=self.limit, bad=self.bad, source=self.source)
        return self.of(
            recording, row, limit.verdict(row.value), limit=limit.value, reason=f"{row.said} {_against(self, limit)}"
        )


class UsualLimitCheck(MeasuringCheck):
    """Judges each figure against the good mass of its channel in episodes of the same batch, robot and source.

    A figure with a limit of its own among its facts is judged by that. ``floor`` is a figure that does no harm
    whatever is usual; ``spread``, ``suspect``, ``bad`` and ``linear`` see `usual_limit`.
    """

    floor: float
    spread: float = 0.1
    suspect: float = 6.0
    bad: float = 10.0
    linear: bool = False

    def key(self, recording: RecordedEpisode) -> tuple[str, ...]:
        """Which episodes are alike."""
        return recording.group

    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """See `MeasuringCheck`: every channel that is not good, or the one nearest to its limit."""
        figures: dict[tuple[tuple[str, ...], str], list[float]] = defaultdict(list)
        for recording, rows in zip(recordings, measured, strict=True):
            for row in rows:
                if row.value is not None:
                    figures[self.key(recording), row.channel].append(row.value)
        limits = {key: self.usual(values) for key, values in figures.items()}
        for recording, rows in zip(recordings, measured, strict=True):
            yield from shortened([self._judged(recording, row, limits, figures) for row in rows])

    def usual(self, figures: Sequence[float]) -> MetricLimit | None:
        """The limit of figures that are alike."""
        return usual_limit(
            figures, floor=self.floor, spread=self.spread, suspect=self.suspect, bad=self.bad, linear=self.linear
        )

    def _judged(
        self,
        recording: RecordedEpisode,
        row: Measurement,
        limits: dict[tuple[tuple[str, ...], str], MetricLimit | None],
        figures: dict[tuple[tuple[str, ...], str], list[float]],
    ) -> CheckScore:
        if row.value is None:
            return self.of(recording, row, "unknown")
        key = (self.key(recording), row.channel)
        limit = own_limit(row) or limits[key]
        if limit is None:
            few = len(figures[key])
            said = f"{row.said} Only {few} episodes are alike; from {LEAST} on it is known what is usual."
            return self.of(recording, row, "good" if row.value <= self.floor else "unknown", reason=said)
        return self.of(
            recording, row, limit.verdict(row.value), limit=limit.value, reason=f"{row.said} {_against(self, limit)}"
        )


def own_limit(row: Measurement) -> MetricLimit | None:
    """The limit that a figure brings along."""
    return row.facts.get(LIMIT)


def shortened(scores: Sequence[CheckScore]) -> list[CheckScore]:
    """The channels that are suspect or bad; where there is none, the one nearest to its limit stands for all."""
    wrong = [score for score in scores if score.verdict in ("suspect", "bad")]
    if wrong:
        return wrong
    good = [score for score in scores if score.verdict == "good"]
    return [max(good or scores, key=_nearness)] if scores else []


def verdict_of(severity: str) -> Verdict:
    """What a finding of `dataset.logs.checks` makes of an episode."""
    verdicts: dict[str, Verdict] = {"error": "bad", "warning": "suspect", "note": "good"}
    return verdicts[severity]


def _nearness(score: CheckScore) -> float:
    if score.value is None:
        return -1.0
    return score.value / score.limit if score.limit else score.value


def _against(check: MeasuringCheck, limit: MetricLimit) -> str:
    unit = f" {check.unit}" if check.unit else ""
    return f"Limit {limit.value:.3g}{unit}: {limit.source}."
