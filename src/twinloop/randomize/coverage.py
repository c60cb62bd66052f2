"""Measure which part of the parameter space episodes cover, per axis and pair of axes, and find the largest gaps.

Values are mapped to their cumulative probability, so that under the declared distributions all equal parts of the unit
cube have the same probability. The covered part is compared with that of independent draws: n draws hit a cell of
probability p with probability 1 - (1 - p)^n. Counting is incremental: memory does not grow with the number of
episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.randomize.axes import UnitCubeAxis
from twinloop.randomize.sequences import scrambled_sobol

# With more axes every large ball extends beyond the cube, and distances are meaningless (Beyer et al., ICDT 1999).
MOST_BALL_AXES = 8
_PROBES = 512  # centres of candidate balls; our choice, limited by computing time


def longest_gap(axis: UnitCubeAxis, hit: NDArray[np.bool_], count: int) -> dict[str, Any]:
    """Return the widest gap between points on one axis, measured in cells of equal width.

    Args:
        axis: The axis.
        hit: Mask of the cells that contain a point, ``(m,)``.
        count: Number of points.

    Returns:
        ``width`` as a fraction of the axis, its ends ``low`` and ``high`` in SI units, and ``expected``: the mean
            widest gap of as many independent draws. The mean of the largest of n + 1 uniform spacings is the (n+1)-th
            harmonic number divided by n + 1.
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


def find_largest_empty_rectangle(
    axes: Sequence[UnitCubeAxis], pairs: Sequence[tuple[int, int]], hit: NDArray[np.bool_], count: int
) -> dict[str, Any] | None:
    """Find the largest empty rectangle in any pair of continuous axes.

    Args:
        axes: The axes.
        pairs: Indices of the axes of each pair.
        hit: Mask of the cells with a point, ``(npair, m, m)`` for m cells per axis.
        count: Number of points.

    Returns:
        ``names`` of the two axes, ``low``, ``high`` and ``centre`` of the rectangle in SI units, and ``probability``:
        the chance that one draw is in the rectangle. ``by_chance`` is the number of empty rectangles of this size that
        ``count`` independent draws would have on average, counted over all pairs. None if no cell is empty.
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
    """Search for the largest ball in the unit cube that contains no point, for at most 8 axes (`MOST_BALL_AXES`).

    The centres of 512 candidate balls are evenly distributed. A coordinate of the cube is the cumulative probability of
    a value, from 0 to 1; distances are Euclidean distances in these coordinates. A ball may extend beyond the cube.
    """

    def __init__(self, axes: int) -> None:
        self._centres = scrambled_sobol(np.arange(_PROBES), axes, run_seed=0)
        self._nearest = np.full(_PROBES, np.inf)

    @classmethod
    def of(cls, axes: int) -> EmptyBall | None:
        """Return a search for the largest empty ball in this number of axes.

        It is None for no axis, or for more than `MOST_BALL_AXES` (8).
        """
        return cls(axes) if 0 < axes <= MOST_BALL_AXES else None

    def add(self, u: NDArray[np.float64]) -> None:
        """Add the points ``u``, ``(n, d)`` for d axes, and shrink the balls around the candidate centres in place.

        After that no ball contains a point.
        """
        distance = np.zeros((_PROBES, len(u)))
        for centre, column in zip(self._centres.T, u.T, strict=True):
            distance += (centre[:, None] - column) ** 2
        self._nearest = np.minimum(self._nearest, distance.min(axis=1, initial=np.inf))

    def result(self, axes: Sequence[UnitCubeAxis]) -> dict[str, Any]:
        """Return the largest ball that contains none of the points given to `add`.

        Args:
            axes: The axes of the cube.

        Returns:
            ``radius`` in cumulative probability (inf before the first point), and ``centre``: one SI value per axis, by
            name of the axis.
        """
        best = int(np.argmax(self._nearest))
        return {
            "radius": float(np.sqrt(self._nearest[best])),
            "centre": {axis.name: _to_si(axis, u) for axis, u in zip(axes, self._centres[best], strict=True)},
        }


def _longest_run(free: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return start and length of the longest run of True in every row of ``free`` ``(n, m)``.

    Of equally long runs the first is returned.
    """
    column = np.arange(free.shape[1])
    run = column - np.maximum.accumulate(np.where(free, -1, column), axis=1)
    end = run.argmax(axis=1)
    best = run[np.arange(len(free)), end]
    return np.where(best > 0, end + 1 - best, 0), best


def _count_boxes(cells: int, m: int) -> int:
    """Return the number of rectangles of ``cells`` cells in a grid of ``m`` by ``m`` cells."""
    return sum(
        (m - height + 1) * (m - cells // height + 1)
        for height in range(1, m + 1)
        if cells % height == 0 and cells // height <= m
    )


def _describe_box(spans: list[tuple[UnitCubeAxis, list[int]]], m: int) -> dict[str, Any]:
    return {
        "names": [axis.name for axis, _ in spans],
        "low": [_to_si(axis, start / m) for axis, (start, _) in spans],
        "high": [_to_si(axis, end / m) for axis, (_, end) in spans],
        "centre": [_to_si(axis, (start + end) / 2 / m) for axis, (start, end) in spans],
    }


def _to_si(axis: UnitCubeAxis, u: float) -> float:
    """Return the SI value at a cumulative probability.

    The probability is clipped to [1e-6, 1 - 1e-6], because a normal distribution is infinite at 0 and 1.
    """
    return float(axis.to_si(np.clip(np.array([u]), 1e-6, 1 - 1e-6))[0])


MARGINAL_CELLS, PAIR_CELLS, TRIPLE_CELLS = 32, 10, 4  # per axis; our choice: a few thousand episodes can fill them
_FINE = 1024  # parts of an axis in the search for a gap
_WORST = 10  # pairs that are listed by name
MOST_TRIPLE_AXES = 100  # 161,700 triples of 64 cells, counted in 64 MB
_ROWS = 4096  # points at once; limits the memory of their one-hot form


class CoverageCounter:
    """Incremental count of which cells of the unit cube contain points.

    Args:
        axes: The axes of the cube.
        strength: 2 counts pairs of axes, 3 also counts triples of axes.
    """

    def __init__(self, axes: Sequence[UnitCubeAxis], *, strength: int = 2) -> None:
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
        """Count the points ``u`` in the unit cube, ``(n, d)`` for d axes."""
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
        """Return the coverage per axis, pair and triple of axes, with the gaps, as a JSON-compatible dictionary.

        Coverage is a fraction of cells; the limits of gaps are SI values of parameters.
        """
        metrics: dict[str, Any] = {"episodes": self.count, "marginals": self._marginals()}
        if len(self.axes) > 1 and self.count:
            metrics["pairs"] = self._pair_metrics()
        if len(self.axes) > 2 and self.count and self._triples is not None:
            metrics["triples"] = self._triple_metrics(self._triples)
        if self._ball is not None and self.count:
            metrics["ball"] = self._ball.result(self.axes)
        return metrics

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
            "hole": find_largest_empty_rectangle(self.axes, pairs, hit, self.count),
        }

    def _triple_metrics(self, triples: NDArray[np.bool_]) -> dict[str, Any]:
        """Return the mean coverage of all triples of axes, and the triple with the lowest coverage.

        Coverage is the share of cells with a draw. The lowest coverage is the one that is furthest below the mean
        coverage of independent draws, as a difference.

        Args:
            triples: Mask of the cells with a draw for every triple of axes, ``(s, s, s)`` for s cells on all axes.

        Returns:
            ``occupied`` (mean coverage), ``expected`` (that of independent draws), and ``least``: ``names``,
            ``occupied`` and ``expected`` of the triple with the lowest coverage.
        """
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
    """Return the mean fraction of cells that independent draws hit.

    Args:
        chances: Probability of each cell.
        count: Number of draws.
    """
    return float((1.0 - (1.0 - chances) ** count).mean())


def _one_hot(u: NDArray[np.float64], cells: NDArray[np.int64], width: int) -> NDArray[np.float32]:
    """Return the one-hot encoding of each coordinate's cell, ``(n, d * width)``.

    Args:
        u: Points in the unit cube, ``(n, d)``.
        cells: Number of cells of each axis, ``(d,)``.
        width: Number of columns per axis.
    """
    n, d = u.shape
    hot = np.zeros((n, d * width), dtype=np.float32)
    hot[np.arange(n)[:, None], np.arange(d) * width + (u * cells).astype(int)] = 1.0
    return hot
