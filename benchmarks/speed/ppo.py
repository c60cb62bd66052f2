"""Compare libraries for PPO on our vector environment: steps per second of collecting and updating together.

    pip install stable-baselines3 rsl-rl-lib skrl
    python -m benchmarks.speed.ppo

Every library gets the same worlds (`reach`, SO-101, default randomization), the same sizes (64 worlds, 32 steps per
update, 5 passes over minibatches of 512, two hidden layers of 64 units for actor and critic), one torch thread and one
simulation thread. The bare row steps the same environment with constant actions. Rounds alternate between libraries,
because other processes on the machine affect all rows of a round.
"""

from __future__ import annotations

import contextlib
import io
import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]

from twinloop.envs import TwinVectorEnv

WORLDS, STEPS, PASSES, BATCH, UNITS = 64, 32, 5, 512, (64, 64)
Learn = Callable[[int], Any]
"""Function that runs a number of updates, each after ``STEPS`` steps of all worlds."""


def make_worlds() -> TwinVectorEnv:
    """Return the environment that every library trains in."""
    return TwinVectorEnv(
        WORLDS, twin="so101_tabletop", goal="reach", action="delta", autoreset_mode="SameStep", nthread=1
    )


def bare() -> Learn:
    """Return a function that only steps the worlds."""
    env = make_worlds()
    env.reset(seed=0)
    actions = np.zeros(env.action_space.shape or (), dtype=np.float32)

    def learn(updates: int) -> None:
        for _ in range(updates * STEPS):
            env.step(actions)

    return learn


def stable_baselines3() -> Learn:
    """Return PPO of Stable-Baselines3."""
    from stable_baselines3 import PPO  # pyright: ignore[reportMissingImports]

    from twinloop.train.ppo import BatchedWorlds

    class Worlds(BatchedWorlds):
        """A Gymnasium vector environment as Stable-Baselines3 expects it."""

        render_mode = None

        def __init__(self) -> None:
            self.env = make_worlds()
            super().__init__(WORLDS, self.env.single_observation_space, self.env.single_action_space)

        def reset(self) -> Any:
            return self.env.reset(seed=0)[0]

        def step_wait(self) -> Any:
            seen, rewards, terminated, truncated, infos = self.env.step(self._actions)
            each: list[dict[str, Any]] = [{} for _ in range(WORLDS)]
            for i in np.flatnonzero(terminated | truncated):
                each[i] = {"terminal_observation": infos["final_obs"][i], "TimeLimit.truncated": bool(truncated[i])}
            return seen, rewards.astype(np.float32), terminated | truncated, each

    settings = {"net_arch": list(UNITS), "activation_fn": nn.ELU}
    agent = PPO(
        "MlpPolicy", Worlds(), n_steps=STEPS, batch_size=BATCH, n_epochs=PASSES,
        policy_kwargs=settings, device="cpu", seed=0,
    )  # fmt: skip
    return lambda updates: agent.learn(updates * STEPS * WORLDS, reset_num_timesteps=False)


def rsl_rl() -> Learn:
    """Return PPO of rsl-rl-lib."""
    from rsl_rl.runners import OnPolicyRunner  # pyright: ignore[reportMissingImports]
    from tensordict import TensorDict  # pyright: ignore[reportMissingImports]

    class Worlds:
        """A Gymnasium vector environment as rsl_rl expects it."""

        device, cfg = "cpu", {}

        def __init__(self) -> None:
            self.env = make_worlds()
            self.num_envs, self.num_actions = WORLDS, int(self.env.single_action_space.shape[0])  # type: ignore[index]
            self.max_episode_length = self.env.goal.nstep
            self.episode_length_buf = torch.zeros(WORLDS, dtype=torch.long)
            self.seen = self.env.reset(seed=0)[0]

        def get_observations(self) -> Any:
            return TensorDict({"policy": torch.from_numpy(self.seen)}, batch_size=[WORLDS])

        def step(self, actions: Any) -> tuple[Any, ...]:
            self.seen, rewards, terminated, truncated, _ = self.env.step(actions.numpy())
            self.episode_length_buf = torch.from_numpy(self.env.worlds.steps.copy())
            extras = {"time_outs": torch.from_numpy(truncated)}
            done = torch.from_numpy(terminated | truncated).long()
            return self.get_observations(), torch.from_numpy(rewards).float(), done, extras

    model = {"class_name": "MLPModel", "hidden_dims": list(UNITS), "activation": "elu"}
    noise = {"class_name": "GaussianDistribution", "init_std": 1.0}
    config = {
        "num_steps_per_env": STEPS, "save_interval": 10**9, "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": {**model, "distribution_cfg": noise}, "critic": model, "multi_gpu": None,
        "algorithm": {
            "class_name": "PPO", "num_learning_epochs": PASSES, "num_mini_batches": STEPS * WORLDS // BATCH,
            "learning_rate": 3e-4, "schedule": "fixed", "entropy_coef": 0.0, "rnd_cfg": None, "symmetry_cfg": None,
        },
    }  # fmt: skip
    runner = OnPolicyRunner(Worlds(), config, log_dir=None, device="cpu")  # type: ignore[arg-type]
    return lambda updates: runner.learn(updates)


def skrl() -> Learn:
    """Return PPO of skrl."""
    logging.getLogger("skrl").setLevel(logging.ERROR)
    from skrl.agents.torch.ppo import PPO  # pyright: ignore[reportMissingImports]
    from skrl.envs.wrappers.torch import wrap_env  # pyright: ignore[reportMissingImports]
    from skrl.memories.torch import RandomMemory  # pyright: ignore[reportMissingImports]
    from skrl.models.torch import DeterministicMixin, GaussianMixin, Model  # pyright: ignore[reportMissingImports]
    from skrl.trainers.torch import SequentialTrainer  # pyright: ignore[reportMissingImports]

    def layers(size: int, out: int) -> nn.Sequential:
        sizes = (size, *UNITS)
        hidden = [part for a, b in zip(sizes, UNITS, strict=False) for part in (nn.Linear(a, b), nn.ELU())]
        return nn.Sequential(*hidden, nn.Linear(UNITS[-1], out))

    class Actor(GaussianMixin, Model):
        def __init__(self, **spaces: Any) -> None:
            Model.__init__(self, **spaces, device="cpu")
            GaussianMixin.__init__(self)
            self.net = layers(self.num_observations, self.num_actions)
            self.log_std = nn.Parameter(torch.zeros(self.num_actions))

        def compute(self, inputs: Any, role: str) -> Any:  # noqa: ARG002 - skrl's signature
            return self.net(inputs["observations"]), {"log_std": self.log_std}

    class Critic(DeterministicMixin, Model):
        def __init__(self, **spaces: Any) -> None:
            Model.__init__(self, **spaces, device="cpu")
            DeterministicMixin.__init__(self)
            self.net = layers(self.num_observations, 1)

        def compute(self, inputs: Any, role: str) -> Any:  # noqa: ARG002 - skrl's signature
            return self.net(inputs["observations"]), {}

    env = wrap_env(make_worlds(), wrapper="gymnasium", verbose=False)
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    cfg = {
        "rollouts": STEPS, "learning_epochs": PASSES, "mini_batches": STEPS * WORLDS // BATCH, "learning_rate": 3e-4,
        "experiment": {"write_interval": 0, "checkpoint_interval": 0},
    }  # fmt: skip
    agent = PPO(
        models={"policy": Actor(**spaces), "value": Critic(**spaces)},
        memory=RandomMemory(memory_size=STEPS, num_envs=WORLDS, device="cpu"), cfg=cfg, device="cpu", **spaces,
    )  # fmt: skip

    def learn(updates: int) -> None:
        settings = {"timesteps": updates * STEPS, "headless": True, "disable_progressbar": True}
        SequentialTrainer(cfg=settings, env=env, agents=agent).train()

    return learn


LIBRARIES: dict[str, Callable[[], Learn]] = {
    "bare environment": bare,
    "stable-baselines3": stable_baselines3,
    "rsl-rl-lib": rsl_rl,
    "skrl": skrl,
}


def run(updates: int = 10, rounds: int = 3) -> dict[str, dict[str, float]]:
    """Return steps per second of each installed library: median, lowest and highest of the rounds."""
    torch.set_num_threads(1)
    learners: dict[str, Learn] = {}
    for name, make in LIBRARIES.items():
        with contextlib.suppress(ImportError):
            learners[name] = make()
            _time(learners[name], 2)  # the first updates also set up buffers
    rows = [
        {name: updates * STEPS * WORLDS / _time(learn, updates) for name, learn in learners.items()}
        for _ in range(rounds)
    ]
    return {
        name: {
            "median": float(np.median([row[name] for row in rows])),
            "low": min(row[name] for row in rows),
            "high": max(row[name] for row in rows),
            "ratio": float(np.median([row[name] / row["bare environment"] for row in rows])),
        }
        for name in learners
    }


def _time(learn: Learn, updates: int) -> float:
    start = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        learn(updates)
    return time.process_time() - start


if __name__ == "__main__":
    for library, row in run().items():
        rate = f"{row['median']:.0f} ({row['low']:.0f} to {row['high']:.0f}) steps per second of processor time"
        print(f"{library}: {rate}, {row['ratio']:.2f} of the bare environment")
