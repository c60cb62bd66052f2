"""A push to a pose asks for the target's heading, and counts the object's equal turns."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from twinloop.core.errors import InputError
from twinloop.simulate.protocol import STATE_SPEC, state_columns
from twinloop.tasks import open_task
from twinloop.twin import load_twin

TWIN = """base: panda_tabletop
name: own
remove: [cube, target]
attach: [{{model: "package:twinloop/twin/library/parts/brick.yaml", position: [0.5, 0.0, 0.0]}}]
objects: [brick]
task: {{push: {{object: brick, target: mark, radius: 0.03, behind: 0.04, low: 0.02, begin: 0.03, high: 0.1, {more}}}}}
"""
GOAL = np.array([0.5, 0.1, 0.4])  # m, m, rad
POSE = "heading_tolerance: 0.15, symmetry: 2"


@pytest.fixture
def own(tmp_path):
    """Return a function that opens the task with further settings."""

    def open_own(more):
        (tmp_path / "own.yaml").write_text(TWIN.format(more=more))
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


def ends_well(task, *shift):
    return bool(task.success(episode(task, [0.6, -0.1, 2.0], GOAL + shift))[0, -1])


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
    begin, turned = GOAL + [0.0, -0.23, 1.15], GOAL + [0.0, -0.23, 0.65]
    nearer = GOAL + [0.0, -0.13, 1.15]
    for pose, share in ((turned, 0.25), (nearer, 0.25), (GOAL + [0.0, -0.23, 0.0], 0.5), (GOAL, 1.0)):
        assert task.progress(episode(task, begin, pose))[0, -1] == pytest.approx(share)
    away = task.progress(episode(task, begin, turned, begin))[0]
    assert away[-1] == pytest.approx(0.25)  # the largest one so far


def test_a_policy_observes_the_targets_heading_and_a_failure_reports_both_errors(own):
    task = own(POSE)
    states = episode(task, [0.6, -0.1, 2.0], GOAL + [0.05, 0.0, 0.5])
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
