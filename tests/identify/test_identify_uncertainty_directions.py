"""What data leave open is named in parameters, against curvatures whose answer is known."""

import numpy as np
import pytest

from twinloop.identify.fisher import assess_determination, scaled_condition

NAMES = ("joint/a/damping", "joint/a/armature", "actuator/a/kp")


def test_a_sum_that_the_data_see_leaves_the_difference_open():
    slopes = np.random.default_rng(0).normal(size=(100, 2))
    jacobian = slopes[:, [0, 0, 1]] * [1.0, 2.0, 1.0]  # damping and twice the armature act as one
    found = assess_determination(jacobian.T @ jacobian, [1.0, 0.5, 0.3], NAMES)
    (direction,) = found.directions
    moves = direction.moves
    assert moves["joint/a/damping"] == pytest.approx(-2.0 * moves["joint/a/armature"])
    assert "actuator/a/kp" not in moves
    assert np.hypot(moves["joint/a/damping"] / 1.0, moves["joint/a/armature"] / 0.5) == pytest.approx(1.0)
    assert str(direction) in (
        "+0.71 joint/a/damping -0.35 joint/a/armature",
        "+0.35 joint/a/armature -0.71 joint/a/damping",
    )
    assert found.share == pytest.approx([0.5, 0.5, 0.0], abs=1e-9)
    assert found.undetermined_mask.tolist() == [True, True, False]
    assert found.condition > 1e12


def test_what_is_open_depends_on_what_was_known_and_on_the_threshold():
    curvature = np.diag([4.0, 0.25, 100.0])
    assert [d.moves for d in assess_determination(curvature, np.ones(3), NAMES).directions] == [
        {"joint/a/armature": 1.0}
    ]
    assert not assess_determination(curvature, [1.0, 3.0, 1.0], NAMES).directions
    assert len(assess_determination(curvature, np.ones(3), NAMES, least=5.0).directions) == 2
    assert assess_determination(curvature, np.ones(3), NAMES).gains == pytest.approx([0.25, 4.0, 100.0])


def test_the_condition_does_not_know_units():
    matrix = np.array([[2.0, 0.3], [0.3, 1.0]])
    units = np.diag([1e-6, 1e4])
    assert scaled_condition(units @ matrix @ units) == pytest.approx(scaled_condition(matrix))
    assert scaled_condition(np.diag([1.0, 0.0])) == float("inf")
