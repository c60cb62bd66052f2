"""Compute confidence bounds of rates: success rates, failure rates to be claimed, and rates of rare events."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, betainc, betaincinv, betaln, ndtri

from twinloop.core.errors import InputError
from twinloop.stats.interval import Interval, check_level

Array = NDArray[np.float64]


def wilson(successes: int, trials: int, *, level: float = 0.95) -> Interval:
    """Return Wilson's score interval of a success rate (J. Am. Stat. Assoc. 22, 1927).

    Its coverage is near nominal on average, also for few trials. SciPy's ``binomtest`` has the same interval, but
    computes a p-value first, which takes a hundred times as long.
    """
    _check_counts(successes, trials, level)
    rate = successes / trials
    low, high = wilson_limits(rate, trials, level)
    low, high = (0.0 if successes == 0 else low), (1.0 if successes == trials else high)
    return Interval.of(rate, low, high, level=level, method="Wilson score")


def wilson_limits(rate: ArrayLike, trials: ArrayLike, level: float) -> tuple[Array, Array]:
    """Return lower and upper Wilson limits of observed rates, elementwise.

    Rounding may move them slightly outside [0, 1].
    """
    p, n, z = np.asarray(rate, dtype=np.float64), np.asarray(trials, dtype=np.float64), float(ndtri((1 + level) / 2))
    room = 1 + z**2 / n
    centre, half = (p + z**2 / (2 * n)) / room, z / room * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    return centre - half, centre + half


def clopper_pearson(successes: int, trials: int, *, level: float = 0.95) -> Interval:
    """Return the exact Clopper-Pearson interval of a success rate (Biometrika 26, 1934); coverage never below nominal.

    It uses the inverse beta function. SciPy's ``binomtest`` searches roots, which takes 400 times as long and loses
    digits.
    """
    _check_counts(successes, trials, level)
    tail = (1 - level) / 2
    low = 0.0 if successes == 0 else betaincinv(successes, trials - successes + 1, tail)
    high = 1.0 if successes == trials else betaincinv(successes + 1, trials - successes, 1 - tail)
    rate = np.array(successes / trials)
    return Interval.of(rate, low, high, level=level, method="Clopper–Pearson exact")


def _check_counts(successes: int, trials: int, level: float) -> None:
    check_level(level)
    if trials < 1 or not 0 <= successes <= trials:
        raise InputError(
            f"{successes} successes of {trials} trials is not a success rate; give 0 ≤ successes ≤ trials ≥ 1."
        )


MAX_TRIALS = 10**9


def trials_to_claim(rate: float, *, confidence: float = 0.95, failures: int = 0) -> int:
    """Return the number of trials needed to claim a failure rate of at most ``rate``.

    The claim is allowed if at most ``failures`` of these trials fail. The exact one-sided binomial test gives the
    smallest n with P(at most ``failures`` of n | rate) ≤ 1 − confidence. For zero failures that is ln(1 − confidence) /
    ln(1 − rate), about 3 / rate at 95 % ("rule of three"; Hanley and Lippman-Hand, JAMA 249, 1983).

    Args:
        rate: Failure rate to claim.
        confidence: Confidence of the claim.
        failures: Number of failures that are allowed.

    Raises:
        InputError: If ``rate`` or ``confidence`` is outside (0, 1), ``failures`` is negative, or more than a billion
            trials are needed.
    """
    _check_claim(rate, confidence, failures)

    def enough(trials: int) -> bool:
        if trials > MAX_TRIALS:
            raise InputError(
                f"A failure rate of {rate:g} needs more than {MAX_TRIALS:,} trials. That is not feasible: claim a "
                "higher rate, or argue from parts of the task."
            )
        return bool(bdtr(failures, trials, rate) <= 1.0 - confidence)

    return _smallest_sufficient(enough, failures, max(16, 2 * failures + 2))


def _smallest_sufficient(enough: Callable[[int], bool], low: int, high: int) -> int:
    """Return the smallest sufficient number, by doubling and then bisection.

    Args:
        enough: Whether a number is sufficient.
        low: A number that is not sufficient.
        high: First number to try.
    """
    while not enough(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def failure_rate_bound(failures: int, trials: int, *, confidence: float = 0.95) -> float:
    """Return the one-sided Clopper-Pearson upper bound of the failure rate, after ``failures`` failures in ``trials``.

    Raises:
        InputError: If there are more failures than trials, no trials, or ``confidence`` is outside (0, 1).
    """
    if trials < 1 or not 0 <= failures <= trials:
        raise InputError(f"{failures} failures of {trials} trials is not a result; give 0 ≤ failures ≤ trials ≥ 1.")
    _check_claim(0.5, confidence, failures)
    return 1.0 if failures == trials else float(betaincinv(failures + 1, trials - failures, confidence))


def claim_probability(truth: ArrayLike, trials: int, failures: int) -> Array:
    """Return the probability that at most ``failures`` of the trials fail, so that a low failure rate may be claimed.

    Args:
        truth: True failure rates, any shape.
        trials: Number of trials.
        failures: Largest number of failures with which the claim is allowed.
    """
    return np.asarray(bdtr(failures, trials, np.asarray(truth, dtype=np.float64)))


def sequential_claim_trials(rate: float, *, confidence: float = 0.95, failures: int = 3) -> NDArray[np.int64]:
    """Return after how many trials a failure rate of at most ``rate`` is shown, if every trial is followed by a check.

    The claim may be checked after every trial, and testing may stop at any time. The test statistic (wealth) against a
    failure rate of ``rate`` or more, after f failures and s successes, is the mean of the likelihood ratio (p/rate)^f
    ((1 − p)/(1 − rate))^s over failure rates p < ``rate``, weighted by Jeffreys' prior Beta(½, ½). If the failure rate
    is ``rate`` or more, the wealth ever exceeds 1/(1 − confidence) with a chance of at most 1 − confidence (Ville's
    inequality).

    Args:
        rate: Failure rate to claim.
        confidence: Confidence of the claim.
        failures: Largest number of failures in the result.

    Returns:
        Number of trials that suffices with f failures so far, for f from 0 to ``failures``, shape ``(failures + 1,)``.

    Raises:
        InputError: If ``rate`` or ``confidence`` is outside (0, 1), ``failures`` is negative, or more than a billion
            trials are needed.
    """
    _check_claim(rate, confidence, failures)
    needed = -math.log(1.0 - confidence)

    def end(failed: int) -> int:
        guess = max(16, 4 * trials_to_claim(rate, confidence=confidence, failures=failed))
        return _smallest_sufficient(
            lambda trials: bool(log_wealth(failed, trials - failed, rate) >= needed), failed, guess
        )

    return np.array([end(failed) for failed in range(failures + 1)], dtype=np.int64)


def log_wealth(failures: ArrayLike, successes: ArrayLike, rate: float) -> Array:
    """Return the logarithm of the test statistic (wealth) of `sequential_claim_trials`, elementwise.

    Large values are evidence for a failure rate below ``rate``.

    Args:
        failures: Numbers of failures so far.
        successes: Numbers of successes so far.
        rate: Failure rate to claim.
    """
    f, s = np.asarray(failures, dtype=np.float64) + 0.5, np.asarray(successes, dtype=np.float64) + 0.5
    part = np.log(np.maximum(betainc(f, s, rate), np.finfo(np.float64).tiny))
    cut = math.log(float(betainc(0.5, 0.5, rate))) + float(betaln(0.5, 0.5))
    return betaln(f, s) + part - cut - (f - 0.5) * math.log(rate) - (s - 0.5) * math.log1p(-rate)


def _check_claim(rate: float, confidence: float, failures: int) -> None:
    if not 0.0 < rate < 1.0:
        raise InputError(f"The failure rate {rate:g} is not between 0 and 1. Give one such as 1e-3.")
    if not 0.0 < confidence < 1.0:
        raise InputError(f"The confidence {confidence:g} is not between 0 and 1. Give one such as 0.95.")
    if failures < 0:
        raise InputError(f"The number of allowed failures is {failures}. Give 0 or more.")


_HEAVY = 0.2  # share of one draw above which the estimate is called fragile; our choice
_FEW = 30  # fewer failures are too few for a normal interval of their mean weight; our choice


@dataclass(frozen=True, kw_only=True)
class WeightedRate:
    """Rate of a rare event, estimated from weighted draws (importance sampling).

    Attributes:
        interval: Mean of weight × event, with an interval computed on the logarithm (delta method), so that it stays
            positive.
        draws: Number of draws.
        events: Number of draws with the event.
        effective: Kish's effective number of events (Σ w)² / Σ w² for event weights w: ``events`` if they are equal,
            else less.
        largest_share: Share of the estimate that comes from the draw with the largest weight.
        equivalent_draws: Number of unweighted draws that would give an equally narrow interval.
    """

    interval: Interval
    draws: int
    events: int
    effective: float
    largest_share: float
    equivalent_draws: float

    @property
    def warning(self) -> str:
        """Reason to distrust the interval; "" if there is none."""
        if self.events == 0:
            return (
                f"The event never happened in {self.draws} draws. The search did not reach it, so its rate is unknown."
            )
        if self.largest_share > _HEAVY:
            return (
                f"One draw accounts for {self.largest_share:.0%} of the estimate: the search missed a region, and "
                "the rate may be several times higher. Search longer, or with more modes."
            )
        if self.events < _FEW:
            return f"The event happened in only {self.events} draws. With fewer than {_FEW} the interval is unreliable."
        return ""

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that can be written as JSON."""
        return {
            "rate": float(self.interval.estimate),
            "low": float(self.interval.low),
            "high": float(self.interval.high),
            "level": self.interval.level,
            "draws": self.draws,
            "events": self.events,
            "effective_events": self.effective,
            "largest_share": self.largest_share,
            "plain_draws": self.equivalent_draws,
            "warning": self.warning,
        }


def weighted_rate(events: ArrayLike, log_weights: ArrayLike, *, level: float = 0.95) -> WeightedRate:
    """Estimate the rate of an event under a target distribution from independent draws of another distribution.

    Args:
        events: Whether the event happened in each draw, shape ``(n,)``.
        log_weights: Logarithm of the target density divided by the sampling density at each draw, shape ``(n,)``.
        level: Confidence level of the interval.

    Raises:
        InputError: If there are fewer than two draws, lengths differ, or a weight is NaN.
    """
    check_level(level)
    happened, logs = np.asarray(events, dtype=np.bool_), np.asarray(log_weights, dtype=np.float64)
    if len(happened) < 2 or happened.shape != logs.shape or np.isnan(logs).any():
        raise InputError(
            f"Events of shape {happened.shape} and weights of shape {logs.shape} give no rate. Give at least two draws "
            "with one weight each, none of them NaN."
        )
    values = np.where(happened, np.exp(logs), 0.0)
    n, rate = len(values), float(values.mean())
    if rate == 0.0:
        nothing = Interval.of(0.0, 0.0, 1.0, level=level, method="none")
        return WeightedRate(interval=nothing, draws=n, events=0, effective=0.0, largest_share=0.0, equivalent_draws=0.0)
    error = float(values.std(ddof=1) / np.sqrt(n))
    reach = float(ndtri((1 + level) / 2)) * error / rate
    interval = Interval.of(
        rate,
        rate * np.exp(-reach),
        min(1.0, rate * np.exp(reach)),
        level=level,
        method="importance sampling, normal on the logarithm",
    )
    return WeightedRate(
        interval=interval,
        draws=n,
        events=int(happened.sum()),
        effective=float(values.sum() ** 2 / (values**2).sum()),
        largest_share=float(values.max() / values.sum()),
        equivalent_draws=rate * (1.0 - min(rate, 1.0)) / max(error**2, np.finfo(np.float64).tiny),
    )
