"""From windows of logs and free parameters to the problem that is solved, or looked at before it is."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.identify.config import FitConfig
from twinloop.identify.problem import Block, Problem
from twinloop.identify.space import Space, free_space
from twinloop.simulate import Backend
from twinloop.simulate.replay import at_physics_rate, replay
from twinloop.simulate.replay_logs import ReplayLogs
from twinloop.stats import best_lag, quantum

_COUPLED_JOINTS = 2


def fit_space(logs: ReplayLogs, config: FitConfig) -> tuple[Space, dict[str, float]]:
    """What is free in a fit to ``logs`` and where it starts; and the encoder scales read off the log's quantization."""
    scales = _encoder_scales(logs)
    fixed = {**scales, **config.fixed}
    space = free_space(
        logs.twin,
        start={**_starting_delays(logs), **config.start},
        fixed=[*fixed, *config.replay.conditions],
        free=config.free,
        only=config.quantities,
        priors=config.priors,
        values=fixed,
    )
    return space, scales


def fit_problem(
    backend: Backend,
    logs: ReplayLogs,
    space: Space,
    point: NDArray[np.float64],
    config: FitConfig,
    *,
    width: NDArray[np.float64] | None = None,
) -> Problem:
    """The fit of ``space`` to ``logs``.

    ``width`` ``(nchannel,)`` is where the loss turns from square to linear; without it the median residuals at
    ``point`` say, which takes a replay.
    """

    def readings(points: NDArray[np.float64], local: NDArray[np.float64]) -> NDArray[np.float64]:
        return replay(backend, logs, space.table(points), local)

    if width is None:
        width = huber_width(readings(point[None], _no_local(logs)[None])[0] - logs.measured, logs.measured, config)
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
        width=width,
        local_sd=logs.start.sd,
        clusters=logs.clusters,
    )


def huber_width(residual: NDArray[np.float64], measured: NDArray[np.float64], config: FitConfig) -> NDArray[np.float64]:
    """Where the loss turns, from the median of each channel's residuals in its unit, ``(nchannel,)``."""
    size = np.nanmedian(np.abs(residual), axis=(0, 1))
    least = 1e-9 + 1e-6 * np.nanmax(np.abs(measured), axis=(0, 1))
    return np.maximum(config.width * size, least)


def _no_local(logs: ReplayLogs) -> NDArray[np.float64]:
    return np.zeros((len(logs), logs.nlocal))


def _coupled(logs: ReplayLogs, space: Space, config: FitConfig) -> bool:
    """Whether every parameter is judged by every channel; otherwise each joint's own by its own position."""
    if config.coupled is not None:
        return config.coupled
    apart = len(logs.channels) == len(logs.joints) > _COUPLED_JOINTS
    return not (apart and not logs.nlocal and all(p.joint is not None for p in space.free))


def at_physics(logs: ReplayLogs, physics_hz: float) -> ReplayLogs:
    """The same logs on physics at about ``physics_hz``, or at the twin's own rate if that is lower."""
    return replace(logs, twin=at_physics_rate(logs.twin, physics_hz))


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


def scale_from_quantum(values: ArrayLike, radians_per_unit: float, counts_per_turn: int) -> float | None:
    """``sensor/J/scale`` such that one step of the log is one count of the encoder; None where no step is found.

    Args:
        values: the joint's readings in log units.
        radians_per_unit: the nominal unit map's scale.
        counts_per_turn: of the joint's encoder, behind its gear.
    """
    step = quantum(values)
    return None if step is None else (2 * math.pi / counts_per_turn) / (step * radians_per_unit)
