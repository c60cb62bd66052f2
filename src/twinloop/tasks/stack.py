"""Define the task to stack an object on another one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.simulate import InitialState
from twinloop.tasks.grasp_rules import Place
from twinloop.tasks.handling import GraspSettings, HandlingTask
from twinloop.tasks.milestones import Milestone
from twinloop.tasks.predicates import in_disc, running_maximum
from twinloop.tasks.reactive import Rule
from twinloop.tasks.waypoints import ToolState, WaypointExpert
from twinloop.twin import Twin

Array = NDArray[np.float64]

_DROP = 0.001  # m: the object is let go at this height above its place
_FIT, _FUNNEL = 0.2, 0.4  # radii: the object is lowered within the first, and kept above the base beyond both


@dataclass(frozen=True, kw_only=True)
class StackSettings(GraspSettings):
    """Settings of the task, in m; our choice, no published values.

    Attributes:
        base: name of the object below.
        radius: largest horizontal distance of the two centres.
        tolerance: allowed error of the object's height above the base.
    """

    base: str
    radius: float = 0.015
    tolerance: float = 0.005


class Stack(HandlingTask):
    """Task to stack an object on another one and let it go."""

    name = "stack"

    def __init__(self, twin: Twin) -> None:
        """Prepare the task for a twin; see `OwnTask` and `settings.read_settings` for errors."""
        super().__init__(twin)
        self.settings = self.read_settings(StackSettings)
        self.require_bodies(objects=(self.settings.object, self.settings.base))
        self.instruction = f"Stack the {self.settings.object} on the {self.settings.base}."
        thing, base = (self.objects[name].rest_height for name in (self.settings.object, self.settings.base))
        self._above = thing + base  # m: between the centres, as both rest on the table at their half heights

    def success(self, states: Array) -> NDArray[np.bool_]:
        """Return whether the object rests on the base, with the hand open and away, for each recorded state."""
        return self._is_above(states) & self.left_alone(states, self.settings.object)

    def progress(self, states: Array) -> Array:
        """Return the largest share of the object's initial distance from its place that was covered so far."""
        thing, base = self._pair(states)
        away = np.linalg.norm(thing - base - [0.0, 0.0, self._above], axis=-1)
        covered = running_maximum(1.0 - away / np.maximum(away[:, :1], self.settings.radius))
        return np.where(self.success(states), 1.0, 0.9 * np.nan_to_num(covered))

    def expert(self, initial: InitialState) -> WaypointExpert:
        """Return the scripted expert for worlds that start in ``initial``."""
        grasp = self.make_grasp(initial)
        return self.make_expert(initial, grasp, self.put(grasp, lambda now: self._place(now, _DROP)))

    def rules(self, initial: InitialState) -> list[Rule]:
        """Return the rules of the expert without memory, for worlds that start in ``initial``."""
        place = Place(centre=self._place, fit=_FIT * self.settings.radius, funnel=_FUNNEL * self.settings.radius)
        return self.make_rules(initial, self.settings.radius, place)

    def milestones(self, states: Array) -> list[Milestone]:
        """Return the milestones of one episode, ``(T + 1, nstate)``; see `HandlingTask.handling_milestones`."""
        return self.handling_milestones(states, self._is_above(states))

    def _is_above(self, states: Array) -> NDArray[np.bool_]:
        thing, base = self._pair(states)
        level = np.abs(thing[..., 2] - base[..., 2] - self._above) <= self.settings.tolerance
        return level & in_disc(thing, base, self.settings.radius)

    def _place(self, now: ToolState, gap: float = 0.0) -> Array:
        """Return where the object's centre is, ``(nworld, 3)`` in m, this far above its place on the base."""
        return now.body(self.objects[self.settings.base].qpos) + np.array([0.0, 0.0, self._above + gap])

    def _pair(self, states: Array) -> tuple[Array, Array]:
        return self.position(states, self.settings.object), self.position(states, self.settings.base)
