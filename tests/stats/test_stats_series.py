"""Autocorrelation, effective sample size, whiteness and error measures against closed forms."""

import numpy as np
import pytest
from scipy.signal import lfilter

from twinloop.core.errors import InputError
from twinloop.stats import autocorrelation, effective_size, ljung_box, mae, pooled_autocorrelation


def ar1(rho, n, seed=0):
    return lfilter([1.0], [1.0, -rho], np.random.default_rng(seed).normal(size=n))


def test_autocorrelation_by_hand_and_of_an_autoregression():
    assert autocorrelation([1.0, -1.0, 1.0, -1.0], 1)[1] == pytest.approx(-0.75)
    rho = autocorrelation(ar1(0.8, 40_000), 3)
    assert rho == pytest.approx([1.0, 0.8, 0.64, 0.512], abs=0.03)


def test_effective_size_is_the_variance_of_the_mean():
    n, rho = 20_000, 0.9
    series = ar1(rho, n)
    means = ar1(rho, n * 10, seed=1).reshape(-1, 500).mean(axis=1)
    per_mean = series.var() / means.var()  # independent samples per 500 correlated ones
    assert effective_size(500, pooled_autocorrelation([series])) == pytest.approx(per_mean, rel=0.2)
    assert effective_size(50, 1.0) == 1.0
    assert effective_size(100, -0.9) == 100.0


def test_what_is_constant_in_a_clip_counts_as_correlated():
    rng = np.random.default_rng(4)
    clips = [rng.normal() + 0.5 * rng.normal(size=20) for _ in range(400)]
    assert pooled_autocorrelation(clips) == pytest.approx(0.8, abs=0.04)  # 1 of 1.25 is the clip's own level
    assert pooled_autocorrelation([np.zeros(3)]) == 1.0
    assert np.mean([autocorrelation(clip)[1] for clip in clips]) < 0.05


def test_ljung_box_false_positives_and_power():
    rng = np.random.default_rng(2)
    rejected = sum(ljung_box([rng.normal(size=200)]).p_value < 0.05 for _ in range(600)) / 600
    assert 0.03 < rejected < 0.08
    assert ljung_box([ar1(0.4, 200)]).p_value < 1e-3
    pooled = sum(ljung_box(list(rng.normal(size=(4, 200)))).p_value < 0.05 for _ in range(300)) / 300
    assert 0.02 < pooled < 0.09
    weak = [ar1(0.2, 200, seed) for seed in range(20)]
    assert ljung_box(weak).p_value < 1e-3 < np.median([ljung_box([clip]).p_value for clip in weak])


def test_errors_ignore_missing_frames():
    predicted = np.array([[[1.0, 0.0], [3.0, 0.0], [np.nan, 0.0]]])
    measured = np.array([[[0.0, 2.0], [0.0, 2.0], [5.0, 2.0]]])
    assert mae(predicted, measured) == pytest.approx([2.0, 2.0])


def test_mistakes_are_named():
    with pytest.raises(InputError, match="no autocorrelation at lag 5"):
        autocorrelation([1.0, 2.0], 5)
    with pytest.raises(InputError, match="Clips of 2 frames have no autocorrelation at lag 3"):
        pooled_autocorrelation([[1.0, 2.0]], 3)
    with pytest.raises(InputError, match="use more lags"):
        ljung_box([np.arange(30.0)], lags=3, fitted=3)
