"""Search for failures among the worlds of a plan, and find the parameter deviations that a failure requires."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from twinloop.core.errors import InputError
from twinloop.core.records import SimEpisode
from twinloop.core.seeds import MAX_EPISODES
from twinloop.randomize import Plan
from twinloop.rollout import Actor, BatchResult, run_batch
from twinloop.scenario.rare_failures import ScoredPoints, SimulatePoints
from twinloop.simulate import Backend
from twinloop.tasks import Task
from twinloop.tasks.protocol import has_progress

_BATCH = 128  # worlds at once: larger batches are not faster on C threads (benchmarks/speed/generate.py)
_EDGE = 1e-12  # smallest distance of probabilities from 0 and 1, where a normal distribution has no quantile


@dataclass(frozen=True, kw_only=True)
class FixedPointDesign:
    """Sampling design (`randomize.designs.Design`) that gives a plan fixed points instead of random numbers.

    Attributes:
        points: Quantiles in (0, 1) of every drawn number, shape ``(nepisode, naxis)``.
        first: Number of the episode that uses the first row of ``points``.
        names: Always empty, because the points cover all drawn numbers.
    """

    kind: ClassVar[str] = "given"
    points: NDArray[np.float64]
    first: int
    names: tuple[str, ...] = ()

    def check(self, axes: Sequence[tuple[str, ...]]) -> None:
        """Raise an error if the number of axes of the points is not that of the plan.

        Args:
            axes: Parameter names of each axis of the plan.
        """
        if self.points.shape[1] != len(axes):
            raise InputError(
                f"The points have {self.points.shape[1]} coordinates, but the plan draws {len(axes)} numbers."
            )

    def place(
        self, u: NDArray[np.float64], axes: Any, run_seed: int, episodes: NDArray[np.int64], /
    ) -> NDArray[np.float64]:  # the protocol's signature
        """Return the rows of ``points`` that belong to some episodes, shape ``(len(episodes), naxis)``.

        The values are points of the unit cube. The arguments except ``episodes`` are ignored.
        """
        del u, axes, run_seed
        return self.points[episodes - self.first]


class PlanSearch:
    """Simulator of a plan's worlds at given points z of d independent standard normal coordinates.

    It can be called as a `scenario.rare_failures.SimulatePoints`. It gives each world a score; a lower score is nearer
    to failure. The score of a failure is the task's progress, in [0, 1]. The score of a success is 1 plus the share of
    the episode that remains after the task was solved, so a late success has a score near 1. Random effects within
    worlds are new in every world, so that they contribute to the failure rate.

    Args:
        plan: Plan of the draws, which defines the failure rate.
        task: Task on the plan's twin.
        actor: Policy or other source of commands.
        backend: Backend that simulates the worlds.

    Raises:
        InputError: If the plan has constraints, adaptive ranges or proposals, because its axes are then not
            independent; or if it draws no parameter per episode.
    """

    def __init__(self, plan: Plan, task: Task, actor: Actor, backend: Backend) -> None:
        unsupported = {"constraints": plan.constraints, "adaptive ranges": plan.adaptive, "proposals": plan.has_weights}
        for what, present in unsupported.items():
            if present:
                raise InputError(f"A search for failures does not support {what}. Remove them from `randomization`.")
        drawn = [draw for draw in plan.draws if draw.scope == "episode"]
        self.axes = tuple("+".join(axis) for draw in drawn for axis in draw.axes)
        if not self.axes:
            raise InputError("No parameter is drawn per episode, so there is nothing to search. Add `default: true`.")
        self._plan, self._task, self._actor, self._backend = plan, task, actor, backend
        self._count, self._points = 0, list[NDArray[np.float64]]()

    def __call__(self, z: NDArray[np.float64]) -> ScoredPoints:
        """Simulate one world per point, and return the worlds' scores (lower is nearer to failure) and outcomes.

        Args:
            z: Points in d independent standard normal coordinates, one per number that the plan draws, shape ``(n,
                d)``.
        """
        first = self._count
        if first + len(z) > MAX_EPISODES:
            raise InputError(f"A search has at most {MAX_EPISODES} worlds.")
        self._points.append(z)
        self._count += len(z)
        cuts = [(z[a : a + _BATCH], first + a) for a in range(0, len(z), _BATCH)]
        return ScoredPoints.concatenate_points(
            [self._score_batch(part, self._run(part, number)) for part, number in cuts]
        )

    def episode(self, z: NDArray[np.float64]) -> SimEpisode:
        """Simulate the world of an earlier point again, and return its episode with states and commands.

        Args:
            z: The point in d standard normal coordinates, one per number that the plan draws, shape ``(d,)``.

        Raises:
            InputError: If the search has not simulated this point.
        """
        points = np.concatenate(self._points)
        rows = np.flatnonzero((points == z).all(axis=1))
        if not len(rows):
            raise InputError("The search has not run this world, so it cannot be stored. Run it first.")
        return self._run(points[[rows[0]]], int(rows[0])).episode(0)

    def values(self, z: NDArray[np.float64]) -> dict[str, float]:
        """Return the parameter values of the world at one point, by parameter name.

        Args:
            z: The point in d standard normal coordinates, one per number that the plan draws, shape ``(d,)``.
        """
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
        invalid, success = ~batch.trajectories.valid, batch.success
        progress = np.where(batch.success_by_state.any(axis=1), 0.9, 0.5)  # for a task without progress
        if has_progress(self._task):
            progress = self._task.progress(batch.trajectories.states)[:, -1]
        unsolved = ~batch.success_by_state
        lasted = np.where(unsolved.any(axis=1), unsolved[:, ::-1].argmax(axis=1), batch.success_by_state.shape[1])
        score = np.where(success, 1.0 + lasted / batch.success_by_state.shape[1], np.minimum(progress, 1.0))
        return ScoredPoints(z=z, score=score, failed=~success & ~invalid, invalid=invalid)


Array = NDArray[np.float64]
_TRIES = 8  # changes of each failure that are tried at once; our choice
_SHRINK = 0.7  # factor on an axis that cannot be reset to the centre; our choice


def simplify_failures(
    simulate: SimulatePoints, z: Array, *, rounds: int, rng: np.random.Generator
) -> tuple[Array, ScoredPoints]:
    """Make failures as probable as possible, with few parameters that deviate from the median, and small deviations.

    In every round, several random subsets of the coordinates of each failure are set to 0 (the median), and the most
    probable world that still fails is kept. If there is one, the subsets of the next round are larger, otherwise
    smaller (delta debugging; Zeller and Hildebrandt, IEEE Transactions on Software Engineering 28, 2002). The last
    rounds shrink the remaining deviations.

    Args:
        simulate: Function that simulates worlds.
        z: Points of k failures in d standard normal coordinates, shape ``(k, d)``.
        rounds: Number of rounds.
        rng: Random generator.

    Returns:
        The simplified failures, shape ``(k, d)``, and the results of all simulated worlds.
    """
    best, part, points = z.copy(), np.full(len(z), 0.5), list[ScoredPoints]()
    for number in range(rounds):
        shrink = number >= rounds - max(1, rounds // 4)
        candidates = np.stack([_propose_changes(best[i], part[i], shrink, rng) for i in range(len(best))])
        tried = simulate(candidates.reshape(-1, z.shape[1]))
        points.append(tried)
        failed = (tried.failed & ~tried.invalid).reshape(len(best), _TRIES)
        size = np.where(failed, (candidates**2).sum(axis=2), np.inf)
        chosen = size.argmin(axis=1)
        better = np.isfinite(size.min(axis=1))
        best[better] = candidates[np.flatnonzero(better), chosen[better]]
        part = np.where(better, np.minimum(part * 1.2, 0.9), part * 0.6)
    return best, ScoredPoints.concatenate_points(points)


def _propose_changes(z: Array, part: float, shrink: bool, rng: np.random.Generator) -> Array:
    """Return eight random simplifications of one failure, shape ``(8, d)``.

    A simplification has fewer or smaller deviations from 0, the most probable world.

    Args:
        z: Point of the failure in standard normal coordinates, shape ``(d,)``.
        part: Expected fraction of the nonzero axes that are changed.
        shrink: If true, changed axes are multiplied by 0.7, otherwise they are set to 0.
        rng: Random generator.
    """
    off = z != 0.0
    back = off & (rng.random((_TRIES, len(z))) < part)
    lone = ~back.any(axis=1) & off.any()
    back[np.flatnonzero(lone), rng.choice(np.flatnonzero(off), size=int(lone.sum())) if off.any() else []] = True
    return np.where(back, z * (_SHRINK if shrink else 0.0), z)
