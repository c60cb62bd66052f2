"""Report what each reward term pays to simple controllers, before a policy is trained with it.

If the task's scripted expert does not earn clearly more than a robot that holds still or moves at random, training with
this reward is unlikely to teach the task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from twinloop.core.contract import ACTION, ENVIRONMENT, STATE
from twinloop.core.seeds import uniforms
from twinloop.policies.statistics import LAST_COMMAND, ColumnStatistics, Statistics
from twinloop.randomize import Plan
from twinloop.rollout.actor import Actor, EpisodeStart, ExpertActor
from twinloop.rollout.episodes import BatchResult, run_batch
from twinloop.simulate import Backend, Controller, Simulation
from twinloop.stats import Interval, bootstrap_mean, wilson
from twinloop.tasks.goals import open_goal
from twinloop.tasks.protocol import Task, has_expert, has_tracked_values
from twinloop.tasks.rewards import RewardMeter

Array = NDArray[np.float64]
ZERO, RANDOM, EXPERT = "zero", "random", "expert"
_LEAST_SPREAD = 0.02  # m, or of a cosine: a tracked value that hardly varies in these episodes may vary in later ones
_LEAST_SHARE = 0.05  # of a joint's range, likewise


@dataclass(frozen=True, kw_only=True)
class NoiseActor:
    """Actor whose commands change by independent normal steps; with a scale of 0 it holds the initial command.

    Attributes:
        name: name of the actor.
        scale: standard deviation of the change of each command per step, ``(nu,)`` in rad or m. Under velocity and
            torque control it is that of the command itself.
        is_relative: whether steps are added to the last command.
    """

    name: str
    scale: Array
    is_relative: bool

    def begin(self, worlds: EpisodeStart) -> Controller:
        """Return a controller for these worlds."""
        held = np.array(worlds.initial.command)

        def command(simulation: Simulation) -> Array:
            nonlocal held
            chance = uniforms(
                worlds.run_seed, "reinforce/random", worlds.numbers, size=held.shape[1], step=simulation.step_index
            )
            move = self.scale * ndtri(chance)
            held = held + move if self.is_relative else worlds.initial.command + move
            return held

        return command


@dataclass(frozen=True, kw_only=True)
class RewardReport:
    """What each term pays per episode, by actor.

    Attributes:
        rows: one row per actor: ``actor``, ``success`` (interval), ``return`` (interval of the weighted sum), ``terms``
            (interval of the weighted sum of each term).
        warnings: reasons to doubt the reward; empty if there are none.
    """

    rows: list[dict[str, Any]]
    warnings: list[str]


def make_actors(plan: Plan, task: Task, action: ColumnStatistics, *, is_relative: bool, std: float) -> list[Actor]:
    """Return the actors of a report: one that holds still, one that moves at random, and the task's expert if any.

    Args:
        plan: distribution of the worlds.
        task: the task.
        action: statistics of the policy's commands, whose deviation is the size of a normalized command of 1.
        is_relative: whether commands are relative to the last command.
        std: standard deviation of normalized commands.
    """
    scale = np.abs(np.diff(plan.twin.command_units.to_si([np.zeros(len(action)), action.std]), axis=0)[0])
    unskilled: list[Actor] = [
        NoiseActor(name=ZERO, scale=0.0 * scale, is_relative=True),
        NoiseActor(name=RANDOM, scale=std * scale, is_relative=is_relative),
    ]
    return [*unskilled, ExpertActor(task=task)] if has_expert(task) else unskilled


def run_actors(
    plan: Plan, task: Task, actors: Sequence[Actor], *, episodes: int, backend: Backend
) -> dict[str, BatchResult]:
    """Run the first episodes of a plan with each actor, and return the batches by actor."""
    numbers, made = range(episodes), dict[str, BatchResult]()
    for actor in actors:
        name = EXPERT if isinstance(actor, ExpertActor) else actor.name
        made[name] = run_batch(
            plan.twin, task, plan.draw(numbers), run_seed=plan.run_seed, episodes=numbers, actor=actor, backend=backend
        )
    return made


def measure_rewards(batch: BatchResult, goal_name: str, weights: Mapping[str, float]) -> dict[str, Array]:
    """Return the weighted sum of each reward term over each episode of a batch, ``(nworld,)``."""
    states, commands, every = batch.trajectories.states, batch.trajectories.commands, np.arange(len(batch.numbers))
    goal = open_goal(goal_name, batch.twin, len(every))
    meter = RewardMeter(batch.twin, len(every), batch.task.nstep, weights)
    meter.begin(every, goal.evaluate_states(states[:, 0], every, begin=True).potential, batch.initial.command)
    totals = {name: np.zeros(len(every)) for name in weights}
    for step in range(commands.shape[1]):
        valid = np.isfinite(states[:, step + 1]).all(axis=1) & batch.trajectories.valid
        meter.pay(goal.evaluate_states(states[:, step + 1], every), commands[:, step], valid)
        for name, values in meter.latest.items():
            totals[name] += weights[name] * values
    return totals


def make_report(made: Mapping[str, BatchResult], goal_name: str, weights: Mapping[str, float]) -> RewardReport:
    """Return the report on a reward, from batches of the same episodes by actor."""
    rows, returns = list[dict[str, Any]](), dict[str, Interval]()
    for name, batch in made.items():
        totals = measure_rewards(batch, goal_name, weights)
        returns[name] = bootstrap_mean(sum(totals.values(), np.zeros(len(batch.numbers))))
        rows.append(
            {
                "actor": name,
                "episodes": len(batch.numbers),
                "success": _format_numbers(wilson(int(batch.success.sum()), len(batch.numbers))),
                "return": _format_numbers(returns[name]),
                "terms": {term: _format_numbers(bootstrap_mean(values)) for term, values in totals.items()},
            }
        )
    return RewardReport(rows=rows, warnings=_find_warnings(returns))


def _find_warnings(returns: Mapping[str, Interval]) -> list[str]:
    if EXPERT not in returns:
        return ["the task has no scripted expert, so nothing shows that this reward pays for the task"]
    expert = returns[EXPERT]
    return [
        f"the expert's return {_format(expert)} is not clearly above that of the {name} policy, {_format(other)}: "
        "check the reward's terms and weights, and that the expert succeeds"
        for name, other in returns.items()
        if name != EXPERT and not float(expert.low) > float(other.high)
    ]


def _format(interval: Interval) -> str:
    return f"{float(interval.estimate):.3f} [{float(interval.low):.3f}, {float(interval.high):.3f}]"


def _format_numbers(interval: Interval) -> dict[str, float]:
    return {name: float(getattr(interval, name)) for name in ("estimate", "low", "high")}


def measure_statistics(made: Mapping[str, BatchResult], columns: Sequence[int], action: ColumnStatistics) -> Statistics:
    """Return the statistics from which a policy normalizes its inputs, measured on all valid episodes of a report.

    Args:
        made: batches of episodes by actor.
        columns: columns of the task's tracked values that the policy reads.
        action: statistics of the commands.
    """
    parts: dict[str, list[NDArray[Any]]] = {STATE: [], LAST_COMMAND: [], ENVIRONMENT: []}
    for batch in made.values():
        valid, units = batch.trajectories.valid, batch.units
        first = units.of_commands(batch.twin.robot.control).from_si(batch.initial.command)[:, None]
        parts[STATE].append(batch.observation[valid])
        parts[LAST_COMMAND].append(np.concatenate([first, batch.action[:, :-1]], axis=1)[valid])
        if columns and has_tracked_values(batch.task):
            tracked = batch.task.environment(batch.trajectories.states[:, :-1])[..., list(columns)]
            parts[ENVIRONMENT].append(tracked[valid])
    samples = {key: np.concatenate(values) for key, values in parts.items() if values}
    found = Statistics.measure(
        samples, source=f"{sum(len(one.numbers) for one in made.values())} episodes of {', '.join(made)}"
    )
    twin = next(iter(made.values())).twin
    share = _LEAST_SHARE * np.abs(np.diff(twin.command_units.from_si(np.stack(twin.find_command_ranges())), axis=0)[0])
    least = {STATE: share, LAST_COMMAND: share, ENVIRONMENT: np.full(len(columns), _LEAST_SPREAD)}
    wide = {key: _widen(values, least[key]) for key, values in found.columns.items()}
    return Statistics(source=found.source, columns={**wide, ACTION: action})


def _widen(found: ColumnStatistics, least: Array) -> ColumnStatistics:
    """Return statistics whose deviations are at least ``least`` ``(k,)``, with quantiles and limits that fit these."""
    std, centre = np.maximum(found.std, least), np.asarray(found.mean)
    low, high = np.minimum(found.min, centre - std), np.maximum(found.max, centre + std)
    return ColumnStatistics(
        mean=centre, std=std, min=low, max=high,
        q01=np.minimum(found.q01, centre - std), q99=np.maximum(found.q99, centre + std),
    )  # fmt: skip
