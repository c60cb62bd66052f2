"""Define the task to open a drawer by its knob."""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import UnknownNameError
from twinloop.simulate import InitialState
from twinloop.tasks.milestones import Milestone, MilestonePhases
from twinloop.tasks.own import OwnTask
from twinloop.tasks.predicates import occurred_before, running_maximum
from twinloop.tasks.reaching import GraspFrame
from twinloop.tasks.waypoints import Waypoint, WaypointExpert, set_height
from twinloop.twin import Twin

Array = NDArray[np.float64]

_AT_REST, _REST_S = 0.01, 0.2  # m/s and s: a drawer that is slower than this for so long has stopped; our choice
_AT_KNOB = 0.02  # m: a closed hand that is no farther from its place at the knob holds it
_MOVED = 0.005  # m: a drawer that is open so far is held at its knob, or was pushed
_BEYOND = 0.01  # m: the expert opens the drawer so much further than needed


@dataclass(frozen=True, kw_only=True)
class DrawerSettings:
    """Settings of the task, in m and s; our choice, no published values.

    Attributes:
        cabinet: name of the cabinet's mocap body.
        drawer: name of the drawer's sliding joint.
        knob: name of the geom at which the drawer is opened.
        opening: how far the drawer must be open.
        grasp_height: height of the tool site when it grasps the knob.
        lift_height: height of the tool site above the knob.
        away: distance of the tool site from the knob's centre beyond which the hand has let it go.
        duration: length of an episode.
    """

    cabinet: str
    drawer: str
    knob: str
    opening: float
    grasp_height: float
    lift_height: float
    away: float
    duration: float = 7.0


class OpenDrawer(MilestonePhases, OwnTask):
    """Task to open a drawer by its knob and let the knob go."""

    name = "open_drawer"

    def __init__(self, twin: Twin) -> None:
        """Prepare the task for a twin.

        Raises:
            UnknownNameError: If the twin has no such cabinet, joint or geom. See `settings.read_settings` for others.
        """
        super().__init__(twin)
        self.settings = settings = self.read_settings(DrawerSettings)
        self.instruction = "Open the drawer."
        self.require_bodies(targets=[settings.cabinet])
        model = twin.model
        for kind, name, count, find in (
            ("joint", settings.drawer, model.njnt, model.joint),
            ("geom", settings.knob, model.ngeom, model.geom),
        ):
            known = [one for one in (find(i).name for i in range(count)) if one]
            if name not in known:
                raise UnknownNameError(kind, name, known, where=f"the twin {twin.name}, task.{self.name}")
        joint, data = model.joint(settings.drawer), mujoco.MjData(model)
        data.qpos[:], _ = twin.home()
        data.qpos[joint.qposadr[0]] = 0.0
        mujoco.mj_forward(model, data)
        self._row, self._dof = int(joint.qposadr[0]), int(joint.dofadr[0])
        self._axis = data.xaxis[joint.id].copy()
        self._offset = data.geom(settings.knob).xpos - data.body(settings.cabinet).xpos  # of the closed drawer's knob

    def success(self, states: Array) -> NDArray[np.bool_]:
        """Return whether the drawer was pulled out, has stopped, and the hand is open and away, for each state.

        Pulled means that the hand was closed at the knob while the drawer was half open: a knock does not count.
        """
        settings, hand = self.settings, self.hand
        opening = self._opening(states)
        free = hand.opening_share(self.qpos(states)) > 0.5
        knob = self._knob(states)
        grasp = np.stack([knob[..., 0], knob[..., 1], 0.0 * knob[..., 2] + settings.grasp_height], axis=-1)
        held = ~free & (np.linalg.norm(self.position(states, "tool") - grasp, axis=-1) <= _AT_KNOB)
        gap = np.linalg.norm(self.position(states, "tool") - knob, axis=-1)
        pulled = occurred_before(held & (opening >= 0.5 * settings.opening))
        opened = pulled & (opening >= settings.opening) & (np.abs(self.qvel(states)[..., self._dof]) < _AT_REST)
        return self.kept(opened & free & (gap > settings.away), _REST_S)

    def progress(self, states: Array) -> Array:
        """Return the largest share of the needed opening so far."""
        share = running_maximum(np.nan_to_num(self._opening(states)) / self.settings.opening)
        return np.where(self.success(states), 1.0, 0.95 * share)

    def milestones(self, states: Array) -> list[Milestone]:
        """Return the milestones of one episode, ``(T + 1, nstate)``: hand at the knob, drawer moves, open, let go."""
        settings, opening = self.settings, self._opening(states)
        gap = np.linalg.norm(self.position(states, "tool") - self._knob(states), axis=1)
        near = f"the tool came within {1000 * np.nanmin(gap):.0f} mm of the knob"
        most = (
            f"the drawer opened by {1000 * np.nanmax(opening):.0f} mm; {1000 * settings.opening:.0f} mm are asked for"
        )
        last = "the drawer was open, but not at rest with the hand open and away from the knob"
        return [
            Milestone(phase="grasp", passed=gap <= settings.away, failure="never_reached", reason=near),
            Milestone(phase="transport", passed=opening > _MOVED, failure="grasp_missed", reason=most),
            Milestone(phase="release", passed=opening >= settings.opening, failure="timeout", reason=most),
            Milestone(phase="retreat", passed=self.success(states[None])[0], failure="not_released", reason=last),
        ]

    @property
    def environment_names(self) -> tuple[str, ...]:
        """Names of the values of `environment`: those of every task, and how far the drawer is open in m."""
        return (*super().environment_names, f"{self.settings.drawer}.opening")

    def environment(self, states: Array) -> Array:
        """Return the tracked values ``(…, n)`` in recorded states ``(…, nstate)``."""
        opening = np.nan_to_num(self._opening(states))
        return np.concatenate([super().environment(states), opening[..., None]], axis=-1)

    def expert(self, initial: InitialState) -> WaypointExpert:
        """Return the scripted expert for worlds that start in ``initial``."""
        settings = self.settings
        knob = self.start(initial, settings.cabinet) + self._offset + self._axis * initial.qpos[:, self._row, None]
        pulled = knob + self._axis * (settings.opening + _BEYOND)
        heights = (settings.grasp_height, settings.lift_height)
        above, at, out, up = (
            set_height(place, height)
            for place, height in ((knob, heights[1]), (knob, heights[0]), (pulled, heights[0]), (pulled, heights[1]))
        )
        frame = GraspFrame(self.arm.chain, self.hand, self.arm.home, heights=heights)
        across = np.full(len(knob), np.arctan2(self._axis[0], -self._axis[1]))  # the jaws are on both sides of the way
        turn = frame.alignment_turn(above, across, np.pi)
        waypoints = [
            Waypoint(name="approach", position=above, turn=turn, gripper="open", seconds=0.6, patience=0.7),
            Waypoint(name="descend", position=at, seconds=0.6),
            Waypoint(name="close", gripper="closed", seconds=0.5, patience=0.0),
            Waypoint(name="pull", position=out, pace=0.5, patience=0.8),
            Waypoint(name="open", gripper="open", seconds=0.4, patience=0.0),
            Waypoint(name="retreat", position=up, patience=0.2),
        ]
        return WaypointExpert(self.arm, initial, waypoints, frame=frame, hand=self.hand)

    def _knob(self, states: Array) -> Array:
        cabinet = self.position(states, self.settings.cabinet)
        return cabinet + self._offset + self._axis * self._opening(states)[..., None]

    def _opening(self, states: Array) -> Array:
        return self.qpos(states)[..., self._row]
