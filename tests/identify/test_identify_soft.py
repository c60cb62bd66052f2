"""Young's modulus and damping of a soft block come back from the readings of the slide that presses on it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from twinloop.core.records import Episode
from twinloop.core.seeds import generator
from twinloop.identify import FitConfig, identify
from twinloop.identify.physics_rate import limit_physics_rate
from twinloop.simulate import open_backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayOptions, prepare_replay
from twinloop.twin import load_twin

BACKEND = open_backend("threads", nthread=2)
TRUTH = {"soft/block/young": 150e3, "soft/block/damping": 0.02}
REPLAY = ReplayOptions(contacts=True)
NOISE = 2e-5  # m, of a linear encoder
HERTZ = np.array([0.9, 3.1, 7.3])


def pressed_log(twin, rng, count=3, nframe=50):
    """Return episodes in which the slide presses on a block with the planted values, with noisy readings.

    The virtual robot has the twin's own physics step, which is that of a fit with contacts.
    """
    time = np.arange(nframe) / twin.control_hz
    waves = np.sin(2 * np.pi * HERTZ * time[:, None] + rng.uniform(0, 2 * np.pi, (count, 1, 3)))
    blank = [
        Episode(index=i, time=time, action=action, state=np.zeros((nframe, 1)), units=twin.units, source="sim")
        for i, action in enumerate(0.018 + 0.004 * waves.sum(axis=-1, keepdims=True))
    ]
    logs = limit_physics_rate(prepare_replay(twin, blank, REPLAY), 1.0 / twin.dt)
    readings = replay(BACKEND, logs, twin.table(1, TRUTH))[0]
    readings += NOISE * rng.standard_normal(readings.shape)
    return [replace(episode, state=rows) for episode, rows in zip(blank, readings, strict=True)]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_young_and_damping_of_a_pressed_block_come_back(seed):
    """Measured: Young's modulus to 0.1 %, damping to 1 %, from 1.5 s of pressing."""
    twin = load_twin("soft_press")
    config = FitConfig(replay=REPLAY, free=tuple(TRUTH))
    result = identify(twin, pressed_log(twin, generator(seed, "test/soft")), backend=BACKEND, config=config)
    for estimate in result.estimates:
        truth = TRUTH[estimate.name]
        assert estimate.value == pytest.approx(truth, rel=0.03)
        assert estimate.low < truth < estimate.high
        assert estimate.high - estimate.low < 0.2 * truth
