"""Count episodes in cells of parameters, and find boxes where one kind of episode is more frequent than another.

Kulldorff's spatial scan for Bernoulli data ("A spatial scan statistic", Communications in Statistics 26, 1997): for
every box on a grid, along one axis and in pairs of axes, the log likelihood ratio of cases being more frequent inside
than outside. The best box is compared with the best boxes of relabelled episodes, which corrects for multiple testing.
Cases are real episodes and controls simulated ones (holes), or failures and successes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.plain import JsonRecord
from twinloop.core.seeds import generator
from twinloop.curate.parameters import ParameterAxis
from twinloop.stats import wilson

Array = NDArray[np.float64]
BOX_CELLS = 10  # parts of an axis whose borders are the possible ends of a box, as in `twinloop coverage DIR`
MOST_PAIR_AXES = 12  # 66 pairs of 3025 boxes, scanned again for every relabelling
DRAWS = 199  # relabellings: p-values down to 0.005
_ALPHA = 0.05
_MOST_BOXES = 5  # boxes to report (our choice)


@dataclass(frozen=True, kw_only=True)
class CellBox:
    """A box: ``axes`` are columns, ``low`` and ``high`` its ends as cell borders from 0 to ``BOX_CELLS``.

    ``cases`` and ``controls`` are the numbers of points inside; ``p_value`` is the chance of an equally unlikely box
    anywhere, given the boxes found before it.
    """

    axes: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    cases: int
    controls: int
    ratio: float
    p_value: float

    def contains_points(self, u: Array) -> NDArray[np.bool_]:
        """Return which points ``(n, d)`` are inside; a box at the end of an axis extends beyond it."""
        inside = np.ones(len(u), dtype=bool)
        for axis, low, high in zip(self.axes, self.low, self.high, strict=True):
            inside &= (u[:, axis] >= low / BOX_CELLS) | (low == 0)
            inside &= (u[:, axis] < high / BOX_CELLS) | (high == BOX_CELLS)
        return inside


def scan_boxes(
    cases: Array, controls: Array, *, pair_axes: Sequence[int] = (), draws: int = DRAWS, seed: int = 0
) -> tuple[CellBox, ...]:
    """Return the boxes where cases are significantly more frequent than elsewhere, the most unlikely first.

    Points in a box are removed before the next search.

    Args:
        cases: points ``(n, d)`` of the unit cube.
        controls: points ``(m, d)``.
        pair_axes: columns whose pairs are scanned too.
        draws: number of relabellings.
        seed: seed of the relabellings.
    """
    found: list[CellBox] = []
    while len(found) < _MOST_BOXES and len(cases) and len(controls):
        box = _find_best_box(cases, controls, pair_axes, draws, seed + len(found))
        if box is None or box.p_value > _ALPHA:
            break
        found.append(box)
        cases, controls = cases[~box.contains_points(cases)], controls[~box.contains_points(controls)]
    return tuple(found)


def _find_best_box(cases: Array, controls: Array, pair_axes: Sequence[int], draws: int, seed: int) -> CellBox | None:
    points = np.vstack([cases, controls])
    cell = np.clip((points * BOX_CELLS).astype(np.int64), 0, BOX_CELLS - 1)
    is_case = np.arange(len(points)) < len(cases)
    grids = _Grids(cell, pair_axes)
    ratio, where = grids.find_best_box(is_case)
    if where is None:
        return None
    chance = generator(seed, "curate/scan")
    drawn = [grids.find_best_box(chance.permutation(is_case))[0] for _ in range(draws)]
    p = (1 + sum(value >= ratio for value in drawn)) / (1 + draws)
    axes, low, high = where
    box = CellBox(axes=axes, low=low, high=high, cases=0, controls=0, ratio=ratio, p_value=p)
    return replace(box, cases=int(box.contains_points(cases).sum()), controls=int(box.contains_points(controls).sum()))


class _Grids:
    """Counts per cell, and the best box for given labels."""

    def __init__(self, cell: NDArray[np.int64], pair_axes: Sequence[int]) -> None:
        self.cell = cell
        self.pairs = list(itertools.combinations(pair_axes, 2))
        self.spans = np.array([(a, b) for a in range(BOX_CELLS) for b in range(a + 1, BOX_CELLS + 1)])
        self._flat = [cell[:, i] * BOX_CELLS + cell[:, j] for i, j in self.pairs]
        every = np.ones(len(cell), dtype=bool)
        self.all_single, self.all_pair = self._count_spans(every), self._count_pair_boxes(every)

    def find_best_box(self, is_case: NDArray[np.bool_]) -> tuple[float, tuple[tuple[int, ...], ...] | None]:
        """Return the largest log likelihood ratio with its axes, lows and highs, or None if no box has more cases."""
        n, cases = len(is_case), int(is_case.sum())
        single = _compute_log_ratio(self._count_spans(is_case), self.all_single, cases, n)
        top, where = 0.0, None
        axis, span = np.unravel_index(int(single.argmax()), single.shape)
        if single[axis, span] > top:
            low, high = self.spans[span].tolist()
            top, where = float(single[axis, span]), ((int(axis),), (low,), (high,))
        if self.pairs:
            pair = _compute_log_ratio(self._count_pair_boxes(is_case), self.all_pair, cases, n)
            number, first, second = np.unravel_index(int(pair.argmax()), pair.shape)
            if pair[number, first, second] > top:
                ends = self.spans[first].tolist(), self.spans[second].tolist()
                top = float(pair[number, first, second])
                where = (self.pairs[number], (ends[0][0], ends[1][0]), (ends[0][1], ends[1][1]))
        return top, where

    def _count_spans(self, chosen: NDArray[np.bool_]) -> Array:
        """Return the counts in every span of every axis ``(d, nspan)``."""
        counts = np.stack([np.bincount(column, minlength=BOX_CELLS) for column in self.cell[chosen].T])
        sums = np.pad(counts.cumsum(axis=1), ((0, 0), (1, 0)))
        return (sums[:, self.spans[:, 1]] - sums[:, self.spans[:, 0]]).astype(np.float64)

    def _count_pair_boxes(self, chosen: NDArray[np.bool_]) -> Array:
        """Return the counts in every box of every pair ``(npair, nspan, nspan)``."""
        if not self.pairs:
            return np.zeros((0, 1, 1))
        counts = np.stack([np.bincount(flat[chosen], minlength=BOX_CELLS**2) for flat in self._flat])
        sums = np.zeros((len(self.pairs), BOX_CELLS + 1, BOX_CELLS + 1))
        sums[:, 1:, 1:] = counts.reshape(-1, BOX_CELLS, BOX_CELLS).cumsum(axis=1).cumsum(axis=2)
        low, high = self.spans.T
        rows = sums[:, high] - sums[:, low]
        return rows[:, :, high] - rows[:, :, low]


def _compute_log_ratio(inside: Array, total: Array, cases: int, n: int) -> Array:
    """Return the log likelihood ratio of cases being more frequent inside than outside; 0 if they are not.

    Args:
        inside: cases in each box.
        total: points in each box.
        cases: all cases.
        n: all points.
    """
    outside, rest = cases - inside, n - total
    value = (
        _log_likelihood(inside, total)
        + _log_likelihood(outside, rest)
        - _log_likelihood(np.array(float(cases)), np.array(float(n)))
    )
    more = inside * np.maximum(rest, 1.0) > outside * np.maximum(total, 1.0)
    return np.where(more & (total > 0) & (rest > 0), value, 0.0)


def _log_likelihood(cases: Array, total: Array) -> Array:
    """Return the maximal log likelihood of a number of cases in a total."""
    other = total - cases
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(cases > 0, cases * np.log(cases / total), 0.0)
        return share + np.where(other > 0, other * np.log(other / total), 0.0)


CELLS = 8  # parts of an axis: with 192 episodes 24 per cell, whose success rate has an interval of at most ± 0.2
PAIR_CELLS = 4  # parts of each axis of a pair: with 192 episodes 12 per cell, so that none is empty by chance
_LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class ParameterCell(JsonRecord):
    """A part of one parameter's range, ``low`` to ``high`` in SI units.

    ``rate`` is the success rate of its simulated episodes with Wilson's interval, NaN without outcomes.
    """

    name: str
    unit: str
    low: float
    high: float
    real: int
    sim: int
    judged: int
    successes: int
    rate: float
    rate_low: float
    rate_high: float


@dataclass(frozen=True, kw_only=True)
class ParameterPairCell(JsonRecord):
    """A part of two parameters' ranges, ``low`` to ``high`` ``(2,)`` each in SI units; rates as in `ParameterCell`."""

    names: tuple[str, str]
    units: tuple[str, str]
    low: tuple[float, float]
    high: tuple[float, float]
    real: int
    sim: int
    judged: int
    successes: int
    rate: float
    rate_low: float
    rate_high: float


def count_parameter_cells(
    axes: Sequence[ParameterAxis], real: Array, sim: Array, success: Array
) -> list[ParameterCell]:
    """Return the cells of every axis; the outermost cells include values beyond the range.

    Args:
        axes: ``d`` axes.
        real: points ``(n, d)`` of real episodes, NaN for unknown values.
        sim: points ``(m, d)`` of simulated episodes.
        success: outcome of the simulated episodes ``(m,)``: 1, 0, NaN.
    """
    cells = []
    for column, axis in enumerate(axes):
        mine, theirs = (_find_part_index(side[:, column], CELLS) for side in (real, sim))
        borders = axis.to_si(np.linspace(0.0, 1.0, CELLS + 1))
        for number in range(CELLS):
            inside = theirs == number
            cells.append(
                ParameterCell(
                    name=axis.name,
                    unit=axis.unit,
                    low=float(borders[number]),
                    high=float(borders[number + 1]),
                    real=int((mine == number).sum()),
                    sim=int(inside.sum()),
                    **_compute_success_rate(success[inside]),
                )
            )
    return cells


def count_pair_cells(
    axes: Sequence[ParameterAxis], real: Array, sim: Array, success: Array, pairs: Sequence[int]
) -> list[ParameterPairCell]:
    """Return the cells of all pairs of some axes, first those with the fewest simulated and most real episodes.

    Args:
        axes: ``d`` axes.
        real: points ``(n, d)`` of real episodes, NaN for unknown values.
        sim: points ``(m, d)`` of simulated episodes.
        success: outcome of the simulated episodes ``(m,)``: 1, 0, NaN.
        pairs: columns of the axes to pair.
    """
    mine, theirs = _find_part_index(real, PAIR_CELLS), _find_part_index(sim, PAIR_CELLS)
    borders = [axis.to_si(np.linspace(0.0, 1.0, PAIR_CELLS + 1)) for axis in axes]
    cells = []
    for x, y in itertools.combinations(pairs, 2):
        for i, j in itertools.product(range(PAIR_CELLS), repeat=2):
            inside = (theirs[:, x] == i) & (theirs[:, y] == j)
            cells.append(
                ParameterPairCell(
                    names=(axes[x].name, axes[y].name),
                    units=(axes[x].unit, axes[y].unit),
                    low=(float(borders[x][i]), float(borders[y][j])),
                    high=(float(borders[x][i + 1]), float(borders[y][j + 1])),
                    real=int(((mine[:, x] == i) & (mine[:, y] == j)).sum()),
                    sim=int(inside.sum()),
                    **_compute_success_rate(success[inside]),
                )
            )
    return sorted(cells, key=lambda cell: (cell.sim, -cell.real))


def _find_part_index(places: Array, count: int) -> Array:
    """Return the index of the part that contains each value; NaN if it is unknown."""
    return np.floor(np.clip(places, 0.0, np.nextafter(1.0, 0.0)) * count)


def _compute_success_rate(outcome: Array) -> dict[str, Any]:
    """Return counts and success rate of a cell's episodes."""
    judged = int((~np.isnan(outcome)).sum())
    successes = int(np.nansum(outcome))
    rate = low = high = float("nan")
    if judged:
        interval = wilson(successes, judged, level=_LEVEL)
        rate, low, high = (float(value) for value in (interval.estimate, interval.low, interval.high))
    return {"judged": judged, "successes": successes, "rate": rate, "rate_low": low, "rate_high": high}


def find_failure_boxes(
    points: Array, success: Array, *, pair_axes: Sequence[int], seed: int = 0
) -> tuple[CellBox, ...]:
    """Return boxes where simulated episodes fail significantly more often than elsewhere.

    Args:
        points: ``(n, d)`` of the simulated episodes.
        success: ``(n,)``: 1, 0, NaN.
        pair_axes: columns whose pairs are scanned too.
        seed: seed of the relabellings.
    """
    return scan_boxes(points[success == 0.0], points[success == 1.0], pair_axes=pair_axes, seed=seed)
