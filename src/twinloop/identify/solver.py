"""Levenberg–Marquardt over batched replays: bounds, Huber loss, a weak prior, blocks, corrected first states.

Every trial step of every block runs in one batch. A step is kept only if the total loss of all channels falls, so that
the coupling that a block-diagonal Jacobian leaves out cannot mislead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.identify.problem import Linearization, Problem, linearize, normal_equations

Array = NDArray[np.float64]

_FACTORS = np.array([0.1, 1.0, 10.0, 100.0])
_LEAST_DAMPING, _MOST_DAMPING = 1e-6, 1e4
_REJECTIONS = 3


@dataclass(frozen=True, kw_only=True)
class Solution:
    """Where the walk ended. ``history`` holds the total loss after every accepted step, ``replays`` counts worlds."""

    end: Linearization
    history: tuple[float, ...]
    replays: int
    converged: bool

    @property
    def point(self) -> Array:
        """The estimate."""
        return self.end.point


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """Points to try and their corrections, ``(k, p)`` and ``(k, nwindow, m)``."""

    points: Array
    local: Array


def solve(
    problem: Problem, start: Array, local: Array | None = None, *, iterations: int = 15, tolerance: float = 2e-3
) -> Solution:
    """Walk downhill from ``start`` until the total loss falls by less than ``tolerance`` (relative) in two steps."""
    here = linearize(problem, np.clip(start, problem.low, problem.high), local)
    damping = np.full(len(problem.blocks), 1e-2)
    history = [float(here.losses.sum())]
    each = max(len(b.columns) for b in problem.blocks) + len(problem.local_sd) + 1
    replays, rejections, converged = each, 0, False
    for _ in range(iterations):
        trial, damping = _best_trial(problem, here, damping)
        replays += len(_FACTORS) + 1
        if trial is None:
            rejections += 1
            if rejections == _REJECTIONS:
                converged = True
                break
            continue
        rejections = 0
        here = linearize(problem, trial.points[0], trial.local[0])
        replays += each
        history.append(float(here.losses.sum()))
        if len(history) > 2 and history[-3] - history[-1] < tolerance * history[-1]:
            converged = True
            break
    return Solution(end=here, history=tuple(history), replays=replays, converged=converged)


def _best_trial(problem: Problem, here: Linearization, damping: Array) -> tuple[_Trial | None, Array]:
    """The best step among several dampings, chosen block by block, if the total loss agrees; and the next damping."""
    levels = np.clip(_FACTORS[:, None] * damping, _LEAST_DAMPING, _MOST_DAMPING)
    steps = [_step(problem, here, level) for level in levels]
    tried = _Trial(points=np.array([point for point, _ in steps]), local=np.array([local for _, local in steps]))
    losses = _losses(problem, tried)
    uniform = losses.sum(axis=1)
    best, raised = int(np.argmin(uniform)), np.minimum(damping * 30.0, _MOST_DAMPING)
    better = losses.min(axis=0) < here.losses
    if len(problem.blocks) > 1 and better.any():
        choice = np.argmin(losses, axis=0)
        mixed = here.point.copy()
        for b in np.flatnonzero(better):
            columns = problem.blocks[b].columns
            mixed[columns] = tried.points[choice[b], columns]
        together = _Trial(points=mixed[None], local=here.local[None])
        if _losses(problem, together).sum() < min(here.losses.sum(), uniform[best]):
            return together, np.where(better, levels[choice, np.arange(len(damping))], raised)
    if uniform[best] < here.losses.sum():
        return _Trial(points=tried.points[[best]], local=tried.local[[best]]), levels[best]
    return None, raised


def _losses(problem: Problem, trial: _Trial) -> Array:
    return problem.losses(problem.residual(trial.points, trial.local), trial.points, trial.local)


def _step(problem: Problem, here: Linearization, damping: Array) -> tuple[Array, Array]:
    """The damped Gauss–Newton step of every block, kept inside the bounds and within one prior deviation."""
    target, local = here.point.copy(), here.local
    for number, (block, level) in enumerate(zip(problem.blocks, damping, strict=True)):
        equations = normal_equations(problem, here, number, damping=level)
        moved = _bounded_move(problem, here.point, block.columns, equations.matrix, equations.gradient)
        target[block.columns] = moved
        local = here.local + equations.recover(moved - here.point[block.columns])
    return target, local


def _bounded_move(problem: Problem, point: Array, columns: NDArray[np.intp], matrix: Array, gradient: Array) -> Array:
    """Solve for a block's move; parameters that would leave their bounds stop there and the rest is solved again."""
    here, low, high = point[columns], problem.low[columns], problem.high[columns]
    move, loose = np.zeros(len(columns)), np.ones(len(columns), dtype=bool)
    while loose.any():
        rest = -gradient[loose] - matrix[np.ix_(loose, ~loose)] @ move[~loose]
        move[loose] = np.linalg.solve(matrix[np.ix_(loose, loose)], rest)
        outside = loose & ((here + move < low) | (here + move > high))
        if not outside.any():
            break
        move[outside] = np.clip(here + move, low, high)[outside] - here[outside]
        loose &= ~outside
    longest = np.max(np.abs(move) / problem.sd[columns])
    return np.clip(here + move / max(1.0, longest), low, high)
