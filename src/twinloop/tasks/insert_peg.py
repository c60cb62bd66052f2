"""Define the task to insert a peg into the hole of a socket."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.simulate import InitialState
from twinloop.tasks.grasp_rules import Place
from twinloop.tasks.grasping import QUARTER
from twinloop.tasks.handling import GraspSettings, HandlingTask
from twinloop.tasks.milestones import Milestone
from twinloop.tasks.predicates import in_disc, running_maximum
from twinloop.tasks.reaching import heading
from twinloop.tasks.reactive import Rule
from twinloop.tasks.waypoints import Waypoint, WaypointExpert
from twinloop.twin import Twin

Array = NDArray[np.float64]

_SETTLE = 8.0  # times the servos' lag plus a control step in which the tool comes to rest before the peg is lowered
_DROP = 0.002  # m: the peg is let go at this height above the table
_CLEAR = 0.008  # m between the peg's lower end and the socket before it is lowered
_FIT, _FUNNEL, _TWIST = 0.0005, 0.002, 0.03  # m, m, rad: errors at which the peg is lowered, see `grasp_rules.Place`


@dataclass(frozen=True, kw_only=True)
class PegSettings(GraspSettings):
    """Settings of the task, in m; our choice, no published values.

    Attributes:
        socket: name of the socket's mocap body, whose origin is on the table below its hole.
        height: height of the socket.
        depth: depth below the socket's top that the peg's lower end must reach.
        radius: largest horizontal distance of the peg's centre from the hole's axis.
    """

    socket: str
    height: float
    depth: float = 0.02
    radius: float = 0.006


class InsertPeg(HandlingTask):
    """Task to insert a standing peg into the hole of a socket and let it go."""

    name = "insert_peg"

    def __init__(self, twin: Twin) -> None:
        """Prepare the task for a twin; see `OwnTask` and `settings.read_settings` for errors."""
        super().__init__(twin)
        self.settings = self.read_settings(PegSettings)
        self.require_bodies(objects=[self.settings.object], targets=[self.settings.socket])
        self.instruction = f"Insert the {self.settings.object} into the {self.settings.socket}."
        self._half = self.objects[self.settings.object].rest_height  # of the peg, which stands on the table

    def success(self, states: Array) -> NDArray[np.bool_]:
        """Return whether the peg is in the hole, with the hand open and away, for each recorded state."""
        return self._is_inside(states) & self.left_alone(states, self.settings.object)

    def progress(self, states: Array) -> Array:
        """Return the largest share so far of the way to the hole's axis (three quarters) and then into it."""
        settings, (peg, socket) = self.settings, self._pair(states)
        away = np.linalg.norm((peg - socket)[..., :2], axis=-1)
        near = np.clip(1.0 - (away - settings.radius) / np.maximum(away[:, :1], settings.radius), 0.0, 1.0)
        sunk = np.clip((settings.height - self._lower_end(peg, socket)) / settings.depth, 0.0, 1.0)
        share = running_maximum(np.nan_to_num(0.75 * near + 0.2 * np.where(away <= settings.radius, sunk, 0.0)))
        return np.where(self.success(states), 1.0, share)

    def expert(self, initial: InitialState) -> WaypointExpert:
        """Return the scripted expert for worlds that start in ``initial``."""
        settings, grasp, (foot, yaw) = self.settings, self.make_grasp(initial), self._find_socket(initial)
        above = foot + np.array([0.0, 0.0, settings.height + _CLEAR + self._half])
        inside = foot + np.array([0.0, 0.0, self._half + _DROP])
        carry, lower, *rest = self.put(grasp, inside)
        turn = grasp.frame.alignment_turn(foot, yaw, QUARTER)
        carry = Waypoint(name="carry", position=carry.position, turn=turn, seconds=0.6)
        still = _SETTLE * (1.0 + float(self.arm.servo.lag.max())) / self.twin.control_hz
        aim = Waypoint(name="aim", position=lambda now: now.tool + above - grasp.centre(now), seconds=still)
        return self.make_expert(initial, grasp, [carry, aim, aim, lower, *rest])

    def rules(self, initial: InitialState) -> list[Rule]:
        """Return the rules of the expert without memory, for worlds that start in ``initial``."""
        foot, yaw = self._find_socket(initial)
        inside = foot + np.array([0.0, 0.0, self._half])
        place = Place(
            centre=lambda now: inside + 0.0 * now.tool,  # a row for each world
            fit=_FIT,
            funnel=_FUNNEL,
            rim=self.settings.height,
            yaw=yaw,
            twist=_TWIST,
        )
        return self.make_rules(initial, self.settings.radius, place)

    def milestones(self, states: Array) -> list[Milestone]:
        """Return the milestones of one episode, ``(T + 1, nstate)``; see `HandlingTask.handling_milestones`."""
        return self.handling_milestones(states, self._is_inside(states))

    def _find_socket(self, initial: InitialState) -> tuple[Array, Array]:
        """Return the foot of the socket, ``(nworld, 3)`` in m, and its heading, ``(nworld,)`` in rad."""
        row = self._targets[self.settings.socket]
        return initial.mocap_pos[:, row], heading(initial.mocap_quat[:, row])

    def _is_inside(self, states: Array) -> NDArray[np.bool_]:
        settings, (peg, socket) = self.settings, self._pair(states)
        deep = self._lower_end(peg, socket) <= settings.height - settings.depth
        return deep & in_disc(peg, socket, settings.radius)

    def _pair(self, states: Array) -> tuple[Array, Array]:
        return self.position(states, self.settings.object), self.position(states, self.settings.socket)

    def _lower_end(self, peg: Array, socket: Array) -> Array:
        return peg[..., 2] - self._half - socket[..., 2]
