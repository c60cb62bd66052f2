"""Map parameter values to the unit cube and back, with one axis per independent random number of a plan.

Coverage is measured in the unit cube, in which the declared distributions are uniform.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.params import ParamTable
from twinloop.randomize.adaptive import AdaptiveDraw
from twinloop.randomize.boxes import BoxesDraw
from twinloop.randomize.distributions import Choice, Distribution, MultivariateNormal, Uniform
from twinloop.randomize.draws import Draw, JointDraw
from twinloop.randomize.plan import Plan


@dataclass(frozen=True, kw_only=True)
class UnitCubeAxis:
    """Axis of the unit cube: one parameter, or several parameters that one random number determines.

    Attributes:
        names: Names of the parameters. The values on the axis are those of the first parameter.
        unit: SI unit of the values.
        to_unit: Function from SI values to cumulative probabilities.
        to_si: Inverse of ``to_unit``.
        weights: Probabilities of the values of a discrete distribution, in order; empty for a continuous distribution.
    """

    names: tuple[str, ...]
    unit: str
    to_unit: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    to_si: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    weights: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """Name of the axis for display, for example ``joint/elbow/damping and 5 more``."""
        return self.names[0] if len(self.names) == 1 else f"{self.names[0]} and {len(self.names) - 1} more"

    def split_cells(self, wanted: int) -> tuple[int, NDArray[np.float64]]:
        """Divide the axis (cumulative probability, 0 to 1) into at most ``wanted`` cells of equal width.

        There is at most one cell per value of a discrete distribution.

        Returns:
            The number of cells, and the probability of each cell. For a discrete distribution it is the sum of the
                probabilities of the cell's values, which may differ between cells.
        """
        if not self.weights:
            return wanted, np.full(wanted, 1.0 / wanted)
        count = min(wanted, len(self.weights))
        steps = np.asarray(self.weights)
        middle = np.cumsum(steps) - 0.5 * steps
        place = np.minimum((middle * count).astype(int), count - 1)
        return count, np.bincount(place, weights=steps, minlength=count).astype(np.float64)


def plan_axes(plan: Plan) -> list[UnitCubeAxis]:
    """Return the axes of all draws of a plan with scope ``episode``; a correlated draw has one axis per parameter."""
    result: list[UnitCubeAxis] = []
    for draw in plan.draws:
        if draw.scope != "episode":
            continue
        if isinstance(draw, Draw):
            result += [_draw_axis(plan, draw, names) for names in draw.axes]
        elif isinstance(draw, JointDraw):
            result += [_joint_axis(plan, draw, column) for column in range(draw.size)]
        elif isinstance(draw, BoxesDraw):
            result += [_boxes_axis(plan, draw, column) for column in range(draw.size)]
        else:
            result += _adaptive_axes(plan, draw)
    return result


def to_unit_cube(axes: list[UnitCubeAxis], table: ParamTable) -> NDArray[np.float64]:
    """Return the worlds of a parameter table as points of the unit cube, ``(nworld, len(axes))``."""
    return np.stack([axis.to_unit(table[axis.names[0]]) for axis in axes], axis=-1)


def _draw_axis(plan: Plan, draw: Draw, names: tuple[str, ...]) -> UnitCubeAxis:
    param = plan.twin.params[names[0]]
    distribution = draw.distribution
    shift, factor = {"absolute": (0.0, 1.0), "scale": (0.0, param.nominal), "add": (param.nominal, 1.0)}[draw.op]

    def raw(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return (values - shift) / factor if factor else np.ones_like(values)

    return UnitCubeAxis(
        names=names,
        unit=param.unit,
        to_unit=lambda values: distribution.cdf(raw(values)),
        to_si=lambda u: param.absolute(distribution.ppf(u), draw.op),
        weights=_choice_weights(distribution),
    )


def _choice_weights(distribution: Distribution) -> tuple[float, ...]:
    if not isinstance(distribution, Choice):
        return ()
    weights = np.asarray(distribution.weights or np.ones(len(distribution.values)), dtype=np.float64)
    return tuple((weights / weights.sum()).tolist())


def _joint_axis(plan: Plan, draw: JointDraw, column: int) -> UnitCubeAxis:
    name, log = draw.names[column], draw.transforms[column] == "log"
    one = MultivariateNormal(
        mean=(draw.distribution.mean[column],), covariance=((draw.distribution.covariance[column][column],),)
    )

    def forward(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return one.cdf((np.log(values) if log else values)[:, None])[:, 0]

    def back(u: NDArray[np.float64]) -> NDArray[np.float64]:
        values = one.sample(np.asarray(u)[:, None])[:, 0]
        return np.exp(values) if log else values

    return UnitCubeAxis(names=(name,), unit=plan.twin.params[name].unit, to_unit=forward, to_si=back)


def _boxes_axis(plan: Plan, draw: BoxesDraw, column: int) -> UnitCubeAxis:
    name = draw.names[column]
    return UnitCubeAxis(
        names=(name,),
        unit=plan.twin.params[name].unit,
        to_unit=lambda values: draw.cdf(column, values),
        to_si=lambda u: draw.ppf(column, u),
    )


def _adaptive_axes(plan: Plan, draw: AdaptiveDraw) -> list[UnitCubeAxis]:
    """Return one uniform axis per parameter of an adaptive draw, between its outermost boundaries in all rounds."""
    uniform = [Uniform(low=low, high=high) for low, high in draw.enclosing_ranges()]
    return [
        UnitCubeAxis(names=(name,), unit=plan.twin.params[name].unit, to_unit=one.cdf, to_si=one.ppf)
        for name, one in zip(draw.names, uniform, strict=True)
    ]
