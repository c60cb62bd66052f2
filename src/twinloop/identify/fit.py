"""Identification of a twin from logs of commands and positions."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from twinloop.core.records import Episode
from twinloop.identify.config import FitConfig
from twinloop.identify.encoder import scale_from_quantum
from twinloop.identify.holdout import HoldoutSpec
from twinloop.identify.problem import Block, Problem, linearize
from twinloop.identify.result import IdentifyResult
from twinloop.identify.solver import Solution, solve
from twinloop.identify.space import Space, free_space
from twinloop.identify.summary import distribution, estimates, notes, residual_summary
from twinloop.identify.uncertainty import uncertainty
from twinloop.simulate import Backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayLogs, prepare_replay
from twinloop.stats import Interval, best_lag, bootstrap_mean, mae
from twinloop.twin import Twin

# Free first, because they explain most of a servo's lag; the rest follows from a start that is already near.
_FIRST_QUANTITIES = ("kp", "damping", "delay", "bias")
_COUPLED_JOINTS = 2
_LEAST_SUBSTEPS = 2


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
    scales = _encoder_scales(training)
    fixed = {**scales, **config.fixed}
    space = free_space(
        logs.twin,
        start={**_starting_delays(training), **config.start},
        fixed=[*fixed, *config.replay.conditions],
        free=config.free,
        only=config.quantities,
        priors=config.priors,
        values=fixed,
    )
    problem, solution, worlds = _walk(backend, training, space, config)
    alone = len(problem.blocks) > 1
    end = linearize(problem, solution.point, solution.end.local, alone=True) if alone else solution.end
    found = uncertainty(problem, end, space.names)
    values = {name: float(value) for name, value in space.values(solution.point).items()}
    readings = _readings(backend, training, {**fixed, **values})
    return IdentifyResult(
        distribution=distribution(space, solution.point, found, scales, training),
        estimates=estimates(space, solution.point, found, scales, len(trained), config.level),
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
        converged=solution.converged,
        worlds_replayed=worlds + alone * (len(space.names) + 1),
        seconds=time.perf_counter() - began,
        notes=notes(logs, scales, held_out),
    )


def _walk(backend: Backend, training: ReplayLogs, space: Space, config: FitConfig) -> tuple[Problem, Solution, int]:
    """From the start to the estimate: few parameters on few episodes, all on more, last steps on all episodes.

    Returns the problem of the last steps, where they ended, and how many worlds were replayed.
    """
    coarse = _coarse(training, config.physics_hz)
    count = min(config.walk, len(coarse))
    rows = np.unique(np.linspace(0, len(coarse) - 1, count).round().astype(int))
    point, worlds = space.column("start"), 0
    first = np.flatnonzero([name.rsplit("/", 1)[-1] in _FIRST_QUANTITIES for name in space.names])
    if 0 < len(first) < len(space.names):
        others = {n: float(v) for i, (n, v) in enumerate(space.values(point).items()) if i not in first}
        small = replace(space, free=tuple(space.free[i] for i in first), fixed={**space.fixed, **others})
        problem = _problem(backend, coarse.take(rows[::2]), small, point[first], config)
        early = solve(problem, point[first], iterations=6, tolerance=1e-2)
        point, worlds = point.copy(), early.replays
        point[first] = early.point
    problem = _problem(backend, coarse.take(rows), space, point, config)
    solution = solve(problem, point, iterations=config.iterations)
    worlds += solution.replays
    if len(rows) < len(coarse):
        problem = _problem(backend, coarse, space, solution.point, config)
        polished = solve(problem, solution.point, iterations=config.polish)
        worlds += polished.replays
        solution = replace(polished, converged=solution.converged)
    return problem, solution, worlds


def _problem(
    backend: Backend, logs: ReplayLogs, space: Space, point: NDArray[np.float64], config: FitConfig
) -> Problem:
    """The fit of ``space`` to ``logs``; the Huber width of each channel is its median residual at ``point``."""

    def readings(points: NDArray[np.float64], local: NDArray[np.float64]) -> NDArray[np.float64]:
        return replay(backend, logs, space.table(points), local)

    size = np.nanmedian(np.abs(readings(point[None], _no_local(logs)[None])[0] - logs.measured), axis=(0, 1))
    least = 1e-9 + 1e-6 * np.nanmax(np.abs(logs.measured), axis=(0, 1))
    n = len(logs.channels)
    every = Block(columns=np.arange(len(space.free)), channels=np.arange(n))
    apart = (Block(columns=space.block(j), channels=np.array([j])) for j in range(n))
    return Problem(
        readings=readings,
        measured=logs.measured,
        blocks=(every,) if _coupled(logs, space, config) else tuple(b for b in apart if len(b.columns)),
        centre=space.column("centre"),
        sd=space.column("sd"),
        low=space.column("low"),
        high=space.column("high"),
        width=np.maximum(config.width * size, least),
        local_sd=logs.start.sd,
        clusters=logs.clusters,
    )


def _no_local(logs: ReplayLogs) -> NDArray[np.float64]:
    return np.zeros((len(logs), logs.nlocal))


def _coupled(logs: ReplayLogs, space: Space, config: FitConfig) -> bool:
    """Whether every parameter is judged by every channel; otherwise each joint's own by its own position."""
    if config.coupled is not None:
        return config.coupled
    apart = len(logs.channels) == len(logs.joints) > _COUPLED_JOINTS
    return not (apart and not logs.nlocal and all(p.joint is not None for p in space.free))


def _coarse(logs: ReplayLogs, physics_hz: float) -> ReplayLogs:
    """The same logs on physics at about ``physics_hz``, or at the twin's own rate if that is lower."""
    twin = logs.twin
    substeps = min(twin.substeps, max(_LEAST_SUBSTEPS, round(physics_hz / twin.control_hz)))
    model = copy.copy(twin.model)
    model.opt.timestep = 1.0 / (twin.control_hz * substeps)
    spec = twin.spec.model_copy(update={"substeps": substeps})
    return replace(logs, twin=replace(twin, spec=spec, model=model))


def _encoder_scales(logs: ReplayLogs) -> dict[str, float]:
    """``sensor/J/scale`` of joints whose encoder's steps are seen in a log without units of its own."""
    counts = logs.twin.robot.encoder_counts if logs.joints else None
    if counts is None or logs.calibrated or len(logs.channels) != len(logs.joints):
        return {}
    scales = {}
    for column, unit in enumerate(logs.units.joints):
        name = f"sensor/{unit.joint}/scale"
        values = logs.measured[..., column]
        scale = scale_from_quantum(values[~np.isnan(values)], unit.scale or 1.0, counts)
        param = logs.twin.params.get(name)
        if param is not None and scale is not None and param.low < scale < param.high:
            scales[name] = scale
    return scales


def _starting_delays(logs: ReplayLogs) -> dict[str, float]:
    """The best shift of each command less the servo's own lag (damping / kp) at nominal values."""
    twin = logs.twin
    if not logs.joints or twin.robot.control != "position" or len(logs.channels) != len(logs.joints):
        return {}
    lag = best_lag(logs.units.from_si(logs.commands), logs.measured) / twin.control_hz
    nominal = twin.table(1)
    own = twin.column(nominal, "joint", "damping", 0.0) / twin.column(nominal, "actuator", "kp", np.inf)
    delay = np.maximum(lag - own[0], 0.0)
    names = [f"actuator/{actuator}/delay" for actuator in twin.robot.actuator_names]
    return {name: float(value) for name, value in zip(names, delay, strict=True) if name in twin.params}


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
