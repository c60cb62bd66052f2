"""Test the notes of a fit, and the units and digits in which its errors are shown."""

import numpy as np
import pytest

from twinloop.core.console import fit_column
from twinloop.core.units import choose_display_unit, count_decimals, drop_rounding
from twinloop.identify.notes import (
    note_dominant_episode,
    note_kept_values,
    note_resting_channels,
    warn_of_worse_channels,
)
from twinloop.identify.result import Estimate
from twinloop.stats import Interval


def estimate(value, reason):
    limits = {"prior_low": 1.0, "prior_high": 3.0, "low": None, "high": None}
    return Estimate(name=f"p{value:g}", unit="N", nominal=2.0, value=value, reason=reason, **limits)


def test_only_undetermined_values_outside_the_prior_are_named():
    rows = [estimate(2.0, "vague"), estimate(3.0 + 1e-12, "vague"), estimate(4.0, "vague"), estimate(5.0, "")]
    (note,) = note_kept_values(rows)
    assert "outside 95 % of the prior: p4. At the mean of the prior the loss would rise by more than 0.5 %" in note
    assert note_kept_values([rows[0], rows[1], rows[3]]) == ()


def test_an_episode_is_named_from_five_times_the_median_error_on():
    errors = np.ones((5, 2))
    errors[3, 1] = 4.9
    assert note_dominant_episode(errors, [2, 3, 5, 7, 8], ["a", "b"]) == ()
    errors[3, 1] = 6.0
    (note,) = note_dominant_episode(errors, [2, 3, 5, 7, 8], ["a", "b"])
    assert "error of episode 7 in b is 6.0 times" in note
    assert "edit delete DATASET --episodes 7" in note
    assert note_dominant_episode(errors[1:4], [3, 5, 7], ["a", "b"]) == ()  # too few for a median
    assert note_dominant_episode(0 * errors, [2, 3, 5, 7, 8], ["a", "b"]) == ()


@pytest.mark.parametrize(
    ("unit", "value", "shown"),
    [
        ("rad", 0.0002481, "0.248 mrad"),
        ("rad", 0.5, "0.500 rad"),
        ("deg", 0.0002481, "0.000248 deg"),
        ("rad", 0.0, "0.000 rad"),
        ("m", 3e-7, "0.000300 mm"),
        ("deg", 12.34567, "12.346 deg"),
    ],
)
def test_a_small_error_is_shown_in_a_smaller_unit_or_with_three_digits(unit, value, shown):
    factor, shown_unit = choose_display_unit(unit, value)
    assert f"{factor * value:.{count_decimals(factor * value)}f} {shown_unit}" == shown


def test_a_long_name_widens_its_column_and_a_rounding_error_is_zero():
    assert fit_column(6, ["four", "eleven long"]) == len("eleven long") + 2
    assert fit_column(6, ["four"]) == fit_column(6, []) == 6
    assert (drop_rounding(-4e-16), drop_rounding(-4e-10)) == (0.0, -4e-10)


def test_a_fit_that_is_worse_than_the_twin_as_shipped_is_not_to_be_trusted():
    """As of a grasp whose replay dropped the object: its tilt was 95 times as wrong as with nominal parameters."""
    nominal = np.array([0.2, 0.0032, 0.0])
    found = np.array([0.25, 0.3049, 0.1])
    identified = Interval.of(found, found, found, level=0.95, method="test")
    note = warn_of_worse_channels(nominal, identified, ["joint", "pose/peg/ry", "still"])
    assert "pose/peg/ry (95.3 times)" in note
    assert "joint (" not in note
    assert "still" not in note  # a channel without a nominal error has no ratio
    better = Interval.of(0.9 * nominal, nominal, nominal, level=0.95, method="test")
    assert warn_of_worse_channels(nominal, better, ["joint", "pose/peg/ry", "still"]) == ""
    assert warn_of_worse_channels(None, None, ["joint"]) == ""


def test_a_channel_that_mostly_rests_is_named():
    residual = np.random.default_rng(0).standard_normal((2, 100, 2))
    residual[:, ::20, 1] = 30.0
    residual[:, 1, 1] = np.nan
    (note,) = note_resting_channels(residual, ["joint", "scale"])
    assert note.startswith("Most residuals of scale are far smaller")
    assert note_resting_channels(residual[..., :1], ["joint"]) == ()
