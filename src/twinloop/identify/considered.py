"""Compute responses of the readings to quantities that a fit keeps fixed, because they add to its uncertainty.

The finite physics step is *considered* in the sense of Schmidt ("Application of state-space methods to navigation
problems", 1966): its error is not estimated, but is part of the estimate's uncertainty. Parameters that a fit usually
frees but that the twin does not declare are *nuisances*: the data restrict them, and what remains counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from twinloop.identify.assembly import FitSpace, default_free_quantities, select_free_parameters
from twinloop.identify.config import FitConfig
from twinloop.simulate import Backend
from twinloop.simulate.replay import change_substeps, replay
from twinloop.simulate.replay_logs import ReplayLogs
from twinloop.twin.quantities import find_members, has_quantity
from twinloop.twin.spec import ParamSpec
from twinloop.twin.variant import declare_params

Array = NDArray[np.float64]
_PART = 0.2  # of a prior standard deviation, the change from which a response is computed


@dataclass(frozen=True, kw_only=True)
class ConsideredEffects:
    """Responses of the readings to quantities that a fit keeps fixed, ``(nwindow, nframe, nchannel)`` each.

    They are changes per prior standard deviation, in the channels' units.

    Attributes:
        physics_step: Response to a physics step of 0 instead of the twin's own.
        undeclared: Responses to parameters that the twin does not declare, by name.
    """

    physics_step: Array
    undeclared: Mapping[str, Array]


def compute_considered_effects(
    backend: Backend, logs: ReplayLogs, space: FitSpace, config: FitConfig, point: Array, local: Array
) -> ConsideredEffects:
    """Replay a fit's estimate with every considered quantity changed.

    If the user chose the free parameters, only the physics step is considered: the intervals are then conditional on
    the values of the other parameters.

    Args:
        backend: The backend that simulates the replays.
        logs: The training windows, with the twin at its own physics rate.
        space: The free parameters.
        config: Configuration of the fit.
        point: The estimate in solver coordinates (ln or SI), ``(p,)``.
        local: Corrections of m coordinates of each window's initial state, ``(nwindow, m)``.
    """
    values = {**space.fixed, **space.scalar_values(point)}
    base = replay(backend, logs, logs.twin.table(1, values), local[None])[0]
    half_step = replace(logs, twin=change_substeps(logs.twin, 2 * logs.twin.substeps))
    finer = replay(backend, half_step, half_step.twin.table(1, values), local[None])[0]
    chosen_by_user = config.free is not None or config.quantities is not None
    undeclared = {}
    if logs.joints and not chosen_by_user:
        undeclared = _undeclared_responses(backend, logs, values, config, local, base)
    return ConsideredEffects(
        physics_step=_finite(2.0 * (finer - base)),  # to a step of 0, to first order
        undeclared={name: _finite(response) for name, response in undeclared.items()},
    )


def _finite(response: Array) -> Array:
    return np.nan_to_num(response, posinf=0.0, neginf=0.0)


def _undeclared_responses(
    backend: Backend, logs: ReplayLogs, values: Mapping[str, float], config: FitConfig, local: Array, base: Array
) -> dict[str, Array]:
    """Return the responses to parameters that are free by default, but that the twin does not declare."""
    twin = logs.twin
    rows = []
    for kind in default_free_quantities():
        paths = [kind.path(name) for name in find_members(twin.model, kind) if has_quantity(twin.model, kind, name)]
        if not kind.nominal_outside_model:
            rows += [ParamSpec(name=path, source="considered") for path in paths if path not in twin.params]
    complete = declare_params(twin, rows) if rows else twin
    every = select_free_parameters(complete, replace(config, start={}))
    missing = [free for free in every.free if free.name not in twin.params]
    table = {name: np.full(len(missing), value) for name, value in values.items()}
    for i, free in enumerate(missing):
        moved = free.centre + _PART * free.sd
        column = np.full(len(missing), free.param.nominal)
        column[i] = np.exp(moved) if free.is_logarithmic else moved
        table[free.name] = np.clip(column, free.param.low, free.param.high)
    if not missing:
        return {}
    seen = replace(logs, twin=complete)
    read = replay(backend, seen, complete.table(len(missing), table), np.repeat(local[None], len(missing), axis=0))
    return {free.name: (one - base) / _PART for free, one in zip(missing, read, strict=True)}
