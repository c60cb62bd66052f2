"""Many variants of a fit near its solution, side by side: frames weighted otherwise, or a parameter held elsewhere.

Each variant takes Newton steps of its own on Huber's loss; the replays of all variants run in one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.identify.problem import Linearization, Problem, huber, linearization, probe
from twinloop.identify.uncertainty_scores import frame_scores

Array = NDArray[np.float64]
_MOST_NUMBERS = 20_000_000  # of residuals that are replayed at once: 160 MB


@dataclass(frozen=True, kw_only=True)
class Variants:
    """Where variants are after ``steps``: ``points`` ``(k, p)``, first states ``local`` ``(k, nwindow, m)``."""

    points: Array
    local: Array
    steps: int


@dataclass(frozen=True, kw_only=True)
class Variation:
    """What is different in each of k variants.

    ``weights`` ``(k, nwindow, nframe)`` say how often each frame counts; None for once. ``column`` is a parameter that
    each variant holds at its own of ``values`` ``(k,)``; None where all are free.
    """

    weights: Array | None = None
    column: int | None = None
    values: Array | None = None

    def __len__(self) -> int:
        some = self.weights if self.weights is not None else self.values
        return 0 if some is None else len(some)

    def weight(self, i: int) -> Array | None:
        """Of the frames of one variant."""
        return None if self.weights is None else self.weights[i]


def newton(
    problem: Problem,
    here: Linearization,
    variation: Variation,
    *,
    steps: int,
    start: Variants | None = None,
    watch: Callable[[Variants], None] | None = None,
) -> Variants:
    """Walk every variant towards where its own loss is least; the first step needs no replay.

    Args:
        problem: the fit.
        here: its solution.
        variation: what is different.
        steps: Newton steps in all.
        start: where an earlier walk had come.
        watch: is told after every step.
    """
    now = start
    while now is None or now.steps < steps:
        looks = iter([here] * len(variation)) if now is None else _looks(problem, now)
        moved = [_step(problem, look, variation, i) for i, look in enumerate(looks)]
        points, local = (np.array(part) for part in zip(*moved, strict=True))
        now = Variants(points=points, local=local, steps=1 if now is None else now.steps + 1)
        if watch is not None:
            watch(now)
    return now


def losses(problem: Problem, variants: Variants, variation: Variation) -> Array:
    """Each variant's own loss, priors included, ``(k,)``; without weights it is the fit's."""
    residual = np.concatenate(list(_replayed(problem, variants.points, variants.local)))
    loss = np.where(np.isnan(residual), 0.0, huber(residual)) * problem.frame_weight
    if variation.weights is not None:
        loss = loss * variation.weights[..., None]
    prior = 0.5 * problem.prior_weight * np.sum(((variants.points - problem.centre) / problem.sd) ** 2, axis=1)
    if len(problem.local_sd):
        prior = prior + 0.5 * problem.local_weight * np.sum((variants.local / problem.local_sd) ** 2, axis=(1, 2))
    return loss.sum(axis=(1, 2, 3)) + prior


def _replayed(problem: Problem, points: Array, local: Array) -> Iterator[Array]:
    most = max(1, _MOST_NUMBERS // max(problem.measured.size, 1))
    for begin in range(0, len(points), most):
        yield problem.residual(points[begin : begin + most], local[begin : begin + most])


def _looks(problem: Problem, now: Variants) -> Iterator[Linearization]:
    """The surroundings of every variant, as many at once as fit into memory."""
    probes = [probe(problem, point, local) for point, local in zip(now.points, now.local, strict=True)]
    each = len(probes[0].points)
    most = max(1, _MOST_NUMBERS // max(problem.measured.size * each, 1))
    for begin in range(0, len(probes), most):
        some = probes[begin : begin + most]
        points, local = (np.concatenate([getattr(one, name) for one in some]) for name in ("points", "local"))
        for one, residual in zip(some, np.split(problem.residual(points, local), len(some)), strict=True):
            yield linearization(problem, one, residual)


def _step(problem: Problem, here: Linearization, variation: Variation, i: int) -> tuple[Array, Array]:
    """A Newton step inside the bounds, no longer than a prior deviation; what is held goes where it is held."""
    point, local = here.point.copy(), here.local
    for number, block in enumerate(problem.blocks):
        score = frame_scores(problem, here, number, variation.weight(i))
        matrix, slope = score.curvature + score.penalty, score.gradient + score.drawn
        low, high = (edge[block.columns] - here.point[block.columns] for edge in (problem.low, problem.high))
        move, loose = np.zeros(len(block.columns)), np.ones(len(block.columns), dtype=bool)
        if variation.column is not None and variation.values is not None and variation.column in block.columns:
            at = int(np.flatnonzero(block.columns == variation.column)[0])
            move[at], loose[at] = variation.values[i] - here.point[variation.column], False
        free = np.linalg.solve(
            matrix[np.ix_(loose, loose)], -slope[loose] - matrix[np.ix_(loose, ~loose)] @ move[~loose]
        )
        longest = np.max(np.abs(free) / problem.sd[block.columns][loose], initial=1.0)
        move[loose] = np.clip(free / longest, low[loose], high[loose])
        point[block.columns] += move
        local = local + score.settle + score.follow @ move
    return point, local
