"""Draws in several boxes: exact shares, redraws that stay in their box, a distribution with its inverse; errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.covered import MASS, X, Y, arm, generate_file
from twinloop.core.errors import BoundsError, InputError, UnknownNameError
from twinloop.curate.plan import FillTarget, allocate_episodes, complete_boxes, round_range, select_separate_targets
from twinloop.generate.config import make_plan, resolve_config
from twinloop.randomize.axes import plan_axes, to_unit_cube

BOXES = [
    {"episodes": 6, "params": {X: [0.18, 0.20], Y: [0.05, 0.10]}},
    {"episodes": 2, "params": {X: [0.25, 0.27], Y: [-0.10, 0.10]}},
]


def plan(tmp_path, *constraints: str, episodes: int = 64, boxes=BOXES, **section):
    value = generate_file(*constraints, boxes=boxes, **section)
    return make_plan(resolve_config(value, where="file", folder=tmp_path, episodes=episodes), arm())


def test_every_run_of_the_shares_has_exactly_its_share_in_each_box(tmp_path):
    table = plan(tmp_path).draw(range(64))
    low = (table[X] <= 0.20) & (table[Y] >= 0.05)
    high = table[X] >= 0.25
    assert (low ^ high).all()
    np.testing.assert_array_equal(low.reshape(8, 8).sum(axis=1), 6)
    assert (table[MASS] >= 0.02).all()
    assert (table[MASS] <= 0.1).all()
    assert np.ptp(table[MASS]) > 0.05


def test_episode_17_is_the_same_alone(tmp_path):
    made = plan(tmp_path)
    np.testing.assert_array_equal(made.draw([17]).values[0], made.draw(range(64)).values[17])


def test_what_a_constraint_refuses_is_drawn_again_in_the_same_box(tmp_path):
    table = plan(tmp_path, f"{X} < 0.19 or {X} > 0.25").draw(range(64))
    assert (table[X] < 0.19).sum() == 48
    assert (table[X] > 0.25).sum() == 16


def test_a_design_spreads_each_box_and_coverage_knows_the_distribution(tmp_path):
    made = plan(tmp_path, design="latin_hypercube")
    axes = {axis.name: axis for axis in plan_axes(made)}
    u = to_unit_cube([axes[X], axes[Y]], made.draw(range(64)))
    assert np.abs(np.sort(u[:, 0]) - (np.arange(64) + 0.5) / 64).max() < 0.1
    places = np.linspace(0.01, 0.99, 37)
    np.testing.assert_allclose(axes[Y].to_unit(axes[Y].to_si(places)), places, atol=1e-9)


@pytest.mark.parametrize(
    ("boxes", "error", "said"),
    [
        ([], InputError, r"boxes: a list of boxes is expected; given \[\]"),
        ([{"episodes": 0, "params": {X: [0.2, 0.2]}}], InputError, r"boxes\[0\] has errors:\s+episodes"),
        ([{"episodes": 1, "params": {X: [0.3, 0.2]}}], InputError, r"boxes\[0\].params.*\[0.3, 0.2\] is empty"),
        ([{"episodes": 1, "params": {"object/cub/mass": [0, 1]}}], UnknownNameError, "object/cube/mass"),
        ([{"episodes": 1, "params": {X: [0.2, 0.9]}}], BoundsError, "0.9"),
        (
            [BOXES[0], {"episodes": 1, "params": {X: [0.2, 0.21]}}],
            InputError,
            "every box names the same parameters, and object/cube/position/y is not in all",
        ),
    ],
)
def test_boxes_that_cannot_be_drawn_are_refused(tmp_path, boxes, error, said):
    with pytest.raises(error, match=said):
        plan(tmp_path, boxes=boxes)


def test_boxes_and_a_grid_of_the_same_parameter_do_not_go_together(tmp_path):
    with pytest.raises(InputError, match="drawn in boxes, so its levels would differ between boxes"):
        plan(tmp_path, design={"kind": "grid", "levels": 3, "names": [X]})


@given(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=6), st.integers(6, 500))
def test_episodes_are_shared_out_whole_and_in_proportion(weights, episodes):
    counts = allocate_episodes(episodes, weights)
    assert sum(counts) == episodes
    assert min(counts) >= 1
    quota = np.array(weights) / sum(weights) * (episodes - len(weights)) + 1
    assert (np.abs(np.array(counts) - quota) < 1).all()


def test_too_few_episodes_for_the_holes_are_refused():
    with pytest.raises(InputError, match="2 episodes are fewer than the 3 holes"):
        allocate_episodes(2, [1.0, 1.0, 1.0])


@given(st.floats(-5, 5), st.floats(1e-6, 3))
def test_a_rounded_range_holds_the_range_and_little_more(low, width):
    first, last = round_range(low, low + width, (-10.0, 10.0))
    assert first <= low + 1e-12
    assert last >= low + width - 1e-12
    assert last - first <= 1.05 * width + 1e-12


def target(weight: float, **box) -> FillTarget:
    return FillTarget(
        kind="clips", name="", box=box, why="", mass=weight, episodes=3, failure=float("nan"), weight=weight
    )


def test_a_box_inside_a_heavier_one_is_not_planned_twice():
    wide, inside, other = target(3.0, a=(0.0, 1.0)), target(2.0, a=(0.2, 0.3), b=(0.0, 1.0)), target(1.0, a=(0.5, 1.5))
    assert select_separate_targets([inside, other, wide, target(9.0)], most=5) == [wide, other]
    assert complete_boxes([wide.box, {"b": (0.1, 0.2)}], {"a": (-1.0, 2.0), "b": (0.0, 4.0)}) == [
        {"a": (0.0, 1.0), "b": (0.0, 4.0)},
        {"a": (-1.0, 2.0), "b": (0.1, 0.2)},
    ]
