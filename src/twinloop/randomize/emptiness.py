"""The largest holes in a set of points of the unit cube: along one axis, in a pair of axes, in all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.randomize.margins import Margin
from twinloop.randomize.sobol import scrambled_sobol

# Beyond this many axes every ball of note sticks out of the cube and distances tell nothing (Beyer et al., ICDT 1999).
MOST_BALL_AXES = 8
_PROBES = 512  # centres of candidate balls; our choice: more cost time in every run


def longest_gap(axis: Margin, hit: NDArray[np.bool_], count: int) -> dict[str, Any]:
    """The widest part of one axis that no point lies in, from which parts of it were hit.

    ``expected`` is the mean widest gap of as many independent draws: the mean of the largest of n + 1 uniform spacings
    is the (n+1)-th harmonic number over n + 1.
    """
    start, length = (int(value[0]) for value in _longest_run(~hit[None]))
    ends = np.array([start, start + length]) / len(hit)
    spacings = np.arange(1, count + 2)
    return {
        "width": length / len(hit),
        "expected": float((1.0 / spacings).sum() / (count + 1)),
        "low": _si(axis, ends[0]),
        "high": _si(axis, ends[1]),
    }


def pair_hole(
    axes: Sequence[Margin], pairs: Sequence[tuple[int, int]], hit: NDArray[np.bool_], count: int
) -> dict[str, Any] | None:
    """The largest empty box in any pair of continuous axes, from the hit cells ``(npair, m, m)``; None without one.

    ``by_chance`` is the mean number of empty boxes of that many cells that independent draws would leave in all pairs.
    """
    chosen = [k for k, (i, j) in enumerate(pairs) if not axes[i].weights and not axes[j].weights]
    if not chosen:
        return None
    best, box = 0, [0] * 5
    m = hit.shape[1]
    for top in range(m):
        covered = np.zeros((len(chosen), m), dtype=bool)
        for bottom in range(top, m):
            covered |= hit[chosen, bottom]
            start, length = _longest_run(~covered)
            k = int(np.argmax(length))
            if length[k] * (bottom - top + 1) > best:
                best = int(length[k] * (bottom - top + 1))
                box = [k, top, bottom + 1, int(start[k]), int(start[k] + length[k])]
    if not best:
        return None
    spans = zip([axes[i] for i in pairs[chosen[box[0]]]], (box[1:3], box[3:5]), strict=True)
    return {
        "probability": best / m**2,
        "by_chance": len(chosen) * _boxes_of(best, m) * (1.0 - best / m**2) ** count,
        **_described(list(spans), m),
    }


class EmptyBall:
    """The largest ball around one of some evenly spread centres that no point lies in, for few axes.

    Distances are in cumulative probability; the ball may stick out of the cube.
    """

    def __init__(self, axes: int) -> None:
        self._centres = scrambled_sobol(np.arange(_PROBES), axes, run_seed=0)
        self._nearest = np.full(_PROBES, np.inf)

    @classmethod
    def of(cls, axes: int) -> EmptyBall | None:
        """A ball for so many axes; None where there are none or too many."""
        return cls(axes) if 0 < axes <= MOST_BALL_AXES else None

    def add(self, u: NDArray[np.float64]) -> None:
        """Look at points ``(n, d)``."""
        distance = np.zeros((_PROBES, len(u)))
        for centre, column in zip(self._centres.T, u.T, strict=True):
            distance += (centre[:, None] - column) ** 2
        self._nearest = np.minimum(self._nearest, distance.min(axis=1, initial=np.inf))

    def result(self, axes: Sequence[Margin]) -> dict[str, Any]:
        """Radius and centre, in SI values."""
        best = int(np.argmax(self._nearest))
        return {
            "radius": float(np.sqrt(self._nearest[best])),
            "centre": {axis.name: _si(axis, u) for axis, u in zip(axes, self._centres[best], strict=True)},
        }


def _longest_run(free: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Start and length of the longest run of True in every row of ``(n, m)``; the first of equals."""
    column = np.arange(free.shape[1])
    run = column - np.maximum.accumulate(np.where(free, -1, column), axis=1)
    end = run.argmax(axis=1)
    best = run[np.arange(len(free)), end]
    return np.where(best > 0, end + 1 - best, 0), best


def _boxes_of(cells: int, m: int) -> int:
    """How many boxes of so many cells an ``m`` by ``m`` grid has."""
    return sum(
        (m - height + 1) * (m - cells // height + 1)
        for height in range(1, m + 1)
        if cells % height == 0 and cells // height <= m
    )


def _described(spans: list[tuple[Margin, list[int]]], m: int) -> dict[str, Any]:
    return {
        "names": [axis.name for axis, _ in spans],
        "low": [_si(axis, start / m) for axis, (start, _) in spans],
        "high": [_si(axis, end / m) for axis, (_, end) in spans],
        "centre": [_si(axis, (start + end) / 2 / m) for axis, (start, end) in spans],
    }


def _si(axis: Margin, u: float) -> float:
    """The SI value at a cumulative probability, a little inside of 0 and 1, where a normal has no end."""
    return float(axis.to_si(np.clip(np.array([u]), 1e-6, 1 - 1e-6))[0])
