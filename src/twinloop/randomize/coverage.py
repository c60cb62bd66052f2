"""Measure the visited part of the parameter space, axis by axis and pair by pair, and find the largest holes.

Values are mapped to their cumulative probability, so that under the declared distributions all equal parts of the unit
cube have the same probability. The visited part is compared with that of independent draws: n draws hit a cell of
probability p with probability 1 - (1 - p)^n. Counting is incremental: memory does not grow with the number of
episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.randomize.axes import MarginAxis
from twinloop.randomize.sequences import scrambled_sobol

# With more axes every large ball extends beyond the cube, and distances are meaningless (Beyer et al., ICDT 1999).
MOST_BALL_AXES = 8
_PROBES = 512  # centres of candidate balls; our choice, limited by computing time


def longest_gap(axis: MarginAxis, hit: NDArray[np.bool_], count: int) -> dict[str, Any]:
    """Return the widest gap of one axis without a point, from the parts that were hit.

    ``expected`` is the mean widest gap of as many independent draws: the mean of the largest of n + 1 uniform spacings
    is the (n+1)-th harmonic number over n + 1.
    """
    start, length = (int(value[0]) for value in _longest_run(~hit[None]))
    ends = np.array([start, start + length]) / len(hit)
    spacings = np.arange(1, count + 2)
    return {
        "width": length / len(hit),
        "expected": float((1.0 / spacings).sum() / (count + 1)),
        "low": _to_si(axis, ends[0]),
        "high": _to_si(axis, ends[1]),
    }


def largest_pair_hole(
    axes: Sequence[MarginAxis], pairs: Sequence[tuple[int, int]], hit: NDArray[np.bool_], count: int
) -> dict[str, Any] | None:
    """Return the largest empty box in any pair of continuous axes, from the hit cells ``(npair, m, m)``, or None.

    ``by_chance`` is the mean number of empty boxes of this size in all pairs for as many independent draws.
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
        "by_chance": len(chosen) * _count_boxes(best, m) * (1.0 - best / m**2) ** count,
        **_describe_box(list(spans), m),
    }


class EmptyBall:
    """Largest ball without a point around one of some evenly distributed centres, for few axes.

    Distances are in cumulative probability; the ball may extend beyond the cube.
    """

    def __init__(self, axes: int) -> None:
        self._centres = scrambled_sobol(np.arange(_PROBES), axes, run_seed=0)
        self._nearest = np.full(_PROBES, np.inf)

    @classmethod
    def of(cls, axes: int) -> EmptyBall | None:
        """Return a ball for this number of axes, or None for no axes or too many."""
        return cls(axes) if 0 < axes <= MOST_BALL_AXES else None

    def add(self, u: NDArray[np.float64]) -> None:
        """Shrink the balls by points ``(n, d)``."""
        distance = np.zeros((_PROBES, len(u)))
        for centre, column in zip(self._centres.T, u.T, strict=True):
            distance += (centre[:, None] - column) ** 2
        self._nearest = np.minimum(self._nearest, distance.min(axis=1, initial=np.inf))

    def result(self, axes: Sequence[MarginAxis]) -> dict[str, Any]:
        """Return radius (in cumulative probability) and centre (in SI units)."""
        best = int(np.argmax(self._nearest))
        return {
            "radius": float(np.sqrt(self._nearest[best])),
            "centre": {axis.name: _to_si(axis, u) for axis, u in zip(axes, self._centres[best], strict=True)},
        }


def _longest_run(free: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return start and length of the longest run of True in every row of ``(n, m)``; the first one of equal runs."""
    column = np.arange(free.shape[1])
    run = column - np.maximum.accumulate(np.where(free, -1, column), axis=1)
    end = run.argmax(axis=1)
    best = run[np.arange(len(free)), end]
    return np.where(best > 0, end + 1 - best, 0), best


def _count_boxes(cells: int, m: int) -> int:
    """Return the number of boxes of ``cells`` cells in an ``m`` by ``m`` grid."""
    return sum(
        (m - height + 1) * (m - cells // height + 1)
        for height in range(1, m + 1)
        if cells % height == 0 and cells // height <= m
    )


def _describe_box(spans: list[tuple[MarginAxis, list[int]]], m: int) -> dict[str, Any]:
    return {
        "names": [axis.name for axis, _ in spans],
        "low": [_to_si(axis, start / m) for axis, (start, _) in spans],
        "high": [_to_si(axis, end / m) for axis, (_, end) in spans],
        "centre": [_to_si(axis, (start + end) / 2 / m) for axis, (start, end) in spans],
    }


def _to_si(axis: MarginAxis, u: float) -> float:
    """Return the SI value at a cumulative probability, limited to 1e-6 from 0 and 1, where a normal is infinite."""
    return float(axis.to_si(np.clip(np.array([u]), 1e-6, 1 - 1e-6))[0])


MARGINAL_CELLS, PAIR_CELLS, TRIPLE_CELLS = 32, 10, 4  # per axis; our choice: a few thousand episodes can fill them
_FINE = 1024  # parts of an axis in the search for a gap
_WORST = 10  # pairs that are listed by name
MOST_TRIPLE_AXES = 100  # 161,700 triples of 64 cells, counted in 64 MB
_ROWS = 4096  # points at once; limits the memory of their one-hot form


class CoverageCounter:
    """Incremental counter of points in the unit cube.

    Args:
        axes: the axes of the cube.
        strength: 2 for pairs of axes, 3 for triples too.
    """

    def __init__(self, axes: Sequence[MarginAxis], *, strength: int = 2) -> None:
        self.axes, self.count = list(axes), 0
        d = len(self.axes)
        self._pair_cells = np.array([axis.split_cells(PAIR_CELLS)[0] for axis in self.axes])
        self._triple_cells = np.array([axis.split_cells(TRIPLE_CELLS)[0] for axis in self.axes])
        self._fine = np.zeros((d, _FINE), dtype=np.int64)
        self._coarse = [np.zeros(axis.split_cells(MARGINAL_CELLS)[0], dtype=np.int64) for axis in self.axes]
        self._pairs = np.zeros((d * PAIR_CELLS, d * PAIR_CELLS), dtype=np.int64)
        size = d * TRIPLE_CELLS
        self._triples = np.zeros((size, size, size), dtype=bool) if strength == 3 and d <= MOST_TRIPLE_AXES else None
        self._ball = EmptyBall.of(d)

    def add(self, u: NDArray[np.float64]) -> None:
        """Count points ``(n, d)``."""
        for start in range(0, len(u), _ROWS):
            self._add(np.clip(u[start : start + _ROWS], 0.0, np.nextafter(1.0, 0.0)))

    def _add(self, u: NDArray[np.float64]) -> None:
        self.count += len(u)
        for axis, column in enumerate(u.T):
            self._fine[axis] += np.bincount((column * _FINE).astype(int), minlength=_FINE)
            cells = len(self._coarse[axis])
            self._coarse[axis] += np.bincount((column * cells).astype(int), minlength=cells)
        hot = _one_hot(u, self._pair_cells, PAIR_CELLS)
        self._pairs += (hot.T @ hot).astype(np.int64)  # integers below 2^24: exact in any order of addition
        if self._triples is not None:
            hot = _one_hot(u, self._triple_cells, TRIPLE_CELLS)
            for column in range(hot.shape[1]):
                chosen = hot[hot[:, column] > 0]
                self._triples[column] |= (chosen.T @ chosen) > 0
        if self._ball is not None:
            self._ball.add(u)

    def result(self) -> dict[str, Any]:
        """Return the results as a JSON-compatible dictionary, with fractions and SI values of parameters."""
        figures: dict[str, Any] = {"episodes": self.count, "marginals": self._marginals()}
        if len(self.axes) > 1 and self.count:
            figures["pairs"] = self._pair_metrics()
        if len(self.axes) > 2 and self.count and self._triples is not None:
            figures["triples"] = self._triple_metrics(self._triples)
        if self._ball is not None and self.count:
            figures["ball"] = self._ball.result(self.axes)
        return figures

    def _marginals(self) -> list[dict[str, Any]]:
        rows = []
        for axis, counts, fine in zip(self.axes, self._coarse, self._fine, strict=True):
            expected = expected_occupancy(axis.split_cells(MARGINAL_CELLS)[1], self.count)
            row = {"counts": counts.tolist(), "occupied": float((counts > 0).mean()), "expected": expected}
            if not axis.weights:
                row["gap"] = longest_gap(axis, fine > 0, self.count)
            rows.append(row)
        return rows

    def _pair_metrics(self) -> dict[str, Any]:
        d = len(self.axes)
        table = self._pairs.reshape(d, PAIR_CELLS, d, PAIR_CELLS).transpose(0, 2, 1, 3)
        pairs = [(i, j) for i in range(d) for j in range(i + 1, d)]
        first, second = np.array(pairs).T
        hit = table[first, second] > 0
        occupied = hit.sum(axis=(1, 2)) / (self._pair_cells[first] * self._pair_cells[second])
        chances = [axis.split_cells(PAIR_CELLS)[1] for axis in self.axes]
        expected = np.array([expected_occupancy(np.outer(chances[i], chances[j]), self.count) for i, j in pairs])
        order = np.argsort(occupied - expected, kind="stable")[:_WORST]
        return {
            "occupied": float(occupied.mean()),
            "expected": float(expected.mean()),
            "least": [
                {
                    "names": [self.axes[i].name for i in pairs[k]],
                    "occupied": float(occupied[k]),
                    "expected": float(expected[k]),
                }
                for k in order
            ],
            "fractions": [np.round(occupied[first == i], 4).tolist() for i in range(d - 1)],
            "expected_fractions": [np.round(expected[first == i], 4).tolist() for i in range(d - 1)],
            "hole": largest_pair_hole(self.axes, pairs, hit, self.count),
        }

    def _triple_metrics(self, triples: NDArray[np.bool_]) -> dict[str, Any]:
        """Return metrics of triples, summed per axis, because a list of all triples would be long."""
        d, rows = len(self.axes), []
        table = triples.reshape((d, TRIPLE_CELLS) * 3)
        chances = [axis.split_cells(TRIPLE_CELLS)[1] for axis in self.axes]
        for i in range(d):
            hit = table[i].sum(axis=(0, 2, 4))
            for j in range(i + 1, d):
                both = np.outer(chances[i], chances[j]).ravel()
                for k in range(j + 1, d):
                    chance = np.outer(both, chances[k])
                    rows.append((hit[j, k] / chance.size, expected_occupancy(chance, self.count), i, j, k))
        occupied, expected = np.array([row[:2] for row in rows]).T
        least = rows[int(np.argmin(occupied - expected))]
        return {
            "occupied": float(occupied.mean()),
            "expected": float(expected.mean()),
            "least": {
                "names": [self.axes[axis].name for axis in least[2:]],
                "occupied": float(least[0]),
                "expected": least[1],
            },
        }


def expected_occupancy(chances: NDArray[np.float64], count: int) -> float:
    """Return the mean fraction of cells, of given probabilities, that ``count`` independent draws hit."""
    return float((1.0 - (1.0 - chances) ** count).mean())


def _one_hot(u: NDArray[np.float64], cells: NDArray[np.int64], width: int) -> NDArray[np.float32]:
    """Return the one-hot encoding of every coordinate's cell, ``(n, d * width)``."""
    n, d = u.shape
    hot = np.zeros((n, d * width), dtype=np.float32)
    hot[np.arange(n)[:, None], np.arange(d) * width + (u * cells).astype(int)] = 1.0
    return hot
