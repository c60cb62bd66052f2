"""What a gripper does in an episode: when it closes and opens, flutters, and whether it closes on something."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy  # its parts load when they are used
from numpy.typing import NDArray

from twinloop.curate.demonstration.movement import Array, Movement

# Closed below the one share of its range, open above the other, as in `encoders.trajectory`.
CLOSED, OPEN = 0.35, 0.65
_SWING = 0.1  # of the range: smaller movements are no flutter (our choice)
_QUICK_S = 0.5  # two turns within half a second; a person opens and closes a gripper on purpose in about a second
_SETTLED_S = 0.3  # a servo's gripper has closed by then


@dataclass(frozen=True, kw_only=True)
class Change:
    """The gripper closes, or opens, at a frame."""

    frame: int
    closes: bool


@dataclass(frozen=True, kw_only=True)
class GripEvents:
    """``changes`` in order; ``turns`` frames of quick reversals; ``gap`` what is left between command and position.

    ``span`` is the range that the gripper went through, in the movement's unit. ``gap`` is the largest over all
    closings, as a share of that range: what is held keeps a gripper from where it was told to close to. ``last_gap`` is
    that at the end of the last closing. Both are None where nothing is commanded or the gripper never closes after it
    was open.
    """

    changes: tuple[Change, ...]
    turns: NDArray[np.intp]
    gap: float | None
    last_gap: float | None
    span: float


def grip_events(motion: Movement) -> GripEvents | None:
    """Of a movement; None without a gripper, or where it stays as it is."""
    if motion.gripper is None:
        return None
    position = motion.position[:, motion.gripper]
    asked = position if motion.command is None else motion.command[:, motion.gripper]
    low, span = float(asked.min()), float(np.ptp(asked))
    if span <= 1e-9 * max(1.0, float(np.abs(asked).max())):
        return None
    share = (asked - low) / span
    closed = _closed(share)
    frames = np.flatnonzero(np.diff(closed.astype(np.int8))) + 1
    gaps = [] if motion.command is None else _gaps(position - asked, closed, frames, motion.rate_hz)
    return GripEvents(
        changes=tuple(Change(frame=int(frame), closes=bool(closed[frame])) for frame in frames),
        turns=_turns(share, motion.rate_hz),
        gap=max(whole for whole, _ in gaps) / span if gaps else None,
        last_gap=gaps[-1][1] / span if gaps else None,
        span=span,
    )


def _closed(share: Array) -> NDArray[np.bool_]:
    """Closed or not: falls below the one mark, stays so until it rises above the other."""
    told = np.where(share <= CLOSED, 1, np.where(share >= OPEN, 0, -1))
    last = np.maximum.accumulate(np.where(told >= 0, np.arange(len(told)), -1))
    return np.where(last >= 0, told[np.maximum(last, 0)] == 1, share < 0.5)


def _turns(share: Array, rate_hz: float) -> NDArray[np.intp]:
    """Frames of extremes that come quickly after the one before."""
    padded = np.concatenate([share[:1], share, share[-1:]])
    found = [scipy.signal.find_peaks(side, prominence=_SWING)[0] - 1 for side in (padded, -padded)]
    frames = np.sort(np.concatenate(found))
    return frames[1:][np.diff(frames) < _QUICK_S * rate_hz]


def _gaps(
    left: Array, closed: NDArray[np.bool_], frames: NDArray[np.intp], rate_hz: float
) -> list[tuple[float, float]]:
    """Distance between command and position over every closing that follows an opening: all of it, and its end."""
    settled = round(_SETTLED_S * rate_hz)
    ends = [*frames[1:], len(closed)]
    return [
        (float(np.median(left[begin + settled : end])), float(np.median(left[end - settled - 1 : end - 1])))
        for begin, end in zip(frames, ends, strict=True)
        if closed[begin] and end - begin > settled + 1
    ]
