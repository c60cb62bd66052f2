"""Measure how well simulated scores of policies predict real ones, with intervals for these policies and for others."""

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
_PAIRS = 2_000_000  # numbers held at once
_MODEL = "normal scores, noise of trials subtracted"
_UNKNOWN = "numbers of trials unknown and their noise not counted"
_NO_GAP_INTERVAL = "no tested interval was valid for few policies (docs/evidence/compare_policies.md)"


@dataclass(frozen=True, kw_only=True)
class PredictivityMetric:
    """One metric with two intervals.

    ``estimate`` is the value that publications report, from the observed means; NaN if it does not exist, with the
    ``reason``. ``these`` is an interval for the metric of these policies' true scores: more trials narrow it.
    ``others`` is for the population of policies like these, without the noise of trials: only more policies narrow it.
    ``corrected`` is the median of the draws of ``others``: the estimate without the effect of trial noise.
    """

    name: str
    estimate: float
    corrected: float
    these: Interval
    others: Interval
    better: Literal["higher", "lower"]
    meaning: str
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary; missing values are null."""

        def ends(interval: Interval) -> dict[str, Any]:
            low, high = (None if np.isnan(x) else float(x) for x in (interval.low, interval.high))
            return {"low": low, "high": high, "level": interval.level, "method": interval.method}

        numbers = {"estimate": self.estimate, "corrected": self.corrected}
        plain = {key: None if np.isnan(value) else value for key, value in numbers.items()}
        words = {"better": self.better, "meaning": self.meaning, "reason": self.reason}
        return {"name": self.name, **plain, "these": ends(self.these), "others": ends(self.others), **words}


@dataclass(frozen=True, kw_only=True)
class PredictivityMetrics:
    """Metrics of one set of policies.

    ``best_policy`` is the chance that the policy ranked first by the simulation is truly the best of these in reality.
    ``noise_share`` ``(2,)`` is the part of the variance of real and simulated means that is trial noise.
    """

    figures: tuple[PredictivityMetric, ...]
    best_policy: float
    noise_share: tuple[float, float]

    def __getitem__(self, name: str) -> PredictivityMetric:
        """Return the metric of that name."""
        return next(figure for figure in self.figures if figure.name == name)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        return {
            "figures": [figure.to_json() for figure in self.figures],
            "best_policy": self.best_policy,
            "noise_share": {"real": self.noise_share[0], "sim": self.noise_share[1]},
        }


class _MetricKind(NamedTuple):
    """A metric and the function that computes it from scores."""

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
    """Return correlations, ranking metrics and distances of real and simulated scores ``(P,)`` of the same policies.

    Args:
        real: the real scores.
        sim: the simulated scores; the metrics are not symmetric in the two.
        level: confidence level of all intervals.
        draws: draws of populations and true scores; with 4,000 an interval limit is uncertain by about 2 % of its
            width.
        seed: run seed of the draws.

    Raises:
        InputError: fewer than three policies, or different numbers of real and simulated scores.
    """
    check_level(level)
    if real.mean.shape != sim.mean.shape or real.mean.ndim != 1:
        raise InputError(f"{real.mean.size} real and {sim.mean.size} simulated scores; give each policy one of both.")
    rng = generator(seed, "stats/predictivity")
    population = draw_population(real=real, sim=sim, draws=draws, rng=rng)
    true_r, true_s = draw_true_scores(population, real=real, sim=sim, rng=rng)
    equal, such = _reason_without_order(real, sim), population_metrics(population, real.mean.shape[-1])
    figures = [
        _make_metric(kind, real, sim, such[kind.name], true_r, true_s, equal if kind.name in _ORDERED else "", level)
        for kind in _KINDS
    ]
    gaps = np.abs(draw_differences(real=real, sim=sim, draws=draws, rng=rng)).mean(axis=-1)
    picked = int(np.argmax(sim.mean))
    return PredictivityMetrics(
        figures=(*figures, _bias(real, sim, level), _absolute_gap(real, sim, gaps, level)),
        best_policy=float(np.mean(np.argmax(true_r, axis=-1) == picked)),
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
        these=_quantile_interval(value, these if known else None, level, method, reason),
        others=_quantile_interval(value, others, level, method if known else f"normal scores; {method}", reason),
        better=kind.better,
        meaning=kind.meaning,
        reason=reason,
    )


def _compute_in_parts(of_scores: Callable[..., Array], true_r: Array, true_s: Array) -> Array:
    """Compute a metric of many draws ``(D, P)`` in parts, because it compares all pairs of policies."""
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
    """Return the bias; observed differences are unbiased, so Student's interval over policies includes trial noise."""
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
        these=Interval.of(value, value - half, value + half, level=level, method=method),
        others=Interval.of(value, value - wide, value + wide, level=level, method="Student's t"),
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
        these=_quantile_interval(value, draws if known else None, level, method, ""),
        others=_quantile_interval(value, None, level, _NO_GAP_INTERVAL, ""),
        better="lower",
        meaning="mean of |simulated − real score|; noise of trials increases it",
    )


def _describe_method(real: PolicyScoreMatrix, sim: PolicyScoreMatrix, method: str) -> tuple[bool, str]:
    """Return whether any trial noise is known, and a description of the interval's method."""
    if real.has_trial_counts and sim.has_trial_counts:
        return True, method
    if real.has_trial_counts or sim.has_trial_counts:
        return (
            True,
            f"{method}; {'simulated' if real.has_trial_counts else 'real'} scores used without noise, {_UNKNOWN}",
        )
    return False, _UNKNOWN


def _reason_without_order(real: PolicyScoreMatrix, sim: PolicyScoreMatrix) -> str:
    """Return the reason why scores have no order; "" if they have one."""
    for side, word in ((real, "real"), (sim, "simulated")):
        if np.ptp(side.mean) <= 1e-12:
            what = f"all {len(side.mean)} {word} scores are {side.mean[0]:.3g}"
            return f"{what}: there is no order to predict. Compare policies, or tasks, that differ."
    return ""


def _noise_share(side: PolicyScoreMatrix) -> float:
    spread = float(np.var(side.mean, ddof=1))
    return min(float(np.mean(side.variance)) / spread, 1.0) if spread > 0 else float(side.has_trial_counts)
