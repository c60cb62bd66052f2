"""Search globally for the optimum of a fit: from many starts, or by the evolution strategy CMA-ES.

Every generation of CMA-ES is one batch of replays; it suits rough losses with misleading gradients. It searches in
units of the prior's standard deviations. Levenberg–Marquardt then refines its result (`optimization`). Hansen, "The CMA
Evolution Strategy: A Tutorial", arXiv 1604.00772, by the package cmaes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from cmaes import CMA
from numpy.typing import NDArray
from scipy.special import ndtri

from twinloop.identify.assembly import FitSpace, servo_lag
from twinloop.identify.problem import FitProblem, Linearization, normal_equations
from twinloop.identify.solver import SolverSolution
from twinloop.randomize.sequences import scrambled_sobol

Array = NDArray[np.float64]
_ALIKE = 0.05  # relative difference of losses up to which optima are nearly equal
_APART = 0.25  # distinct optima differ by at least this many prior standard deviations in some parameter
_RIDGE = 0.01  # two optima with a smaller relative rise of the loss between them are one valley
_NOTHING = 1e-3  # loss that counts as zero: residuals of a twentieth of their noise


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """Local optimum of a fit.

    Attributes:
        point: Parameters in solver coordinates (ln or SI), ``(p,)``.
        loss: Total loss there.
        starts: Number of start points from which it was reached.
    """

    point: Array
    loss: float
    starts: int


def starting_points(problem: FitProblem, start: Array, count: int, *, seed: int = 0) -> Array:
    """Return ``start`` and scrambled Sobol' draws from the prior as start points, ``(count, p)``.

    Draws outside the bounds are clipped to them.

    Args:
        problem: Least-squares problem of the fit.
        start: The first start point in solver coordinates (ln or SI), ``(p,)``.
        count: Number of start points, including ``start``.
        seed: Seed of the draws.
    """
    draws = scrambled_sobol(np.arange(count - 1, dtype=np.int64), len(start), run_seed=seed)
    points = problem.centre + problem.sd * ndtri(draws)
    return np.clip(np.concatenate([start[None], points]), problem.low, problem.high)


# Parts of a servo's lag that are delay: an ideal bus with a soft servo, and a slow bus with a stiff servo; our choice.
_DELAY_PARTS = (0.1, 0.4, 0.7)
_SAME_PART = 0.15


def lag_starts(space: FitSpace, point: Array, keep: Collection[str] = ()) -> list[Array]:
    """Return start points at which servos have the same lag as at ``point``, but with another part of it as delay.

    The lag of a position servo is its delay plus (damping + kd) / kp. Smooth commands determine the sum, and the loss
    often has one minimum per division of it.

    Args:
        space: The free parameters.
        point: A point in solver coordinates (ln or SI), ``(p,)``.
        keep: Names of parameters that are not changed.

    Returns:
        The points, ``(p,)`` each; none for a twin without a free delay and gain of the same servo.
    """
    twin, names = space.twin, space.names
    if twin.spec.robot is None or twin.robot.control != "position":
        return []
    table = space.table(point[None])
    servo, delay = servo_lag(twin, table)[0], twin.column(table, "actuator", "delay", 0.0)[0]
    lag, starts = servo + delay, []
    for part in _DELAY_PARTS:
        start = point.copy()
        for joint, actuator in enumerate(twin.robot.actuator_names):
            own = [f"actuator/{actuator}/{quantity}" for quantity in ("delay", "kp")]
            if not set(own) <= set(names) - set(keep) or servo[joint] <= 0:
                continue
            if abs(delay[joint] - part * lag[joint]) < _SAME_PART * lag[joint]:
                continue
            at, gain = map(names.index, own)
            factor = servo[joint] / ((1.0 - part) * lag[joint])
            start[at] = part * lag[joint]
            start[gain] = point[gain] + math.log(factor) if space.free[gain].is_logarithmic else point[gain] * factor
        if not np.array_equal(start, point):
            starts.append(np.clip(start, space.column("low"), space.column("high")))
    return starts


def combine_blocks(problem: FitProblem, solutions: Sequence[SolverSolution]) -> Array:
    """Return the point ``(p,)`` with the parameters of each block from the solution with the block's lowest loss."""
    losses = np.array([solution.end.losses for solution in solutions])
    combined = solutions[0].point.copy()
    for block, best in zip(problem.blocks, np.argmin(losses, axis=0), strict=True):
        combined[block.columns] = solutions[best].point[block.columns]
    return combined


def distinct_optima(problem: FitProblem, solutions: Sequence[SolverSolution]) -> tuple[Optimum, ...]:
    """Return the different optima among solutions whose loss is within 5 % of the lowest loss, best first.

    Solutions count as one optimum if the loss does not rise on the straight line between them (a flat valley). Such
    valleys are reported as undetermined directions.
    """
    ended = sorted((s for s in solutions if not s.diverged), key=lambda s: s.loss)
    optima: list[Optimum] = []
    for solution in ended:
        if solution.loss > (1.0 + _ALIKE) * ended[0].loss + _NOTHING:
            break
        same = next((i for i, other in enumerate(optima) if _is_same_optimum(problem, other, solution)), None)
        if same is None:
            optima.append(Optimum(point=solution.point, loss=solution.loss, starts=1))
        else:
            optima[same] = replace(optima[same], starts=optima[same].starts + 1)
    return tuple(optima)


def _is_same_optimum(problem: FitProblem, optimum: Optimum, other: SolverSolution) -> bool:
    """Return whether an optimum and a solution are near each other, or have no rise of the loss between them."""
    move = other.point - optimum.point
    if np.max(np.abs(move) / problem.sd) < _APART:
        return True
    between = optimum.point + np.array([0.25, 0.5, 0.75])[:, None] * move
    losses = problem.losses_at(between, np.repeat(other.end.local[None], len(between), axis=0)).sum(axis=1)
    return bool(losses.max() < (1.0 + _RIDGE) * max(optimum.loss, other.loss) + _NOTHING)


def describe_optima(space: FitSpace, problem: FitProblem, optima: Sequence[Optimum]) -> str:
    """Return a sentence on the differences between nearly equal optima; "" for a single optimum."""
    if len(optima) < 2:
        return ""
    spread = np.ptp([optimum.point for optimum in optima], axis=0) / problem.sd
    names = [space.names[i] for i in np.argsort(-spread) if spread[i] > _APART]
    rows = []
    for optimum in optima:
        values = space.scalar_values(optimum.point)
        units = {free.name: "" if free.param.unit == "1" else free.param.unit for free in space.free}
        value_text = ", ".join(f"{name} {values[name]:.4g} {units[name]}".strip() for name in names)
        rows.append(f"loss {optimum.loss:.4g} ({optimum.starts} starts) at {value_text}")
    return (
        f"{len(optima)} optima explain the data nearly equally well: {'; '.join(rows)}. The first is reported. Fix "
        f"one of {', '.join(names[:3])} to its known value, or record motion that distinguishes them."
    )


# First step in standard deviations of the prior: two thirds of the draws are within half a prior deviation.
_FIRST_STEP = 0.5
_DIVERGED = 1e12  # in place of an infinite loss, which the strategy cannot use


@dataclass(frozen=True)
class EvolutionResult:
    """Result or intermediate state of a CMA-ES search.

    Attributes:
        point: Best evaluated point in solver coordinates (ln or SI), or the mean of the last generation if it is
            better, ``(p,)``.
        loss: Loss at ``point``.
        history: Lowest loss so far after each generation.
        generation_losses: Losses of the points of every generation, from which the same search can be resumed.
        converged: Whether a stopping criterion of CMA-ES was met.
    """

    point: Array
    loss: float
    history: tuple[float, ...]
    generation_losses: tuple[tuple[float, ...], ...]
    converged: bool

    @property
    def replays(self) -> int:
        """Number of points that were evaluated, each by one simulated world."""
        return sum(map(len, self.generation_losses))


def evolve(
    problem: FitProblem,
    start: Array,
    *,
    generations: int,
    population: int | None = None,
    seed: int = 0,
    generation_losses: Sequence[Sequence[float]] = (),
    watch: Callable[[EvolutionResult], None] | None = None,
) -> EvolutionResult:
    """Search for the minimum of the loss by CMA-ES; equal seeds give equal searches.

    Args:
        problem: Least-squares problem of the fit; initial states stay as measured.
        start: Mean of the first generation in solver coordinates (ln or SI), ``(p,)``.
        generations: Maximum number of generations.
        population: Points per generation; by default 4 + ⌊3 ln p⌋ for p parameters.
        seed: Seed of the draws.
        generation_losses: Losses of the generations of an earlier, interrupted search; they are not replayed again.
        watch: Called after every generation with the state of the search.
    """
    strategy = _make_strategy(problem, start, population, seed)
    best, best_loss, history, losses = (
        np.clip(start, problem.low, problem.high),
        np.inf,
        [],
        list(map(tuple, generation_losses)),
    )
    stopped = False
    for generation in range(generations):
        candidates = np.array([strategy.ask() for _ in range(strategy.population_size)])
        points = _points_from_strategy(problem, candidates)
        if generation == len(losses):
            losses.append(tuple(_finite_losses(problem, points).tolist()))
        least = int(np.argmin(losses[generation]))
        if losses[generation][least] < best_loss:
            best, best_loss = points[least], losses[generation][least]
        history.append(best_loss)
        strategy.tell(list(zip(candidates, losses[generation], strict=True)))
        stopped = strategy.should_stop()
        if watch is not None and generation + 1 >= len(generation_losses):
            watch(EvolutionResult(best, best_loss, tuple(history), tuple(losses), stopped))
        if stopped:
            break
    mean = _points_from_strategy(problem, strategy.mean[None])
    loss = float(_finite_losses(problem, mean)[0])
    if loss < best_loss:
        best, best_loss = mean[0], loss
    return EvolutionResult(best, best_loss, tuple(history), tuple(losses), stopped)


# Variance of the first draws, as a multiple of the inverse curvature times the loss; our choice.
_BLOCK_SPREAD, _BLOCK_LARGEST, _BLOCK_RIDGE = 4.0, 0.5, 1e-9  # largest deviation and ridge in prior deviations


def evolve_blocks(
    problem: FitProblem, here: Linearization, *, generations: int, population: int, seed: int = 0
) -> Array:
    """Search for lower losses of all blocks around a point by CMA-ES, and return the best point found, ``(p,)``.

    Stiction makes the loss rough: derivatives are then no guide to a lower minimum that is a few standard errors away.
    Each block has its own strategy, whose first draws have the shape of the inverse curvature. A generation of all
    strategies is one batch of replays.

    Args:
        problem: Least-squares problem of the fit.
        here: Linearization at the start; its corrections of the initial states are kept.
        generations: Number of generations.
        population: Points per generation.
        seed: Seed of the draws.
    """
    units = [(point - problem.centre) / problem.sd for point in (here.point, problem.low, problem.high)]
    strategies = []
    for number, block in enumerate(problem.blocks):
        sd = problem.sd[block.columns]
        curvature = normal_equations(problem, here, number).matrix * np.outer(sd, sd)
        inverse = np.linalg.inv(curvature + _BLOCK_RIDGE * np.eye(len(sd)))
        sizes, axes = np.linalg.eigh(inverse)
        sizes = np.clip(_BLOCK_SPREAD * here.losses[number] * sizes, _BLOCK_RIDGE, _BLOCK_LARGEST**2)
        mean, low, high = (values[block.columns] for values in units)
        strategies.append(
            _start_strategy(np.clip(mean, low, high), np.stack([low, high], axis=1), seed + number, population,
                            1.0, (axes * sizes) @ axes.T)
        )  # fmt: skip
    best, lowest = here.point.copy(), here.losses.copy()
    local = np.repeat(here.local[None], population, axis=0)
    for _ in range(generations):
        asked = [np.array([strategy.ask() for _ in range(population)]) for strategy in strategies]
        points = np.repeat(here.point[None], population, axis=0)
        for block, candidates in zip(problem.blocks, asked, strict=True):
            own = block.columns
            points[:, own] = problem.centre[own] + problem.sd[own] * candidates[:, : len(own)]
        points = np.clip(points, problem.low, problem.high)
        losses = problem.losses_at(points, local)
        losses = np.where(np.isfinite(losses), losses, _DIVERGED)
        for number, (block, strategy) in enumerate(zip(problem.blocks, strategies, strict=True)):
            strategy.tell(list(zip(asked[number], losses[:, number], strict=True)))
            least = int(np.argmin(losses[:, number]))
            if losses[least, number] < lowest[number]:
                lowest[number] = losses[least, number]
                best[block.columns] = points[least, block.columns]
    return best


def _make_strategy(problem: FitProblem, start: Array, population: int | None, seed: int) -> CMA:
    """Create the CMA-ES optimizer, in units of prior standard deviations from the prior mean."""
    low, high = ((bound - problem.centre) / problem.sd for bound in (problem.low, problem.high))
    mean = np.clip((start - problem.centre) / problem.sd, low, high)
    return _start_strategy(mean, np.stack([low, high], axis=1), seed, population, _FIRST_STEP)


def _start_strategy(
    mean: Array, bounds: Array, seed: int, population: int | None, sigma: float, covariance: Array | None = None
) -> CMA:
    """Create the CMA-ES optimizer; a single parameter gets an unused second dimension, because the package needs two.

    Args:
        mean: Mean of the first generation, ``(p,)``.
        bounds: Bounds of each parameter, ``(p, 2)``.
        seed: Seed of the draws.
        population: Points per generation; None for the package's default.
        sigma: Standard deviation of the first generation, or factor on that of ``covariance``.
        covariance: Covariance of the first generation, ``(p, p)``; by default 1.
    """
    if len(mean) == 1:
        mean, bounds = np.append(mean, 0.0), np.concatenate([bounds, [[-1.0, 1.0]]])
        covariance = None if covariance is None else np.diag([covariance[0, 0], 1.0])
    return CMA(mean=mean, sigma=sigma, bounds=bounds, seed=seed, population_size=population, cov=covariance)


def _points_from_strategy(problem: FitProblem, candidates: Array) -> Array:
    points = problem.centre + problem.sd * candidates[:, : len(problem.sd)]
    return np.clip(points, problem.low, problem.high)


def _finite_losses(problem: FitProblem, points: Array) -> Array:
    losses = problem.losses_at(points).sum(axis=1)
    return np.where(np.isfinite(losses), losses, _DIVERGED)
