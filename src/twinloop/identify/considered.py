"""Compute responses of the readings to parameters that a fit keeps fixed, because they add to its uncertainty.

Parameters that a fit usually frees but that the twin does not declare are *nuisances*: the data restrict them, and what
remains counts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from twinloop.identify.assembly import FitSpace, default_free_quantities, select_free_parameters
from twinloop.identify.config import FitConfig
from twinloop.identify.physics_rate import limit_physics_rate
from twinloop.simulate import Backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayLogs
from twinloop.twin.quantities import find_members, has_quantity
from twinloop.twin.spec import ParamSpec
from twinloop.twin.variant import declare_params

Array = NDArray[np.float64]
_PART = 0.2  # of a prior standard deviation, the change from which a response is computed


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
    values = {**space.fixed, **space.scalar_values(point)}
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
    seen = limit_physics_rate(replace(logs, twin=complete), config.physics_hz)
    table = {name: np.append(column, values.get(name, complete.params[name].nominal)) for name, column in table.items()}
    worlds = len(missing) + 1
    read = replay(backend, seen, complete.table(worlds, table), np.repeat(local[None], worlds, axis=0))
    responses = np.nan_to_num((read[:-1] - read[-1]) / _PART, posinf=0.0, neginf=0.0)
    return {free.name: response for free, response in zip(missing, responses, strict=True)}
