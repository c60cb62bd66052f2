"""The task to walk with a commanded velocity."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from twinloop.core.errors import MissingDependencyError
from twinloop.simulate.protocol import STATE_SPEC, state_columns
from twinloop.tasks import open_task
from twinloop.twin import load_twin


@pytest.fixture(scope="module")
def task():
    try:
        return open_task("walk", load_twin("go1_ground"))
    except MissingDependencyError as error:
        pytest.skip(str(error))


def moved(task, velocity, turning, *, height=None, up=(1.0, 0.0, 0.0, 0.0)):
    """Six seconds of states of a robot that moves evenly, as commanded (0.8, 0, 0) or not."""
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
