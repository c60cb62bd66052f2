"""The task to drive to a dock, and the routes of its expert."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.simulate.protocol import STATE_SPEC, state_columns
from twinloop.tasks import open_task
from twinloop.tasks.dock import distance_from_box
from twinloop.tasks.docking import Routes
from twinloop.twin import load_twin

ROOM = (3.0, 2.0)


@pytest.fixture(scope="module")
def task():
    return open_task("dock", load_twin("waffle_warehouse"))


def standing(task, place, turn=0.0, speed=0.0):
    """An episode of states of a robot that stays at a pose; the dock is at (2.3, 0, 0)."""
    twin, model = task.twin, task.twin.model
    states = np.zeros((1, task.nstep + 1, mujoco.mj_stateSize(model, int(STATE_SPEC))))
    kinds = mujoco.mjtState
    qpos, qvel, places, turns = (
        state_columns(model, int(kind))
        for kind in (kinds.mjSTATE_QPOS, kinds.mjSTATE_QVEL, kinds.mjSTATE_MOCAP_POS, kinds.mjSTATE_MOCAP_QUAT)
    )
    states[..., qpos] = twin.home()[0]
    states[..., qpos[:2]] = place
    states[..., qpos[3:7]] = np.cos(turn / 2), 0.0, 0.0, np.sin(turn / 2)
    states[..., qvel[0]] = speed
    states[..., places] = model.key_mpos[0]
    states[..., turns] = np.tile([1.0, 0.0, 0.0, 0.0], 4)
    return states


@pytest.mark.parametrize(
    ("place", "turn", "speed", "succeeds"),
    [
        ((2.3, 0.0), 0.0, 0.0, True),
        ((2.3, 0.029), 0.0, 0.0, True),
        ((2.331, 0.0), 0.0, 0.0, False),
        ((2.3, 0.0), -0.09, 0.0, True),
        ((2.3, 0.0), 0.11, 0.0, False),
        ((2.3, 0.0), 0.0, 0.03, False),
    ],
)
def test_success_is_a_rest_of_half_a_second_at_the_dock(task, place, turn, speed, succeeds):
    success = task.success(standing(task, place, turn, speed))[0]
    assert success.any() == succeeds
    if succeeds:
        assert np.argmax(success) == round(0.5 * task.twin.control_hz) - 1


def test_a_robot_that_touched_a_shelf_or_a_wall_does_not_succeed(task):
    """The outline is a circle of 0.21 m around a point 0.064 m behind the base; shelf 3 ends at x = 0.5 and y = 0.4."""
    hz = task.twin.control_hz
    for place, touches in (
        ((0.36, 0.0), True), ((0.35, 0.0), False), ((0.7, 0.605), True), ((0.764, 0.615), False),
        ((-2.72, 0.0), False), ((-2.73, 0.0), True), ((0.0, 1.785), False), ((0.0, 1.795), True),
    ):  # fmt: skip
        states = standing(task, (2.3, 0.0))
        states[:, 4] = standing(task, place)[:, 4]
        assert task.success(states)[0, -1] != touches, place
        if touches:
            assert task.failure(states[0], hz) == ("touched", "touched a shelf or a wall after 0.20 s")
            assert task.progress(states)[0, 5:].max() < 1.0


@given(
    x=st.floats(-3, 3),
    y=st.floats(-3, 3),
    turn=st.floats(-4, 4),
    wide=st.floats(0.1, 1.0),
    deep=st.floats(0.1, 1.0),
)
@settings(max_examples=100, deadline=None)
def test_distances_from_a_box_are_those_of_its_nearest_point(x, y, turn, wide, deep):
    pose, half = np.array([0.3, -0.2, turn]), np.array([wide, deep])
    edge = np.linspace(-1.0, 1.0, 401)
    grid = np.stack(np.meshgrid(edge * wide, edge * deep), axis=-1).reshape(-1, 2)
    cos, sin = np.cos(turn), np.sin(turn)
    there = grid @ np.array([[cos, sin], [-sin, cos]]) + pose[:2]
    nearest = np.linalg.norm(there - [x, y], axis=1).min()
    assert distance_from_box(np.array([x, y]), pose, half) == pytest.approx(nearest, abs=0.01)


def follow(routes, place):
    for _ in range(60):
        place = routes.find_points_ahead(place[None])[0]
        yield place


def test_a_route_leads_around_a_wall_to_its_goal():
    """A wall from the middle of the room to its south side."""

    def blocked(world, points):
        return (np.abs(points[:, 0]) < 0.2) & (points[:, 1] < 0.5)

    routes = Routes(np.array([[2.0, -1.0]]), blocked, ROOM)
    way = np.array(list(follow(routes, np.array([-2.0, -1.0]))))
    np.testing.assert_allclose(way[-1], [2.0, -1.0], atol=0.026)
    assert not blocked(0, way).any()
    assert way[:, 1].max() > 0.45


def test_a_route_begins_beside_what_blocks_it():
    routes = Routes(np.array([[2.0, 0.0]]), lambda world, points: np.abs(points[:, 0]) < 0.5, ROOM)
    assert abs(next(follow(routes, np.array([0.3, 0.0])))[0]) >= 0.5


def test_a_shelf_that_is_no_box_or_missing_is_named(tmp_path):
    for change, error, message in (
        ("shelves: [shelf_1, dock]", InputError, "the shelf dock must be one box"),
        ("shelves: [shelf_9]", UnknownNameError, "shelf_9"),
    ):
        section = f"base: base, dock: dock, {change}, room: [3.0, 2.0], centre: 0.0, radius: 0.2"
        path = tmp_path / "own.yaml"
        path.write_text(
            "base: waffle_warehouse\nname: own\ndescription: another\n"
            f"task: {{dock: {{{section}, wheels: [wheel_left, wheel_right]}}}}\n"
        )
        with pytest.raises(error, match=message):
            open_task("dock", load_twin(path))
