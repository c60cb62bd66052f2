"""Compare two success rates from independent trials: exact tests (Barnard, Fisher) and intervals of the difference.

Differences are p_a − p_b. An outcome is a 2 × 2 table of successes and failures of both arms. The exact p-value is the
probability of all outcomes that are at least as extreme as the observed one. The score statistic (observed minus
hypothetical difference, divided by its standard deviation under the hypothesis) defines which outcomes are more
extreme. It is that of Farrington and Manning ("Test statistics and sample size formulae for comparative binomial trials
with null hypothesis of non-zero risk difference or non-unity relative risk", Statistics in Medicine 9, 1990). The
probability depends on the unknown rates, so the largest one over all pairs of rates with the hypothetical difference is
taken. The test is called unconditional, because it does not fix the total number of successes as Fisher's test does
(Chan & Zhang, "Test-based exact confidence intervals for the difference of two binomial proportions", Biometrics 55,
1999). At a difference of zero this is Barnard's test with the pooled statistic (Biometrika 34, 1947; Suissa & Shuster
1985), as in ``scipy.stats.barnard_exact``. SciPy searches the unknown rate for every table separately; here all tables
of two sample sizes are computed at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import scipy  # its parts load when they are used
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from twinloop.core.errors import InputError
from twinloop.stats.interval import Interval, check_level
from twinloop.stats.proportion import clopper_pearson, wilson

Array = NDArray[np.float64]
Alternative = Literal["two-sided", "greater", "less"]
_TIE = 1e-9  # statistics that differ by less are equal up to rounding
_FINEST = 32  # points of the unknown rate per √trials: the peaks of a tail are about 1 / √trials wide
_CHUNK = 2_000_000  # largest number of probabilities that are held at once


@dataclass(frozen=True, kw_only=True)
class ContingencyTable:
    """Successes and trials of two arms (policies) a and b.

    Raises:
        InputError: If an arm has no trials, or more successes than trials.
    """

    successes_a: int
    trials_a: int
    successes_b: int
    trials_b: int

    def __post_init__(self) -> None:
        for arm, won, tried in (("a", self.successes_a, self.trials_a), ("b", self.successes_b, self.trials_b)):
            if tried < 1 or not 0 <= won <= tried:
                raise InputError(
                    f"{won} successes of {tried} trials in arm {arm} is not a success rate; "
                    "give 0 ≤ successes ≤ trials ≥ 1."
                )

    @property
    def difference(self) -> float:
        """Observed p_a − p_b, the difference of the success rates."""
        return self.successes_a / self.trials_a - self.successes_b / self.trials_b

    def swap_arms(self) -> ContingencyTable:
        """Return the table with arms a and b exchanged."""
        return ContingencyTable(
            successes_a=self.successes_b,
            trials_a=self.trials_b,
            successes_b=self.successes_a,
            trials_b=self.trials_a,
        )


def constrained_rates(
    p_a: ArrayLike, p_b: ArrayLike, difference: ArrayLike, *, weight_a: float = 1.0, weight_b: float = 1.0
) -> tuple[Array, Array]:
    """Return the two success rates that differ by ``difference`` and have the largest likelihood, elementwise.

    They minimize weight_a KL(p_a ‖ x) + weight_b KL(p_b ‖ x − difference) over x, with the Kullback-Leibler divergence
    KL; x is a root of a cubic polynomial (Farrington & Manning 1990, appendix). The test statistic of `sequential` uses
    the same rates.

    Args:
        p_a: Observed rate of arm a.
        p_b: Observed rate of arm b.
        difference: Required difference, first minus second rate.
        weight_a: Number of trials of arm a.
        weight_b: Number of trials of arm b.
    """
    first, second, shift = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (p_a, p_b, difference)))
    ratio = weight_b / weight_a
    if not shift.any():
        pooled = (first + ratio * second) / (1 + ratio)
        return pooled, pooled.copy()
    a = 1 + ratio
    b = -(1 + ratio + first + ratio * second + shift * (ratio + 2))
    c = shift**2 + shift * (2 * first + ratio + 1) + first + ratio * second
    d = -first * shift * (1 + shift)
    v = b**3 / (27 * a**3) - b * c / (6 * a**2) + d / (2 * a)
    u = np.where(v < 0, -1.0, 1.0) * np.sqrt(np.maximum(b**2 / (9 * a**2) - c / (3 * a), 0.0))
    cubed = np.where(u == 0, 1.0, u**3)
    angle = (np.pi + np.arccos(np.clip(v / cubed, -1.0, 1.0))) / 3
    rate = np.clip(2 * u * np.cos(angle) - b / (3 * a), np.maximum(0.0, shift), np.minimum(1.0, 1 + shift))
    return rate, np.clip(rate - shift, 0.0, 1.0)


def score_statistic(
    successes_a: ArrayLike, trials_a: int, successes_b: ArrayLike, trials_b: int, *, difference: float = 0.0
) -> Array:
    """Return the Farrington-Manning score statistic z of p_a − p_b against a hypothetical difference, elementwise.

    It is approximately standard normal under the hypothesis, and 0 if the observed difference equals the hypothetical
    one.

    Args:
        successes_a: Successes of arm a.
        trials_a: Trials of arm a.
        successes_b: Successes of arm b.
        trials_b: Trials of arm b.
        difference: Hypothetical difference.
    """
    p_a, p_b = np.asarray(successes_a) / trials_a, np.asarray(successes_b) / trials_b
    x, y = constrained_rates(p_a, p_b, difference, weight_a=trials_a, weight_b=trials_b)
    variance = x * (1 - x) / trials_a + y * (1 - y) / trials_b
    off = np.asarray(p_a - p_b - difference)
    off = np.where(np.abs(off) < _TIE, 0.0, off)
    infinite = np.copysign(np.where(off == 0, 0.0, np.inf), off)
    return np.where(variance > _TIE**2, off / np.sqrt(np.maximum(variance, _TIE**2)), infinite)


def exact_p_value(table: ContingencyTable, *, difference: float = 0.0, alternative: Alternative = "two-sided") -> float:
    """Return the exact p-value of the hypothesis p_a − p_b = ``difference``, by the test that the module describes.

    For the alternative ``greater`` the hypothesis is p_a − p_b ≤ ``difference``, for ``less`` p_a − p_b ≥
    ``difference``. The two-sided p-value counts outcomes whose statistic is at least as far from zero on either side,
    as in SciPy. If all trials succeed, or all fail, p is 1, because the trials contain no information about a
    difference.

    Raises:
        InputError: If the difference is outside (−1, 1).
    """
    check_difference(difference)
    key = score_order(table.trials_a, table.trials_b, difference, alternative)
    extreme = key >= key[table.successes_a, table.successes_b] - _TIE
    return largest_tail(extreme, difference)


def barnard(table: ContingencyTable, *, alternative: Alternative = "two-sided") -> float:
    """Return the p-value of Barnard's unconditional exact test of p_a = p_b."""
    return exact_p_value(table, alternative=alternative)


def fisher(table: ContingencyTable, *, alternative: Alternative = "two-sided") -> float:
    """Return the p-value of Fisher's conditional exact test of p_a = p_b.

    The two-sided p-value sums the probabilities of all tables that are at most as probable as the observed one.
    """
    rows = [
        [table.successes_a, table.trials_a - table.successes_a],
        [table.successes_b, table.trials_b - table.successes_b],
    ]
    return float(scipy.stats.fisher_exact(rows, alternative=alternative).pvalue)  # pyright: ignore[reportAttributeAccessIssue]


@lru_cache(maxsize=64)
def exact_p_values(
    trials_a: int, trials_b: int, *, difference: float = 0.0, alternative: Alternative = "two-sided"
) -> Array:
    """Return `exact_p_value` of every possible outcome of two arms, as a read-only array.

    Returns:
        Shape ``(trials_a + 1, trials_b + 1)``, indexed by the successes of a and of b.
    """
    check_difference(difference)
    key = np.round(score_order(trials_a, trials_b, difference, alternative), 9)
    _, group = np.unique(-key.ravel(), return_inverse=True)  # group 0 is the most extreme
    order = np.argsort(group, kind="stable")
    begins = np.flatnonzero(np.diff(group[order], prepend=-1))
    x, chance_a, chance_b = _grid(trials_a, trials_b, difference)
    largest = np.zeros(len(begins))
    rows = max(1, _CHUNK // key.size)
    for at in range(0, len(x), rows):
        joint = chance_a[at : at + rows, :, None] * chance_b[at : at + rows, None, :]
        sums = np.add.reduceat(joint.reshape(len(joint), -1)[:, order], begins, axis=1)
        np.maximum(largest, np.cumsum(sums, axis=1).max(axis=0), out=largest)
    values = np.minimum(largest, 1.0)[group].reshape(key.shape)
    values.setflags(write=False)
    return values


@lru_cache(maxsize=64)
def fisher_p_values(trials_a: int, trials_b: int) -> Array:
    """Return Fisher's two-sided p-value of every possible outcome of two arms, as a read-only array.

    Returns:
        Shape ``(trials_a + 1, trials_b + 1)``, indexed by the successes of a and of b.
    """
    values = np.ones((trials_a + 1, trials_b + 1))
    for total in range(trials_a + trials_b + 1):
        won_a = np.arange(max(0, total - trials_b), min(trials_a, total) + 1)
        chance = scipy.stats.hypergeom.pmf(won_a, trials_a + trials_b, total, trials_a)
        at_most = chance[None, :] <= chance[:, None] * (1 + 1e-7)  # scipy's tolerance for ties
        values[won_a, total - won_a] = np.minimum(np.where(at_most, chance[None, :], 0.0).sum(axis=1), 1.0)
    values.setflags(write=False)
    return values


def table_chances(trials_a: int, trials_b: int, p_a: float, p_b: float) -> Array:
    """Return the probability of every possible outcome of two arms with success rates ``p_a`` and ``p_b``.

    Returns:
        Shape ``(trials_a + 1, trials_b + 1)``, indexed by the successes of a and of b.
    """
    return np.outer(_pmf(trials_a, np.array([p_a]))[0], _pmf(trials_b, np.array([p_b]))[0])


def largest_tail(extreme: NDArray[np.bool_], difference: float, *, refine: bool = True) -> float:
    """Return the largest probability of a set of outcomes, over all pairs of success rates with the same difference.

    Args:
        extreme: Whether each outcome is in the set, shape ``(trials_a + 1, trials_b + 1)``, by successes of a and of b.
        difference: Difference p_a − p_b.
        refine: Whether to refine the grid of rates twice around the maximum. If false, the result is up to 0.1 % too
            small.
    """
    trials_a, trials_b = extreme.shape[0] - 1, extreme.shape[1] - 1
    member = extreme.astype(np.float64)
    x, chance_a, chance_b = _grid(trials_a, trials_b, difference)
    tail = np.einsum("gi,gi->g", chance_a @ member, chance_b)
    best = float(tail.max())
    for _ in range(2 if refine else 0):
        top = int(np.argmax(tail))
        x = np.linspace(x[max(top - 1, 0)], x[min(top + 1, len(x) - 1)], 17)
        near = _pmf(trials_a, x) @ member
        tail = np.einsum("gi,gi->g", near, _pmf(trials_b, np.clip(x - difference, 0.0, 1.0)))
        best = max(best, float(tail.max()))
    return min(best, 1.0)


def check_difference(difference: float) -> None:
    """Check that a difference of rates is in (−1, 1).

    Raises:
        InputError: If it is not, for example because it is a percentage.
    """
    if not -1.0 < difference < 1.0:
        raise InputError(
            f"A difference of two rates must be between -1 and 1, not {difference:g}. Write 10 points as 0.1."
        )


def score_order(trials_a: int, trials_b: int, difference: float, alternative: Alternative) -> Array:
    """Return a test statistic for every possible outcome of two arms; larger is more evidence against the hypothesis.

    Args:
        trials_a: Trials of arm a.
        trials_b: Trials of arm b.
        difference: Hypothetical difference p_a − p_b.
        alternative: ``greater``, ``less`` or ``two-sided``.

    Returns:
        Shape ``(trials_a + 1, trials_b + 1)``, indexed by the successes of a and of b.
    """
    won_a, won_b = np.arange(trials_a + 1)[:, None], np.arange(trials_b + 1)[None, :]
    z = score_statistic(won_a, trials_a, won_b, trials_b, difference=difference)
    return {"greater": z, "less": -z}[alternative] if alternative != "two-sided" else np.abs(z)


@lru_cache(maxsize=8)
def _grid(trials_a: int, trials_b: int, difference: float) -> tuple[Array, Array, Array]:
    """Return a grid of success rates of arm a, and the probabilities of both arms' numbers of successes at these rates.

    Args:
        trials_a: Trials of arm a.
        trials_b: Trials of arm b.
        difference: Difference p_a − p_b, which determines the rates of arm b.

    Returns:
        Shapes ``(nrate,)``, ``(nrate, trials_a + 1)`` and ``(nrate, trials_b + 1)``.
    """
    x, y = _rates(difference, trials_a + trials_b)
    return x, _pmf(trials_a, x), _pmf(trials_b, y)


def _rates(difference: float, trials: int) -> tuple[Array, Array]:
    """Return a grid of pairs of success rates with the given difference.

    The grid is evenly spaced in the arcsine of the square root of the rate. On this scale, the probability of an
    outcome has peaks of equal width.

    Args:
        difference: First minus second rate.
        trials: Number of trials; more trials have narrower peaks and get a finer grid.
    """
    count = int(_FINEST * np.sqrt(trials)) + 1
    low, high = max(0.0, difference), min(1.0, 1.0 + difference)
    x = low + (high - low) * np.sin(np.linspace(0, np.pi / 2, count)) ** 2
    return x, np.clip(x - difference, 0.0, 1.0)


def _pmf(trials: int, rates: Array) -> Array:
    """Return the binomial probabilities of each number of successes at some rates, shape ``(nrate, trials + 1)``."""
    return np.asarray(scipy.stats.binom.pmf(np.arange(trials + 1), trials, rates[:, None]), dtype=np.float64)


DifferenceMethod = Literal["newcombe", "agresti-caffo", "clopper-pearson", "chan-zhang"]
_SCAN = 25  # differences at which the exact tail is evaluated before the first crossing is bisected
_HALVINGS = 15  # bisection steps, to 3e-6 of the difference


def difference_interval(
    table: ContingencyTable, *, level: float = 0.95, method: DifferenceMethod = "newcombe"
) -> Interval:
    """Return a confidence interval of p_a − p_b, the difference of two success rates.

    Args:
        table: Successes and trials of both arms.
        level: Confidence level.
        method: ``newcombe`` is recommended: the hybrid of two Wilson intervals (method 10; Statistics in Medicine 17,
            1998), with coverage near nominal on average. ``agresti-caffo``, two trials added to each arm (The American
            Statistician 54, 2000): similar, with less arithmetic. ``chan-zhang`` guarantees that coverage is never
            below nominal: the inversion of two exact one-sided score tests (Biometrics 55, 1999). ``clopper-pearson``,
            the difference of two exact intervals with confidence level √``level`` each: never below nominal, and the
            widest.
    """
    check_level(level)
    methods = {
        "newcombe": _newcombe,
        "agresti-caffo": _agresti_caffo,
        "clopper-pearson": _clopper_pearson,
        "chan-zhang": _chan_zhang,
    }
    low, high, method_name = methods[method](table, level)
    return Interval.of(table.difference, low, high, level=level, method=method_name)


def _newcombe(table: ContingencyTable, level: float) -> tuple[float, float, str]:
    a = wilson(table.successes_a, table.trials_a, level=level)
    b = wilson(table.successes_b, table.trials_b, level=level)
    down = np.hypot(a.estimate - a.low, b.high - b.estimate)
    up = np.hypot(a.high - a.estimate, b.estimate - b.low)
    return table.difference - float(down), table.difference + float(up), "Newcombe hybrid score"


def _agresti_caffo(table: ContingencyTable, level: float) -> tuple[float, float, str]:
    z = float(ndtri((1 + level) / 2))
    n_a, n_b = table.trials_a + 2, table.trials_b + 2
    p_a, p_b = (table.successes_a + 1) / n_a, (table.successes_b + 1) / n_b
    half = z * float(np.sqrt(p_a * (1 - p_a) / n_a + p_b * (1 - p_b) / n_b))
    return max(p_a - p_b - half, -1.0), min(p_a - p_b + half, 1.0), "Agresti–Caffo"


def _clopper_pearson(table: ContingencyTable, level: float) -> tuple[float, float, str]:
    a = clopper_pearson(table.successes_a, table.trials_a, level=level**0.5)
    b = clopper_pearson(table.successes_b, table.trials_b, level=level**0.5)
    return float(a.low - b.high), float(a.high - b.low), "two Clopper–Pearson intervals"


def _chan_zhang(table: ContingencyTable, level: float) -> tuple[float, float, str]:
    tail = (1 - level) / 2
    low, high = _exact_lower_limit(table, tail), -_exact_lower_limit(table.swap_arms(), tail)
    return low, high, "Chan–Zhang exact unconditional"


def _exact_lower_limit(table: ContingencyTable, tail: float) -> float:
    """Return the exact lower confidence limit of p_a − p_b.

    It is the smallest difference δ for which the hypothesis p_a − p_b ≤ δ is not rejected.

    Args:
        table: Successes and trials of both arms.
        tail: Level of the one-sided test.
    """
    if table.difference <= -1 + _TIE:
        return -1.0
    scan = np.linspace(-1.0, table.difference, _SCAN)
    rejected = -1.0
    for shift in scan[1:]:
        if _tail_at(table, float(shift)) > tail:
            break
        rejected = float(shift)
    else:
        return table.difference
    not_rejected = float(shift)
    for _ in range(_HALVINGS):
        middle = (rejected + not_rejected) / 2
        if _tail_at(table, middle) > tail:
            not_rejected = middle
        else:
            rejected = middle
    return rejected


def _tail_at(table: ContingencyTable, difference: float) -> float:
    """Return the exact p-value of the hypothesis p_a − p_b ≤ ``difference`` for the success rates of arms a and b.

    It is 1 if ``difference`` is 1 or more, because the hypothesis is then always true.
    """
    return 1.0 if difference >= 1.0 else exact_p_value(table, difference=difference, alternative="greater")
