"""Simulate trials of two policies with known success rates per evaluation slice, as correlated pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from twinloop.stats import clopper_pearson

Won = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Truth:
    """Success rates of candidate and champion in each evaluation slice; trials alternate between slices.

    Attributes:
        candidate: Success rates of the candidate, one per slice.
        champion: Success rates of the champion, one per slice.
        together: Correlation of the two normal variables behind a pair: 0 for independent trials, near 1 if the initial
            conditions decide both outcomes.
    """

    name: str
    candidate: tuple[float, ...]
    champion: tuple[float, ...]
    together: float = 0.5

    def draw(self, random: np.random.Generator, runs: int, pairs: int) -> tuple[Won, Won]:
        """Draw outcomes of candidate and champion, each ``(runs, pairs)``."""
        slices = np.arange(pairs) % len(self.candidate)
        common = np.sqrt(self.together) * random.standard_normal((runs, pairs))
        own = np.sqrt(1 - self.together)

        def won(rates: tuple[float, ...]) -> Won:
            return ndtr(common + own * random.standard_normal((runs, pairs))) < np.array(rates)[slices]

        return won(self.candidate), won(self.champion)


def rate(count: int, total: int) -> str:
    """Format a share in per cent with its exact 95 % interval."""
    i = clopper_pearson(count, total)
    return f"{100 * count / total:.1f} % [{100 * float(i.low):.1f}, {100 * float(i.high):.1f}]"
