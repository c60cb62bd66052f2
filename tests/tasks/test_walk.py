"""The task to walk with a commanded velocity, and the legs and forces of its expert."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from twinloop.checks.task import draw_worlds
from twinloop.core.errors import InputError, MissingDependencyError
from twinloop.core.seeds import generator
from twinloop.simulate import open_backend, rollout
from twinloop.simulate.protocol import STATE_SPEC, state_columns
from twinloop.tasks import open_task
from twinloop.tasks.trot import Legs
from twinloop.twin import load_twin

FEET = ("FR", "FL", "RR", "RL")


@pytest.fixture(scope="module")
def task():
    try:
        return open_task("walk", load_twin("go1_ground"))
    except MissingDependencyError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def legs(task):
    return Legs.of(task.twin, "trunk", FEET)


def draw_joints(twin, legs, count, seed):
    low, high = (twin.joint_ranges[legs.actuator, end] for end in (0, 1))
    return low + (high - low) * generator(seed, "joints").uniform(size=(count, 4, 3))


def test_feet_are_where_the_model_has_them(task, legs):
    model, joints = task.twin.model, draw_joints(task.twin, legs, 20, 1)
    data = mujoco.MjData(model)
    for place, feet in zip(joints, legs.find_feet(joints), strict=True):
        data.qpos[:] = task.twin.home()[0]
        data.qpos[legs.qpos] = place
        mujoco.mj_kinematics(model, data)
        seen = np.array([data.site(foot).xpos for foot in FEET]) - data.body("trunk").xpos
        np.testing.assert_allclose(feet, seen, atol=1e-12)


def test_jacobians_are_the_derivatives_of_the_feet(task, legs):
    joints, step = draw_joints(task.twin, legs, 20, 2), 1e-6
    for axis in range(3):
        moved = step * np.eye(3)[axis]
        slope = (legs.find_feet(joints + moved) - legs.find_feet(joints - moved)) / (2 * step)
        np.testing.assert_allclose(legs.jacobian(joints)[..., axis], slope, atol=1e-8)


@settings(max_examples=50, deadline=None)
@given(
    abduction=st.floats(-0.8, 0.8),
    thigh=st.floats(-0.6, 2.0),
    knee=st.floats(-2.7, -0.9),
)
def test_solved_legs_reach_their_feet(legs, abduction, thigh, knee):
    joints = np.tile([abduction, thigh, knee], (1, 4, 1))
    feet = legs.find_feet(joints)
    below = legs.upper * np.cos(thigh) + legs.lower * np.cos(thigh + knee)
    assume(below > 1e-3)  # a foot above its hip has another solution
    np.testing.assert_allclose(legs.find_feet(legs.solve(feet)), feet, atol=1e-9)


def test_a_twin_with_other_legs_is_named(task):
    with pytest.raises(InputError, match=r"cannot move go1_ground: each of its 4 feet .*twinloop reinforce"):
        Legs.of(task.twin, "FR_hip", FEET)


def moved(task, velocity, turning, *, height=None, up=(1.0, 0.0, 0.0, 0.0)):
    """An episode of states of a robot that moves evenly, as commanded (0.8, 0, 0) or not."""
    twin, model = task.twin, task.twin.model
    states = np.zeros((1, task.nstep + 1, mujoco.mj_stateSize(model, int(STATE_SPEC))))
    kinds = mujoco.mjtState
    qpos, qvel, place, turn = (
        state_columns(model, int(kind))
        for kind in (kinds.mjSTATE_QPOS, kinds.mjSTATE_QVEL, kinds.mjSTATE_MOCAP_POS, kinds.mjSTATE_MOCAP_QUAT)
    )
    states[..., qpos] = twin.home()[0]
    states[..., qpos[3:7]] = up
    if height is not None:
        states[..., qpos[2]] = height
    states[..., qvel[:2]], states[..., qvel[5]] = velocity, turning
    states[..., place], states[..., turn] = [0.8, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]
    return states


@pytest.mark.parametrize(
    ("velocity", "turning", "succeeds"),
    [
        ((0.8, 0.0), 0.0, True),
        ((0.61, 0.0), 0.0, True),
        ((0.59, 0.0), 0.0, False),
        ((0.8, 0.19), 0.0, True),
        ((0.8, -0.21), 0.0, False),
        ((0.8, 0.0), 0.29, True),
        ((0.8, 0.0), -0.31, False),
        ((0.0, 0.0), 0.0, False),
    ],
)
def test_success_is_the_commanded_velocity_for_two_seconds_after_the_first(task, velocity, turning, succeeds):
    states, hz = moved(task, velocity, turning), task.twin.control_hz
    success = task.success(states)[0]
    assert success.any() == succeeds
    if succeeds:
        assert np.argmax(success) == round(3 * hz) - 1  # a mean of one second, and 100 states of them
        assert task.failure(states[0], hz) is None
    else:
        assert task.failure(states[0], hz)[0] == "off_speed"
        assert task.progress(states).max() == 0.0


def test_a_robot_that_fell_once_does_not_succeed(task):
    states = moved(task, (0.8, 0.0), 0.0)
    low = moved(task, (0.8, 0.0), 0.0, height=0.1)
    tilted = moved(task, (0.8, 0.0), 0.0, up=(np.cos(0.6), np.sin(0.6), 0.0, 0.0))
    for fallen in (low, tilted):
        once = states.copy()
        once[:, 60] = fallen[:, 60]
        assert not task.success(once).any()
        assert task.failure(once[0], task.twin.control_hz) == ("fell", "fell after 1.20 s")


def test_velocities_are_those_of_the_trunk_whatever_its_heading(task):
    """A quarter turn to the left, forwards along the world's y."""
    states = moved(task, (0.0, 0.8), 0.0, up=(np.sqrt(0.5), 0.0, 0.0, np.sqrt(0.5)))
    assert task.success(states)[0, -1]
    seen = dict(zip(task.environment_names, task.environment(states)[0, 5], strict=True))
    assert seen["velocity.forward"] == pytest.approx(0.8)
    assert seen["velocity.left"] == pytest.approx(0.0, abs=1e-12)
    assert [seen[f"up.{axis}"] for axis in "xyz"] == pytest.approx([0.0, 0.0, 1.0])


def test_the_expert_walks_up_and_down_slopes(task):
    twin = task.twin
    tilt = {"world/gravity/tilt_x": [0.08, -0.08, 0.0, 0.0], "world/gravity/tilt_y": [0.0, 0.0, 0.08, -0.08]}
    command = {"object/command/position/x": [0.7] * 4, "object/command/position/y": [0.0] * 4}
    params = twin.table(4, {**tilt, **command})
    initial = task.reset(params, run_seed=1, episodes=range(4))
    result = rollout(open_backend("threads"), twin, params, initial, task.expert(initial), task.nstep)
    assert task.success(result.states)[:, -1].all()


def test_the_expert_of_a_world_depends_on_its_state_alone(task):
    """Begun anew half way, it goes on with the same commands."""
    twin = task.twin
    params = draw_worlds(twin, "nominal", range(2), 3)
    initial = task.reset(params, run_seed=3, episodes=range(2))
    seen = []

    def watch(simulation):
        if simulation.step_index == 120:
            seen.append((task.expert(initial)(simulation), expert(simulation)))
        return expert(simulation)

    expert = task.expert(initial)
    rollout(open_backend("threads"), twin, params, initial, watch, 130)
    np.testing.assert_array_equal(*seen[0])
