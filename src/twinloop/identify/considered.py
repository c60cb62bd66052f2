"""Compute responses of the readings to parameters that a fit keeps fixed, because they add to its uncertainty.

Parameters that a fit usually frees but that the twin does not declare are *nuisances*: the data restrict them, and what
remains counts. Rotor inertias of stiff joints, the offset of a tracker and the parameters of an earlier identification
are *considered* in the sense of Schmidt ("Application of state-space methods to navigation problems", 1966): they are
not estimated, and their prior is part of the uncertainty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from twinloop.core.distribution import ParamDistribution
from twinloop.identify.assembly import (
    FitSpace,
    FreeParam,
    default_free_quantities,
    select_free_parameters,
    stated_scales,
)
from twinloop.identify.config import FitConfig
from twinloop.identify.physics_rate import limit_physics_rate, settling_times
from twinloop.simulate import Backend
from twinloop.simulate.channels import TRACKER_OFFSET_M
from twinloop.simulate.replay import change_substeps, replay
from twinloop.simulate.replay_logs import ReplayLogs
from twinloop.twin.quantities import find_members, has_quantity
from twinloop.twin.spec import ParamSpec
from twinloop.twin.variant import declare_params

Array = NDArray[np.float64]
_PART = 0.2  # of a prior standard deviation, the change from which a response is computed
_FINE = 2  # times the twin's own physics steps, to see rotor inertias of stiff joints


def find_hidden_inertias(logs: ReplayLogs, space: FitSpace, config: FitConfig) -> NDArray[np.bool_]:
    """Return which free parameters are rotor inertias that the physics step of a fit hides, ``(p,)``.

    The speed of a stiff joint settles within inertia / (damping + kd). If a physics step is longer, the rotor's inertia
    acts as a delay, and a fit cannot distinguish them. Parameters that the user chose are never hidden.

    Args:
        logs: The training windows.
        space: The free parameters.
        config: Configuration of the fit.
    """
    hidden = np.zeros(len(space.free), dtype=np.bool_)
    if not logs.joints or config.free is not None or config.quantities is not None:
        return hidden
    step = limit_physics_rate(logs, config.replay_hz).twin.dt
    stiff = np.flatnonzero(settling_times(logs.twin) < step)
    for column, free in enumerate(space.free):
        hidden[column] = free.joint in stiff and free.param.quantity.quantity == "armature"
    return hidden


def inertia_responses(
    backend: Backend, logs: ReplayLogs, space: FitSpace, hidden: Sequence[FreeParam], point: Array, local: Array
) -> Array:
    """Return the responses of the readings to rotor inertias at a high physics rate.

    They are changes per prior standard deviation, in the channels' units, ``(k, nwindow, nframe, nchannel)``.

    Args:
        backend: The backend that simulates the replays.
        logs: The training windows, with the twin at its own physics rate.
        space: The free parameters.
        hidden: The k rotor inertias.
        point: The estimate in solver coordinates (ln or SI), ``(p,)``.
        local: Corrections of m coordinates of each window's initial state, ``(nwindow, m)``.
    """
    twin = replace(change_substeps(logs.twin, _FINE * logs.twin.substeps), gradual_commands=True)
    values = {**space.fixed, **space.scalar_values(point)}
    return _responses(backend, replace(logs, twin=twin), values, hidden, local)


def tracker_responses(logs: ReplayLogs) -> Array:
    """Return the responses of measured positions of sites to an offset of their tracker along each axis of the world.

    One tracker measures all sites. The responses are changes per standard deviation, in the channels' units, ``(3,
    nwindow, nframe, nchannel)``; their number is 0 if no position of a site is compared.

    Args:
        logs: The training windows.
    """
    names = [channel.name for channel in logs.channels]
    moved = np.array([[name.startswith("place/") and name.endswith(f"/{axis}") for name in names] for axis in "xyz"])
    shape = (*logs.measured.shape[:-1], len(names))
    return np.array([np.broadcast_to(TRACKER_OFFSET_M * row, shape) for row in moved if row.any()]).reshape(-1, *shape)


def given_responses(
    backend: Backend,
    logs: ReplayLogs,
    space: FitSpace,
    config: FitConfig,
    given: ParamDistribution,
    point: Array,
    local: Array,
) -> Array:
    """Return the responses of the readings to the errors of an earlier identification.

    They are changes per standard deviation of each of k independent combinations of its parameters, in the channels'
    units, ``(k, nwindow, nframe, nchannel)``.

    Args:
        backend: The backend that simulates the replays.
        logs: The training windows.
        space: The free parameters; those of the earlier identification are fixed in it.
        config: Configuration of the fit.
        given: Distribution of the earlier identification.
        point: The estimate in solver coordinates (ln or SI), ``(p,)``.
        local: Corrections of m coordinates of each window's initial state, ``(nwindow, m)``.
    """
    sd = np.sqrt(np.diag(given.covariance))
    rows = [row for row, name in enumerate(given.names) if name in space.fixed and sd[row] > 0.0]
    moved = [
        FreeParam(
            param=logs.twin.params[given.names[row]], joint=None, centre=given.mean[row], start=given.mean[row],
            sd=sd[row], low=-np.inf, high=np.inf,
        )
        for row in rows
    ]  # fmt: skip
    seen = limit_physics_rate(logs, config.replay_hz)
    responses = _responses(backend, seen, {**space.fixed, **space.scalar_values(point)}, moved, local)
    variance, axes = np.linalg.eigh(given.covariance[np.ix_(rows, rows)] / np.outer(sd[rows], sd[rows]))
    return np.tensordot((axes * np.sqrt(np.maximum(variance, 0.0))).T, responses, axes=1)


def undeclared_responses(
    backend: Backend, logs: ReplayLogs, space: FitSpace, config: FitConfig, point: Array, local: Array
) -> dict[str, Array]:
    """Return the responses of the readings to parameters that are free by default but that the twin does not declare.

    The responses are changes per prior standard deviation, in the channels' units, ``(nwindow, nframe, nchannel)``, by
    parameter name. The dictionary is empty if the user chose the free parameters: the intervals are then conditional on
    the values of the other parameters.

    Args:
        backend: The backend that simulates the replays.
        logs: The training windows.
        space: The free parameters.
        config: Configuration of the fit.
        point: The estimate in solver coordinates (ln or SI), ``(p,)``.
        local: Corrections of m coordinates of each window's initial state, ``(nwindow, m)``.
    """
    if not logs.joints or config.free is not None or config.quantities is not None:
        return {}
    twin, rows = logs.twin, []
    for kind in default_free_quantities():
        paths = [kind.path(name) for name in find_members(twin.model, kind) if has_quantity(twin.model, kind, name)]
        if not kind.nominal_outside_model:
            rows += [ParamSpec(name=path, source="considered") for path in paths if path not in twin.params]
    complete = declare_params(twin, rows) if rows else twin
    every, stated = select_free_parameters(complete, replace(config, start={})), stated_scales(logs, config)
    missing = [free for free in every.free if free.name not in twin.params and free.name not in stated]
    if not missing:
        return {}
    values = {**space.fixed, **space.scalar_values(point)}
    seen = limit_physics_rate(replace(logs, twin=complete), config.replay_hz)
    responses = _responses(backend, seen, values, missing, local)
    return {free.name: response for free, response in zip(missing, responses, strict=True)}


def _responses(
    backend: Backend, logs: ReplayLogs, values: Mapping[str, float], moved: Sequence[FreeParam], local: Array
) -> Array:
    """Return the changes of the readings per prior standard deviation of k parameters at their prior's mean.

    Args:
        backend: The backend that simulates the replays.
        logs: The training windows.
        values: Values of the other parameters, SI.
        moved: The k parameters.
        local: Corrections of m coordinates of each window's initial state, ``(nwindow, m)``.

    Returns:
        The changes in the channels' units, ``(k, nwindow, nframe, nchannel)``; 0 where a replay diverged.
    """
    worlds = len(moved) + 1
    nominals = {free.name: free.param.nominal for free in moved}
    table = {name: np.full(worlds, value) for name, value in {**nominals, **values}.items()}
    for row, free in enumerate(moved):
        point = free.centre + _PART * free.sd
        table[free.name][row] = np.clip(
            np.exp(point) if free.is_logarithmic else point, free.param.low, free.param.high
        )
    table = logs.twin.table(worlds, table)
    read = replay(backend, logs, table, np.repeat(local[None], worlds, axis=0))
    return np.nan_to_num((read[:-1] - read[-1]) / _PART, posinf=0.0, neginf=0.0)
