"""Short swings of the double pendulum with planted friction, for fits that shall take a second."""

from dataclasses import replace

import numpy as np

from twinloop.core.records import Episode
from twinloop.core.seeds import generator
from twinloop.simulate import open_backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import prepare_replay

TRUTH = {"joint/shoulder/frictionloss": 0.13, "joint/elbow/frictionloss": 0.15}
BACKEND = open_backend("threads", nthread=2)
FREE = ("joint/*/frictionloss", "joint/*/damping")


def swings(twin):
    rng, time = generator(3, "test/resume"), np.arange(80) / twin.control_hz
    blank = []
    for index in range(3):
        phase = rng.uniform(0, 2 * np.pi, size=2)
        action = np.sin(2 * np.pi * np.array([3.1, 4.9]) * time[:, None] + phase) * [1.5, 0.8]
        still = np.zeros_like(action)
        blank.append(Episode(index=index, time=time, action=action, state=still, units=twin.units, source="sim"))
    readings = replay(BACKEND, prepare_replay(twin, blank), twin.table(1, TRUTH))[0]
    readings += 1e-4 * rng.normal(size=readings.shape)
    return [replace(e, state=readings[i]) for i, e in enumerate(blank)]
