"""Check that a task follows the protocol of tasks, and count the successes of its scripted expert and of no skill."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import CheckFailedError
from twinloop.core.params import ParamTable
from twinloop.core.seeds import uniforms
from twinloop.randomize import Plan, default_draws
from twinloop.rollout.actor import Actor, EpisodeStart, ExpertActor
from twinloop.rollout.episodes import BatchResult, run_batch
from twinloop.simulate import Controller, InitialState, Simulation
from twinloop.tasks.protocol import Task, has_expert, has_phases, has_progress, has_tracked_values
from twinloop.twin import Twin

WorldKind = Literal["nominal", "default"]
_BATCH = 64  # worlds that are simulated at once
_HELD_S = 0.5  # s for which the random policy keeps a command; our choice


@dataclass(frozen=True, kw_only=True)
class TaskTrials:
    """Episodes of a task in worlds of one kind.

    Attributes:
        actor: ``expert``, ``still`` (holds the first command) or ``random`` (draws a new one each half second).
        kind: ``nominal`` worlds differ only in the places of objects, ``default`` ones in all parameters with a default
            range.
        episodes: number of episodes.
        successes: episodes that end in success.
        invalid: episodes that diverged or could not be reset.
    """

    actor: str
    kind: WorldKind
    episodes: int
    successes: int
    invalid: int


@dataclass(frozen=True, kw_only=True)
class StillActor:
    """Actor that holds the command with which an episode begins."""

    name: str = "still"

    def begin(self, worlds: EpisodeStart) -> Controller:
        """Return a controller of these worlds."""
        command = worlds.initial.command
        return lambda simulation: command  # noqa: ARG005


@dataclass(frozen=True, kw_only=True)
class RandomActor:
    """Actor that draws commands uniformly from their ranges and holds each for half a second."""

    twin: Twin
    name: str = "random"

    def begin(self, worlds: EpisodeStart) -> Controller:
        """Return a controller of these worlds."""
        (low, high), held = self.twin.find_command_ranges(), max(1, round(_HELD_S * self.twin.control_hz))
        steps = itertools.count()

        def choose(simulation: Simulation) -> NDArray[np.float64]:  # noqa: ARG001
            draw = {"size": len(low), "attempt": worlds.attempt, "step": next(steps) // held}
            return low + (high - low) * uniforms(worlds.run_seed, "random actor", worlds.numbers, **draw)

        return choose


def check_task(task: Task, twin: Twin, *, episodes: int, seed: int = 0) -> Iterator[TaskTrials]:
    """Check a task, and yield the trials of its expert, if it has one, and of no skill at all.

    The expert is tried in nominal and in randomized worlds.

    Each is yielded when it has ended; the first one has passed all rules of the protocol in nominal worlds. The actors
    that do nothing and that act at random are tried in nominal worlds, if all commands have a range.

    Raises:
        CheckFailedError: If the task violates a rule of the protocol. The message describes the rule.
    """
    _check_reset(task, draw_worlds(twin, "default", range(3), seed), seed)
    trials = list[tuple[Actor, WorldKind]]()
    if has_expert(task):
        trials += [(ExpertActor(task=task), kind) for kind in get_args(WorldKind)]
    trials.append((StillActor(), "nominal"))
    if all(twin.model.actuator_ctrllimited):
        trials.append((RandomActor(twin=twin), "nominal"))
    for actor, kind in trials:
        yield _try_actor(task, twin, actor, kind, episodes, seed)


def draw_worlds(twin: Twin, kind: WorldKind, numbers: range, seed: int) -> ParamTable:
    """Return the parameters of worlds of one kind; see `TaskTrials`."""
    draws = [
        draw
        for draw in default_draws(twin)
        if kind == "default" or all(twin.params[name].quantity.stage == "reset" for name in draw.names)
    ]
    return Plan(twin=twin, run_seed=seed, draws=tuple(draws)).draw(numbers)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise CheckFailedError(f"This task breaks the protocol: {what}. See tasks.protocol.Task.")


def _check_reset(task: Task, params: ParamTable, seed: int) -> None:
    """Check that a world's initial state does not depend on the other worlds of its batch."""
    together = task.reset(params, run_seed=seed, episodes=[0, 1, 2])
    again = task.reset(params, run_seed=seed, episodes=[0, 1, 2])
    alone = task.reset(params.take(np.array([1])), run_seed=seed, episodes=[1])
    _require(_same(together, again), "reset() gives other states when it is called again")
    _require(_same(together.take([1]), alone), "reset() gives world 1 another state alone than with other worlds")


def _same(one: InitialState, other: InitialState) -> bool:
    parts = [field.name for field in fields(one) if isinstance(getattr(one, field.name), np.ndarray)]
    return all(np.array_equal(getattr(one, part), getattr(other, part)) for part in parts)


def _try_actor(task: Task, twin: Twin, actor: Actor, kind: WorldKind, episodes: int, seed: int) -> TaskTrials:
    successes = invalid = 0
    for batch in _run(task, twin, actor, kind, episodes, seed):
        _check_evaluation(task, batch)
        valid = batch.trajectories.valid
        successes += int((batch.success_by_state[:, -1] & valid).sum())
        invalid += int((~valid).sum())
    name = "expert" if isinstance(actor, ExpertActor) else actor.name
    return TaskTrials(actor=name, kind=kind, episodes=episodes, successes=successes, invalid=invalid)


def _run(task: Task, twin: Twin, actor: Actor, kind: WorldKind, episodes: int, seed: int) -> Iterator[BatchResult]:
    for first in range(0, episodes, _BATCH):
        numbers = range(first, min(first + _BATCH, episodes))
        params = draw_worlds(twin, kind, numbers, seed)
        yield run_batch(twin, task, params, run_seed=seed, episodes=numbers, actor=actor)


def _check_evaluation(task: Task, batch: BatchResult) -> None:
    """Check success, tracked values, progress and phases on recorded states.

    Success of a world must not depend on other worlds, and tracked values must be one per name.
    """
    states, success = batch.trajectories.states, batch.success_by_state
    shape = (len(states), task.nstep + 1)
    _require(success.shape == shape and success.dtype == bool, f"success() is not a mask of shape {shape}")
    alone = task.success(states[:1])
    _require(np.array_equal(alone, success[:1]), "success() of world 0 depends on the other worlds")
    if has_tracked_values(task):
        shape, seen = (*states.shape[:2], len(task.environment_names)), task.environment(states)
        _require(seen.shape == shape, f"environment() has the shape {seen.shape}, and not {shape}")
    if has_progress(task):
        progress = task.progress(states)
        within = progress.shape == success.shape and bool(((progress >= 0.0) & (progress <= 1.0)).all())
        _require(within, "progress() is not between 0 and 1 at each state")
    if has_phases(task):
        for _, begin in task.phases(states[0], batch.twin.control_hz):
            _require(begin is None or 0 <= begin <= task.nstep, f"phases() gives {begin}, which is no index of a state")
