"""P-values of several tests together."""

from __future__ import annotations

import numpy as np
import scipy  # its parts load when they are used
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """Adjusted p-values that keep the chance of any false alarm: reject where they are at most that chance.

    p̃_(i) = max_{j ≤ i} min(1, (m − j + 1) p_(j)) (Holm, Scandinavian Journal of Statistics 6, 1979); valid whatever the
    dependence between the tests.

    Raises:
        InputError: a value that is no probability.
    """
    p = _checked(p_values)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(np.minimum(p[order] * np.arange(len(p), 0, -1), 1.0))
    return adjusted


def benjamini_hochberg(p_values: ArrayLike) -> NDArray[np.float64]:
    """Adjusted p-values that keep the share of false alarms among all alarms: reject where they are at most that share.

    For independent or positively dependent tests (Benjamini & Hochberg, J. R. Stat. Soc. B 57, 1995).

    Raises:
        InputError: a value that is no probability.
    """
    p = _checked(p_values)
    return np.asarray(scipy.stats.false_discovery_control(p), dtype=np.float64) if len(p) else p


def _checked(p_values: ArrayLike) -> NDArray[np.float64]:
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise InputError(f"P-values are a list of numbers from 0 to 1; given {np.array2string(p, threshold=6)}.")
    return p
