"""A single environment is a vector of one, passes Gymnasium's checker, and is found where Gymnasium is missing."""

from __future__ import annotations

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from twinloop.core.errors import InputError, MissingDependencyError
from twinloop.envs import IDS, TwinVectorEnv
from twinloop.render import choose_renderer

PICK = "twinloop/PickAndPlace-SO101-v0"
# Joints have no hard ends in a simulator, so readings have no bounds that always hold.
UNBOUNDED = "ignore:.*A Box observation space m..imum value is -?infinity"


@pytest.mark.filterwarnings(UNBOUNDED)
@pytest.mark.parametrize("name", sorted(IDS))
def test_gymnasium_finds_nothing_wrong(name):
    env = gymnasium.make(name)
    check_env(env.unwrapped, skip_render_check=True)
    env.close()


@pytest.mark.filterwarnings(UNBOUNDED)
def test_a_task_of_the_library_is_an_environment_by_the_name_of_its_twin():
    env = gymnasium.make("twinloop/Task-v0", twin="panda_stack")
    assert env.unwrapped.spec.kwargs == {"twin": "panda_stack"}
    check_env(env.unwrapped, skip_render_check=True)
    env.close()


def test_it_is_the_vector_environment_of_one():
    env, vector = gymnasium.make(PICK), gymnasium.make_vec(PICK, num_envs=1, autoreset_mode="Disabled")
    seen, _ = env.reset(seed=3)
    many, _ = vector.reset(seed=3)
    np.testing.assert_array_equal(seen, many[0])
    for action in np.random.default_rng(0).uniform(-1, 1, (5, 6)).astype(np.float32):
        seen, reward, _, _, info = env.step(action)
        many, rewards, _, _, infos = vector.step(action[None])
        np.testing.assert_array_equal(seen, many[0])
        assert reward == rewards[0]
        assert info["elapsed_steps"] == infos["elapsed_steps"][0]
    assert env.unwrapped.worlds.state.tobytes() == vector.worlds.state.tobytes()
    assert not any(name.startswith("_") for name in info)


def test_gymnasiums_own_vectors_take_it():
    env = gymnasium.make_vec(PICK, num_envs=2, vectorization_mode="sync", max_episode_steps=3)
    assert not isinstance(env, TwinVectorEnv)
    env.action_space.seed(0)
    env.reset(seed=0)
    for _ in range(5):
        *_, infos = env.step(env.action_space.sample())
    assert infos["episode_number"].tolist() == [1, 1]
    env.close()


def test_a_single_environment_has_no_autoreset():
    with pytest.raises(InputError, match="Leave autoreset_mode out"):
        gymnasium.make(PICK, autoreset_mode="SameStep")


@pytest.fixture
def images():
    try:
        choose_renderer()
    except MissingDependencyError as error:
        pytest.skip(str(error))


@pytest.mark.filterwarnings(UNBOUNDED)
def test_images_pass_gymnasiums_checker_and_textures_are_those_of_the_run(images):
    looks = {"visual": {"texture_pool": 20}}
    env = gymnasium.make(PICK, render_mode="rgb_array", randomization=looks, height=48, width=64, camera="wrist")
    check_env(env.unwrapped)
    env.reset(seed=1)
    first = env.render()
    assert first.shape == (48, 64, 3)
    env.reset(seed=2)
    assert (env.render() != first).any()
    env.reset(seed=1)
    np.testing.assert_array_equal(env.render(), first)
    env.close()
    assert gymnasium.make(PICK).unwrapped.render() is None


@pytest.mark.slow
def test_gymnasiums_processes_take_it():
    env = gymnasium.make_vec(PICK, num_envs=2, vectorization_mode="async", vector_kwargs={"context": "spawn"})
    same = gymnasium.make_vec(PICK, num_envs=2, vectorization_mode="sync")
    np.testing.assert_array_equal(env.reset(seed=0)[0], same.reset(seed=0)[0])
    action = np.ones((2, 6), dtype=np.float32)
    np.testing.assert_array_equal(env.step(action)[0], same.step(action)[0])
    env.close()


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_without_gymnasium_the_command_is_named_and_the_rest_works():
    code = (
        "import sys; sys.modules['gymnasium'] = None\n"
        "import twinloop, twinloop.rollout\n"
        "from twinloop.core.errors import MissingDependencyError\n"
        "try:\n    import twinloop.envs\n"
        "except MissingDependencyError as error:\n    print(error.exit_code, error)"
    )
    done = run(code)
    assert done.stdout == (
        '3 The environments of twinloop.envs need Gymnasium. To add it: pip install "twinloop[gym]"\n'
    ), done.stderr


def test_the_id_is_found_with_its_module_and_gymnasium_comes_in_with_the_environments_alone():
    assert run("import sys, twinloop; print('gymnasium' in sys.modules)").stdout == "False\n"
    code = (
        "import gymnasium\n"
        f"env = gymnasium.make_vec('twinloop.envs:{PICK}', num_envs=2)\n"
        "print(type(env).__name__, env.reset(seed=0)[0].shape)"
    )
    done = run(code)
    assert done.stdout == "TwinVectorEnv (2, 40)\n", done.stderr
