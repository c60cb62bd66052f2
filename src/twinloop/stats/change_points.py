"""Find changes in series: a change of slope, lasting shifts of a mean; and match two lists of change times.

Page's CUSUM of standardized values is S ← max(0, S + z − k), an alarm where S ≥ h (Page, "Continuous inspection
schemes", Biometrika 41, 1954). k is half of the shift to detect. Its mean run length is that of a Markov chain on
cells of [0, h) (Brook & Evans, "An approach to the probability distribution of CUSUM run length", Biometrika 59, 1972).

With mean and spread estimated from few values, false alarms are far more frequent than the chain predicts. The
self-starting CUSUM (Hawkins, "Self-starting CUSUM charts for location and scale", The Statistician 36, 1987)
standardizes each value by the values before it. For independent normal values the result is exactly standard normal and
independent, for any number of values.
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
    """A change at row ``index`` (the first row after it), or none (``index`` 0, ``before`` equals ``after``).

    ``gain`` is the part of the squared residuals of the fit without a change that the change explains, 0 to 1.
    """

    index: int
    before: float
    after: float
    gain: float


def slope_change(x: ArrayLike, y: ArrayLike, *, least: int) -> ChangePoint:
    """Return the row at which ``y = slope · x`` changes its slope, by least squares over all splits.

    Args:
        x: ``(n,)``, about zero: no intercept is fitted.
        y: ``(n,)``.
        least: minimum number of rows on each side.
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
class MatchedMoments:
    """Matched times of two lists: indices of the matched times in each list, ``(n,)``, and the lengths of the lists."""

    first: NDArray[np.intp]
    second: NDArray[np.intp]
    sizes: tuple[int, int]

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall: 2 matches / total length of both lists; 1 if both are empty."""
        total = sum(self.sizes)
        return 2.0 * len(self.first) / total if total else 1.0


def match_times(first: ArrayLike, second: ArrayLike, tolerance: float) -> MatchedMoments:
    """Return the largest set of pairs of times within ``tolerance``; each time is used once, and the order is kept.

    On a line, taking pairs greedily from the left gives the largest matching.

    Args:
        first: times ``(n,)`` in any unit, ascending.
        second: the other times, ascending, in the same unit.
        tolerance: largest distance of a pair, inclusive.
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
    return MatchedMoments(first=left, second=right, sizes=(len(one), len(other)))


REFERENCE = 0.5  # k: half of a shift by one standard deviation, the textbook's choice
_CELLS = 101  # of the chain with normal values: run lengths up to 10,000 within 0.5 %
_LONGEST = 20.0  # largest threshold; its run length at k = 0.5 exceeds a billion values


def cusum(values: ArrayLike) -> Array:
    """Return the upper CUSUM after each standardized value ``(…, n)``, with k = `REFERENCE`; −z gives the lower one."""
    z = np.asarray(values, dtype=np.float64)
    path, total = np.empty_like(z), np.zeros(z.shape[:-1])
    for i in range(z.shape[-1]):
        total = np.maximum(0.0, total + z[..., i] - REFERENCE)
        path[..., i] = total
    return path


def cusum_run_length(threshold: float, *, shift: float = 0.0) -> float:
    """Return the mean number of values until an alarm, for independent normal values of mean ``shift``, variance 1."""
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
    """Return the threshold with this mean run length if the mean does not shift; 4.10 for 370 values at k = 0.5.

    Raises:
        InputError: a run length outside the computable range.
    """
    from scipy.optimize import brentq

    least, most = (cusum_run_length(h) for h in (1e-6, _LONGEST))
    if not least < run_length < most:
        raise InputError(
            f"No CUSUM with k = {REFERENCE:g} has a mean run length of {run_length:g} values; it can be from "
            f"{least:.3g} to {most:.3g}."
        )
    found = brentq(lambda h: np.log(cusum_run_length(h) / run_length), 1e-6, _LONGEST)
    return float(found)  # pyright: ignore[reportArgumentType]


def self_starting_scores(before: ArrayLike, values: ArrayLike) -> Array:
    """Convert values ``(n,)`` to standard normal scores relative to all earlier values.

    Args:
        before: at least two values from normal operation.
        values: the following values, in order.

    Raises:
        InputError: fewer than two values in ``before``, or all of them equal.
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
