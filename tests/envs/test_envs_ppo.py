"""A public reinforcement-learning library learns in these worlds, as `examples/ppo_so101.py` shows it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import twinloop.envs  # noqa: F401
from twinloop.stats import wilson

pytest.importorskip("stable_baselines3")
REACH = "twinloop/Reach-SO101-v0"


@pytest.fixture(scope="module")
def example():
    path = Path(__file__).parents[2] / "examples" / "ppo_so101.py"
    spec = importlib.util.spec_from_file_location("ppo_so101", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["ppo_so101"] = module
    spec.loader.exec_module(module)
    return module


def test_the_adapter_keeps_the_last_observation_of_an_episode(example):
    made = {"num_envs": 2, "action": "delta", "max_episode_steps": 3}
    worlds = example.Worlds(gymnasium.make_vec(REACH, autoreset_mode="SameStep", **made))
    plain = gymnasium.make_vec(REACH, **made)
    worlds.seed(4)
    np.testing.assert_array_equal(worlds.reset(), plain.reset(seed=4)[0])
    for _ in range(3):
        _, rewards, dones, infos = worlds.step(np.ones((2, 6), dtype=np.float32))
        last, expected, *_ = plain.step(np.ones((2, 6), dtype=np.float32))
        np.testing.assert_array_equal(rewards, expected.astype(np.float32))
    assert dones.all()
    assert [info["TimeLimit.truncated"] for info in infos] == [True, True]
    np.testing.assert_array_equal(np.stack([info["terminal_observation"] for info in infos]), last)
    with pytest.raises(ValueError, match="SameStep"):
        example.Worlds(plain)


@pytest.mark.slow
def test_ppo_learns_to_reach_in_worlds_it_has_not_seen(example):
    episodes = 128
    before = example.judge(REACH, example.random_policy(REACH, 0), episodes)
    after = example.judge(REACH, example.train(REACH, 60_000, 0), episodes)
    spread = 1.96 * np.sqrt((before.returns.var(ddof=1) + after.returns.var(ddof=1)) / episodes)
    assert after.returns.mean() - before.returns.mean() > spread + 0.2
    low, high = (wilson(int(judged.success.sum()), episodes) for judged in (after, before))
    assert low.low > high.high
