"""The EnvHub file is loaded and used as LeRobot does: from its path alone, by LeRobot's names."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

from twinloop.core.errors import MissingDependencyError, UnknownNameError
from twinloop.randomize import Plan, default_draws
from twinloop.render import choose_renderer
from twinloop.rollout import run_batch
from twinloop.tasks import open_task
from twinloop.twin import load_twin

FILE = Path(__file__).parents[2] / "examples" / "envhub" / "env.py"
NAME = "twinloop/PickAndPlace-SO101-v0"


@pytest.fixture(scope="module")
def hub():
    spec = importlib.util.spec_from_file_location("hub_env_user_repo", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def env(hub):
    try:
        choose_renderer()
    except MissingDependencyError as error:
        pytest.skip(str(error))
    made = hub.make_env(n_envs=2, use_async_envs=False)
    assert list(made) == [NAME]
    assert list(made[NAME]) == [0]
    yield made[NAME][0]
    made[NAME][0].close()


def test_it_has_what_an_evaluation_asks_of_it(env):
    assert isinstance(env, gymnasium.vector.VectorEnv)
    assert env.num_envs == 2
    assert env.call("_max_episode_steps") == (180, 180)
    assert env.get_attr("task_description") == ("Pick up the cube and place it on the target.",) * 2
    assert env.get_attr("task") == ("pick_and_place",) * 2
    assert env.unwrapped.metadata["render_fps"] == 30


def test_observations_carry_lerobots_names_and_each_world_has_its_own_look(env):
    seen, _ = env.reset(seed=[7, 8], options={"lerobot_new_rollout": True})
    assert seen in env.observation_space
    assert seen["agent_pos"].dtype == np.float32
    assert sorted(seen["pixels"]) == ["front", "wrist"]
    for images in seen["pixels"].values():
        assert images.shape == (2, 240, 320, 3)
        assert images.std() > 10
        assert (images[0] != images[1]).any()
    rendered = np.stack(env.call("render"))
    np.testing.assert_array_equal(rendered, seen["pixels"]["front"])
    swapped, _ = env.reset(seed=[8, 7])
    np.testing.assert_array_equal(swapped["pixels"]["wrist"][::-1], seen["pixels"]["wrist"])


@pytest.mark.slow
def test_an_expert_in_dataset_units_succeeds_where_lerobot_looks_for_it(env):
    twin = load_twin("so101_tabletop")
    task, plan = open_task("pick_and_place", twin), Plan(twin=twin, run_seed=0, draws=tuple(default_draws(twin)))
    made = run_batch(twin, task, plan.draw([7, 8]), run_seed=0, episodes=[7, 8])
    assert made.success.all()
    env.reset(seed=[7, 8])
    done, succeeded = np.zeros(2, dtype=bool), np.zeros(2, dtype=bool)
    for step in range(env.call("_max_episode_steps")[0]):
        _, _, terminated, truncated, infos = env.step(made.action[:, step].astype(np.float32))
        if "final_info" in infos:
            succeeded |= infos["final_info"]["is_success"] & ~done
        done |= terminated | truncated
        if done.all():
            break
    assert succeeded.all()


def test_a_config_names_another_task(hub):
    name = "twinloop/PickAndPlace-Panda-v0"
    made = hub.make_env(n_envs=1, use_async_envs=True, cfg=SimpleNamespace(task=name))
    assert made[name][0].single_action_space.shape == (8,)
    with pytest.raises(UnknownNameError, match="Unknown environment 'PushT'"):
        hub.make_env(cfg=SimpleNamespace(task="PushT"))
