"""Search globally for the optimum of a fit: from many starts, and by CMA-ES.

Every generation of CMA-ES is one batch of replays; it suits rough objectives with misleading slopes. It searches in
units of the prior's standard deviations. Levenberg–Marquardt then refines its result (`walk`). Hansen, "The CMA
Evolution Strategy: A Tutorial", arXiv 1604.00772, by the package cmaes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from cmaes import CMA
from numpy.typing import NDArray
from scipy.special import ndtri

from twinloop.identify.assembly import FitSpace
from twinloop.identify.problem import FitProblem
from twinloop.identify.solver import SolverSolution
from twinloop.randomize.sequences import scrambled_sobol

Array = NDArray[np.float64]
_ALIKE = 0.05  # optima are called nearly equal up to this difference of their losses, relative
_APART = 0.25  # prior standard deviations of some parameter between distinct optima
_RIDGE = 0.01  # relative rise of the loss between two optima; below it they are one valley
_NOTHING = 1e-3  # loss that counts as zero: residuals of a twentieth of their noise


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """One optimum of a fit: its ``point`` in solver coordinates, its loss, and how many ``starts`` reached it."""

    point: Array
    loss: float
    starts: int


def starting_points(problem: FitProblem, start: Array, count: int, *, seed: int = 0) -> Array:
    """Return ``start`` and low-discrepancy draws from the prior (scrambled Sobol'), ``(count, p)``.

    Draws outside the bounds are clipped to them.
    """
    draws = scrambled_sobol(np.arange(count - 1, dtype=np.int64), len(start), run_seed=seed)
    points = problem.centre + problem.sd * ndtri(draws)
    return np.clip(np.concatenate([start[None], points]), problem.low, problem.high)


def distinct_optima(problem: FitProblem, solutions: Sequence[SolverSolution]) -> tuple[Optimum, ...]:
    """Return the best solution and other, nearly equal optima, best first.

    Solutions that differ only along a valley, without a rise of the loss between them, count as one. The undetermined
    directions describe such valleys.
    """
    ended = sorted((s for s in solutions if not s.diverged), key=lambda s: s.loss)
    found: list[Optimum] = []
    for solution in ended:
        if solution.loss > (1.0 + _ALIKE) * ended[0].loss + _NOTHING:
            break
        same = next((i for i, other in enumerate(found) if _is_same_optimum(problem, other, solution)), None)
        if same is None:
            found.append(Optimum(point=solution.point, loss=solution.loss, starts=1))
        else:
            found[same] = replace(found[same], starts=found[same].starts + 1)
    return tuple(found)


def _is_same_optimum(problem: FitProblem, optimum: Optimum, other: SolverSolution) -> bool:
    """Return whether two solutions are the same optimum: near each other, or with no ridge between them."""
    move = other.point - optimum.point
    if np.max(np.abs(move) / problem.sd) < _APART:
        return True
    between = optimum.point + np.array([0.25, 0.5, 0.75])[:, None] * move
    losses = problem.losses_at(between, np.repeat(other.end.local[None], len(between), axis=0)).sum(axis=1)
    return bool(losses.max() < (1.0 + _RIDGE) * max(optimum.loss, other.loss) + _NOTHING)


def describe_optima(space: FitSpace, problem: FitProblem, optima: Sequence[Optimum]) -> str:
    """Return a sentence on the differences of nearly equal optima; empty for a single one."""
    if len(optima) < 2:
        return ""
    spread = np.ptp([optimum.point for optimum in optima], axis=0) / problem.sd
    names = [space.names[i] for i in np.argsort(-spread) if spread[i] > _APART]
    rows = []
    for optimum in optima:
        values = space.scalar_values(optimum.point)
        units = {free.name: "" if free.param.unit == "1" else free.param.unit for free in space.free}
        said = ", ".join(f"{name} {values[name]:.4g} {units[name]}".strip() for name in names)
        rows.append(f"loss {optimum.loss:.4g} ({optimum.starts} starts) at {said}")
    return (
        f"{len(optima)} optima explain the data nearly equally well: {'; '.join(rows)}. The first is reported. Fix "
        f"one of {', '.join(names[:3])} to its known value, or record motion that distinguishes them."
    )


# First step in standard deviations of the prior: two thirds of the draws are within half a prior deviation.
_FIRST_STEP = 0.5
_DIVERGED = 1e12  # in place of an infinite loss, which the strategy cannot use


@dataclass(frozen=True)
class EvolutionResult:
    """Result of a CMA-ES search: the best evaluated ``point`` or the last mean, its ``loss``, and the history.

    ``history`` is the best loss after each generation. ``told`` are the losses of every generation's points; with them
    the same search can be resumed. ``converged`` states that the strategy itself stopped.
    """

    point: Array
    loss: float
    history: tuple[float, ...]
    told: tuple[tuple[float, ...], ...]
    converged: bool

    @property
    def replays(self) -> int:
        """Number of replayed worlds."""
        return sum(map(len, self.told))


def evolve(
    problem: FitProblem,
    start: Array,
    *,
    generations: int,
    population: int | None = None,
    seed: int = 0,
    told: Sequence[Sequence[float]] = (),
    watch: Callable[[EvolutionResult], None] | None = None,
) -> EvolutionResult:
    """Search from ``start`` by CMA-ES; equal seeds give equal searches.

    Args:
        problem: the fit; first states stay as measured.
        start: mean of the first generation, ``(p,)``.
        generations: maximum number of generations.
        population: points per generation; by default 4 + ⌊3 ln p⌋.
        seed: seed of the draws.
        told: losses of generations that were replayed before; they are not replayed again.
        watch: called after every generation with the state of the search.
    """
    strategy = _make_strategy(problem, start, population, seed)
    best, best_loss, history, losses = np.clip(start, problem.low, problem.high), np.inf, [], list(map(tuple, told))
    stopped = False
    for generation in range(generations):
        asked = np.array([strategy.ask() for _ in range(strategy.population_size)])
        points = _points_from_strategy(problem, asked)
        if generation == len(losses):
            losses.append(tuple(_finite_losses(problem, points).tolist()))
        least = int(np.argmin(losses[generation]))
        if losses[generation][least] < best_loss:
            best, best_loss = points[least], losses[generation][least]
        history.append(best_loss)
        strategy.tell(list(zip(asked, losses[generation], strict=True)))
        stopped = strategy.should_stop()
        if watch is not None and generation + 1 >= len(told):
            watch(EvolutionResult(best, best_loss, tuple(history), tuple(losses), stopped))
        if stopped:
            break
    mean = _points_from_strategy(problem, strategy.mean[None])
    loss = float(_finite_losses(problem, mean)[0])
    if loss < best_loss:
        best, best_loss = mean[0], loss
    return EvolutionResult(best, best_loss, tuple(history), tuple(losses), stopped)


def _make_strategy(problem: FitProblem, start: Array, population: int | None, seed: int) -> CMA:
    """Return the strategy in prior deviations from the centre; a single parameter gets an unused second dimension."""
    low, high = ((bound - problem.centre) / problem.sd for bound in (problem.low, problem.high))
    mean = np.clip((start - problem.centre) / problem.sd, low, high)
    bounds = np.stack([low, high], axis=1)
    if len(mean) == 1:
        mean, bounds = np.append(mean, 0.0), np.concatenate([bounds, [[-1.0, 1.0]]])
    return CMA(mean=mean, sigma=_FIRST_STEP, bounds=bounds, seed=seed, population_size=population)


def _points_from_strategy(problem: FitProblem, asked: Array) -> Array:
    points = problem.centre + problem.sd * asked[:, : len(problem.sd)]
    return np.clip(points, problem.low, problem.high)


def _finite_losses(problem: FitProblem, points: Array) -> Array:
    losses = problem.losses_at(points).sum(axis=1)
    return np.where(np.isfinite(losses), losses, _DIVERGED)
