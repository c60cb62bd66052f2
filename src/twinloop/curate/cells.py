"""Cells of parameters, alone and in pairs: how many episodes lie there, how many succeeded, how sure that is."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.curate.parameters import Axis
from twinloop.curate.scan import Box, scan
from twinloop.stats import wilson

Array = NDArray[np.float64]
CELLS = 8  # parts of an axis: 24 episodes a cell of 192, whose success rate has an interval of ± 0.2 at most
PAIR_CELLS = 4  # parts of each axis of a pair: 12 episodes a cell of 192, so that an empty one is not of chance
_LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A part of one parameter's range, ``low`` to ``high`` in SI.

    ``rate`` is the success rate of its simulated episodes with Wilson's interval, NaN where none has an outcome.
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

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class PairCell:
    """A part of two parameters' ranges, ``low`` to ``high`` ``(2,)`` each in SI; rates as of a `Cell`."""

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

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        return dict(vars(self))


def parameter_cells(axes: Sequence[Axis], real: Array, sim: Array, success: Array) -> list[Cell]:
    """The cells of every axis; the outermost ones hold what lies beyond the range too.

    Args:
        axes: ``d`` axes.
        real: points ``(n, d)`` of real episodes, NaN where a value is not known.
        sim: of simulated ones ``(m, d)``.
        success: of the simulated ones ``(m,)``: 1, 0, NaN.
    """
    cells = []
    for column, axis in enumerate(axes):
        mine, theirs = (_part(side[:, column], CELLS) for side in (real, sim))
        borders = axis.to_si(np.linspace(0.0, 1.0, CELLS + 1))
        for number in range(CELLS):
            inside = theirs == number
            cells.append(
                Cell(
                    name=axis.name,
                    unit=axis.unit,
                    low=float(borders[number]),
                    high=float(borders[number + 1]),
                    real=int((mine == number).sum()),
                    sim=int(inside.sum()),
                    **_success(success[inside]),
                )
            )
    return cells


def pair_cells(axes: Sequence[Axis], real: Array, sim: Array, success: Array, pairs: Sequence[int]) -> list[PairCell]:
    """The cells of every two of some axes, the emptiest first: those that reality visits most where none is simulated.

    Args:
        axes: ``d`` axes.
        real: points ``(n, d)`` of real episodes, NaN where a value is not known.
        sim: of simulated ones ``(m, d)``.
        success: of the simulated ones ``(m,)``: 1, 0, NaN.
        pairs: columns of the axes that are paired.
    """
    mine, theirs = _part(real, PAIR_CELLS), _part(sim, PAIR_CELLS)
    borders = [axis.to_si(np.linspace(0.0, 1.0, PAIR_CELLS + 1)) for axis in axes]
    cells = []
    for x, y in itertools.combinations(pairs, 2):
        for i, j in itertools.product(range(PAIR_CELLS), repeat=2):
            inside = (theirs[:, x] == i) & (theirs[:, y] == j)
            cells.append(
                PairCell(
                    names=(axes[x].name, axes[y].name),
                    units=(axes[x].unit, axes[y].unit),
                    low=(float(borders[x][i]), float(borders[y][j])),
                    high=(float(borders[x][i + 1]), float(borders[y][j + 1])),
                    real=int(((mine[:, x] == i) & (mine[:, y] == j)).sum()),
                    sim=int(inside.sum()),
                    **_success(success[inside]),
                )
            )
    return sorted(cells, key=lambda cell: (cell.sim, -cell.real))


def _part(places: Array, count: int) -> Array:
    """The number of the part that each place lies in; NaN where it is not known."""
    return np.floor(np.clip(places, 0.0, np.nextafter(1.0, 0.0)) * count)


def _success(outcome: Array) -> dict[str, Any]:
    """What a cell says of the outcomes of its episodes."""
    judged = int((~np.isnan(outcome)).sum())
    successes = int(np.nansum(outcome))
    rate = low = high = float("nan")
    if judged:
        interval = wilson(successes, judged, level=_LEVEL)
        rate, low, high = (float(value) for value in (interval.estimate, interval.low, interval.high))
    return {"judged": judged, "successes": successes, "rate": rate, "rate_low": low, "rate_high": high}


def failure_boxes(points: Array, success: Array, *, pair_axes: Sequence[int], seed: int = 0) -> tuple[Box, ...]:
    """Boxes in which simulated episodes fail significantly more often than elsewhere.

    Args:
        points: ``(n, d)`` of the simulated episodes.
        success: ``(n,)``: 1, 0, NaN.
        pair_axes: columns whose pairs are looked at too.
        seed: of relabellings.
    """
    return scan(points[success == 0.0], points[success == 1.0], pair_axes=pair_axes, seed=seed)
