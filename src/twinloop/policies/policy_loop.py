"""Run a policy in many worlds at once: keep the history of observations, and return one command per control step.

Predicted chunks are executed step by step (receding horizon) or averaged (temporal ensembling). Observations and
commands that are not finite are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from twinloop.core.contract import IMAGES, STATE, Contract
from twinloop.core.errors import InputError
from twinloop.core.joint_limits import compute_window
from twinloop.core.seeds import uniforms
from twinloop.policies.settings import CommonSettings
from twinloop.policies.statistics import LAST_COMMAND, MEMORY, action_size


class TemporalEnsemble:
    """Weighted mean of all predictions for one control step (temporal ensembling, Zhao et al. 2023, algorithm 2).

    The predictions of the last ``chunk_size`` steps are kept. Of all predictions for one step, ordered from the oldest,
    the i-th has the weight exp(-decay · i), so older predictions have a larger weight if the decay is positive. Steps
    at which a world made no prediction do not count.

    Args:
        shape: ``(nworld, chunk_size, k)`` with k commands per step.
        decay: the decay rate m of the paper, which uses 0.01.
    """

    def __init__(self, shape: tuple[int, ...], decay: float) -> None:
        nworld, chunk, size = shape
        self._decay, self._chunk, self._now = decay, chunk, 0
        self._made = np.full((nworld, chunk, chunk, size), np.nan)  # world, when modulo chunk, step of the chunk

    def clear_worlds(self, worlds: NDArray[np.intp]) -> None:
        """Delete all predictions of the given worlds (indices)."""
        self._made[worlds] = np.nan

    def advance_step(self) -> None:
        """Advance by one control step, and delete the oldest predictions, which have no command for later steps."""
        self._now = (self._now + 1) % self._chunk
        self._made[:, self._now] = np.nan

    def add_predictions(self, worlds: NDArray[np.intp], chunk: NDArray[np.float64]) -> None:
        """Add the chunks that some worlds predicted at this step.

        Args:
            worlds: indices of the worlds.
            chunk: their chunks, ``(len(worlds), chunk_size, k)`` with k commands per step.
        """
        self._made[worlds, self._now] = chunk

    def mean(self) -> NDArray[np.float64]:
        """Return the weighted mean command of this step, ``(nworld, k)``; NaN for worlds that have no prediction."""
        age = np.arange(self._chunk)[::-1]  # control steps since each prediction, oldest first
        predictions = self._made[:, (self._now - age) % self._chunk, age]
        available = ~np.isnan(predictions[..., 0])
        weight = np.where(available, np.exp(-self._decay * (np.cumsum(available, axis=1) - 1)), 0.0)[..., None]
        total, mean = weight.sum(axis=1), (weight * np.nan_to_num(predictions)).sum(axis=1)
        return np.divide(mean, total, out=np.full_like(mean, np.nan), where=total > 0)


_NOISE = "policy/noise"
_OWN = (LAST_COMMAND, MEMORY)  # keys that the loop itself adds to observations


class Predictor(Protocol):
    """Interface of a policy that `PolicyLoop` can run; `policies.policy.Policy` implements it."""

    @property
    def contract(self) -> Contract:
        """Contract of the observations and commands: joints, units, cameras and rate."""
        ...

    @property
    def settings(self) -> CommonSettings:
        """Settings with the numbers of observed, predicted and executed control steps."""
        ...

    @property
    def noise_size(self) -> int:
        """Number of standard normal draws per prediction; 0 if the policy is deterministic."""
        ...

    @property
    def observation_keys(self) -> tuple[str, ...]:
        """Keys that an observation must have."""
        ...

    def predict_with_features(
        self, observation: Mapping[str, NDArray], noise: NDArray | None = None, domain: str | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Predict command chunks for n observations.

        Args:
            observation: histories by key, ``(n, n_obs_steps, …)``, oldest step first; the last command is ``(n, k)``
                unless the settings have ``command_history``.
            noise: standard normal numbers ``(n, noise_size)``; None for fixed numbers.
            domain: name of a domain (source of the data); None for the policy's default domain.

        Returns:
            Chunks ``(n, chunk_size, k)`` in the dataset's units with k commands per step, and features ``(n, d)`` with
            d numbers per sample.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class CommandRefusal:
    """Record of a refused command: the world got its previous command instead.

    Attributes:
        world: index of the world.
        episode: number of the world's episode.
        step: control step of the episode.
        reason: reason of the refusal.
    """

    world: int
    episode: int
    step: int
    reason: str


class CommandLimiter:
    """Limits of the commands of a policy in ``nworld`` worlds; without `CommandLimits` in its settings, there are none.

    Args:
        contract: contract of the policy.
        settings: settings of the policy.
        nworld: number of worlds.
    """

    def __init__(self, contract: Contract, settings: CommonSettings, nworld: int) -> None:
        self._units = contract.action
        self._limits = settings.command_limits and settings.command_limits.to_joints(contract.control_hz)
        self._before = np.full((nworld, action_size(contract)), np.nan)

    def restart(self, worlds: NDArray[np.intp]) -> None:
        """Let the commands of some worlds begin at rest."""
        self._before[worlds] = np.nan

    def limit(self, wanted: NDArray[np.float64], held: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the commands nearest to the wanted ones that keep the limits, ``(nworld, k)`` in the dataset's units.

        Args:
            wanted: wanted commands, ``(nworld, k)``.
            held: commands that were sent last; NaN where they are unknown, and where nothing is limited.
        """
        if self._limits is None:
            return wanted
        position = self._units.to_si(held)
        moved = position - self._units.to_si(np.where(np.isnan(self._before), held, self._before))
        self._before = held.copy()
        allowed = compute_window(position, moved / self._limits.dt, self._limits)
        kept = np.clip(self._units.to_si(wanted), allowed.low, allowed.high)
        return np.where(np.isnan(kept), wanted, self._units.from_si(kept))


class PolicyLoop:
    """Closed loop of a policy with ``nworld`` worlds; each world may restart while the others continue.

    At the start of an episode the history is filled with the first observation. Random draws within a policy depend
    only on run seed, episode, attempt and step, so that an episode is the same in any batch of worlds. Callers must not
    change the arrays below.

    A policy with a memory (`CommonSettings.memory_size`) also gets ``policy.memory``, ``(n, 1 + memory_size)``: 1 if it
    has a new image, else 0; then the features of its previous prediction, which are 0 at the start of an episode.

    Args:
        policy: the policy.
        nworld: number of worlds.
        run_seed: seed of random draws within the policy.
        episodes: episode number of each world, ``(nworld,)``; by default 0, 1, ….
        attempt: number of the attempt, if the episodes are run again with other random numbers, as in an evaluation.
        domain: name of a domain (source of the data); None for the policy's default domain.
        command: last command of each robot, ``(nworld, k)`` in the dataset's units with k commands per step; None for
            the first joint reading.
        on_refusal: action if an observation or a command is not finite. ``raise`` raises an error; ``hold`` repeats the
            world's last command and adds an entry to ``refusals``.

    Attributes:
        chunk: latest prediction of each world, ``(nworld, chunk_size, k)`` in the dataset's units; NaN before the
            first.
        previous_chunk: prediction before the latest one, of the same shape; NaN before the second.
        chunk_step: step of the episode at which ``chunk`` was predicted, ``(nworld,)``; -1 before the first prediction.
        previous_step: step at which ``previous_chunk`` was predicted, ``(nworld,)``; -1 before the second prediction.
        features: features that the policy's network computed for the latest prediction, ``(nworld, d)`` with d numbers
            per world.
        predicted: whether the last call of `act` made a new prediction, ``(nworld,)``.
        step: number of control steps since the start of each episode, ``(nworld,)``.
        refusals: the refused commands.
    """

    def __init__(
        self,
        policy: Predictor,
        nworld: int,
        run_seed: int = 0,
        episodes: Sequence[int] | NDArray | None = None,
        *,
        attempt: int = 0,
        domain: str | None = None,
        command: ArrayLike | None = None,
        on_refusal: Literal["raise", "hold"] = "raise",
    ) -> None:
        self.policy, self.nworld, self.run_seed = policy, nworld, run_seed
        self.refusals: list[CommandRefusal] = []
        settings, size = policy.settings, action_size(policy.contract)
        self._domain, self._holds, self._attempt = domain, on_refusal == "hold", attempt
        self._episodes = np.arange(nworld) if episodes is None else np.array(episodes, dtype=np.int64)
        if self._episodes.shape != (nworld,):
            raise InputError(f"There are {len(self._episodes)} episode numbers for {nworld} worlds. Give one for each.")
        self.chunk = np.full((nworld, settings.chunk_size, size), np.nan)
        self.previous_chunk = self.chunk.copy()
        self.chunk_step = np.full(nworld, -1)
        self.previous_step = np.full(nworld, -1)
        self.predicted = np.zeros(nworld, dtype=bool)
        self.features: NDArray[np.float64] = np.empty((nworld, 0))
        self.step = np.zeros(nworld, dtype=np.int64)
        self._command = np.full((nworld, size), np.nan)
        self._limiter = CommandLimiter(policy.contract, settings, nworld)
        self._history: dict[str, NDArray[Any]] = {}
        self._ensemble = None if settings.ensemble is None else TemporalEnsemble(self.chunk.shape, settings.ensemble)
        self.restart(np.arange(nworld), command=command)

    def restart(
        self, worlds: ArrayLike, episodes: ArrayLike | None = None, *, command: ArrayLike | None = None
    ) -> None:
        """Reset some worlds to the start of an episode.

        Args:
            worlds: indices of the worlds.
            episodes: new episode numbers, ``(len(worlds),)``; None to keep the numbers.
            command: last commands of their robots, ``(len(worlds), k)`` in the dataset's units with k commands per
                step. None uses the first joint reading if the policy reads the joints that it commands; otherwise the
                last command is unknown (NaN).
        """
        index = np.asarray(worlds, dtype=np.intp)
        if episodes is not None:
            self._episodes[index] = episodes
        self.chunk[index] = self.previous_chunk[index] = np.nan
        self.chunk_step[index] = self.previous_step[index] = -1
        self.features[index] = np.nan
        self.predicted[index] = False
        self.step[index] = 0
        self._command[index] = np.nan if command is None else command
        self._limiter.restart(index)
        if self._ensemble is not None:
            self._ensemble.clear_worlds(index)

    def act(self, observation: Mapping[str, NDArray]) -> NDArray[np.float64]:
        """Return the commands of this control step, ``(nworld, k)`` in the dataset's units with k commands per step.

        Args:
            observation: newest observation of every world by key, ``(nworld, …)`` in the dataset's units.

        Raises:
            InputError: If an observation is missing or has another number of worlds, or a world has no command to hold.
                If ``on_refusal`` is ``raise``, also if an observation or a command is not finite.
        """
        self._check(observation)
        good = self._finite_mask(observation)
        self._begin_commands(observation)
        self._update_history(observation, good)
        self._predict(np.flatnonzero(good & self._due_mask()))
        commands = self._limiter.limit(self._make_commands(good), self._command)
        self._command = commands.copy()
        self.step += 1
        return commands

    def find_seeing_worlds(self) -> NDArray[np.bool_]:
        """Return a mask of the worlds that use the images of the next observation, ``(nworld,)``.

        They predict then, or so soon after that the observation is still in the history.
        """
        cameras = [f"{IMAGES}{name}" for name in self.policy.contract.cameras]
        ahead = max((self.policy.settings.count_steps(key) for key in cameras), default=1) - 1
        return self._due_mask(ahead) & self._look_mask()

    def set_sent_commands(self, commands: ArrayLike) -> None:
        """Set the commands that were really sent to the robots, ``(nworld, k)``, if they differ from those of `act`."""
        self._command = np.array(commands, dtype=np.float64).reshape(self._command.shape)

    def _check(self, observation: Mapping[str, NDArray]) -> None:
        wanted = [key for key in self.policy.observation_keys if key not in _OWN]
        missing = [key for key in wanted if key not in observation]
        if missing:
            there = ", ".join(observation) or "nothing"
            raise InputError(f"The policy needs {', '.join(missing)}, but the observation has {there}.")
        for key in wanted:
            if len(observation[key]) != self.nworld:
                raise InputError(f"{key} has {len(observation[key])} rows for {self.nworld} worlds.")

    def _finite_mask(self, observation: Mapping[str, NDArray]) -> NDArray[np.bool_]:
        """Return a mask of the worlds whose observations are all finite, ``(nworld,)``.

        For the other worlds, raise an error or add an entry to ``refusals``, as ``on_refusal`` requires.
        """
        good = np.ones(self.nworld, dtype=bool)
        for key in self.policy.observation_keys:
            if key not in _OWN and np.issubdtype(observation[key].dtype, np.floating):
                finite = np.isfinite(observation[key]).reshape(self.nworld, -1).all(axis=1)
                self._handle_refusal(good & ~finite, f"{key} is not finite")
                good &= finite
        return good

    def _handle_refusal(self, worlds: NDArray[np.bool_], reason: str) -> None:
        for world in np.flatnonzero(worlds):
            refusal = CommandRefusal(
                world=int(world), episode=int(self._episodes[world]), step=int(self.step[world]), reason=reason
            )
            if not self._holds:
                raise InputError(
                    f"World {refusal.world} (episode {refusal.episode}) in step {refusal.step}: {reason}. No command "
                    "was given. Hold the last command until the cause is found."
                )
            self.refusals.append(refusal)

    def _begin_commands(self, observation: Mapping[str, NDArray]) -> None:
        """Set each unknown last command to the measured joint positions, if the policy reads the joints it commands."""
        unknown = np.isnan(self._command).all(axis=1)
        contract = self.policy.contract
        if unknown.any() and contract.state is not None and contract.state.names == contract.action.names:
            self._command[unknown] = observation[STATE][unknown]

    def _update_history(self, observation: Mapping[str, NDArray], good: NDArray[np.bool_]) -> None:
        settings = self.policy.settings
        fresh = good & (self.chunk_step < 0)
        for key in self.policy.observation_keys:
            if key == MEMORY or (key == LAST_COMMAND and not settings.command_history):
                continue
            now = self._command if key == LAST_COMMAND else np.asarray(observation[key])
            if key not in self._history:
                self._history[key] = np.zeros((self.nworld, settings.count_steps(key), *now.shape[1:]), dtype=now.dtype)
            past = self._history[key]
            past[good, :-1] = past[good, 1:]
            past[good, -1] = now[good]
            past[fresh] = now[fresh, None]

    def _due_mask(self, ahead: int = 0) -> NDArray[np.bool_]:
        """Return a mask of the worlds that need a new prediction within ``ahead`` steps, ``(nworld,)``."""
        if self._ensemble is not None:
            return np.ones(self.nworld, dtype=bool)
        return (self.chunk_step < 0) | (self.step + ahead - self.chunk_step >= self.policy.settings.n_action_steps)

    def _look_mask(self) -> NDArray[np.bool_]:
        """Return a mask of the worlds in which this step's images are new to the policy, ``(nworld,)``."""
        return (self.step % self.policy.settings.look_interval == 0) | (self.chunk_step < 0)

    def _predict(self, worlds: NDArray[np.intp]) -> None:
        self.predicted[:] = False
        if self._ensemble is not None:
            self._ensemble.advance_step()
        if not worlds.size:
            return
        histories = {key: past[worlds] for key, past in self._history.items()}
        if LAST_COMMAND in self.policy.observation_keys and LAST_COMMAND not in histories:
            histories[LAST_COMMAND] = self._command[worlds]
        if size := self.policy.settings.memory_size:
            before = np.nan_to_num(self.features[worlds]) if self.features.shape[1] else np.zeros((len(worlds), size))
            histories[MEMORY] = np.concatenate([self._look_mask()[worlds, None], before], axis=1)
        chunk, features = self.policy.predict_with_features(histories, self._noise(worlds), self._domain)
        finite = np.isfinite(chunk).reshape(len(worlds), -1).all(axis=1)
        if not finite.all():
            bad = np.zeros(self.nworld, dtype=bool)
            bad[worlds[~finite]] = True
            self._handle_refusal(bad, "the policy's commands are not finite")
        self._store_prediction(worlds[finite], chunk[finite], features[finite])

    def _store_prediction(self, worlds: NDArray[np.intp], chunk: NDArray, features: NDArray) -> None:
        self.previous_chunk[worlds], self.previous_step[worlds] = self.chunk[worlds], self.chunk_step[worlds]
        self.chunk[worlds], self.chunk_step[worlds] = chunk, self.step[worlds]
        if self.features.shape[1] != features.shape[1]:
            self.features = np.full((self.nworld, features.shape[1]), np.nan)
        self.features[worlds] = features
        self.predicted[worlds] = True
        if self._ensemble is not None:
            self._ensemble.add_predictions(worlds, chunk)

    def _noise(self, worlds: NDArray[np.intp]) -> NDArray[np.float64] | None:
        size = self.policy.noise_size
        if not size:
            return None
        where = {"size": size, "attempt": self._attempt, "step": self.step[worlds]}
        return ndtri(uniforms(self.run_seed, _NOISE, self._episodes[worlds], **where))

    def _make_commands(self, good: NDArray[np.bool_]) -> NDArray[np.float64]:
        settings = self.policy.settings
        ahead = self.step - self.chunk_step
        limit = settings.chunk_size if self._ensemble is not None else settings.n_action_steps
        usable = good & (self.chunk_step >= 0) & (ahead < limit)
        commands = self._command.copy()
        if self._ensemble is not None:
            commands[usable] = self._ensemble.mean()[usable]
        else:
            commands[usable] = self.chunk[usable, ahead[usable]]
        unknown = ~np.isfinite(commands).all(axis=1)
        if unknown.any():
            world = int(np.argmax(unknown))
            raise InputError(
                f"World {world} (episode {self._episodes[world]}) in step {self.step[world]} has no command to hold: "
                "it had no finite observation so far. Give the last command of its robot."
            )
        return commands
