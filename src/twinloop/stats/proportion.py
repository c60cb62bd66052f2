"""Bound a rate: of successes, of claims about failures, and of something rare from weighted draws."""

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
    """Wilson's score interval (J. Am. Stat. Assoc. 22, 1927): mean coverage near nominal, also for few trials.

    SciPy's ``binomtest`` has the same interval, but computes a p-value first, which takes a hundred times as long.
    """
    _check_counts(successes, trials, level)
    rate = successes / trials
    low, high = wilson_ends(rate, trials, level)
    low, high = (0.0 if successes == 0 else low), (1.0 if successes == trials else high)
    return Interval.of(rate, low, high, level=level, method="Wilson score")


def wilson_ends(rate: ArrayLike, trials: ArrayLike, level: float) -> tuple[Array, Array]:
    """Wilson's limits of rates seen in so many trials, elementwise; rounding may take them past 0 or 1."""
    p, n, z = np.asarray(rate, dtype=np.float64), np.asarray(trials, dtype=np.float64), float(ndtri((1 + level) / 2))
    room = 1 + z**2 / n
    centre, half = (p + z**2 / (2 * n)) / room, z / room * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    return centre - half, centre + half


def clopper_pearson(successes: int, trials: int, *, level: float = 0.95) -> Interval:
    """Clopper and Pearson's exact interval (Biometrika 26, 1934): coverage never below nominal.

    From the inverse beta function; SciPy's ``binomtest`` searches roots, 400 times as long, and loses digits.
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
            f"{successes} successes of {trials} trials is no success rate; give 0 ≤ successes ≤ trials ≥ 1."
        )


MOST_TRIALS = 10**9


def trials_to_claim(rate: float, *, confidence: float = 0.95, failures: int = 0) -> int:
    """Fewest trials after which at most ``failures`` failures show that the failure rate is at most ``rate``.

    The exact one-sided binomial test: n is the least with P(at most ``failures`` of n | rate) ≤ 1 − confidence. With no
    failure allowed that is ln(1 − confidence) / ln(1 − rate), about 3 / rate at 95 % ("rule of three"; Hanley and
    Lippman-Hand, JAMA 249, 1983).

    Raises:
        InputError: a rate or a confidence outside (0, 1), a negative number of failures, or more than a billion trials.
    """
    _check_claim(rate, confidence, failures)

    def enough(trials: int) -> bool:
        if trials > MOST_TRIALS:
            raise InputError(
                f"A failure rate of {rate:g} needs more than {MOST_TRIALS:,} trials. No fleet drives that many: claim "
                "less, or argue from parts of the task."
            )
        return bool(bdtr(failures, trials, rate) <= 1.0 - confidence)

    return _least(enough, failures, max(16, 2 * failures + 2))


def _least(enough: Callable[[int], bool], low: int, high: int) -> int:
    """The least number above ``low`` that is enough, sought from ``high`` on by doubling and halving."""
    while not enough(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def rate_shown(failures: int, trials: int, *, confidence: float = 0.95) -> float:
    """The largest failure rate that ``failures`` in ``trials`` leave possible: Clopper and Pearson's one-sided bound.

    Raises:
        InputError: more failures than trials, no trials, or a confidence outside (0, 1).
    """
    if trials < 1 or not 0 <= failures <= trials:
        raise InputError(f"{failures} failures of {trials} trials is no result; give 0 ≤ failures ≤ trials ≥ 1.")
    _check_claim(0.5, confidence, failures)
    return 1.0 if failures == trials else float(betaincinv(failures + 1, trials - failures, confidence))


def chance_to_show(truth: ArrayLike, trials: int, failures: int) -> Array:
    """Chance that a policy of a true failure rate passes a demonstration: at most ``failures`` of ``trials``."""
    return np.asarray(bdtr(failures, trials, np.asarray(truth, dtype=np.float64)))


def watched_claim(rate: float, *, confidence: float = 0.95, failures: int = 3) -> NDArray[np.int64]:
    """When trials that are looked at one by one show a failure rate of at most ``rate``, ``(failures + 1,)``.

    A demonstration ends well after so many trials if 0, 1, … failures have come by then; fewer never suffice.

    The wealth of bets against "the rate is ``rate`` or more" is ∫ (p/rate)^f ((1 − p)/(1 − rate))^s dπ(p) with π
    Jeffreys' Beta(½, ½) cut to p < rate, a mixture of likelihood ratios and so a martingale at the boundary; by Ville's
    inequality it exceeds 1/(1 − confidence) with a chance of at most 1 − confidence, whenever one stops.

    Raises:
        InputError: as `trials_to_claim`.
    """
    _check_claim(rate, confidence, failures)
    needed = -math.log(1.0 - confidence)

    def end(failed: int) -> int:
        guess = max(16, 4 * trials_to_claim(rate, confidence=confidence, failures=failed))
        return _least(lambda trials: bool(log_wealth(failed, trials - failed, rate) >= needed), failed, guess)

    return np.array([end(failed) for failed in range(failures + 1)], dtype=np.int64)


def log_wealth(failures: ArrayLike, successes: ArrayLike, rate: float) -> Array:
    """Logarithm of the wealth of `watched_claim` after so many failures and successes, elementwise."""
    f, s = np.asarray(failures, dtype=np.float64) + 0.5, np.asarray(successes, dtype=np.float64) + 0.5
    part = np.log(np.maximum(betainc(f, s, rate), np.finfo(np.float64).tiny))
    cut = math.log(float(betainc(0.5, 0.5, rate))) + float(betaln(0.5, 0.5))
    return betaln(f, s) + part - cut - (f - 0.5) * math.log(rate) - (s - 0.5) * math.log1p(-rate)


def _check_claim(rate: float, confidence: float, failures: int) -> None:
    if not 0.0 < rate < 1.0:
        raise InputError(f"A failure rate of {rate:g} cannot be claimed; give one between 0 and 1, such as 1e-3.")
    if not 0.0 < confidence < 1.0:
        raise InputError(f"A confidence of {confidence:g} is none; give one between 0 and 1, such as 0.95.")
    if failures < 0:
        raise InputError(f"{failures} failures cannot be allowed; give 0 or more.")


_HEAVY = 0.2  # share of the estimate that one draw may carry before the estimate is called fragile; our choice
_FEW = 30  # failures below which a normal interval of their mean weight is not trusted; our choice


@dataclass(frozen=True, kw_only=True)
class WeightedRate:
    """A rate from weighted draws.

    ``interval`` is that of the mean of weight × event, made on the logarithm (delta method), so that it stays positive.
    ``events`` counts the draws in which it happened, ``effective`` is Kish's effective number of them, ``largest`` the
    share of the estimate that its heaviest draw carries, ``plain`` how many plain draws would give as narrow an
    interval.
    """

    interval: Interval
    draws: int
    events: int
    effective: float
    largest: float
    plain: float

    @property
    def warning(self) -> str:
        """Why the interval is not to be trusted; empty where nothing speaks against it."""
        if self.events == 0:
            return f"It never happened in {self.draws} draws: the search did not reach it, and nothing is known."
        if self.largest > _HEAVY:
            return (
                f"One draw carries {self.largest:.0%} of the estimate: there is a region that the search has not "
                "found, and the rate may be several times higher. Search longer, or with more modes."
            )
        if self.events < _FEW:
            return f"It happened in {self.events} draws only; with fewer than {_FEW} the interval covers too rarely."
        return ""

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        return {
            "rate": float(self.interval.estimate),
            "low": float(self.interval.low),
            "high": float(self.interval.high),
            "level": self.interval.level,
            "draws": self.draws,
            "events": self.events,
            "effective_events": self.effective,
            "largest_share": self.largest,
            "plain_draws": self.plain,
            "warning": self.warning,
        }


def weighted_rate(events: ArrayLike, log_weights: ArrayLike, *, level: float = 0.95) -> WeightedRate:
    """The rate of an event under one distribution, from independent draws of another.

    Args:
        events: whether it happened in each draw, ``(n,)``.
        log_weights: logarithm of the density asked about over that drawn from, ``(n,)``.
        level: of the interval.

    Raises:
        InputError: fewer than two draws, or weights that are no numbers.
    """
    check_level(level)
    happened, logs = np.asarray(events, dtype=np.bool_), np.asarray(log_weights, dtype=np.float64)
    if len(happened) < 2 or happened.shape != logs.shape or np.isnan(logs).any():
        raise InputError(f"{happened.shape} events and {logs.shape} weights give no rate; give two draws or more.")
    values = np.where(happened, np.exp(logs), 0.0)
    n, rate = len(values), float(values.mean())
    if rate == 0.0:
        nothing = Interval.of(0.0, 0.0, 1.0, level=level, method="none")
        return WeightedRate(interval=nothing, draws=n, events=0, effective=0.0, largest=0.0, plain=0.0)
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
        largest=float(values.max() / values.sum()),
        plain=rate * (1.0 - min(rate, 1.0)) / max(error**2, np.finfo(np.float64).tiny),
    )
