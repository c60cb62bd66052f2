"""Boxes of the parameter space: planted ones are found with honest p-values, elsewhere there are none."""

from __future__ import annotations

import numpy as np
import pytest

from twinloop.curate.cells import scan_boxes


def points(count: int, seed: int, d: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).uniform(size=(count, d))


def test_a_planted_box_is_found_where_it_is():
    controls = points(240, 0)
    controls = controls[~((controls[:, 1] > 0.6) & (controls[:, 3] < 0.4))]
    box, *_ = scan_boxes(points(120, 1), controls, pair_axes=[0, 1, 2, 3], draws=99)
    assert box.axes == (1, 3)
    assert abs(box.low[0] - 6) <= 1
    assert box.high[0] >= 9
    assert box.low[1] == 0
    assert abs(box.high[1] - 4) <= 1
    assert box.controls <= 2
    assert box.p_value == 0.01


def test_a_band_of_one_parameter_is_found_beyond_the_range_too():
    controls, cases = points(200, 2), points(100, 3)
    cases[:, 2] *= 1.5  # a third of reality is above every simulated value
    box, *_ = scan_boxes(cases, controls, draws=99)
    assert box.axes == (2,)
    assert box.high == (10,)
    assert box.cases >= 30
    assert box.contains_points(np.array([[0.5, 0.5, 1.4, 0.5]])).all()


def test_two_bands_are_found_one_after_the_other():
    controls = points(400, 4)
    controls = controls[(controls[:, 0] > 0.2) & (controls[:, 1] < 0.8)]
    found = scan_boxes(points(200, 5), controls, draws=99)
    assert {box.axes for box in found[:2]} == {(0,), (1,)}


@pytest.mark.slow
def test_where_nothing_is_planted_a_box_is_told_as_rarely_as_claimed():
    """5 % of 40: more than 6 would have a chance of 0.3 %."""
    alarms = sum(
        bool(scan_boxes(points(60, 100 + trial, 3), points(90, 300 + trial, 3), pair_axes=[0, 1], draws=19, seed=trial))
        for trial in range(40)
    )
    assert alarms <= 6
