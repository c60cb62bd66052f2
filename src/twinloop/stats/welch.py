"""The difference between the means of two groups of clusters whose spreads differ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtrit

from twinloop.core.errors import InputError
from twinloop.stats.interval import Interval, check_level

_LEAST_CLUSTERS = 2


@dataclass(frozen=True, kw_only=True)
class WelchTest:
    """``difference`` of the means, first − second, with its interval; ``p_value`` ``(…)`` that there is none."""

    difference: Interval
    p_value: np.ndarray


def welch_test(first: ArrayLike, second: ArrayLike, *, level: float = 0.95) -> WelchTest:
    """Welch's t-test of cluster values ``(n, …)`` against ``(m, …)``, two-sided, elementwise over the trailing axes.

    Welch, "The generalization of 'Student's' problem when several different population variances are involved",
    Biometrika 34 (1947), with Satterthwaite's degrees of freedom. Where neither group varies, the difference is exact:
    its interval has no width, and p is 1 where it is 0, else 0.

    Raises:
        InputError: fewer than two clusters in a group.
    """
    check_level(level)
    one, two = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    for values in (one, two):
        if len(values) < _LEAST_CLUSTERS:
            raise InputError(
                f"A group of {len(values)} cannot tell how its members differ; give at least {_LEAST_CLUSTERS} of each."
            )
    parts = [values.var(axis=0, ddof=1) / len(values) for values in (one, two)]
    total = parts[0] + parts[1]
    exact = total <= (1e-12 * (np.abs(one).max(axis=0) + np.abs(two).max(axis=0))) ** 2
    loose = sum(part**2 / (len(values) - 1) for part, values in zip(parts, (one, two), strict=True))
    freedom = np.divide(total**2, loose, out=np.ones_like(total), where=~exact)
    estimate, error = one.mean(axis=0) - two.mean(axis=0), np.where(exact, 0.0, np.sqrt(total))
    reach = stdtrit(freedom, (1 + level) / 2) * error
    t = np.divide(np.abs(estimate), error, out=np.where(np.abs(estimate) > 0, np.inf, 0.0), where=error > 0)
    return WelchTest(
        difference=Interval(
            estimate=estimate,
            low=estimate - reach,
            high=estimate + reach,
            level=level,
            method="Welch's t over clusters",
        ),
        p_value=np.asarray(2.0 * stdtr(freedom, -t), dtype=np.float64),
    )
