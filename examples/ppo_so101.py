"""Train a Stable-Baselines3 policy in randomized worlds, and print its return and success rate with intervals.

    pip install "twinloop[gym]" stable-baselines3
    python examples/ppo_so101.py --steps 200000 --seed 0

The policy observes the simulator's state (`observation="state"`) and outputs changes of the joint targets. It is
evaluated in worlds of another run seed and compared with random actions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
import tyro
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

import twinloop.envs  # noqa: F401  # registers the environments
from twinloop.stats import wilson

WORLDS = 64
TEST_RUN = 1_000_000  # run seed of the worlds of the evaluation; training uses `--seed`


class Worlds(VecEnv):
    """A Gymnasium vector environment with same-step autoreset, adapted to Stable-Baselines3."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        if env.metadata["autoreset_mode"] is not AutoresetMode.SAME_STEP:
            raise ValueError(
                'Stable-Baselines3 resets within a step. Make the environment with autoreset_mode="SameStep".'
            )
        self.env = env
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)

    def reset(self) -> NDArray[np.float32]:
        seed = self._seeds[0]
        self._reset_seeds()
        return self.env.reset(seed=seed)[0]

    def step_async(self, actions: NDArray[np.float32]) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[Any, Any, Any, list[dict[str, Any]]]:
        observation, rewards, terminated, truncated, infos = self.env.step(self._actions)
        each: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(terminated | truncated):
            each[i]["terminal_observation"] = infos["final_obs"][i]
            each[i]["TimeLimit.truncated"] = bool(truncated[i])
            each[i]["is_success"] = bool(infos["final_info"]["is_success"][i])
        return observation, rewards.astype(np.float32), terminated | truncated, each

    def close(self) -> None:
        self.env.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self.env, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError("Attributes cannot be set, because all worlds share them.")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError("Methods cannot be called, because all worlds are one object.")

    def env_is_wrapped(self, wrapper_class: type[gymnasium.Wrapper], indices: Any = None) -> list[bool]:
        return [False for _ in self._get_indices(indices)]


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Returns and successes ``(nepisode,)`` of one episode in each world."""

    returns: NDArray[np.float64]
    success: NDArray[np.bool_]

    def __str__(self) -> str:
        """Format mean return with its 95 % interval (normal, over episodes), and success rate with Wilson's."""
        mean, error = self.returns.mean(), 1.96 * self.returns.std(ddof=1) / np.sqrt(len(self.returns))
        rate = wilson(int(self.success.sum()), len(self.success))
        return (
            f"return {mean:.3f} [{mean - error:.3f}, {mean + error:.3f}], "
            f"success {self.success.mean():.1%} [{float(rate.low):.1%}, {float(rate.high):.1%}]"
        )


def make(name: str, num_envs: int) -> VectorEnv[Any, Any, Any]:
    """Create the vector environment."""
    return gymnasium.make_vec(name, num_envs=num_envs, observation="state", action="delta", autoreset_mode="SameStep")


def judge(name: str, act: Callable[[NDArray[np.float32]], NDArray[np.float32]], episodes: int) -> Judgement:
    """Run one episode in each of ``episodes`` worlds that training has not used."""
    env = make(name, episodes)
    observation, _ = env.reset(seed=TEST_RUN)
    returns, over, success = np.zeros(episodes), np.zeros(episodes, dtype=bool), np.zeros(episodes, dtype=bool)
    while not over.all():
        observation, rewards, terminated, truncated, infos = env.step(act(observation))
        returns += np.where(over, 0.0, rewards)
        if "final_info" in infos:
            success |= infos["final_info"]["is_success"] & infos["_final_info"] & ~over
        over |= terminated | truncated
    env.close()
    return Judgement(returns=returns, success=success)


def train(name: str, steps: int, seed: int) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    """Train a policy for ``steps`` environment steps; return it as a function from observations to actions."""
    torch.set_num_threads(1)  # small networks do not benefit from more threads, and the worlds need the cores
    worlds = VecNormalize(Worlds(make(name, WORLDS)), norm_reward=True, gamma=0.97)
    worlds.seed(seed)
    agent = PPO(
        "MlpPolicy",
        worlds,
        n_steps=32,
        batch_size=512,
        n_epochs=5,
        learning_rate=1e-3,
        gamma=0.97,
        policy_kwargs={"net_arch": [64, 64], "log_std_init": -0.5},
        seed=seed,
        device="cpu",
    )
    agent.learn(steps)

    def act(observation: NDArray[np.float32]) -> NDArray[np.float32]:
        return agent.predict(worlds.normalize_obs(observation), deterministic=True)[0]

    return act


def random_policy(name: str, seed: int) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    """Return a policy that draws actions uniformly."""
    space, generator = make(name, 1).single_action_space, np.random.default_rng(seed)
    return lambda observation: generator.uniform(-1, 1, (len(observation), *(space.shape or ()))).astype(np.float32)


def main(name: str = "twinloop/Reach-SO101-v0", steps: int = 200_000, seed: int = 0, episodes: int = 256) -> None:
    """Evaluate random actions, train a policy, and evaluate it."""
    print(f"{name}, {steps} steps, seed {seed}, evaluated in {episodes} worlds")
    print(f"random:  {judge(name, random_policy(name, seed), episodes)}")
    print(f"trained: {judge(name, train(name, steps, seed), episodes)}")


if __name__ == "__main__":
    tyro.cli(main)
