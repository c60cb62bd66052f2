"""Whether two things differ, are equivalent within a margin, or neither can be said yet.

Equivalence is what has to be shown: two one-sided tests refuse both a difference of −δ or less and one of δ or more
(TOST; Schuirmann, J. Pharmacokinetics and Biopharmaceutics 15, 1987). A test of "no difference" that finds nothing
shows nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy  # its parts load when they are used
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.stats.two_by_two import Alternative, TwoByTwo, exact_p_value, exact_p_values

Answer = Literal["differs", "equivalent", "undecided"]
_LEAST = 2


@dataclass(frozen=True, kw_only=True)
class Equivalence:
    """Two one-sided tests: ``p_low`` refuses a difference ≤ −``margin``, ``p_high`` one ≥ ``margin``."""

    margin: float
    p_low: float
    p_high: float
    method: str

    @property
    def p_value(self) -> float:
        """Of the hypothesis that the difference is as large as the margin, on either side."""
        return max(self.p_low, self.p_high)

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        return {**vars(self), "p_value": self.p_value}


def check_margin(margin: float) -> None:
    """Refuse a margin of equivalence outside (0, 1).

    Raises:
        InputError: nothing is equivalent within zero; a margin of 1 or more holds any two rates.
    """
    if not 0.0 < margin < 1.0:
        raise InputError(
            f"A margin of equivalence lies between 0 and 1, not at {margin:g}: within 0 nothing can be shown to be "
            "equal. Name the largest difference that does not matter, such as 0.1 for 10 points."
        )


def equivalent_rates(table: TwoByTwo, *, margin: float) -> Equivalence:
    """Exact test that two success rates differ by less than ``margin``, with Farrington and Manning's statistic.

    Each one-sided p-value is the largest over all rates at the edge of the margin, so that its level is kept for any
    number of trials.

    Raises:
        InputError: a margin outside (0, 1).
    """
    check_margin(margin)
    return Equivalence(
        margin=margin,
        p_low=exact_p_value(table, difference=-margin, alternative="greater"),
        p_high=exact_p_value(table, difference=margin, alternative="less"),
        method="two one-sided exact tests, Farrington–Manning statistic",
    )


def equivalence_p_values(trials_a: int, trials_b: int, *, margin: float) -> NDArray[np.float64]:
    """`equivalent_rates`' p-value of every table, ``(trials_a + 1, trials_b + 1)`` by successes."""
    check_margin(margin)
    low = exact_p_values(trials_a, trials_b, difference=-margin, alternative="greater")
    high = exact_p_values(trials_a, trials_b, difference=margin, alternative="less")
    return np.maximum(low, high)


def equivalent_means(a: ArrayLike, b: ArrayLike, *, margin: float, paired: bool = False) -> Equivalence:
    """Test that two means differ by less than ``margin``: Welch's t in two one-sided tests, or the paired t.

    Approximate for few or very skewed values. Where all values of both are equal, nothing is known of their spread and
    both p-values are 1.

    Raises:
        InputError: a margin outside (0, 1), fewer than two values, or pairs that do not match.
    """
    check_margin(margin)
    first, second = (np.asarray(values, dtype=np.float64) for values in (a, b))
    if paired and len(first) != len(second):
        raise InputError(f"{len(first)} values cannot be paired with {len(second)}. Give both of every pair.")
    if min(len(first), len(second)) < _LEAST:
        raise InputError(
            f"{len(first)} and {len(second)} trials cannot tell how trials differ; a comparison of means needs at "
            f"least {_LEAST} of each."
        )
    method = "two one-sided t tests, " + ("paired" if paired else "Welch")
    flat = np.ptp(first - second) == 0 if paired else np.ptp(first) + np.ptp(second) == 0
    if flat:
        return Equivalence(margin=margin, p_low=1.0, p_high=1.0, method=f"{method}; no spread was seen")
    return Equivalence(
        margin=margin,
        p_low=_one_sided(first + margin, second, paired, "greater"),
        p_high=_one_sided(first - margin, second, paired, "less"),
        method=method,
    )


def verdict(p_differs: float, p_equivalent: float | None, *, alpha: float = 0.05) -> Answer:
    """What two p-values say together: equivalent before different, because the margin is what matters to who set it.

    Both may be small: a difference that is there and smaller than the margin. It is then called equivalent.
    """
    if p_equivalent is not None and p_equivalent <= alpha:
        return "equivalent"
    return "differs" if p_differs <= alpha else "undecided"


def _one_sided(a: NDArray[np.float64], b: NDArray[np.float64], paired: bool, alternative: Alternative) -> float:
    if paired:
        return float(scipy.stats.ttest_rel(a, b, alternative=alternative).pvalue)  # pyright: ignore[reportAttributeAccessIssue]
    test = scipy.stats.ttest_ind(a, b, equal_var=False, alternative=alternative)
    return float(test.pvalue)  # pyright: ignore[reportAttributeAccessIssue]
