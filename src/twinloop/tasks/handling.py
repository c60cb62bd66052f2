"""Base class of tasks in which a hand grasps an object from above, carries it, and lets it go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from twinloop.simulate import InitialState
from twinloop.tasks.grasp_rules import GraspRules, Place
from twinloop.tasks.grasping import GraspFromAbove
from twinloop.tasks.hand import measure_jaw_openings
from twinloop.tasks.milestones import Milestone, MilestonePhases
from twinloop.tasks.own import OwnTask
from twinloop.tasks.predicates import slower_than
from twinloop.tasks.reaching import GraspFrame
from twinloop.tasks.reactive import Rule
from twinloop.tasks.waypoints import ToolState, Waypoint, WaypointExpert, set_height

Array = NDArray[np.float64]

# As in pick and place: height in m from which an object counts as lifted; speeds in m/s and rad/s below which it is at
# rest, and the time in s for which it must be.
LIFTED, REST_SPEED, REST_SPIN, REST_S = 0.02, 0.01, 0.2, 0.2


@dataclass(frozen=True, kw_only=True)
class GraspSettings:
    """Settings of the grasp, in m, rad and s; our choice for each arm.

    Attributes:
        object: name of the object.
        grasp_height: height of the tool site above the table at the grasp.
        lift_height: height of the tool site while it carries the object.
        approach_tilt: outward tilt of the hand at ``lift_height``.
        duration: length of an episode.
    """

    object: str
    grasp_height: float
    lift_height: float
    approach_tilt: float = 0.0
    duration: float = 7.0


class HandlingTask(MilestonePhases, OwnTask):
    """Task in which the arm grasps the object of its settings; `expert` and `success` remain to be defined."""

    settings: GraspSettings

    def make_grasp(self, initial: InitialState) -> GraspFromAbove:
        """Return the grasp of the object in worlds that start in ``initial``."""
        settings, thing = self.settings, self.objects[self.settings.object]
        rise = initial.qpos[:, thing.qpos + 2] - thing.rest_height  # of the table below the object
        return GraspFromAbove(
            self.arm,
            self.hand,
            thing,
            initial,
            target=initial.qpos[:, thing.qpos : thing.qpos + 3],
            grasp_height=settings.grasp_height,
            lift_height=settings.lift_height,
            tilt=settings.approach_tilt,
            ground=(rise, np.zeros((initial.nworld, 2))),
        )

    def tool_frame(self, initial: InitialState) -> GraspFrame:
        """Return the orientation of a hand that grasps from above, to which the rules refer."""
        return self.make_grasp(initial).frame

    def make_rules(self, initial: InitialState, radius: float, place: Place) -> list[Rule]:
        """Return the rules of an expert without memory that brings the object to a place; see `GraspRules`.

        Args:
            initial: initial states of the worlds.
            radius: horizontal distance of the object from its place that counts as success, in m.
            place: the place.
        """
        grasp, thing = self.make_grasp(initial), self.objects[self.settings.object]
        grasp.centre_between_jaws(*self._jaw_openings)
        return GraspRules(grasp=grasp, radius=radius, clear=thing.radius + self.hand.tip, place=place).rules()

    @cached_property
    def _jaw_openings(self) -> tuple[Array, Array]:
        return measure_jaw_openings(self.twin, self.hand)

    def make_expert(self, initial: InitialState, grasp: GraspFromAbove, waypoints: list[Waypoint]) -> WaypointExpert:
        """Return an expert that picks the object up, follows ``waypoints``, and returns home."""
        home = Waypoint(name="home", position=self.arm.home_position, gripper="home", seconds=0.8, patience=np.inf)
        return WaypointExpert(self.arm, initial, [*grasp.pick(), *waypoints, home], frame=grasp.frame, hand=self.hand)

    def put(self, grasp: GraspFromAbove, goal: Array | Callable[[ToolState], Array]) -> list[Waypoint]:
        """Return waypoints that carry the object above a place, lower it there, let it go, and lift the hand.

        Args:
            grasp: the grasp.
            goal: goal of the object's centre, ``(nworld, 3)`` in m, or a function that returns it.
        """

        def tool_at(now: ToolState) -> Array:
            return now.tool + (goal(now) if callable(goal) else goal) - grasp.centre(now)

        return [
            Waypoint(name="carry", position=lambda now: set_height(tool_at(now), grasp.lift), seconds=0.6),
            Waypoint(name="lower", position=tool_at, pace=0.5, patience=0.8),
            Waypoint(name="open", gripper="open", seconds=0.4, patience=0.0),
            Waypoint(name="retreat", position=lambda now: set_height(now.tool, grasp.lift), patience=0.0),
        ]

    def handling_milestones(self, states: Array, placed: NDArray[np.bool_]) -> list[Milestone]:
        """Return the milestones of one episode: object within reach, lifted, at its place, and success.

        Args:
            states: states of the episode, ``(T + 1, nstate)``.
            placed: whether the object is at its place, ``(T + 1,)``.
        """
        thing, tool = (self.position(states, name) for name in (self.settings.object, "tool"))
        gap, rise = np.linalg.norm(tool - thing, axis=1), thing[:, 2] - thing[0, 2]
        reach = self.objects[self.settings.object].radius + self.hand.tip
        nearest = 1000 * np.nanmin(gap)
        near = f"the tool came within {nearest:.0f} mm of the object, and touches it from {1000 * reach:.0f} mm on"
        high = f"the object rose by {1000 * np.nanmax(rise):.0f} mm; {1000 * LIFTED:.0f} mm count as lifted"
        last = "the object was at its place, but not at rest there with the hand open and away"
        return [
            Milestone(phase="grasp", passed=gap <= reach, failure="never_reached", reason=near),
            Milestone(phase="lift", passed=rise >= LIFTED, failure="grasp_missed", reason=high),
            Milestone(
                phase="place", passed=placed, failure="placed_off_target", reason="the object never was at its place"
            ),
            Milestone(phase="retreat", passed=self.success(states[None])[0], failure="not_released", reason=last),
        ]

    def left_alone(self, states: Array, name: str) -> NDArray[np.bool_]:
        """Return whether an object has been at rest for 0.2 s with the hand open and out of reach, for each state.

        Args:
            states: recorded states, ``(nworld, nstep + 1, nstate)``.
            name: the object.
        """
        thing, hand = self.objects[name], self.hand
        still = slower_than(self.qvel(states)[..., thing.qvel : thing.qvel + 6], REST_SPEED, REST_SPIN)
        opening = hand.opening_share(self.qpos(states))
        away = np.linalg.norm(self.position(states, "tool") - self.position(states, name), axis=-1)
        free = still & (opening > 0.5) & (away > thing.radius + hand.tip)
        return self.kept(free, REST_S)
