"""Ranges cover real clips at their rate where the twin is right; where physics is missing, the cap is reached."""

import dataclasses

import numpy as np
import pytest

from support.swing import TRUTH, clips, swing_twin
from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError
from twinloop.identify import identify
from twinloop.identify.bands import residual_noise
from twinloop.identify.conformal import MOST_KAPPA, calibrate, kappa_cap
from twinloop.simulate import open_backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import prepare_replay
from twinloop.stats import clopper_pearson

TRAINING, FRAMES = 6, 60


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    return swing_twin(tmp_path_factory.mktemp("swing"))


@pytest.fixture(scope="module")
def backend():
    return open_backend("threads", nthread=2)


@pytest.fixture(scope="module")
def log(twin, backend):
    return clips(twin, backend, TRUTH, count=TRAINING + 9 + 10, nframe=FRAMES)


@pytest.fixture(scope="module")
def fitted(twin, backend, log):
    return identify(twin, log[:TRAINING], backend=backend).distribution


def calibrated(twin, backend, fitted, log, *, calibration=None, test=None, level=0.9):
    return calibrate(
        twin,
        fitted,
        backend=backend,
        training=log[:TRAINING],
        calibration=log[TRAINING : TRAINING + 9] if calibration is None else calibration,
        test=log[TRAINING + 9 :] if test is None else test,
        level=level,
    )


def test_a_twin_that_is_right_needs_hardly_any_widening(twin, backend, fitted, log):
    found = calibrated(twin, backend, fitted, log)
    noise, calibration = found.distribution.noise, found.distribution.calibration
    assert calibration.status == "calibrated"
    assert 0.3 < calibration.kappa < 4.0
    assert noise.sd == pytest.approx([0.1], rel=0.25)  # as planted, degrees
    assert noise.rho == pytest.approx([0.9], abs=0.06)
    assert noise.structured[0] < 0.2
    assert (calibration.model_error == 0).all()
    assert found.curve.levels[-1] == 0.9  # nine clips cannot show 95 %
    assert "calibrated on 9 clips for 90%" in found.text()
    inside = round(found.curve.calibrated[-1] * 10)
    assert clopper_pearson(inside, 10, level=0.99).covers(0.9)


def test_fewer_than_nine_clips_are_labelled_uncalibrated(twin, backend, fitted, log):
    found = calibrated(twin, backend, fitted, log, calibration=log[TRAINING : TRAINING + 8], test=[])
    assert found.distribution.calibration.status == "uncalibrated"
    assert found.distribution.kappa == 1.0
    assert "UNCALIBRATED: 8 calibration clips, 90% needs at least 9" in found.text()
    nothing = calibrated(twin, backend, fitted, log, calibration=[], test=[])
    assert "UNCALIBRATED: 0 calibration clips" in nothing.text()
    assert nothing.curve is None


def test_other_physics_reaches_the_cap_and_is_named_in_the_channels_unit(twin, backend, fitted, log):
    loaded = {**TRUTH, "joint/swing/load_friction": 0.5}
    others = clips(twin, backend, loaded, count=9, nframe=FRAMES, seed=5, first=100)
    found = calibrated(twin, backend, fitted, log, calibration=others)
    calibration = found.distribution.calibration
    assert calibration.status == "capped"
    assert found.distribution.kappa == calibration.cap <= MOST_KAPPA < calibration.needed
    assert calibration.model_error[0] > 0.3
    assert "MODEL ERROR that no range of parameters covers" in found.text()
    assert f"position/swing {calibration.model_error[0]:.3g} deg" in found.text()


def test_a_clip_may_not_serve_twice(twin, backend, fitted, log):
    with pytest.raises(InputError, match="Episode 0 is in two of training, calibration and test"):
        calibrated(twin, backend, fitted, log, calibration=log[:9])


def test_ranges_never_grow_wider_than_before_the_data(fitted):
    assert kappa_cap(fitted) == (MOST_KAPPA, "three standard deviations in place of one")
    vague = dataclasses.replace(fitted, covariance=np.diag(0.5 * fitted.prior_sd**2))
    cap, reason = kappa_cap(vague)
    assert cap == pytest.approx(2.0)
    assert reason.endswith("would be wider than its prior")


def test_noise_and_calibration_survive_json(twin, backend, fitted, log):
    found = calibrated(twin, backend, fitted, log, calibration=log[TRAINING : TRAINING + 3], test=[]).distribution
    back = ParamDistribution.from_json(found.to_json())
    assert back.to_json() == found.to_json()
    assert np.isinf(back.calibration.needed)
    assert back.noise.channels == ("position/swing",)
    old = {key: value for key, value in found.to_json().items() if key not in ("noise", "calibration", "prior_sd")}
    assert ParamDistribution.from_json(old).kappa == 1.0


def test_what_repeats_with_the_motion_is_told_from_noise(twin, backend):
    """Residuals of the true twin are noise; those of a twin without the log's load friction repeat with the motion."""
    shares = []
    for friction in (0.0, 0.3):
        truth = {**TRUTH, "joint/swing/load_friction": friction}
        logs = prepare_replay(twin, clips(twin, backend, truth, count=12, nframe=FRAMES, seed=8))
        residual = replay(backend, logs, logs.twin.table(1, TRUTH))[0] - logs.measured
        shares.append(float(residual_noise(logs, residual).structured[0]))
    assert shares[0] < 0.15
    assert shares[1] > 0.6


@pytest.mark.slow
def test_calibrated_ranges_cover_new_clips_at_the_nominal_rate(twin, backend):
    """Whole repetitions, fit included: 40 logs of 6 training, 9 calibration and 10 test clips, 90 %."""
    inside, status = [], []
    for seed in range(40):
        log = clips(twin, backend, TRUTH, count=TRAINING + 19, nframe=FRAMES, seed=1000 + seed)
        fitted = identify(twin, log[:TRAINING], backend=backend).distribution
        found = calibrated(twin, backend, fitted, log)
        status.append(found.distribution.calibration.status)
        inside.append(found.curve.calibrated[-1])
    # Given nine clips the true rate is Beta(9, 1): standard deviation 0.09, and 0.014 of the mean of 40.
    assert 0.85 <= np.mean(inside) <= 0.95
    assert status.count("capped") <= 2
