"""Intervals of a success rate."""

from __future__ import annotations

import numpy as np
from scipy.special import betaincinv, ndtri

from twinloop.core.errors import InputError
from twinloop.stats.interval import Interval, check_level


def wilson(successes: int, trials: int, *, level: float = 0.95) -> Interval:
    """Wilson's score interval (J. Am. Stat. Assoc. 22, 1927): mean coverage near nominal, also for few trials."""
    _check(successes, trials, level)
    z = float(ndtri((1 + level) / 2))
    rate = successes / trials
    denominator = 1 + z**2 / trials
    centre = (rate + z**2 / (2 * trials)) / denominator
    half = z / denominator * np.sqrt(rate * (1 - rate) / trials + z**2 / (4 * trials**2))
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == trials else centre + half
    return Interval(estimate=np.array(rate), low=np.array(low), high=np.array(high), level=level, method="Wilson score")


def clopper_pearson(successes: int, trials: int, *, level: float = 0.95) -> Interval:
    """Clopper and Pearson's exact interval (Biometrika 26, 1934): coverage never below nominal."""
    _check(successes, trials, level)
    tail = (1 - level) / 2
    low = 0.0 if successes == 0 else betaincinv(successes, trials - successes + 1, tail)
    high = 1.0 if successes == trials else betaincinv(successes + 1, trials - successes, 1 - tail)
    rate = np.array(successes / trials)
    return Interval(estimate=rate, low=np.array(low), high=np.array(high), level=level, method="Clopper–Pearson exact")


def _check(successes: int, trials: int, level: float) -> None:
    check_level(level)
    if trials < 1 or not 0 <= successes <= trials:
        raise InputError(
            f"{successes} successes of {trials} trials is no success rate; give 0 ≤ successes ≤ trials ≥ 1."
        )
