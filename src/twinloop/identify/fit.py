"""Identification of a twin from logs of commands and positions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from twinloop.core.records import Episode
from twinloop.identify.assembly import at_physics, fit_problem, fit_space
from twinloop.identify.config import FitConfig
from twinloop.identify.holdout import HoldoutSpec
from twinloop.identify.problem import Problem, linearize
from twinloop.identify.result import IdentifyResult
from twinloop.identify.solver import Solution, solve
from twinloop.identify.space import Space
from twinloop.identify.summary import distribution, estimates, evidence, notes, residual_summary
from twinloop.identify.uncertainty import uncertainty
from twinloop.identify.uncertainty_clusters import FrameTimes
from twinloop.simulate import Backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayLogs, prepare_replay
from twinloop.stats import Interval, bootstrap_mean, mae
from twinloop.twin import Twin

# Free first, because they explain most of a servo's lag; the rest follows from a start that is already near.
_FIRST_QUANTITIES = ("kp", "damping", "delay", "bias")


def identify(
    twin: Twin,
    episodes: Sequence[Episode],
    *,
    backend: Backend,
    holdout: HoldoutSpec | None = None,
    config: FitConfig | None = None,
) -> IdentifyResult:
    """Fit the twin's parameters to the episodes that are not held out.

    Each episode, or each window of it, is replayed open loop from its first frame; Huber's loss keeps frames that the
    twin cannot explain (a gripper closed on an object) from pulling. Delay starts from the shift that fits best. Where
    the log is quantized by an encoder of known counts, ``sensor/J/scale`` is read off the quantization and not fitted.

    Raises:
        LogError, InputError: the log does not fit the twin, or the hold-out leaves nothing to train on.
    """
    began, config = time.perf_counter(), config or FitConfig()
    logs = prepare_replay(twin, episodes, config.replay)
    numbers = list(dict.fromkeys(logs.numbers))
    trained, held_out = ([numbers[i] for i in rows] for rows in (holdout or HoldoutSpec(kind="none")).split(numbers))
    training, held = logs.of_episodes(trained), logs.of_episodes(held_out)
    space, scales = fit_space(training, config)
    fixed = space.fixed
    problem, solution, worlds = _walk(backend, training, space, config)
    alone = len(problem.blocks) > 1
    end = linearize(problem, solution.point, solution.end.local, alone=True) if alone else solution.end
    times = FrameTimes(begins=training.begins, dt=1.0 / training.twin.control_hz)
    found = uncertainty(problem, end, space.names, times=times, level=config.level)
    values = {name: float(value) for name, value in space.values(solution.point).items()}
    readings = _readings(backend, training, {**fixed, **values})
    return IdentifyResult(
        distribution=distribution(space, solution.point, found, scales, training),
        estimates=estimates(space, solution.point, found, scales),
        joints=tuple(channel.name.removeprefix("position/") for channel in logs.channels),
        log_units=tuple(channel.unit for channel in logs.channels),
        training=tuple(trained),
        holdout=tuple(held_out),
        training_error=mae(readings, training.measured),
        nominal_training_error=mae(_readings(backend, training, {}), training.measured),
        holdout_error=_holdout_error(backend, held, {**fixed, **values}, config.level),
        condition=found.condition,
        directions=found.directions,
        residuals=residual_summary(readings - training.measured),
        evidence=evidence(problem, found),
        converged=solution.converged,
        worlds_replayed=worlds + alone * (len(space.names) + 1),
        seconds=time.perf_counter() - began,
        notes=notes(logs, scales, held_out, space.names, found),
    )


def _walk(backend: Backend, training: ReplayLogs, space: Space, config: FitConfig) -> tuple[Problem, Solution, int]:
    """From the start to the estimate: few parameters on few episodes, all on more, last steps on all episodes.

    Returns the problem of the last steps, where they ended, and how many worlds were replayed.
    """
    logs = at_physics(training, config.physics_hz)
    count = min(config.walk, len(logs))
    rows = np.unique(np.linspace(0, len(logs) - 1, count).round().astype(int))
    point, worlds = space.column("start"), 0
    first = np.flatnonzero([name.rsplit("/", 1)[-1] in _FIRST_QUANTITIES for name in space.names])
    if 0 < len(first) < len(space.names):
        others = {n: float(v) for i, (n, v) in enumerate(space.values(point).items()) if i not in first}
        small = replace(space, free=tuple(space.free[i] for i in first), fixed={**space.fixed, **others})
        problem = fit_problem(backend, logs.take(rows[::2]), small, point[first], config)
        early = solve(problem, point[first], iterations=6, tolerance=1e-2)
        point, worlds = point.copy(), early.replays
        point[first] = early.point
    problem = fit_problem(backend, logs.take(rows), space, point, config)
    solution = solve(problem, point, iterations=config.iterations)
    worlds += solution.replays
    if len(rows) < len(logs):
        problem = fit_problem(backend, logs, space, solution.point, config)
        polished = solve(problem, solution.point, iterations=config.polish)
        worlds += polished.replays
        solution = replace(polished, converged=solution.converged)
    return problem, solution, worlds


def _readings(backend: Backend, logs: ReplayLogs, values: Mapping[str, float]) -> NDArray[np.float64]:
    return replay(backend, logs, logs.twin.table(1, values))[0]


def _holdout_error(backend: Backend, logs: ReplayLogs, values: Mapping[str, float], level: float) -> Interval | None:
    """Mean absolute error of the held-out episodes per joint; bounded only where there are two to compare."""
    if not len(logs):
        return None
    errors = logs.episode_errors(_readings(backend, logs, values))
    if len(errors) == 1:
        unknown = np.full(errors.shape[1], np.nan)
        return Interval(estimate=errors[0], low=unknown, high=unknown, level=level, method="one episode, no interval")
    return bootstrap_mean(errors, weights=logs.episode_lengths, level=level)
