"""A push to a pose requires the target's heading, and counts the object's equal turns."""

from __future__ import annotations

from dataclasses import replace

import mujoco
import numpy as np
import pytest

from twinloop.core.errors import InputError
from twinloop.simulate import open_backend, rollout
from twinloop.simulate.protocol import STATE_SPEC, state_columns
from twinloop.tasks import open_task
from twinloop.tasks.planar_pushing import LENGTHS, Pushes, push_arcs
from twinloop.twin import load_twin

TWIN = """base: panda_tabletop
name: own
remove: [cube, target]
attach: [{{model: "package:twinloop/twin/library/parts/brick.yaml", position: [0.5, 0.0, 0.0]}}]
objects: [brick]
task: {{push: {{object: brick, target: mark, {heights}, {more}}}}}
"""
GOAL = np.array([0.5, 0.1, 0.4])  # m, m, rad
HEIGHTS = "radius: 0.03, behind: 0.04, low: 0.016, begin: 0.028, high: 0.1"
POSE = "heading_tolerance: 0.15, symmetry: 2"


@pytest.fixture
def own(tmp_path):
    """Return a function that opens the task with further settings."""

    def open_own(more):
        (tmp_path / "own.yaml").write_text(TWIN.format(heights=HEIGHTS, more=more))
        return open_task("push", load_twin(tmp_path / "own.yaml"))

    return open_own


def half_turn(yaw):
    return [np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2)]


def episode(task, *poses):
    """Return states of one episode whose brick rests at each of the poses x, y, yaw for 0.5 s."""
    model, time = task.twin.model, round(0.5 * task.twin.control_hz)
    kinds = (mujoco.mjtState.mjSTATE_QPOS, mujoco.mjtState.mjSTATE_MOCAP_POS, mujoco.mjtState.mjSTATE_MOCAP_QUAT)
    qpos, place, turn = (state_columns(model, int(kind)) for kind in kinds)
    states = np.zeros((1, time * len(poses), mujoco.mj_stateSize(model, STATE_SPEC)))
    states[..., qpos], states[..., place], states[..., turn] = task.twin.home()[0], [*GOAL[:2], 0.0], half_turn(GOAL[2])
    row = task.objects["brick"].qpos
    for number, (x, y, yaw) in enumerate(poses):
        states[:, time * number : time * (number + 1), qpos[row : row + 7]] = [x, y, 0.02, *half_turn(yaw)]
    return states


def away_from_goal(*shift):
    return GOAL + np.array(shift)


def ends_well(task, *shift):
    return bool(task.success(episode(task, [0.6, -0.1, 2.0], away_from_goal(*shift)))[0, -1])


def test_place_and_heading_must_both_be_right_up_to_equal_turns(own):
    task = own(POSE)
    assert ends_well(task, 0.0, 0.0, 0.0)
    assert ends_well(task, 0.02, -0.02, 0.149)
    assert ends_well(task, 0.0, 0.0, np.pi - 0.149)
    assert not ends_well(task, 0.0, 0.0, 0.151)
    assert not ends_well(task, 0.0, 0.0, np.pi / 2)
    assert not ends_well(task, 0.022, 0.022, 0.0)
    assert not ends_well(own("heading_tolerance: 0.15"), 0.0, 0.0, np.pi)
    assert ends_well(own("heading_tolerance: 0.15, symmetry: 4"), 0.0, 0.0, -np.pi / 2)
    assert ends_well(own("duration: 9.0"), 0.0, 0.0, 1.0)  # any heading


def test_progress_counts_way_and_turn_half_each(own):
    task = own(POSE)
    begin = away_from_goal(0.0, -0.23, 1.15)
    turned, nearer, aligned = (away_from_goal(0.0, *more) for more in ((-0.23, 0.65), (-0.13, 1.15), (-0.23, 0.0)))
    for pose, share in ((turned, 0.25), (nearer, 0.25), (aligned, 0.5), (GOAL, 1.0)):
        assert task.progress(episode(task, begin, pose))[0, -1] == pytest.approx(share)
    away = task.progress(episode(task, begin, turned, begin))[0]
    assert away[-1] == pytest.approx(0.25)  # the largest one so far


def test_a_policy_observes_the_targets_heading_and_a_failure_reports_both_errors(own):
    task = own(POSE)
    states = episode(task, [0.6, -0.1, 2.0], away_from_goal(0.05, 0.0, 0.5))
    names = list(task.environment_names)
    seen = task.environment(states)[0, -1, [names.index(f"mark.heading.{part}") for part in ("cos", "sin")]]
    np.testing.assert_allclose(seen, [np.cos(0.4), np.sin(0.4)])
    kind, reason = task.failure(states[0], task.twin.control_hz)
    assert kind == "placed_off_target"
    assert "50 mm" in reason
    assert "29 degrees; 9 degrees are enough" in reason
    assert "mark.heading.cos" not in own("duration: 9.0").environment_names


def test_parameters_turn_the_target(own):
    task = own(POSE)
    params = task.twin.table(2)
    values = params.values.copy()
    values[1, params.names.index("object/mark/yaw")] = 0.3
    initial = task.reset(type(params)(names=params.names, values=values), run_seed=0, episodes=[0, 1])
    np.testing.assert_allclose(initial.mocap_quat[:, 0], [half_turn(0.0), half_turn(0.3)])


def test_impossible_settings_are_refused(own):
    for more in ("heading_tolerance: 0.0", "heading_tolerance: 0.1, symmetry: 0"):
        with pytest.raises(InputError, match="Give a tolerance above 0 rad"):
            own(more)


def test_the_contact_moves_as_pushed_and_arcs_continue_themselves():
    """The truth of the model: the contact sticks, the force at it has the torque of the limit surface, arcs add up."""
    angle = np.linspace(0.0, 6.0, 20)
    point, way = (
        np.random.default_rng(0).uniform(-0.05, 0.05, (20, 2)),
        np.stack([np.cos(angle), np.sin(angle)], axis=1),
    )
    arcs, radius = push_arcs(point, way, 0.045), 0.045
    straight = push_arcs(point * [1, 0], np.tile([1.0, 0.0], (20, 1)), radius)
    np.testing.assert_allclose(straight[..., 0], np.tile(LENGTHS, (20, 1)))  # through the centre: no turn
    np.testing.assert_allclose(straight[..., 1:], 0.0, atol=1e-12)
    (px, py), turn = point.T, arcs[:, 0, 2] / LENGTHS[0]
    half = 0.5 * turn * LENGTHS[0]  # the first direction of an arc: its chord, turned back by half of its angle
    speed = np.stack([part / np.sinc(half / np.pi) for part in rotate(arcs[:, 0, :2], -half).T / LENGTHS[0]], axis=1)
    np.testing.assert_allclose(speed[:, 0] - turn * py, way[:, 0], atol=1e-9)
    np.testing.assert_allclose(speed[:, 1] + turn * px, way[:, 1], atol=1e-9)
    np.testing.assert_allclose(turn * radius**2, px * speed[:, 1] - py * speed[:, 0], atol=1e-9)
    once, twice = arcs[:, 1], arcs[:, 2]  # 10 and 20 mm
    np.testing.assert_allclose(twice[:, 2], 2 * once[:, 2])
    np.testing.assert_allclose(twice[:, :2], once[:, :2] + rotate(once[:, :2], once[:, 2]), atol=1e-12)


def rotate(vector, angle):
    (x, y), cosine, sine = vector.T, np.cos(angle), np.sin(angle)
    return np.stack([cosine * x - sine * y, sine * x + cosine * y], axis=1)


def test_only_a_box_is_turned(own):
    twin = own(POSE).twin
    np.testing.assert_allclose(Pushes.of(twin, "brick").half, [0.04, 0.02])
    with pytest.raises(InputError, match="hand .* is not one box.*heading_tolerance"):
        Pushes.of(twin, "hand")


def test_the_expert_turns_a_brick_that_is_already_at_its_place(own):
    """With the position right and the heading wrong by a right angle, a push to a position would do nothing."""
    task = own(POSE + ", duration: 14.0")
    params, row = task.twin.table(4), task.objects["brick"].qpos
    initial = task.reset(params, run_seed=5, episodes=range(4))
    qpos = initial.qpos.copy()
    qpos[:, row : row + 2] = initial.mocap_pos[:, 0, :2]
    qpos[:, row + 3 : row + 7] = [half_turn(yaw) for yaw in (1.0, 1.4, 1.9, -1.2)]
    initial = replace(initial, qpos=qpos)
    states = rollout(open_backend("threads"), task.twin, params, initial, task.expert(initial), task.nstep).states
    assert not task.success(states)[:, 0].any()
    assert task.success(states)[:, -1].mean() >= 0.75
