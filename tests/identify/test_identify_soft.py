"""Young's modulus and damping of a soft block come back from the readings of the slide that presses on it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from twinloop.core.distribution import ParamDistribution
from twinloop.core.records import Episode
from twinloop.core.seeds import generator
from twinloop.identify import FitConfig, identify
from twinloop.identify.fit import fix_given
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


def pressed_log(twin, rng, truth=TRUTH, count=3, nframe=50):
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
    readings = replay(BACKEND, logs, twin.table(1, truth))[0]
    readings += NOISE * rng.standard_normal(readings.shape)
    return [replace(episode, state=rows) for episode, rows in zip(blank, readings, strict=True)]


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
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


def known_gain(twin, sd):
    """Return an earlier identification of the servo: its gain with a relative standard deviation, and its zero."""
    param, zero = twin.params["actuator/press/kp"], twin.params["sensor/press/offset"]
    return ParamDistribution(
        names=(param.name, zero.name, "joint/of_another_twin/damping"),
        transforms=("log", "identity", "identity"),
        mean=np.array([np.log(param.nominal), 0.0, 1.0]),
        covariance=np.diag([sd, 1e-5, 0.1]) ** 2,
        low=np.array([param.low, zero.low, 0.0]),
        high=np.array([param.high, zero.high, 9.0]),
        determined=(True, True, True),
        clusters=4,
    )


@pytest.mark.slow
def test_the_error_of_an_earlier_identification_is_part_of_the_interval():
    """The servo's gain is 1.5 standard deviations above its earlier estimate, which makes Young's modulus wrong."""
    twin, sd = load_twin("soft_press"), 0.05
    gain = "actuator/press/kp"
    truth = {**TRUTH, gain: twin.params[gain].nominal * np.exp(1.5 * sd)}
    log = pressed_log(twin, generator(4, "test/soft"), truth, count=2)
    config = FitConfig(
        replay=REPLAY, free=("soft/block/young",), fixed={"soft/block/damping": TRUTH["soft/block/damping"]}
    )
    found = {}
    for name, error in (("ignored", 0.0), ("known", sd)):
        found[name] = identify(twin, log, backend=BACKEND, config=config, given=known_gain(twin, error))
    young = {name: result.estimates[0] for name, result in found.items()}
    assert young["known"].value == pytest.approx(young["ignored"].value, rel=0.01)
    assert not young["ignored"].low < truth["soft/block/young"] < young["ignored"].high
    assert young["known"].low < truth["soft/block/young"] < young["known"].high
    assert young["known"].high - young["known"].low == pytest.approx(4 * sd * young["known"].value, rel=0.4)
    joined = found["known"].distribution
    assert joined.names == ("soft/block/young", gain, "sensor/press/offset")
    assert joined.covariance[1, 1] == pytest.approx(sd**2)
    assert not joined.covariance[1:, :1].any()


def test_a_free_parameter_is_fitted_although_it_was_identified_before(monkeypatch):
    """The result begins with the warning of the fit, and its distribution keeps the warning."""
    monkeypatch.setattr("twinloop.identify.fit.warn_of_worse_channels", lambda *_: "DO NOT TRUST")
    monkeypatch.setattr("twinloop.identify.fit.note_resting_channels", lambda *_: ("rests",))
    twin = load_twin("soft_press")
    log = pressed_log(twin, generator(5, "test/soft"), count=2)
    config = FitConfig(replay=REPLAY, free=("soft/block/young", "actuator/*/kp"))
    found = identify(twin, log, backend=BACKEND, config=config, given=known_gain(twin, 0.05))
    assert sorted(one.name for one in found.estimates) == ["actuator/press/kp", "soft/block/young"]
    assert found.distribution.names[2:] == ("sensor/press/offset",)
    assert (found.notes[0], found.distribution.warning) == ("DO NOT TRUST", "DO NOT TRUST")
    assert "rests" in found.notes


def test_what_is_given_is_fixed_unless_the_fit_frees_or_fixes_it():
    twin, gain, zero = load_twin("soft_press"), "actuator/press/kp", "sensor/press/offset"
    given = known_gain(twin, 0.05)
    assert fix_given(twin, FitConfig(), None) == FitConfig()
    assert fix_given(twin, FitConfig(), given).fixed == {gain: pytest.approx(3000.0), zero: 0.0}
    assert fix_given(twin, FitConfig(free=("actuator/*",), fixed={zero: 1e-4}), given).fixed == {zero: 1e-4}
