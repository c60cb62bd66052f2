"""Test and bound the mean of bounded values by betting; valid for any sample size and any bounded distribution.

The method is that of Waudby-Smith & Ramdas, "Estimating means of bounded random variables by betting", J. R. Stat. Soc.
B 86 (2024). The test statistic is called the wealth. To test the hypothesis that the mean is at most m, the wealth
starts at 1 and is multiplied by 1 + λ (x − m) for each value x. The factor λ ≥ 0 is called the bet. (λ < 0 tests the
hypothesis that the mean is at least m.) If the hypothesis is true, the wealth ever reaches 1/α with a chance of at most
α, so the test may be evaluated after every value (Ville's inequality). A large wealth is therefore evidence against the
hypothesis. Such a process is called an e-process, hence ``log_e`` for the logarithm of a wealth. The bet on a value,
and the bounds of the value, may depend on all earlier values.
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
_FRACTIONS = np.geomspace(0.02, 0.98, 12)  # of the largest bet; the smallest is the best for 1000 values
# Gauss-Legendre nodes for the mean over all fractions: exact up to 63 values, log E within 10⁻⁶ for a thousand.
_EVEN = 32
_MOST = 0.75  # of the largest bet, the limit of adaptive bets (Waudby-Smith & Ramdas 2024, appendix B.1: 1/2 or 3/4)
_NARROWEST = 1e-12
_GRID = 1000  # number of hypothetical means that are tested for an interval


def log_e_mean(
    values: ArrayLike,
    mean: ArrayLike,
    *,
    low: ArrayLike = 0.0,
    high: ArrayLike = 1.0,
    alternative: Alternative = "two-sided",
    bets: Bets = "spread",
) -> Array:
    """Return the logarithm of the wealth after each value, for a test of the hypothesis that the mean is ``mean``.

    The wealth is the test statistic (see the module). With one bet λ, each value x multiplies it by 1 + λ (x − m).

    The test is valid after every value. For example, the hypothesis is rejected at level 5 % as soon as the wealth
    reaches 20. The wealth is the average over several constant bets, each a fraction of the largest possible bet
    ("diversified Kelly betting"). It therefore does not depend on the order of the values. For the two-sided
    alternative it is the average of both one-sided wealths.

    Values may come from several conditions with different means μᵢ, for example different success rates, if the wealth
    is only checked when every condition has equally many values. The reason is that every bet is constant: the expected
    wealth is Π (1 + λ (μᵢ − m)) ≤ (1 + λ (μ̄ − m))ⁿ, which is at most 1 as long as the average mean μ̄ is at most m.

    Args:
        values: Values, shape ``(…, n)``.
        mean: Hypothetical mean m, broadcast against the shape ``(…,)``.
        low: Lower bound of each value, known before the value.
        high: Upper bound of each value, known before the value.
        alternative: ``greater`` to reject that the mean is at most ``mean``, ``less`` to reject that it is at least
            ``mean``, ``two-sided`` for either.
        bets: ``spread`` for twelve fractions in geometric progression; ``even`` for a uniform mixture of all fractions,
            which is best for differences of paired successes (see `stats.sequential`).

    Returns:
        Shape ``(…, n)``. The hypothesis is rejected at level α when the wealth reaches 1/α.

    Raises:
        InputError: If a value is outside its bounds, or there is no value.
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
    """Return the logarithm of a test statistic (wealth) that grows if the true mean differs from ``mean``.

    The hypothesis that the true mean is ``mean`` is rejected at level α when the wealth reaches 1/α.

    Use it for an interval from a number n of values that is fixed in advance, because the interval is narrower than
    with `log_e_mean`. For each value x, the one-sided wealth is multiplied by 1 + λ (x − mean), or by 1 − λ (x − mean)
    for the other side. The test is valid after every value, but the factor λ (bet) is optimized for the last one: λ =
    √(2 log(2/α) / (n σ̂²)), with the variance σ̂² of the earlier values (Waudby-Smith & Ramdas 2024, section 4.2 and
    eq. 26). The result is the average of both one-sided wealths ("hedged").

    Args:
        values: Values, shape ``(…, n)``.
        mean: Hypothetical mean, broadcast against the shape ``(…,)``.
        alpha: Level α of the test for which λ is optimized.
        low: Lower bound of each value.
        high: Upper bound of each value.

    Returns:
        Logarithm of the wealth after each value, shape ``(…, n)``.
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
    """Return a betting confidence interval of the mean of independent bounded values, valid for any number of values.

    Args:
        values: Values, shape ``(n,)``.
        level: Confidence level.
        low: Lower bound of all values, or of each value.
        high: Upper bound of all values, or of each value.
        within: Known limits of the mean, if they are narrower than the bounds of the values; by default these bounds.

    Raises:
        InputError: If a value is outside its bounds, or there is no value.
    """
    check_level(level)
    x = check_bounded(values, low, high)
    ends = within or (float(np.min(low)), float(np.max(high)))
    grid = np.linspace(*ends, _GRID + 2)[1:-1]
    wealth = log_e_adaptive(x[None], grid, alpha=1 - level, low=low, high=high).max(axis=-1)
    accepted = np.flatnonzero(wealth < -np.log(1 - level))
    centre = float(np.clip(x.mean(), *ends))
    if not len(accepted):  # contradictory values, which have a chance of at most α
        accepted = np.array([int(np.argmin(wealth))])
    step = grid[1] - grid[0]
    return Interval.of(
        centre,
        max(grid[accepted[0]] - step, ends[0]),
        min(grid[accepted[-1]] + step, ends[1]),
        level=level,
        method="betting, finite-sample valid",
    )


def check_bounded(values: ArrayLike, low: ArrayLike, high: ArrayLike) -> Array:
    """Return the values as an array after checking that they are within their bounds.

    Raises:
        InputError: If a value is outside its bounds, or there is no value.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.ndim < 1 or x.shape[-1] < 1:
        raise InputError("There are no values. Give at least one trial.")
    outside = ~((x >= np.asarray(low) - 1e-9) & (x <= np.asarray(high) + 1e-9))
    if outside.any():
        at = np.unravel_index(int(np.argmax(outside)), outside.shape)
        raise InputError(
            f"Value {x[at]:g} (number {int(at[-1])}) is outside its bounds {np.min(low):g} to {np.max(high):g}. The "
            "test is only valid within these bounds. Divide scores by the full score."
        )
    return x


def _distances_to_bounds(
    values: ArrayLike, mean: ArrayLike, low: ArrayLike, high: ArrayLike
) -> tuple[Array, Array, Array, Array]:
    """Check the values, and return the distances of the hypothetical mean from their bounds.

    Args:
        values: Values, shape ``(…, n)``.
        mean: Hypothetical mean, shape ``(…,)``.
        low: Lower bound of each value.
        high: Upper bound of each value.

    Returns:
        The values, the mean with a trailing axis, mean − ``low``, and ``high`` − mean; they broadcast to ``(…, n)``.
    """
    x, m = check_bounded(values, low, high), np.asarray(mean, dtype=np.float64)[..., None]
    return x, m, m - np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64) - m


def _mixture_wealth(deviation: Array, distance: ArrayLike, bets: Bets) -> Array:
    """Return the logarithm of the wealth (statistic of the betting test), averaged over several constant bets.

    The wealth of a bet λ is the product of 1 + λ · ``deviation`` over the values so far.

    Args:
        deviation: Value minus hypothetical mean to test against larger means, or the negative of it to test against
            smaller means, shape ``(…, n)``.
        distance: Distance of the hypothetical mean from the lower bound of the values, or from the upper bound to test
            against smaller means. The largest possible bet is 1 / ``distance``.
        bets: Set of bets, as fractions of the largest: ``spread`` or ``even``, see `log_e_mean`.
    """
    share = deviation / np.maximum(distance, _NARROWEST)
    total = np.full(share.shape, -np.inf)
    for fraction, weight in zip(
        *_bet_fractions(bets), strict=True
    ):  # a loop, because fractions are few and the arrays large
        np.logaddexp(total, np.cumsum(np.log1p(fraction * share), axis=-1) + np.log(weight), out=total)
    return total


def _bet_fractions(bets: Bets) -> tuple[Array, Array]:
    """Return the constant bets of a mixture, as fractions of the largest possible bet, and the weight of each.

    With the bet λ, the test statistic (wealth) is multiplied by 1 + λ (value − mean) for each value. The wealth of the
    mixture is the weighted mean of the wealths of all bets.

    Args:
        bets: ``spread`` for twelve fractions in geometric progression with equal weights. ``even`` for a uniform
            mixture of all fractions, approximated by Gauss-Legendre quadrature.
    """
    if bets == "spread":
        return _FRACTIONS, np.full(len(_FRACTIONS), 1 / len(_FRACTIONS))
    nodes, weights = _gauss_legendre_nodes(_EVEN)
    return (nodes + 1) / 2, weights / weights.sum()


@cache  # every test of a gate needs them, and they take longer than the test
def _gauss_legendre_nodes(count: int) -> tuple[Array, Array]:
    return np.polynomial.legendre.leggauss(count)


def _adaptive_bets(x: Array, alpha: float) -> Array:
    """Return the bet λ (factor of the betting test) for each value, computed from the variance of the earlier values.

    The variance is computed as if one further earlier value had deviated from the mean by ½, the largest standard
    deviation in [0, 1].

    Args:
        x: Values in [0, 1], shape ``(…, n)``.
        alpha: Level α for which the bets are optimized.
    """
    n = x.shape[-1]
    count = np.arange(1, n + 1)
    mean = (0.5 + np.cumsum(x, axis=-1)) / (count + 1)
    variance = (0.25 + np.cumsum((x - mean) ** 2, axis=-1)) / (count + 1)
    before = np.concatenate([np.full((*x.shape[:-1], 1), 0.25), variance[..., :-1]], axis=-1)
    return np.sqrt(2 * np.log(2 / alpha) / (n * before))
