"""A planted map from parameters to clips is recovered; holes that no parameter reaches are reported."""

from __future__ import annotations

import numpy as np
import pytest

from twinloop.curate.coverage import ClipRows
from twinloop.curate.plan import find_hole_response

COUNT = 150
REACH = np.tile([-1.0, 2.0], (20, 1))


def world(params: np.ndarray, seed: int) -> np.ndarray:
    """Two clips of an episode: the first follows parameters 3 and 7, the second parameter 5."""
    chance = np.random.default_rng(seed)
    n = len(params)
    first = np.column_stack([3 * params[:, 3], 2 * params[:, 7] + params[:, 3] ** 2, np.zeros(n), np.zeros(n)])
    second = np.column_stack([np.zeros(n), np.zeros(n), 10 + 3 * params[:, 5], np.full(n, 5.0)])
    rows = np.stack([first, second], axis=1).reshape(2 * n, 4)
    return rows + chance.normal(scale=0.1, size=rows.shape)


def clips(rows: np.ndarray) -> ClipRows:
    n = len(rows) // 2
    return ClipRows(
        rows=rows, episode=np.repeat(np.arange(n), 2), first=np.tile([0, 60], n), success=np.full(n, np.nan)
    )


@pytest.fixture
def drawn() -> np.ndarray:
    return np.random.default_rng(0).uniform(size=(COUNT, 20))


def test_the_parameters_that_lead_there_are_found_with_their_range(drawn):
    inside = drawn[(drawn[:, 3] < 0.7) | (drawn[:, 7] < 0.6)]
    wanted = np.random.default_rng(1).uniform(size=(12, 20))
    wanted[:, 3], wanted[:, 7] = 0.75 + 0.2 * wanted[:, 3], 0.65 + 0.3 * wanted[:, 7]
    found = find_hole_response(
        inside, clips(world(inside, 2)), world(wanted, 3)[::2], reach=REACH, movable=np.ones(20, dtype=bool)
    )
    assert found.answer == "reaches"
    assert set(found.columns) == {3, 7}
    box = dict(zip(found.columns, zip(found.low, found.high, strict=True), strict=True))
    for column in (3, 7):
        low, high = box[column]
        values = wanted[:, column]
        assert ((values > low) & (values < high)).mean() > 0.8
        assert high - low < 0.55
    assert min(found.explained_variance) > 0.9


def test_a_hole_beyond_what_was_drawn_is_reached_outside(drawn):
    wanted = np.random.default_rng(4).uniform(size=(8, 20))
    wanted[:, 5] = 1.4
    hole = world(wanted, 5)[1::2]
    found = find_hole_response(drawn, clips(world(drawn, 6)), hole, reach=REACH, movable=np.ones(20, dtype=bool))
    assert found.columns == (5,)
    assert found.low[0] < 1.4 < found.high[0]
    assert found.low[0] > 1.1


def test_a_hole_that_no_parameter_moves_toward_is_said_to_be_so(drawn):
    hole = np.random.default_rng(7).normal(size=(8, 4)) * 0.1 + [0.5, 0.5, 0.0, 9.0]
    found = find_hole_response(drawn, clips(world(drawn, 8)), hole, reach=REACH, movable=np.ones(20, dtype=bool))
    assert found.answer == "none"
    assert found.columns == ()
    assert "bring clips no nearer" in found.reason


def test_clips_that_tell_of_no_parameter_say_so(drawn):
    rows = np.random.default_rng(9).normal(size=(2 * COUNT, 4))
    found = find_hole_response(drawn, clips(rows), rows[:6] + 3.0, reach=REACH, movable=np.ones(20, dtype=bool))
    assert found.answer == "none"
    assert "none of 20 drawn parameters can be predicted from a clip" in found.reason


def test_what_may_not_be_moved_is_left_alone(drawn):
    none = find_hole_response(
        drawn, clips(world(drawn, 8)), np.zeros((3, 4)), reach=REACH, movable=np.zeros(20, dtype=bool)
    )
    assert none.answer == "none"
    assert "no parameter that may be changed was drawn" in none.reason
    few = find_hole_response(
        drawn[:10], clips(world(drawn[:10], 8)), np.zeros((3, 4)), reach=REACH, movable=np.ones(20, dtype=bool)
    )
    assert "10 simulated episodes are too few" in few.reason


@pytest.mark.slow
@pytest.mark.parametrize(("episodes", "most"), [(64, 0.03), (192, 0.005)])
def test_an_innocent_parameter_is_told_as_rarely_as_the_page_says(episodes, most):
    """Clips and 149 independent parameters, with a seed that was not used to choose the threshold."""
    chance = np.random.default_rng(7)
    told, trials = 0, 400
    for _ in range(trials):
        rows = chance.normal(size=(2 * episodes, 14))
        params, movable = chance.uniform(size=(episodes, 149)), np.ones(149, dtype=bool)
        found = find_hole_response(params, clips(rows), rows[:6], reach=np.tile([-1.0, 2.0], (149, 1)), movable=movable)
        told += "can be predicted from a clip" not in found.reason
    assert told <= trials * most + 3 * np.sqrt(trials * most)
