"""CUSUM against simulation and published run lengths; bands of curves at their promised rate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinloop.core.errors import InputError
from twinloop.stats.change_points import cusum, cusum_run_length, cusum_threshold, self_starting_scores
from twinloop.stats.conformal import estimate_curve_band, joint_band, min_curve_count


def test_run_lengths_are_the_published_ones() -> None:
    """Montgomery, Introduction to Statistical Quality Control, table 9.4 (two-sided: half of the one-sided length)."""
    for threshold, two_sided, shifted in ((4.0, 168.0, 8.38), (5.0, 465.0, 10.4)):
        assert cusum_run_length(threshold) / 2 == pytest.approx(two_sided, rel=0.01)
        assert cusum_run_length(threshold, shift=1.0) == pytest.approx(shifted, rel=0.01)


def test_run_length_against_simulation() -> None:
    threshold = cusum_threshold(60.0)
    values = np.random.default_rng(1).normal(size=(3000, 800))
    over = cusum(values) >= threshold
    assert over.any(axis=1).all()
    lengths = over.argmax(axis=1) + 1
    assert abs(lengths.mean() - 60.0) < 4 * lengths.std() / np.sqrt(len(lengths))


def test_threshold_inverts_run_length() -> None:
    assert cusum_run_length(cusum_threshold(500.0)) == pytest.approx(500.0, rel=1e-6)


@pytest.mark.parametrize("length", [1.0, 1e30])
def test_impossible_run_length_is_refused(length: float) -> None:
    with pytest.raises(InputError, match="No CUSUM with k = 0.5 has a mean run length"):
        cusum_threshold(length)


def test_threshold_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="alarms immediately"):
        cusum_run_length(0.0)


def test_self_starting_values_are_standard_normal_after_ten() -> None:
    draws = np.random.default_rng(2).normal(3.0, 2.0, size=(1500, 14))
    scores = np.stack([self_starting_scores(row[:10], row[10:]) for row in draws])
    assert scores.mean() == pytest.approx(0.0, abs=0.04)
    assert scores.std() == pytest.approx(1.0, abs=0.03)
    assert np.abs(np.corrcoef(scores.T) - np.eye(4)).max() < 0.1
    assert np.mean(np.abs(scores) > 1.96) == pytest.approx(0.05, abs=0.01)


@given(st.integers(0, 1000), st.floats(0.1, 100.0), st.floats(-50.0, 50.0))
def test_self_starting_knows_no_units(seed: int, scale: float, shift: float) -> None:
    values = np.random.default_rng(seed).normal(size=8)
    plain = self_starting_scores(values[:4], values[4:])
    np.testing.assert_allclose(
        self_starting_scores(values[:4] * scale + shift, values[4:] * scale + shift), plain, atol=1e-6
    )


def test_self_starting_needs_two_unlike_values() -> None:
    with pytest.raises(InputError, match="two different values"):
        self_starting_scores([1.0, 1.0], [2.0])


def _curves(random: np.random.Generator, count: int, level: float = 0.0) -> np.ndarray:
    walk = np.cumsum(random.normal(size=(count, 40)), axis=1) * 0.1
    return np.exp(walk) + level + np.sin(np.arange(40) / 6)


def test_bands_hold_their_rate_together() -> None:
    """Skewed, correlated signals: any of three leaves its band in at most the promised share of episodes."""
    random, rate, outside, alone = np.random.default_rng(3), 0.1, [], []
    for _ in range(60):
        every = {name: _curves(random, 120) for name in "abc"}
        every["c"] = every["a"] + 0.1 * every["c"]
        fitted = {name: estimate_curve_band(curves[:20]) for name, curves in every.items()}
        score = {name: fitted[name].largest_deviations(curves) for name, curves in every.items()}
        band = joint_band(
            {name: values[:20] for name, values in score.items()},
            {name: values[20:60] for name, values in score.items()},
            rate=rate,
        )
        over = {name: score[name][60:] > band.together[name] for name in score}
        outside.append(np.mean(np.any(list(over.values()), axis=0)))
        alone.append(np.mean(score["a"][60:] > band.alone["a"]))
    exact = 1 - 37 / 41  # ⌈41 · 0.9⌉ = 37 of 41 places are inside
    for rates in (outside, alone):
        assert abs(np.mean(rates) - exact) < 4 * np.std(rates) / np.sqrt(len(rates))


def test_a_shifted_curve_leaves_the_band() -> None:
    random = np.random.default_rng(4)
    fitted = estimate_curve_band(_curves(random, 30))
    known, new = (
        fitted.largest_deviations(_curves(random, 60)),
        fitted.largest_deviations(_curves(random, 60, level=5.0)),
    )
    assert np.mean(new > np.quantile(known, 0.95)) == 1.0


def test_curves_that_end_early_are_judged_while_they_last() -> None:
    curves = _curves(np.random.default_rng(5), 30)
    short = curves.copy()
    short[:10, 25:] = np.nan
    fitted = estimate_curve_band(short)
    assert np.isfinite(fitted.largest_deviations(short)).all()
    assert len(fitted.centre) == 40
    spike = curves[:1].copy()
    spike[0, 30] = 100.0
    cut = spike.copy()
    cut[0, 30:] = np.nan
    assert fitted.largest_deviations(spike)[0] > 10 > fitted.largest_deviations(cut)[0]


def test_too_few_episodes_says_how_many() -> None:
    assert min_curve_count(0.05) == 19
    with pytest.raises(InputError, match="5 % needs at least 19 calibration episodes, and there are 12.*7.7 % or more"):
        joint_band({"a": np.zeros(5)}, {"a": np.zeros(12)}, rate=0.05)


def test_an_envelope_needs_curves() -> None:
    with pytest.raises(InputError, match="at least three finite curves"):
        estimate_curve_band(np.zeros((2, 5)))
