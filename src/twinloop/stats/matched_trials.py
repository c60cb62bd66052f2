"""Compare two arms (policies) with matched trials: in the same strata (conditions), or from the same initial states.

Within strata: success rates (exact, Mantel–Haenszel) and mean scores (permutation, Welch). From the same initial states
(starts): McNemar's exact test, Tango's interval, and exact tests of whether the difference of the success rates is
smaller than a margin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy  # its parts load when they are used
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, ndtri, stdtrit, xlogy

from twinloop.core.errors import InputError
from twinloop.core.seeds import generator
from twinloop.stats.interval import Interval, check_level
from twinloop.stats.two_by_two import Alternative, ContingencyTable, check_difference

Array = NDArray[np.float64]


def stratified_exact(tables: Sequence[ContingencyTable]) -> float:
    """Return the two-sided exact p-value of equal success rates of a and b in every stratum.

    Given the total successes of each stratum, the successes of arm a are a sum of hypergeometric counts (Birch, J. R.
    Stat. Soc. B 26, 1964). The p-value is the probability of all sums that are not more probable than the observed sum.
    With one stratum this is Fisher's test.

    Args:
        tables: Successes and trials of both arms in each stratum.

    Raises:
        InputError: If there is no stratum.
    """
    _check_strata(tables)
    chance, least = np.ones(1), 0
    for table in tables:
        total = table.successes_a + table.successes_b
        low = max(0, total - table.trials_b)
        won = np.arange(low, min(table.trials_a, total) + 1)
        chance = np.convolve(
            chance, scipy.stats.hypergeom.pmf(won, table.trials_a + table.trials_b, total, table.trials_a)
        )
        least += low
    observed = chance[sum(table.successes_a for table in tables) - least]
    return float(min(chance[chance <= observed * (1 + 1e-7)].sum(), 1.0))


def mantel_haenszel(tables: Sequence[ContingencyTable], *, level: float = 0.95) -> Interval:
    """Return the common difference p_a − p_b of success rates within strata, with an asymptotic interval.

    The interval is Sato's (Biometrics 45, 1989). Weights are n_a n_b / (n_a + n_b), with the numbers of trials n_a and
    n_b of a stratum. The variance is valid both for many small strata and for few large strata. If all trials of each
    stratum have the same outcome, the variance is estimated as 0. The limits are then NaN, and ``method`` has the
    reason.

    Raises:
        InputError: If there is no stratum.
    """
    check_level(level)
    _check_strata(tables)
    x, n, y, m = np.array([(t.successes_a, t.trials_a, t.successes_b, t.trials_b) for t in tables], dtype=float).T
    both = n + m
    weight = n * m / both
    estimate = float(np.sum(weight * (x / n - y / m)) / weight.sum())
    skewed = (n**2 * y - m**2 * x + n * m * (m - n) / 2) / both**2
    mixed = (x * (m - y) + y * (n - x)) / (2 * both)
    variance = (estimate * skewed.sum() + mixed.sum()) / weight.sum() ** 2
    method = f"Mantel–Haenszel difference over {len(tables)} strata, Sato's variance"
    if variance <= 0:
        method += "; none: all trials of each stratum have the same outcome"
    half = float(ndtri((1 + level) / 2) * np.sqrt(variance)) if variance > 0 else np.nan
    low, high = max(estimate - half, -1.0), min(estimate + half, 1.0)
    ends = (low, high) if variance > 0 else (np.nan, np.nan)
    return Interval.of(estimate, ends[0], ends[1], level=level, method=method)


def _check_strata(tables: Sequence[ContingencyTable]) -> None:
    if not tables:
        raise InputError("No condition has trials of both policies. Try both in the same conditions.")


Stratum = tuple[ArrayLike, ArrayLike]
_FLIPS = 4999


def stratified_difference(strata: Sequence[Stratum], *, level: float = 0.95) -> Interval:
    """Return the weighted mean over strata of mean(a) − mean(b), with Student's interval.

    Weights are n_a n_b / (n_a + n_b), as for Mantel-Haenszel. Each arm has one variance, estimated within its strata;
    the degrees of freedom are Satterthwaite's. With one stratum this is Welch's interval. The limits are NaN, and
    ``method`` has the reason, if scores do not vary within strata or an arm has one trial in each stratum.

    Args:
        strata: Scores of a and scores of b in each stratum.
        level: Confidence level.

    Raises:
        InputError: If there is no stratum, or an arm has no trials in a stratum.
    """
    check_level(level)
    rows, weight = _weigh_strata(strata)
    estimate = sum(w * (a.mean() - b.mean()) for w, (a, b) in zip(weight, rows, strict=True))
    parts, freedoms = [], []
    for arm in (0, 1):
        sizes = np.array([len(row[arm]) for row in rows])
        freedom = int(sizes.sum() - len(sizes))
        squares = sum(float(np.sum((row[arm] - row[arm].mean()) ** 2)) for row in rows)
        parts.append(squares / freedom * float(np.sum(weight**2 / sizes)) if freedom else np.nan)
        freedoms.append(freedom)
    variance = sum(parts)
    half, method = np.nan, "none: scores do not vary within an arm, so their spread is unknown"
    if np.isnan(variance):
        method = "none: one trial of an arm in each condition has no spread"
    elif variance > 1e-18:
        df = variance**2 / sum(part**2 / freedom for part, freedom in zip(parts, freedoms, strict=True))
        half, method = float(stdtrit(df, (1 + level) / 2) * np.sqrt(variance)), "Welch's t within conditions"
    value = np.array(estimate)
    low, high = np.maximum(value - half, -1.0), np.minimum(value + half, 1.0)
    return Interval.of(value, low, high, level=level, method=method)


def stratified_permutation(strata: Sequence[Stratum], *, draws: int = 4999, seed: int = 0) -> float:
    """Return the two-sided p-value of a permutation test that a and b have equal scores in every stratum.

    Scores are permuted at random within strata. The p-value is (1 + number of permuted differences at least as far from
    zero) / (1 + draws), exact for any distribution of the scores. SciPy's ``permutation_test`` does not permute within
    strata.

    Args:
        strata: Scores of a and scores of b in each stratum.
        draws: Number of permutations.
        seed: Run seed.

    Raises:
        InputError: If there is no stratum, or an arm has no trials in a stratum.
    """
    rows, weight = _weigh_strata(strata)
    rng = generator(seed, "stats/stratified_scores")
    observed, drawn = 0.0, np.zeros(draws)
    for w, (a, b) in zip(weight, rows, strict=True):
        both, n = np.concatenate([a, b]), len(a)
        observed += w * (a.mean() - b.mean())
        mixed = rng.permuted(np.tile(both, (draws, 1)), axis=1)
        drawn += w * (mixed[:, :n].mean(axis=1) - mixed[:, n:].mean(axis=1))
    return float((1 + np.sum(np.abs(drawn) >= abs(observed) - 1e-12)) / (1 + draws))


def paired_scores(differences: ArrayLike, *, level: float = 0.95, seed: int = 0) -> tuple[Interval, float]:
    """Return the mean of paired differences with Student's interval, and the p-value of a sign-flip permutation test.

    The two-sided test changes the signs of the differences at random.

    Args:
        differences: Difference of each pair, shape ``(npair,)``.
        level: Confidence level.
        seed: Run seed of the 4,999 sign flips.

    Raises:
        InputError: If there are no pairs.
    """
    check_level(level)
    d = np.asarray(differences, dtype=np.float64)
    if not len(d):
        raise InputError(
            "There are no pairs. Give the real and the simulated trial of one start the same name in the column pair."
        )
    spread = d.std(ddof=1) if len(d) > 1 else 0.0
    half = stdtrit(len(d) - 1, (1 + level) / 2) * spread / np.sqrt(len(d)) if spread > 0 else np.nan
    method = "Student's t over pairs" if spread > 0 else "none: all pairs have the same difference"
    signs = generator(seed, "stats/paired_scores").choice([-1.0, 1.0], size=(_FLIPS, len(d)))
    p = (1 + np.sum(np.abs(signs @ d) >= abs(d.sum()) - 1e-12)) / (1 + _FLIPS)
    value = np.array(d.mean())
    return Interval.of(value, value - half, value + half, level=level, method=method), float(p)


def _weigh_strata(strata: Sequence[Stratum]) -> tuple[list[tuple[Array, Array]], Array]:
    rows = [(np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)) for a, b in strata]
    if not rows or any(not len(a) or not len(b) for a, b in rows):
        raise InputError(
            "A condition lacks trials of one arm, or there is no condition. Compare conditions that both arms have."
        )
    weight = np.array([len(a) * len(b) / (len(a) + len(b)) for a, b in rows])
    return rows, weight / weight.sum()


_TIE = 1e-9  # counts that differ by less are equal


@dataclass(frozen=True, kw_only=True)
class PairedCounts:
    """Numbers of pairs of trials in which both arms, only a, only b, or neither succeeded.

    Raises:
        InputError: If there is no pair, or a number is negative.
    """

    both: int
    only_a: int
    only_b: int
    neither: int

    def __post_init__(self) -> None:
        counts = (self.both, self.only_a, self.only_b, self.neither)
        if min(counts) < 0 or sum(counts) < 1:
            raise InputError(f"Paired counts {counts} contain no pairs. Count both, only a, only b and neither.")

    @classmethod
    def of_outcomes(cls, a: NDArray[np.bool_], b: NDArray[np.bool_]) -> PairedCounts:
        """Count the pairs of outcomes of two arms in the same trials, ``(npair,)`` each."""
        pairs = {"both": a & b, "only_a": a & ~b, "only_b": ~a & b, "neither": ~a & ~b}
        return cls(**{name: int(mask.sum()) for name, mask in pairs.items()})

    @property
    def pairs(self) -> int:
        """Number of pairs."""
        return self.both + self.only_a + self.only_b + self.neither

    @property
    def difference(self) -> float:
        """Observed p_a − p_b, the difference of the success rates."""
        return (self.only_a - self.only_b) / self.pairs


def mcnemar(counts: PairedCounts, *, alternative: Alternative = "two-sided") -> float:
    """Return McNemar's exact p-value of p_a = p_b from paired trials (Psychometrika 12, 1947); 1 if no pair differs."""
    differing = counts.only_a + counts.only_b
    if differing == 0:
        return 1.0
    return float(scipy.stats.binomtest(counts.only_a, differing, 0.5, alternative=alternative).pvalue)


def paired_difference_interval(counts: PairedCounts, *, level: float = 0.95) -> Interval:
    """Return Tango's score interval of p_a − p_b from paired trials (Statistics in Medicine 17, 1998).

    Its coverage is approximate.
    """
    check_level(level)
    z = float(ndtri((1 + level) / 2))
    low, high = _tango_limit(counts, z), _tango_limit(counts, -z)
    return Interval.of(counts.difference, low, high, level=level, method="Tango score")


def _tango_limit(counts: PairedCounts, z: float) -> float:
    """Return the difference of the rates at which Tango's statistic equals ``z``.

    The solution is unique, because the statistic decreases with the difference.

    Args:
    counts: Numbers of pairs in which both arms, only one arm, or neither succeeded.
    z: Standard normal quantile; positive for the lower limit.
    """
    end = -1.0 if z > 0 else 1.0
    observed = counts.difference
    if observed == end:
        return end

    def above(shift: float) -> float:
        return float(tango_statistic(counts.only_a, counts.only_b, counts.pairs, shift)) - z

    return float(scipy.optimize.brentq(above, end * (1 - 1e-12), observed, xtol=1e-10))  # pyright: ignore[reportArgumentType]


def tango_statistic(only_a: ArrayLike, only_b: ArrayLike, pairs: int, difference: float) -> NDArray[np.float64]:
    """Return Tango's score statistic of p_a − p_b against a hypothetical difference, elementwise over counts.

    It is approximately standard normal under the hypothesis, and 0 if the observed difference equals the hypothetical
    one.

    Args:
        only_a: Number of pairs that only a won.
        only_b: Number of pairs that only b won.
        pairs: Number of pairs.
        difference: Hypothetical difference.
    """
    b, c = np.asarray(only_a, dtype=np.float64), np.asarray(only_b, dtype=np.float64)
    linear = -b - c + (2 * pairs - b + c) * difference
    root = np.sqrt(np.maximum(linear**2 + 8 * pairs * c * difference * (1 - difference), 0.0))
    share = (root - linear) / (4 * pairs)
    variance = pairs * (2 * share + difference * (1 - difference))
    off = b - c - pairs * difference
    off = np.where(np.abs(off) < _TIE, 0.0, off)
    infinite = np.copysign(np.where(off == 0, 0.0, np.inf), off)
    return np.where(variance > _TIE, off / np.sqrt(np.maximum(variance, _TIE)), infinite)


MAX_PAIRS = 600  # the table of outcomes grows with the square of the pairs: 600 take three seconds
_RATES = 60  # tested shares of differing pairs; twice as many change no p-value by 0.001


def paired_p_value(counts: PairedCounts, *, difference: float = 0.0) -> float:
    """Return the exact p-value of the hypothesis p_a − p_b ≤ ``difference`` from paired trials.

    The p-value depends on the unknown rate of pairs with different outcomes; its largest value over all possible rates
    is returned. Tango's statistic decides which outcomes are more extreme than the observed one (Hsueh, Liu & Chen,
    Biometrics 57, 2001).

    Raises:
        InputError: If there are more than 600 pairs (`MAX_PAIRS`), or the difference is outside (−1, 1).
    """
    return float(paired_p_values(counts.pairs, difference=difference)[counts.only_a, counts.only_b])


@lru_cache(maxsize=8)
def paired_p_values(pairs: int, *, difference: float = 0.0) -> NDArray[np.float64]:
    """Return the exact p-value of every possible outcome of ``pairs`` paired trials of arms a and b.

    The tested hypothesis is p_a − p_b ≤ ``difference`` for the success rates p_a and p_b, see `paired_p_value`.

    Returns:
        Shape ``(pairs + 1, pairs + 1)``, indexed by the number of pairs that only a and that only b won; 1 for
        impossible outcomes.

    Raises:
        InputError: If there are more than 600 pairs (`MAX_PAIRS`), or the difference is outside (−1, 1).
    """
    check_difference(difference)
    if not 1 <= pairs <= MAX_PAIRS:
        raise InputError(
            f"The exact test of a margin takes 1 to {MAX_PAIRS} pairs, not {pairs}. Use the sequential test for more."
        )
    first, second = np.nonzero(np.add.outer(np.arange(pairs + 1), np.arange(pairs + 1)) <= pairs)
    key = np.round(tango_statistic(first, second, pairs, difference), 9)
    order = np.argsort(-key, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(key[order]) < -_TIE, True))
    which = np.searchsorted(ends, np.arange(len(order)))
    largest = np.zeros(len(order))
    ties = gammaln(pairs + 1) - gammaln(first + 1) - gammaln(second + 1) - gammaln(pairs - first - second + 1)
    low, high = max(0.0, -difference), (1 - difference) / 2
    for rate in low + (high - low) * np.sin(np.linspace(0, np.pi / 2, _RATES)) ** 2:
        p_a, p_b = rate + difference, rate
        rest = max(1 - p_a - p_b, 0.0)
        log_p = ties + xlogy(first, p_a) + xlogy(second, p_b) + xlogy(pairs - first - second, rest)
        np.maximum(largest, np.cumsum(np.exp(log_p)[order])[ends][which], out=largest)
    values = np.ones((pairs + 1, pairs + 1))
    values[first[order], second[order]] = np.minimum(largest, 1.0)
    values.setflags(write=False)
    return values
