"""Decide whether two results differ, are equivalent within a margin, or neither; and compute the power of such tests.

A test of "no difference" that does not reject is no evidence of equality, so equivalence needs a separate test. Two
one-sided tests (TOST) with margin δ reject both a difference of −δ or less and a difference of δ or more (Schuirmann,
J. Pharmacokinetics and Biopharmaceutics 15, 1987).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal

import numpy as np
import scipy  # its parts load when they are used
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from twinloop.core.errors import InputError
from twinloop.core.plain import JsonRecord
from twinloop.core.seeds import generator
from twinloop.stats.mean_difference import check_two_arms
from twinloop.stats.sequential import decision_blocks, log_e_rates
from twinloop.stats.two_by_two import (
    Alternative,
    ContingencyTable,
    exact_p_value,
    exact_p_values,
    fisher_p_values,
    largest_tail,
    score_order,
    table_chances,
)

Answer = Literal["differs", "equivalent", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Equivalence(JsonRecord):
    """Result of two one-sided tests (TOST) of whether the difference of two arms a and b is within a margin.

    Attributes:
        margin: Largest difference a − b, in either direction, that counts as equivalent.
        p_low: P-value of the test of the lower limit: the hypothesis that a − b is −``margin`` or less.
        p_high: P-value of the test of the upper limit: the hypothesis that a − b is ``margin`` or more.
        method: Name of the test.
    """

    margin: float
    p_low: float
    p_high: float
    method: str
    json_also = ("p_value",)

    @property
    def p_value(self) -> float:
        """P-value of the hypothesis that a and b differ by at least the margin; a small value shows equivalence."""
        return max(self.p_low, self.p_high)


def check_margin(margin: float) -> None:
    """Check that a margin of equivalence of success rates or scores is in (0, 1).

    Raises:
        InputError: If it is not: equivalence within 0 cannot be shown, and a margin of 1 or more includes any two
            rates.
    """
    if not 0.0 < margin < 1.0:
        raise InputError(
            f"A margin of equivalence must be between 0 and 1, not {margin:g}: equality within 0 cannot be shown. "
            "Give the largest difference that does not matter, such as 0.1 for 10 points."
        )


def equivalent_rates(table: ContingencyTable, *, margin: float) -> Equivalence:
    """Test exactly whether two success rates differ by less than ``margin``.

    The test statistic is the score statistic of Farrington and Manning (see `stats.two_by_two`). Each one-sided p-value
    is the largest over all pairs of rates that differ by exactly the margin, so that the test keeps its level for any
    number of trials.

    Args:
        table: Successes and trials of both arms.
        margin: Largest difference that counts as equivalent.

    Raises:
        InputError: If the margin is outside (0, 1).
    """
    check_margin(margin)
    return Equivalence(
        margin=margin,
        p_low=exact_p_value(table, difference=-margin, alternative="greater"),
        p_high=exact_p_value(table, difference=margin, alternative="less"),
        method="two one-sided exact tests, Farrington–Manning statistic",
    )


def equivalence_p_values(trials_a: int, trials_b: int, *, margin: float) -> NDArray[np.float64]:
    """Return the p-value of `equivalent_rates` for every possible outcome of two arms (policies) a and b.

    Args:
        trials_a: Number of trials of arm a.
        trials_b: Number of trials of arm b.
        margin: Largest difference of success rates that counts as equivalent.

    Returns:
        Shape ``(trials_a + 1, trials_b + 1)``, indexed by the successes of a and of b.
    """
    check_margin(margin)
    low = exact_p_values(trials_a, trials_b, difference=-margin, alternative="greater")
    high = exact_p_values(trials_a, trials_b, difference=margin, alternative="less")
    return np.maximum(low, high)


def equivalent_means(a: ArrayLike, b: ArrayLike, *, margin: float, paired: bool = False) -> Equivalence:
    """Test whether two means differ by less than ``margin``, by two one-sided t-tests (Welch's, or paired).

    The test is approximate for few or very skewed values. If all values are equal, their spread is unknown and both
    p-values are 1.

    Args:
        a: Values of arm a, shape ``(n,)``.
        b: Values of arm b, shape ``(m,)``.
        margin: Largest difference of means that counts as equivalent.
        paired: Whether ``a[i]`` and ``b[i]`` belong together.

    Raises:
        InputError: If the margin is outside (0, 1), an arm has fewer than two values, or paired arms have unequal
            lengths.
    """
    check_margin(margin)
    first, second = check_two_arms(a, b, paired=paired)
    method = "two one-sided t tests, " + ("paired" if paired else "Welch")
    flat = np.ptp(first - second) == 0 if paired else np.ptp(first) + np.ptp(second) == 0
    if flat:
        return Equivalence(margin=margin, p_low=1.0, p_high=1.0, method=f"{method}; no spread was seen")
    return Equivalence(
        margin=margin,
        p_low=_one_sided_p_value(first + margin, second, paired, "greater"),
        p_high=_one_sided_p_value(first - margin, second, paired, "less"),
        method=method,
    )


def classify_difference(p_differs: float, p_equivalent: float | None, *, alpha: float = 0.05) -> Answer:
    """Return ``differs``, ``equivalent`` or ``undecided``, from the p-values of a difference and an equivalence test.

    Both p-values may be small: the difference exists and is smaller than the margin. The answer is then ``equivalent``,
    because the user sets the margin to the smallest relevant difference.

    Args:
        p_differs: P-value of the hypothesis of no difference.
        p_equivalent: P-value of the hypothesis that the difference is at least the margin; None if that was not tested.
        alpha: Level of both tests.
    """
    if p_equivalent is not None and p_equivalent <= alpha:
        return "equivalent"
    return "differs" if p_differs <= alpha else "undecided"


def _one_sided_p_value(a: NDArray[np.float64], b: NDArray[np.float64], paired: bool, alternative: Alternative) -> float:
    if paired:
        return float(scipy.stats.ttest_rel(a, b, alternative=alternative).pvalue)  # pyright: ignore[reportAttributeAccessIssue]
    test = scipy.stats.ttest_ind(a, b, equal_var=False, alternative=alternative)
    return float(test.pvalue)  # pyright: ignore[reportAttributeAccessIssue]


PowerTest = Literal["barnard", "fisher"]
_MOST = 400  # trials per arm, the limit of a search: more tables take longer than seconds
_MOST_PAIRS = 2000
_SEQUENCES = 2000  # number of simulated sequences
_STEADY = (
    5  # further numbers of trials at which the power must hold too, because the power of an exact test is a saw-tooth
)


@dataclass(frozen=True, kw_only=True)
class TrialsNeeded(JsonRecord):
    """Smallest number of trials with which a test has the required power.

    The required power is also reached with the next few larger numbers of trials. This is checked because the power of
    an exact test does not increase steadily.

    Attributes:
        trials_a: Number of trials of arm a, or of pairs.
        trials_b: Number of trials of arm b.
        power: Power with these trials.
        required_power: Required power.
        alpha: Significance level of the test.
        test: Name of the test.
    """

    trials_a: int
    trials_b: int
    power: float
    required_power: float
    alpha: float
    test: str


@dataclass(frozen=True, kw_only=True)
class SequentialPower:
    """Number of pairs of trials after which a sequential test decides, in simulated sequences.

    Attributes:
        pairs: Number of pairs until the decision, shape ``(nsequence,)``; ``most`` for an undecided sequence.
        decided: Share of the sequences that decide within ``most`` pairs.
        most: Largest number of pairs.
    """

    pairs: NDArray[np.intp]
    decided: float
    most: int

    @property
    def mean(self) -> float:
        """Mean number of pairs until the decision."""
        return float(self.pairs.mean())

    def quantile(self, share: float) -> float:
        """Return the number of pairs of trials within which a share of the simulated sequences ended.

        A sequence ends with its decision, or undecided after ``most`` pairs.

        Args:
            share: Share of the sequences in [0, 1], for example 0.9.
        """
        return float(np.quantile(self.pairs, share))


def power_of_rates(
    p_a: float,
    p_b: float,
    trials_a: int,
    trials_b: int,
    *,
    alpha: float = 0.05,
    alternative: Alternative = "two-sided",
    test: PowerTest = "barnard",
) -> float:
    """Return the power of an exact test of p_a = p_b: the chance that it rejects, given the true success rates.

    Args:
        p_a: True success rate of arm a.
        p_b: True success rate of arm b.
        trials_a: Number of trials of arm a.
        trials_b: Number of trials of arm b.
        alpha: Level of the test.
        alternative: ``greater`` tests for p_a > p_b, ``less`` for p_a < p_b.
        test: Barnard's or Fisher's exact test.

    Raises:
        InputError: If a rate or the level is outside its range, or for a one-sided Fisher test, which is not available.
    """
    _check_rates(p_a, p_b, alpha)
    if test == "fisher":
        if alternative != "two-sided":
            raise InputError("The power of Fisher's test is available two-sided only. Use Barnard's one-sided.")
        rejected = fisher_p_values(trials_a, trials_b) <= alpha
    else:
        rejected = rejected_tables(trials_a, trials_b, alpha=alpha, alternative=alternative)
    return float(table_chances(trials_a, trials_b, p_a, p_b)[rejected].sum())


def power_of_equivalence(
    p_a: float, p_b: float, trials_a: int, trials_b: int, *, margin: float, alpha: float = 0.05
) -> float:
    """Return the chance that the exact test of equivalence shows a difference smaller than ``margin``.

    Args:
        p_a: True success rate of arm a.
        p_b: True success rate of arm b.
        trials_a: Number of trials of arm a.
        trials_b: Number of trials of arm b.
        margin: Largest difference that counts as equivalent.
        alpha: Level of the test.
    """
    _check_rates(p_a, p_b, alpha)
    check_margin(margin)
    low = rejected_tables(trials_a, trials_b, difference=-margin, alternative="greater", alpha=alpha)
    high = rejected_tables(trials_a, trials_b, difference=margin, alternative="less", alpha=alpha)
    return float(table_chances(trials_a, trials_b, p_a, p_b)[low & high].sum())


def power_of_pairs(p_only_a: float, p_only_b: float, pairs: int, *, alpha: float = 0.05) -> float:
    """Return the power of McNemar's exact two-sided test of paired trials.

    Args:
        p_only_a: Chance that only a succeeds in a pair.
        p_only_b: Chance that only b succeeds in a pair.
        pairs: Number of pairs.
        alpha: Level of the test.

    Raises:
        InputError: If the chances are negative or add up to 0 or to more than 1, or ``alpha`` is outside (0, 1).
    """
    _check_pairs(p_only_a, p_only_b, alpha)
    differ = p_only_a + p_only_b
    share = p_only_a / differ
    total = 0.0
    for many, chance in enumerate(scipy.stats.binom.pmf(np.arange(pairs + 1), pairs, differ)):
        tail = scipy.stats.binom.cdf(np.arange(many + 1), many, 0.5)
        rejected = 2 * np.minimum(tail, tail[::-1]) <= alpha
        total += float(chance * scipy.stats.binom.pmf(np.arange(many + 1), many, share)[rejected].sum())
    return total


@lru_cache(maxsize=512)
def rejected_tables(
    trials_a: int, trials_b: int, *, alpha: float, difference: float = 0.0, alternative: Alternative = "two-sided"
) -> NDArray[np.bool_]:
    """Return for every possible outcome of two arms whether the exact unconditional test rejects at level ``alpha``.

    The test is that of `stats.two_by_two.exact_p_value` (Barnard's test for a difference of 0).

    Args:
        trials_a: Number of trials of arm a.
        trials_b: Number of trials of arm b.
        alpha: Level of the test.
        difference: Hypothetical difference of the rates.
        alternative: ``greater``, ``less`` or ``two-sided``.

    Returns:
        Shape ``(trials_a + 1, trials_b + 1)``, indexed by the successes of a and of b.
    """
    key = np.round(score_order(trials_a, trials_b, difference, alternative), 9)
    values = np.unique(key)
    not_rejected, rejected = -1, len(values)  # the test rejects from some index on in the ordered statistics
    while rejected - not_rejected > 1:
        middle = (not_rejected + rejected) // 2
        if largest_tail(key >= values[middle], difference, refine=False) <= alpha:
            rejected = middle
        else:
            not_rejected = middle
    return key >= (values[rejected] if rejected < len(values) else np.inf)


def trials_for_rates(
    p_a: float,
    p_b: float,
    *,
    power: float = 0.9,
    alpha: float = 0.05,
    alternative: Alternative = "two-sided",
    ratio: float = 1.0,
    test: PowerTest = "barnard",
) -> TrialsNeeded:
    """Return the number of trials with which an exact test detects that two success rates differ.

    Args:
        p_a: True success rate of arm a.
        p_b: True success rate of arm b.
        power: Required chance that the test detects the difference.
        alpha: Level of the test.
        alternative: ``greater`` tests for p_a > p_b, ``less`` for p_a < p_b.
        ratio: Trials of arm b per trial of arm a.
        test: Barnard's or Fisher's exact test.

    Raises:
        InputError: If the rates are equal, or so close that 400 trials of each arm do not suffice; the message then has
            an estimate.
    """
    _check_rates(p_a, p_b, alpha)
    _check_search(power, ratio)
    if p_a == p_b:
        raise InputError(
            f"Rates of {p_a:g} and {p_b:g} do not differ, so no number of trials shows a difference. Use "
            "--within to plan a test of equivalence."
        )

    def power_at(n: int) -> float:
        return power_of_rates(p_a, p_b, n, _trials_of_b(n, ratio), alpha=alpha, alternative=alternative, test=test)

    z = float(ndtri(1 - alpha / (2 if alternative == "two-sided" else 1)) + ndtri(power))
    guess = z**2 * (p_a * (1 - p_a) + p_b * (1 - p_b) / ratio) / (p_a - p_b) ** 2
    return _search_trials(power_at, guess, power=power, alpha=alpha, ratio=ratio, test=f"{test} {alternative}")


def trials_for_equivalence(
    p_a: float,
    p_b: float,
    *,
    margin: float,
    power: float = 0.9,
    alpha: float = 0.05,
    ratio: float = 1.0,
) -> TrialsNeeded:
    """Return the number of trials with which two success rates are shown to be equivalent within ``margin``.

    Args:
        p_a: True success rate of arm a.
        p_b: True success rate of arm b.
        margin: Largest difference that counts as equivalent.
        power: Required chance that the test shows equivalence.
        alpha: Level of the test.
        ratio: Trials of arm b per trial of arm a.

    Raises:
        InputError: If the rates differ by the margin or more, or 400 trials of each arm do not suffice.
    """
    _check_rates(p_a, p_b, alpha)
    _check_search(power, ratio)
    check_margin(margin)
    room = margin - abs(p_a - p_b)
    if room <= 0:
        raise InputError(
            f"Rates of {p_a:g} and {p_b:g} differ by {margin:g} or more, so no number of trials shows equivalence."
        )

    def power_at(n: int) -> float:
        return power_of_equivalence(p_a, p_b, n, _trials_of_b(n, ratio), margin=margin, alpha=alpha)

    z = float(ndtri(1 - alpha) + ndtri((1 + power) / 2 if p_a == p_b else power))
    guess = z**2 * (p_a * (1 - p_a) + p_b * (1 - p_b) / ratio) / room**2
    return _search_trials(power_at, guess, power=power, alpha=alpha, ratio=ratio, test="two one-sided exact")


def trials_for_pairs(p_only_a: float, p_only_b: float, *, power: float = 0.9, alpha: float = 0.05) -> TrialsNeeded:
    """Return the number of pairs of trials with which McNemar's exact test detects a difference.

    Args:
        p_only_a: Chance that only a succeeds in a pair.
        p_only_b: Chance that only b succeeds in a pair.
        power: Required chance that the test detects the difference.
        alpha: Level of the test.

    Raises:
        InputError: If both chances are equal or invalid, or 2,000 pairs do not suffice.
    """
    _check_pairs(p_only_a, p_only_b, alpha)
    _check_search(power, 1.0)
    if p_only_a == p_only_b:
        raise InputError(
            f"Chances of {p_only_a:g} and {p_only_b:g} are equal, so no number of pairs shows a difference."
        )
    z = float(ndtri(1 - alpha / 2) + ndtri(power))
    guess = z**2 * (p_only_a + p_only_b) / (p_only_a - p_only_b) ** 2

    def power_at(n: int) -> float:
        return power_of_pairs(p_only_a, p_only_b, n, alpha=alpha)

    return _search_trials(power_at, guess, power=power, alpha=alpha, ratio=1.0, test="McNemar exact", most=_MOST_PAIRS)


def sequential_power(
    p_a: float,
    p_b: float,
    *,
    most: int,
    alpha: float = 0.05,
    alternative: Alternative = "two-sided",
    seed: int = 0,
) -> SequentialPower:
    """Simulate 2,000 sequences of pairs of trials, and return after how many pairs the sequential test decides.

    The test is that of `stats.sequential.log_e_rates`, which may be evaluated after every pair of trials.

    Args:
        p_a: True success rate of arm a.
        p_b: True success rate of arm b.
        most: Largest number of pairs.
        alpha: Level of the test.
        alternative: ``greater`` tests for p_a > p_b, ``less`` for p_a < p_b.
        seed: Seed of the simulated outcomes.

    Raises:
        InputError: If a rate or the level is outside its range, or ``most`` is below one.
    """
    _check_rates(p_a, p_b, alpha)
    if most < 1:
        raise InputError(
            f"A sequential test of at most {most} pairs has no data. Allow at least one pair, such as 500."
        )
    random = generator(seed, "stats/power")
    a, b = (random.random((_SEQUENCES, most)) < p for p in (p_a, p_b))
    at = decision_blocks(log_e_rates(a, b, alternative=alternative), alpha=alpha)
    return SequentialPower(pairs=np.where(at > 0, at, most), decided=float((at > 0).mean()), most=most)


def _search_trials(
    compute_power: Callable[[int], float],
    guess: float,
    *,
    power: float,
    alpha: float,
    ratio: float,
    test: str,
    most: int = _MOST,
) -> TrialsNeeded:
    """Return the smallest number of trials with the required power, searched from an initial estimate.

    Args:
        compute_power: Function from a number of trials of arm a to the power.
        guess: Initial estimate of the number of trials, from a normal approximation.
        power: Required power.
        alpha: Level of the test.
        ratio: Trials of arm b per trial of arm a.
        test: Name of the test.
        most: Largest number of trials that is tried.

    Raises:
        InputError: If more than ``most`` trials are needed.
    """
    if guess * np.sqrt(max(1.0, ratio)) > most:  # the number of tables is about the product of the trials
        raise InputError(
            f"About {int(np.ceil(guess * max(1.0, ratio)))} trials of {'b' if ratio > 1 else 'each'} would be needed "
            f"for a power of {power:g}: more than the {most} of each that can be computed exactly. Use rates that "
            f"differ more, less power{', or a smaller ratio' if ratio > 1 else ''}."
        )
    at = cache(compute_power)
    n = _approximate_trials(at, max(2, round(guess)), power, alpha, most)
    while n > 2 and min(at(n), at(n - 1)) >= power:
        n -= 1
    while n <= most:
        below = [m for m in range(n, n + _STEADY + 1) if at(m) < power]
        if not below:
            other = _trials_of_b(n, ratio)
            return TrialsNeeded(trials_a=n, trials_b=other, power=at(n), required_power=power, alpha=alpha, test=test)
        n = below[-1] + 1
    raise InputError(f"{most} trials of each are too few for a power of {power:g}. Use rates that differ more.")


def _approximate_trials(
    compute_power: Callable[[int], float], guess: int, power: float, alpha: float, most: int
) -> int:
    """Return a number of trials with about the required power, by at most four steps from an initial estimate.

    For n trials, √n is nearly proportional to z(1 − α/2) + z(power), with the standard normal quantile z. Each step
    corrects n by the ratio of the required to the current value of this sum.

    Args:
        compute_power: Function from a number of trials to the power.
        guess: Initial estimate.
        power: Required power.
        alpha: Level of the test.
        most: Largest number of trials.
    """
    n = min(guess, most)
    for _ in range(4):
        current = float(np.clip(compute_power(n), 1e-4, 1 - 1e-4))
        factor = float(ndtri(1 - alpha / 2) + ndtri(power)) / max(float(ndtri(1 - alpha / 2) + ndtri(current)), 0.1)
        step = int(np.clip(round(n * factor**2), max(2, n // 3), min(3 * n, most)))
        if abs(step - n) <= 1:
            break
        n = step
    return n


def _trials_of_b(trials: int, ratio: float) -> int:
    return max(1, round(trials * ratio))


def _check_alpha(alpha: float) -> None:
    if not 0.0 < alpha < 1.0:
        raise InputError(f"α, the chance of a false alarm, must be between 0 and 1, not {alpha:g}. 0.05 is usual.")


def _check_search(power: float, ratio: float) -> None:
    if not 0.0 < power < 1.0:
        raise InputError(
            f"A power must be between 0 and 1, not {power:g}. Write 90 % as 0.9; no number of trials gives 1."
        )
    if not 0.0 < ratio < np.inf:
        raise InputError(
            f"A ratio of {ratio:g} trials of b per trial of a is invalid. Give a number above 0, such as 1."
        )


def _check_pairs(p_only_a: float, p_only_b: float, alpha: float) -> None:
    _check_alpha(alpha)
    if not (min(p_only_a, p_only_b) >= 0 and 0 < p_only_a + p_only_b <= 1):
        raise InputError(
            f"Of a pair, the chances that only a ({p_only_a:g}) and that only b ({p_only_b:g}) succeeds must add up to "
            "more than 0 and at most 1. Give those of shared starts, such as 0.2 and 0.05, or success rates without "
            "--paired."
        )


def _check_rates(p_a: float, p_b: float, alpha: float) -> None:
    _check_alpha(alpha)
    for rate in (p_a, p_b):
        if not 0.0 <= rate <= 1.0:
            raise InputError(f"A success rate must be between 0 and 1, not {rate:g}. Write 60 % as 0.6.")
