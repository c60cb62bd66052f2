"""Logs that a twin made itself, with what is planted in it."""

from __future__ import annotations

import numpy as np

from twinloop.core.records import Episode
from twinloop.core.seeds import generator
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import prepare_replay


def episode(index, units, action, state, **changes):
    fields = {"time": np.arange(len(action)) / 30, "action": action, "state": state, "units": units, "source": "sim"}
    return Episode(index=index, **{**fields, **changes})


def log_of(twin, backend, values, *, count=4, nframe=60, seed=0):
    """Episodes of the twin itself with some parameters, without noise, in its own units; of unlike lengths."""
    rng = generator(seed, "test/gap")
    blank = []
    for index in range(count):
        frames = nframe - 5 * index
        turns = rng.uniform(-25, 25, size=(2, 6)) * np.sin(np.linspace(0, [[3], [7]], frames, axis=-1)).transpose(
            2, 0, 1
        )
        action = turns.sum(axis=1) + np.array([0, -40, 40, 30, 0, 40])
        blank.append(episode(index, twin.units, action, action))
    readings = replay(backend, prepare_replay(twin, blank), twin.table(1, values))[0]
    return [episode(e.index, e.units, e.action, readings[i, : len(e)]) for i, e in enumerate(blank)]
