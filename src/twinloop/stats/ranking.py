"""Measure how well simulated scores rank policies by real scores, with intervals that are valid for few policies.

Arguments are keyword-only, because some metrics are not symmetric. Scores closer than 1e-12 are tied. If a metric does
not exist because all scores of one side are equal, it is NaN; `twinloop.stats.predictivity` gives the reason. SciPy's
rank correlations have neither that tolerance nor leading axes.

For the intervals, many sets of true scores (scores without trial noise) that could have given the observed scores are
drawn at random. The model has one assumption: true real and simulated scores of policies are jointly normal, and
observed means scatter about them by the binomial noise of their trials.

The covariance of real and simulated true scores is uncertain with few policies, so it is drawn first. The Cholesky
factor of the scatter matrix of the observed means is T = C U, where C is the Cholesky factor of the true covariance and
U is random with a known distribution (Bartlett's decomposition of a Wishart matrix). A draw of U and the observed T
give a draw of C (the generalized pivot of Krishnamoorthy & Xia, "Inferences on correlation coefficients", J. Stat.
Plan. Inference 137, 2007). The noise of trials is then subtracted from the variances, which corrects the attenuation of
a correlation (Spearman, "The proof and measurement of association between two things", Am. J. Psychol. 15, 1904).
docs/evidence/compare_policies.md shows by simulation how well this holds for scores that are not normal.
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
    """Return Pearson's correlation of real and simulated scores ``(…, P)`` of P policies, shape ``(…)``.

    It is also called the sim-vs-real correlation coefficient (SRCC).
    """
    r, s = _check_scores(real, sim)
    return _correlation(r, s)


def spearman(*, real: ArrayLike, sim: ArrayLike) -> Array:
    """Return Spearman's rank correlation of real and simulated scores; tied scores share the mean of their ranks."""
    r, s = _check_scores(real, sim)
    return _correlation(_ranks(r), _ranks(s))


def kendall(*, real: ArrayLike, sim: ArrayLike) -> Array:
    """Return Kendall's rank correlation τ-b of real and simulated scores.

    It is (pairs in the same order − pairs in opposite order) / √(pairs untied in reality · pairs untied in simulation).
    """
    order_r, order_s = _pair_signs(*_check_scores(real, sim))
    agreed = np.sum(order_r * order_s, axis=(-1, -2))
    untied = np.sqrt(np.sum(order_r**2, axis=(-1, -2)) * np.sum(order_s**2, axis=(-1, -2)))
    return np.divide(agreed, untied, out=np.full(np.shape(agreed), np.nan), where=untied > 0)


def mmrv(*, real: ArrayLike, sim: ArrayLike) -> Array:
    """Return the mean maximum rank violation (MMRV) of simulated scores; lower is better.

    For each policy, it takes the largest difference in real score to another policy with which the simulation orders it
    wrongly. The result is the mean over policies. For P policies with real scores r and simulated scores s it is (1/P)
    Σ_i max_j |r_i − r_j| · 1[(s_i > s_j) ≠ (r_i > r_j)] (Li et al., "Evaluating real-world robot manipulation policies
    in simulation", arXiv:2405.05941, eq. 2). It is measured in real scores, so swapped arguments give another value. If
    two policies have equal scores in simulation only, the pair counts as wrong only for the policy with the larger real
    score.
    """
    r, s = _check_scores(real, sim)
    distance = np.abs(r[..., :, None] - r[..., None, :])
    wrong = (_differences(s) > _TIE) != (_differences(r) > _TIE)
    return np.where(wrong, distance, 0.0).max(axis=-1).mean(axis=-1)


def violations(*, real: ArrayLike, sim: ArrayLike) -> list[tuple[int, int, float]]:
    """Return the pairs of policies that the simulation orders wrongly, with the largest real difference first.

    Each entry is ``(better, worse, difference)``: policy ``better`` has a real score that is higher by ``difference``,
    but not a higher simulated score.
    """
    r, s = _check_scores(real, sim)
    pairs = np.argwhere((_differences(r) > _TIE) & ~(_differences(s) > _TIE))
    rows = [(int(i), int(j), float(r[i] - r[j])) for i, j in pairs]
    return sorted(rows, key=lambda row: -row[2])


def pairwise_accuracy(*, real: ArrayLike, sim: ArrayLike) -> Array:
    """Return the share of pairs of policies whose better policy the simulation finds; ties in simulation count half.

    Pairs with equal real scores are not counted.
    """
    order_r, order_s = _pair_signs(*_check_scores(real, sim))
    differ = np.sum(order_r != 0, axis=(-1, -2))
    right = np.sum(np.where(order_r != 0, 0.5 + 0.5 * order_r * order_s, 0.0), axis=(-1, -2))
    return np.divide(right, differ, out=np.full(np.shape(right), np.nan), where=differ > 0)


def bias(*, real: ArrayLike, sim: ArrayLike) -> Array:
    """Return the mean over policies of simulated − real score; positive if the simulation is optimistic."""
    r, s = _check_scores(real, sim)
    return np.mean(s - r, axis=-1)


def absolute_gap(*, real: ArrayLike, sim: ArrayLike) -> Array:
    """Return the mean over policies of |simulated − real score|."""
    r, s = _check_scores(real, sim)
    return np.mean(np.abs(s - r), axis=-1)


def best_agrees(*, real: ArrayLike, sim: ArrayLike) -> Array:
    """Return 1 if the policy that is best in simulation is also best in reality, else 0.

    If several policies are tied for best in simulation, it is the share of them that is best in reality.
    """
    r, s = _check_scores(real, sim)
    chosen = _best_policy_weights(s)
    return np.sum(chosen * (r >= r.max(axis=-1, keepdims=True) - _TIE), axis=-1)


def regret(*, real: ArrayLike, sim: ArrayLike) -> Array:
    """Return the real score lost by choosing the policy that is best in simulation, compared with the best real score.

    If several policies are tied for best in simulation, it is the mean over them.
    """
    r, s = _check_scores(real, sim)
    return np.sum(_best_policy_weights(s) * (r.max(axis=-1, keepdims=True) - r), axis=-1)


def _check_scores(real: ArrayLike, sim: ArrayLike) -> tuple[Array, Array]:
    r, s = np.asarray(real, dtype=np.float64), np.asarray(sim, dtype=np.float64)
    if r.shape != s.shape or r.ndim < 1:
        raise InputError(f"Real scores have shape {r.shape}, simulated ones {s.shape}. Give one of each per policy.")
    return r, s


def _correlation(a: Array, b: Array) -> Array:
    a, b = a - a.mean(axis=-1, keepdims=True), b - b.mean(axis=-1, keepdims=True)
    spread = np.sqrt(np.sum(a * a, axis=-1) * np.sum(b * b, axis=-1))
    return np.divide(np.sum(a * b, axis=-1), spread, out=np.full(spread.shape, np.nan), where=spread > _TIE**2)


def _differences(values: Array) -> Array:
    return values[..., :, None] - values[..., None, :]


def _pair_signs(r: Array, s: Array) -> tuple[Array, Array]:
    """Return the signs of all pairwise differences of real scores and of simulated scores, shape ``(…, P, P)`` each.

    Entry i, j is the sign of score i − score j of P policies, and 0 for ties.
    """
    pair = (_differences(values) for values in (r, s))
    first, second = (np.where(np.abs(difference) > _TIE, np.sign(difference), 0.0) for difference in pair)
    return first, second


def _ranks(values: Array) -> Array:
    """Return ranks shifted to mean 0; tied values share their mean rank."""
    difference = _differences(values)
    return np.sum(np.where(np.abs(difference) > _TIE, np.sign(difference), 0.0), axis=-1) / 2


def _best_policy_weights(sim: Array) -> Array:
    """Return equal weights that sum to one for the policies that are best in simulation, and 0 for other policies."""
    best = (sim >= sim.max(axis=-1, keepdims=True) - _TIE).astype(np.float64)
    return best / best.sum(axis=-1, keepdims=True)


@dataclass(frozen=True, kw_only=True)
class PolicyScoreMatrix:
    """Mean scores in [0, 1] of P policies, with the numbers of trials that determine their noise.

    Attributes:
        mean: Mean score of each policy, shape ``(…, P)``.
        trials: Number of trials of each policy, same shape; NaN if unknown. If scores are not 0 or 1, it is the number
            of binary trials that would give a mean with the same variance: m (1 − m) / variance for the mean score m.
            It is larger than the number of trials, because such scores vary less.

    Raises:
        InputError: If a mean is outside [0, 1], or a number of trials is not above 0.
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
        """Create the matrix from the scores of each policy's trials, one array per policy.

        If the scores of a policy are not all 0 or 1, one pseudo-trial with the squared deviation m (1 − m) is added to
        the estimate of their variance, for the policy's mean score m. It prevents that a few equal scores count as
        exact.
        """
        rows = [np.asarray(sample, dtype=np.float64) for sample in samples]
        return cls(
            mean=freeze_array([row.mean() for row in rows]),
            trials=freeze_array([_equivalent_trials(row) for row in rows]),
        )

    @classmethod
    def of_table(cls, mean: ArrayLike, trials: ArrayLike, deviation: ArrayLike | None = None) -> PolicyScoreMatrix:
        """Create the matrix from a published table of mean scores.

        Args:
            mean: Mean score of each policy, shape ``(…, P)``.
            trials: Number of trials of each policy.
            deviation: Standard deviation of each policy's scores between trials. If None, trials count as successes or
                failures, which have the largest variance for a given mean.
        """
        means = np.asarray(mean, dtype=np.float64)
        counts = np.broadcast_to(np.asarray(trials, dtype=np.float64), means.shape)
        if deviation is None:
            return cls(mean=means, trials=counts)
        pooled = _trials_from_squares(means, counts, counts * np.asarray(deviation, dtype=np.float64) ** 2)
        return cls(mean=means, trials=np.where(np.isnan(pooled), counts, pooled))

    @classmethod
    def average_tasks(cls, parts: Sequence[PolicyScoreMatrix]) -> PolicyScoreMatrix:
        """Return scores averaged over tasks, with equal weight per task, from one matrix per task."""
        mean = np.mean([part.mean for part in parts], axis=0)
        variance = np.sum([part.variance for part in parts], axis=0) / len(parts) ** 2
        smooth = np.clip(mean, 1e-3, 1 - 1e-3)  # a mean of 0 or 1 still has trial noise
        known = np.all([~np.isnan(part.trials) for part in parts], axis=0)
        worth = np.divide(smooth * (1 - smooth), variance, out=np.full(mean.shape, np.nan), where=known)
        return cls(mean=mean, trials=worth)

    def select_policies(self, rows: Sequence[int]) -> PolicyScoreMatrix:
        """Return the scores of the policies with the indices ``rows``, in that order."""
        return PolicyScoreMatrix(mean=self.mean[..., rows], trials=self.trials[..., rows])

    @property
    def has_trial_counts(self) -> bool:
        """Whether the numbers of trials of all policies are known."""
        return not np.isnan(self.trials).any()

    @property
    def variance(self) -> Array:
        """Variance of each mean score from its n trials, shape ``(…, P)``; 0 if n is unknown.

        It is p (1 − p) / n with Jeffreys' estimate p = (n m + ½) / (n + 1) for the mean m, so that 10 successes of 10
        trials do not count as certain.
        """
        n = np.where(np.isnan(self.trials), 1.0, self.trials)
        p = (n * self.mean + 0.5) / (n + 1)
        return np.where(np.isnan(self.trials), 0.0, p * (1 - p) / n)

    def resample_means(self, rng: np.random.Generator, draws: int) -> Array:
        """Draw mean scores from binomial distributions (parametric bootstrap), shape ``(ndraw, …, P)``.

        ``(…, P)`` is the shape of ``mean`` for P policies. Means with an unknown number of trials are unchanged.
        """
        n = np.maximum(np.rint(np.where(np.isnan(self.trials), 1.0, self.trials)), 1.0)
        again = rng.binomial(n.astype(np.int64), self.mean, size=(draws, *self.mean.shape)) / n
        return np.where(np.isnan(self.trials), self.mean, again)


@dataclass(frozen=True, kw_only=True)
class PolicyScores:
    """Real and simulated scores of the same policies in one task.

    Attributes:
        policies: Names of the policies.
        real: Real scores.
        sim: Simulated scores.
        task: Name of the task; "" if it has none.
    """

    policies: tuple[str, ...]
    real: PolicyScoreMatrix
    sim: PolicyScoreMatrix
    task: str = ""


def score_intervals(scores: PolicyScoreMatrix, *, level: float = 0.95) -> Interval:
    """Return Wilson's score interval of each mean score.

    It is computed from the mean and ``scores.trials``, the number of binary (success or failure) trials that would give
    a mean with the same variance. The limits are NaN if this number is unknown.
    """
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
    """Return the numbers of success/failure trials that would give mean scores with the same variances.

    The variance of a policy with mean score m is estimated with one added pseudo-trial of squared deviation m (1 − m),
    the variance of a success/failure trial with this mean. Equal scores therefore do not have a variance of 0. The
    result is at least the real number of trials.

    Args:
        mean: Mean scores.
        n: Numbers of trials.
        squares: Sums over trials of the squared deviations from the mean.
    """
    most = np.clip(mean * (1 - mean), 1e-6, None)
    return np.maximum(n * most * n / (np.asarray(squares) + most), n)


MIN_POLICIES = 3  # with two, every correlation is 1 or −1
_LEFT = 0.05  # least true variance, as a part of the noise variance; a smaller one cannot be distinguished from noise
_LARGEST = 0.999  # largest correlation, so that covariances stay invertible
_GRID = np.concatenate([np.linspace(-0.995, 0.9, 39), [0.93, 0.96, 0.98, 0.99, 0.999]])


@dataclass(frozen=True, kw_only=True)
class ScorePopulation:
    """Random draws of the distribution of true real and simulated scores over policies.

    The policies are a population that is similar to the evaluated ones. Each draw is one normal distribution that could
    have given the observed scores, like a sample of a Bayesian posterior. True scores are scores without trial noise.

    The means include the trial noise of the observed means; variances and covariance do not. All fields have the shape
    ``(…, ndraw)``.

    Attributes:
        mean_real: Mean of the real scores in each draw.
        mean_sim: Mean of the simulated scores.
        real: Variance of the true real scores.
        sim: Variance of the true simulated scores.
        both: Covariance of the true real and simulated scores.
    """

    mean_real: Array
    mean_sim: Array
    real: Array
    sim: Array
    both: Array

    @property
    def correlation(self) -> Array:
        """Pearson's correlation of true real and simulated scores in each drawn distribution, shape ``(…, ndraw)``."""
        return self.both / np.sqrt(self.real * self.sim)


def draw_population(
    *, real: PolicyScoreMatrix, sim: PolicyScoreMatrix, draws: int, rng: np.random.Generator
) -> ScorePopulation:
    """Draw means and covariances of true scores (without trial noise) that could have given the observed mean scores.

    Like samples of a Bayesian posterior, the draws show which values are plausible with so few policies, but no prior
    is needed. The method is a generalized pivot (Krishnamoorthy & Xia 2007).

    Args:
        real: Observed real scores of the policies.
        sim: Observed simulated scores of the same policies.
        draws: Number of draws.
        rng: Random generator.

    Raises:
        InputError: If there are fewer than three policies.
    """
    r, s = real.mean, sim.mean
    policies = r.shape[-1]
    if policies < MIN_POLICIES:
        raise InputError(
            f"{policies} policies cannot show how well simulation predicts reality: with two, every correlation is 1 "
            f"or -1. Score at least {MIN_POLICIES}; six or more give a useful interval."
        )
    shape = (*r.shape[:-1], draws)
    lower = _cholesky_factor(_jitter_means(real, draws, rng), _jitter_means(sim, draws, rng))
    u11, u22 = (np.sqrt(rng.chisquare(df, shape)) for df in (policies - 1, policies - 2))
    c11, c22 = lower[0] / u11, lower[2] / u22
    c21 = (lower[1] - c22 * rng.standard_normal(shape)) / u11
    z1, z2 = rng.standard_normal((2, *shape)) / np.sqrt(policies)
    noise_r, noise_s = (np.mean(side.variance, axis=-1)[..., None] for side in (real, sim))
    true_r, true_s = c11**2 - noise_r, c21**2 + c22**2 - noise_s
    unknown = (true_r <= 0) | (true_s <= 0)  # noise explains the whole variance: the correlation is unknown
    true_r, true_s = (np.maximum(x, np.maximum(_LEFT * y, 1e-12)) for x, y in ((true_r, noise_r), (true_s, noise_s)))
    most = _LARGEST * np.sqrt(true_r * true_s)
    return ScorePopulation(
        mean_real=r.mean(axis=-1)[..., None] + c11 * z1,
        mean_sim=s.mean(axis=-1)[..., None] + c21 * z1 + c22 * z2,
        real=true_r,
        sim=true_s,
        both=np.where(unknown, rng.uniform(-most, most), np.clip(c11 * c21, -most, most)),
    )


def draw_true_scores(
    population: ScorePopulation, *, real: PolicyScoreMatrix, sim: PolicyScoreMatrix, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Draw plausible true real and simulated scores (without trial noise) of the evaluated policies.

    The observed mean score of each policy is shrunk towards the mean over policies, as in an empirical Bayes estimate
    (Efron & Morris, J. Am. Stat. Assoc. 70, 1975). Each draw uses another draw of the distribution of true scores over
    policies, so the scores include the uncertainty of this distribution. The scores are not clipped to [0, 1], which
    would tie policies near the limits.

    Args:
        population: Draws of the distribution of true scores over policies, from `draw_population`.
        real: Observed real scores.
        sim: Observed simulated scores.
        rng: Random generator.

    Returns:
        Real scores and simulated scores, shape ``(…, ndraw, P)`` each.
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
    """Draw plausible true differences (simulated minus real score, without trial noise) of the evaluated policies.

    They are drawn from a normal model of the differences, given the observed scores.

    Returns:
        Shape ``(…, ndraw, P)`` for P policies.
    """
    observed, noise = sim.mean - real.mean, (real.variance + sim.variance)[..., None, :]
    policies, shape = observed.shape[-1], (*observed.shape[:-1], draws)
    scatter = np.sum((observed - observed.mean(axis=-1, keepdims=True)) ** 2, axis=-1)[..., None]
    spread = scatter / rng.chisquare(policies - 1, shape)
    centre = observed.mean(axis=-1)[..., None] + np.sqrt(spread / policies) * rng.standard_normal(shape)
    true = np.maximum(spread - noise.mean(axis=-1), 1e-12)[..., None]
    shrinkage = true / (true + noise)
    middle = centre[..., None] + shrinkage * (observed[..., None, :] - centre[..., None])
    return middle + np.sqrt(shrinkage * noise) * rng.standard_normal(middle.shape)


@dataclass(frozen=True, kw_only=True)
class ExpectedMetrics:
    """Expected ranking metrics of a fixed number of policies, as a function of the correlation of their true scores.

    True scores are scores without trial noise.

    Attributes:
        correlation: Grid of correlations between the true scores in reality and the true scores in simulation, shape
            ``(ngrid,)``.
        mmrv: Expected mean maximum rank violation (MMRV), in standard deviations of real scores.
        regret: Expected regret, in standard deviations of real scores.
        best_agrees: Chance that the policy that is best in simulation is best in reality.
    """

    correlation: Array
    mmrv: Array
    regret: Array
    best_agrees: Array

    def interpolate_metric(self, name: str, correlation: Array) -> Array:
        """Return the expected value of one metric at given correlations, by linear interpolation.

        Args:
        name: Field of the metric, such as ``mmrv``.
        correlation: Correlations of the true real and the true simulated scores, any shape.
        """
        return np.interp(correlation, self.correlation, getattr(self, name))


def population_metrics(population: ScorePopulation, policies: int) -> dict[str, Array]:
    """Return the expected metrics, by name, of policies from each drawn distribution of true scores.

    Trial noise is excluded.

    For a correlation ρ, Kendall's τ is (2/π) asin(ρ) and Spearman's correlation (6/π) asin(ρ/2) in a normal population
    (Greiner 1909, Pearson 1907). The mean maximum rank violation (MMRV) and the regret are proportional to the standard
    deviation of the real scores. This standard deviation is limited to ½, the largest possible one for scores in [0,
    1].

    Args:
        population: Draws of the distribution of true scores over policies.
        policies: Number of policies that are compared.
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
    """Return the expected ranking metrics of a number of policies, for a grid of correlations of their true scores.

    For each correlation of real and simulated scores, many sets of normally distributed scores without trial noise are
    drawn. The metrics are the mean maximum rank violation (MMRV), the regret and the agreement on the best policy,
    averaged over the sets.
    """
    draws = int(np.clip(400_000 // policies**2, 20, 4_000))
    z1, z2 = generator(0, "stats/ranking/expected").standard_normal((2, draws, policies))
    sims = [rho * z1 + np.sqrt(1 - rho**2) * z2 for rho in _GRID]
    table = [np.array([float(f(real=z1, sim=sim).mean()) for sim in sims]) for f in (mmrv, regret, best_agrees)]
    return ExpectedMetrics(correlation=_GRID, mmrv=table[0], regret=table[1], best_agrees=table[2])


def _jitter_means(side: PolicyScoreMatrix, draws: int, rng: np.random.Generator) -> Array:
    """Return mean scores with uniform noise, so that equal means differ.

    The width of the noise is 1/n for n trials, the distance between possible means of binary scores.

    Args:
        side: Real or simulated scores.
        draws: Number of draws.
        rng: Random generator.

    Returns:
        Shape ``(…, ndraw, P)`` for P policies.
    """
    step = np.where(np.isnan(side.trials), 0.0, 1.0 / side.trials)[..., None, :]
    return side.mean[..., None, :] + step * rng.uniform(-0.5, 0.5, (*side.mean.shape[:-1], draws, side.mean.shape[-1]))


def _cholesky_factor(r: Array, s: Array) -> tuple[Array, Array, Array]:
    """Return the entries of the lower Cholesky factor of the 2 × 2 scatter matrix of ``r`` and ``s``.

    The order is: row 1 column 1, row 2 column 1, row 2 column 2. The scatter (sums of products of deviations from the
    mean) is computed over the last axis.
    """
    a, b = r - r.mean(axis=-1, keepdims=True), s - s.mean(axis=-1, keepdims=True)
    rr, ss, rs = (np.sum(x * y, axis=-1) for x, y in ((a, a), (b, b), (a, b)))
    first = np.sqrt(rr)
    across = np.divide(rs, first, out=np.zeros_like(rs), where=first > 0)
    return first, across, np.sqrt(np.maximum(ss - across**2, 0.0))
