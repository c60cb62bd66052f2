"""Compute an episode's motion in numbers without units, shared by several checks of the recording."""

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
    """Steps of the joints that move, each divided by its own range in the episode.

    ``steps`` ``(T − 1, m)`` from each frame to the next; ``columns`` ``(m,)`` are these joints' columns; ``dt`` is
    the median time step in s.
    """

    steps: Array
    columns: NDArray[np.intp]
    dt: float

    @property
    def speed(self) -> Array:
        """Step of the fastest joint after each frame, ``(T − 1,)``; 0 without motion."""
        return np.abs(self.steps).max(axis=1, initial=0.0)

    @property
    def moving(self) -> NDArray[np.bool_]:
        """Mask of the steps in which some joint moves, ``(T − 1,)``."""
        return self.speed > _STILL

    @property
    def fast_mask(self) -> NDArray[np.bool_]:
        """Mask of the steps above half the median speed in motion, which a camera can show, ``(T − 1,)``."""
        if not self.moving.any():
            return self.moving
        return self.speed > max(2 * _STILL, 0.5 * float(np.median(self.speed[self.moving])))


def compute_motion(recording: RecordedEpisode) -> NormalizedMotion:
    """Return the motion of a recording; values that are not finite count as no motion.

    Raises:
        TwinloopError: it cannot be read.
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
    """Fill gaps in columns ``(T, n)`` with the previous finite value, else the next one, else 0."""
    good = np.isfinite(values)
    if good.all():
        return values
    rows = np.where(good, np.arange(len(values))[:, None], -1)
    last = np.maximum.accumulate(rows, axis=0)
    first = np.where(good.any(axis=0), np.argmax(good, axis=0), 0)
    last = np.where(last < 0, first, last)
    return np.nan_to_num(np.take_along_axis(values, last, axis=0), posinf=0.0, neginf=0.0)


def find_runs(true: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the first row and the end (exclusive) of every run of True."""
    edges = np.diff(np.concatenate([[0], true.astype(np.int8), [0]]))
    return list(zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True))


def find_longest_run(true: NDArray[np.bool_]) -> tuple[int, int]:
    """Return the first row and the end (exclusive) of the longest run of True; (0, 0) without any."""
    return max(find_runs(true), key=lambda run: run[1] - run[0], default=(0, 0))
