"""Profile likelihood: a parameter held at values around its estimate, the others fitted again at each.

Twice the rise of the loss, over what the clusters make of its curvature, is compared with Student's t²: for a quadratic
loss that is the interval of the sandwich (Pace, Salvan & Sartori, "Adjusting composite likelihood ratio statistics",
Statistica Sinica 21, 2011), and for one that is not, the limits follow its bends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.identify.checkpoint import Checkpoint
from twinloop.identify.problem import Linearization, Problem
from twinloop.identify.solver import Descent
from twinloop.identify.space import Space
from twinloop.identify.uncertainty import Uncertainty
from twinloop.identify.uncertainty_newton import Variants, Variation, losses, newton

Array = NDArray[np.float64]
_VALUES, _SPAN = 17, 2.0  # eight values to either side, as far as twice the interval reaches (our choice)
_STEPS = 5  # Newton steps of the others at each value: they begin where the fit ended (our choice)
_UNKNOWN_SPAN = 2.0  # prior standard deviations, for a parameter without an interval


@dataclass(frozen=True, kw_only=True)
class Profile:
    """How much worse the fit is where one parameter is held elsewhere.

    ``values`` ``(k,)`` are in SI, ``rise`` ``(k,)`` is in units of t²: the interval holds what lies below ``limit``.
    ``others`` are the values of the other parameters there. ``low`` or ``high`` is None where the curve does not reach
    the limit on that side: the data leave it open as far as the curve goes.
    """

    name: str
    unit: str
    values: Array
    rise: Array
    others: Mapping[str, Array]
    limit: float
    low: float | None
    high: float | None
    level: float

    def text(self) -> str:
        """The interval in words."""
        low = f"{self.low:.4g}" if self.low is not None else f"open below {self.values[0]:.4g}"
        high = f"{self.high:.4g}" if self.high is not None else f"open above {self.values[-1]:.4g}"
        return f"Profile of {self.name}: [{low}, {high}] {self.unit} at {self.level:.0%}"

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        return {
            "name": self.name,
            "unit": self.unit,
            "values": self.values.tolist(),
            "rise": self.rise.tolist(),
            "others": {name: column.tolist() for name, column in self.others.items()},
            "limit": self.limit,
            "low": self.low,
            "high": self.high,
            "level": self.level,
        }


def profile_likelihood(
    problem: Problem,
    here: Linearization,
    space: Space,
    found: Uncertainty,
    name: str,
    *,
    values: int = _VALUES,
    checkpoint: Checkpoint | None = None,
) -> Profile:
    """The profile of one parameter, all its values walking in one batch.

    Args:
        problem: the fit.
        here: its solution.
        space: its parameters.
        found: what is known of them.
        name: of the parameter.
        values: how many, as far as twice its interval to either side and within its bounds.
        checkpoint: keeps how far the walks are, and says where they go on.

    Raises:
        UnknownNameError: the parameter is not free in this fit.
        InputError: nothing says how far the loss may rise, because there are no clusters to compare.
    """
    if name not in space.names:
        raise UnknownNameError("free parameter", name, space.names)
    if found.clusters is None:
        raise InputError(
            f"Nothing can be compared with the profile of {name}: one episode gives no interval. Add some."
        )
    column = space.names.index(name)
    grid = _grid(problem, here, found, column, values)
    variation = Variation(column=column, values=grid)
    kept, stage = checkpoint or Checkpoint(None, {}), f"profile {name}"
    begun = kept.descents(stage)
    ends = newton(
        problem,
        here,
        variation,
        steps=_STEPS,
        start=_variants(begun) if begun else None,
        watch=lambda now: kept.keep_descents(stage, _descents(now)),
    )
    loss = losses(problem, ends, variation)
    information = found.curvature[column] * found.covariance[column, column]
    rise = 2.0 * (loss - loss.min()) / information
    limit = float(stdtrit(found.df[column], (1 + found.level) / 2) ** 2)
    low, high = _crossings(grid, np.sqrt(rise), np.sqrt(limit))
    si = space.values(ends.points)
    log = space.free[column].log
    return Profile(
        name=name,
        unit=space.free[column].param.unit,
        values=np.asarray(si.pop(name), dtype=np.float64),
        rise=rise,
        others=si,
        limit=limit,
        low=_si(low, log=log),
        high=_si(high, log=log),
        level=found.level,
    )


def _grid(problem: Problem, here: Linearization, found: Uncertainty, column: int, values: int) -> Array:
    point, sd = here.point[column], problem.sd[column]
    reach = np.nanmax([found.high[column] - point, point - found.low[column], 0.0])
    reach = _SPAN * reach if reach > 0 else _UNKNOWN_SPAN * sd
    grid = np.linspace(max(point - reach, problem.low[column]), min(point + reach, problem.high[column]), values)
    return np.unique(np.append(grid, point))


def _crossings(grid: Array, height: Array, limit: float) -> tuple[float | None, float | None]:
    """Where the curve first rises over the limit on either side of its lowest point, linear between values."""
    lowest = int(np.argmin(height))
    sides = []
    for steps in (range(lowest, 0, -1), range(lowest, len(grid) - 1)):
        crossed = None
        for i in steps:
            j = i - 1 if steps.step < 0 else i + 1
            if height[j] >= limit:
                crossed = float(grid[i] + (grid[j] - grid[i]) * (limit - height[i]) / (height[j] - height[i]))
                break
        sides.append(crossed)
    return sides[0], sides[1]


def _si(value: float | None, *, log: bool) -> float | None:
    return None if value is None else float(np.exp(value)) if log else value


def _variants(descents: list[Descent]) -> Variants:
    points, local = (np.array([getattr(one, key) for one in descents]) for key in ("point", "local"))
    return Variants(points=points, local=local, steps=descents[0].iteration)


def _descents(now: Variants) -> list[Descent]:
    nothing = np.zeros(0)
    rows = zip(now.points, now.local, strict=True)
    return [Descent(point=point, local=local, damping=nothing, iteration=now.steps) for point, local in rows]
