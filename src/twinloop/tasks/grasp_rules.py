"""Rules of an expert without memory that picks up an object from above and places it on a target, or in another place.

What a script remembers is part of the state here. The gripper is fully open before a grasp and less open after a
release, so that an object that begins on its target is lifted, and a placed one is left alone. A held object above the
target continues upwards while it moves upwards, and a gripper that opens continues to open.

A place other than a disc on the table can be on top of something or in a hole. There an object is aimed in the air
first, lowered slowly, and let go just above its place; if it stops at the rim of a hole, the errors of its position
and heading are corrected while it is pressed against the rim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.tasks.grasping import QUARTER, GraspFromAbove
from twinloop.tasks.reactive import PresentState, Rule
from twinloop.tasks.waypoints import set_height

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

# All are our choice. Shares of the gripper are 0 for closed and 1 for open.
_RELEASED, _TOLERANCE = 0.8, 0.07  # opening after a release: wider than an object, less than for an approach
_APPROACHING = 0.92  # opening that an approach needs
_PRESSED = 0.05  # share by which an object keeps the jaws from closing
_STILL = 0.4  # shares per second: jaws slower than this no longer close
_GRIPPED = 0.2  # command of the jaws below which they hold an object
_BEGUN = 0.03  # command of a release that has begun
_WIDENING = 0.1  # shares per second
# Heights leave room for errors of a tracker or of a localizer: several millimetres in height and position.
_LOW = 0.007  # m: an object below this height rests; a hinged jaw lifts it by some millimetres as it closes
_HELD = 0.012  # m: height at which a held object is released
_DROP = 0.02  # m: greatest height of a release
_NEAR = 2.0  # times the place between the jaws: where an object is that keeps the jaws from closing
_SLOW = 0.05  # m/s: greatest vertical speed of a release
_RISING = 0.025  # m/s
_CARRIED = 0.02  # m over which a lifted object begins to move sideways
_AIMED, _FUNNEL = 0.01, 0.02  # m: the hand descends while its distance from above the grasp is within both
_CENTRED, _LEVEL = 0.012, 0.008  # m: greatest horizontal and vertical distance from the grasp at which it closes
_TWIST = 0.2  # rad: a hand that is turned further away from the object's sides stays above it
_FAST, _LOWERING = 1.6, 0.9  # paces
_OPENED, _OPENED_BY = 0.86, 0.05  # like `_RELEASED` and `_TOLERANCE`: an object may need four fifths of the gripper
_SET, _DROPPED = 0.002, 0.004  # m: like `_HELD` and `_DROP`, for places other than a disc, which one can miss
_STEADY = 0.006  # m: below `_CLEAR`, the goal is at most this far below the object, which limits speed and force
_PRESS = 0.005  # m: the commands bring the tool at most so far below where it is, which limits the force at a rim
_WIDE = 0.02  # m: the object comes down to `_CLEAR` above the rim while its distance from above its place is within
_CLEAR = 0.008  # m between object and rim where the object is aimed
_FREE = 0.3  # share of the funnel around a place that is below the rim
_INSERTED = 0.003  # m: an object that is so far below the rim cannot leave the hole sideways


@dataclass(frozen=True, kw_only=True)
class Place:
    """Place of an object other than a disc on the table; lengths in m, in the world frame.

    Attributes:
        centre: function that returns where the object's centre is in its place, ``(nworld, 3)``.
        fit: horizontal distance from its place within which the object fits.
        funnel: distance beyond ``fit`` over which the object is above the place.
        rim: height above the place up to which something is around it: the depth of a hole, 0 on top of an object.
        yaw: heading of the place ``(nworld,)`` in rad, which an object that looks the same after quarter turns must
            have; None if any heading fits.
        twist: error of the heading within which the object fits, in rad; the funnel is as wide.
    """

    centre: Callable[[PresentState], Array]
    fit: float
    funnel: float
    rim: float = 0.0
    yaw: Array | None = None
    twist: float = 0.0


@dataclass(frozen=True, kw_only=True)
class GraspRules:
    """Rules of a `ReactiveExpert` that bring an object to a target from any state in which it can be grasped.

    Attributes:
        grasp: geometry of the grasp and of the target.
        radius: radius of the target in m.
        clear: distance in m between tool and object beyond which the hand cannot touch the object.
        place: the target, if it is not a disc on the table at the target of the grasp.
    """

    grasp: GraspFromAbove
    radius: float
    clear: float
    place: Place | None = None

    def rules(self) -> list[Rule]:
        """Return the rules in order."""
        turn, placing, (released, _) = self.grasp.nearest_turn, self._turn_to_place, self._release()
        return [
            Rule(name="leave", when=self.is_left, position=self._above_here, turn=turn, grip=released),
            Rule(name="open", when=self.is_opening, grip=released),
            Rule(name="rise", when=self.is_rising, position=self._above_here, turn=turn, grip=0.0, pace=_FAST),
            Rule(name="lower", when=self.is_over, position=self._to_target, turn=placing, grip=0.0, pace=_LOWERING),
            Rule(name="carry", when=self.is_held, position=self._to_target, turn=placing, grip=0.0, pace=_FAST),
            Rule(name="grasp", when=self.is_ready, turn=turn, grip=0.0),
            Rule(name="approach", when=_always, position=self._to_object, turn=turn, grip=1.0, pace=_FAST),
        ]

    def is_left(self, now: PresentState) -> Mask:
        """Return where the object is placed below a gripper that is open as after a release."""
        released, tolerance = self._release()
        if self.place is not None:  # an object that begins in its place stays there
            return self._is_placed(now) & (now.grip > released - tolerance) & (now.opening > released - tolerance)
        opened = (np.abs(now.grip - released) < tolerance) & (now.opening > 0.5) & (now.opening < _APPROACHING)
        return self._is_placed(now) & self._is_below(now) & opened & (now.grip_rate > -_WIDENING)

    def is_opening(self, now: PresentState) -> Mask:
        """Return where the gripper opens, or is to open, to release the object on the target."""
        widening = (now.grip_rate > _WIDENING) | (now.grip > now.opening + _WIDENING / 2)
        opening = self._is_below(now) & widening & (now.grip < self._release()[0] + _WIDENING / 2)
        height, begun = self._height(now), (now.grip > _BEGUN) & (now.grip_rate > -_WIDENING)
        due = begun | (self.is_held(now) & (np.abs(now.velocity[:, 2]) < _SLOW))
        low, drop = (_LOW, _DROP) if self.place is None else (-np.inf, _DROPPED)
        releasable = (height > low) & (height < drop) & (self._distance(now) < 0.6 * self.radius)
        return (self._is_placed(now) & opening) | (releasable & self._is_between(now, _NEAR) & due)

    def is_held(self, now: PresentState) -> Mask:
        """Return where the jaws are pressed against the object between them."""
        pressed = (now.grip < _GRIPPED) & (now.opening - now.grip > _PRESSED)
        return self._is_between(now, _NEAR) & pressed & (np.abs(now.opening_speed) < _STILL)

    def is_rising(self, now: PresentState) -> Mask:
        """Return where a held object rests, or is on its way up."""
        height, speed = self.grasp.height(now), now.velocity[:, 2]
        resting, rising = (height < _LOW) & (speed > -_RISING), (height < 0.6 * self.grasp.lift) & (speed > _RISING)
        return self.is_held(now) & (resting | rising) & ~self._is_at_place(now)

    def is_over(self, now: PresentState) -> Mask:
        """Return where a held object is above the target."""
        return self.is_held(now) & (self._distance(now) < 0.8 * self.radius)

    def is_ready(self, now: PresentState) -> Mask:
        """Return where the open jaws are around the object, or are closing around it."""
        way = self.grasp.at_object(now, self.grasp.nearest_turn(now)) - now.tool
        centred = (_norm(way[:, :2]) < _CENTRED) & (np.abs(way[:, 2]) < _LEVEL)
        return centred | (self._is_between(now) & (now.grip < _APPROACHING) & (now.opening < 1.0))

    def _release(self) -> tuple[float, float]:
        return (_RELEASED, _TOLERANCE) if self.place is None else (_OPENED, _OPENED_BY)

    def _distance(self, now: PresentState) -> Array:
        return _norm(self._way(now)[:, :2])

    def _way(self, now: PresentState) -> Array:
        if self.place is None:
            return self.grasp.way_to_target(now)
        return set_height(self.place.centre(now) - self.grasp.lower_end(now), 0.0)

    def _height(self, now: PresentState) -> Array:
        """Return the height of the object above its target, ``(nworld,)`` in m."""
        if self.place is None:
            return self.grasp.height(now)
        return self.grasp.centre(now)[:, 2] - self.place.centre(now)[:, 2]

    def _twist(self, now: PresentState) -> Array:
        """Return the smallest turn ``(nworld,)`` in rad that gives the object the heading of its place."""
        if self.place is None or self.place.yaw is None:
            return 0.0 * now.turn
        angle = self.place.yaw - self.grasp.yaw(now)
        return angle - QUARTER * np.round(angle / QUARTER)

    def _is_placed(self, now: PresentState) -> Mask:
        return (self._distance(now) < 0.8 * self.radius) & (self._height(now) < _LOW)

    def _is_at_place(self, now: PresentState) -> Mask:
        """Return where the object is above its place or in it; one that begins on a disc is to be lifted, however."""
        return (self._distance(now) < 0.8 * self.radius) & (self.place is not None)

    def _is_below(self, now: PresentState) -> Mask:
        return _norm((now.tool - self.grasp.centre(now))[:, :2]) < self.clear

    def _is_between(self, now: PresentState, scale: float = 1.0) -> Mask:
        """Return where the object is between the jaws, or within this multiple of its size around."""
        inside, across, level = self.grasp.offset(now)
        size, clearance = scale * self.grasp.rest, self.grasp.clearance
        along = np.abs(inside - 0.5 * clearance) < clearance + 0.6 * size
        return along & (np.abs(across) < 0.7 * size) & (np.abs(level) < 0.9 * size)

    def _above_here(self, now: PresentState) -> Array:
        return set_height(now.tool, self.grasp.lift)

    def _to_target(self, now: PresentState) -> Array:
        """Return the tool's goal that brings a held object up, to the target, and down a funnel above it."""
        height, distance = self._height(now), self._distance(now)
        rim, held = (0.0, _HELD) if self.place is None else (self.place.rim, _SET)
        share = np.where(distance < 0.8 * self.radius, 1.0, np.clip((height - rim - _LOW) / _CARRIED, 0.0, 1.0))
        goal = now.tool + share[:, None] * self._way(now)
        return set_height(goal, now.tool[:, 2] + np.maximum(self._level(now), held) - height)

    def _level(self, now: PresentState) -> Array:
        """Return the height above the target to which a held object is to come, ``(nworld,)`` in m."""
        distance, place = self._distance(now), self.place
        if place is None:
            return np.clip(distance / (0.4 * self.radius) - 1.0, 0.0, 1.0) * self.grasp.raised
        height = self._height(now)
        twist = np.abs(self._twist(now)) / max(place.twist, 1e-9) - 1.0
        miss = np.clip(np.maximum((distance - place.fit) / place.funnel, twist), 0.0, 1.0)
        inside = (height < place.rim - _INSERTED) & (distance < self.radius)
        near = place.rim * np.minimum(miss / _FREE, 1.0) + _CLEAR * np.clip((miss - _FREE) / (1.0 - _FREE), 0.0, 1.0)
        most = self.grasp.raised - self.grasp.height(now) + height  # above the place
        far = np.clip((distance - place.fit - place.funnel) / _WIDE, 0.0, 1.0) * (most - place.rim - _CLEAR)
        pressed = np.clip(now.strain[:, 2] / _PRESS, 0.0, 1.0)
        slow = np.minimum(height - (1.0 - pressed) * _STEADY, place.rim + _CLEAR)
        return np.maximum(np.where(inside, 0.0, near + far), slow)

    def _turn_to_place(self, now: PresentState) -> Array:
        """Return the turn of the hand at which a held object has the heading of its place."""
        if self.place is None or self.place.yaw is None:
            return self.grasp.nearest_turn(now)
        turn = now.turn + self._twist(now)
        return turn - QUARTER * np.round(turn / QUARTER)

    def _to_object(self, now: PresentState) -> Array:
        """Return the tool's goal that brings the open jaws above the object, and down a funnel around it."""
        turn = self.grasp.nearest_turn(now)
        goal, hover = self.grasp.at_object(now, turn), self.grasp.above_object(now, turn)
        miss = np.clip((_norm((goal - now.tool)[:, :2]) - _AIMED) / _FUNNEL, 0.0, 1.0)
        share = np.maximum(miss, np.clip(np.abs(turn - now.turn) / _TWIST - 0.5, 0.0, 1.0))
        share = np.where(now.opening < _APPROACHING, 1.0, share)
        level = goal[:, 2] + share * (hover - goal)[:, 2]
        sideways = np.clip(1.0 - (level - now.tool[:, 2] - _AIMED) / _FUNNEL, 0.0, 1.0)
        return set_height(now.tool + sideways[:, None] * (goal - now.tool), level)


def _always(now: PresentState) -> Mask:
    return np.ones(len(now.tool), dtype=bool)


def _norm(vectors: Array) -> Array:
    return np.sqrt((vectors**2).sum(axis=-1))
