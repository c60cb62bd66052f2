"""Represent an estimate with its confidence interval, and adjust p-values of several tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy  # its parts load when they are used
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.headline import Better, HeadlineMetric
from twinloop.core.plain import JsonRecord
from twinloop.core.records import freeze_array


@dataclass(frozen=True, kw_only=True)
class Interval(JsonRecord):
    """An estimate with its confidence interval, as a number or elementwise for an array.

    Attributes:
        estimate: Estimate.
        low: Lower limit; NaN if there is no interval.
        high: Upper limit; NaN if there is no interval.
        level: Confidence level, for example 0.95.
        method: Name of the method, or the reason why there is no interval.
    """

    estimate: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    level: float
    method: str

    def __post_init__(self) -> None:
        for name in ("estimate", "low", "high"):
            object.__setattr__(self, name, freeze_array(getattr(self, name)))

    @classmethod
    def of(cls, estimate: ArrayLike, low: ArrayLike, high: ArrayLike, *, level: float, method: str) -> Interval:
        """Create an interval from numbers, or from arrays of equal shape."""
        return cls(
            estimate=freeze_array(estimate), low=freeze_array(low), high=freeze_array(high), level=level, method=method
        )

    def covers(self, truth: ArrayLike) -> NDArray[np.bool_]:
        """Return whether the interval contains ``truth``, elementwise."""
        truth = np.asarray(truth, dtype=np.float64)
        return (self.low <= truth) & (truth <= self.high)

    def headline(
        self, name: str, at: int | tuple[int, ...] = (), *, unit: str = "", better: Better = "lower", meaning: str = ""
    ) -> HeadlineMetric:
        """Return one element of the interval as a headline metric, for reports and conditions of ``--fail-if``.

        Args:
            name: Name of the metric.
            at: Index of the element in an array of intervals, one integer per axis; () for a single interval.
            unit: Unit of the metric.
            better: Whether lower or higher values are better.
            meaning: Explanation in a few words.
        """
        return HeadlineMetric(
            name=name,
            estimate=float(self.estimate[at]),
            low=float(self.low[at]),
            high=float(self.high[at]),
            level=self.level,
            unit=unit,
            better=better,
            method=self.method,
            meaning=meaning,
        )

    def at(self, *index: int) -> Interval:
        """Return one element of an array of intervals, by its index."""
        return Interval.of(
            self.estimate[index], self.low[index], self.high[index], level=self.level, method=self.method
        )

    def percent(self, digits: int = 0) -> str:
        """Return a share with its interval as text, for example ``83% [72%, 91%]``.

        Args:
            digits: Number of digits after the decimal point.
        """
        estimate, low, high = (f"{float(value):.{digits}%}" for value in (self.estimate, self.low, self.high))
        return f"{estimate} [{low}, {high}]"


def check_level(level: float) -> None:
    """Check that a confidence level is in (0, 1).

    Raises:
        InputError: If it is not, for example because it is a percentage.
    """
    if not 0.0 < level < 1.0:
        raise InputError(f"A confidence level must be between 0 and 1, not {level:g}. Write 95 % as 0.95.")


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """Return p-values adjusted by Holm's method for several tests.

    Reject the tests whose adjusted p-value is at most α; the chance of any false rejection is then at most α. For m
    tests, the j-th smallest p-value is multiplied by m − j + 1, and limited to 1. An adjusted p-value is the largest of
    these products for all p-values up to its own (Holm, Scandinavian Journal of Statistics 6, 1979). It is valid for
    any dependence between the tests. SciPy has no such function.

    Raises:
        InputError: If a value is outside [0, 1].
    """
    p = _check_p_values(p_values)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(np.minimum(p[order] * np.arange(len(p), 0, -1), 1.0))
    return adjusted


def benjamini_hochberg(p_values: ArrayLike) -> NDArray[np.float64]:
    """Return p-values adjusted by the Benjamini-Hochberg method for the false discovery rate.

    Reject the tests whose adjusted p-value is at most q; the expected share of false rejections is then at most q. It
    is valid for independent or positively dependent tests (Benjamini & Hochberg, J. R. Stat. Soc. B 57, 1995).

    Raises:
        InputError: If a value is outside [0, 1].
    """
    p = _check_p_values(p_values)
    return np.asarray(scipy.stats.false_discovery_control(p), dtype=np.float64) if len(p) else p


def _check_p_values(p_values: ArrayLike) -> NDArray[np.float64]:
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise InputError(f"P-values are a list of numbers from 0 to 1; given {np.array2string(p, threshold=6)}.")
    return p
