"""In which events the error arises: errors per frame inside against outside, with the episode as the unit.

What counts is the error that is new: the mean residual of a short span less what the span before it lets expect. An
error once made stays until a loop corrects it, or for good in what moves freely; where it stays says nothing of where
it came from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from twinloop.core.plain import JsonRecord
from twinloop.stats import Interval, bootstrap, paired_test

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

_SPAN = 0.05  # s: as short as an impact lasts; events are told to about that
_LEAST_FRAMES = 3  # inside and outside, for an episode to say anything
_FEWEST = 3  # episodes: with fewer even the greatest difference is p > 0.12


@dataclass(frozen=True, kw_only=True)
class EventClassError(JsonRecord):
    """One event class of one channel: whether error arises there more than elsewhere.

    ``frames`` is the part of the frames inside, ``share`` the part of the new error that arises inside beyond what
    arises elsewhere in as many frames, ``ratio`` the new error per frame inside over outside (both with intervals over
    episodes). ``p_value`` is one-sided, adjusted by Holm over everything that was tested with it; ``episodes`` have
    both sides. ``reason`` says why nothing was tested.
    """

    event: str
    channel: str
    frames: float
    share: Interval | None = None
    ratio: Interval | None = None
    p_value: float = 1.0
    episodes: int
    reason: str = ""


def new_errors(residual: Array, hz: float) -> Array:
    """Squares of what each short span adds to the residual, ``(nwindow, nframe, nchannel)``; NaN at a window's start.

    e̅ₜ − φ e̅ₜ₋ₕ of means e̅ over h frames, with the correlation φ of neighbouring means: white noise stays what it is,
    and of what drifts its changes remain.
    """
    span = max(1, round(_SPAN * hz))
    known = np.isfinite(residual)
    total = np.cumsum(np.where(known, residual, 0.0), axis=1)
    count = np.cumsum(known, axis=1)
    sums = np.concatenate([total[:, span - 1 : span], total[:, span:] - total[:, :-span]], axis=1)
    seen = np.concatenate([count[:, span - 1 : span], count[:, span:] - count[:, :-span]], axis=1)
    mean = np.where(seen == span, sums, np.nan) / span
    found = np.full(residual.shape, np.nan)
    if residual.shape[1] < 2 * span:
        return found
    later, earlier = mean[:, span:], mean[:, :-span]
    both = ~np.isnan(later + earlier)
    a, b = np.where(both, later, 0.0), np.where(both, earlier, 0.0)
    energy = np.sqrt(np.sum(a**2, axis=(0, 1)) * np.sum(b**2, axis=(0, 1)))
    phi = np.sum(a * b, axis=(0, 1)) / np.maximum(energy, np.finfo(float).tiny)
    found[:, 2 * span - 1 :] = (later - phi * earlier) ** 2
    return found


def places(
    errors: Array,
    masks: Mapping[str, Mask],
    clusters: NDArray[np.intp],
    channels: tuple[str, ...],
    *,
    level: float,
    alpha: float,
    seed: int,
) -> list[EventClassError]:
    """Every event class of every channel; p-values are not adjusted yet.

    Args:
        errors: new errors, ``(nwindow, nframe, nchannel)``.
        masks: of the same shape, by event.
        clusters: the episode of each window.
        channels: names.
        level: of the intervals.
        alpha: chance of any false alarm that Holm will be asked for; it says how fine p-values must be.
        seed: of resamples.
    """
    draws = max(4999, math.ceil(20 * len(masks) * len(channels) / alpha))
    return [
        _place(event, name, _EventSums(errors[..., i], mask[..., i], clusters), level=level, draws=draws, seed=seed)
        for event, mask in masks.items()
        for i, name in enumerate(channels)
    ]


class _EventSums:
    """Errors and frames by episode, ``(2, nepisode)`` each: inside, then outside."""

    def __init__(self, errors: Array, mask: Mask, clusters: NDArray[np.intp]) -> None:
        known = ~np.isnan(errors)
        value = np.where(known, errors, 0.0)

        def by_episode(frames: Array) -> Array:
            return np.bincount(clusters, weights=frames.sum(axis=1)).astype(np.float64)

        sides = (mask, ~mask)
        self.errors = np.stack([by_episode(value * side) for side in sides])
        self.frames = np.stack([by_episode((known & side).astype(float)) for side in sides])

    @property
    def both(self) -> NDArray[np.intp]:
        """Episodes that have something on both sides, and any error."""
        return np.flatnonzero((self.frames >= _LEAST_FRAMES).all(axis=0) & (self.errors.sum(axis=0) > 0))

    def differences(self, rows: NDArray[np.intp]) -> Array:
        """Error per frame inside less outside, over that of the episode; falls short where few frames are inside."""
        errors, frames = self.errors[:, rows], self.frames[:, rows]
        inside, outside = errors / frames
        return (inside - outside) / (errors.sum(axis=0) / frames.sum(axis=0))

    def pooled(self, rows: NDArray[np.intp]) -> Array:
        """Ratio and share ``(k, 2)`` of resamples ``(k, nepisode)``."""
        inside, outside = (errors[rows].sum(axis=1) for errors in self.errors)
        n_in, n_out = (frames[rows].sum(axis=1) for frames in self.frames)
        per_in = inside / np.maximum(n_in, 1.0)
        per_out = np.maximum(outside / np.maximum(n_out, 1.0), np.finfo(float).tiny)
        share = n_in * (per_in - per_out) / np.maximum(inside + outside, np.finfo(float).tiny)
        return np.stack([per_in / per_out, share], axis=1)


def _place(event: str, channel: str, sums: _EventSums, *, level: float, draws: int, seed: int) -> EventClassError:
    rows = sums.both
    frames = float(sums.frames[0].sum() / max(1.0, sums.frames.sum()))
    place = EventClassError(event=event, channel=channel, frames=frames, episodes=len(rows))
    if len(rows) < _FEWEST:
        reason = f"{len(rows)} episodes have frames inside and outside; a test needs at least {_FEWEST}"
        return replace(place, reason=reason)
    name = f"places/{event}/{channel}"
    test = paired_test(sums.differences(rows), level=level, draws=draws, seed=seed, stream=name)
    pooled = bootstrap(lambda at: sums.pooled(rows[at]), len(rows), level=level, draws=500, seed=seed)
    return replace(place, share=pooled.at(1), ratio=pooled.at(0), p_value=test.p_value)
