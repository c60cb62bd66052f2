"""CMA-ES over a fit: for landscapes so rough that slopes mislead, such as those of contact.

Every generation is one batch of replays. The walk goes on in units of the prior's standard deviations; what is found is
then taken to the bottom by Levenberg–Marquardt (`walk`). Hansen, "The CMA Evolution Strategy: A Tutorial",
arXiv 1604.00772, by the package cmaes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from cmaes import CMA
from numpy.typing import NDArray

from twinloop.identify.problem import Problem

Array = NDArray[np.float64]

# First step in standard deviations of the prior: two thirds of the draws lie within half of what is plausible.
_FIRST_STEP = 0.5
_DIVERGED = 1e12  # in place of an infinite loss, which the strategy cannot count with


@dataclass(frozen=True, kw_only=True)
class Evolution:
    """Where a search ended: the best ``point`` seen or the last mean, its ``loss``, and how it went.

    ``history`` is the best loss after each generation; ``told`` the losses of every generation's points, with which
    the same search can be gone on with; ``converged`` says that the strategy itself stopped.
    """

    point: Array
    loss: float
    history: tuple[float, ...]
    told: tuple[tuple[float, ...], ...]
    replays: int
    converged: bool


def evolve(
    problem: Problem,
    start: Array,
    *,
    generations: int,
    population: int | None = None,
    seed: int = 0,
    told: Sequence[Sequence[float]] = (),
    watch: Callable[[Evolution], None] | None = None,
) -> Evolution:
    """Search from ``start``; equal seeds give equal searches.

    Args:
        problem: the fit; first states stay as measured.
        start: mean of the first generation, ``(p,)``.
        generations: at most so many.
        population: points of a generation; None for 4 + ⌊3 ln p⌋.
        seed: of the draws.
        told: losses of generations that were replayed before; they are not replayed again.
        watch: is told after every generation how far the search is.
    """
    strategy = _strategy(problem, start, population, seed)
    best, best_loss, history, losses = np.clip(start, problem.low, problem.high), np.inf, [], list(map(tuple, told))
    stopped = False
    for generation in range(generations):
        asked = np.array([strategy.ask() for _ in range(strategy.population_size)])
        points = _points(problem, asked)
        if generation == len(losses):
            losses.append(tuple(_losses(problem, points).tolist()))
        least = int(np.argmin(losses[generation]))
        if losses[generation][least] < best_loss:
            best, best_loss = points[least], losses[generation][least]
        history.append(best_loss)
        strategy.tell(list(zip(asked, losses[generation], strict=True)))
        stopped = strategy.should_stop()
        if watch is not None and generation + 1 >= len(told):
            watch(_evolution(best, best_loss, history, losses, stopped))
        if stopped:
            break
    mean = _points(problem, strategy.mean[None])
    loss = float(_losses(problem, mean)[0])
    if loss < best_loss:
        best, best_loss = mean[0], loss
    return _evolution(best, best_loss, history, losses, stopped)


def _evolution(
    point: Array, loss: float, history: Sequence[float], told: Sequence[tuple[float, ...]], stopped: bool
) -> Evolution:
    return Evolution(
        point=point,
        loss=loss,
        history=tuple(history),
        told=tuple(told),
        replays=sum(map(len, told)),
        converged=stopped,
    )


def _strategy(problem: Problem, start: Array, population: int | None, seed: int) -> CMA:
    """In deviations of the prior from its centre; a single parameter gets an idle one beside it, as CMA needs two."""
    low, high = ((bound - problem.centre) / problem.sd for bound in (problem.low, problem.high))
    mean = np.clip((start - problem.centre) / problem.sd, low, high)
    bounds = np.stack([low, high], axis=1)
    if len(mean) == 1:
        mean, bounds = np.append(mean, 0.0), np.concatenate([bounds, [[-1.0, 1.0]]])
    return CMA(mean=mean, sigma=_FIRST_STEP, bounds=bounds, seed=seed, population_size=population)


def _points(problem: Problem, asked: Array) -> Array:
    points = problem.centre + problem.sd * asked[:, : len(problem.sd)]
    return np.clip(points, problem.low, problem.high)


def _losses(problem: Problem, points: Array) -> Array:
    local = np.repeat(problem.no_local[None], len(points), axis=0)
    losses = problem.losses(problem.residual(points, local), points, local).sum(axis=1)
    return np.where(np.isfinite(losses), losses, _DIVERGED)
