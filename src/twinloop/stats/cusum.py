"""Small lasting shifts of a mean: CUSUM and Page–Hinkley, with the run lengths that they have where nothing shifts.

Page's CUSUM of standardized values is S ← max(0, S + z − k), an alarm where S ≥ h (Page, "Continuous inspection
schemes", Biometrika 41, 1954). k is half of the shift that is sought. Its mean run length is that of a Markov chain on
cells of [0, h) (Brook & Evans, "An approach to the probability distribution of CUSUM run length", Biometrika 59, 1972).

Mean and spread that were estimated from few values make false alarms far more frequent than the chain says. The
self-starting CUSUM (Hawkins, "Self-starting CUSUM charts for location and scale", The Statistician 36, 1987) takes each
value in terms of those before it; for independent normal values what comes out is exactly standard normal and
independent, however few there are.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri, stdtr

from twinloop.core.errors import InputError

Array = NDArray[np.float64]
REFERENCE = 0.5  # k: half of a shift by one standard deviation, the textbook's choice
_CELLS = 101  # of the chain with normal values: run lengths up to 10,000 within 0.5 %
_LONGEST = 20.0  # threshold; with k = 0.5 beyond a billion values


def cusum(values: ArrayLike, *, reference: float = REFERENCE, start: float = 0.0) -> Array:
    """The upper CUSUM after each standardized value, ``(…, n)``.

    Args:
        values: ``(…, n)``; give −z for the lower one.
        reference: k.
        start: of S; half of the threshold is the fast initial response of Lucas & Crosier (Technometrics 24, 1982).
    """
    z = np.asarray(values, dtype=np.float64)
    path, total = np.empty_like(z), np.full(z.shape[:-1], start, dtype=np.float64)
    for i in range(z.shape[-1]):
        total = np.maximum(0.0, total + z[..., i] - reference)
        path[..., i] = total
    return path


def cusum_run_length(threshold: float, *, reference: float = REFERENCE, shift: float = 0.0) -> float:
    """The mean number of values until an alarm, for independent normal values of mean ``shift`` and variance 1."""
    if threshold <= 0:
        raise InputError(
            f"A CUSUM's threshold of {threshold:g} alarms at once. Give a number above 0; 4 or 5 is usual."
        )
    width = 2.0 * threshold / (2 * _CELLS - 1)  # the first cell is half as wide and holds 0 (Brook & Evans 1972, § 2)
    centre = width * np.arange(_CELLS)
    step = centre[None, :] - centre[:, None] + reference - shift
    upper = ndtr(step + width / 2)
    chain = upper - ndtr(step - width / 2)
    chain[:, 0] = upper[:, 0]
    return float(np.linalg.solve(np.eye(_CELLS) - chain, np.ones(_CELLS))[0])


@cache
def cusum_threshold(run_length: float, *, reference: float = REFERENCE) -> float:
    """The threshold with that mean run length where nothing shifts; 4.10 for 370 values at k = 0.5.

    Raises:
        InputError: a run length below that of the smallest threshold, or beyond what can be computed.
    """
    from scipy.optimize import brentq

    least, most = (cusum_run_length(h, reference=reference) for h in (1e-6, _LONGEST))
    if not least < run_length < most:
        raise InputError(
            f"No CUSUM with k = {reference:g} has a mean run length of {run_length:g} values; it can be from "
            f"{least:.3g} to {most:.3g}."
        )
    found = brentq(lambda h: np.log(cusum_run_length(h, reference=reference) / run_length), 1e-6, _LONGEST)
    return float(found)  # pyright: ignore[reportArgumentType]


def self_starting(before: ArrayLike, values: ArrayLike) -> Array:
    """Values ``(n,)`` as standard normal numbers in terms of all that came before them.

    Args:
        before: at least two values that are known to be good.
        values: what follows, in order.

    Raises:
        InputError: fewer than two, or all of them alike.
    """
    known, given = np.asarray(before, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if len(known) < 2 or np.ptp(known) == 0:
        raise InputError("A self-starting CUSUM needs at least two unlike values to begin with.")
    every = np.concatenate([known, given])
    count = np.arange(len(known), len(every))  # values before each
    total, squares = np.cumsum(every)[count - 1], np.cumsum((every - known.mean()) ** 2)[count - 1]
    mean = total / count
    variance = (squares - count * (mean - known.mean()) ** 2) / (count - 1)
    score = (given - mean) / np.sqrt(variance * (1.0 + 1.0 / count))
    return -np.sign(score) * ndtri(stdtr(count - 1, -np.abs(score)))


def page_hinkley(values: ArrayLike, *, tolerance: float) -> Array:
    """The Page–Hinkley statistic for a rise of the mean after each value, ``(…, n)``.

    The sum of x − (mean so far) − ``tolerance`` less its smallest value so far (Hinkley, "Inference about the
    change-point from cumulative sum tests", Biometrika 58, 1971): a CUSUM that needs to know no mean.
    """
    x = np.asarray(values, dtype=np.float64)
    mean = np.cumsum(x, axis=-1) / np.arange(1, x.shape[-1] + 1)
    total = np.cumsum(x - mean - tolerance, axis=-1)
    return total - np.minimum(np.minimum.accumulate(total, axis=-1), 0.0)
