"""Replay recorded commands in a twin, starting each window of a log from its measured first frame.

The commands are applied open loop: the simulation is not corrected by later measurements.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from twinloop.core.params import ParamTable, SeedPath
from twinloop.simulate.open_loop import ReplayedMotion, open_loop
from twinloop.simulate.protocol import Backend
from twinloop.simulate.replay_logs import ReplayLogs, harden_friction
from twinloop.twin import Twin

_LEAST_SUBSTEPS = 2


def change_physics_rate(twin: Twin, physics_hz: float) -> Twin:
    """Return the twin with a physics rate of about ``physics_hz``, but never faster than its own rate."""
    steps = round(min(physics_hz * twin.dt, 1.0) * twin.substeps)
    return change_substeps(twin, min(twin.substeps, max(_LEAST_SUBSTEPS, steps)))


def change_substeps(twin: Twin, substeps: int) -> Twin:
    """Return the twin with another number of physics steps per control step."""
    model = copy.copy(twin.model)
    model.opt.timestep = 1.0 / (twin.control_hz * substeps)
    harden_friction(model)
    return replace(twin, spec=twin.spec.model_copy(update={"substeps": substeps}), model=model)


_MOST_WORLDS = 600  # in one batch, for windows of 300 frames: about 100 MB of states
_USUAL_FRAMES = 300
_LIKE = 1.25  # largest ratio of the lengths of two windows in one batch


def replay(
    backend: Backend, logs: ReplayLogs, params: ParamTable, local: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Simulate all windows of a log in all worlds and return the predicted measurements.

    Args:
        backend: backend that runs the worlds.
        logs: windows of the recorded episodes.
        params: parameters of ``logs.twin``, one row per world. If the log records a parameter's value for each episode
            (``logs.conditions``), that value is used instead.
        local: corrections of the windows' initial states, one set per world and window, shape ``(nworld, nwindow,
            logs.nlocal)``; None for no corrections.

    Returns:
        Predictions in the channels' units, shape ``(nworld, nwindow, nframe, nchannel)``. The first frame is the
        measured one with its corrections. Values are infinite after a world diverged, and NaN after the end of a
        window that is much shorter than the longest window.
    """
    nworld, nwindow, nframe = params.nworld, len(logs), logs.commands.shape[1]
    if local is None:
        local = np.zeros((nworld, nwindow, logs.nlocal))
    readings = np.full((nworld, nwindow, nframe, len(logs.channels)), np.nan)
    for rows in _group_by_length(logs.ends):
        windows = logs.take(rows)
        if nframe > _LIKE * windows.ends.max():
            windows = windows.trim_frames()
        length = windows.commands.shape[1]
        most = max(1, int(_MOST_WORLDS * max(1.0, _USUAL_FRAMES / length)) // len(rows))
        for begin in range(0, nworld, most):  # in parts, to limit memory
            worlds = np.arange(begin, min(begin + most, nworld))
            part = _replay(backend, windows, params.take(worlds), local[np.ix_(worlds, rows)])
            readings[begin : begin + most, rows, :length] = part
    return readings


def _group_by_length(lengths: NDArray[np.int64]) -> Iterator[NDArray[np.intp]]:
    """Yield the indices of windows in groups of similar length, so that no window is simulated far beyond its end."""
    order = np.argsort(lengths, kind="stable")
    while len(order):
        count = int(np.searchsorted(lengths[order], _LIKE * lengths[order[0]], side="right"))
        yield np.sort(order[:count])
        order = order[count:]


def replay_motion(backend: Backend, logs: ReplayLogs, params: ParamTable) -> ReplayedMotion:
    """Simulate all windows of a log in one world and return the motion.

    Windows start from their measured initial states, without the corrections ``local`` of `replay`.

    Args:
        backend: backend that runs the windows.
        logs: windows of the recorded episodes, few enough for one batch.
        params: one row of parameters of ``logs.twin``.

    Returns:
        Motion with the windows in place of worlds, for example ``qpos`` of shape ``(nwindow, nframe, nq)``.
    """
    return _run(backend, logs, params, np.zeros((1, len(logs), logs.nlocal)))[0]


def _run(
    backend: Backend, logs: ReplayLogs, params: ParamTable, local: NDArray[np.float64]
) -> tuple[ReplayedMotion, ParamTable]:
    """Return the motion of every window in every world, and the parameters of each simulated world.

    All windows of the first world come first, then those of the second world, and so on.

    Args:
        backend: backend that runs the worlds.
        logs: windows of the recorded episodes.
        params: parameters, one row per world.
        local: corrections of the windows' first states, shape ``(nworld, nwindow, logs.nlocal)``.
    """
    table = apply_conditions(logs, params)
    initial = logs.start.make_initial_states(logs.twin, table, local.reshape(params.nworld * len(logs), -1))
    commands = np.tile(logs.commands[:, :-1], (params.nworld, 1, 1))
    records = tuple(dict.fromkeys(name for measure in logs.channel_kinds for name in measure.records))
    return open_loop(backend, logs.twin, table, initial, commands, record=records), table


def _replay(backend: Backend, logs: ReplayLogs, params: ParamTable, local: NDArray[np.float64]) -> NDArray[np.float64]:
    nworld, nwindow = params.nworld, len(logs)
    run, table = _run(backend, logs, params, local)
    columns = []
    for measure, kept in zip(logs.channel_kinds, logs.channel_data, strict=True):
        columns.append(measure.predict_columns(run, table, np.tile(kept, (nworld, 1, 1))))
    readings = np.concatenate(columns, axis=-1)
    for world in np.flatnonzero(run.invalid_step >= 0):
        readings[world, run.invalid_step[world] :] = np.inf
    return readings.reshape(nworld, nwindow, *readings.shape[1:])


def apply_conditions(logs: ReplayLogs, params: ParamTable) -> ParamTable:
    """Return parameters for each window of each world, with the values that the log records for each episode.

    A recorded value (such as the mass of the payload, ``logs.conditions``) replaces the world's value. Rows are ordered
    by world, then by window. If the worlds have seeds, every window of a world has its own random events.

    Raises:
        BoundsError: If a recorded value is outside of the parameter's bounds.
    """
    values = np.repeat(params.values, len(logs), axis=0)
    for name, known in logs.conditions.items():
        logs.twin.find_param(name).check(known, where="the log's conditions")
        values[:, params.names.index(name)] = np.tile(known, params.nworld)
    table, seeds = ParamTable(names=params.names, values=values), params.seeds
    if seeds is None:
        return table
    episodes, attempts = np.repeat(seeds.episodes, len(logs)), np.tile(np.arange(len(logs)), params.nworld)
    return table.with_seeds(SeedPath.of(seeds.run_seed, episodes, attempts))
