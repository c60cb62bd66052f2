"""Rules of an expert without memory that picks up an object from above and places it on a target.

What a script remembers is part of the state here. The gripper is fully open before a grasp and less open after a
release, so that an object that begins on its target is lifted, and a placed one is left alone. A held object above the
target continues upwards while it moves upwards, and a gripper that opens continues to open.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.tasks.grasping import GraspFromAbove
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


@dataclass(frozen=True, kw_only=True)
class GraspRules:
    """Rules of a `ReactiveExpert` that bring an object to a target from any state in which it can be grasped.

    Attributes:
        grasp: geometry of the grasp and of the target.
        radius: radius of the target in m.
        clear: distance in m between tool and object beyond which the hand cannot touch the object.
    """

    grasp: GraspFromAbove
    radius: float
    clear: float

    def rules(self) -> list[Rule]:
        """Return the rules in order."""
        turn = self.grasp.nearest_turn
        return [
            Rule(name="leave", when=self.is_left, position=self._above_here, turn=turn, grip=_RELEASED),
            Rule(name="open", when=self.is_opening, grip=_RELEASED),
            Rule(name="rise", when=self.is_rising, position=self._above_here, turn=turn, grip=0.0, pace=_FAST),
            Rule(name="lower", when=self.is_over, position=self._to_target, turn=turn, grip=0.0, pace=_LOWERING),
            Rule(name="carry", when=self.is_held, position=self._to_target, turn=turn, grip=0.0, pace=_FAST),
            Rule(name="grasp", when=self.is_ready, turn=turn, grip=0.0),
            Rule(name="approach", when=_always, position=self._to_object, turn=turn, grip=1.0, pace=_FAST),
        ]

    def is_left(self, now: PresentState) -> Mask:
        """Return where the object is placed below a gripper that is open as after a release."""
        opened = (np.abs(now.grip - _RELEASED) < _TOLERANCE) & (now.opening > 0.5) & (now.opening < _APPROACHING)
        return self._is_placed(now) & self._is_below(now) & opened & (now.grip_rate > -_WIDENING)

    def is_opening(self, now: PresentState) -> Mask:
        """Return where the gripper opens, or is to open, to release the object on the target."""
        widening = (now.grip_rate > _WIDENING) | (now.grip > now.opening + _WIDENING / 2)
        opening = self._is_below(now) & widening & (now.grip < _RELEASED + _WIDENING / 2)
        height, begun = self.grasp.height(now), (now.grip > _BEGUN) & (now.grip_rate > -_WIDENING)
        due = begun | (self.is_held(now) & (np.abs(now.velocity[:, 2]) < _SLOW))
        releasable = (height > _LOW) & (height < _DROP) & (self._distance(now) < 0.6 * self.radius)
        return (self._is_placed(now) & opening) | (releasable & self._is_between(now, _NEAR) & due)

    def is_held(self, now: PresentState) -> Mask:
        """Return where the jaws are pressed against the object between them."""
        pressed = (now.grip < _GRIPPED) & (now.opening - now.grip > _PRESSED)
        return self._is_between(now, _NEAR) & pressed & (np.abs(now.opening_speed) < _STILL)

    def is_rising(self, now: PresentState) -> Mask:
        """Return where a held object rests, or is on its way up."""
        height, speed = self.grasp.height(now), now.velocity[:, 2]
        resting, rising = (height < _LOW) & (speed > -_RISING), (height < 0.6 * self.grasp.lift) & (speed > _RISING)
        return self.is_held(now) & (resting | rising)

    def is_over(self, now: PresentState) -> Mask:
        """Return where a held object is above the target."""
        return self.is_held(now) & (self._distance(now) < 0.8 * self.radius)

    def is_ready(self, now: PresentState) -> Mask:
        """Return where the open jaws are around the object, or are closing around it."""
        way = self.grasp.at_object(now, self.grasp.nearest_turn(now)) - now.tool
        centred = (_norm(way[:, :2]) < _CENTRED) & (np.abs(way[:, 2]) < _LEVEL)
        return centred | (self._is_between(now) & (now.grip < _APPROACHING) & (now.opening < 1.0))

    def _distance(self, now: PresentState) -> Array:
        return _norm(self.grasp.way_to_target(now)[:, :2])

    def _is_placed(self, now: PresentState) -> Mask:
        return (self._distance(now) < 0.8 * self.radius) & (self.grasp.height(now) < _LOW)

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
        height, distance = self.grasp.height(now), self._distance(now)
        share = np.where(distance < 0.8 * self.radius, 1.0, np.clip((height - _LOW) / _CARRIED, 0.0, 1.0))
        level = np.clip(distance / (0.4 * self.radius) - 1.0, 0.0, 1.0) * self.grasp.raised
        goal = now.tool + share[:, None] * self.grasp.way_to_target(now)
        return set_height(goal, now.tool[:, 2] + np.maximum(level, _HELD) - height)

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
