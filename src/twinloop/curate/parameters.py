"""Map parameter values to a space with one axis per drawn parameter, for simulated and real episodes.

An axis is a margin of the plan that drew the episodes: 0 to 1 is cumulative probability under its distribution. Beyond
the range it continues linearly, in units of the range's width, so that a real mass above every simulated one has a
value too: 1.25 is a quarter of the range above it.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.randomize.axes import MarginAxis, plan_axes
from twinloop.randomize.plan import Plan

Array = NDArray[np.float64]
# With more axes than this, nearest neighbours are meaningless (Beyer et al., ICDT 1999), as in `randomize.emptiness`.
MOST_AXES = 8
_END = 1e-3  # tail probability at which the range of an unbounded distribution ends


@dataclass(frozen=True, kw_only=True)
class ParameterAxis:
    """One axis: ``low`` and ``high`` are the ends of its range in SI units, ``bounds`` the physical bounds.

    ``movable`` is whether a box may restrict this parameter: it is neither tied to others, nor a list of choices, nor
    part of an identified distribution.
    """

    margin: MarginAxis
    low: float
    high: float
    bounds: tuple[float, float]
    movable: bool

    @property
    def name(self) -> str:
        """Name of the parameter."""
        return self.margin.names[0]

    @property
    def unit(self) -> str:
        """SI unit of the parameter, "" if it has none."""
        return self.margin.unit.removesuffix("1")

    def to_unit(self, values: Array) -> Array:
        """Return normalized values of SI values: 0 to 1 within the range, linear outside."""
        width = (self.high - self.low) or 1.0
        inside = self.margin.to_unit(np.clip(values, self.low, self.high))
        return np.where(
            values < self.low,
            (values - self.low) / width,
            np.where(values > self.high, 1.0 + (values - self.high) / width, inside),
        )

    def to_si(self, u: Array) -> Array:
        """Return SI values of normalized values, within the physical bounds."""
        width = self.high - self.low
        inside = self.margin.to_si(np.clip(u, 1e-9, 1.0 - 1e-9))
        beyond = np.where(u < 0.0, self.low + u * width, np.where(u > 1.0, self.high + (u - 1.0) * width, inside))
        return np.clip(beyond, *self.bounds)

    @property
    def normalized_bounds(self) -> tuple[float, float]:
        """Normalized values of the physical bounds, at most one range's width beyond its ends."""
        ends = self.to_unit(np.array(self.bounds, dtype=np.float64)) if np.isfinite(self.bounds).all() else (-1.0, 2.0)
        return max(float(ends[0]), -1.0), min(float(ends[1]), 2.0)


def list_parameter_axes(plan: Plan) -> list[ParameterAxis]:
    """Return the axes of all parameters that a plan draws per episode."""
    joint = {name for draw in plan.draws if hasattr(draw, "transforms") for name in draw.names}
    axes = []
    for margin in plan_axes(plan):
        low, high = (float(value) for value in margin.to_si(np.array([_END, 1.0 - _END])))
        ends = [float(value) for value in margin.to_si(np.array([1e-9, 1.0 - 1e-9]))]
        if abs((ends[1] - ends[0]) - (high - low) / (1 - 2 * _END)) < _END * abs(ends[1] - ends[0]):
            low, high = ends  # a range with ends
        param = plan.twin.params[margin.names[0]]
        movable = len(margin.names) == 1 and not margin.weights and margin.names[0] not in joint
        axes.append(ParameterAxis(margin=margin, low=low, high=high, bounds=(param.low, param.high), movable=movable))
    return axes


def select_axes(axes: Sequence[ParameterAxis], known: Sequence[str], patterns: Sequence[str]) -> list[ParameterAxis]:
    """Return the axes for which real episodes have values, or those of them that match patterns.

    Args:
        axes: all axes.
        known: parameters for which every real episode has a value.
        patterns: patterns of names; empty for all known parameters.

    Raises:
        UnknownNameError: a pattern matches no axis.
        InputError: the real episodes have no drawn parameter.
    """
    there = {axis.name: axis for axis in axes}
    for pattern in patterns:
        if not fnmatch.filter(there, pattern):
            raise UnknownNameError("drawn parameter", pattern, list(there), where="--axes")
    both = [axis for axis in axes if axis.name in known]
    if not both:
        raise InputError(
            "The real episodes have no values of the parameters that were drawn for the simulated ones. Give these "
            "values: --real-params FILE.csv (a column episode and one per parameter, in SI) or the folder of an "
            "identify run; or compare motion: --embedding waypoints."
        )
    return [axis for axis in both if not patterns or any(fnmatch.fnmatchcase(axis.name, p) for p in patterns)]


def compute_points(axes: Sequence[ParameterAxis], rows: Sequence[Mapping[str, float]]) -> Array:
    """Return the normalized parameter values of episodes, ``(n, len(axes))``; NaN for a missing value."""
    columns = [axis.to_unit(np.array([row.get(axis.name, np.nan) for row in rows], dtype=np.float64)) for axis in axes]
    return np.stack(columns, axis=-1) if columns else np.empty((len(rows), 0))


def find_known_names(rows: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the parameters for which every episode has a finite value."""
    if not rows:
        return []
    return [name for name in rows[0] if all(np.isfinite(row.get(name, np.nan)) for row in rows)]


def select_pair_columns(axes: Sequence[ParameterAxis], most: int) -> list[int]:
    """Return the columns to pair: all if there are few, else those of objects first.

    Positions and masses of objects jointly determine the geometry of a task; of a hundred axes there are too many
    pairs.
    """
    free = [i for i, axis in enumerate(axes) if not axis.margin.weights]
    if len(free) <= most:
        return free
    return sorted(sorted(free, key=lambda i: (not axes[i].name.startswith("object/"), i))[:most])
