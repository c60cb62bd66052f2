"""Provide a Gymnasium vector environment of randomized worlds.

Infos have Gymnasium's format: under each key an array with one value per environment, and under ``_key`` a mask of the
environments to which the values apply.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.seeds import MAX_EPISODES
from twinloop.envs.batch import PlannedEpisodes, WorldBatch
from twinloop.envs.options import EnvOptions, open_world_camera, require_whole_number
from twinloop.envs.spaces import ActionDecoder, Images, ObservationEncoder
from twinloop.randomize import Plan
from twinloop.rollout.sensing import JointReadings
from twinloop.simulate import open_backend
from twinloop.tasks import find_task_name
from twinloop.tasks.goals import open_goal
from twinloop.tasks.protocol import GoalState
from twinloop.tasks.rewards import RewardMeter, read_reward
from twinloop.twin import Twin, load_twin

Infos = dict[str, Any]

_KEYS = ("is_success", "episode_number", "elapsed_steps", "invalid")


def make_world_infos(worlds: WorldBatch, success: NDArray[np.bool_], envs: NDArray[np.intp]) -> Infos:
    """Return success, episode number, elapsed steps and reason of invalidity of some environments as infos.

    Args:
        worlds: the running worlds.
        success: whether each environment in ``envs`` has reached success, ``(len(envs),)``.
        envs: indices of the environments; the masks of the infos are true for them.
    """
    done = np.zeros(len(worlds.steps), dtype=bool)
    done[envs] = success
    values = (done & worlds.valid, worlds.numbers.copy(), worlds.steps.copy(), worlds.invalid_reasons)
    infos: Infos = dict(zip(_KEYS, values, strict=True))
    return infos | {f"_{name}": _make_mask(worlds, envs) for name in _KEYS}


def make_param_infos(worlds: WorldBatch, envs: NDArray[np.intp]) -> Infos:
    """Return the drawn parameters of the environments ``envs`` (indices) as infos, one array per parameter."""
    names = worlds.params.names
    params = {name: worlds.params[name].copy() for name in names}
    return {
        "params": params | {f"_{name}": _make_mask(worlds, envs) for name in names},
        "_params": _make_mask(worlds, envs),
    }


def merge_final_infos(fresh: Infos, last: Infos, final: NDArray[Any], ended: NDArray[np.intp]) -> Infos:
    """Return the infos of a step in which some environments ended and restarted, including their final observations.

    Args:
        fresh: infos of the restarted environments, at the first step of their new episode.
        last: infos of all environments before the restart.
        final: last observations of the ended episodes, see `collect_final_rows`.
        ended: indices of the environments that ended.
    """
    mask = np.zeros(len(final), dtype=bool)
    mask[ended] = True
    merged = {**last, **fresh}
    for name in _KEYS:
        merged[name] = np.where(mask, fresh[name], last[name])
        merged[f"_{name}"] = last[f"_{name}"]
    final_info = {name: last[name] for name in _KEYS} | {f"_{name}": mask.copy() for name in _KEYS}
    return merged | {"final_obs": final, "_final_obs": mask, "final_info": final_info, "_final_info": mask.copy()}


def collect_final_rows(observation: Any, envs: NDArray[np.intp], num_envs: int) -> NDArray[Any]:
    """Copy the observations of the environments ``envs`` to an object array.

    Returns:
        Array ``(num_envs,)`` with one observation for each index in ``envs``, and None at all other indices.
    """
    rows = np.full(num_envs, None, dtype=object)
    for env in envs:
        rows[env] = _copy_row(observation, int(env))
    return rows


def replace_rows(observation: Any, envs: NDArray[np.intp], rows: Any) -> None:
    """Replace the observations of the environments ``envs`` (indices) in place by ``rows``, one per environment."""
    if isinstance(observation, dict):
        for name, value in observation.items():
            replace_rows(value, envs, rows[name])
        return
    observation[envs] = rows


def _copy_row(observation: Any, env: int) -> Any:
    if isinstance(observation, dict):
        return {name: _copy_row(value, env) for name, value in observation.items()}
    return observation[env].copy()


def _make_mask(worlds: WorldBatch, envs: NDArray[np.intp]) -> NDArray[np.bool_]:
    mask = np.zeros(len(worlds.steps), dtype=bool)
    mask[envs] = True
    return mask


class TwinVectorEnv(VectorEnv[Any, NDArray[np.floating], NDArray[Any]]):
    """Gymnasium vector environment of ``num_envs`` randomized worlds; `EnvOptions` describes the keyword arguments.

    An episode depends only on run seed and episode number. ``reset(seed=s)`` starts run s, in which environment i runs
    episodes i, i + num_envs, i + 2 · num_envs, and so on. ``reset()`` starts the next episode of each environment.

    An episode is ``terminated`` at success (unless ``end_at_success`` is false) or if its world becomes invalid, and
    ``truncated`` at the time limit. Infos
    contain ``is_success``, ``episode_number``, ``elapsed_steps`` and ``invalid`` (the reason, empty for a valid world)
    of every environment. If the option ``report_params`` is true, the infos of an episode's first step also contain
    ``params`` (drawn values by name). Under same-step autoreset, infos contain ``final_obs`` and ``final_info`` of the
    environments that ended. Each entry has a mask ``_key``, as in Gymnasium.

    Attributes:
        twin: the twin of the worlds.
        options: the given options.
        goal: the goal, see `tasks.goals`.
        meter: reward terms; its ``latest`` has those of the last step.

    Raises:
        TwinloopError: If an option is invalid, or the twin does not fit the goal.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int = 1, **options: Any) -> None:
        require_whole_number("num_envs", num_envs, least=1, why="at least one environment is needed")
        self.num_envs, self.options = num_envs, EnvOptions.of(options)
        self.twin = self.options.twin if isinstance(self.options.twin, Twin) else load_twin(self.options.twin)
        self._mode = _parse_autoreset_mode(self.options.autoreset_mode)
        self.goal = open_goal(find_task_name(self.options.goal, self.twin), self.twin, num_envs)
        self._plan = self.options.plan(self.twin, self.goal.task)
        self._backend = open_backend(self.options.backend, nthread=self.options.nthread)
        self._limit = self.options.max_episode_steps or self.goal.nstep
        self._readings = JointReadings(self.twin, num_envs, self._limit)
        self._observer, self._commander = (
            ObservationEncoder(self.twin, self.goal, self.options),
            ActionDecoder(self.twin, self.options),
        )
        self.metadata = {**self.metadata, "autoreset_mode": self._mode, "render_fps": round(self.twin.control_hz)}
        self.render_mode = self.options.render_mode
        self._photographer, self._camera = open_world_camera(self._plan, self.options)
        self.single_observation_space, self.single_action_space = self._observer.space, self._commander.space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._all, self._over = np.arange(num_envs), np.zeros(num_envs, dtype=bool)
        weights = read_reward(self.options.reward, where="the reward of an environment")
        self.meter = RewardMeter(self.twin, num_envs, self._limit, weights)
        self._worlds: WorldBatch | None = None

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start episodes; return the first observations and the infos.

        Args:
            seed: run seed. A sequence instead gives the episode number of each environment in the run with seed 0, so
                that a number gives the same world in every environment. If it is None, the next episodes of the present
                run start; the first call draws a random run seed.
            options: ``episodes``: episode numbers to run, one per environment, instead of 0, 1, …. ``reset_mask``:
                booleans ``(num_envs,)``, true for the environments that start their next episode; allowed only without
                a seed and without episodes. Other keys are ignored.

        Raises:
            InputError: If the seed, the episode numbers or the mask are invalid.
        """
        options = _check_reset_options(options)
        episodes = options.get("episodes")
        if seed is not None and not isinstance(seed, int | np.integer):
            seed, episodes = 0, seed
        if seed is not None and not 0 <= seed < 2**63:
            raise InputError(f"seed = {seed}: a run seed is a whole number from 0 to 2^63 − 1.")
        super().reset(seed=None if seed is None else int(seed))
        mask = _check_mask(options.get("reset_mask"), self.num_envs)
        if self._worlds is None or seed is not None or episodes is not None:
            if mask is not None:
                raise InputError("reset_mask works only without a seed, without episodes, and after a first reset.")
            run_seed = int(self.np_random.integers(2**31)) if seed is None else int(seed)
            worlds = self._begin(run_seed, episodes)
            begun = self._all
        else:
            worlds, begun = self._worlds, self._all if mask is None else np.flatnonzero(mask)
            worlds.restart(begun)
        verdict = self._judge(worlds, begun, begin=True)
        self.meter.begin(begun, verdict.potential, worlds.command[begun])
        self._over[begun] = False
        if len(begun) < self.num_envs:
            return self._observe(worlds, self._all, None), self._make_infos(worlds, verdict, begun, first=begun)
        return self._observe(worlds, begun, verdict), self._make_infos(worlds, verdict, begun, first=begun)

    def step(
        self, actions: NDArray[np.floating]
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Run one control step of every environment.

        An environment whose episode has ended starts its next episode as the autoreset mode defines.

        Args:
            actions: actions, ``(num_envs, nu)`` for nu actuators, in the form of the option ``action``.

        Returns:
            Observations, rewards ``(num_envs,)``, terminated ``(num_envs,)``, truncated ``(num_envs,)``, and infos.

        Raises:
            InputError: If the actions have another shape or are not numbers.
            gymnasium.error.ResetNeeded: If `reset` was never called, or an episode has ended and autoreset is disabled.
        """
        worlds, again = self._require_worlds(), np.flatnonzero(self._over)
        worlds.advance(self._commander.decode_actions(self._check_actions(actions), worlds.command))
        if len(again):
            worlds.restart(again)
        verdict = self._judge(worlds, self._all, begin=self._over)
        terminated = ((verdict.success & self.options.end_at_success) | ~worlds.valid) & ~self._over
        truncated = (worlds.steps >= self._limit) & ~terminated & ~self._over
        rewards = np.where(self._over, 0.0, self.meter.pay(verdict, worlds.command, worlds.valid))
        self.meter.begin(again, verdict.potential[again], worlds.command[again])
        self._over = terminated | truncated
        infos = self._make_infos(worlds, verdict, self._all, first=again)
        observation = self._observe(worlds, self._all, verdict)
        if self._mode is AutoresetMode.SAME_STEP and self._over.any():
            infos = self._restart_same_step(worlds, observation, infos)
        return observation, rewards.astype(np.float64), terminated, truncated, infos

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        """Return an RGB image ``(height, width, 3)`` uint8 of every environment, or None if ``render_mode`` is None."""
        if self.render_mode is None:
            return None
        return tuple(self._render_images(self._require_worlds(over=True), self._all)[self._camera])

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the value of an attribute, or the result of a method, once per environment (as `SyncVectorEnv`)."""
        value = getattr(self, name)
        value = value(*args, **kwargs) if callable(value) else value
        return value if isinstance(value, tuple) else (value,) * self.num_envs

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return the value of an attribute once per environment, as Gymnasium's vector environments do."""
        return self.call(name)

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ARG002  # Gymnasium's signature
        """Close the renderer; Gymnasium's ``close`` calls this method.

        The renderer may not exist, because Gymnasium also closes an environment whose constructor raised an error.
        """
        if hasattr(self, "_photographer"):
            self._photographer.close()
        self._worlds = None

    @property
    def worlds(self) -> WorldBatch:
        """Batch of the running worlds: true states, commands in SI units, episode numbers and drawn parameters.

        Raises:
            gymnasium.error.ResetNeeded: If `reset` was never called.
        """
        return self._require_worlds(over=True)

    def set_plan(self, plan: Plan) -> None:
        """Set the plan from which worlds are drawn after the next `reset` with a seed or with episodes."""
        self._plan = plan

    @property
    def observation_names(self) -> tuple[str, ...]:
        """Name of each element of a flat observation, such as ``elbow_flex/reading``."""
        return self._observer.names

    @property
    def task(self) -> str:
        """Name of the task (the option ``goal``)."""
        return self.options.goal

    @property
    def task_description(self) -> str:
        """Instruction in words, for a language-conditioned policy."""
        return self.goal.instruction

    @property
    def _max_episode_steps(self) -> int:
        return self._limit

    def _begin(self, run_seed: int, episodes: Any) -> WorldBatch:
        given = self._all if episodes is None else np.array(episodes, ndmin=1)
        whole = given.shape == (self.num_envs,) and np.issubdtype(given.dtype, np.integer)
        if not whole or given.min() < 0 or given.max() >= MAX_EPISODES:
            raise InputError(
                f"Episodes are {self.num_envs} whole numbers from 0, one per environment; given {episodes!r}."
            )
        first = given.astype(np.int64)
        source = PlannedEpisodes(
            self._plan, self.goal.task, run_seed=run_seed, first=first, repeat=self.options.repeat_episode
        )
        self._photographer.begin(run_seed)
        self._worlds = WorldBatch(self.twin, self._backend, source, self.num_envs, self._limit)
        return self._worlds

    def _require_worlds(self, *, over: bool = False) -> WorldBatch:
        if self._worlds is None:
            raise gymnasium.error.ResetNeeded("Call reset() first; there is no world yet.")
        if not over and self._mode is AutoresetMode.DISABLED and self._over.any():
            which = ", ".join(str(i) for i in np.flatnonzero(self._over)[:8])
            raise gymnasium.error.ResetNeeded(
                f"Environment {which} has ended, and autoreset is disabled. Call reset(options={{'reset_mask': …}})."
            )
        return self._worlds

    def _check_actions(self, actions: Any) -> NDArray[np.floating]:
        values = np.asarray(actions)
        wanted = (self.num_envs, *(self.single_action_space.shape or ()))
        if values.shape != wanted:
            raise InputError(f"Actions have shape {values.shape}, expected {wanted} (environments, joints).")
        if not np.can_cast(values.dtype, np.float64, casting="same_kind"):
            raise InputError(f"Actions are of type {values.dtype}; numbers are expected.")
        return values

    def _judge(self, worlds: WorldBatch, envs: NDArray[np.intp], *, begin: Any) -> GoalState:
        states = worlds.state if len(envs) == self.num_envs else worlds.state[envs]
        return self.goal.evaluate_states(states, envs, begin=begin)

    def _observe(self, worlds: WorldBatch, envs: NDArray[np.intp], verdict: GoalState | None) -> Any:
        states, params = worlds.state, worlds.params
        if len(envs) < self.num_envs:
            states, params = states[envs], params.take(envs)
        truth = self.goal.truth(states) if verdict is None else verdict.truth
        readings = self._readings.read_joints(states, params, worlds.steps[envs], envs)
        images = self._render_images(worlds, envs) if self.options.cameras else {}
        shown = {name: images[name] for name in self.options.cameras}
        return self._observer.encode_observations(states, readings, worlds.command[envs], truth, shown)

    def _restart_same_step(self, worlds: WorldBatch, observation: Any, infos: Infos) -> Infos:
        """Start the next episode of each environment that has ended, within the same step.

        The rows of these environments in ``observation`` are replaced in place by the first observations of the new
        episodes. Return the infos, including the final observations and infos of the ended episodes.
        """
        ended = np.flatnonzero(self._over)
        final = collect_final_rows(observation, ended, self.num_envs)
        worlds.restart(ended)
        verdict = self._judge(worlds, ended, begin=True)
        self.meter.begin(ended, verdict.potential, worlds.command[ended])
        replace_rows(observation, ended, self._observe(worlds, ended, verdict))
        self._over = np.zeros(self.num_envs, dtype=bool)
        return merge_final_infos(self._make_infos(worlds, verdict, ended, first=ended), infos, final, ended)

    def _make_infos(
        self, worlds: WorldBatch, verdict: GoalState, envs: NDArray[np.intp], *, first: NDArray[np.intp]
    ) -> Infos:
        infos = make_world_infos(worlds, verdict.success, envs)
        return infos | make_param_infos(worlds, first) if self.options.report_params and len(first) else infos

    def _render_images(self, worlds: WorldBatch, envs: NDArray[np.intp]) -> Images:
        return self._photographer.take_images(worlds.state[envs], worlds.current_params.take(envs))


def _parse_autoreset_mode(value: Any) -> AutoresetMode:
    if isinstance(value, AutoresetMode):
        return value
    modes = {mode.value: mode for mode in AutoresetMode}
    if value not in modes:
        raise UnknownNameError("autoreset_mode", str(value), modes)
    return modes[value]


def _check_reset_options(options: Any) -> dict[str, Any]:
    if options is not None and not isinstance(options, dict):
        raise InputError(f"The options of reset are a mapping, such as {{'episodes': [0, 1]}}; given {options!r:.60}.")
    for key in options or {}:
        near = [name for name in ("episodes", "reset_mask") if name.startswith(str(key)) or str(key).startswith(name)]
        if near and key not in near:
            raise UnknownNameError("option", str(key), ("episodes", "reset_mask"), where="reset")
    return options or {}


def _check_mask(value: Any, num_envs: int) -> NDArray[np.bool_] | None:
    if value is None:
        return None
    mask = np.asarray(value)
    if mask.shape != (num_envs,) or mask.dtype != np.bool_ or not mask.any():
        raise InputError(f"reset_mask is {num_envs} booleans, at least one of them true; given {value!r}.")
    return mask
