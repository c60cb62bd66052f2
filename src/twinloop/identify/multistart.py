"""Many starts of a fit, spread evenly over what is plausible beforehand, and the optima that they end in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from twinloop.identify.problem import Problem
from twinloop.identify.solver import Solution
from twinloop.identify.space import Space
from twinloop.randomize.sequences import scrambled_sobol

Array = NDArray[np.float64]
_ALIKE = 0.05  # optima are called nearly equal up to this difference of their losses, relative
_APART = 0.25  # standard deviations beforehand, of some parameter, between optima that are told apart
_RIDGE = 0.01  # relative rise of the loss between two optima, without which they are one valley
_NOTHING = 1e-3  # of a loss: residuals of a twentieth of their noise


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """One end of a fit's walks: its ``point`` as the solver has it, its loss, and how many ``starts`` led there."""

    point: Array
    loss: float
    starts: int


def starting_points(problem: Problem, start: Array, count: int, *, seed: int = 0) -> Array:
    """``start``, and points drawn from the prior with low discrepancy (scrambled Sobol'), ``(count, p)``.

    Draws beyond a bound lie on it.
    """
    draws = scrambled_sobol(np.arange(count - 1, dtype=np.int64), len(start), run_seed=seed)
    points = problem.centre + problem.sd * ndtri(draws)
    return np.clip(np.concatenate([start[None], points]), problem.low, problem.high)


def distinct_optima(problem: Problem, solutions: Sequence[Solution]) -> tuple[Optimum, ...]:
    """The best end of several walks, and those that are nearly as good and lie elsewhere, best first.

    Ends that differ only along a valley, over which the loss does not rise between them, count as one: what that
    leaves open is said by the directions that the data do not determine.
    """
    ended = sorted((s for s in solutions if not s.diverged), key=lambda s: s.loss)
    found: list[Optimum] = []
    for solution in ended:
        if solution.loss > (1.0 + _ALIKE) * ended[0].loss + _NOTHING:
            break
        same = next((i for i, other in enumerate(found) if _one(problem, other, solution)), None)
        if same is None:
            found.append(Optimum(point=solution.point, loss=solution.loss, starts=1))
        else:
            known = found[same]
            found[same] = Optimum(point=known.point, loss=known.loss, starts=known.starts + 1)
    return tuple(found)


def _one(problem: Problem, optimum: Optimum, other: Solution) -> bool:
    """Whether two ends are the same optimum: near each other, or with no ridge between them."""
    move = other.point - optimum.point
    if np.max(np.abs(move) / problem.sd) < _APART:
        return True
    between = optimum.point + np.array([0.25, 0.5, 0.75])[:, None] * move
    local = np.repeat(other.end.local[None], len(between), axis=0)
    losses = problem.losses(problem.residual(between, local), between, local).sum(axis=1)
    return bool(losses.max() < (1.0 + _RIDGE) * max(optimum.loss, other.loss) + _NOTHING)


def describe_optima(space: Space, problem: Problem, optima: Sequence[Optimum]) -> str:
    """What distinguishes optima that are nearly as good as each other; nothing where there is one."""
    if len(optima) < 2:
        return ""
    spread = np.ptp([optimum.point for optimum in optima], axis=0) / problem.sd
    telling = [i for i in np.argsort(-spread) if spread[i] > _APART]
    rows = []
    for optimum in optima:
        values = space.values(optimum.point)
        said = ", ".join(f"{space.names[i]} {values[space.names[i]]:.4g} {_unit(space, i)}".strip() for i in telling)
        rows.append(f"loss {optimum.loss:.4g} ({optimum.starts} starts) at {said}")
    return (
        f"{len(optima)} optima explain the data nearly alike: {'; '.join(rows)}. The first is reported. Fix one of "
        f"{', '.join(space.names[i] for i in telling[:3])} to what is known of it, or record motion that tells them "
        "apart."
    )


def _unit(space: Space, column: int) -> str:
    unit = space.free[column].param.unit
    return "" if unit == "1" else unit
