"""Find the events in which a twin's error arises by comparing the error per frame inside and outside an event.

Episodes are the unit of all tests. Only new error counts: the mean residual of a short span minus the value expected
from the span before it. An existing error persists until a controller corrects it, or for good in bodies that move
freely. Later frames of such an error do not show when it arose.
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
    """Comparison of the new error inside one event class with the new error elsewhere, in one channel.

    New error is the squared change of the residual within a short span, see `compute_new_errors`.

    Attributes:
        event: Name of the event class, such as ``reversal``.
        channel: Name of the channel.
        frames: Fraction of the frames that are inside the event.
        share: n (e_in − e_out) / E, where n is the number of frames inside, e_in and e_out are the new error per frame
            inside and outside, and E is the new error of all frames.
        ratio: e_in / e_out.
        p_value: One-sided p-value, adjusted by Holm's method over all tests of the analysis.
        episodes: Number of episodes with frames inside and outside.
        reason: Reason why nothing was tested, else "".
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
    """Return the new error of each frame, the squared change of the residual between two spans of 0.05 s.

    The change is e̅ₜ − φ e̅ₜ₋ₕ. e̅ is the mean residual over the h frames (0.05 s) until t, and φ is the correlation of
    neighbouring means in the channel. φ e̅ₜ₋ₕ is the part that was expected from the span before. For white noise, φ is
    near 0 and the change is e̅ₜ; for a slow drift, φ is near 1 and only the changes of the drift remain. The shape is
    ``(nwindow, nframe, nchannel)``, in the square of the channels' units. The first frames of a window have NaN.

    Args:
        residual: Residual, shape ``(nwindow, nframe, nchannel)``, NaN if not measured.
        hz: Frames per second.
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
    """Test for every event class and channel whether more error arises in the event than outside it.

    Args:
        errors: Squared change of the residual within a short span (new error), see `compute_new_errors`, shape
            ``(nwindow, nframe, nchannel)``.
        masks: Frames of each event, same shape.
        clusters: Number of each window's episode, shape ``(nwindow,)``.
        channels: Names of the channels.
        level: Confidence level of the intervals.
        alpha: Family-wise error rate of the Holm adjustment, which the caller makes later; it determines the number of
            resamples.
        seed: Seed of the resamples.
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
    """Sums of new errors and numbers of frames by episode, inside and outside one event, in one channel.

    New error is the squared change of the residual within a short span, see `compute_new_errors`.

    Attributes:
        errors: Sums of new errors, shape ``(2, nepisode)``: inside, then outside.
        frames: Numbers of frames, same shape.
    """

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
        """Indices of the episodes with a positive error and at least three frames each inside and outside the event."""
        return np.flatnonzero((self.frames >= _LEAST_FRAMES).all(axis=0) & (self.errors.sum(axis=0) > 0))

    def differences(self, rows: NDArray[np.intp]) -> Array:
        """Return the new error per frame in the event minus that outside the event, for each of some episodes.

        New error is the squared change of the residual between two short spans, see `compute_new_errors`; the event is
        a class such as ``reversal``. Each difference is divided by the new error per frame of the whole episode. A test
        of these differences is conservative (significant too rarely) if few frames are in the event.

        Args:
            rows: Indices of the episodes, shape ``(nrow,)``; the result has the same shape.
        """
        errors, frames = self.errors[:, rows], self.frames[:, rows]
        inside, outside = errors / frames
        return (inside - outside) / (errors.sum(axis=0) / frames.sum(axis=0))

    def ratio_and_share(self, rows: NDArray[np.intp]) -> Array:
        """Return two metrics of the event for k resamples of episodes, shape ``(k, 2)``.

        New error is the squared change of the residual between two short spans, see `compute_new_errors`. e_in and
        e_out are the new error per frame inside and outside the event. The first metric is e_in / e_out. The second is
        n (e_in − e_out) / E, where n is the number of frames inside and E is the new error of all frames.

        Args:
            rows: Indices of the episodes in each resample, shape ``(k, nepisode)``.
        """
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
