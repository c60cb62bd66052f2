"""Estimate the real mean score of a policy from few real and many simulated trials.

There are three methods. Use exact strata (`post_stratified`) for successes and failures, betting (`prediction_powered`)
for scores, and control variates (`control_variate`) only with many trials, because their interval is approximate. In
each method, n initial states (starts) are tried both on the robot (scores F) and in simulation (scores G), and k more
starts only in simulation (scores G′).

Control variates. The estimate is μ̂ = mean(F) − β (mean(G) − mean(G′)). Simulation cannot bias it for any coefficient
β, because the same policy in the same simulator is subtracted. β = 1 is prediction-powered inference (Angelopoulos et
al., Science 382, 2023). The β of least variance, Cov(F, G) / Var(G) · k / (n + k), is the classical control variate and
PPI++ (Angelopoulos, Duchi & Zrnic, arXiv 2311.01453, 2023). These intervals are asymptotic: with few trials, or nearly
equal outcomes, they cover less than stated. Use `prediction_powered` then.

Betting. Each real trial i is assigned an equal share of the simulated-only trials, and is corrected (rectified) by
them: Z_i = F_i − β_i (G_i − mean of its share). If β_i is chosen from the earlier trials, the expectation of Z_i is the
real mean for any simulator, and Z_i is between −|β_i| and 1 + |β_i|. Its mean is therefore estimated as in `betting`,
and the interval is valid for any number of trials, any scores in [0, 1] and any correlation. With an uninformative
simulation β_i stays near zero. Coefficients from earlier trials are those of Waudby-Smith & Ramdas, "Confidence
sequences for sampling without replacement / by betting" (2020, 2024), and of active and sequential prediction-powered
inference (Zrnic & Candès, arXiv 2403.03208, 2024).

Strata. Let p₁ be the real success rate of the starts that succeed in simulation, p₀ that of the starts that fail in
simulation, and π the share of starts that succeed in simulation. The real rate is π p₁ + (1 − π) p₀. π is estimated
accurately from the simulated-only trials, and within the strata the paired trials are two binomials. If simulation
predicts reality, p₁ and p₀ are near 1 and 0 and have little variance. That is the advantage over an interval of the
real trials alone.

The lower limit is Buehler's (J. Am. Stat. Assoc. 52, 1957): the smallest real rate at which an estimate as large as the
observed one, or larger, still has a chance of α/2. The search covers all p₁ and p₀ within a box that contains them with
high confidence (Berger & Boos, J. Am. Stat. Assoc. 89, 1994), and all π within its exact interval. The error
probabilities of the box and of this interval are subtracted from α. The chance grows with p₁ and p₀, and the rate is
linear in π. The smallest rate is therefore on the curve of pairs (p₁, p₀) with exactly the required chance, at one end
of the interval of π. The upper limit is computed in the same way from the failures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy  # its parts load when they are used
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri, stdtrit

from twinloop.core.errors import InputError
from twinloop.core.plain import JsonRecord
from twinloop.stats.betting import bounded_mean, check_bounded, log_e_adaptive
from twinloop.stats.bootstrap import bootstrap
from twinloop.stats.interval import Interval, check_level
from twinloop.stats.proportion import clopper_pearson

Array = NDArray[np.float64]
Coefficient = Literal["ppi", "ppi++", "cross-fitted"]
_LEAST = 3  # paired trials needed for a covariance and its spread


@dataclass(frozen=True, kw_only=True)
class PairedTrials:
    """Scores in [0, 1] of one policy, from paired real and simulated trials and from simulated-only trials.

    Attributes:
        real: Real scores, shape ``(n,)``.
        sim: Simulated scores of the same starts, shape ``(n,)``.
        more: Scores of starts that were only simulated, shape ``(k,)``.

    Raises:
        InputError: If a score is outside [0, 1], ``real`` and ``sim`` have unequal lengths, or ``more`` is empty.
    """

    real: Array
    sim: Array
    more: Array

    def __post_init__(self) -> None:
        for name in ("real", "sim", "more"):
            object.__setattr__(self, name, check_bounded(getattr(self, name), 0.0, 1.0))
        if self.real.shape != self.sim.shape:
            raise InputError(
                f"{len(self.real)} real trials cannot be paired with {len(self.sim)} simulated ones. Simulate every "
                "real start once, under the same name of pair."
            )

    def take(self, rows: NDArray[np.intp]) -> PairedTrials:
        """Return the pairs with the indices ``rows``, and all simulated-only trials."""
        return PairedTrials(real=self.real[rows], sim=self.sim[rows], more=self.more)


@dataclass(frozen=True, kw_only=True)
class ControlVariate(JsonRecord):
    """Estimate of the real mean score by a control variate.

    Attributes:
        mean: Estimated mean score with its interval, which is valid only for many trials (asymptotic).
        beta: Coefficient β of the control variate; if each pair of a real and a simulated trial has its own
            coefficient, their mean.
    """

    mean: Interval
    beta: float


def control_variate(
    trials: PairedTrials, *, coefficient: Coefficient = "cross-fitted", level: float = 0.95
) -> ControlVariate:
    """Estimate the real mean score by a control variate, with an asymptotic interval.

    The estimate is mean(F) − β (mean(G) − mean(G′)), with the real scores F, the simulated scores G of the same starts,
    and the scores G′ of starts that were only simulated.

    Args:
        trials: The scores F (``real``), G (``sim``) and G′ (``more``).
        coefficient: Choice of the coefficient β. ``cross-fitted`` (recommended) estimates each pair's β from all other
            pairs, and uses Student's t. ``ppi`` (β = 1) and ``ppi++`` (β of least variance) use normal quantiles, as in
            their publications.
        level: Confidence level.

    Raises:
        InputError: If there are fewer than three pairs, from which no spread can be estimated.
    """
    check_level(level)
    n, k = len(trials.real), len(trials.more)
    if n < _LEAST:
        raise InputError(
            f"{n} paired trials are too few for a spread; at least {_LEAST} are needed, and 20 for a reliable one."
        )
    beta = {
        "ppi": lambda _: np.ones(n),
        "ppi++": _least_variance_coefficients,
        "cross-fitted": _cross_fitted_coefficients,
    }[coefficient](trials)
    rectified = trials.real - beta * (trials.sim - trials.more.mean())
    error = np.sqrt(rectified.var(ddof=1) / n + beta.mean() ** 2 * trials.more.var(ddof=min(1, k - 1)) / k)
    tail = (1 + level) / 2
    reach = float(stdtrit(n - 1, tail) if coefficient == "cross-fitted" else ndtri(tail)) * float(error)
    estimate = float(rectified.mean())
    return ControlVariate(
        mean=Interval.of(
            estimate,
            estimate - reach,
            estimate + reach,
            level=level,
            method=f"{coefficient} control variate, asymptotic",
        ),
        beta=float(beta.mean()),
    )


def trials_saved(trials: PairedTrials, *, level: float = 0.95, draws: int = 2000, seed: int = 0) -> Interval:
    """Return how many additional real trials would reduce the variance as much as the simulated trials do.

    These are the real trials that simulation saves. Let n be the number of pairs, k the number of simulated-only
    trials, ρ the correlation of real and simulated scores, and q = ρ² k / (n + k). The result is n q / (1 − q).

    ρ² is estimated as 1 − (1 − r²)(n − 1)/(n − 2) for the observed correlation r, and at least 0. r² alone is too large
    with few pairs, so that even a simulation without information would seem to save trials. The interval is a
    percentile bootstrap over pairs. If all real or all simulated outcomes are equal, the correlation is unknown: the
    estimate is 0 and the limits are NaN.

    Raises:
        InputError: If there are fewer than three pairs.
    """
    check_level(level)
    n, k = len(trials.real), len(trials.more)
    if n < _LEAST:
        raise InputError(f"{n} paired trials are too few for a correlation; at least {_LEAST} are needed.")
    if np.ptp(trials.real) == 0 or np.ptp(trials.sim) == 0:
        nan = np.array(np.nan)
        method = "none: all paired trials have the same outcome, so that the correlation is unknown"
        return Interval.of(0.0, nan, nan, level=level, method=method)

    def count_saved(rows: NDArray[np.intp]) -> Array:
        f, g = (values[rows] - values[rows].mean(axis=1, keepdims=True) for values in (trials.real, trials.sim))
        product = np.sqrt(np.sum(f**2, axis=1) * np.sum(g**2, axis=1))
        r = np.divide(np.sum(f * g, axis=1), product, out=np.zeros(len(rows)), where=product > 1e-12)
        explained = np.clip(1 - (1 - r**2) * (n - 1) / (n - 2), 0.0, 1.0) * k / (n + k)
        return n * explained / (1 - explained)

    interval = bootstrap(count_saved, n, level=level, draws=draws, method="percentile", seed=seed)
    return Interval.of(
        interval.estimate,
        np.minimum(interval.low, interval.estimate),
        np.maximum(interval.high, interval.estimate),
        level=level,
        method="percentile bootstrap over pairs",
    )


def _least_variance_coefficients(trials: PairedTrials) -> Array:
    n, k = len(trials.real), len(trials.more)
    spread = np.concatenate([trials.sim, trials.more]).var(ddof=1)
    both = float(np.sum((trials.real - trials.real.mean()) * (trials.sim - trials.sim.mean())) / (n - 1))
    return np.full(n, 0.0 if spread == 0 else both / spread * k / (n + k))


def _cross_fitted_coefficients(trials: PairedTrials) -> Array:
    """Return the coefficient β of the control variate for each of n pairs, estimated from all other pairs; ``(n,)``."""
    n, k = len(trials.real), len(trials.more)
    f, g = trials.real - trials.real.mean(), trials.sim - trials.sim.mean()
    grown = n / (n - 1)  # leaving one out of centred sums removes its product this many times
    both = np.sum(f * g) - grown * f * g
    every = np.concatenate([trials.sim, trials.more])
    spread = every.var() * (n - 2)
    return both / spread * k / (n + k) if spread > 0 else np.zeros(n)


_DOUBT = 1.0  # prior sum of squares of simulated scores, without covariance: β starts at 0 and grows slowly


@dataclass(frozen=True, kw_only=True)
class RectifiedValues:
    """Real scores corrected by simulation, whose expectation is the real mean score.

    Attributes:
        values: Corrected scores, shape ``(…, n)``.
        beta: Coefficient β with which the simulated scores enter each corrected score (see `rectify`), same shape.
    """

    values: Array
    beta: Array

    @property
    def low(self) -> Array:
        """Smallest possible corrected score, −|β|, shape ``(…, n)``.

        A corrected score is F − β (G − M) for a real score F and simulated scores G and M in [0, 1], see `rectify`.
        """
        return -np.abs(self.beta)

    @property
    def high(self) -> Array:
        """Largest possible corrected score, 1 + |β|, shape ``(…, n)``.

        A corrected score is F − β (G − M) for a real score F and simulated scores G and M in [0, 1], see `rectify`.
        """
        return 1 + np.abs(self.beta)


def rectify(
    real: ArrayLike, sim: ArrayLike, more: ArrayLike, *, known: tuple[ArrayLike, ArrayLike] | None = None
) -> RectifiedValues:
    """Correct (rectify) real scores by simulation, so that their expectation stays the real mean but they vary less.

    The corrected score of trial i is F_i − β_i (G_i − M_i). F_i and G_i are its real and simulated score. M_i is the
    mean score of the simulated-only trials that are assigned to trial i. The coefficient β_i is computed from earlier
    trials only.

    Args:
        real: Real scores, shape ``(…, n)``.
        sim: Simulated scores of the same starts, shape ``(…, n)``.
        more: Scores of simulated-only trials, shape ``(…, k)``; each real trial is assigned k // n of them, in their
            order.
        known: Paired real and simulated scores of other policies, shape ``(m,)`` each, for the initial value of β.

    Raises:
        InputError: If there are fewer simulated-only trials than real trials, or a score is outside [0, 1].
    """
    f, g, h = (check_bounded(values, 0.0, 1.0) for values in (real, sim, more))
    n, k = f.shape[-1], h.shape[-1]
    if k < n:
        raise InputError(
            f"{k} further simulated trials are fewer than the {n} real ones, each of which needs at least one. "
            f"Simulate at least {n} further starts, better ten times as many."
        )
    share = k // n
    mean = h[..., : share * n].reshape(*h.shape[:-1], n, share).mean(axis=-1)
    beta = _coefficients(f, g, known) * share / (share + 1)
    return RectifiedValues(values=f - beta * (g - mean), beta=beta)


def log_e_prediction_powered(values: RectifiedValues, mean: ArrayLike, *, alpha: float) -> Array:
    """Return the logarithm of the wealth for the hypothesis that the real mean score is ``mean``, after each trial.

    The wealth is the test statistic. The hypothesis is rejected at level α when the wealth reaches 1/α; see
    `stats.betting`.

    Args:
        values: Real scores corrected by simulation, shape ``(…, n)``, from `rectify`.
        mean: Hypothetical real mean, broadcast against the shape ``(…,)``.
        alpha: Level α of the test.

    Returns:
        Shape ``(…, n)``.
    """
    return log_e_adaptive(values.values, mean, alpha=alpha, low=values.low, high=values.high)


def prediction_powered(
    trials: PairedTrials, *, level: float = 0.95, known: tuple[ArrayLike, ArrayLike] | None = None
) -> Interval:
    """Return an interval of the real mean score that is valid for any number of trials, by betting.

    Prefer it to `control_variate` if there are few real trials or nearly equal scores.

    Args:
        trials: The scores.
        level: Confidence level.
        known: Paired real and simulated scores of other policies, shape ``(m,)`` each, for the initial value of the
            coefficient β with which simulated scores correct real ones (see `rectify`).

    Raises:
        InputError: If there are fewer simulated-only trials than real trials.
    """
    rectified = rectify(trials.real, trials.sim, trials.more, known=known)
    interval = bounded_mean(rectified.values, level=level, low=rectified.low, high=rectified.high, within=(0.0, 1.0))
    return Interval.of(
        interval.estimate,
        interval.low,
        interval.high,
        level=level,
        method="prediction-powered betting, finite-sample valid",
    )


def _coefficients(f: Array, g: Array, known: tuple[ArrayLike, ArrayLike] | None) -> Array:
    """Return for each trial the regression coefficient β of real on simulated scores, from the earlier trials.

    It is the covariance of real and simulated scores divided by the variance of the simulated scores, shrunk towards 0
    and limited to ±1. The trials of other policies count as earlier trials.

    Args:
        f: Real scores, shape ``(…, n)``.
        g: Simulated scores, same shape.
        known: Paired real and simulated scores of other policies; None if there are none.
    """
    both, spread = 0.0, _DOUBT
    if known is not None and np.size(known[0]) > 1:
        first, second = (np.asarray(values, dtype=np.float64) for values in known)
        both = float(np.sum((first - first.mean()) * (second - second.mean())))
        spread += float(np.sum((second - second.mean()) ** 2))
    count = np.arange(f.shape[-1])
    sums = [np.cumsum(x, axis=-1) - x for x in (f, g, f * g, g * g)]
    many = np.maximum(count, 1)
    covariance = sums[2] - sums[0] * sums[1] / many
    variance = sums[3] - sums[1] ** 2 / many
    return np.clip((both + covariance) / (spread + np.maximum(variance, 0.0)), -1.0, 1.0)


_SIDE = 0.1  # error probability, as share of α, of the interval of π, and again of the box of p₁ and p₀
_CURVE = 401  # points of the curve; a bound is used between them, so more points only tighten the limit
_HALVINGS = 24
_TIE = 1e-9


def post_stratified(trials: PairedTrials, *, level: float = 0.95) -> Interval:
    """Return the exact interval of the real success rate, from successes in paired and in simulated-only trials.

    The two strata are the starts (initial states) that succeed and that fail in simulation. The real success rate in
    each stratum is estimated from the paired trials. The interval of the share of each stratum comes from the
    simulated-only trials.

    Raises:
        InputError: If a score is neither 0 nor 1.
    """
    check_level(level)
    for name in ("real", "sim", "more"):
        if not np.isin(getattr(trials, name), (0.0, 1.0)).all():
            raise InputError("Strata by simulated success need 0 or 1 in every trial; use the betting interval.")
    alpha = 1 - level
    won = trials.sim == 1
    counts = tuple((int(trials.real[rows].sum()), int(rows.sum())) for rows in (won, ~won))
    share = clopper_pearson(int(trials.more.sum()), len(trials.more), level=1 - _SIDE * alpha)
    estimated = float((trials.more.sum() + won.sum()) / (len(trials.more) + len(won)))
    tail = alpha * (1 - 2 * _SIDE) / 2
    ends = (float(share.low), float(share.high))
    low = _lower_limit(counts, estimated, ends, tail, alpha)
    failed = tuple((n - s, n) for s, n in counts)
    high = 1 - _lower_limit(failed, estimated, ends, tail, alpha)
    rates = [s / n if n else trials.real.mean() for s, n in counts]
    estimate = estimated * rates[0] + (1 - estimated) * rates[1]
    return Interval.of(np.clip(estimate, low, high), low, high, level=level, method="post-stratified exact")


def _lower_limit(
    counts: tuple[tuple[int, int], ...], share: float, ends: tuple[float, float], tail: float, alpha: float
) -> float:
    """Return the lower limit of the real success rate.

    It is computed by Buehler's method (1957), see the module, over the two strata of starts that succeed and that fail
    in simulation.

    For the upper limit, call it with the counts of failures: 1 − upper limit is the lower limit of the failure rate.

    Args:
        counts: Real successes and trials in each stratum: starts (initial states) that succeed in simulation, and
            starts that fail.
        share: Estimated share π of starts that succeed in simulation.
        ends: Limits of the confidence interval of π.
        tail: Error probability of Buehler's method for this limit.
        alpha: Error probability of the whole two-sided interval. It is the sum of that of the interval of π, an equal
            one of the limits of the two real rates, which are computed here, and 2 ``tail``.
    """
    (s1, n1), (s0, n0) = counts
    box1, box0 = _rate_limits(s1, n1, alpha), _rate_limits(s0, n0, alpha)
    first = np.linspace(*box1, _CURVE)
    second = _critical_curve(first, counts, share, tail)
    inside = second <= box0[1]
    if not inside.any():  # the box and the tail contradict each other, with a chance below α
        return min(p * box1[1] + (1 - p) * box0[1] for p in ends)
    second = np.clip(second, box0[0], box0[1])
    # p₀ falls along the curve: between two points the rate is at least that at p₁ of the first and p₀ of the second
    start = max(int(np.argmax(inside)) - 1, 0)
    p1, p0 = first[start:-1], second[start + 1 :]
    return float(min((p * p1 + (1 - p) * p0).min() for p in ends))


def _rate_limits(successes: int, trials: int, alpha: float) -> tuple[float, float]:
    if trials == 0:
        return 0.0, 1.0
    interval = clopper_pearson(successes, trials, level=1 - _SIDE * alpha / 2)
    return float(interval.low), float(interval.high)


def _critical_curve(first: Array, counts: tuple[tuple[int, int], ...], share: float, tail: float) -> Array:
    """Return, for every p₁, the p₀ at which the observed estimate is just compatible with the rates.

    p₁ and p₀ are the real success rates of the starts (initial states) that succeed and that fail in simulation. At the
    returned p₀, an estimate that is at least as large as the observed one has the probability ``tail``.

    Args:
        first: Values of p₁.
        counts: Real successes and trials of the starts that succeed in simulation, and of those that fail.
        share: Estimated share of starts that succeed in simulation.
        tail: Required probability.

    Returns:
        Values of p₀; 2 if none exists.
    """
    (s1, n1), (s0, n0) = counts
    weight1, weight0 = share / max(n1, 1), (1 - share) / max(n0, 1)
    observed = weight1 * s1 + weight0 * s0
    won = np.arange(n1 + 1)
    short = observed - weight1 * won - _TIE  # the sum that stratum 0 must add
    needed = np.where(short <= 0, 0.0, np.ceil(short / weight0 - _TIE) if weight0 > 0 else np.inf)
    needed = np.where(needed > n0, n0 + 1, needed)
    chance = np.asarray(scipy.stats.binom.pmf(won, n1, first[:, None]))

    def reached(second: Array) -> Array:
        return np.einsum("gi,gi->g", chance, np.asarray(scipy.stats.binom.sf(needed - 1, n0, second[:, None])))

    low, high = np.zeros(len(first)), np.ones(len(first))
    never = reached(high) < tail
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        enough = reached(middle) >= tail
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(never, 2.0, low)
