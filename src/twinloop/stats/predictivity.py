"""Measure how well simulated scores of policies predict their real scores, with two intervals for each metric.

One interval is for the evaluated policies. The other is for the population of similar policies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from twinloop.core.errors import InputError
from twinloop.core.seeds import generator
from twinloop.stats import ranking
from twinloop.stats.interval import Interval, check_level
from twinloop.stats.ranking import (
    PolicyScoreMatrix,
    draw_differences,
    draw_population,
    draw_true_scores,
    population_metrics,
)

Array = NDArray[np.float64]
_PAIRS = 2_000_000  # largest number of pair comparisons that are held at once
_MODEL = "normal scores, noise of trials subtracted"
_UNKNOWN = "numbers of trials unknown and their noise not counted"
_NO_GAP_INTERVAL = "no tested interval was valid for few policies (docs/evidence/compare_policies.md)"


@dataclass(frozen=True, kw_only=True)
class PredictivityMetric:
    """One metric of how well simulation predicts reality, with two intervals.

    Attributes:
        name: Name of the metric.
        estimate: Value that publications report, computed from the observed mean scores; NaN if it does not exist.
        corrected: Estimate corrected for trial noise: the median of the metric over random draws of the population,
            from which ``population`` is computed.
        evaluated: Interval for the evaluated policies' true scores; more trials make it narrower.
        population: Interval for the population of similar policies, excluding trial noise; only more policies make it
            narrower.
        better: Whether higher or lower values are better.
        meaning: Explanation in a few words.
        reason: Reason why the metric does not exist; "" if it does.
    """

    name: str
    estimate: float
    corrected: float
    evaluated: Interval
    population: Interval
    better: Literal["higher", "lower"]
    meaning: str
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that can be written as JSON; missing values are null."""

        def ends(interval: Interval) -> dict[str, Any]:
            low, high = (None if np.isnan(x) else float(x) for x in (interval.low, interval.high))
            return {"low": low, "high": high, "level": interval.level, "method": interval.method}

        numbers = {"estimate": self.estimate, "corrected": self.corrected}
        plain = {key: None if np.isnan(value) else value for key, value in numbers.items()}
        words = {"better": self.better, "meaning": self.meaning, "reason": self.reason}
        return {
            "name": self.name,
            **plain,
            "evaluated": ends(self.evaluated),
            "population": ends(self.population),
            **words,
        }


@dataclass(frozen=True, kw_only=True)
class PredictivityMetrics:
    """All metrics of how well simulation predicts reality, for one set of policies.

    Attributes:
        metrics: The metrics.
        best_policy: Chance that the policy with the highest simulated score is truly the best of these policies in
            reality.
        noise_share: Share of the variance of the real and of the simulated mean scores that is trial noise.
    """

    metrics: tuple[PredictivityMetric, ...]
    best_policy: float
    noise_share: tuple[float, float]

    def __getitem__(self, name: str) -> PredictivityMetric:
        """Return the metric of that name."""
        return next(metric for metric in self.metrics if metric.name == name)

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that can be written as JSON."""
        return {
            "metrics": [metric.to_json() for metric in self.metrics],
            "best_policy": self.best_policy,
            "noise_share": {"real": self.noise_share[0], "sim": self.noise_share[1]},
        }


class _MetricKind(NamedTuple):
    """Name, meaning and direction of a metric, with the function that computes it from real and simulated scores."""

    name: str
    of_scores: Callable[..., Array]
    better: Literal["higher", "lower"]
    meaning: str


_KINDS = (
    _MetricKind("pearson", ranking.pearson, "higher", "linear correlation of real and simulated scores (SRCC)"),
    _MetricKind("spearman", ranking.spearman, "higher", "correlation of ranks"),
    _MetricKind(
        "kendall", ranking.kendall, "higher", "pairs in the same order minus pairs in opposite order, as a share (τ-b)"
    ),
    _MetricKind("mmrv", ranking.mmrv, "lower", "mean over policies of the largest real score lost by a wrong order"),
    _MetricKind(
        "pairwise_accuracy",
        ranking.pairwise_accuracy,
        "higher",
        "share of pairs of policies whose better one the simulation finds",
    ),
    _MetricKind(
        "best_agrees",
        ranking.best_agrees,
        "higher",
        "whether (of others: how often) the simulation's best policy is the real best",
    ),
    _MetricKind("regret", ranking.regret, "lower", "real score lost by taking the simulation's best policy"),
)
_ORDERED = ("pearson", "spearman", "kendall", "pairwise_accuracy")  # undefined if all scores are equal


def predictivity(
    *, real: PolicyScoreMatrix, sim: PolicyScoreMatrix, level: float = 0.95, draws: int = 4000, seed: int = 0
) -> PredictivityMetrics:
    """Return metrics of how well simulated scores predict real scores of the same policies.

    The metrics are three correlations (``pearson``, ``spearman``, ``kendall``), ranking metrics (``mmrv``, the mean
    maximum rank violation, ``pairwise_accuracy``, ``best_agrees``, ``regret``), and differences of scores.

    Args:
        real: Real mean scores of P policies.
        sim: Simulated mean scores of the same policies. Do not exchange ``real`` and ``sim``, because some metrics
            change.
        level: Confidence level of all intervals.
        draws: Number of random draws of the true scores and of their distribution over policies, from which the
            intervals are computed. With 4,000 draws an interval limit is uncertain by about 2 % of its width.
        seed: Run seed of the draws.

    Raises:
        InputError: If there are fewer than three policies, or the numbers of real and simulated scores differ.
    """
    check_level(level)
    if real.mean.shape != sim.mean.shape or real.mean.ndim != 1:
        raise InputError(f"{real.mean.size} real and {sim.mean.size} simulated scores; give one of each per policy.")
    rng = generator(seed, "stats/predictivity")
    population = draw_population(real=real, sim=sim, draws=draws, rng=rng)
    true_r, true_s = draw_true_scores(population, real=real, sim=sim, rng=rng)
    reason, expected = _reason_without_order(real, sim), population_metrics(population, real.mean.shape[-1])
    metrics = [
        _make_metric(
            kind, real, sim, expected[kind.name], true_r, true_s, reason if kind.name in _ORDERED else "", level
        )
        for kind in _KINDS
    ]
    gaps = np.abs(draw_differences(real=real, sim=sim, draws=draws, rng=rng)).mean(axis=-1)
    chosen = int(np.argmax(sim.mean))
    return PredictivityMetrics(
        metrics=(*metrics, _bias(real, sim, level), _absolute_gap(real, sim, gaps, level)),
        best_policy=float(np.mean(np.argmax(true_r, axis=-1) == chosen)),
        noise_share=(_noise_share(real), _noise_share(sim)),
    )


def _make_metric(
    kind: _MetricKind,
    real: PolicyScoreMatrix,
    sim: PolicyScoreMatrix,
    others: Array,
    true_r: Array,
    true_s: Array,
    reason: str,
    level: float,
) -> PredictivityMetric:
    value = np.array(np.nan) if reason else kind.of_scores(real=real.mean, sim=sim.mean)
    these = _compute_in_parts(kind.of_scores, true_r, true_s)
    known, method = _describe_method(real, sim, _MODEL)
    return PredictivityMetric(
        name=kind.name,
        estimate=float(value),
        corrected=np.nan if reason else float(np.median(others)),
        evaluated=_quantile_interval(value, these if known else None, level, method, reason),
        population=_quantile_interval(value, others, level, method if known else f"normal scores; {method}", reason),
        better=kind.better,
        meaning=kind.meaning,
        reason=reason,
    )


def _compute_in_parts(of_scores: Callable[..., Array], true_r: Array, true_s: Array) -> Array:
    """Compute a metric of many draws in parts, to limit the memory for comparing all pairs of policies.

    Args:
        of_scores: Function from real and simulated scores to the metric.
        true_r: Draws of true real scores, shape ``(ndraw, npolicy)``.
        true_s: Draws of true simulated scores, same shape.
    """
    parts = -(-true_r.shape[0] * true_r.shape[1] ** 2 // _PAIRS)
    pairs = zip(np.array_split(true_r, parts), np.array_split(true_s, parts), strict=True)
    return np.concatenate([of_scores(real=r, sim=s) for r, s in pairs])


def _quantile_interval(value: Array, draws: Array | None, level: float, method: str, reason: str) -> Interval:
    tail = (1 - level) / 2
    if draws is None or reason:
        low, high = np.nan, np.nan
    else:
        low, high = np.quantile(draws, [tail, 1 - tail])
    return Interval.of(value, low, high, level=level, method=reason or method)


def _bias(real: PolicyScoreMatrix, sim: PolicyScoreMatrix, level: float) -> PredictivityMetric:
    """Return the mean of simulated minus real score as a metric.

    Observed differences are unbiased. Trial noise is part of their spread between policies, so Student's interval over
    policies already includes it.
    """
    differences = sim.mean - real.mean
    n, value = len(differences), differences.mean()
    error = np.sqrt(np.sum(real.variance + sim.variance)) / n
    known, method = _describe_method(real, sim, "normal, binomial trials")
    half = ndtri((1 + level) / 2) * error if known else np.nan
    wide = stdtrit(n - 1, (1 + level) / 2) * differences.std(ddof=1) / np.sqrt(n)
    return PredictivityMetric(
        name="bias",
        estimate=float(value),
        corrected=float(value),
        evaluated=Interval.of(value, value - half, value + half, level=level, method=method),
        population=Interval.of(value, value - wide, value + wide, level=level, method="Student's t"),
        better="lower",
        meaning="mean of simulated − real score: positive if the simulation is optimistic",
    )


def _absolute_gap(real: PolicyScoreMatrix, sim: PolicyScoreMatrix, draws: Array, level: float) -> PredictivityMetric:
    value = ranking.absolute_gap(real=real.mean, sim=sim.mean)
    known, method = _describe_method(real, sim, _MODEL)
    return PredictivityMetric(
        name="absolute_gap",
        estimate=float(value),
        corrected=float(np.median(draws)) if known else float(value),
        evaluated=_quantile_interval(value, draws if known else None, level, method, ""),
        population=_quantile_interval(value, None, level, _NO_GAP_INTERVAL, ""),
        better="lower",
        meaning="mean of |simulated − real score|; noise of trials increases it",
    )


def _describe_method(real: PolicyScoreMatrix, sim: PolicyScoreMatrix, method: str) -> tuple[bool, str]:
    """Return whether trial noise can be computed, and a description of the method of the interval.

    It can be computed if the numbers of trials are known for the real scores, the simulated scores, or both. Otherwise
    the description is that the numbers are unknown.

    Args:
    real: Real mean scores.
    sim: Simulated mean scores.
    method: Name of the method, used if trial noise can be computed.
    """
    if real.has_trial_counts and sim.has_trial_counts:
        return True, method
    if real.has_trial_counts or sim.has_trial_counts:
        return (
            True,
            f"{method}; {'simulated' if real.has_trial_counts else 'real'} scores used without noise, {_UNKNOWN}",
        )
    return False, _UNKNOWN


def _reason_without_order(real: PolicyScoreMatrix, sim: PolicyScoreMatrix) -> str:
    """Return why policies cannot be ranked: all real or all simulated scores are equal; "" if they can be ranked."""
    for side, word in ((real, "real"), (sim, "simulated")):
        if np.ptp(side.mean) <= 1e-12:
            what = f"all {len(side.mean)} {word} scores are {side.mean[0]:.3g}"
            return f"{what}: there is no order to predict. Compare policies, or tasks, that differ."
    return ""


def _noise_share(side: PolicyScoreMatrix) -> float:
    spread = float(np.var(side.mean, ddof=1))
    return min(float(np.mean(side.variance)) / spread, 1.0) if spread > 0 else float(side.has_trial_counts)
