"""Count episodes per cell of the parameter space, and find parameter ranges that lack simulated episodes or often fail.

A cell is one of several parts of a parameter's range, or of the ranges of two parameters.

The search is Kulldorff's spatial scan statistic for Bernoulli data ("A spatial scan statistic", Communications in
Statistics 26, 1997). It compares two sets of points, cases and controls. Either the cases are real episodes and the
controls simulated ones, or the cases are failures and the controls successes. A box is a range of one parameter, or
ranges of two parameters. For every box on a grid, the scan computes the log likelihood ratio of the hypothesis that
cases are more frequent inside than outside. The best box is compared with the best boxes after random permutations of
the labels, which corrects for multiple testing.
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
BOX_CELLS = 10  # parts of a parameter's range; their borders are the possible ends of a box
MOST_PAIR_AXES = 12  # parameters: 66 pairs of 3025 boxes, scanned again for every permutation of the labels
DRAWS = 199  # permutations of the labels: p-values down to 0.005
_ALPHA = 0.05
_MOST_BOXES = 5  # boxes to report (our choice)


@dataclass(frozen=True, kw_only=True)
class CellBox:
    """Range of one parameter, or ranges of two parameters, in which cases are more frequent than elsewhere.

    The range of every parameter is divided into ``BOX_CELLS`` (10) cells of equal width. A box begins and ends at
    borders of cells, which are numbered from 0 to ``BOX_CELLS``.

    Attributes:
        axes: indices of the parameters, one or two.
        low: number of the lower border for each parameter.
        high: number of the upper border for each parameter.
        cases: number of cases inside, for example real episodes or failures.
        controls: number of controls inside, for example simulated episodes or successes.
        ratio: log likelihood ratio: the hypothesis that cases are more frequent inside against equal frequency.
        p_value: probability that randomly permuted labels give a box with at least this ratio anywhere. Points in boxes
            found earlier are excluded.
    """

    axes: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    cases: int
    controls: int
    ratio: float
    p_value: float

    def contains_points(self, u: Array) -> NDArray[np.bool_]:
        """Return the mask ``(n,)`` of the points inside the box.

        A box that ends at the border of the unit cube also includes all points beyond that border.

        Args:
            u: normalized parameter values ``(n, d)`` of n episodes and d parameters.
        """
        inside = np.ones(len(u), dtype=bool)
        for axis, low, high in zip(self.axes, self.low, self.high, strict=True):
            inside &= (u[:, axis] >= low / BOX_CELLS) | (low == 0)
            inside &= (u[:, axis] < high / BOX_CELLS) | (high == BOX_CELLS)
        return inside


def scan_boxes(
    cases: Array, controls: Array, *, pair_axes: Sequence[int] = (), draws: int = DRAWS, seed: int = 0
) -> tuple[CellBox, ...]:
    """Find boxes in which cases are significantly more frequent than elsewhere; the most unlikely box comes first.

    At most 5 boxes with a p-value of at most 0.05 are returned. The points in a box are removed before the next search.

    Args:
        cases: normalized parameter values ``(n, d)`` of n cases and d parameters; 0 to 1 is the drawn range.
        controls: normalized parameter values ``(m, d)`` of m controls.
        pair_axes: indices of the parameters for which ranges of two parameters are searched too.
        draws: number of random permutations of the labels; they give the p-values.
        seed: seed of the permutations.
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
    ratio, ends = grids.find_best_box(is_case)
    if ends is None:
        return None
    chance = generator(seed, "curate/scan")
    permuted_ratios = [grids.find_best_box(chance.permutation(is_case))[0] for _ in range(draws)]
    p = (1 + sum(value >= ratio for value in permuted_ratios)) / (1 + draws)
    axes, low, high = ends
    box = CellBox(axes=axes, low=low, high=high, cases=0, controls=0, ratio=ratio, p_value=p)
    return replace(box, cases=int(box.contains_points(cases).sum()), controls=int(box.contains_points(controls).sum()))


class _Grids:
    """Episodes on a grid of parameter cells, to find the box with the most significant excess of cases.

    A box is a range of one parameter, or ranges of two parameters. Every episode (point) is labelled as a case, for
    example a failure, or a control, for example a success. A range is a pair of cell borders, the lower one first. In
    the array shapes of the methods, nrange is the number of all such pairs.
    """

    def __init__(self, cell: NDArray[np.int64], pair_axes: Sequence[int]) -> None:
        self.cell = cell
        self.pairs = list(itertools.combinations(pair_axes, 2))
        self.spans = np.array([(a, b) for a in range(BOX_CELLS) for b in range(a + 1, BOX_CELLS + 1)])
        self._flat = [cell[:, i] * BOX_CELLS + cell[:, j] for i, j in self.pairs]
        every = np.ones(len(cell), dtype=bool)
        self.all_single, self.all_pair = self._count_spans(every), self._count_pair_boxes(every)

    def find_best_box(self, is_case: NDArray[np.bool_]) -> tuple[float, tuple[tuple[int, ...], ...] | None]:
        """Return the largest log likelihood ratio, and the axes, lower and upper cell borders of its box.

        The box is None, and the ratio 0, if cases are not more frequent in any box.

        Args:
            is_case: whether each point is a case, shape ``(npoint,)``.
        """
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
        """Count episodes in every range of every parameter, ``(nparam, nrange)``.

        Here nrange is the number of possible ranges of a parameter.

        Args:
            chosen: mask of the episodes to count.
        """
        counts = np.stack([np.bincount(column, minlength=BOX_CELLS) for column in self.cell[chosen].T])
        sums = np.pad(counts.cumsum(axis=1), ((0, 0), (1, 0)))
        return (sums[:, self.spans[:, 1]] - sums[:, self.spans[:, 0]]).astype(np.float64)

    def _count_pair_boxes(self, chosen: NDArray[np.bool_]) -> Array:
        """Count episodes in every box of every pair of parameters, ``(npair, nrange, nrange)``.

        A box is a range of the first and a range of the second parameter; nrange is the number of possible ranges.

        Args:
            chosen: mask of the episodes to count.
        """
        if not self.pairs:
            return np.zeros((0, 1, 1))
        counts = np.stack([np.bincount(flat[chosen], minlength=BOX_CELLS**2) for flat in self._flat])
        sums = np.zeros((len(self.pairs), BOX_CELLS + 1, BOX_CELLS + 1))
        sums[:, 1:, 1:] = counts.reshape(-1, BOX_CELLS, BOX_CELLS).cumsum(axis=1).cumsum(axis=2)
        low, high = self.spans.T
        rows = sums[:, high] - sums[:, low]
        return rows[:, :, high] - rows[:, :, low]


def _compute_log_ratio(inside: Array, total: Array, cases: int, n: int) -> Array:
    """Return the log likelihood ratio of cases being more frequent inside than outside each box; 0 if they are not.

    Args:
        inside: number of cases in each box.
        total: number of points in each box.
        cases: number of all cases.
        n: number of all points.
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
    """Return the maximum log likelihood of binomial counts: ``cases`` of ``total`` points, element by element."""
    other = total - cases
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(cases > 0, cases * np.log(cases / total), 0.0)
        return share + np.where(other > 0, other * np.log(other / total), 0.0)


CELLS = 8  # parts of a range: with 192 episodes 24 per cell, whose success rate has an interval of at most ± 0.2
PAIR_CELLS = 4  # parts of each axis of a pair: with 192 episodes 12 per cell, so that none is empty by chance
_LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class ParameterCell(JsonRecord):
    """Counts and success rate of the episodes in one part of one parameter's range.

    Attributes:
        name: name of the parameter.
        unit: SI unit of the parameter.
        low: lower end of this part, in SI units.
        high: upper end of this part, in SI units.
        real: number of real episodes.
        sim: number of simulated episodes.
        judged: number of simulated episodes with a known outcome.
        successes: number of successful simulated episodes.
        rate: success rate of the simulated episodes; NaN if no outcome is known.
        rate_low: lower end of Wilson's 95 % interval of the rate.
        rate_high: upper end of Wilson's 95 % interval of the rate.
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
    """Counts and success rate of the episodes in a rectangle of two parameters' ranges.

    Attributes:
        names: names of the two parameters.
        units: SI units of the two parameters.
        low: lower end of the rectangle for each parameter, in SI units.
        high: upper end of the rectangle for each parameter, in SI units.
        real: number of real episodes.
        sim: number of simulated episodes.
        judged: number of simulated episodes with a known outcome.
        successes: number of successful simulated episodes.
        rate: success rate of the simulated episodes; NaN if no outcome is known.
        rate_low: lower end of Wilson's 95 % interval of the rate.
        rate_high: upper end of Wilson's 95 % interval of the rate.
    """

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
    """Count real and simulated episodes in 8 parts of each parameter's range, with success rates.

    All parts have the same probability under the parameter's distribution. The first and last part include values
    beyond the range. Normalized values are 0 to 1 within the range (see `ParameterAxis.to_unit`).

    Args:
        axes: the d parameters to count.
        real: normalized parameter values ``(n, d)`` of n real episodes; NaN for an unknown value.
        sim: normalized parameter values ``(m, d)`` of m simulated episodes.
        success: outcome of the simulated episodes ``(m,)``: 1 for success, 0 for failure, NaN if unknown.
    """
    cells = []
    for column, axis in enumerate(axes):
        real_parts, sim_parts = (_find_part_index(side[:, column], CELLS) for side in (real, sim))
        borders = axis.to_si(np.linspace(0.0, 1.0, CELLS + 1))
        for number in range(CELLS):
            inside = sim_parts == number
            cells.append(
                ParameterCell(
                    name=axis.name,
                    unit=axis.unit,
                    low=float(borders[number]),
                    high=float(borders[number + 1]),
                    real=int((real_parts == number).sum()),
                    sim=int(inside.sum()),
                    **_compute_success_rate(success[inside]),
                )
            )
    return cells


def count_pair_cells(
    axes: Sequence[ParameterAxis], real: Array, sim: Array, success: Array, pairs: Sequence[int]
) -> list[ParameterPairCell]:
    """Count real and simulated episodes in a grid of 4 x 4 cells for each pair of parameters, with success rates.

    Cells with the fewest simulated episodes come first; among equal numbers, cells with the most real episodes.

    Args:
        axes: all d parameters.
        real: normalized parameter values ``(n, d)`` of n real episodes; NaN for an unknown value.
        sim: normalized parameter values ``(m, d)`` of m simulated episodes.
        success: outcome of the simulated episodes ``(m,)``: 1 for success, 0 for failure, NaN if unknown.
        pairs: indices of the parameters to pair with each other.
    """
    real_parts, sim_parts = _find_part_index(real, PAIR_CELLS), _find_part_index(sim, PAIR_CELLS)
    borders = [axis.to_si(np.linspace(0.0, 1.0, PAIR_CELLS + 1)) for axis in axes]
    cells = []
    for x, y in itertools.combinations(pairs, 2):
        for i, j in itertools.product(range(PAIR_CELLS), repeat=2):
            inside = (sim_parts[:, x] == i) & (sim_parts[:, y] == j)
            cells.append(
                ParameterPairCell(
                    names=(axes[x].name, axes[y].name),
                    units=(axes[x].unit, axes[y].unit),
                    low=(float(borders[x][i]), float(borders[y][j])),
                    high=(float(borders[x][i + 1]), float(borders[y][j + 1])),
                    real=int(((real_parts[:, x] == i) & (real_parts[:, y] == j)).sum()),
                    sim=int(inside.sum()),
                    **_compute_success_rate(success[inside]),
                )
            )
    return sorted(cells, key=lambda cell: (cell.sim, -cell.real))


def _find_part_index(values: Array, count: int) -> Array:
    """Return the index (from 0) of the part of the range that contains each normalized value; NaN for an unknown value.

    Args:
        values: normalized values, 0 to 1 within the range; values outside belong to the first or the last part.
        count: number of parts of equal width.
    """
    return np.floor(np.clip(values, 0.0, np.nextafter(1.0, 0.0)) * count)


def _compute_success_rate(outcome: Array) -> dict[str, Any]:
    """Return the success rate and its interval from outcomes (1, 0 or NaN if unknown).

    The keys are the fields of `ParameterCell` with these names: judged, successes, rate, rate_low, rate_high.
    """
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
    """Find the parameter ranges in which simulated episodes fail significantly more often than elsewhere.

    Args:
        points: normalized parameter values ``(n, d)`` of n simulated episodes and d parameters.
        success: outcome of the episodes ``(n,)``: 1 for success, 0 for failure, NaN if unknown.
        pair_axes: indices of the parameters for which ranges of two parameters are searched too.
        seed: seed of the random permutations that give the p-values.
    """
    return scan_boxes(points[success == 0.0], points[success == 1.0], pair_axes=pair_axes, seed=seed)
