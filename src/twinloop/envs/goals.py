"""What there is to do in the worlds of a task: success and shaped reward, state by state.

``sparse`` rewards are 1 at the step that reaches success, else 0. ``dense`` rewards add to that the change of a
potential, F = Φ(next state) − Φ(state), which tells the way without changing which policy is best: it sums to the
potential gained, so that waiting earns nothing (potential-based shaping, Ng, Harada and Russell, ICML 1999, here
undiscounted). Every potential lies in [0, 1] per term and is made of ``1 − tanh(5 d)`` for distances d in m, the shape
that robosuite and ManiSkill use, of equal weights: our choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import UnknownNameError
from twinloop.tasks.pick_and_place import PickAndPlace, Scene
from twinloop.twin import Twin

_NEAR = 5.0  # 1/m: half of the way is told within 11 cm
_REACHED = 0.02  # m, of the point above the object; our choice, about the object's half width
_REACH_SECONDS = 3.0  # half of what pick and place has; our choice


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a goal says of one state of each of k worlds: success and potential ``(k,)``, and the scene it saw."""

    success: NDArray[np.bool_]
    potential: NDArray[np.float64]
    scene: Scene


class Goal(Protocol):
    """Success and potential of ``num_envs`` running worlds of ``task``."""

    task: PickAndPlace
    nstep: int
    instruction: str

    def look(self, states: NDArray[np.float64], envs: NDArray[np.intp], *, begin: ArrayLike = False) -> Verdict:
        """Judge the next state of some worlds, one row of ``states`` each.

        Args:
            begin: whether this is a world's first state, for all or for each.
        """
        ...


class PickAndPlaceGoal:
    """The task itself, see `PickAndPlaceConfig` for success. Φ is the sum of three terms.

    ``reach``: nearness of tool and object, 1 once the object has been lifted and lies or hangs over the target.
    ``lift``: the object's height over the height that counts as lifted, at most 1, and 1 ever after.
    ``carry``: horizontal nearness of object and target, 0 until the object has been lifted.
    """

    def __init__(self, task: PickAndPlace, num_envs: int) -> None:
        self.task, self.nstep, self.instruction = task, task.nstep, task.instruction
        self._watch = task.watch(num_envs)

    def look(self, states: NDArray[np.float64], envs: NDArray[np.intp], *, begin: ArrayLike = False) -> Verdict:
        """See `Goal`."""
        scene, config = self.task.scene(states), self.task.config
        success = self._watch.look(scene, envs, begin=begin)
        lifted = self._watch.lifted[envs]
        away = _norm(scene.object[:, :2] - scene.target[:, :2])
        there = lifted & (away <= config.target_radius)
        reach = np.where(there, 1.0, _nearness(_norm(scene.tool - scene.object)))
        lift = np.where(lifted, 1.0, np.clip(self._watch.rise[envs] / config.lifted, 0.0, 1.0))
        carry = np.where(lifted, _nearness(away), 0.0)
        return Verdict(success=success, potential=reach + lift + carry, scene=scene)


class ReachGoal:
    """Bring the tool within 2 cm of a point above the object (``lift_height`` from the table) and keep it there.

    "Keep" is as long as a placed object must rest in the task. Φ is the nearness of tool and point.
    """

    def __init__(self, task: PickAndPlace, num_envs: int) -> None:
        self.task, self.nstep = task, round(_REACH_SECONDS * task.twin.control_hz)
        self.instruction = f"Move the gripper above the {task.config.object}."
        self._streak = np.zeros(num_envs, dtype=np.int64)

    def look(self, states: NDArray[np.float64], envs: NDArray[np.intp], *, begin: ArrayLike = False) -> Verdict:
        """See `Goal`."""
        scene = self.task.scene(states)
        distance = _norm(scene.object + np.array([0.0, 0.0, self.task.config.lift_height]) - scene.tool)
        self._streak[envs] = np.where(distance <= _REACHED, np.where(begin, 0, self._streak[envs]) + 1, 0)
        success = np.isfinite(states).all(axis=-1) & (self._streak[envs] >= self.task.rest_steps)
        return Verdict(success=success, potential=_nearness(distance), scene=scene)


_GOALS = {"pick_and_place": PickAndPlaceGoal, "reach": ReachGoal}


def open_goal(name: str, twin: Twin, num_envs: int) -> Goal:
    """The goal of that name for a batch of worlds of a twin.

    Raises:
        UnknownNameError: there is none of that name.
        InputError: the twin does not fit its task.
    """
    if name not in _GOALS:
        raise UnknownNameError("goal", name, _GOALS)
    return _GOALS[name](PickAndPlace(twin), num_envs)


def _norm(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.sqrt((vectors**2).sum(axis=-1))


def _nearness(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1.0 - np.tanh(_NEAR * distance)
