"""Raised and tilted tables: objects rest on them, success counts from them, the expert reaches them."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from twinloop.randomize import Plan, default_draws
from twinloop.rollout import run_batch
from twinloop.simulate import open_backend, rollout
from twinloop.simulate.protocol import STATE_SPEC, state_columns
from twinloop.stats import wilson
from twinloop.tasks import open_task
from twinloop.tasks.ground import GroundPlane
from twinloop.tasks.predicates import above_plane
from twinloop.twin import load_twin

_BIT = mujoco.mjtState
SIZE = "object/cube/size"
PARTS = (_BIT.mjSTATE_QPOS, _BIT.mjSTATE_MOCAP_POS, _BIT.mjSTATE_MOCAP_QUAT)
HEIGHT, TILT_X, TILT_Y = "geom/table/position/z", "geom/table/rotation/x", "geom/table/rotation/y"


@pytest.fixture(scope="module")
def task():
    return open_task("pick_and_place", load_twin("so101_tabletop"))


def drawn(twin, nworld, **values):
    """Worlds of the default randomization with some values replaced."""
    table = Plan(twin=twin, run_seed=3, draws=tuple(default_draws(twin))).draw(range(nworld))
    named = {name: table[name] for name in table.names}
    return twin.table(nworld, named | values).with_seeds(table.seeds)


def test_a_surface_is_where_the_table_was_moved_and_turned_to(task):
    params = task.twin.table(3, {HEIGHT: [0.0, 0.02, 0.0], TILT_X: [0.0, 0.0, 0.1], TILT_Y: [0.0, 0.0, 0.0]})
    surface = GroundPlane.of(task.twin, params, "table")
    np.testing.assert_array_equal(surface.normal[:2], [[0, 0, 1], [0, 0, 1]])
    np.testing.assert_allclose(surface.normal[2], [0.0, -np.sin(0.1), np.cos(0.1)], atol=1e-15)
    np.testing.assert_allclose(surface.height(np.zeros((3, 2)))[:2], [0.0, 0.02], atol=1e-15)
    # The plate turns about its own centre, 20 mm below its top.
    top = -0.02 + 0.02 / np.cos(0.1) + 0.15 * np.tan(0.1)
    assert surface.height(np.array([[0.2, 0.15]] * 3))[2] == pytest.approx(top)


def test_object_and_target_stand_on_the_table_of_their_world_and_stay(task):
    tilts = {HEIGHT: [0.0, 0.02, -0.02, 0.01], TILT_X: [0.0, 0.0, 0.05, -0.04], TILT_Y: [0.0, 0.0, 0.05, 0.06]}
    params = task.twin.table(4, {**tilts, "object/cube/yaw": 0.4, "object/cube/size": [1.0, 1.0, 1.0, 1.3]})
    start = task.reset(params, run_seed=0, episodes=range(4))
    surface, row = GroundPlane.of(task.twin, params, "table"), task.object.qpos
    for points, height in (
        (start.qpos[:, row : row + 3], 0.014 * np.array([1, 1, 1, 1.3])),
        (start.mocap_pos[:, 0], 0),
    ):
        np.testing.assert_allclose(((points - surface.point) * surface.normal).sum(axis=1), height, atol=1e-12)
    commands = np.repeat(start.command[:, None], 15, axis=1)
    run = rollout(open_backend(), task.twin, params, start, commands, 15)
    assert np.abs(run.qpos[:, -1, row : row + 3] - start.qpos[:, row : row + 3]).max() < 2e-4
    np.testing.assert_array_equal(start.qpos[0, row : row + 3], task.home[0][row : row + 3])


def test_an_untilted_world_begins_as_it_does_without_tilted_company(task):
    both = task.twin.table(2, {TILT_X: [0.0, 0.05], HEIGHT: [0.0, 0.01]})
    together = task.reset(both, run_seed=0, episodes=[4, 5])
    alone = task.reset(task.twin.table(1), run_seed=0, episodes=[4])
    np.testing.assert_array_equal(together.qpos[0], alone.qpos[0])
    np.testing.assert_array_equal(together.mocap_quat[0], alone.mocap_quat[0])


def test_heights_count_along_the_tables_normal(task):
    angle = 0.2
    quaternion = np.array([np.cos(angle / 2), np.sin(angle / 2), 0.0, 0.0])
    normal = np.array([0.0, -np.sin(angle), np.cos(angle)])
    along = np.array([0.0, np.cos(angle), np.sin(angle)])
    point = np.array([0.2, 0.1, 0.03])
    position = point + 0.15 * along + 0.014 * normal
    assert above_plane(position, point, quaternion) == pytest.approx(0.014)


def test_a_cube_put_down_further_up_a_slope_is_placed(task):
    """Its centre is 2 cm higher than at the start, which on a level table would not be a success."""
    model, nstep, angle = task.twin.model, 30, 0.2
    turn = np.array([np.cos(angle / 2), 0.0, -np.sin(angle / 2), 0.0])
    normal, along = np.array([-np.sin(angle), 0, np.cos(angle)]), np.array([np.cos(angle), 0, np.sin(angle)])
    target, row = np.array([0.25, 0.0, 0.0]), task.object.qpos
    states = np.zeros((2, nstep + 1, mujoco.mj_stateSize(model, STATE_SPEC)))
    qpos, mocap, quat = (state_columns(model, int(kind)) for kind in PARTS)
    states[..., qpos] = task.home[0]
    states[..., qpos[task.hand.joint_qpos]] = task.hand.open
    states[..., mocap[:3]], states[0][:, quat[:4]], states[1][:, quat[:4]] = target, turn, [1.0, 0.0, 0.0, 0.0]
    resting = target + 0.014 * normal
    path = np.repeat([resting - 0.1 * along], nstep + 1, axis=0)
    path[1:10] += 0.05 * normal
    path[10:] = resting
    states[..., qpos[row : row + 3]] = path
    assert task.success(states)[:, -1].tolist() == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [{HEIGHT: -0.02}, {HEIGHT: 0.02}, {TILT_X: 0.06}, {TILT_Y: -0.06}, {SIZE: 0.75}, {SIZE: 1.3}],
    ids=str,
)
def test_the_expert_succeeds_within_reach(task, change):
    params = drawn(task.twin, 48, **change)
    result = run_batch(task.twin, task, params, run_seed=3, episodes=range(48))
    assert wilson(int(result.success.sum()), 48).low > 0.8
