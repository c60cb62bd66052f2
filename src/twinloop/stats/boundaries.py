"""How far two divisions of the same stretch of time agree: which moments match, and how far these lie apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, kw_only=True)
class Matched:
    """Moments of two lists that match one to one: their numbers in each, ``(n,)``, and how many each list has."""

    first: NDArray[np.intp]
    second: NDArray[np.intp]
    sizes: tuple[int, int]

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall: 2 matches / moments of both; 1 where neither has any."""
        total = sum(self.sizes)
        return 2.0 * len(self.first) / total if total else 1.0


def match_moments(first: ArrayLike, second: ArrayLike, tolerance: float) -> Matched:
    """The most pairs of moments that lie within ``tolerance``, none used twice, order kept.

    On a line, taking pairs from the left is the largest matching there is.

    Args:
        first: moments ``(n,)`` in any unit, ascending.
        second: the others, ascending, in the same unit.
        tolerance: largest distance of a pair, that distance included.
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
    return Matched(first=left, second=right, sizes=(len(one), len(other)))
