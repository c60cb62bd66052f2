"""Map the parameter space to a unit cube and back, with one axis per independent uniform."""

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
class MarginAxis:
    """Axis of the parameter space along which ``names`` vary together; values are those of the first name.

    ``to_unit`` maps SI values to cumulative probability, ``to_si`` is the inverse. ``weights`` are the probabilities of
    the values of a discrete axis in order, else empty.
    """

    names: tuple[str, ...]
    unit: str
    to_unit: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    to_si: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    weights: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """Name of the axis for people."""
        return self.names[0] if len(self.names) == 1 else f"{self.names[0]} and {len(self.names) - 1} more"

    def split_cells(self, wanted: int) -> tuple[int, NDArray[np.float64]]:
        """Return the number of equal parts of (0, 1), and the probability of each under the declared distribution."""
        if not self.weights:
            return wanted, np.full(wanted, 1.0 / wanted)
        count = min(wanted, len(self.weights))
        steps = np.asarray(self.weights)
        middle = np.cumsum(steps) - 0.5 * steps
        place = np.minimum((middle * count).astype(int), count - 1)
        return count, np.bincount(place, weights=steps, minlength=count).astype(np.float64)


def plan_axes(plan: Plan) -> list[MarginAxis]:
    """Return the axes of all draws of a plan per episode; a correlated draw has one axis per parameter."""
    result: list[MarginAxis] = []
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


def to_unit_cube(axes: list[MarginAxis], table: ParamTable) -> NDArray[np.float64]:
    """Return the worlds of a table as points ``(nworld, len(axes))`` of the unit cube."""
    return np.stack([axis.to_unit(table[axis.names[0]]) for axis in axes], axis=-1)


def _draw_axis(plan: Plan, draw: Draw, names: tuple[str, ...]) -> MarginAxis:
    param = plan.twin.params[names[0]]
    distribution = draw.distribution
    shift, factor = {"absolute": (0.0, 1.0), "scale": (0.0, param.nominal), "add": (param.nominal, 1.0)}[draw.op]

    def raw(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return (values - shift) / factor if factor else np.ones_like(values)

    return MarginAxis(
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


def _joint_axis(plan: Plan, draw: JointDraw, column: int) -> MarginAxis:
    name, log = draw.names[column], draw.transforms[column] == "log"
    one = MultivariateNormal(
        mean=(draw.distribution.mean[column],), covariance=((draw.distribution.covariance[column][column],),)
    )

    def forward(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return one.cdf((np.log(values) if log else values)[:, None])[:, 0]

    def back(u: NDArray[np.float64]) -> NDArray[np.float64]:
        values = one.sample(np.asarray(u)[:, None])[:, 0]
        return np.exp(values) if log else values

    return MarginAxis(names=(name,), unit=plan.twin.params[name].unit, to_unit=forward, to_si=back)


def _boxes_axis(plan: Plan, draw: BoxesDraw, column: int) -> MarginAxis:
    name = draw.names[column]
    return MarginAxis(
        names=(name,),
        unit=plan.twin.params[name].unit,
        to_unit=lambda values: draw.cdf(column, values),
        to_si=lambda u: draw.ppf(column, u),
    )


def _adaptive_axes(plan: Plan, draw: AdaptiveDraw) -> list[MarginAxis]:
    """Return uniform axes between the widest boundaries of all known rounds."""
    uniform = [Uniform(low=low, high=high) for low, high in draw.enclosing_ranges()]
    return [
        MarginAxis(names=(name,), unit=plan.twin.params[name].unit, to_unit=one.cdf, to_si=one.ppf)
        for name, one in zip(draw.names, uniform, strict=True)
    ]
