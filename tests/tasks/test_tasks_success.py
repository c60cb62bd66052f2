"""Success as defined: in the zone, low, at rest, released, and lifted before; computed from states alone."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from twinloop.simulate.protocol import STATE_SPEC, state_columns
from twinloop.tasks import open_task
from twinloop.tasks.predicates import held_for, in_disc, occurred_before, slower_than
from twinloop.tasks.reaching import GraspFrame, joint_step, tool_error
from twinloop.twin import load_twin

NSTEP = 30


@pytest.fixture(scope="module", params=["so101_tabletop", "panda_tabletop"])
def task(request):
    return open_task("pick_and_place", load_twin(request.param))


class Story:
    """States of one world: the object at rest, lifted, then resting on the target with the hand open at home."""

    def __init__(self, task):
        self.task, model = task, task.twin.model
        self.states = np.zeros((1, NSTEP + 1, mujoco.mj_stateSize(model, STATE_SPEC)))
        self._qpos = state_columns(model, mujoco.mjtState.mjSTATE_QPOS)
        self._qvel = state_columns(model, mujoco.mjtState.mjSTATE_QVEL)
        self._mocap = state_columns(model, mujoco.mjtState.mjSTATE_MOCAP_POS)
        self.set_qpos(slice(None), task.home[0])
        self.target = np.array([np.mean(task.config.target_x), np.mean(task.config.target_y), 0.0])
        self.states[..., self._mocap[:3]] = self.target
        self.place(slice(None), self.target[:2])
        self.place(slice(0, 1), self.target[:2] + 0.05)
        self.place(slice(1, 10), self.target[:2] + 0.05, height=0.06)
        finger = task.hand.joint_qpos
        self.states[..., self._qpos[finger]] = task.hand.open

    def set_qpos(self, when, qpos):
        self.states[:, when, self._qpos] = qpos

    def place(self, when, xy, height=0.0):
        at = self.task.object.qpos
        self.states[:, when, self._qpos[at : at + 3]] = [*xy, self.task.object.rest_height + height]

    def move(self, when, velocity):
        at = self.task.object.qvel
        self.states[:, when, self._qvel[at : at + 6]] = velocity

    def arm(self, when, q):
        self.states[:, when, self._qpos[self.task.chain.qpos]] = q

    def finger(self, when, value):
        self.states[:, when, self._qpos[self.task.hand.joint_qpos]] = value

    @property
    def outcome(self):
        return self.task.success(self.states)[0]


def rest_steps(task):
    return round(task.config.rest_time * task.twin.control_hz)


def test_placed_and_let_go_is_success_once_it_has_rested(task):
    outcome = Story(task).outcome
    assert outcome[-1]
    assert not outcome[:10].any()
    story = Story(task)
    story.move(slice(0, 20), [0.1, 0, 0, 0, 0, 0])
    assert np.flatnonzero(story.outcome)[0] == 20 + rest_steps(task) - 1


def test_the_zone_is_the_disc(task):
    radius = task.config.target_radius
    for factor, expected in ((0.99, True), (1.01, False)):
        story = Story(task)
        story.place(slice(10, None), story.target[:2] + factor * radius * np.array([0.6, -0.8]))
        assert story.outcome[-1] == expected


@pytest.mark.parametrize("velocity", [[0.02, 0, 0, 0, 0, 0], [0, 0, 0.02, 0, 0, 0], [0, 0, 0, 0, 0, 0.3]])
def test_moving_or_spinning_is_no_success(task, velocity):
    story = Story(task)
    story.move(-1, velocity)
    assert not story.outcome[-1]
    assert story.outcome[-2]


def test_above_or_below_the_table_is_no_success(task):
    for height in (0.02, -0.02):
        story = Story(task)
        story.place(slice(10, None), story.target[:2], height=height)
        assert not story.outcome[-1]


def test_an_object_that_was_never_lifted_is_no_success(task):
    story = Story(task)
    story.place(slice(None), story.target[:2])
    assert not story.outcome.any()
    story.place(slice(1, 5), story.target[:2], height=0.5 * task.config.lifted)
    assert not story.outcome.any()


def test_a_hand_around_the_object_or_closed_is_no_success(task):
    story = Story(task)
    home = task.home[0]
    frame = GraspFrame(task.chain, task.hand, home, tilt=0.0, heights=(0.0, 1.0))
    q = home[None, task.chain.qpos]
    goal = np.array([[*story.target[:2], task.config.grasp_height]])
    for _ in range(100):
        pose = task.chain.pose(q)
        error = tool_error(pose, goal, frame.tool_axes(goal, np.zeros(1)))
        q = q + np.clip(joint_step(task.chain.jacobian(pose), error, 0.0 * q), -0.1, 0.1)
    story.arm(slice(10, None), q[0])
    assert not story.outcome.any()
    story = Story(task)
    story.finger(slice(None), task.hand.closed)
    assert not story.outcome.any()


def test_states_that_are_not_finite_are_no_success_and_raise_nothing(task):
    story = Story(task)
    story.states[0, -3:] = np.nan
    story.states[0, -1] = np.inf
    assert not story.outcome[-3:].any()
    assert story.outcome[-4]


@settings(max_examples=25)
@given(st.data())
def test_judged_state_by_state_is_the_same_as_judged_afterwards(task, data):
    nworld = 3
    draw = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    stories = [Story(task) for _ in range(nworld)]
    for story in stories:
        lowered, stopped, opened = draw.integers(0, NSTEP, size=3)
        story.place(slice(1, lowered), story.target[:2] + 0.05 * draw.uniform(size=2), height=draw.choice([0.01, 0.06]))
        story.move(slice(0, stopped), [0.1, 0, 0, 0, 0, 0])
        story.finger(slice(0, opened), task.hand.closed)
        if draw.uniform() < 0.3:
            story.states[0, draw.integers(0, NSTEP), 0] = np.nan
    states = np.concatenate([story.states for story in stories])
    offline, watch, worlds = task.success(states), task.make_success_evaluation(nworld), np.arange(nworld)
    online = [watch.evaluate_states(task.scene_features(states[:, t]), worlds, begin=t == 0) for t in range(NSTEP + 1)]
    np.testing.assert_array_equal(np.stack(online, axis=1), offline)
    again = [
        watch.evaluate_states(task.scene_features(states[1:2, t]), worlds[1:2], begin=t == 0) for t in range(NSTEP + 1)
    ]
    np.testing.assert_array_equal(np.stack(again, axis=1), offline[1:2])


@given(arrays(bool, st.tuples(st.integers(1, 3), st.integers(1, 12))), st.integers(1, 12))
def test_held_for_and_ever_are_what_a_loop_says(condition, count):
    held, once = held_for(condition, count), occurred_before(condition)
    for world, row in enumerate(condition):
        for t in range(len(row)):
            assert held[world, t] == (t + 1 >= count and row[t + 1 - count : t + 1].all())
            assert once[world, t] == row[: t + 1].any()


def test_discs_are_horizontal_and_speeds_are_norms():
    assert in_disc(np.array([0.3, 0.4, 9.0]), np.zeros(3), 0.5)
    assert not in_disc(np.array([0.3, 0.4001, 0.0]), np.zeros(3), 0.5)
    slow = slower_than(np.array([[0.3, 0.4, 0.0, 0, 0, 0], [0.3, 0.39, 0.0, 0, 0.6, 0.8]]), 0.5, 1.01)
    np.testing.assert_array_equal(slow, [False, True])
