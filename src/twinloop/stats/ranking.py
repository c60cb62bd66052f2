"""Measure how well simulated scores of policies rank real ones, compute intervals of scores, and draw true scores.

Arguments are keyword-only, because some metrics are not symmetric. Scores closer than 1e-12 are tied. A metric that
does not exist, because all scores of one side are equal, is NaN; `twinloop.stats.predictivity` gives the reason.
SciPy's rank correlations have neither that tolerance nor leading axes.

The model has one assumption: true real and simulated scores of policies are jointly normal, and observed means scatter
about them by the binomial noise of their trials. Under it the observed means have a Wishart scatter matrix S, whose
Cholesky factor T = C U has a U of known distribution (Bartlett). Solving for C gives a draw of the covariance whose
error has either sign with equal chance (the generalized pivot of Krishnamoorthy & Xia, "Inferences on correlation
coefficients", J. Stat. Plan. Inference 137, 2007). The noise of trials is then subtracted from its diagonal, which
corrects the attenuation of a correlation (Spearman, "The proof and measurement of association between two things", Am.
J. Psychol. 15, 1904). docs/evidence/compare_policies.md shows by simulation how well this holds for scores that are
not normal.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.records import freeze_array
from twinloop.core.seeds import generator
from twinloop.stats.interval import Interval, check_level
from twinloop.stats.proportion import wilson_limits

Array = NDArray[np.float64]
_TIE = 1e-12  # rounding of means, far below the effect of one trial in a billion


def pearson(*, real: ArrayLike, sim: ArrayLike) -> Array:
    """Return Pearson's correlation of real and simulated scores, the "sim-to-real correlation" (SRCC)."""
    r, s = _check_scores(real, sim)
    return _correlation(r, s)


def spearman(*, real: ArrayLike, sim: ArrayLike) -> Array:
    """Return Spearman's correlation: Pearson's of the ranks; tied scores share the mean of their ranks."""
    r, s = _check_scores(real, sim)
    return _correlation(_ranks(r), _ranks(s))


def kendall(*, real: ArrayLike, sim: ArrayLike) -> Array:
    """Return Kendall's τ-b: (pairs in the same order − pairs in opposite order) / √(pairs untied in each)."""
    order_r, order_s = _pair_signs(*_check_scores(real, sim))
    agreed = np.sum(order_r * order_s, axis=(-1, -2))
    untied = np.sqrt(np.sum(order_r**2, axis=(-1, -2)) * np.sum(order_s**2, axis=(-1, -2)))
    return np.divide(agreed, untied, out=np.full(np.shape(agreed), np.nan), where=untied > 0)


def mmrv(*, real: ArrayLike, sim: ArrayLike) -> Array:
    """Return the mean maximum rank violation: the largest real score lost by a wrong order, averaged over policies.

    (1/P) Σ_i max_j |r_i − r_j| · 1[(s_i > s_j) ≠ (r_i > r_j)] (Li et al., "Evaluating real-world robot manipulation
    policies in simulation", arXiv:2405.05941, eq. 2). Not symmetric: it is measured in real scores, so swapped
    arguments give another value. A tie on one side is a violation in one direction only.
    """
    r, s = _check_scores(real, sim)
    distance = np.abs(r[..., :, None] - r[..., None, :])
    wrong = (_differences(s) > _TIE) != (_differences(r) > _TIE)
    return np.where(wrong, distance, 0.0).max(axis=-1).mean(axis=-1)


def violations(*, real: ArrayLike, sim: ArrayLike) -> list[tuple[int, int, float]]:
    """Return the pairs of policies that the simulation orders wrongly, with the real difference, largest first.

    Each is ``(better, worse, difference)``: policy ``better`` is better in reality, but not in the simulation.
    """
    r, s = _check_scores(real, sim)
    found = np.argwhere((_differences(r) > _TIE) & ~(_differences(s) > _TIE))
    rows = [(int(i), int(j), float(r[i] - r[j])) for i, j in found]
    return sorted(rows, key=lambda row: -row[2])


def pairwise_accuracy(*, real: ArrayLike, sim: ArrayLike) -> Array:
    """Return the share of pairs, different in reality, whose better policy the simulation finds; ties count half."""
    order_r, order_s = _pair_signs(*_check_scores(real, sim))
    differ = np.sum(order_r != 0, axis=(-1, -2))
    right = np.sum(np.where(order_r != 0, 0.5 + 0.5 * order_r * order_s, 0.0), axis=(-1, -2))
    return np.divide(right, differ, out=np.full(np.shape(right), np.nan), where=differ > 0)


def bias(*, real: ArrayLike, sim: ArrayLike) -> Array:
    """Return the mean of simulated − real score: positive if the simulation is optimistic."""
    r, s = _check_scores(real, sim)
    return np.mean(s - r, axis=-1)


def absolute_gap(*, real: ArrayLike, sim: ArrayLike) -> Array:
    """Return the mean of |simulated − real score|."""
    r, s = _check_scores(real, sim)
    return np.mean(np.abs(s - r), axis=-1)


def best_agrees(*, real: ArrayLike, sim: ArrayLike) -> Array:
    """Return the chance that the simulation's best policy is the real best: 1 or 0; ties for best give a fraction."""
    r, s = _check_scores(real, sim)
    chosen = _best_policy_weights(s)
    return np.sum(chosen * (r >= r.max(axis=-1, keepdims=True) - _TIE), axis=-1)


def regret(*, real: ArrayLike, sim: ArrayLike) -> Array:
    """Return the real score lost by choosing the simulation's best policy; the mean over tied best ones."""
    r, s = _check_scores(real, sim)
    return np.sum(_best_policy_weights(s) * (r.max(axis=-1, keepdims=True) - r), axis=-1)


def _check_scores(real: ArrayLike, sim: ArrayLike) -> tuple[Array, Array]:
    r, s = np.asarray(real, dtype=np.float64), np.asarray(sim, dtype=np.float64)
    if r.shape != s.shape or r.ndim < 1:
        raise InputError(f"Real scores have shape {r.shape}, simulated ones {s.shape}. Give each policy one of both.")
    return r, s


def _correlation(a: Array, b: Array) -> Array:
    a, b = a - a.mean(axis=-1, keepdims=True), b - b.mean(axis=-1, keepdims=True)
    spread = np.sqrt(np.sum(a * a, axis=-1) * np.sum(b * b, axis=-1))
    return np.divide(np.sum(a * b, axis=-1), spread, out=np.full(spread.shape, np.nan), where=spread > _TIE**2)


def _differences(values: Array) -> Array:
    return values[..., :, None] - values[..., None, :]


def _pair_signs(r: Array, s: Array) -> tuple[Array, Array]:
    """Return the signs of all pairwise differences, 0 for ties."""
    pair = (_differences(values) for values in (r, s))
    first, second = (np.where(np.abs(difference) > _TIE, np.sign(difference), 0.0) for difference in pair)
    return first, second


def _ranks(values: Array) -> Array:
    """Return ranks with mean 0; tied values share their mean rank."""
    difference = _differences(values)
    return np.sum(np.where(np.abs(difference) > _TIE, np.sign(difference), 0.0), axis=-1) / 2


def _best_policy_weights(sim: Array) -> Array:
    """Return weights that sum to one over the policies that are best in simulation."""
    best = (sim >= sim.max(axis=-1, keepdims=True) - _TIE).astype(np.float64)
    return best / best.sum(axis=-1, keepdims=True)


@dataclass(frozen=True, kw_only=True)
class PolicyScoreMatrix:
    """Mean scores in [0, 1] of P policies, and the equivalent number of binary trials.

    ``mean`` and ``trials`` have shape ``(..., P)``. ``trials`` is the number of trials if scores are 0 or 1. Scores
    with less variance between trials count as more: m (1 − m) over the variance of the mean. NaN if unknown.

    Raises:
        InputError: a mean outside [0, 1], or no trials.
    """

    mean: Array
    trials: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", freeze_array(self.mean))
        object.__setattr__(
            self, "trials", freeze_array(np.broadcast_to(np.asarray(self.trials, float), self.mean.shape))
        )
        if not ((self.mean >= 0) & (self.mean <= 1)).all():
            wrong = self.mean[~((self.mean >= 0) & (self.mean <= 1))]
            raise InputError(f"A mean score of {wrong[0]:g} is outside 0 to 1. Divide scores by the full score.")
        if (self.trials <= 0).any():
            raise InputError(
                "A mean score of no trials is invalid. Leave that policy out, or give its number of trials."
            )

    @classmethod
    def of_trials(cls, samples: Sequence[ArrayLike]) -> PolicyScoreMatrix:
        """Create the matrix from the scores of each policy's trials ``(n_i,)``.

        If scores are not all 0 or 1 their variance is estimated with one binary trial added, so that a few equal scores
        do not count as exact.
        """
        rows = [np.asarray(sample, dtype=np.float64) for sample in samples]
        return cls(
            mean=freeze_array([row.mean() for row in rows]),
            trials=freeze_array([_equivalent_trials(row) for row in rows]),
        )

    @classmethod
    def of_table(cls, mean: ArrayLike, trials: ArrayLike, deviation: ArrayLike | None = None) -> PolicyScoreMatrix:
        """Create the matrix from a published table: means, numbers of trials, optionally deviations between trials.

        Without standard deviations, trials count as successes or failures, which have the largest variance for a given
        mean.
        """
        means = np.asarray(mean, dtype=np.float64)
        counts = np.broadcast_to(np.asarray(trials, dtype=np.float64), means.shape)
        if deviation is None:
            return cls(mean=means, trials=counts)
        pooled = _trials_from_squares(means, counts, counts * np.asarray(deviation, dtype=np.float64) ** 2)
        return cls(mean=means, trials=np.where(np.isnan(pooled), counts, pooled))

    @classmethod
    def average_tasks(cls, parts: Sequence[PolicyScoreMatrix]) -> PolicyScoreMatrix:
        """Return scores averaged over tasks, with equal weight per task."""
        mean = np.mean([part.mean for part in parts], axis=0)
        variance = np.sum([part.variance for part in parts], axis=0) / len(parts) ** 2
        smooth = np.clip(mean, 1e-3, 1 - 1e-3)  # a mean of 0 or 1 still has trial noise
        known = np.all([~np.isnan(part.trials) for part in parts], axis=0)
        worth = np.divide(smooth * (1 - smooth), variance, out=np.full(mean.shape, np.nan), where=known)
        return cls(mean=mean, trials=worth)

    def select_policies(self, rows: Sequence[int]) -> PolicyScoreMatrix:
        """Return the scores of some policies, in that order."""
        return PolicyScoreMatrix(mean=self.mean[..., rows], trials=self.trials[..., rows])

    @property
    def has_trial_counts(self) -> bool:
        """Whether all numbers of trials are known."""
        return not np.isnan(self.trials).any()

    @property
    def variance(self) -> Array:
        """Variance of each mean from its trials ``(..., P)``, 0 if their number is unknown.

        p (1 − p) / n with p = (n m + ½) / (n + 1), Jeffreys' estimate, so that 10 of 10 does not count as certain.
        """
        n = np.where(np.isnan(self.trials), 1.0, self.trials)
        p = (n * self.mean + 0.5) / (n + 1)
        return np.where(np.isnan(self.trials), 0.0, p * (1 - p) / n)

    def resample_means(self, rng: np.random.Generator, draws: int) -> Array:
        """Draw means from binomial distributions, ``(draws, ..., P)``; unchanged if the number of trials is unknown."""
        n = np.maximum(np.rint(np.where(np.isnan(self.trials), 1.0, self.trials)), 1.0)
        again = rng.binomial(n.astype(np.int64), self.mean, size=(draws, *self.mean.shape)) / n
        return np.where(np.isnan(self.trials), self.mean, again)


@dataclass(frozen=True, kw_only=True)
class PolicyScores:
    """Real and simulated scores of the same ``policies`` in one ``task`` ("" if it has no name)."""

    policies: tuple[str, ...]
    real: PolicyScoreMatrix
    sim: PolicyScoreMatrix
    task: str = ""


def score_intervals(scores: PolicyScoreMatrix, *, level: float = 0.95) -> Interval:
    """Return Wilson's score interval of each mean, for the trials of `PolicyScoreMatrix`; NaN if they are unknown."""
    check_level(level)
    low, high = wilson_limits(scores.mean, scores.trials, level)
    return Interval.of(
        scores.mean,
        np.maximum(low, 0.0),
        np.minimum(high, 1.0),
        level=level,
        method="Wilson score, for the equivalent number of binary trials",
    )


def _equivalent_trials(row: Array) -> float:
    n = float(len(row))
    if ((row == 0) | (row == 1)).all():
        return n
    mean = row.mean()
    return float(_trials_from_squares(np.asarray(mean), np.asarray(n), np.sum((row - mean) ** 2)))


def _trials_from_squares(mean: Array, n: Array, squares: ArrayLike) -> Array:
    """Return the equivalent number of binary trials from a sum of squares, with one binary trial added."""
    most = np.clip(mean * (1 - mean), 1e-6, None)
    return np.maximum(n * most * n / (np.asarray(squares) + most), n)


LEAST_POLICIES = 3  # with two, every correlation is 1 or −1
_LEFT = 0.05  # least true variance, as a part of the noise variance; a smaller one cannot be distinguished from noise
_LARGEST = 0.999  # correlation, so that covariances stay invertible
_GRID = np.concatenate([np.linspace(-0.995, 0.9, 39), [0.93, 0.96, 0.98, 0.99, 0.999]])


@dataclass(frozen=True, kw_only=True)
class ScorePopulation:
    """Draws ``(..., D)`` of means, variances and covariance of true scores of policies like these.

    The means include the trial noise of the observed means; variances and covariance do not.
    """

    mean_real: Array
    mean_sim: Array
    real: Array
    sim: Array
    both: Array

    @property
    def correlation(self) -> Array:
        """Pearson's correlation of true scores."""
        return self.both / np.sqrt(self.real * self.sim)


def draw_population(
    *, real: PolicyScoreMatrix, sim: PolicyScoreMatrix, draws: int, rng: np.random.Generator
) -> ScorePopulation:
    """Draw populations that are consistent with the observed means.

    Raises:
        InputError: fewer than three policies.
    """
    r, s = real.mean, sim.mean
    policies = r.shape[-1]
    if policies < LEAST_POLICIES:
        raise InputError(
            f"{policies} policies cannot show how well simulation predicts reality: with two, every correlation is 1 "
            f"or -1. Score at least {LEAST_POLICIES}; six or more give a useful interval."
        )
    shape = (*r.shape[:-1], draws)
    lower = _cholesky_factor(_jitter_means(real, draws, rng), _jitter_means(sim, draws, rng))
    u11, u22 = (np.sqrt(rng.chisquare(df, shape)) for df in (policies - 1, policies - 2))
    c11, c22 = lower[0] / u11, lower[2] / u22
    c21 = (lower[1] - c22 * rng.standard_normal(shape)) / u11
    z1, z2 = rng.standard_normal((2, *shape)) / np.sqrt(policies)
    noise_r, noise_s = (np.mean(side.variance, axis=-1)[..., None] for side in (real, sim))
    true_r, true_s = c11**2 - noise_r, c21**2 + c22**2 - noise_s
    open_ = (true_r <= 0) | (true_s <= 0)  # noise explains the whole variance: the correlation is unknown
    true_r, true_s = (np.maximum(x, np.maximum(_LEFT * y, 1e-12)) for x, y in ((true_r, noise_r), (true_s, noise_s)))
    most = _LARGEST * np.sqrt(true_r * true_s)
    return ScorePopulation(
        mean_real=r.mean(axis=-1)[..., None] + c11 * z1,
        mean_sim=s.mean(axis=-1)[..., None] + c21 * z1 + c22 * z2,
        real=true_r,
        sim=true_s,
        both=np.where(open_, rng.uniform(-most, most), np.clip(c11 * c21, -most, most)),
    )


def draw_true_scores(
    population: ScorePopulation, *, real: PolicyScoreMatrix, sim: PolicyScoreMatrix, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Draw true scores ``(..., D, P)`` of these policies, given their trials and a population they belong to.

    Means are shrunk towards the population as in an empirical Bayes estimate (Efron & Morris, J. Am. Stat. Assoc. 70,
    1975), including the uncertainty of the population. They are not clipped to [0, 1], which would tie policies near
    the limits.
    """
    a, b, c = population.real[..., None], population.sim[..., None], population.both[..., None]
    noise_r, noise_s = real.variance[..., None, :], sim.variance[..., None, :]
    off_r = real.mean[..., None, :] - population.mean_real[..., None]
    off_s = sim.mean[..., None, :] - population.mean_sim[..., None]
    p, q = a + noise_r, b + noise_s
    determinant = p * q - c * c
    gain_rr, gain_rs = (a * q - c * c) / determinant, c * noise_r / determinant
    gain_sr, gain_ss = c * noise_s / determinant, (b * p - c * c) / determinant
    left_rr = np.maximum(a - gain_rr * a - gain_rs * c, 0.0)
    left_sr = c - gain_sr * a - gain_ss * c
    left_ss = b - gain_sr * c - gain_ss * b
    low_rr = np.sqrt(left_rr)
    low_sr = np.divide(left_sr, low_rr, out=np.zeros_like(low_rr), where=low_rr > 0)
    low_ss = np.sqrt(np.maximum(left_ss - low_sr**2, 0.0))
    z1, z2 = rng.standard_normal((2, *low_rr.shape))
    true_r = real.mean[..., None, :] - (1 - gain_rr) * off_r + gain_rs * off_s + low_rr * z1
    true_s = sim.mean[..., None, :] - (1 - gain_ss) * off_s + gain_sr * off_r + low_sr * z1 + low_ss * z2
    return true_r, true_s


def draw_differences(*, real: PolicyScoreMatrix, sim: PolicyScoreMatrix, draws: int, rng: np.random.Generator) -> Array:
    """Draw true differences simulated − real ``(..., D, P)`` of these policies, by a model of differences alone."""
    seen, noise = sim.mean - real.mean, (real.variance + sim.variance)[..., None, :]
    policies, shape = seen.shape[-1], (*seen.shape[:-1], draws)
    scatter = np.sum((seen - seen.mean(axis=-1, keepdims=True)) ** 2, axis=-1)[..., None]
    spread = scatter / rng.chisquare(policies - 1, shape)
    centre = seen.mean(axis=-1)[..., None] + np.sqrt(spread / policies) * rng.standard_normal(shape)
    true = np.maximum(spread - noise.mean(axis=-1), 1e-12)[..., None]
    kept = true / (true + noise)
    middle = centre[..., None] + kept * (seen[..., None, :] - centre[..., None])
    return middle + np.sqrt(kept * noise) * rng.standard_normal(middle.shape)


@dataclass(frozen=True, kw_only=True)
class ExpectedMetrics:
    """Expected metrics of P policies from a population, by its correlation, in standard deviations of real scores."""

    correlation: Array
    mmrv: Array
    regret: Array
    best_agrees: Array

    def interpolate_metric(self, name: str, correlation: Array) -> Array:
        """Return one metric at correlations of any shape."""
        return np.interp(correlation, self.correlation, getattr(self, name))


def population_metrics(population: ScorePopulation, policies: int) -> dict[str, Array]:
    """Return by name the expected metrics of ``policies`` policies from each population, without trial noise.

    Kendall's τ is 2/π asin ρ and Spearman's 6/π asin ρ/2 in a normal population (Greiner 1909, Pearson 1907). Scores in
    [0, 1] have a standard deviation of at most ½.
    """
    rho, spread, table = (
        population.correlation,
        np.minimum(np.sqrt(population.real), 0.5),
        simulate_expected_metrics(policies),
    )
    return {
        "pearson": rho,
        "spearman": 6 / np.pi * np.arcsin(rho / 2),
        "kendall": 2 / np.pi * np.arcsin(rho),
        "mmrv": np.minimum(spread * table.interpolate_metric("mmrv", rho), 1.0),
        "pairwise_accuracy": 0.5 + np.arcsin(rho) / np.pi,
        "best_agrees": table.interpolate_metric("best_agrees", rho),
        "regret": np.minimum(spread * table.interpolate_metric("regret", rho), 1.0),
    }


@functools.cache
def simulate_expected_metrics(policies: int) -> ExpectedMetrics:
    """Return expected metrics of ``policies`` policies without trial noise, from simulated normal scores."""
    draws = int(np.clip(400_000 // policies**2, 20, 4_000))
    z1, z2 = generator(0, "stats/ranking/expected").standard_normal((2, draws, policies))
    sims = [rho * z1 + np.sqrt(1 - rho**2) * z2 for rho in _GRID]
    table = [np.array([float(f(real=z1, sim=sim).mean()) for sim in sims]) for f in (mmrv, regret, best_agrees)]
    return ExpectedMetrics(correlation=_GRID, mmrv=table[0], regret=table[1], best_agrees=table[2])


def _jitter_means(side: PolicyScoreMatrix, draws: int, rng: np.random.Generator) -> Array:
    """Return means ``(..., D, P)`` with noise of one step 1 / n between possible means, so that equal means differ."""
    step = np.where(np.isnan(side.trials), 0.0, 1.0 / side.trials)[..., None, :]
    return side.mean[..., None, :] + step * rng.uniform(-0.5, 0.5, (*side.mean.shape[:-1], draws, side.mean.shape[-1]))


def _cholesky_factor(r: Array, s: Array) -> tuple[Array, Array, Array]:
    """Return the Cholesky factor (11, 21, 22) of the scatter matrix of both over the last axis."""
    a, b = r - r.mean(axis=-1, keepdims=True), s - s.mean(axis=-1, keepdims=True)
    rr, ss, rs = (np.sum(x * y, axis=-1) for x, y in ((a, a), (b, b), (a, b)))
    first = np.sqrt(rr)
    across = np.divide(rs, first, out=np.zeros_like(rs), where=first > 0)
    return first, across, np.sqrt(np.maximum(ss - across**2, 0.0))
