"""Two mean scores compared while pairs of trials come in, valid whenever one looks and stops.

For scores between 0 and 1 (progress, a rubric) of any distribution: the difference of a pair lies between −1 and 1 and
has the mean difference, whether or not the two of a pair resemble each other. It is bet on as in `betting`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.stats.betting import check_bounded, log_e_mean
from twinloop.stats.interval import check_level
from twinloop.stats.sequential import Sequential, kept_range, running_p
from twinloop.stats.two_by_two import Alternative, check_difference

_GRID = 401  # as for rates


def log_e_scores(
    a: ArrayLike, b: ArrayLike, *, difference: float = 0.0, alternative: Alternative = "two-sided"
) -> NDArray[np.float64]:
    """Logarithm of the wealth after each pair, ``(…, npair)``, against mean(a) − mean(b) = ``difference`` or one side.

    Raises:
        InputError: a score outside [0, 1], or pairs that do not match.
    """
    check_difference(difference)
    first, second = check_bounded(a, 0.0, 1.0), check_bounded(b, 0.0, 1.0)
    if first.shape != second.shape:
        raise InputError(
            f"Scores of a have shape {first.shape}, of b {second.shape}. Give both of every pair, in their order."
        )
    return log_e_mean(first - second, difference, low=-1.0, high=1.0, alternative=alternative)


def sequential_scores(
    a: ArrayLike,
    b: ArrayLike,
    *,
    difference: float = 0.0,
    alternative: Alternative = "two-sided",
    level: float = 0.95,
) -> Sequential:
    """The test and the confidence sequence of mean(a) − mean(b) for one sequence of pairs ``(npair,)``.

    Raises:
        InputError: a score outside [0, 1], or pairs that do not match.
    """
    check_level(level)
    log_e = log_e_scores(a, b, difference=difference, alternative=alternative)
    off = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    shifts = np.linspace(-1, 1, _GRID)[1:-1]
    wealth = log_e_mean(off[None], shifts, low=-1.0, high=1.0, alternative=alternative)
    low, high = kept_range(shifts, wealth, alpha=1 - level)
    return Sequential(
        log_e=log_e,
        p_value=running_p(log_e),
        low=low,
        high=high,
        estimate=float(off.mean()),
        level=level,
        difference=difference,
        alternative=alternative,
        method="betting on differences of pairs",
    )
