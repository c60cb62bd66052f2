"""Recorded commands through a twin, open loop from the first frame of each window, all of them in one batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinloop.core.params import ParamTable
from twinloop.simulate.protocol import Backend
from twinloop.simulate.replay_logs import ReplayLogs
from twinloop.simulate.rollout import rollout

_MOST_WORLDS = 600  # at once, of windows of 300 frames: about 100 MB of states
_USUAL_FRAMES = 300


def replay(
    backend: Backend, logs: ReplayLogs, params: ParamTable, local: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """What would have been measured, ``(nworld, nwindow, nframe, nchannel)`` in the channels' units.

    The first frame is the measured one with its corrections. A world that diverges reads infinity from then on.

    Args:
        backend: where the worlds run.
        logs: the windows.
        params: rows of ``logs.twin``'s parameters, one per world; the log's own conditions replace theirs.
        local: corrections of the first states, ``(nworld, nwindow, logs.nlocal)``; None for none.
    """
    nworld, nwindow, nframe = params.nworld, len(logs), logs.commands.shape[1]
    if local is None:
        local = np.zeros((nworld, nwindow, logs.nlocal))
    most = max(1, int(_MOST_WORLDS * max(1.0, _USUAL_FRAMES / nframe)) // nwindow)
    if nworld > most:  # in portions, so that memory stays flat
        portions = [np.arange(i, min(i + most, nworld)) for i in range(0, nworld, most)]
        return np.concatenate([replay(backend, logs, params.take(rows), local[rows]) for rows in portions])
    table = _with_conditions(logs, params)
    initial = logs.start.states(logs.twin, table, local.reshape(nworld * nwindow, -1))
    commands = np.tile(logs.commands[:, :-1], (nworld, 1, 1))
    records = tuple(dict.fromkeys(name for measure in logs.measures for name in measure.records))
    run = rollout(backend, logs.twin, table, initial, commands, nframe - 1, record=records)
    columns = []
    for measure, kept in zip(logs.measures, logs.kept, strict=True):
        columns.append(measure.predicted(run, table, np.tile(kept, (nworld, 1, 1))))
    readings = np.concatenate(columns, axis=-1)
    for world in np.flatnonzero(~run.valid):
        readings[world, run.invalid_step[world] :] = np.inf
    return readings.reshape(nworld, nwindow, *readings.shape[1:])


def _with_conditions(logs: ReplayLogs, params: ParamTable) -> ParamTable:
    """A row for each window of each world, with what the log says of its windows."""
    values = np.repeat(params.values, len(logs), axis=0)
    for name, known in logs.conditions.items():
        logs.twin.require(name).check(known, where="the log's conditions")
        values[:, params.names.index(name)] = np.tile(known, params.nworld)
    return ParamTable(names=params.names, values=values)
