"""Compute the reward of running worlds as a weighted sum of named terms.

Each term is scaled to an episode: the sum of ``success`` or ``holding`` over an episode is at most 1, and that of
``progress`` is the change of the task's potential. The penalties are means over the steps of an episode, so weights do
not depend on its length. The scales and weights are choices of this package.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.tasks.protocol import GoalState
from twinloop.twin import Twin

Array = NDArray[np.float64]

REWARD_TERMS: Mapping[str, str] = {
    "progress": "change of the task's potential or progress",
    "success": "1 at the first step with success",
    "holding": "share of the episode's steps with success",
    "effort": "minus the mean squared speed of the commands, in ranges per second",
    "smoothness": "minus the mean squared change of this speed from step to step, in ranges per second",
    "limits": "minus the mean distance of the commands beyond their ranges, in ranges",
}
"""Reward terms and what each pays, with sums and means over an episode."""

REWARDS: Mapping[str, Mapping[str, float]] = {
    "dense": {"progress": 1.0, "success": 1.0},
    "sparse": {"success": 1.0},
}
"""Named rewards, as weights of their terms."""


def read_reward(value: str | Mapping[str, float], *, where: str) -> dict[str, float]:
    """Return the weight of each term of a reward.

    Args:
        value: ``dense``, ``sparse``, or weights by name of the term.
        where: place of the value, for messages.

    Raises:
        UnknownNameError: If the reward or a term does not exist.
        InputError: If there is no term, or a weight is not a finite number of at least 0.
    """
    if not isinstance(value, Mapping):
        if value not in REWARDS:
            raise UnknownNameError("reward", str(value), [*REWARDS, "a mapping of terms to weights"], where=where)
        return dict(REWARDS[value])
    for name, weight in value.items():
        if name not in REWARD_TERMS:
            raise UnknownNameError("reward term", str(name), REWARD_TERMS, where=where)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < np.inf:
            raise InputError(f"{where}: the weight of {name} is {weight!r}; give a finite number of at least 0.")
    if not any(value.values()):
        raise InputError(f"{where}: the reward has no term with a weight. Terms: {', '.join(REWARD_TERMS)}.")
    return {name: float(weight) for name, weight in value.items()}


class RewardMeter:
    """Compute the reward terms of running worlds, step by step.

    Under position control the speed of a command is its change per second, divided by its range. Under velocity and
    torque control it is the command itself, divided by its limit.

    Args:
        twin: twin of the worlds.
        nworld: number of worlds.
        nstep: control steps of an episode.
        weights: weight of each term, see `read_reward`.

    Attributes:
        latest: unweighted terms of the last step, ``(nworld,)`` each.
        potential: potential of the last states, ``(nworld,)``.

    Raises:
        InputError: If a term needs the range of a command, and a joint has no range.
    """

    def __init__(self, twin: Twin, nworld: int, nstep: int, weights: Mapping[str, float]) -> None:
        self._weights, self._nstep = dict(weights), nstep
        self._is_position, self._hz = twin.robot.control == "position", twin.control_hz
        if any(name in weights for name in ("effort", "smoothness", "limits")):
            self._low, self._high = twin.find_command_ranges()
        else:
            self._low, self._high = np.full((2, twin.model.nu), -np.inf)
            self._high = -self._low
        self.potential, self._speed = np.zeros(nworld), np.zeros((nworld, twin.model.nu))
        self._command, self._reached = self._speed.copy(), np.zeros(nworld, dtype=bool)
        self.latest: dict[str, Array] = {}

    def begin(self, worlds: NDArray[np.intp], potential: Array, command: Array) -> None:
        """Start an episode in k worlds (indices), with the potential ``(k,)`` and the initial commands ``(k, nu)``."""
        self.potential[worlds], self._command[worlds] = potential, command
        self._speed[worlds], self._reached[worlds] = 0.0, False

    def pay(self, goal: GoalState, command: Array, valid: NDArray[np.bool_]) -> Array:
        """Return the reward ``(nworld,)`` of one step, and set ``latest``.

        Args:
            goal: evaluation of the new states.
            command: commands of the step, ``(nworld, nu)`` in rad or m (N·m or N under torque control).
            valid: worlds that are valid, ``(nworld,)``; the others get no progress.
        """
        terms = self._goal_terms(goal, valid)
        if np.isfinite(self._low).all():
            terms |= self._command_terms(command)
        self.potential, self._command = goal.potential.copy(), np.array(command)
        self.latest = {name: terms[name] for name in self._weights}
        return sum((weight * terms[name] for name, weight in self._weights.items()), np.zeros(len(valid)))

    def _goal_terms(self, goal: GoalState, valid: NDArray[np.bool_]) -> dict[str, Array]:
        first = goal.success & ~self._reached
        self._reached |= goal.success
        return {
            "progress": np.where(valid, goal.potential - self.potential, 0.0),
            "success": first.astype(np.float64),
            "holding": goal.success / self._nstep,
        }

    def _command_terms(self, command: Array) -> dict[str, Array]:
        size = self._high - self._low
        safe = np.nan_to_num(command)
        speed = (safe - self._command) * self._hz / size if self._is_position else 2.0 * safe / size
        beyond = np.maximum(self._low - safe, 0.0) + np.maximum(safe - self._high, 0.0)
        terms = {
            "effort": -(speed**2).mean(axis=1) / self._nstep,
            "smoothness": -((speed - self._speed) ** 2).mean(axis=1) / self._nstep,
            "limits": -(beyond / size).mean(axis=1) / self._nstep,
        }
        self._speed = speed
        return terms
