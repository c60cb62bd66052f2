"""Simulated trials of two policies: planted rates, in slices, as pairs that have more or less in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from twinloop.stats import clopper_pearson

Won = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Truth:
    """Success rates of candidate and champion in each slice ``(nslice,)``; slices take turns.

    ``together`` is the correlation of the two normal draws behind a pair: 0 for trials that share nothing, near 1 for
    those whose start decides for both.
    """

    name: str
    candidate: tuple[float, ...]
    champion: tuple[float, ...]
    together: float = 0.5

    def draw(self, random: np.random.Generator, runs: int, pairs: int) -> tuple[Won, Won]:
        """Outcomes of both ``(runs, pairs)``."""
        slices = np.arange(pairs) % len(self.candidate)
        common = np.sqrt(self.together) * random.standard_normal((runs, pairs))
        own = np.sqrt(1 - self.together)

        def won(rates: tuple[float, ...]) -> Won:
            return ndtr(common + own * random.standard_normal((runs, pairs))) < np.array(rates)[slices]

        return won(self.candidate), won(self.champion)


def rate(count: int, total: int) -> str:
    """A share in per cent with its exact interval of 95 %."""
    i = clopper_pearson(count, total)
    return f"{100 * count / total:.1f} % [{100 * float(i.low):.1f}, {100 * float(i.high):.1f}]"
