"""Compute joint steps relative to each joint's range, for checks that need to detect whether the robot moves.

The result has no units, so it can be compared between robots and logs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.curate.recording import RecordedEpisode

Array = NDArray[np.float64]

_STILL = 0.005  # share of a joint's range: above encoder noise, below the step of a slow joint
_MOVES = 0.02  # share of the widest joint's range: joints with less motion are ignored


@dataclass(frozen=True, kw_only=True)
class NormalizedMotion:
    """Steps of the moving joints from frame to frame, each divided by the joint's range in the episode.

    Attributes:
        steps: relative steps ``(T - 1, m)`` for T frames and m moving joints.
        columns: indices of the moving joints in the recording ``(m,)``.
        dt: median time between frames, in s.
    """

    steps: Array
    columns: NDArray[np.intp]
    dt: float

    @property
    def speed(self) -> Array:
        """Largest step of any joint after each frame, divided by the joint's range ``(T - 1,)``; 0 if nothing moves."""
        return np.abs(self.steps).max(axis=1, initial=0.0)

    @property
    def moving(self) -> NDArray[np.bool_]:
        """Mask ``(T - 1,)`` of the steps in which at least one joint moves by more than 0.5 % of its range."""
        return self.speed > _STILL

    @property
    def fast_mask(self) -> NDArray[np.bool_]:
        """Mask ``(T - 1,)`` of the steps faster than half the median speed in motion.

        Such motion is large enough to be visible in the images of a camera.
        """
        if not self.moving.any():
            return self.moving
        return self.speed > max(2 * _STILL, 0.5 * float(np.median(self.speed[self.moving])))


def compute_motion(recording: RecordedEpisode) -> NormalizedMotion:
    """Compute the motion of a recording; a value that is not finite is replaced by its predecessor.

    Raises:
        TwinloopError: If the recording cannot be read.
    """
    return recording.compute_once("motion", _compute_motion)


def _compute_motion(recording: RecordedEpisode) -> NormalizedMotion:
    raw = recording.raw
    state = fill_gaps(raw.state)
    steps = np.diff(raw.time)
    forward = steps[np.isfinite(steps) & (steps > 0)]
    dt = float(np.median(forward)) if len(forward) else 1.0 / recording.fps
    reach = np.ptp(state, axis=0) if len(state) else np.zeros(state.shape[1])
    columns = np.flatnonzero(reach > max(_MOVES * float(reach.max(initial=0.0)), 1e-9))
    return NormalizedMotion(steps=np.diff(state[:, columns], axis=0) / reach[columns], columns=columns, dt=dt)


def fill_gaps(values: Array) -> Array:
    """Replace values that are not finite by the previous finite value of the same column, else the next one, else 0.

    Args:
        values: ``(T, n)`` for T frames and n columns.
    """
    good = np.isfinite(values)
    if good.all():
        return values
    rows = np.where(good, np.arange(len(values))[:, None], -1)
    last = np.maximum.accumulate(rows, axis=0)
    first = np.where(good.any(axis=0), np.argmax(good, axis=0), 0)
    last = np.where(last < 0, first, last)
    return np.nan_to_num(np.take_along_axis(values, last, axis=0), posinf=0.0, neginf=0.0)


def find_runs(true: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the start and end (exclusive) indices of all runs of consecutive true values."""
    edges = np.diff(np.concatenate([[0], true.astype(np.int8), [0]]))
    return list(zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True))


def find_longest_run(true: NDArray[np.bool_]) -> tuple[int, int]:
    """Return the start and end (exclusive) indices of the longest run of true values; (0, 0) if no value is true."""
    return max(find_runs(true), key=lambda run: run[1] - run[0], default=(0, 0))
