"""Compare two success rates from independent trials: exact tests (Barnard, Fisher) and intervals of the difference.

Differences are p_a − p_b. An unconditional test orders all tables by the score statistic of Farrington and Manning
("Test statistics and sample size formulae for comparative binomial trials with null hypothesis of non-zero risk
difference or non-unity relative risk", Statistics in Medicine 9, 1990) and takes the largest tail probability over all
pairs of rates with that difference (Chan & Zhang, "Test-based exact confidence intervals for the difference of two
binomial proportions", Biometrics 55, 1999). At a difference of zero this is Barnard's test with the pooled statistic
(Biometrika 34, 1947; Suissa & Shuster 1985), as in ``scipy.stats.barnard_exact``. SciPy searches the unknown rate for
every table separately; here all tables of two sample sizes are computed at once.
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
_CHUNK = 2_000_000  # numbers held at once while tails are summed


@dataclass(frozen=True, kw_only=True)
class ContingencyTable:
    """Successes of two arms, ``successes_a`` of ``trials_a`` and ``successes_b`` of ``trials_b``.

    Raises:
        InputError: an arm without trials, or more successes than trials.
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
        """Observed p_a − p_b."""
        return self.successes_a / self.trials_a - self.successes_b / self.trials_b

    def swap_arms(self) -> ContingencyTable:
        """Return the table with the arms exchanged."""
        return ContingencyTable(
            successes_a=self.successes_b,
            trials_a=self.trials_b,
            successes_b=self.successes_a,
            trials_b=self.trials_a,
        )


def constrained_rates(
    p_a: ArrayLike, p_b: ArrayLike, difference: ArrayLike, *, weight_a: float = 1.0, weight_b: float = 1.0
) -> tuple[Array, Array]:
    """Return the rates with p_a − p_b = ``difference`` of maximum likelihood given ``p_a`` and ``p_b``, elementwise.

    They minimize weight_a KL(p_a ‖ x) + weight_b KL(p_b ‖ x − difference), a root of a cubic (Farrington & Manning
    1990, appendix): maximum likelihood under the constraint, and also the projection of a bet on a hypothesis.
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
    found = np.clip(2 * u * np.cos(angle) - b / (3 * a), np.maximum(0.0, shift), np.minimum(1.0, 1 + shift))
    return found, np.clip(found - shift, 0.0, 1.0)


def score_statistic(
    successes_a: ArrayLike, trials_a: int, successes_b: ArrayLike, trials_b: int, *, difference: float = 0.0
) -> Array:
    """Return the Farrington-Manning z of p_a − p_b against ``difference``, elementwise over counts; 0 at equality."""
    p_a, p_b = np.asarray(successes_a) / trials_a, np.asarray(successes_b) / trials_b
    x, y = constrained_rates(p_a, p_b, difference, weight_a=trials_a, weight_b=trials_b)
    variance = x * (1 - x) / trials_a + y * (1 - y) / trials_b
    off = np.asarray(p_a - p_b - difference)
    off = np.where(np.abs(off) < _TIE, 0.0, off)
    infinite = np.copysign(np.where(off == 0, 0.0, np.inf), off)
    return np.where(variance > _TIE**2, off / np.sqrt(np.maximum(variance, _TIE**2)), infinite)


def exact_p_value(table: ContingencyTable, *, difference: float = 0.0, alternative: Alternative = "two-sided") -> float:
    """Return the p-value of p_a − p_b = ``difference`` (for ``greater`` of ≤, for ``less`` of ≥).

    Two-sided it counts tables whose statistic is at least as far from zero on either side, as in SciPy. A table of
    successes only, or failures only, has p = 1: it contains no information about a difference.

    Raises:
        InputError: a difference outside (−1, 1).
    """
    check_difference(difference)
    key = score_order(table.trials_a, table.trials_b, difference, alternative)
    extreme = key >= key[table.successes_a, table.successes_b] - _TIE
    return largest_tail(extreme, difference)


def barnard(table: ContingencyTable, *, alternative: Alternative = "two-sided") -> float:
    """Return Barnard's unconditional exact p-value of p_a = p_b."""
    return exact_p_value(table, alternative=alternative)


def fisher(table: ContingencyTable, *, alternative: Alternative = "two-sided") -> float:
    """Return Fisher's conditional exact p-value of p_a = p_b; two-sided it sums tables that are at most as probable."""
    rows = [
        [table.successes_a, table.trials_a - table.successes_a],
        [table.successes_b, table.trials_b - table.successes_b],
    ]
    return float(scipy.stats.fisher_exact(rows, alternative=alternative).pvalue)  # pyright: ignore[reportAttributeAccessIssue]


@lru_cache(maxsize=64)
def exact_p_values(
    trials_a: int, trials_b: int, *, difference: float = 0.0, alternative: Alternative = "two-sided"
) -> Array:
    """Return `exact_p_value` of every table, ``(trials_a + 1, trials_b + 1)`` by successes; read-only."""
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
    """Return Fisher's two-sided p-value of every table, ``(trials_a + 1, trials_b + 1)`` by successes; read-only."""
    values = np.ones((trials_a + 1, trials_b + 1))
    for total in range(trials_a + trials_b + 1):
        won_a = np.arange(max(0, total - trials_b), min(trials_a, total) + 1)
        chance = scipy.stats.hypergeom.pmf(won_a, trials_a + trials_b, total, trials_a)
        at_most = chance[None, :] <= chance[:, None] * (1 + 1e-7)  # scipy's tolerance for ties
        values[won_a, total - won_a] = np.minimum(np.where(at_most, chance[None, :], 0.0).sum(axis=1), 1.0)
    values.setflags(write=False)
    return values


def table_chances(trials_a: int, trials_b: int, p_a: float, p_b: float) -> Array:
    """Return the probability of every table, ``(trials_a + 1, trials_b + 1)``, at given rates."""
    return np.outer(_pmf(trials_a, np.array([p_a]))[0], _pmf(trials_b, np.array([p_b]))[0])


def largest_tail(extreme: NDArray[np.bool_], difference: float, *, refine: bool = True) -> float:
    """Return the largest probability of a set of tables over all rates with that difference.

    Computed on a grid of rates; ``refine`` refines the grid twice around the largest. Without it the result is up to
    0.1 % too small.
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
        InputError: the difference is outside; it may be a percentage.
    """
    if not -1.0 < difference < 1.0:
        raise InputError(
            f"A difference of two rates must be between -1 and 1, not {difference:g}. Write 10 points as 0.1."
        )


def score_order(trials_a: int, trials_b: int, difference: float, alternative: Alternative) -> Array:
    """Return the statistic of every table, larger with more evidence against the hypothesis."""
    won_a, won_b = np.arange(trials_a + 1)[:, None], np.arange(trials_b + 1)[None, :]
    z = score_statistic(won_a, trials_a, won_b, trials_b, difference=difference)
    return {"greater": z, "less": -z}[alternative] if alternative != "two-sided" else np.abs(z)


@lru_cache(maxsize=8)
def _grid(trials_a: int, trials_b: int, difference: float) -> tuple[Array, Array, Array]:
    """Return rates of arm a, and the probabilities of both arms' counts ``(nrate, trials + 1)`` at them."""
    x, y = _rates(difference, trials_a + trials_b)
    return x, _pmf(trials_a, x), _pmf(trials_b, y)


def _rates(difference: float, trials: int) -> tuple[Array, Array]:
    """Return pairs of rates with the difference, evenly spaced in the arcsine of the rate for equally wide peaks."""
    count = int(_FINEST * np.sqrt(trials)) + 1
    low, high = max(0.0, difference), min(1.0, 1.0 + difference)
    x = low + (high - low) * np.sin(np.linspace(0, np.pi / 2, count)) ** 2
    return x, np.clip(x - difference, 0.0, 1.0)


def _pmf(trials: int, rates: Array) -> Array:
    """Return binomial probabilities ``(len(rates), trials + 1)``."""
    return np.asarray(scipy.stats.binom.pmf(np.arange(trials + 1), trials, rates[:, None]), dtype=np.float64)


DifferenceMethod = Literal["newcombe", "agresti-caffo", "clopper-pearson", "chan-zhang"]
_SCAN = 25  # differences at which the exact tail is evaluated before the first crossing is bisected
_HALVINGS = 15  # to 3e-6 of the difference


def difference_interval(
    table: ContingencyTable, *, level: float = 0.95, method: DifferenceMethod = "newcombe"
) -> Interval:
    """Return the interval of p_a − p_b.

    Args:
        table: the counts.
        level: confidence level.
        method: ``newcombe``, the hybrid of two Wilson intervals (method 10; Statistics in Medicine 17, 1998): near
            nominal on average. ``agresti-caffo``, two trials added to each arm (The American Statistician 54, 2000):
            similar, with less arithmetic. ``chan-zhang``, the inversion of two exact one-sided score tests (Biometrics
            55, 1999): never below nominal. ``clopper-pearson``, the difference of two exact intervals of level √level
            each: never below nominal, and the widest.
    """
    check_level(level)
    made = {
        "newcombe": _newcombe,
        "agresti-caffo": _agresti_caffo,
        "clopper-pearson": _clopper_pearson,
        "chan-zhang": _chan_zhang,
    }
    low, high, said = made[method](table, level)
    return Interval.of(table.difference, low, high, level=level, method=said)


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
    """Return the smallest difference that the exact one-sided test at ``tail`` does not reject as too small."""
    if table.difference <= -1 + _TIE:
        return -1.0
    scan = np.linspace(-1.0, table.difference, _SCAN)
    refused = -1.0
    for shift in scan[1:]:
        if _tail_at(table, float(shift)) > tail:
            break
        refused = float(shift)
    else:
        return table.difference
    kept = float(shift)
    for _ in range(_HALVINGS):
        middle = (refused + kept) / 2
        if _tail_at(table, middle) > tail:
            kept = middle
        else:
            refused = middle
    return refused


def _tail_at(table: ContingencyTable, difference: float) -> float:
    """Return the largest chance, at this difference, of a table with at least as much evidence for a larger one."""
    return 1.0 if difference >= 1.0 else exact_p_value(table, difference=difference, alternative="greater")
