"""Convert simulator states to observations and actions to commands, and define both spaces of an environment."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.envs.options import EnvOptions
from twinloop.simulate.protocol import state_columns
from twinloop.tasks.protocol import Goal, has_tracked_values
from twinloop.twin import Twin

_ENVIRONMENT = "environment_state"  # LeRobot's name in observations of environments
Images = dict[str, NDArray[np.uint8]]


class ObservationEncoder:
    """Converter of simulator states to float32 observations of k worlds; numbers that are not finite become zero.

    Attributes:
        space: observation space of one environment.
        names: name of each element of a flat observation, in order.
    """

    def __init__(self, twin: Twin, goal: Goal, options: EnvOptions) -> None:
        """Create the encoder for the worlds of a goal.

        Raises:
            InputError: If ``environment_state`` is asked for, and the task has no tracked values.
        """
        self._twin, self._kind, self._task = twin, options.observation, None
        if options.environment_state:
            if not has_tracked_values(goal.task):
                raise InputError(f"environment_state: the task {goal.task.name} has no tracked values. Leave it out.")
            self._task = goal.task
        self._qvel = state_columns(self._twin.model, mujoco.mjtState.mjSTATE_QVEL)
        self.names = _list_names(self._twin, options.observation, goal.truth_names)
        self.space = self._make_space(options)

    def _make_space(self, options: EnvOptions) -> spaces.Space[Any]:
        flat = spaces.Box(-np.inf, np.inf, (len(self.names),), np.float32)
        if self._kind != "lerobot":
            return flat
        shape = (options.height, options.width, 3)
        images: dict[str, spaces.Space[Any]] = {n: spaces.Box(0, 255, shape, np.uint8) for n in options.cameras}
        parts: dict[str, spaces.Space[Any]] = {"agent_pos": flat}
        if self._task is not None:
            parts[_ENVIRONMENT] = spaces.Box(-np.inf, np.inf, (len(self._task.environment_names),), np.float32)
        return spaces.Dict({**parts, "pixels": spaces.Dict(images)} if images else parts)

    def encode_observations(
        self,
        states: NDArray[np.float64],
        readings: NDArray[np.float64],
        command: NDArray[np.float64],
        truth: NDArray[np.float64],
        images: Images,
    ) -> Any:
        """Return the observations of k worlds; every argument has one row per world.

        Args:
            states: simulator states, ``(k, nstate)``.
            readings: joint readings ``(k, njoint)``, in rad or m.
            command: last commands ``(k, nu)`` for nu actuators, in rad or m.
            truth: true quantities of the scene, which only a simulator has, ``(k, number of quantities)``.
            images: images by camera, for ``lerobot`` observations with cameras, ``(k, height, width, 3)`` uint8 each.
        """
        if self._kind == "lerobot":
            observation: dict[str, Any] = {"agent_pos": _replace_non_finite(self._twin.units.from_si(readings))}
            if self._task is not None:
                observation[_ENVIRONMENT] = _replace_non_finite(self._task.environment(states))
            return {**observation, "pixels": images} if images else observation
        parts = [readings, command]
        if self._kind == "state":
            parts += [states[:, self._qvel][:, self._twin.joint_qvel], truth]
        return _replace_non_finite(np.concatenate(parts, axis=1))


class ActionDecoder:
    """Converter of actions to commands of the actuators.

    The option ``action`` defines the meaning of an action. ``absolute``: -1 to 1 is the range of the command.
    ``delta``: the change of the command, where 1 is the fraction ``delta`` (an option) of its range. ``dataset``: the
    command in the dataset's units. The range of a command is that of its joint; if commands are torques or velocities,
    that of its actuator.

    Attributes:
        space: action space of one environment, one number per actuator.

    Args:
        twin: the twin.
        options: options of the environment, of which ``action`` and ``delta`` are used.

    Raises:
        InputError: If a command has no range.
    """

    def __init__(self, twin: Twin, options: EnvOptions) -> None:
        self._kind, self._units = options.action, twin.command_units
        self._low, self._high = twin.find_command_ranges()
        self._step = options.delta * (self._high - self._low)
        ones = np.ones(len(self._low), dtype=np.float32)
        self.space = spaces.Box(-ones, ones, dtype=np.float32)
        if self._kind == "dataset":
            ends = np.sort(self._units.from_si([self._low, self._high]), axis=0)
            self.space = spaces.Box(*ends.astype(np.float32), dtype=np.float32)

    def decode_actions(self, action: NDArray[np.floating], before: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the commands for actions of k worlds, ``(k, nu)`` for nu actuators, in rad or m.

        Scaled actions are clipped to [-1, 1], and targets to the joints' ranges. Actions in the dataset's units are not
        clipped, as on a real robot.

        Args:
            action: actions, ``(k, nu)``.
            before: commands of the previous step, ``(k, nu)`` in rad or m; ``delta`` actions are added to them.
        """
        values = np.asarray(action, dtype=np.float64)
        if self._kind == "dataset":
            return self._units.to_si(values)
        scaled = np.clip(values, -1.0, 1.0)
        if self._kind == "delta":
            return np.clip(before + self._step * scaled, self._low, self._high)
        return self._low + 0.5 * (scaled + 1.0) * (self._high - self._low)


def _list_names(twin: Twin, kind: str, truth: tuple[str, ...]) -> tuple[str, ...]:
    joints = twin.robot.joints
    names = [f"{joint}/reading" for joint in joints]
    if kind == "lerobot":
        return tuple(names)
    names += [f"{joint}/command" for joint in joints]
    if kind == "readings":
        return tuple(names)
    names += [f"{joint}/velocity" for joint in joints]
    return (*names, *truth)


def _replace_non_finite(values: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.nan_to_num(values.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
