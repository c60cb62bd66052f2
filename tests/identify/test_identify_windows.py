"""Fits to windows that begin in motion: noisy initial states are estimated together with the parameters."""

from dataclasses import replace

import numpy as np
import pytest

from support.swings import BACKEND, TRUTH, swings
from twinloop.core.seeds import generator
from twinloop.identify import FitConfig, identify
from twinloop.simulate.replay_logs import ReplayOptions
from twinloop.twin import load_twin

NOISE = 5e-4  # rad: its differences over 4 ms are 0.2 rad/s


@pytest.fixture(scope="module")
def noisy():
    rng, episodes = generator(11, "test/windows"), swings(load_twin("double_pendulum"))
    return [replace(e, state=e.state + NOISE * rng.normal(size=e.state.shape)) for e in episodes]


def fit(episodes, local):
    replay = ReplayOptions(window=0.05, start="measured", local=local)
    config = FitConfig(replay=replay, free=tuple(TRUTH), iterations=10, rescale=1)
    return identify(load_twin("double_pendulum"), episodes, backend=BACKEND, config=config)


def test_friction_comes_back_from_windows_whose_first_states_are_corrected(noisy):
    corrected = fit(noisy, {"position": NOISE, "velocity": 0.3}).values
    trusted = fit(noisy, {}).values
    for name, truth in TRUTH.items():
        assert corrected[name] == pytest.approx(truth, rel=0.25), name
    off = {name: abs(trusted[name] - truth) for name, truth in TRUTH.items()}
    assert max(off.values()) > 3 * max(abs(corrected[name] - truth) for name, truth in TRUTH.items())
    assert np.isfinite(list(off.values())).all()


def test_the_noise_of_the_sensor_is_estimated(noisy):
    result = fit(noisy, {"position": NOISE, "velocity": 0.3})
    assert result.residuals.noise == pytest.approx(NOISE, rel=0.25)
