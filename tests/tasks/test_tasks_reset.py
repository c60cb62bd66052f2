"""Initial conditions: objects at the drawn places, the arm at rest, each episode independent."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.randomize import Plan, default_draws
from twinloop.simulate import open_backend, rollout
from twinloop.tasks import open_task
from twinloop.tasks.pick_and_place import PickAndPlace, PickAndPlaceConfig
from twinloop.tasks.settings import read_settings
from twinloop.twin import load_twin

ARMS = ["so101_tabletop", "panda_tabletop"]


def randomized(twin, episodes, attempt=0):
    return Plan(twin=twin, run_seed=2, draws=tuple(default_draws(twin))).draw(episodes, attempt=attempt)


def with_task(twin, **section):
    spec = twin.spec.model_copy(update={"task": {"pick_and_place": section}})
    return dataclasses.replace(twin, spec=spec)


@pytest.mark.parametrize("name", ARMS)
def test_object_and_target_lie_where_the_parameters_say(name):
    twin = load_twin(name)
    task, params = open_task("pick_and_place", twin), randomized(twin, range(8))
    start = task.reset(params, run_seed=2, episodes=range(8))
    row = twin.model.joint("cube").qposadr[0]
    for column, axis in enumerate("xy"):
        np.testing.assert_array_equal(start.qpos[:, row + column], params[f"object/cube/position/{axis}"])
        np.testing.assert_array_equal(start.mocap_pos[:, 0, column], params[f"object/target/position/{axis}"])
    yaw = 2 * np.arctan2(start.qpos[:, row + 6], start.qpos[:, row + 3])
    np.testing.assert_allclose(yaw, params["object/cube/yaw"], atol=1e-12)
    assert np.ptp(start.qpos[:, twin.joint_qpos[0]]) > 0.01


def test_an_episode_begins_the_same_in_any_company_and_differently_at_another_attempt():
    twin = load_twin("so101_tabletop")
    task = open_task("pick_and_place", twin)
    together = task.reset(randomized(twin, [4, 9, 11]), run_seed=2, episodes=[4, 9, 11])
    alone = task.reset(randomized(twin, [9]), run_seed=2, episodes=[9])
    again = task.reset(randomized(twin, [9]), run_seed=2, episodes=[9], attempt=1)
    for field in ("qpos", "qvel", "mocap_pos", "mocap_quat", "command"):
        np.testing.assert_array_equal(getattr(together, field)[1], getattr(alone, field)[0])
    assert (again.qpos[0, twin.joint_qpos[:5]] != alone.qpos[0, twin.joint_qpos[:5]]).all()


@pytest.mark.parametrize("name", ARMS)
def test_the_initial_command_holds_the_arm_still_whatever_the_parameters(name):
    twin = load_twin(name)
    task, params = open_task("pick_and_place", twin), randomized(twin, range(8))
    start = task.reset(params, run_seed=2, episodes=range(8))
    commands = np.repeat(start.command[:, None], 30, axis=1)
    run = rollout(open_backend(), twin, params, start, commands, 30)
    arm = run.qpos[..., task.chain.qpos]
    assert np.abs(arm - arm[:, :1]).max() < np.radians(0.1)


def test_a_twin_without_the_task_or_with_a_misspelled_key_is_told_so():
    twin = load_twin("so101_tabletop")
    section = dict(twin.spec.task["pick_and_place"])
    with pytest.raises(
        InputError, match=r"cube_toss has no section task\.pick_and_place\. Add one with object, target"
    ):
        read_settings(PickAndPlaceConfig, load_twin("cube_toss"), "pick_and_place")
    with pytest.raises(UnknownNameError, match=r"Unknown key 'lift_hight' in task\.pick_and_place .* lift_height"):
        PickAndPlace(with_task(twin, **section, lift_hight=0.1))
    with pytest.raises(InputError, match="target_radius: .* number.* \\(given: 'wide'\\)"):
        PickAndPlace(with_task(twin, **{**section, "target_radius": "wide"}))
    with pytest.raises(
        UnknownNameError, match="Unknown free body 'cub' in the twin so101_tabletop. Nearest existing: cube"
    ):
        PickAndPlace(with_task(twin, **{**section, "object": "cub"}))
    del section["x"]
    with pytest.raises(InputError, match="lacks x. Add it to the twin's YAML"):
        PickAndPlace(with_task(twin, **section))
