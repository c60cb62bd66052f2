"""Drive a robot with two wheels around obstacles to a dock: a scripted controller without memory.

A path to the approach point in front of the dock is the shortest one on a grid of the room, around shelves and walls
grown by the robot's radius (Dijkstra's algorithm). The robot turns to a point ahead on this path and drives to it (pure
pursuit: Coulter, "Implementation of the Pure Pursuit Path Tracking Algorithm", CMU-RI-TR-92-01, 1992). Near the dock it
follows the dock's axis instead.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from twinloop.tasks.reaching import nearest_turn

Array = NDArray[np.float64]
BlockedPoints = Callable[[int, Array], NDArray[np.bool_]]

# All are our choice, found by hand in nominal worlds of seed 21.
_CELL, MARGIN = 0.05, 0.04  # m: side of a cell, and least distance of the robot's outline from everything
APPROACH = 0.5  # m: distance of the approach point from the dock
_AHEAD = 7  # cells from the robot to the point that it drives to
_SPEED, _TURN = 0.22, 1.5  # m/s and rad/s: fastest motion
_BEARING, _PIVOT = 2.5, 0.8  # 1/s: turning rate per error of the heading; rad: error above which the robot only turns
_WIDE, _SLOPE, _BEGIN = 0.05, 0.35, 0.75  # half width in m at the dock, its slope and the length in m of the funnel
_LINE, _BRAKE = 2.5, 1.2  # rad per m beside the axis; 1/s: speed per m from the dock
_BACK = 0.1  # m/s: fastest way back from beyond the dock


class Routes:
    """Shortest ways on a grid from everywhere in a room to one point, for several worlds.

    Args:
        goals: points to reach, ``(n, 2)`` in m.
        blocked: function that returns which of ``(m, 2)`` points of a world the robot must not be at; its arguments are
            the world's index and the points.
        room: half sides of the room around the origin in m.
    """

    def __init__(self, goals: Array, blocked: BlockedPoints, room: tuple[float, float]) -> None:
        self._low: Array = -np.array(room, dtype=np.float64)
        self._shape = tuple(int(np.ceil(2.0 * side / _CELL)) + 1 for side in room)
        cells = np.stack(np.meshgrid(*(np.arange(count) for count in self._shape), indexing="ij"), axis=-1)
        self._points: Array = np.asarray(self._low + _CELL * cells.reshape(-1, 2), dtype=np.float64)
        begins, ends, lengths = self._list_edges()
        self._next = np.empty((len(goals), len(self._points)), dtype=np.intp)
        self._free = np.empty_like(self._next)
        for world, goal in enumerate(goals):
            free = ~blocked(world, self._points)
            blocks = ~free.reshape(self._shape)
            places = np.asarray(distance_transform_edt(blocks, return_distances=False, return_indices=True))
            self._free[world] = np.ravel_multi_index(tuple(places), self._shape).ravel()
            open_ways = free[begins] & free[ends]
            ways = csr_array((lengths[open_ways], (begins[open_ways], ends[open_ways])), shape=(len(free), len(free)))
            target = self._free[world, self._find_cell(goal[None])[0]]
            onward = dijkstra(ways, directed=False, indices=int(target), return_predecessors=True)[1]
            self._next[world] = np.where(onward < 0, np.arange(len(free)), onward)

    def find_points_ahead(self, places: Array) -> Array:
        """Return the points to drive to from places ``(n, 2)`` in m, one of each world."""
        worlds = np.arange(len(places))
        cell = self._free[worlds, self._find_cell(places)]
        for _ in range(_AHEAD):
            cell = self._next[worlds, cell]
        return self._points[cell]

    def _find_cell(self, places: Array) -> NDArray[np.intp]:
        nearest = np.clip(np.round((places - self._low) / _CELL), 0, np.array(self._shape) - 1).astype(np.intp)
        return nearest[:, 0] * self._shape[1] + nearest[:, 1]

    def _list_edges(self) -> tuple[NDArray[np.intp], NDArray[np.intp], Array]:
        """Return the two ends of every step to one of the eight neighbours, each pair once, and its length in m."""
        number = np.arange(self._shape[0] * self._shape[1]).reshape(self._shape)
        pairs = [
            (number[:-1], number[1:], 1.0),
            (number[:, :-1], number[:, 1:], 1.0),
            (number[:-1, :-1], number[1:, 1:], np.sqrt(2.0)),
            (number[:-1, 1:], number[1:, :-1], np.sqrt(2.0)),
        ]
        begins, ends = (np.concatenate([pair[side].ravel() for pair in pairs]) for side in (0, 1))
        return begins, ends, np.concatenate([np.full(pair[0].size, _CELL * pair[2]) for pair in pairs])


def choose_motion(routes: Routes, base: Array, offset: Array) -> tuple[Array, Array]:
    """Return the speed forwards ``(n,)`` in m/s and the turning rate ``(n,)`` in rad/s.

    Args:
        routes: ways to the approach points.
        base: pose of the robot, ``(n, 3)``: x and y in m, heading in rad.
        offset: its pose in the frame of the dock, ``(n, 3)``.
    """
    way = routes.find_points_ahead(base[:, :2]) - base[:, :2]
    left, beside = -offset[:, 0], offset[:, 1]
    docking = (left > -_WIDE) & (left < _BEGIN) & (np.abs(beside) < _WIDE + _SLOPE * np.maximum(left, 0.0))
    course = np.where(docking, -np.arctan(_LINE * beside) - offset[:, 2], np.arctan2(way[:, 1], way[:, 0]) - base[:, 2])
    error = nearest_turn(course)
    pace = np.where(docking, np.clip(_BRAKE * left, -_BACK, _SPEED), _SPEED)
    speed = np.where(np.abs(error) < _PIVOT, pace * np.cos(error), 0.0)
    return speed, np.clip(_BEARING * error, -_TURN, _TURN)
