"""P-values of several tests together."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """Adjusted p-values that keep the chance of any false alarm: reject where they are at most that chance.

    p̃_(i) = max_{j ≤ i} min(1, (m − j + 1) p_(j)) (Holm, Scandinavian Journal of Statistics 6, 1979); valid whatever the
    dependence between the tests.

    Raises:
        InputError: a value that is no probability.
    """
    p, order = _ordered(p_values)
    adjusted = np.maximum.accumulate(np.minimum(p[order] * np.arange(len(p), 0, -1), 1.0))
    return _put_back(adjusted, order)


def benjamini_hochberg(p_values: ArrayLike) -> NDArray[np.float64]:
    """Adjusted p-values that keep the expected part of false alarms among all alarms, for independent tests.

    p̃_(i) = min_{j ≥ i} min(1, m p_(j) / j) (Benjamini & Hochberg, J. R. Stat. Soc. B 57, 1995).

    Raises:
        InputError: a value that is no probability.
    """
    p, order = _ordered(p_values)
    raised = np.minimum(p[order] * len(p) / np.arange(1, len(p) + 1), 1.0)
    return _put_back(np.minimum.accumulate(raised[::-1])[::-1], order)


def _ordered(p_values: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise InputError(f"P-values are a list of numbers from 0 to 1; given {np.array2string(p, threshold=6)}.")
    return p, np.argsort(p, kind="stable")


def _put_back(values: NDArray[np.float64], order: NDArray[np.intp]) -> NDArray[np.float64]:
    result = np.empty_like(values)
    result[order] = values
    return result
