"""Turn measured values into verdicts: by a limit with its source, or by the usual values of the same data."""

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

LEAST = 8  # episodes needed to estimate usual values: the spread of fewer is unreliable
_NORMAL = 1.4826  # standard deviation of a normal distribution, divided by its median absolute deviation
_LEAST_PART = 1e-3  # of the median: smaller values are replaced by this before taking logarithms
_QUARTILE = 0.6745  # of a standard deviation: the upper quartile of a normal distribution


@dataclass(frozen=True, kw_only=True)
class MetricLimit:
    """Limits of a value: suspect above ``value``, bad above ``bad``; ``source`` is the source of the limits."""

    value: float
    bad: float
    source: str

    def verdict(self, figure: float) -> Literal["good", "suspect", "bad"]:
        """Return the verdict of a value."""
        return "bad" if figure > self.bad else "suspect" if figure > self.value else "good"


def estimate_usual_limit(
    figures: ArrayLike,
    *,
    floor: float,
    spread: float = 0.1,
    suspect: float = 6.0,
    bad: float = 10.0,
    linear: bool = False,
) -> MetricLimit | None:
    """Estimate the limit of a positive value from the good majority of episodes; None with too few episodes.

    The center is the median. The spread comes from the median absolute deviation and the upper quartile, of logarithms
    or of the values themselves. Up to a fifth of the episodes may therefore be bad without much effect on the limit.

    Args:
        figures: values of comparable episodes, ``(n,)``; NaN is ignored.
        floor: smallest possible limit: a value that is harmless even if it is unusual.
        spread: smallest standard deviation: of the logarithm, where 0.1 is 10 %, else of the value.
        suspect: number of standard deviations above the median from which a value is suspect. Six exclude one of a
            billion normal values, and few values with heavy tails (see the false alarms in docs/evidence/curation.md).
        bad: the same, for bad.
        linear: use the values without logarithm: for counts and durations, of which many are 0.
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


LIMIT = "limit"  # key in the facts of a measurement with its own `MetricLimit`


class KnownLimitCheck(MeasuringCheck):
    """Check of each value alone: against the limit in its facts if it has one, else against the check's limit.

    ``limit`` and ``bad`` are the values from which a channel is suspect and bad, ``source`` is their source.
    """

    limit: float
    bad: float
    source: str

    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """Yield every channel that is not good, or the one nearest to its limit; see `MeasuringCheck`."""
        for recording, rows in zip(recordings, measured, strict=True):
            yield from select_reported_scores([self._judge_row(recording, row) for row in rows])

    def _judge_row(self, recording: RecordedEpisode, row: Measurement) -> CheckScore:
        if row.value is None:
            return self.make_score(recording, row, "unknown")
        limit = find_own_limit(row) or MetricLimit(value=self.limit, bad=self.bad, source=self.source)
        return self.make_score(
            recording,
            row,
            limit.verdict(row.value),
            limit=limit.value,
            reason=f"{row.said} {_describe_limit(self, limit)}",
        )


class UsualLimitCheck(MeasuringCheck):
    """Check of each value against its channel's usual values in episodes of the same batch, robot and source.

    A value with a limit in its facts is judged by that limit. ``floor`` is a value that is harmless even if it is
    unusual; for ``spread``, ``suspect``, ``bad`` and ``linear`` see `estimate_usual_limit`.
    """

    floor: float
    spread: float = 0.1
    suspect: float = 6.0
    bad: float = 10.0
    linear: bool = False

    def key(self, recording: RecordedEpisode) -> tuple[str, ...]:
        """Return the key of an episode's group; only episodes with equal keys are compared."""
        return recording.group

    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """Yield every channel that is not good, or the one nearest to its limit; see `MeasuringCheck`."""
        figures: dict[tuple[tuple[str, ...], str], list[float]] = defaultdict(list)
        for recording, rows in zip(recordings, measured, strict=True):
            for row in rows:
                if row.value is not None:
                    figures[self.key(recording), row.channel].append(row.value)
        limits = {key: self.estimate_limit(values) for key, values in figures.items()}
        for recording, rows in zip(recordings, measured, strict=True):
            yield from select_reported_scores([self._judge_row(recording, row, limits, figures) for row in rows])

    def estimate_limit(self, figures: Sequence[float]) -> MetricLimit | None:
        """Estimate the limit from comparable values; None with too few of them."""
        return estimate_usual_limit(
            figures, floor=self.floor, spread=self.spread, suspect=self.suspect, bad=self.bad, linear=self.linear
        )

    def _judge_row(
        self,
        recording: RecordedEpisode,
        row: Measurement,
        limits: dict[tuple[tuple[str, ...], str], MetricLimit | None],
        figures: dict[tuple[tuple[str, ...], str], list[float]],
    ) -> CheckScore:
        if row.value is None:
            return self.make_score(recording, row, "unknown")
        key = (self.key(recording), row.channel)
        limit = find_own_limit(row) or limits[key]
        if limit is None:
            few = len(figures[key])
            said = f"{row.said} Only {few} episodes are comparable; a limit needs at least {LEAST}."
            return self.make_score(recording, row, "good" if row.value <= self.floor else "unknown", reason=said)
        return self.make_score(
            recording,
            row,
            limit.verdict(row.value),
            limit=limit.value,
            reason=f"{row.said} {_describe_limit(self, limit)}",
        )


def find_own_limit(row: Measurement) -> MetricLimit | None:
    """Return the limit in a measurement's facts, or None."""
    return row.facts.get(LIMIT)


def select_reported_scores(scores: Sequence[CheckScore]) -> list[CheckScore]:
    """Return the suspect or bad channels; if there are none, only the one nearest to its limit."""
    wrong = [score for score in scores if score.verdict in ("suspect", "bad")]
    if wrong:
        return wrong
    good = [score for score in scores if score.verdict == "good"]
    return [max(good or scores, key=_relative_value)] if scores else []


def convert_severity(severity: str) -> Verdict:
    """Return the verdict for a finding's severity in `dataset.logs.checks`."""
    verdicts: dict[str, Verdict] = {"error": "bad", "warning": "suspect", "note": "good"}
    return verdicts[severity]


def _relative_value(score: CheckScore) -> float:
    if score.value is None:
        return -1.0
    return score.value / score.limit if score.limit else score.value


def _describe_limit(check: MeasuringCheck, limit: MetricLimit) -> str:
    unit = f" {check.unit}" if check.unit else ""
    return f"Limit {limit.value:.3g}{unit}: {limit.source}."
