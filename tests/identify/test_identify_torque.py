"""A torque-controlled twin is identified from torques and positions; encoder and position loop are left alone."""

import numpy as np
import pytest

from twinloop.core.records import Episode
from twinloop.core.seeds import generator
from twinloop.identify import identify
from twinloop.simulate import open_backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import prepare_replay
from twinloop.twin import load_twin

TRUTH = {
    "joint/shoulder/damping": 0.004,
    "joint/elbow/damping": 0.003,
    "joint/shoulder/frictionloss": 0.13,
    "joint/elbow/frictionloss": 0.15,
    "actuator/shoulder/delay": 0.006,
    "actuator/elbow/delay": 0.006,
}


def episodes_of(twin, backend, *, count=3, nframe=300):
    rng = generator(1, "test/torque")
    time = np.arange(nframe) / twin.control_hz
    blank = []
    for index in range(count):
        phase = rng.uniform(0, 2 * np.pi, size=2)
        action = np.sin(2 * np.pi * np.array([1.1, 1.9]) * time[:, None] + phase) * [1.5, 0.8]
        start = np.zeros_like(action)
        blank.append(Episode(index=index, time=time, action=action, state=start, units=twin.units, source="sim"))
    readings = replay(backend, prepare_replay(twin, blank), twin.table(1, TRUTH))[0]
    readings += 1e-4 * rng.normal(size=readings.shape)
    return [
        Episode(index=e.index, time=e.time, action=e.action, state=readings[i], units=e.units, source="sim")
        for i, e in enumerate(blank)
    ]


def test_friction_and_delay_of_a_double_pendulum_come_back():
    twin, backend = load_twin("double_pendulum"), open_backend("threads", nthread=2)
    result = identify(twin, episodes_of(twin, backend), backend=backend)
    found = result.values
    assert not any(name.startswith("sensor/") or name.endswith(("/kp", "/bias")) for name in found)
    for name, truth in TRUTH.items():
        assert found[name] == pytest.approx(truth, rel=0.15, abs=1e-3), name
    assert (result.training_error < 0.05 * result.nominal_training_error).all()
