"""Lags finer than a frame, and where a factor changes: planted ones come back."""

from __future__ import annotations

import numpy as np
import pytest

from twinloop.stats import correlation_at_lags, cross_lag, slope_change, uncentered_correlation


def band_limited(shift: float, *, nframe: int = 400, seed: int = 0) -> np.ndarray:
    """A sum of slow sines, seen ``shift`` frames later."""
    random = np.random.default_rng(seed)
    at = np.arange(nframe) - shift
    frequencies = random.uniform(0.005, 0.08, 12)
    return np.sum(np.sin(2 * np.pi * frequencies * at[:, None] + random.uniform(0, 6, 12)), axis=1)


@pytest.mark.parametrize("lag", [-2.3, 0.0, 0.37, 3.5, 7.81])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_lag_finer_than_a_frame_comes_back_with_its_sign(lag, sign):
    window = np.hanning(400)  # without one, what enters and leaves at the ends pulls the lag towards zero
    found, correlation = cross_lag(window * band_limited(0), sign * window * band_limited(lag), earliest=-10, latest=15)
    assert found == pytest.approx(lag, abs=0.08)
    assert correlation == pytest.approx(sign, abs=0.06)


def test_correlations_by_fft_equal_those_by_sums():
    random = np.random.default_rng(3)
    x, y = random.normal(size=(50, 2)), random.normal(size=(50, 3))
    lags, found = correlation_at_lags(x, y, earliest=-4, latest=6)
    a, b = x - x.mean(axis=0), y - y.mean(axis=0)
    for row, lag in enumerate(lags):
        earlier, later = (a[: 50 - lag], b[lag:]) if lag >= 0 else (a[-lag:], b[: 50 + lag])
        slow = earlier.T @ later / np.sqrt(np.outer((a**2).sum(0), (b**2).sum(0)))
        np.testing.assert_allclose(found[row], slow, atol=1e-12)


def test_a_constant_series_correlates_with_nothing():
    assert cross_lag(np.full(20, 0.1), np.arange(20.0), earliest=0, latest=5) == (0.0, 0.0)


def test_a_slope_that_changes_is_found_at_its_row():
    random = np.random.default_rng(1)
    x = random.normal(size=300)
    y = np.where(np.arange(300) < 180, 1.0, -1.0) * x + 0.1 * random.normal(size=300)
    found = slope_change(x, y, least=10)
    assert abs(found.index - 180) <= 2
    assert (found.before, found.after) == (pytest.approx(1, abs=0.03), pytest.approx(-1, abs=0.03))
    assert found.gain > 0.9
    assert slope_change(x, 2 * x + 0.1 * random.normal(size=300), least=10).gain < 0.1


def test_a_raw_correlation_is_the_cosine_between_two_series():
    assert uncentered_correlation([3.0, 4.0], [4.0, 3.0]) == pytest.approx(24 / 25)
    assert uncentered_correlation([1.0, 2.0], [-2.0, -4.0]) == pytest.approx(-1)
    assert uncentered_correlation([1.0, 2.0], [0.0, 0.0]) == 0
