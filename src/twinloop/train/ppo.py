"""Train the network of a policy of kind ``mlp`` with proximal policy optimization (PPO), by Stable-Baselines3.

Schulman et al., "Proximal policy optimization algorithms" (arXiv 1707.06347, 2017). The actor of the library is the
policy's own network, so the trained weights are the policy's weights. A command is the mean of a normal distribution
while the policy acts, and a draw from it while it learns. The critic also reads the elapsed share of the episode and
the potential, which a policy cannot observe.

One iteration is one whole episode in every world. Random numbers depend on the run seed and the iteration alone, so an
interrupted training gives the same weights.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]

from twinloop.core.contract import ENVIRONMENT, STATE
from twinloop.core.errors import MissingDependencyError
from twinloop.policies.network import VectorEncoder, make_perceptron
from twinloop.policies.policy import Policy
from twinloop.policies.settings import MlpSettings
from twinloop.policies.statistics import LAST_COMMAND
from twinloop.tasks.rewards import RewardMeter

try:
    from gymnasium import spaces
    from stable_baselines3 import PPO  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.policies import ActorCriticPolicy  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.vec_env import VecEnv  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise MissingDependencyError(
        f"Reinforcement learning needs Stable-Baselines3, but {error.name} is not installed.",
        remedy="pip install 'twinloop[rl]'",
    ) from error

_UNBOUNDED = 1e6  # SB3 clips actions to finite limits; in normalized units no command comes near this one
_HEAD_GAIN = 0.01  # the first commands of the mean are near zero (Andrychowicz et al., ICLR 2021, section 3.2)
_CRITIC_INPUTS = 2


class WorldState(Protocol):
    """State of running worlds that `PolicyWorlds` reads; see `envs.batch.WorldBatch`."""

    command: NDArray[np.float64]
    steps: NDArray[np.int64]

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Mask of valid worlds, ``(num_envs,)``."""
        ...


class TrainingEnv(Protocol):
    """Vector environment in which a policy is trained; `envs.TwinVectorEnv` with ``lerobot`` observations.

    Autoreset is disabled, success does not end an episode, and an environment whose world becomes invalid repeats its
    episode.
    """

    num_envs: int
    meter: RewardMeter

    @property
    def worlds(self) -> WorldState:
        """The running worlds."""
        ...

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Start episodes; see Gymnasium."""
        ...

    def step(self, actions: Any) -> tuple[Any, ...]:
        """Run one control step; see Gymnasium."""
        ...


@dataclass
class EpisodeSums:
    """Results of one episode in each world; a world that became invalid counts until then.

    Attributes:
        terms: sum of each unweighted reward term, ``(num_envs,)``.
        returns: sum of the rewards, ``(num_envs,)``.
        valid: whether each world is still valid, ``(num_envs,)``.
        success: whether each episode ended in success, ``(num_envs,)``.
    """

    returns: NDArray[np.float64]
    valid: NDArray[np.bool_]
    success: NDArray[np.bool_]
    terms: dict[str, NDArray[np.float64]] = field(default_factory=dict[str, NDArray[np.float64]])

    @classmethod
    def of(cls, num_envs: int) -> EpisodeSums:
        """Return sums of no steps."""
        valid = np.ones(num_envs, dtype=bool)
        return cls(returns=np.zeros(num_envs), valid=valid, success=~valid)

    def add(self, terms: Mapping[str, NDArray[np.float64]], rewards: NDArray[np.float64]) -> None:
        """Add the terms and rewards of one step, ``(num_envs,)`` each."""
        for name, values in terms.items():
            self.terms[name] = self.terms.get(name, 0.0) + np.where(self.valid, values, 0.0)
        self.returns = self.returns + np.where(self.valid, rewards, 0.0)


StartEpisodes = Callable[[EpisodeSums | None], tuple[int, NDArray[np.int64]]]
"""Function from the results of the last episodes (None before the first) to run seed and numbers of the next ones."""


class BatchedWorlds(VecEnv):
    """Base class of environments of Stable-Baselines3 that step all worlds in one object."""

    _actions: NDArray[np.float32]

    def step_async(self, actions: NDArray[np.float32]) -> None:
        """Keep the actions ``(num_envs, k)`` of the next step."""
        self._actions = actions

    def close(self) -> None:
        """Do nothing; the owner of the worlds closes them."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute of this object once per world."""
        return [getattr(self, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Raise an error, because all worlds share one object."""
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Raise an error, because all worlds share one object."""
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:  # noqa: ARG002
        """Return false for each world."""
        return [False for _ in self._get_indices(indices)]


class PolicyWorlds(BatchedWorlds):
    """Worlds in which a policy acts, as an environment of Stable-Baselines3.

    An observation is the input of the policy's network, then two inputs of the critic. An action is a normalized
    command of the policy, which is converted as in `Policy`.

    Args:
        env: the worlds.
        policy: the policy.
        columns: columns of the environment's tracked values that the policy reads.
        nstep: control steps of an episode.
        start: function that is called between iterations.
    """

    def __init__(
        self, env: TrainingEnv, policy: Policy, *, columns: list[int], nstep: int, start: StartEpisodes
    ) -> None:
        self._env, self._policy, self._columns, self._nstep, self._start = env, policy, columns, nstep, start
        self._seen: dict[str, Tensor] = {}
        self._sums, self._step = EpisodeSums.of(env.num_envs), 0
        ones = np.ones(policy.action_size, dtype=np.float32)
        size = _input_size(policy) + _CRITIC_INPUTS
        box = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.render_mode = None
        super().__init__(env.num_envs, box, spaces.Box(-_UNBOUNDED * ones, _UNBOUNDED * ones))

    def reset(self) -> NDArray[np.float32]:
        """Start the episodes of the first iteration."""
        return self._begin(None)

    def step_wait(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Run one control step; after the last one of the episodes, start the next iteration."""
        with torch.no_grad():
            chunk = torch.as_tensor(self._actions, dtype=torch.float32)[:, None]
            command = self._policy.decode(chunk, self._seen)[:, 0].double().numpy()
        seen, rewards, terminated, _, infos = self._env.step(command)
        self._sums.add(self._env.meter.latest, rewards)
        self._sums.valid = self._sums.valid & ~terminated
        each: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        self._step += 1
        if self._step == self._nstep:
            self._sums.success = infos["is_success"] & self._sums.valid
            over = np.ones(self.num_envs, dtype=bool)
            return self._begin(self._sums), rewards.astype(np.float32), over, each
        self._observe(seen, command)
        if terminated.any():
            seen, _ = self._env.reset(options={"reset_mask": terminated})
            self._observe(seen, self._initial_command(), first=terminated)
        return self._encode(), rewards.astype(np.float32), terminated, each

    def _begin(self, sums: EpisodeSums | None) -> NDArray[np.float32]:
        seed, episodes = self._start(sums)
        seen, _ = self._env.reset(seed=seed, options={"episodes": episodes})
        self._sums, self._step = EpisodeSums.of(self.num_envs), 0
        self._observe(seen, self._initial_command(), first=self._sums.valid)
        return self._encode()

    def _initial_command(self) -> NDArray[np.float64]:
        return self._policy.contract.command_units.from_si(self._env.worlds.command)

    def _observe(
        self, seen: Mapping[str, Any], command: NDArray[np.float64], first: NDArray[np.bool_] | None = None
    ) -> None:
        """Add an observation to the history; in worlds at their ``first`` step it fills the history."""
        steps, sizes = self._policy.n_obs_steps, self._policy.observation_keys
        new = {STATE: seen["agent_pos"], ENVIRONMENT: seen["environment_state"][:, self._columns]}
        tensors = {key: torch.from_numpy(np.asarray(new[key], dtype=np.float32)) for key in new if key in sizes}
        for key, values in tensors.items():
            filled = values[:, None].expand(-1, steps, -1)
            if first is None:
                self._seen[key] = torch.cat([self._seen[key][:, 1:], values[:, None]], dim=1)
            elif key not in self._seen:
                self._seen[key] = filled.clone()
            else:
                self._seen[key] = torch.where(torch.from_numpy(first)[:, None, None], filled, self._seen[key])
        held = torch.from_numpy(command.astype(np.float32))
        if first is not None and LAST_COMMAND in self._seen:
            held = torch.where(torch.from_numpy(first)[:, None], held, self._seen[LAST_COMMAND])
        self._seen[LAST_COMMAND] = held

    def _encode(self) -> NDArray[np.float32]:
        with torch.no_grad():
            inputs = _encoder(self._policy)(self._policy.encode(self._seen))
        elapsed = self._env.worlds.steps / self._nstep
        critic = np.stack([2.0 * elapsed - 1.0, self._env.meter.potential], axis=1)
        return np.concatenate([inputs.numpy(), critic.astype(np.float32)], axis=1)


def _encoder(policy: Policy) -> VectorEncoder:
    return cast("VectorEncoder", policy.network.encoder)


def _input_size(policy: Policy) -> int:
    return _encoder(policy).size


class _ActorAndCritic(nn.Module):
    """Hidden layers: those of the policy's network for the actor, and as many of the same width for the critic."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        settings = cast("MlpSettings", policy.settings)
        self._size = _input_size(policy)
        self.latent_dim_pi = self.latent_dim_vf = settings.width
        self.actor = cast("nn.Module", policy.network.trunk)
        self.critic = make_perceptron(self._size + _CRITIC_INPUTS, settings.width, settings.depth, 0.0)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of actor and critic."""
        return self.forward_actor(features), self.forward_critic(features)

    def forward_actor(self, features: Tensor) -> Tensor:
        """Return the features of the actor, ``(n, width)``."""
        return self.actor(features[:, : self._size])

    def forward_critic(self, features: Tensor) -> Tensor:
        """Return the features of the critic, ``(n, width)``."""
        return self.critic(features)


class NetworkActorCritic(ActorCriticPolicy):
    """Actor and critic of Stable-Baselines3 in which the actor is the network of a policy of kind ``mlp``."""

    def __init__(self, *args: Any, trained: Policy, **kwargs: Any) -> None:
        self._trained = [trained]  # in a list, because a module would register it
        super().__init__(*args, **kwargs)

    def _build(self, lr_schedule: Callable[[float], float]) -> None:
        policy = self._trained[0]
        self.mlp_extractor = _ActorAndCritic(policy)
        self.action_net = cast("nn.Linear", policy.network.head)
        with torch.no_grad():
            self.action_net.weight.mul_(_HEAD_GAIN)
            self.action_net.bias.zero_()
        self.log_std = nn.Parameter(torch.full((policy.action_size,), self.log_std_init))
        self.value_net = nn.Linear(self.mlp_extractor.latent_dim_vf, 1)
        optimizer: Any = self.optimizer_class
        self.optimizer = optimizer(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)


class PpoTrainer:
    """PPO of Stable-Baselines3 over whole episodes.

    Args:
        policy: the policy; its network is trained in place.
        worlds: the worlds.
        nstep: control steps of an episode, which are the steps of one iteration.
        seed: seed of the critic's initial weights.
        init_std: initial standard deviation of normalized commands.
        options: further arguments of ``stable_baselines3.PPO``.
    """

    def __init__(
        self, policy: Policy, worlds: VecEnv, *, nstep: int, seed: int, init_std: float, options: Mapping[str, Any]
    ) -> None:
        self._rate, self._samples = 0.0, nstep * worlds.num_envs
        with keep_random_states(seed), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "You have specified a mini-batch size")  # the last one is smaller
            self._agent = PPO(
                NetworkActorCritic, worlds, n_steps=nstep, learning_rate=lambda _: self._rate, device="cpu",
                policy_kwargs={"trained": policy, "log_std_init": float(np.log(init_std))}, **options,
            )  # fmt: skip

    @property
    def modules(self) -> nn.Module:
        """Actor, critic and standard deviations."""
        return self._agent.policy

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Optimizer of the modules."""
        return self._agent.policy.optimizer

    def run_iteration(self, *, rate: float, seed: int) -> dict[str, float]:
        """Run one episode in every world, update the weights, and return facts about the update.

        Args:
            rate: learning rate.
            seed: seed of all random numbers of the iteration.
        """
        self._rate = rate
        with keep_random_states(seed):
            self._agent.learn(self._samples, reset_num_timesteps=False, log_interval=None)  # pyright: ignore[reportArgumentType]
        log = self._agent.logger.name_to_value
        std = float(self._agent.policy.log_std.detach().exp().mean())
        return {"std": std, "kl": float(log["train/approx_kl"]), "value_loss": float(log["train/value_loss"])}


@contextmanager
def keep_random_states(seed: int) -> Iterator[None]:
    """Seed the random states of Python, NumPy and torch, which the library uses, and restore them afterwards."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.set_rng_state(before[2])
