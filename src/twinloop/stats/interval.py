"""An estimate with its interval, for one number or an array of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.headline import Better, Headline


@dataclass(frozen=True, kw_only=True)
class Interval:
    """``estimate`` lies in [``low``, ``high``] at confidence ``level``, elementwise; ``method`` says how it is made."""

    estimate: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    level: float
    method: str

    def __post_init__(self) -> None:
        for name in ("estimate", "low", "high"):
            value = np.array(getattr(self, name), dtype=np.float64)
            value.setflags(write=False)
            object.__setattr__(self, name, value)

    def covers(self, truth: ArrayLike) -> NDArray[np.bool_]:
        """Where the interval holds ``truth``."""
        truth = np.asarray(truth, dtype=np.float64)
        return (self.low <= truth) & (truth <= self.high)

    def headline(
        self, name: str, at: int | tuple[int, ...] = (), *, unit: str = "", better: Better = "lower", meaning: str = ""
    ) -> Headline:
        """One element as a figure that a measurement ends in; ``at`` is its place, () of a single number."""
        return Headline(
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
        """One element of an interval of an array."""
        return Interval(
            estimate=self.estimate[index],
            low=self.low[index],
            high=self.high[index],
            level=self.level,
            method=self.method,
        )

    def percent(self, digits: int = 0) -> str:
        """A share with its interval, such as ``83% [72%, 91%]``; of a single number."""
        estimate, low, high = (f"{float(value):.{digits}%}" for value in (self.estimate, self.low, self.high))
        return f"{estimate} [{low}, {high}]"

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        return {
            "estimate": self.estimate.tolist(),
            "low": self.low.tolist(),
            "high": self.high.tolist(),
            "level": self.level,
            "method": self.method,
        }


def check_level(level: float) -> None:
    """Refuse a confidence level outside (0, 1).

    Raises:
        InputError: it is a percentage or a tail probability by mistake, most likely.
    """
    if not 0.0 < level < 1.0:
        raise InputError(f"A confidence level lies between 0 and 1, not at {level:g}. Write 95 % as 0.95.")
