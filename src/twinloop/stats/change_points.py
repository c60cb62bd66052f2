"""Find changes in series (a change of slope, a lasting shift of the mean), and match two lists of change times.

Page's CUSUM (cumulative sum) S of standardized values z starts at 0 and becomes max(0, S + z − k) with each value.
There is an alarm if S ≥ h (Page, "Continuous inspection schemes", Biometrika 41, 1954). k is half of the shift to
detect. The mean number of values until an alarm (run length) is computed with a Markov chain, whose states are small
intervals of S in [0, h) (Brook & Evans, "An approach to the probability distribution of CUSUM run length", Biometrika
59, 1972).

If mean and standard deviation are estimated from few values, false alarms are far more frequent than this calculation
predicts. The self-starting CUSUM (Hawkins, "Self-starting CUSUM charts for location and scale", The Statistician 36,
1987) standardizes each value by the values before it. For independent normal values, the standardized values are
independent and exactly standard normal, from the first ones on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri, stdtr

from twinloop.core.errors import InputError

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ChangePoint:
    """A change of slope in a series, or none.

    Attributes:
        index: First row after the change; 0 if there is none.
        before: Slope before the change.
        after: Slope after the change; equals ``before`` if there is none.
        gain: Relative reduction of the sum of squared residuals by the change, from 0 (no reduction) to 1.
    """

    index: int
    before: float
    after: float
    gain: float


def slope_change(x: ArrayLike, y: ArrayLike, *, least: int) -> ChangePoint:
    """Find the row at which ``y = slope · x`` changes its slope, by least squares over all splits into two parts.

    Args:
        x: Independent variable (regressor), shape ``(n,)``, centred on zero, because no intercept is fitted.
        y: Dependent variable (response), shape ``(n,)``.
        least: Smallest number of rows on each side of the change.
    """
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    xx, xy = np.cumsum(a * a), np.cumsum(a * b)
    whole = _ratio(xy[-1:], xx[-1:])[0] if len(a) else 0.0
    residual = float(np.sum((b - whole * a) ** 2))
    splits = np.arange(least, len(a) - least + 1)
    if not len(splits) or residual == 0:
        return ChangePoint(index=0, before=float(whole), after=float(whole), gain=0.0)
    xx_left, xy_left = xx[splits - 1], xy[splits - 1]
    xx_right, xy_right = xx[-1] - xx_left, xy[-1] - xy_left
    explained = xy_left * _ratio(xy_left, xx_left) + xy_right * _ratio(xy_right, xx_right)
    best = int(np.argmax(explained))
    return ChangePoint(
        index=int(splits[best]),
        before=float(_ratio(xy_left, xx_left)[best]),
        after=float(_ratio(xy_right, xx_right)[best]),
        gain=float((explained[best] - whole * xy[-1]) / residual),
    )


def _ratio(numerator: NDArray[np.float64], denominator: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


@dataclass(frozen=True, kw_only=True)
class MatchedTimes:
    """Pairs of matching times in two lists of times.

    Attributes:
        first: Index of each matched time in the first list, shape ``(npair,)``.
        second: Index of its partner in the second list, same shape.
        sizes: Lengths of both lists.
    """

    first: NDArray[np.intp]
    second: NDArray[np.intp]
    sizes: tuple[int, int]

    @property
    def f1(self) -> float:
        """F1 score (harmonic mean of precision and recall); 1 if both lists are empty.

        It is twice the number of pairs divided by the total length of both lists.
        """
        total = sum(self.sizes)
        return 2.0 * len(self.first) / total if total else 1.0


def match_times(first: ArrayLike, second: ArrayLike, tolerance: float) -> MatchedTimes:
    """Return the largest set of pairs of times within ``tolerance``; each time is used once, and the order is kept.

    Pairs are taken greedily in ascending order, which gives the largest matching of sorted times.

    Args:
        first: Times in any unit, ascending, shape ``(n,)``.
        second: The other times in the same unit, ascending, shape ``(m,)``.
        tolerance: Largest difference of a pair, inclusive.
    """
    one, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    pairs, i, j = list[tuple[int, int]](), 0, 0
    while i < len(one) and j < len(other):
        if abs(one[i] - other[j]) <= tolerance:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif one[i] < other[j]:
            i += 1
        else:
            j += 1
    left, right = (np.array([pair[side] for pair in pairs], dtype=np.intp) for side in (0, 1))
    return MatchedTimes(first=left, second=right, sizes=(len(one), len(other)))


REFERENCE = 0.5  # k: half of a shift by one standard deviation, the textbook's choice
_CELLS = 101  # states of the Markov chain: run lengths up to 10,000 are accurate within 0.5 %
_LONGEST = 20.0  # largest threshold; its run length at k = 0.5 exceeds a billion values


def cusum(values: ArrayLike) -> Array:
    """Return Page's CUSUM (cumulative sum) after each standardized value, to detect upward shifts.

    The sum after value z_t is S_t = max(0, S_{t−1} + z_t − ½), from S_0 = 0. Subtracting ½ is best for shifts of one
    standard deviation.

    Apply it to the negated values for downward shifts.

    Args:
        values: Deviations from the mean before the shift, in standard deviations, shape ``(…, n)``.

    Returns:
        Sums S_t, shape ``(…, n)``.
    """
    z = np.asarray(values, dtype=np.float64)
    path, total = np.empty_like(z), np.zeros(z.shape[:-1])
    for i in range(z.shape[-1]):
        total = np.maximum(0.0, total + z[..., i] - REFERENCE)
        path[..., i] = total
    return path


def cusum_run_length(threshold: float, *, shift: float = 0.0) -> float:
    """Return the mean number of values until a CUSUM alarm, for independent normal values of variance 1.

    Args:
        threshold: The alarm threshold h.
        shift: Mean of the values in standard deviations; 0 gives the mean number of values between false alarms.

    Raises:
        InputError: If the threshold is not above 0.
    """
    if threshold <= 0:
        raise InputError(
            f"A CUSUM's threshold of {threshold:g} alarms immediately. Give a number above 0; 4 or 5 is usual."
        )
    width = 2.0 * threshold / (2 * _CELLS - 1)  # the first cell is half as wide and holds 0 (Brook & Evans 1972, § 2)
    centre = width * np.arange(_CELLS)
    step = centre[None, :] - centre[:, None] + REFERENCE - shift
    upper = ndtr(step + width / 2)
    chain = upper - ndtr(step - width / 2)
    chain[:, 0] = upper[:, 0]
    return float(np.linalg.solve(np.eye(_CELLS) - chain, np.ones(_CELLS))[0])


@cache
def cusum_threshold(run_length: float) -> float:
    """Return the CUSUM threshold whose mean number of values between false alarms is ``run_length``.

    The threshold is in standard deviations of the values, for the sum of `cusum`, which subtracts k = 0.5 from each
    value. For example, it is 4.10 for 370 values.

    Raises:
        InputError: If the run length is outside the range that can be computed.
    """
    from scipy.optimize import brentq

    least, most = (cusum_run_length(h) for h in (1e-6, _LONGEST))
    if not least < run_length < most:
        raise InputError(
            f"No CUSUM with k = {REFERENCE:g} has a mean run length of {run_length:g} values; it can be from "
            f"{least:.3g} to {most:.3g}."
        )
    threshold = brentq(lambda h: np.log(cusum_run_length(h) / run_length), 1e-6, _LONGEST)
    return float(threshold)  # pyright: ignore[reportArgumentType]


def self_starting_scores(before: ArrayLike, values: ArrayLike) -> Array:
    """Convert values to standard normal scores relative to all earlier values, for a self-starting CUSUM.

    Each value is compared with the mean and standard deviation of all earlier values, which gives a Student t
    statistic. The score is the standard normal quantile with the same tail probability (Hawkins 1987).

    Args:
        before: At least two values from normal operation.
        values: The following values in order, shape ``(n,)``.

    Returns:
        Scores of ``values``, shape ``(n,)``.

    Raises:
        InputError: If ``before`` has fewer than two values, or all of them are equal.
    """
    known, given = np.asarray(before, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if len(known) < 2 or np.ptp(known) == 0:
        raise InputError("A self-starting CUSUM needs at least two different values to start.")
    every = np.concatenate([known, given])
    count = np.arange(len(known), len(every))  # values before each
    total, squares = np.cumsum(every)[count - 1], np.cumsum((every - known.mean()) ** 2)[count - 1]
    mean = total / count
    variance = (squares - count * (mean - known.mean()) ** 2) / (count - 1)
    score = (given - mean) / np.sqrt(variance * (1.0 + 1.0 / count))
    return -np.sign(score) * ndtri(stdtr(count - 1, -np.abs(score)))
