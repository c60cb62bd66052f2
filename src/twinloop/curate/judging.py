"""Turn measured values into verdicts, with a documented limit or a limit estimated from episodes of the same data."""

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
_LEAST_PART = 1e-3  # of the median: values below are replaced by it before logarithms are taken
_QUARTILE = 0.6745  # of a standard deviation: the upper quartile of a normal distribution


@dataclass(frozen=True, kw_only=True)
class MetricLimit:
    """Limits of a measured value.

    Attributes:
        value: value above which the verdict is ``suspect``.
        bad: value above which the verdict is ``bad``.
        source: origin of the limits, as text for the user.
    """

    value: float
    bad: float
    source: str

    def verdict(self, metric: float) -> Literal["good", "suspect", "bad"]:
        """Return the verdict on a value, by comparison with both limits."""
        return "bad" if metric > self.bad else "suspect" if metric > self.value else "good"


def estimate_usual_limit(
    metrics: ArrayLike,
    *,
    floor: float,
    spread: float = 0.1,
    suspect: float = 6.0,
    bad: float = 10.0,
    linear: bool = False,
) -> MetricLimit | None:
    """Estimate the limit of a positive value from comparable episodes, of which most must be good.

    The centre is the median. The standard deviation is the largest of three values: ``spread``, the scaled median
    absolute deviation, and the scaled distance from the median to the upper quartile. All are computed from the
    logarithms, or from the values themselves. Up to a fifth of the episodes may therefore be bad without much effect on
    the limit.

    Args:
        metrics: values of comparable episodes, ``(n,)``; NaN is ignored.
        floor: smallest possible limit, namely a value that is harmless even if it is unusual.
        spread: smallest standard deviation. It applies to the logarithm, where 0.1 is 10 %, or to the value if
            ``linear``.
        suspect: number of standard deviations above the median from which a value is suspect. With six, one in a
            billion normally distributed values is suspect, and few values of a heavy-tailed distribution are (see the
            false alarms in docs/evidence/curation.md).
        bad: number of standard deviations above the median from which a value is bad.
        linear: use the values instead of their logarithms; for counts and durations, of which many are 0.

    Returns:
        The limit; None if there are fewer than 8 values.
    """
    values = np.asarray(metrics, dtype=np.float64)
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
    """Base class of checks that compare each value with a documented limit.

    A measurement with a `MetricLimit` in its ``facts`` is compared with that limit instead.

    Attributes:
        limit: value above which a channel is suspect.
        bad: value above which a channel is bad.
        source: origin of the limits, as text for the user.
    """

    limit: float
    bad: float
    source: str

    def judge(
        self, recordings: Sequence[RecordedEpisode], measured: Sequence[Sequence[Measurement]]
    ) -> Iterator[CheckScore]:
        """Yield the scores of all suspect or bad channels of each episode, in comparison with the limits.

        If an episode has no such channel, only the score that is nearest to its limit is yielded.
        """
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
            reason=f"{row.text} {_describe_limit(self, limit)}",
        )


class UsualLimitCheck(MeasuringCheck):
    """Base class of checks that compare a value with values of the same channel in comparable episodes.

    Comparable episodes have the same batch, robot and source. A measurement with a `MetricLimit` in its ``facts`` is
    compared with that limit instead.

    Attributes:
        floor: value that is harmless even if it is unusual.
        spread: smallest standard deviation; see `estimate_usual_limit`.
        suspect: number of standard deviations above the median from which a value is suspect.
        bad: number of standard deviations above the median from which a value is bad.
        linear: whether limits come from the values instead of their logarithms.
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
        """Yield the scores of all suspect or bad channels of each episode, in comparison with similar episodes.

        If an episode has no such channel, only the score that is nearest to its limit is yielded.
        """
        metrics: dict[tuple[tuple[str, ...], str], list[float]] = defaultdict(list)
        for recording, rows in zip(recordings, measured, strict=True):
            for row in rows:
                if row.value is not None:
                    metrics[self.key(recording), row.channel].append(row.value)
        limits = {key: self.estimate_limit(values) for key, values in metrics.items()}
        for recording, rows in zip(recordings, measured, strict=True):
            yield from select_reported_scores([self._judge_row(recording, row, limits, metrics) for row in rows])

    def estimate_limit(self, metrics: Sequence[float]) -> MetricLimit | None:
        """Estimate the limit of a channel from its values in comparable episodes; None if there are too few values."""
        return estimate_usual_limit(
            metrics, floor=self.floor, spread=self.spread, suspect=self.suspect, bad=self.bad, linear=self.linear
        )

    def _judge_row(
        self,
        recording: RecordedEpisode,
        row: Measurement,
        limits: dict[tuple[tuple[str, ...], str], MetricLimit | None],
        metrics: dict[tuple[tuple[str, ...], str], list[float]],
    ) -> CheckScore:
        if row.value is None:
            return self.make_score(recording, row, "unknown")
        key = (self.key(recording), row.channel)
        limit = find_own_limit(row) or limits[key]
        if limit is None:
            few = len(metrics[key])
            text = f"{row.text} Only {few} episodes are comparable; a limit needs at least {LEAST}."
            return self.make_score(recording, row, "good" if row.value <= self.floor else "unknown", reason=text)
        return self.make_score(
            recording,
            row,
            limit.verdict(row.value),
            limit=limit.value,
            reason=f"{row.text} {_describe_limit(self, limit)}",
        )


def find_own_limit(row: Measurement) -> MetricLimit | None:
    """Return the limit that a measurement has in its ``facts``; None if it has no limit there."""
    return row.facts.get(LIMIT)


def select_reported_scores(scores: Sequence[CheckScore]) -> list[CheckScore]:
    """Return the scores of the suspect or bad channels of one episode.

    If there are none, only the score that is nearest to its limit is returned.
    """
    wrong = [score for score in scores if score.verdict in ("suspect", "bad")]
    if wrong:
        return wrong
    good = [score for score in scores if score.verdict == "good"]
    return [max(good or scores, key=_relative_value)] if scores else []


def convert_severity(severity: str) -> Verdict:
    """Return the verdict for the severity of a log finding: ``error`` is bad, ``warning`` suspect, ``note`` good."""
    verdicts: dict[str, Verdict] = {"error": "bad", "warning": "suspect", "note": "good"}
    return verdicts[severity]


def _relative_value(score: CheckScore) -> float:
    if score.value is None:
        return -1.0
    return score.value / score.limit if score.limit else score.value


def _describe_limit(check: MeasuringCheck, limit: MetricLimit) -> str:
    unit = f" {check.unit}" if check.unit else ""
    return f"Limit {limit.value:.3g}{unit}: {limit.source}."
