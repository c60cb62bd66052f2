"""A planted delay is reported as delay and not as amplitude, a planted gain as amplitude and not as delay."""

import numpy as np
import pytest

from support.gap_logs import arm_log, arm_twin
from twinloop.gap import measure_gap
from twinloop.simulate import open_backend
from twinloop.simulate.replay_logs import ReplayOptions

WINDOWS = ReplayOptions(window=1.0, start="measured")


@pytest.fixture(scope="module")
def backend():
    return open_backend("threads", nthread=1)


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    return arm_twin(tmp_path_factory.mktemp("arm"))


@pytest.mark.parametrize("options", [None, WINDOWS], ids=["whole", "windows"])
@pytest.mark.parametrize("late", [0.013, 0.06])
def test_a_planted_delay_is_a_delay(twin, backend, options, late):
    log = arm_log(twin, backend, {"actuator/elbow/delay": late}, noise=0.001, count=8)
    found = measure_gap(twin, log, backend=backend, options=options).delay
    # A twentieth of a frame: commands are held between frames, and motion between them is not seen.
    assert found.delay.estimate == pytest.approx([0.0, late], abs=0.05 / twin.control_hz)
    assert (found.delay.high - found.delay.low < 0.002).all()
    assert found.gain.estimate == pytest.approx([1.0, 1.0], abs=0.01)
    delay, amplitude, shape = found.shares.estimate[:, 1]
    assert delay > 0.8
    assert amplitude < 0.05
    assert delay + amplitude + shape == pytest.approx(1.0)


@pytest.mark.parametrize("options", [None, WINDOWS], ids=["whole", "windows"])
def test_a_planted_gain_is_amplitude(twin, backend, options):
    log = arm_log(twin, backend, {}, count=8)
    shrunk = [
        type(e)(index=e.index, time=e.time, action=e.action, state=e.state * [1.0, 0.8], units=e.units, source="sim")
        for e in log
    ]
    found = measure_gap(twin, shrunk, backend=backend, options=options).delay
    assert abs(found.delay.estimate[1]) < 0.005
    assert found.gain.estimate[1] == pytest.approx(0.8, abs=0.02)
    assert found.shares.estimate[1, 1] > 0.9


def test_an_error_of_rounding_has_no_shares(twin, backend):
    log = arm_log(twin, backend, {}, count=8)
    rng = np.random.default_rng(0)
    equal = [
        type(e)(
            index=e.index,
            time=e.time,
            action=e.action,
            state=e.state * (1.0 + 1e-9 * rng.normal(size=e.state.shape)),
            units=e.units,
            source="sim",
        )
        for e in log
    ]
    report = measure_gap(twin, equal, backend=backend)
    assert report.delay.delay.estimate == pytest.approx([0.0, 0.0], abs=1e-4)
    assert np.isnan(report.delay.shares.estimate).all()
    assert "nan" not in report.text()


def test_an_early_reality_has_a_negative_delay(twin, backend):
    log = arm_log(twin, backend, {})
    found = measure_gap(twin, log, backend=backend, params={"actuator/shoulder/delay": 0.05})
    assert found.delays["identified"].delay.estimate == pytest.approx([-0.05, 0.0], abs=0.002)
    assert found.delays["nominal"].delay.estimate == pytest.approx([0.0, 0.0], abs=1e-5)


def test_windows_too_short_to_be_shifted_have_no_delay(twin, backend):
    log = arm_log(twin, backend, {}, seconds=1.0)
    report = measure_gap(twin, log, backend=backend, options=ReplayOptions(window=0.04, start="measured"))
    assert report.delay is None
    assert not any(metric.name.startswith("delay") for metric in report.headline())
    assert np.isfinite(report.rmse["nominal"].estimate).all()
