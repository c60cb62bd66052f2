"""Represent an estimate with its interval, and correct p-values for several tests."""

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
    """An estimate in [``low``, ``high``] at confidence ``level``, elementwise; ``method`` names the method."""

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
        """Create an interval from numbers or arrays of one shape."""
        return cls(
            estimate=freeze_array(estimate), low=freeze_array(low), high=freeze_array(high), level=level, method=method
        )

    def covers(self, truth: ArrayLike) -> NDArray[np.bool_]:
        """Return where the interval contains ``truth``."""
        truth = np.asarray(truth, dtype=np.float64)
        return (self.low <= truth) & (truth <= self.high)

    def headline(
        self, name: str, at: int | tuple[int, ...] = (), *, unit: str = "", better: Better = "lower", meaning: str = ""
    ) -> HeadlineMetric:
        """Return one element as a headline metric; ``at`` is its index, () for a single number."""
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
        """Return one element of an interval of an array."""
        return Interval.of(
            self.estimate[index], self.low[index], self.high[index], level=self.level, method=self.method
        )

    def percent(self, digits: int = 0) -> str:
        """Return a single share with its interval as text, for example ``83% [72%, 91%]``."""
        estimate, low, high = (f"{float(value):.{digits}%}" for value in (self.estimate, self.low, self.high))
        return f"{estimate} [{low}, {high}]"


def check_level(level: float) -> None:
    """Check that a confidence level is in (0, 1).

    Raises:
        InputError: the level is outside; it may be a percentage or a tail probability.
    """
    if not 0.0 < level < 1.0:
        raise InputError(f"A confidence level must be between 0 and 1, not {level:g}. Write 95 % as 0.95.")


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """Return p-values adjusted for the chance of any false alarm: reject those that are at most that chance.

    p̃_(i) = max_{j ≤ i} min(1, (m − j + 1) p_(j)) (Holm, Scandinavian Journal of Statistics 6, 1979). Valid for any
    dependence between the tests. SciPy has no such function, and these lines do not justify statsmodels.

    Raises:
        InputError: a value outside [0, 1].
    """
    p = _check_p_values(p_values)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(np.minimum(p[order] * np.arange(len(p), 0, -1), 1.0))
    return adjusted


def benjamini_hochberg(p_values: ArrayLike) -> NDArray[np.float64]:
    """Return p-values adjusted for the false discovery rate: reject those that are at most that rate.

    Valid for independent or positively dependent tests (Benjamini & Hochberg, J. R. Stat. Soc. B 57, 1995).

    Raises:
        InputError: a value outside [0, 1].
    """
    p = _check_p_values(p_values)
    return np.asarray(scipy.stats.false_discovery_control(p), dtype=np.float64) if len(p) else p


def _check_p_values(p_values: ArrayLike) -> NDArray[np.float64]:
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise InputError(f"P-values are a list of numbers from 0 to 1; given {np.array2string(p, threshold=6)}.")
    return p
