"""What happened in a simulated pick and place, from its exact states: the hand closed, the object rose, was let go.

Every moment is the number of a state, which is also the frame at which it is seen.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.label.rule import Material
from twinloop.simulate.protocol import state_columns
from twinloop.tasks.pick_and_place import PickAndPlace

Array = NDArray[np.float64]
# Choices of ours, in m: an object that has risen this far has left the table (contact gives way by tenths of a
# millimetre), and one that moved this far is on its way. Both are below what a person would see in a picture.
_RISEN = 0.002
_MOVED = 0.002
_OPENING = 0.05  # of the hand's stroke: less is an encoder's step or a finger that gives way


@dataclass(frozen=True, kw_only=True)
class Placing:
    """A pick and place as series over states ``(T + 1,)``.

    ``distance`` of tool and object (m), ``rise`` of the object above its first height (m), ``opening`` of the hand
    (0 closed, 1 open), ``aside`` from the target (m, horizontal), ``way`` of the object from where it began (m,
    horizontal); ``speed`` of the tool (m/s, up in the second column, sideways in the first). ``done`` is the task's
    predicate. Lengths in m: ``reach``, beyond which no part of the hand touches the object; ``lifted``, what counts
    as lifted; ``radius`` of the target; ``tolerance`` of heights.
    """

    distance: Array
    rise: Array
    opening: Array
    aside: Array
    way: Array
    speed: Array
    left: NDArray[np.bool_]
    done: NDArray[np.bool_]
    reach: float
    lifted: float
    radius: float
    tolerance: float

    @classmethod
    def of(cls, material: Material) -> Placing | None:
        """Read from the states of an episode; None where it is no pick and place with states."""
        task, states = material.world, material.states
        if not isinstance(task, PickAndPlace) or states is None:
            return None
        scene, hand = task.scene(states), task.hand
        qpos = states[:, state_columns(task.twin.model, int(mujoco.mjtState.mjSTATE_QPOS))]
        opening = (qpos[:, hand.joint_qpos] - hand.closed) / (hand.open - hand.closed)
        moves = np.gradient(scene.tool, axis=0) * material.fps
        return cls(
            distance=np.linalg.norm(scene.tool - scene.object, axis=1),
            rise=scene.height - scene.height[0],
            opening=opening,
            aside=np.linalg.norm((scene.object - scene.target)[:, :2], axis=1),
            way=np.linalg.norm((scene.object - scene.object[0])[:, :2], axis=1),
            speed=np.stack([np.linalg.norm(moves[:, :2], axis=1), moves[:, 2]], axis=1),
            left=scene.left,
            done=task.success(states[None])[0],
            reach=task.release_distance,
            lifted=task.config.lifted,
            radius=task.config.target_radius,
            tolerance=task.config.height_tolerance,
        )

    @functools.cached_property
    def reached(self) -> int | None:
        """The first state with the object within reach."""
        return _first(self.distance <= self.reach)

    @functools.cached_property
    def held(self) -> int | None:
        """The first state at which the object, later counted as lifted, has left the table; None: it never is."""
        high = _first((self.rise >= self.lifted) & (self.distance <= self.reach))
        return None if high is None else _last(self.rise[:high] < _RISEN) + 1

    @functools.cached_property
    def closing(self) -> int | None:
        """The last state before the hand closes on the object that is held, else before it first closes in reach."""
        if self.held is None:
            if self.reached is None:
                return None
            shut = _first(self.opening[self.reached :] < self.opening[self.reached] - _OPENING)
            return None if shut is None else self.reached + shut
        widest = float(np.max(self.opening[: self.held]))
        return _last(self.opening[: self.held] >= widest - _OPENING)

    @functools.cached_property
    def opening_again(self) -> int | None:
        """The last state before the hand that holds the object opens; None: it never does."""
        if self.held is None:
            return None
        gripped = self.opening[self.held]
        wide = _first(self.opening[self.held :] > max(gripped + 4 * _OPENING, 0.5))
        if wide is None:
            return None
        return self.held + _last(self.opening[self.held : self.held + wide] <= gripped + _OPENING)

    @functools.cached_property
    def lost(self) -> int | None:
        """The first state after which the object is never again within reach of a hand that is still closed on it."""
        if self.held is None:
            return None
        end = len(self.rise) if self.opening_again is None else self.opening_again + 1
        grip = float(np.median(self.distance[self.held : self.held + 3]))
        away = self.distance[self.held : end] > grip + self.lifted
        return self.held + int(np.argmax(away)) if away.any() and away[-1] else None

    @functools.cached_property
    def carrying(self) -> tuple[int, int] | None:
        """States at which the object, on its way up, begins to be carried sideways, and begins to be set down.

        Each is where the tool is slowest between moving one way and moving the other.
        """
        start, end = self.held, self.opening_again
        if start is None or end is None or end - start < 3:
            return None
        sideways, up = self.speed[start:end].T
        rising = int(np.argmax(up))
        sinking = rising + int(np.argmin(up[rising:]))
        if sinking - rising < 2 or up[sinking] >= 0 or float(self.way[end - 1] - self.way[start]) < _MOVED:
            return None
        across = rising + int(np.argmax((sideways - np.abs(up))[rising : sinking + 1]))
        total = np.hypot(sideways, up)
        return start + _slowest(total, rising, across), start + _slowest(total, across, sinking)

    @functools.cached_property
    def leaving(self) -> int | None:
        """The state at which the tool, having let go, begins to move away."""
        if self.opening_again is None:
            return None
        total = np.hypot(*self.speed[self.opening_again :].T)
        if len(total) < 2:
            return None
        quick = _first(total > 0.5 * float(total.max()))
        return None if quick is None else self.opening_again + _last(total[: quick + 1] < 0.1 * float(total.max()))


def _first(condition: NDArray[np.bool_]) -> int | None:
    """The first place at which a condition holds."""
    found = np.flatnonzero(condition)
    return int(found[0]) if len(found) else None


def _last(condition: NDArray[np.bool_]) -> int:
    """The last place at which a condition holds; 0 where it never does."""
    found = np.flatnonzero(condition)
    return int(found[-1]) if len(found) else 0


def _slowest(speed: Array, start: int, stop: int) -> int:
    """The last of the slowest places from ``start`` to ``stop``, both included."""
    part = speed[start : stop + 1]
    return start + len(part) - 1 - int(np.argmin(part[::-1]))
