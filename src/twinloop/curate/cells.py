"""Cells of single parameters: how many episodes lie there, how many succeeded, and how far that is known."""

from __future__ import annotations

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
        places = [np.clip(side[:, column], 0.0, np.nextafter(1.0, 0.0)) for side in (real, sim)]
        borders = axis.to_si(np.linspace(0.0, 1.0, CELLS + 1))
        for number in range(CELLS):
            mine, theirs = (np.floor(place * CELLS) == number for place in places)
            cells.append(_cell(axis, borders[number : number + 2], mine, theirs, success))
    return cells


def _cell(axis: Axis, ends: Array, mine: NDArray[np.bool_], theirs: NDArray[np.bool_], success: Array) -> Cell:
    outcome = success[theirs]
    judged = int((~np.isnan(outcome)).sum())
    successes = int(np.nansum(outcome))
    rate = low = high = float("nan")
    if judged:
        interval = wilson(successes, judged, level=_LEVEL)
        rate, low, high = (float(value) for value in (interval.estimate, interval.low, interval.high))
    return Cell(
        name=axis.name,
        unit=axis.unit,
        low=float(ends[0]),
        high=float(ends[1]),
        real=int(mine.sum()),
        sim=int(theirs.sum()),
        judged=judged,
        successes=successes,
        rate=rate,
        rate_low=low,
        rate_high=high,
    )


def failure_boxes(points: Array, success: Array, *, pair_axes: Sequence[int], seed: int = 0) -> tuple[Box, ...]:
    """Boxes in which simulated episodes fail significantly more often than elsewhere.

    Args:
        points: ``(n, d)`` of the simulated episodes.
        success: ``(n,)``: 1, 0, NaN.
        pair_axes: columns whose pairs are looked at too.
        seed: of relabellings.
    """
    return scan(points[success == 0.0], points[success == 1.0], pair_axes=pair_axes, seed=seed)
