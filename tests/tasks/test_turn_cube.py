"""Success, progress and failure of turning a cube, on states that are made by hand, and its initial states."""

from __future__ import annotations

from itertools import pairwise

import mujoco
import numpy as np
import pytest

from twinloop.simulate.protocol import STATE_SPEC
from twinloop.tasks.turn_cube import TurnCube
from twinloop.twin import load_twin
from twinloop.twin.quantities.rotation import quat_from_rotation_vector, quat_multiply, rotation_matrix

MODEL = """
<mujoco>
  <worldbody>
    <body name="finger">
      <joint name="finger" axis="1 0 0" range="-1 1" limited="true"/><geom size="0.01" pos="1 0 0"/>
    </body>
    <body name="goal" mocap="true" pos="0.3 0 0.2"/>
    <body name="cube" pos="0 0 0.2"><freejoint/><geom name="cube" type="box" size="0.02 0.02 0.02"/></body>
  </worldbody>
  <actuator><position name="finger" joint="finger" kp="1"/></actuator>
</mujoco>
"""
YAML = """
name: turning
model: model.xml
control_hz: 10
substeps: 10
robot: {{type: finger, joints: [finger], units: [rad]}}
objects: [cube]
params: []
task: {{turn_cube: {{object: cube, goal: goal, hold: 0.3, {}}}}}
"""
EPISODES = list(range(200))


@pytest.fixture
def make(tmp_path):
    def made(settings="turn: [1.0, 2.0]"):
        (tmp_path / "model.xml").write_text(MODEL)
        (tmp_path / "twin.yaml").write_text(YAML.format(settings))
        return TurnCube(load_twin(tmp_path / "twin.yaml"))

    return made


def make_states(task, angles, *, places=None):
    """States ``(1, T, nstate)`` in which the goal is turned by these angles about a fixed axis from the cube."""
    axis, goal = np.array([2.0, -1.0, 2.0]) / 3.0, quat_from_rotation_vector(np.array([[0.3, -0.2, 0.9]]))[0]
    data, states = mujoco.MjData(task.twin.model), []
    for step, angle in enumerate(angles):
        data.qpos[1:4] = [0.0, 0.0, 0.2] if places is None else places[step]
        turned = quat_multiply(quat_from_rotation_vector(-angle * axis[None]), goal[None])[0]
        data.qpos[4:8] = turned if step % 2 else -turned  # both are the same orientation
        data.mocap_quat[0] = goal
        state = np.empty(mujoco.mj_stateSize(task.twin.model, STATE_SPEC))
        mujoco.mj_getState(task.twin.model, data, state, STATE_SPEC)
        states.append(state)
    return np.array(states)[None]


def test_the_angle_is_the_one_that_was_planted(make):
    angles = np.array([0.0, 0.1, 0.39, 1.0, 2.5, 3.1])
    np.testing.assert_allclose(make().angle(make_states(make(), angles))[0], angles, atol=1e-7)


def test_success_needs_the_tolerance_for_some_time_and_a_cube_in_the_hand(make):
    task, angles = make(), [1.0, 0.41, 0.39, 0.3, 0.2, 0.5, 0.1, 0.1, 0.1]
    right = [False, False, False, False, True, False, False, False, True]
    assert task.success(make_states(task, angles))[0].tolist() == right
    fell = np.tile([0.0, 0.0, 0.2], (9, 1))
    fell[1] = [0.0, 0.0, 0.07]  # 130 mm below its place, and back again
    assert not task.success(make_states(task, angles, places=fell)).any()


def test_progress_falls_with_the_angle_and_is_lost_with_the_cube(make):
    task, angles = make(), [3.0, 2.0, 1.0, 0.3, 0.3, 0.3, 0.3]
    progress = task.progress(make_states(task, angles))[0]
    assert all(late > early for early, late in pairwise(progress[:4]))
    assert progress[5:].tolist() == [1.0, 1.0]
    assert (progress[:5] < 1.0).all()
    assert progress[1] - progress[0] == pytest.approx(0.95 / np.pi)  # the change of the angle is what is paid
    places = np.tile([0.0, 0.0, 0.2], (7, 1))
    places[2:] = [0.2, 0.0, 0.2]
    assert (task.progress(make_states(task, angles, places=places))[0, 2:] == 0.0).all()


def test_a_failure_tells_a_dropped_cube_from_one_that_was_not_turned(make):
    task = make()
    places = np.tile([0.0, 0.0, 0.2], (4, 1))
    assert task.failure(make_states(task, [1.0, 1.0, 0.9, 0.8])[0], 10)[0] == "timeout"
    places[2:, 2] = 0.0
    kind, reason = task.failure(make_states(task, [1.0, 1.0, 0.9, 0.8], places=places)[0], 10)
    assert kind == "dropped"
    assert "left the hand at 0.2 s; 0.80 rad are left" in reason
    turned = make_states(task, [1.0, 0.5, 0.3, 0.3, 0.3])[0]
    assert task.failure(turned, 10) is None
    assert task.phases(turned, 10) == [("reach", 0), ("transport", 1), ("place", 4)]


def test_a_policy_sees_the_rotation_that_is_left(make):
    task, angles = make(), [0.0, 1.2]
    states = make_states(task, angles)
    left = task.environment(states)[0, :, -6:]
    np.testing.assert_allclose(left[0], [1, 0, 0, 0, 1, 0], atol=1e-12)
    axis = 1.2 * np.array([2.0, -1.0, 2.0]) / 3.0
    wanted = rotation_matrix(quat_from_rotation_vector(axis[None]))[0, :, :2].T.ravel()
    np.testing.assert_allclose(left[1], wanted, atol=1e-12)
    assert task.environment_names[-6:] == tuple(f"goal.turn.{part}" for part in ("xx", "yx", "zx", "xy", "yy", "zy"))


@pytest.mark.parametrize("upright", [False, True])
def test_goals_are_turned_by_the_range_from_a_cube_with_any_face_on_top(make, upright):
    task = make(f"turn: [1.0, 2.0], upright: {str(upright).lower()}")
    initial = task.reset(task.twin.table(len(EPISODES)), run_seed=3, episodes=EPISODES)
    cube, goal = initial.qpos[:, 4:8], initial.mocap_quat[:, 0]
    turn = quat_multiply(goal, cube * [1.0, -1.0, -1.0, -1.0])
    angle = 2.0 * np.arccos(np.abs(turn[:, 0]))
    assert 1.0 <= angle.min() < 1.05
    assert 1.95 < angle.max() <= 2.0
    np.testing.assert_allclose(np.linalg.norm(goal, axis=1), 1.0)
    assert (np.abs(turn[:, 1:3]).max() < 1e-12) == upright
    faces = rotation_matrix(cube)
    np.testing.assert_allclose(np.abs(faces).max(axis=-1), 1.0)  # the cube fills the same space in every world
    assert len({tuple(np.round(face).ravel()) for face in faces}) == 24
