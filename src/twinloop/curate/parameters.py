"""Map parameter values of simulated and real episodes to a common normalized space, with one axis per drawn parameter.

A value from 0 to 1 on an axis is the cumulative probability under the distribution from which the simulated episodes
were drawn. Beyond the range, the axis continues linearly in units of the range's width. A real mass above every
simulated mass has therefore a normalized value too: 1.25 is a quarter of the range above the range.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.randomize.axes import UnitCubeAxis, plan_axes
from twinloop.randomize.plan import Plan

Array = NDArray[np.float64]
# With more axes than this, nearest neighbours are meaningless (Beyer et al., ICDT 1999), as in `randomize.emptiness`.
MOST_AXES = 8
_END = 1e-3  # tail probability at which the range of an unbounded distribution ends


@dataclass(frozen=True, kw_only=True)
class ParameterAxis:
    """One drawn parameter, with the map between its SI values and its normalized values.

    Attributes:
        margin: marginal distribution of the parameter in the plan.
        low: lower end of the parameter's range, in SI units.
        high: upper end of the parameter's range, in SI units.
        bounds: lowest and highest physically possible value, in SI units.
        movable: whether a plan for new data may restrict this parameter. It may not if the same random number also
            determines other parameters, or if the parameter is a list of choices or part of an identified distribution.
    """

    margin: UnitCubeAxis
    low: float
    high: float
    bounds: tuple[float, float]
    movable: bool

    @property
    def name(self) -> str:
        """Name of the parameter, for example ``joint/elbow_flex/frictionloss``."""
        return self.margin.names[0]

    @property
    def unit(self) -> str:
        """SI unit of the parameter; "" if it is dimensionless."""
        return self.margin.unit.removesuffix("1")

    def to_unit(self, values: Array) -> Array:
        """Convert SI values to normalized values: 0 to 1 within the range, and linear beyond it."""
        width = (self.high - self.low) or 1.0
        inside = self.margin.to_unit(np.clip(values, self.low, self.high))
        return np.where(
            values < self.low,
            (values - self.low) / width,
            np.where(values > self.high, 1.0 + (values - self.high) / width, inside),
        )

    def to_si(self, u: Array) -> Array:
        """Convert normalized values to SI values, clipped to the physical bounds."""
        width = self.high - self.low
        inside = self.margin.to_si(np.clip(u, 1e-9, 1.0 - 1e-9))
        beyond = np.where(u < 0.0, self.low + u * width, np.where(u > 1.0, self.high + (u - 1.0) * width, inside))
        return np.clip(beyond, *self.bounds)

    @property
    def normalized_bounds(self) -> tuple[float, float]:
        """Normalized values of the physical bounds, clipped to [-1, 2]; 0 to 1 is the parameter's range."""
        ends = self.to_unit(np.array(self.bounds, dtype=np.float64)) if np.isfinite(self.bounds).all() else (-1.0, 2.0)
        return max(float(ends[0]), -1.0), min(float(ends[1]), 2.0)


def list_parameter_axes(plan: Plan) -> list[ParameterAxis]:
    """Return one axis for each parameter that a plan draws per episode."""
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
    """Return the axes whose parameters are known for the real episodes and match the patterns.

    Args:
        axes: axes of all drawn parameters.
        known: parameters for which every real episode has a value.
        patterns: wildcard patterns of parameter names, for example ``joint/*``; if empty, all known parameters are
            used.

    Raises:
        UnknownNameError: If a pattern matches no drawn parameter.
        InputError: If no drawn parameter is known for the real episodes.
    """
    by_name = {axis.name: axis for axis in axes}
    for pattern in patterns:
        if not fnmatch.filter(by_name, pattern):
            raise UnknownNameError("drawn parameter", pattern, list(by_name), where="--axes")
    common = [axis for axis in axes if axis.name in known]
    if not common:
        raise InputError(
            "The real episodes have no values of the parameters that were drawn for the simulated ones. Give these "
            "values: --real-params FILE.csv (a column episode and one per parameter, in SI) or the folder of an "
            "identify run; or compare motion: --embedding waypoints."
        )
    return [axis for axis in common if not patterns or any(fnmatch.fnmatchcase(axis.name, p) for p in patterns)]


def compute_points(axes: Sequence[ParameterAxis], rows: Sequence[Mapping[str, float]]) -> Array:
    """Return the points of episodes in the normalized parameter space, ``(nepisode, naxis)``; NaN for a missing value.

    Args:
        axes: parameters to convert.
        rows: SI values of each episode, by parameter name.
    """
    columns = [axis.to_unit(np.array([row.get(axis.name, np.nan) for row in rows], dtype=np.float64)) for axis in axes]
    return np.stack(columns, axis=-1) if columns else np.empty((len(rows), 0))


def find_known_names(rows: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the parameters for which every episode has a finite value.

    Args:
        rows: SI values of each episode, by parameter name.
    """
    if not rows:
        return []
    return [name for name in rows[0] if all(np.isfinite(row.get(name, np.nan)) for row in rows)]


def select_pair_columns(axes: Sequence[ParameterAxis], most: int) -> list[int]:
    """Return the indices of the parameters to study in pairs: at most ``most``, those of objects first.

    Object positions and masses come first, because together they determine the geometry of a task. All pairs of a
    hundred parameters would be too many. Parameters with a list of choices are excluded.
    """
    free = [i for i, axis in enumerate(axes) if not axis.margin.weights]
    if len(free) <= most:
        return free
    return sorted(sorted(free, key=lambda i: (not axes[i].name.startswith("object/"), i))[:most])
