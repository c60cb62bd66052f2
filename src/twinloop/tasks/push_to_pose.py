"""Push a box to a pose by rules on the present state.

The rules compare the pushes of `planar_pushing` by the pose in which each would end, with its best length. The hand
goes to the side and place of the best one, and pushes there as long as that brings the box nearer to its goal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.tasks.arm import Arm
from twinloop.tasks.planar_pushing import LENGTHS, Pushes, side_axes
from twinloop.tasks.push_settings import PushSettings
from twinloop.tasks.reaching import BearingFrame, heading, nearest_turn, rotate_level
from twinloop.tasks.reactive import PresentState, Rule
from twinloop.tasks.waypoints import set_height

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

# All are our choice. Weight of a heading error, as a multiple of `Pushes.radius` (m per rad): in the model itself, 200
# bars of 80 x 40 mm needed 2.1 contacts on average, and 3.8 with a weight of 1.
_TURN_WEIGHT = 2.2
_REACH_WEIGHT = 2.0  # weight of m beyond the arm's reach
_LEAST_SHARE, _LEAST_STEP = 0.05, 0.0005  # share of the distance to the goal, and m, that a push must gain to go on
_TOUCHING = 0.02  # m: the closed fingers may touch a side from this distance of their centre on
_BEYOND, _AHEAD = 0.015, 0.07  # m: a push aims so far beyond its end, and at most so far beyond the side
_INSIDE = 0.95  # share of half a side within which fingers push it
_DONE, _STAYS = 0.5, 0.85  # shares of the tolerances at which a push ends, and beyond which the hand comes down again
_ABOVE = 0.25  # share of `behind`: distance of the hand from its place within which it goes down
_NEARER, _RISE = 0.75, 0.006  # share of `behind`, and m: nearer to the side, the hand may be so far above `begin`
_AWAY = 1.3  # share of `behind` up to which the hand approaches a side
_FAST, _PUSHING = 1.5, 0.5  # paces


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """Pushes in the present state; places of the fingers are ``(nworld, 2)`` in m in the world frame."""

    begin: Array  # before the best push
    aim: Array  # during a push at the present side
    is_pushing: Mask  # whether the fingers are low at a side, and a push there brings the box nearer to its goal


class PoseRules:
    """Rules that push a box to a pose.

    Args:
        arm: the arm.
        pushes: candidate pushes of the box.
        settings: settings of the task, with a heading tolerance.
        row: first index of the box's pose in qpos.
        goal: goal of the box's centre, ``(nworld, 3)`` in m.
        yaw: goal of its heading, ``(nworld,)`` in rad.
    """

    def __init__(self, arm: Arm, pushes: Pushes, settings: PushSettings, *, row: int, goal: Array, yaw: Array) -> None:
        self._pushes, self._settings, self._row, self._goal, self._yaw = pushes, settings, row, goal[:, :2], yaw
        self._tolerance = np.inf if settings.heading_tolerance is None else settings.heading_tolerance
        self._frame = BearingFrame(arm.chain, arm.home)
        self._base = arm.chain.pose(arm.home[None, arm.chain.qpos]).anchors[0, 0, :2]
        self._latest: tuple[PresentState, _Plan] | None = None

    def rules(self) -> list[Rule]:
        """Return the rules: up when done, push, down, and over the place of the best push."""
        low = self._settings.low
        return [
            Rule(name="done", when=self._is_done, position=self._up, grip=0.0),
            Rule(
                name="push",
                when=lambda now: self._plan(now).is_pushing,
                position=lambda now: self._tool(self._plan(now).aim, low),
                grip=0.0,
                pace=_PUSHING,
            ),
            Rule(
                name="down", when=self._is_above, position=lambda now: self._tool(self._plan(now).begin, low), grip=0.0
            ),
            Rule(
                name="over",
                when=lambda now: np.ones(len(now.tool), dtype=bool),
                position=self._over,
                grip=0.0,
                pace=_FAST,
            ),
        ]

    def _plan(self, now: PresentState) -> _Plan:
        if self._latest is None or self._latest[0] is not now:  # the rules of one state share it
            self._latest = now, self._make_plan(now)
        return self._latest[1]

    def _make_plan(self, now: PresentState) -> _Plan:
        box, yaw, _ = self._observe(now)
        left, ends = self._distances(now)
        length, gain = ends.argmin(axis=2), left[:, None] - ends.min(axis=2)
        side, away, place = self._locate_fingers(now)
        pushes, settings, world = self._pushes, self._settings, np.arange(len(box))
        missed = np.where(pushes.side == side[:, None], np.abs(pushes.place - place[:, None]), np.inf)
        held = np.where(missed <= missed.min(axis=1, keepdims=True) + 1e-6, gain, -np.inf).argmax(axis=1)
        normal, along = side_axes(side)
        way = np.where((away < _TOUCHING)[:, None], pushes.way[held], -normal)
        ahead = np.minimum(LENGTHS[length[world, held]] + _BEYOND, _AHEAD)
        aim = normal * pushes.half + along * place[:, None] + way * ahead[:, None]
        is_pushing = (
            (now.tool[:, 2] < settings.begin + np.where(away > _NEARER * settings.behind, 0.0, _RISE))
            & (away < _AWAY * settings.behind)
            & (np.abs(place) < _INSIDE * np.where(side < 2, pushes.half[1], pushes.half[0]))
            & (gain[world, held] > _LEAST_SHARE * left + _LEAST_STEP)
        )
        return _Plan(begin=self._choose_begin(box, yaw, gain), aim=box + rotate_level(aim, yaw), is_pushing=is_pushing)

    def _distances(self, now: PresentState) -> tuple[Array, Array]:
        """Return the weighted distances to the goal in m: now ``(nworld,)``, after pushes ``(nworld, n, length)``."""
        box, yaw, error = self._observe(now)
        arcs, weight = self._pushes.arcs, _TURN_WEIGHT * self._pushes.radius
        moved = box[:, None, None] + rotate_level(arcs[..., :2], yaw[:, None, None])
        turned = nearest_turn(error[:, None, None] + arcs[..., 2], self._settings.symmetry)
        left = np.hypot(_length(box - self._goal), weight * error) + self._beyond_reach(box)
        ends = np.hypot(_length(moved - self._goal[:, None, None]), weight * turned)
        return left, ends + np.maximum.accumulate(self._beyond_reach(moved), axis=2)

    def _beyond_reach(self, box: Array) -> Array:
        """Return the weighted distance in m by which a box is too near or too far for pushes from all sides."""
        (low, high), margin = self._settings.reach, self._settings.behind + self._pushes.half.min()
        away = _length(box - self._base)
        return _REACH_WEIGHT * np.maximum(0.0, np.maximum(low + margin - away, away + margin - high))

    def _choose_begin(self, box: Array, yaw: Array, gain: Array) -> Array:
        """Return the place of the fingers before the push with the largest gain that begins within reach."""
        (low, high), pushes = self._settings.reach, self._pushes
        normal, along = side_axes(pushes.side)
        places = normal * (pushes.half + self._settings.behind) + along * pushes.place[:, None]
        begins = box[:, None] + rotate_level(places, yaw[:, None])
        away = _length(begins - self._base)
        best = np.where((away >= low) & (away <= high), gain, -np.inf).argmax(axis=1)
        return begins[np.arange(len(box)), best]

    def _locate_fingers(self, now: PresentState) -> tuple[NDArray[np.intp], Array, Array]:
        """Return the side at which the fingers are, and their distances from it and from its middle in m."""
        box, yaw, _ = self._observe(now)
        fingers = rotate_level((now.tool + self._finger_offset(now.tool))[:, :2] - box, -yaw)
        gap = np.abs(fingers) - self._pushes.half
        across, world = gap.argmax(axis=1), np.arange(len(box))
        side = 2 * across + (fingers[world, across] < 0.0)
        return side, gap[world, across], fingers[world, 1 - across]

    def _observe(self, now: PresentState) -> tuple[Array, Array, Array]:
        """Return the box's position ``(nworld, 2)`` in m, its heading and its heading error, ``(nworld,)`` in rad."""
        yaw = heading(now.qpos[:, self._row + 3 : self._row + 7])
        return now.body(self._row)[:, :2], yaw, nearest_turn(yaw - self._yaw, self._settings.symmetry)

    def _finger_offset(self, tool: Array) -> Array:
        axes = self._frame.tool_axes(tool, np.zeros(len(tool)))
        return sum((part * axis for part, axis in zip(self._settings.fingers, axes, strict=True)), 0.0 * tool)

    def _tool(self, fingers: Array, height: float) -> Array:
        place = np.concatenate([fingers, np.full((len(fingers), 1), height)], axis=1)
        return set_height(place - self._finger_offset(place), height)

    def _is_done(self, now: PresentState) -> Mask:
        box, _, error = self._observe(now)
        share = np.where(now.tool[:, 2] < self._settings.begin, _DONE, _STAYS)
        near = _length(box - self._goal) <= share * self._settings.radius
        return near & (np.abs(error) <= share * self._tolerance)

    def _is_above(self, now: PresentState) -> Mask:
        miss = self._tool(self._plan(now).begin, 0.0) - now.tool
        return _length(miss) < _ABOVE * self._settings.behind

    def _up(self, now: PresentState) -> Array:
        return set_height(now.tool, self._settings.high)

    def _over(self, now: PresentState) -> Array:
        low, high = self._settings.low, self._settings.high
        raised = now.tool[:, 2:] > high - 0.2 * (high - low)
        return np.where(raised, self._tool(self._plan(now).begin, high), self._up(now))


def _length(vector: Array) -> Array:
    return np.hypot(vector[..., 0], vector[..., 1])
