"""Find the events of a simulated pick and place in its states, such as hand closed, object lifted or object released.

Every event is the index of a state, which is also the index of the frame.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
# Our choices, in m: an object that has risen by this has left the table (contacts deform by tenths of a millimetre),
# and an object that has moved by this is being carried. Both are too small to be visible in an image.
_RISEN = 0.002
_MOVED = 0.002
_OPENING = 0.05  # share of the hand's stroke; smaller changes are encoder steps or compliance of a finger


@dataclass(frozen=True, kw_only=True)
class PlacementSeries:
    """Quantities of one episode of pick and place over its states, ``(T + 1,)`` for T control steps.

    Attributes:
        distance: distance of tool and object, in m.
        rise: height of the object above its initial height, in m.
        opening: opening of the hand, from 0 (closed) to 1 (open).
        distance_from_target: horizontal distance of the object from the target, in m.
        distance_from_start: horizontal distance of the object from its start, in m.
        speed: speeds of the tool in m/s, ``(T + 1, 2)``: horizontal speed, then upward velocity.
        released_at_rest: whether the object is at rest, and the hand is open and out of reach.
        success: whether the task's success condition is true.
        reach: distance of tool and object beyond which no part of the hand touches the object, in m.
        lifted: height that counts as lifted, in m.
        radius: radius of the target, in m.
        tolerance: allowed difference of a placed object's height from its initial height, in m.
    """

    distance: Array
    rise: Array
    opening: Array
    distance_from_target: Array
    distance_from_start: Array
    speed: Array
    released_at_rest: NDArray[np.bool_]
    success: NDArray[np.bool_]
    reach: float
    lifted: float
    radius: float
    tolerance: float

    @functools.cached_property
    def reach_index(self) -> int | None:
        """Index of the first state in which the object is within the hand's reach, or None."""
        return _first_index(self.distance <= self.reach)

    @functools.cached_property
    def lift_index(self) -> int | None:
        """Index of the state at which the object begins to rise, or None if it is never lifted.

        From this state until it is lifted, the object is at least 2 mm above its initial height. It is lifted when it
        has risen by ``lifted`` (m) while the tool is within ``reach`` (m) of it.
        """
        high = _first_index((self.rise >= self.lifted) & (self.distance <= self.reach))
        return None if high is None else _last_index(self.rise[:high] < _RISEN) + 1

    @functools.cached_property
    def closing_index(self) -> int | None:
        """Index of the last state before the hand closes on the object that it lifts.

        If the object is never lifted, it is the index at which the hand first closes within reach of the object, or
        None.
        """
        if self.lift_index is None:
            if self.reach_index is None:
                return None
            shut = _first_index(self.opening[self.reach_index :] < self.opening[self.reach_index] - _OPENING)
            return None if shut is None else self.reach_index + shut
        widest = float(np.max(self.opening[: self.lift_index]))
        return _last_index(self.opening[: self.lift_index] >= widest - _OPENING)

    @functools.cached_property
    def release_index(self) -> int | None:
        """Index of the last state before the hand that holds the object opens; None if it never opens."""
        if self.lift_index is None:
            return None
        gripped = self.opening[self.lift_index]
        wide = _first_index(self.opening[self.lift_index :] > max(gripped + 4 * _OPENING, 0.5))
        if wide is None:
            return None
        return self.lift_index + _last_index(
            self.opening[self.lift_index : self.lift_index + wide] <= gripped + _OPENING
        )

    @functools.cached_property
    def loss_index(self) -> int | None:
        """Index of the state at which the object leaves the hand while the hand is still closed, or None."""
        if self.lift_index is None:
            return None
        end = len(self.rise) if self.release_index is None else self.release_index + 1
        grip = float(np.median(self.distance[self.lift_index : self.lift_index + 3]))
        away = self.distance[self.lift_index : end] > grip + self.lifted
        return self.lift_index + int(np.argmax(away)) if away.any() and away[-1] else None

    @functools.cached_property
    def carrying_indices(self) -> tuple[int, int] | None:
        """Indices of the states at which the lifted object begins to move horizontally, and begins to be lowered.

        The first is the state in which the tool is slowest between lifting and moving horizontally, the second the one
        in which it is slowest between moving horizontally and lowering. None if there is no such motion.
        """
        start, end = self.lift_index, self.release_index
        if start is None or end is None or end - start < 3:
            return None
        sideways, up = self.speed[start:end].T
        rising = int(np.argmax(up))
        sinking = rising + int(np.argmin(up[rising:]))
        if (
            sinking - rising < 2
            or up[sinking] >= 0
            or float(self.distance_from_start[end - 1] - self.distance_from_start[start]) < _MOVED
        ):
            return None
        across = rising + int(np.argmax((sideways - np.abs(up))[rising : sinking + 1]))
        total = np.hypot(sideways, up)
        return start + _slowest_index(total, rising, across), start + _slowest_index(total, across, sinking)

    @functools.cached_property
    def retreat_index(self) -> int | None:
        """Index of the state at which the tool begins to move away after the release, or None."""
        if self.release_index is None:
            return None
        total = np.hypot(*self.speed[self.release_index :].T)
        if len(total) < 2:
            return None
        quick = _first_index(total > 0.5 * float(total.max()))
        return (
            None if quick is None else self.release_index + _last_index(total[: quick + 1] < 0.1 * float(total.max()))
        )


def find_phases(placing: PlacementSeries) -> list[tuple[str, int | None]]:
    """Return each phase's name and the index of the state at which it begins, or None if it does not.

    The phases are ``reach``, ``grasp``, ``lift``, ``transport``, ``place``, ``release`` and ``retreat``. The phases
    from ``lift`` on are listed only if the object was lifted, ``transport`` and ``place`` only if it was moved
    horizontally.

    Args:
        placing: quantities of the episode.
    """
    starts = [("reach", 0), ("grasp", placing.closing_index)]
    if placing.lift_index is not None:
        starts.append(("lift", placing.lift_index))
        if placing.carrying_indices is not None:
            starts += [("transport", placing.carrying_indices[0]), ("place", placing.carrying_indices[1])]
        starts += [("release", placing.release_index), ("retreat", placing.retreat_index)]
    return starts


def classify_failure(placing: PlacementSeries, fps: float) -> tuple[str, str]:
    """Return the failure class of an episode without success, and the reason as text.

    The classes are ``never_reached``, ``pushed_away``, ``grasp_missed``, ``dropped``, ``not_released``,
    ``placed_off_target`` and ``timeout``.

    Args:
        placing: quantities of the episode.
        fps: control steps per second.
    """
    nearest = float(placing.distance.min())
    if placing.reach_index is None:
        return "never_reached", (
            f"the tool came within {1000 * nearest:.0f} mm of the object, and touches it from "
            f"{1000 * placing.reach:.0f} mm on"
        )
    if placing.lift_index is None:
        if float(placing.distance_from_start.max()) > placing.radius and placing.distance[-1] > placing.reach:
            return (
                "pushed_away",
                f"the object was moved {1000 * placing.distance_from_start.max():.0f} mm and never lifted",
            )
        closed = "closed" if placing.closing_index is not None else "never closed"
        return "grasp_missed", (
            f"the hand {closed} within reach, and the object rose {1000 * max(placing.rise.max(), 0.0):.0f} mm "
            f"where {1000 * placing.lifted:.0f} mm count as lifted"
        )
    if placing.loss_index is not None:
        return "dropped", f"lost from the closed hand at {placing.loss_index / fps:.2f} s"
    return _classify_lifted(placing, fps)


def _classify_lifted(placing: PlacementSeries, fps: float) -> tuple[str, str]:
    """Return failure class and reason of an episode whose object was lifted and not lost; see `classify_failure`."""
    over = placing.distance_from_target[-1] <= placing.radius
    low = abs(float(placing.rise[-1])) <= placing.tolerance
    if placing.release_index is None:
        if over and placing.rise[-1] < placing.lifted:
            return "not_released", "the object is down at its place and the hand still closed at the end"
        return (
            "timeout",
            f"still in the hand at the end, {1000 * placing.distance_from_target[-1]:.0f} mm from the target",
        )
    released = placing.release_index
    if placing.rise[released] > placing.lifted:
        return "dropped", (
            f"the hand opened at {released / fps:.2f} s with the object {1000 * placing.rise[released]:.0f} mm up"
        )
    if not over or (not low and placing.released_at_rest[-1]):
        return "placed_off_target", (
            f"let go at {released / fps:.2f} s and ended {1000 * placing.distance_from_target[-1]:.0f} mm from the "
            f"target's centre (within {1000 * placing.radius:.0f} mm is on it), {1000 * placing.rise[-1]:+.0f} mm in "
            "height"
        )
    return "timeout", "let go on the target, and time was over before the hand was out of reach and the object at rest"


def _first_index(condition: NDArray[np.bool_]) -> int | None:
    """Return the first index at which a condition is true, or None."""
    found = np.flatnonzero(condition)
    return int(found[0]) if len(found) else None


def _last_index(condition: NDArray[np.bool_]) -> int:
    """Return the last index at which a condition is true; 0 if it never is."""
    found = np.flatnonzero(condition)
    return int(found[-1]) if len(found) else 0


def _slowest_index(speed: Array, start: int, stop: int) -> int:
    """Return the last index of the smallest speed from ``start`` to ``stop``, both inclusive."""
    part = speed[start : stop + 1]
    return start + len(part) - 1 - int(np.argmin(part[::-1]))
