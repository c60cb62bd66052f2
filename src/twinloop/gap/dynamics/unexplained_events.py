"""Find the events in which the error arises: error per frame inside and outside, with the episode as the unit.

Only new error counts: the mean residual of a short span minus the value expected from the span before it. An existing
error persists until a controller corrects it, or for good in bodies that move freely; its later frames do not show
where it arose.
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

_SPAN = 0.05  # s, about the duration of an impact; the time resolution of events
_LEAST_FRAMES = 3  # inside and outside, for an episode to count
_FEWEST = 3  # episodes: with fewer the smallest p-value is above 0.12


@dataclass(frozen=True, kw_only=True)
class EventClassError(JsonRecord):
    """One event class of one channel: whether more error arises in it than elsewhere.

    ``frames`` is the fraction of frames inside the event. ``share`` is the fraction of the new error that arises
    inside, in excess of that in as many frames elsewhere; ``ratio`` is the new error per frame inside divided by that
    outside; both have intervals over episodes. ``p_value`` is one-sided and adjusted by Holm over all tests of the
    analysis; ``episodes`` is the number of episodes with frames on both sides. ``reason`` explains why nothing was
    tested.
    """

    event: str
    channel: str
    frames: float
    share: Interval | None = None
    ratio: Interval | None = None
    p_value: float = 1.0
    episodes: int
    reason: str = ""


def compute_new_errors(residual: Array, hz: float) -> Array:
    """Return squares of the residual's change per short span, ``(nwindow, nframe, nchannel)``; NaN at the start.

    e̅ₜ − φ e̅ₜ₋ₕ of means e̅ over h frames, with the correlation φ of neighbouring means: white noise is unchanged, and
    of a drift only the changes remain.
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


def compare_event_errors(
    errors: Array,
    masks: Mapping[str, Mask],
    clusters: NDArray[np.intp],
    channels: tuple[str, ...],
    *,
    level: float,
    alpha: float,
    seed: int,
) -> list[EventClassError]:
    """Test every event class of every channel; p-values are not yet adjusted.

    Args:
        errors: new errors, ``(nwindow, nframe, nchannel)``.
        masks: frames of each event, of the same shape.
        clusters: the episode of each window.
        channels: names.
        level: confidence level of the intervals.
        alpha: family-wise error rate of the later Holm adjustment; it determines the number of resamples.
        seed: seed of the resamples.
    """
    draws = max(4999, math.ceil(20 * len(masks) * len(channels) / alpha))
    return [
        _compare_event(
            event, name, _EventSums(errors[..., i], mask[..., i], clusters), level=level, draws=draws, seed=seed
        )
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
    def usable_episodes(self) -> NDArray[np.intp]:
        """Episodes with enough frames on both sides and a positive error."""
        return np.flatnonzero((self.frames >= _LEAST_FRAMES).all(axis=0) & (self.errors.sum(axis=0) > 0))

    def differences(self, rows: NDArray[np.intp]) -> Array:
        """Return (error per frame inside − outside) / error per frame; conservative for few frames inside."""
        errors, frames = self.errors[:, rows], self.frames[:, rows]
        inside, outside = errors / frames
        return (inside - outside) / (errors.sum(axis=0) / frames.sum(axis=0))

    def ratio_and_share(self, rows: NDArray[np.intp]) -> Array:
        """Return ratio and share ``(k, 2)`` of resamples ``(k, nepisode)``."""
        inside, outside = (errors[rows].sum(axis=1) for errors in self.errors)
        n_in, n_out = (frames[rows].sum(axis=1) for frames in self.frames)
        per_in = inside / np.maximum(n_in, 1.0)
        per_out = np.maximum(outside / np.maximum(n_out, 1.0), np.finfo(float).tiny)
        share = n_in * (per_in - per_out) / np.maximum(inside + outside, np.finfo(float).tiny)
        return np.stack([per_in / per_out, share], axis=1)


def _compare_event(
    event: str, channel: str, sums: _EventSums, *, level: float, draws: int, seed: int
) -> EventClassError:
    rows = sums.usable_episodes
    frames = float(sums.frames[0].sum() / max(1.0, sums.frames.sum()))
    place = EventClassError(event=event, channel=channel, frames=frames, episodes=len(rows))
    if len(rows) < _FEWEST:
        reason = f"{len(rows)} episodes have frames inside and outside; a test needs at least {_FEWEST}"
        return replace(place, reason=reason)
    name = f"places/{event}/{channel}"
    test = paired_test(sums.differences(rows), level=level, draws=draws, seed=seed, stream=name)
    pooled = bootstrap(lambda at: sums.ratio_and_share(rows[at]), len(rows), level=level, draws=500, seed=seed)
    return replace(place, share=pooled.at(1), ratio=pooled.at(0), p_value=test.p_value)
