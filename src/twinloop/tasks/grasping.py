"""Compute the waypoints with which a gripper picks up an object from above and places it on a target."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinloop.simulate import InitialState
from twinloop.simulate.arrays import HOST, ArrayLibrary
from twinloop.tasks.arm import Arm
from twinloop.tasks.ground import FreeBody
from twinloop.tasks.hand import GripperHand
from twinloop.tasks.reaching import GraspFrame, heading
from twinloop.tasks.waypoints import ToolState, Waypoint, set_height

_SIDE_CLEARANCE = 0.010  # m between a fixed finger and the object on the way down and up
_DROP = 0.001  # m: the object is released at this height above its resting height
_HOVER = 0.015  # m between finger tips and the object's top before the descent
_TIP_CLEARANCE = 0.003  # m between finger tips and table at the grasp
QUARTER = np.pi / 2  # rad: a box can be grasped by either pair of sides, and a square peg fits every quarter turn


class GraspFromAbove:
    """Waypoints of a grasp from above; pass ``frame`` and the hand to `WaypointExpert`, too.

    Attributes:
        frame: orientation of the hand.
        rest: height of the object's centre above the table in the initial states, ``(nworld,)`` in m.
        clearance: distance between a fixed finger and the object on the way down, ``(nworld,)`` in m; 0 without one.
        lift: height of the tool while it carries the object, ``(nworld,)`` in m in the world frame.

    Args:
        arm: the arm.
        hand: its gripper.
        thing: free body of the object.
        initial: initial states of the worlds.
        target: position of the target, ``(3,)`` or ``(nworld, 3)`` in m; only `place` uses its x and y.
        grasp_height: height of the tool site above the table at the grasp, in m.
        lift_height: height of the tool site while it carries the object, in m.
        tilt: outward tilt of the hand at ``lift_height``, in rad.
        ground: the table's height at the target minus that in the nominal twin, ``(nworld,)`` in m, and the table's
            slope ``(nworld, 2)``, the rise in m per m along x and y; by default the nominal table.
        arrays: library of the arrays, for example NumPy.
    """

    def __init__(
        self,
        arm: Arm,
        hand: GripperHand,
        thing: FreeBody,
        initial: InitialState,
        *,
        target: NDArray[np.float64],
        grasp_height: float,
        lift_height: float,
        tilt: float = 0.0,
        ground: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None,
        arrays: ArrayLibrary = HOST,
    ) -> None:
        there, self._xp, self._thing = arrays.asarray, arrays.xp, thing
        self._grasp_height = max(grasp_height, hand.tip + _TIP_CLEARANCE)
        heights = (self._grasp_height, lift_height)
        self.frame = GraspFrame(arm.chain, hand, arm.home, tilt=tilt, heights=heights)
        n = initial.nworld
        self._target = there(np.broadcast_to(target, (n, 3)))
        rise, slope = ground or (np.zeros(n), np.zeros((n, 2)))
        self._rise, self._slope = there(rise), there(slope)
        centre = there(initial.qpos[:, thing.qpos : thing.qpos + 3])
        self.rest = centre[:, 2] - self._ground_height(centre)  # height of the object's centre above the table
        self._hover = 2.0 * self.rest + hand.tip + _HOVER
        larger = self.rest - thing.rest_height  # a fixed finger stays clear of an object as wide as it is high
        self.clearance = _SIDE_CLEARANCE + larger if hand.one_sided else 0.0 * larger
        self.lift = lift_height + self._xp.maximum(self._rise, self._ground_height(centre))

    def centre_between_jaws(self, heights: NDArray[np.float64], openings: NDArray[np.float64]) -> None:
        """Keep a fixed finger as far from the object on the way down as the open jaw, if that is further than before.

        A tracker that is wrong by a centimetre then leaves the object between the jaws.

        Args:
            heights: heights above the finger tips, increasing, ``(n,)`` in m.
            openings: how wide an object may be up to each height, ``(n,)`` in m.
        """
        if not self.clearance.any():
            return  # both fingers move
        top = self._xp.interp(2.0 * self.rest - _TIP_CLEARANCE, heights, openings)
        self.clearance = self._xp.maximum(self.clearance, 0.5 * (top - 2.0 * self.rest))

    def pick(self) -> list[Waypoint]:
        """Return the waypoints that grasp the object and lift it."""
        return [
            Waypoint(
                name="approach",
                position=lambda now: self.above_object(now, self._turn(now)),
                turn=self._turn,
                gripper="open",
                seconds=0.6,
                patience=0.7,
            ),
            Waypoint(
                name="descend", position=lambda now: self.at_object(now, self._turn(now)), turn=self._turn, seconds=0.6
            ),
            Waypoint(name="close", gripper="closed", seconds=0.45, patience=0.0),
            Waypoint(name="lift", position=lambda now: set_height(now.tool, self.lift), patience=0.1),
        ]

    def place(self) -> list[Waypoint]:
        """Return the waypoints that carry the object to the target, release it and lift the hand."""
        return [
            Waypoint(name="carry", position=lambda now: set_height(self._over_target(now), self.lift), seconds=0.6),
            Waypoint(name="lower", position=self._on_target),
            Waypoint(name="open", gripper="open", seconds=0.35, patience=0.0),
            Waypoint(name="retreat", position=self._retreated, patience=0.0),
        ]

    def centre(self, now: ToolState) -> NDArray[np.float64]:
        """Return the centre of the object, ``(nworld, 3)`` in m."""
        return now.body(self._thing.qpos)

    def lower_end(self, now: ToolState) -> NDArray[np.float64]:
        """Return the middle of the object's lower side, ``(nworld, 3)`` in m; it is below the centre if it stands."""
        row = self._thing.qpos
        w, x, y, z = (now.qpos[:, row + i] for i in range(3, 7))
        up = self._xp.stack([2.0 * (x * z + w * y), 2.0 * (y * z - w * x), 1.0 - 2.0 * (x * x + y * y)], axis=-1)
        return self.centre(now) - self.rest[:, None] * up

    def yaw(self, now: ToolState) -> NDArray[np.float64]:
        """Return the heading of the object, ``(nworld,)`` in rad."""
        row = self._thing.qpos
        return heading(now.qpos[:, row + 3 : row + 7])

    def height(self, now: ToolState) -> NDArray[np.float64]:
        """Return the height of the object above its resting place below it, ``(nworld,)`` in m."""
        centre = self.centre(now)
        return centre[:, 2] - self._ground_height(centre) - self.rest

    def way_to_target(self, now: ToolState) -> NDArray[np.float64]:
        """Return the horizontal way from the object to the target, ``(nworld, 3)`` in m."""
        return set_height(self._target - self.centre(now), 0.0)

    def offset(self, now: ToolState) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return the place of the object between the jaws, as three distances ``(nworld,)`` in m.

        They are the object's offset from the tool in the opening direction of the jaws, its offset across this
        direction, and the tool's height above that of a grasp.
        """
        centre = self.centre(now)
        way, along = centre - now.tool, self.frame.opening_direction(centre, now.turn)
        inside = way[:, 0] * along[:, 0] + way[:, 1] * along[:, 1]
        across = way[:, 0] * along[:, 1] - way[:, 1] * along[:, 0]
        return inside, across, now.tool[:, 2] - centre[:, 2] + self.rest - self._grasp_height

    def nearest_turn(self, now: ToolState) -> NDArray[np.float64]:
        """Return the turn of the hand at which it can grasp the object, the nearest one to its present turn."""
        return now.turn + self._align(now, now.turn)

    def at_object(self, now: ToolState, turn: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the position of the tool at the grasp with a hand at ``turn``, ``(nworld, 3)`` in m."""
        centre = self.centre(now)
        height = self._grasp_height + self._ground_height(centre)
        return set_height(centre - self._finger_offset(centre, turn), height)

    def above_object(self, now: ToolState, turn: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the position of the tool above the grasp, before the descent, ``(nworld, 3)`` in m."""
        return set_height(self.at_object(now, turn), self._hover + self._ground_height(self.centre(now)))

    @property
    def raised(self) -> NDArray[np.float64]:
        """Height of the object above its resting place while it is carried, ``(nworld,)`` in m."""
        return self.lift - self._grasp_height

    def _turn(self, now: ToolState) -> NDArray[np.float64]:
        return self._align(now, 0.0)

    def _align(self, now: ToolState, turn: NDArray[np.float64] | float) -> NDArray[np.float64]:
        """Return the smallest rotation ``(nworld,)`` in rad that aligns a hand at ``turn`` with sides of the object."""
        return self.frame.alignment_turn(self.centre(now), self.yaw(now) - turn, QUARTER)

    def _over_target(self, now: ToolState) -> NDArray[np.float64]:
        return now.tool + self.way_to_target(now)

    def _on_target(self, now: ToolState) -> NDArray[np.float64]:
        sink = self.rest + self._rise + _DROP - now.body(self._thing.qpos)[:, 2]
        return set_height(self._over_target(now), now.tool[:, 2] + sink)

    def _retreated(self, now: ToolState) -> NDArray[np.float64]:
        return set_height(now.tool - self._finger_offset(now.tool, now.turn), self.lift)

    def _ground_height(self, position: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the change of the table's height below positions ``(nworld, 3)``, as ``(nworld,)`` in m.

        The change is relative to the nominal twin.
        """
        way = position - self._target
        return self._rise + self._slope[:, 0] * way[:, 0] + self._slope[:, 1] * way[:, 1]

    def _finger_offset(self, position: NDArray[np.float64], turn: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the offset ``(nworld, 3)`` in m that keeps a fixed finger clear of the object.

        It is zero if both fingers move.

        Args:
            position: position of the hand in the world frame, ``(nworld, 3)`` in m.
            turn: additional rotation of the hand about the vertical, ``(nworld,)`` in rad.
        """
        return self.clearance[:, None] * self.frame.opening_direction(position, turn)
