"""Test and bound the mean of bounded values by betting; valid for any sample size and any bounded distribution.

After Waudby-Smith & Ramdas, "Estimating means of bounded random variables by betting", J. R. Stat. Soc. B 86 (2024). A
wealth Π (1 + λ (x − m)) that starts at 1 bets that the mean is above m (below m for negative λ). If that is false, the
wealth reaches 1/α with a chance of at most α, at any stopping time (Ville's inequality). Bets may depend on earlier
values, and so may the bounds of the next value.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.stats.interval import Interval, check_level
from twinloop.stats.two_by_two import Alternative

Array = NDArray[np.float64]
Bets = Literal["spread", "even"]
_FRACTIONS = np.geomspace(0.02, 0.98, 12)  # of the largest bet: from the best for a thousand values to nearly all
# Gauss-Legendre nodes for the mean over all fractions: exact up to 63 values, log E within 10⁻⁶ for a thousand.
_EVEN = 32
_MOST = 0.75  # of the largest bet, the limit of adaptive bets (Waudby-Smith & Ramdas 2024, appendix B.1: 1/2 or 3/4)
_NARROWEST = 1e-12
_GRID = 1000  # means that are tested for an interval


def log_e_mean(
    values: ArrayLike,
    mean: ArrayLike,
    *,
    low: ArrayLike = 0.0,
    high: ArrayLike = 1.0,
    alternative: Alternative = "two-sided",
    bets: Bets = "spread",
) -> Array:
    """Return the logarithm of the wealth after each value, ``(…, n)``, in bets against ``mean``.

    The wealth is the mean over constant fractions of the largest bet ("diversified Kelly betting"), so it does not
    depend on the order of the values. Two-sided it is the mean of both sides.

    Since every bet is constant, the expected wealth is Π (1 + λ (μᵢ − m)) ≤ (1 + λ (μ̄ − m))ⁿ for values of different
    means μᵢ: as long as their average is at most m it is at most 1. Values may therefore come from slices with
    different success rates, if the wealth is only checked after complete rounds over all slices.

    Args:
        values: ``(…, n)``.
        mean: the hypothesis, broadcast against ``(…,)``.
        low: lower bound of each value, known before the value.
        high: upper bound of each value, known before the value.
        alternative: ``greater`` bets against a mean of at most ``mean``, ``less`` against one of at least ``mean``.
        bets: ``spread`` for twelve fractions in geometric progression; ``even`` for a uniform mixture of all fractions.
            For differences of paired successes against 0, ``even`` is the e-process of wins and losses 2^(d+1) B(w+1,
            l+1) (1 − I_½(w+1, l+1)).

    Raises:
        InputError: a value outside its bounds, or no value.
    """
    x, m, below, above = _distances_to_bounds(values, mean, low, high)
    sides = {
        "greater": lambda: _mixture_wealth(x - m, below, bets),
        "less": lambda: _mixture_wealth(m - x, above, bets),
        "two-sided": lambda: (
            np.logaddexp(_mixture_wealth(x - m, below, bets), _mixture_wealth(m - x, above, bets)) - np.log(2)
        ),
    }
    return sides[alternative]()


def log_e_adaptive(
    values: ArrayLike, mean: ArrayLike, *, alpha: float, low: ArrayLike = 0.0, high: ArrayLike = 1.0
) -> Array:
    """Return the logarithm of the hedged wealth against ``mean`` after each of a fixed number of values, ``(…, n)``.

    Bets are optimized for a decision at the last value: λ = √(2 log(2/α) / (n σ̂²)), with the variance of the earlier
    values (Waudby-Smith & Ramdas 2024, section 4.2 and eq. 26), and half of the wealth on each side. Intervals are
    narrower than those of `log_e_mean` if the number of values is fixed.
    """
    x, m, below, above = _distances_to_bounds(values, mean, low, high)
    bet = _adaptive_bets(x, alpha)
    up = np.cumsum(np.log1p(np.minimum(bet, _MOST / np.maximum(below, _NARROWEST)) * (x - m)), axis=-1)
    down = np.cumsum(np.log1p(np.minimum(bet, _MOST / np.maximum(above, _NARROWEST)) * (m - x)), axis=-1)
    return np.logaddexp(up, down) - np.log(2)


def bounded_mean(
    values: ArrayLike,
    *,
    level: float = 0.95,
    low: ArrayLike = 0.0,
    high: ArrayLike = 1.0,
    within: tuple[float, float] | None = None,
) -> Interval:
    """Return a finite-sample valid interval of the mean of independent bounded values ``(n,)``, by sequential bets.

    Args:
        values: ``(n,)``.
        level: confidence level.
        low: lower bound of all values, or of each.
        high: upper bound of all values, or of each.
        within: known limits of the mean; by default the bounds.

    Raises:
        InputError: a value outside its bounds, or no value.
    """
    check_level(level)
    x = check_bounded(values, low, high)
    ends = within or (float(np.min(low)), float(np.max(high)))
    grid = np.linspace(*ends, _GRID + 2)[1:-1]
    wealth = log_e_adaptive(x[None], grid, alpha=1 - level, low=low, high=high).max(axis=-1)
    kept = np.flatnonzero(wealth < -np.log(1 - level))
    centre = float(np.clip(x.mean(), *ends))
    if not len(kept):  # contradictory values, which have a chance of at most α
        kept = np.array([int(np.argmin(wealth))])
    step = grid[1] - grid[0]
    return Interval.of(
        centre,
        max(grid[kept[0]] - step, ends[0]),
        min(grid[kept[-1]] + step, ends[1]),
        level=level,
        method="betting, finite-sample valid",
    )


def check_bounded(values: ArrayLike, low: ArrayLike, high: ArrayLike) -> Array:
    """Return the values as an array after checking their bounds.

    Raises:
        InputError: a value is outside its bounds, or there is none.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.ndim < 1 or x.shape[-1] < 1:
        raise InputError("There are no values. Give at least one trial.")
    outside = ~((x >= np.asarray(low) - 1e-9) & (x <= np.asarray(high) + 1e-9))
    if outside.any():
        at = np.unravel_index(int(np.argmax(outside)), outside.shape)
        raise InputError(
            f"Value {x[at]:g} (number {int(at[-1])}) is outside its bounds {np.min(low):g} to {np.max(high):g}, which "
            "the guarantee requires. Divide scores by the full score."
        )
    return x


def _distances_to_bounds(
    values: ArrayLike, mean: ArrayLike, low: ArrayLike, high: ArrayLike
) -> tuple[Array, Array, Array, Array]:
    """Return the checked values, the hypothesis, and its distances from both bounds."""
    x, m = check_bounded(values, low, high), np.asarray(mean, dtype=np.float64)[..., None]
    return x, m, m - np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64) - m


def _mixture_wealth(gain: Array, room: ArrayLike, bets: Bets) -> Array:
    """Return the mean wealth over constant fractions of the largest bet, 1 / ``room``; gains are at least −room."""
    share = gain / np.maximum(room, _NARROWEST)
    total = np.full(share.shape, -np.inf)
    for fraction, weight in zip(
        *_bet_fractions(bets), strict=True
    ):  # a loop, because fractions are few and the arrays large
        np.logaddexp(total, np.cumsum(np.log1p(fraction * share), axis=-1) + np.log(weight), out=total)
    return total


def _bet_fractions(bets: Bets) -> tuple[Array, Array]:
    """Return fractions of the largest bet and the share of the wealth for each."""
    if bets == "spread":
        return _FRACTIONS, np.full(len(_FRACTIONS), 1 / len(_FRACTIONS))
    nodes, weights = _gauss_legendre_nodes(_EVEN)
    return (nodes + 1) / 2, weights / weights.sum()


@cache  # every test of a gate needs them, and they take longer than the test
def _gauss_legendre_nodes(count: int) -> tuple[Array, Array]:
    return np.polynomial.legendre.leggauss(count)


def _adaptive_bets(x: Array, alpha: float) -> Array:
    """Return λ for each value from the variance of the earlier ones, which starts as if ¼ had been observed once."""
    n = x.shape[-1]
    count = np.arange(1, n + 1)
    mean = (0.5 + np.cumsum(x, axis=-1)) / (count + 1)
    variance = (0.25 + np.cumsum((x - mean) ** 2, axis=-1)) / (count + 1)
    before = np.concatenate([np.full((*x.shape[:-1], 1), 0.25), variance[..., :-1]], axis=-1)
    return np.sqrt(2 * np.log(2 / alpha) / (n * before))
