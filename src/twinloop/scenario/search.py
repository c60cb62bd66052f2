"""Search the worlds of a plan for failures, and reduce a failure to the parameters that it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from twinloop.core.errors import InputError
from twinloop.core.records import SimEpisode
from twinloop.core.seeds import MOST_EPISODES
from twinloop.randomize import Plan
from twinloop.rollout import Actor, BatchResult, run_batch
from twinloop.scenario.rare_failures import ScoredPoints, Try
from twinloop.simulate import Backend
from twinloop.tasks import Task
from twinloop.tasks.protocol import has_progress

_BATCH = 128  # worlds at once: larger batches are not faster on C threads (benchmarks/speed/generate.py)
_EDGE = 1e-12  # probabilities are kept this far from 0 and 1, where a normal has no quantile


@dataclass(frozen=True, kw_only=True)
class FixedPointDesign:
    """A design with given points: episode ``first + i`` is at row ``i`` of ``points``, in (0, 1)."""

    kind: ClassVar[str] = "given"
    points: NDArray[np.float64]
    first: int
    names: tuple[str, ...] = ()

    def check(self, axes: Sequence[tuple[str, ...]]) -> None:
        """Raise an error if the points have a different number of axes."""
        if self.points.shape[1] != len(axes):
            raise InputError(f"Points have {self.points.shape[1]} axes, the plan draws {len(axes)} numbers.")

    def place(
        self, u: NDArray[np.float64], axes: Any, run_seed: int, episodes: NDArray[np.int64], /
    ) -> NDArray[np.float64]:  # the protocol's signature
        """Return the points of these episodes."""
        del u, axes, run_seed
        return self.points[episodes - self.first]


class PlanSearch:
    """Simulator of a plan's worlds at points ``z`` ``(n, d)`` of independent standard normals (`scenario.rare.Try`).

    The score of a failed world is the task's progress, in [0, 1]. The score of a successful world is 1 plus the share
    of the episode during which success already lasted at its end: a late success is nearest to a failure. Random draws
    within worlds are new in every world, so that their effect is part of the rate.

    Args:
        plan: the plan of the draws, which defines the failure rate.
        task: the task on the plan's twin.
        actor: the actor.
        backend: the backend that runs worlds.

    Raises:
        InputError: the plan has constraints, adaptive ranges or proposals, so that its distribution is not a product
            over axes; or it draws nothing per episode.
    """

    def __init__(self, plan: Plan, task: Task, actor: Actor, backend: Backend) -> None:
        hinders = {"constraints": plan.constraints, "adaptive ranges": plan.adaptive, "proposals": plan.has_weights}
        for what, there in hinders.items():
            if there:
                raise InputError(f"Failures cannot be searched under {what}: leave them out of `randomization`.")
        drawn = [draw for draw in plan.draws if draw.scope == "episode"]
        self.axes = tuple("+".join(axis) for draw in drawn for axis in draw.axes)
        if not self.axes:
            raise InputError("No parameter is drawn per episode, so there is nothing to search. Add `default: true`.")
        self._plan, self._task, self._actor, self._backend = plan, task, actor, backend
        self._count, self._points = 0, list[NDArray[np.float64]]()

    def __call__(self, z: NDArray[np.float64]) -> ScoredPoints:
        """Run the worlds of these points."""
        first = self._count
        if first + len(z) > MOST_EPISODES:
            raise InputError(f"A search has at most {MOST_EPISODES} worlds.")
        self._points.append(z)
        self._count += len(z)
        cuts = [(z[a : a + _BATCH], first + a) for a in range(0, len(z), _BATCH)]
        return ScoredPoints.concatenate_points(
            [self._score_batch(part, self._run(part, number)) for part, number in cuts]
        )

    def episode(self, z: NDArray[np.float64]) -> SimEpisode:
        """Run the world of a point ``(d,)`` again and return its record with states and commands.

        Raises:
            InputError: the search has not run this point.
        """
        ran = np.concatenate(self._points)
        rows = np.flatnonzero((ran == z).all(axis=1))
        if not len(rows):
            raise InputError("The search has not run this world, so it cannot be stored. Run it first.")
        return self._run(ran[[rows[0]]], int(rows[0])).episode(0)

    def values(self, z: NDArray[np.float64]) -> dict[str, float]:
        """Return the drawn parameters of one point ``(d,)``, by name."""
        table = self._plan_at_points(z[None], 0).draw([0], nstep=self._task.nstep)
        names = [name for draw in self._plan.draws for name in draw.names if draw.scope != "step"]
        return {name: float(table[name][0]) for name in names}

    def _plan_at_points(self, z: NDArray[np.float64], first: int) -> Plan:
        points = np.clip(ndtr(z), _EDGE, 1.0 - _EDGE)
        return replace(self._plan, design=FixedPointDesign(points=points, first=first))

    def _run(self, z: NDArray[np.float64], first: int) -> BatchResult:
        numbers, task, plan = list(range(first, first + len(z))), self._task, self._plan_at_points(z, first)
        return run_batch(
            plan.twin,
            task,
            plan.draw(numbers, nstep=task.nstep),
            run_seed=plan.run_seed,
            episodes=numbers,
            backend=self._backend,
            actor=self._actor,
        )

    def _score_batch(self, z: NDArray[np.float64], batch: BatchResult) -> ScoredPoints:
        lost, won = ~batch.trajectories.valid, batch.success
        far = np.where(batch.held.any(axis=1), 0.9, 0.5)  # for a task without progress
        if has_progress(self._task):
            far = self._task.progress(batch.trajectories.states)[:, -1]
        undone = ~batch.held
        lasted = np.where(undone.any(axis=1), undone[:, ::-1].argmax(axis=1), batch.held.shape[1])
        score = np.where(won, 1.0 + lasted / batch.held.shape[1], np.minimum(far, 1.0))
        return ScoredPoints(z=z, score=score, failed=~won & ~lost, lost=lost)


Array = NDArray[np.float64]
_TRIES = 8  # changes of each failure that are tried at once; our choice
_SHRINK = 0.7  # factor on an axis that cannot be reset to the centre; our choice


def simplify_failures(try_: Try, z: Array, *, rounds: int, rng: np.random.Generator) -> tuple[Array, ScoredPoints]:
    """Make failures ``z`` ``(k, d)`` as probable as possible: few axes off the centre, and those by small amounts.

    Every round resets part of the axes of each failure, larger parts after a success and smaller ones after none (delta
    debugging; Zeller and Hildebrandt, IEEE Transactions on Software Engineering 28, 2002), and keeps the most probable
    world that still fails. Late rounds shrink the remaining values.

    Returns:
        The failures, and every world that was tried.
    """
    best, part, seen = z.copy(), np.full(len(z), 0.5), list[ScoredPoints]()
    for number in range(rounds):
        shrink = number >= rounds - max(1, rounds // 4)
        candidates = np.stack([_propose_changes(best[i], part[i], shrink, rng) for i in range(len(best))])
        tried = try_(candidates.reshape(-1, z.shape[1]))
        seen.append(tried)
        failed = (tried.failed & ~tried.lost).reshape(len(best), _TRIES)
        size = np.where(failed, (candidates**2).sum(axis=2), np.inf)
        chosen = size.argmin(axis=1)
        better = np.isfinite(size.min(axis=1))
        best[better] = candidates[np.flatnonzero(better), chosen[better]]
        part = np.where(better, np.minimum(part * 1.2, 0.9), part * 0.6)
    return best, ScoredPoints.concatenate_points(seen)


def _propose_changes(z: Array, part: float, shrink: bool, rng: np.random.Generator) -> Array:
    """Return changes of one failure ``(_TRIES, d)``: about a ``part`` of its nonzero axes is reset or shrunk."""
    off = z != 0.0
    back = off & (rng.random((_TRIES, len(z))) < part)
    lone = ~back.any(axis=1) & off.any()
    back[np.flatnonzero(lone), rng.choice(np.flatnonzero(off), size=int(lone.sum())) if off.any() else []] = True
    return np.where(back, z * (_SHRINK if shrink else 0.0), z)
