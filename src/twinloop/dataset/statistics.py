"""Statistics of features as LeRobot stores them: exact moments that merge block by block, exact quantiles.

Moments merge with the pairwise update of Chan, Golub & LeVeque (1979), which does not cancel. Image statistics come
from histograms of sampled frames, which are exact for 8-bit pixels and merge by addition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Count, extremes, mean and sum of squared deviations of columns ``(n,)``."""

    count: int
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    mean: NDArray[np.float64]
    m2: NDArray[np.float64]

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Moments:
        """Moments of rows ``(count, n)``, at least one."""
        mean = values.mean(axis=0)
        return cls(
            count=len(values),
            low=values.min(axis=0),
            high=values.max(axis=0),
            mean=mean,
            m2=((values - mean) ** 2).sum(axis=0),
        )

    def merge(self, other: Moments) -> Moments:
        """Moments of both sets of rows together."""
        count = self.count + other.count
        delta = other.mean - self.mean
        return Moments(
            count=count,
            low=np.minimum(self.low, other.low),
            high=np.maximum(self.high, other.high),
            mean=self.mean + delta * (other.count / count),
            m2=self.m2 + other.m2 + delta**2 * (self.count * other.count / count),
        )

    @property
    def std(self) -> NDArray[np.float64]:
        """Population standard deviation, as LeRobot's."""
        return np.sqrt(self.m2 / self.count)

    def to_json(self) -> dict[str, Any]:
        """A plain form for files; floats survive exactly."""
        arrays = {name: getattr(self, name).tolist() for name in ("low", "high", "mean", "m2")}
        return {"count": self.count, **arrays}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Moments:
        """The inverse of `to_json`."""
        arrays = {name: np.array(value[name], dtype=np.float64) for name in ("low", "high", "mean", "m2")}
        return cls(count=value["count"], **arrays)


def sorted_quantiles(ordered: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """LeRobot's quantiles of columns already sorted along the first axis, linear between order statistics."""
    return interpolated(ordered[ranks(len(ordered))], len(ordered))


def ranks(count: int) -> NDArray[np.int64]:
    """The order statistics, counted from 0, between which the quantiles of ``count`` values lie: below and above."""
    last = count - 1
    below = [int(q * last) for q in QUANTILES.values()]
    return np.array([rank for low in below for rank in (low, min(low + 1, last))], dtype=np.int64)


def interpolated(ordered: NDArray[np.float64], count: int) -> dict[str, NDArray[np.float64]]:
    """The quantiles of ``count`` values from their order statistics at `ranks`, along the first axis."""
    result: dict[str, NDArray[np.float64]] = {}
    for i, (name, q) in enumerate(QUANTILES.items()):
        below, above, place = ordered[2 * i], ordered[2 * i + 1], q * (count - 1)
        result[name] = below + (place - int(place)) * (above - below)
    return result


def column_stats(moments: Moments, quantiles: Mapping[str, NDArray[np.float64]]) -> dict[str, list[Any]]:
    """One feature's entry of ``stats.json``."""
    return {
        "min": moments.low.tolist(),
        "max": moments.high.tolist(),
        "mean": moments.mean.tolist(),
        "std": moments.std.tolist(),
        "count": [moments.count],
        **{name: np.asarray(value).tolist() for name, value in quantiles.items()},
    }


def take_columns(moments: Moments, columns: slice) -> Moments:
    """The moments of some columns."""
    arrays = {name: getattr(moments, name)[columns] for name in ("low", "high", "mean", "m2")}
    return Moments(count=moments.count, **arrays)


def pixel_histogram(frames: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Counts ``(3, 256)`` of 8-bit values per channel of frames ``(n, height, width, 3)``."""
    flat = frames.reshape(-1, 3)
    return np.stack([np.bincount(flat[:, channel], minlength=256) for channel in range(3)]).astype(np.int64)


def image_stats(histogram: NDArray[np.int64], frames: int) -> dict[str, list[Any]]:
    """LeRobot's statistics of an image feature, in [0, 1] with shape ``(3, 1, 1)``, from a pixel histogram.

    ``frames`` is how many frames were sampled; it becomes ``count``.
    """
    rows = [_channel_stats(channel) for channel in histogram]
    names = rows[0].keys()
    return {**{name: [[[row[name]]] for row in rows] for name in names}, "count": [frames]}


def _channel_stats(counts: NDArray[np.int64]) -> dict[str, float]:
    levels = np.arange(256) / 255.0
    total = int(counts.sum())
    present = np.flatnonzero(counts)
    mean = float((counts @ levels) / total)
    variance = float((counts @ (levels - mean) ** 2) / total)
    cumulative = np.cumsum(counts)
    below = {name: int(np.searchsorted(cumulative, q * total, side="left")) for name, q in QUANTILES.items()}
    return {
        "min": float(levels[present[0]]),
        "max": float(levels[present[-1]]),
        "mean": mean,
        "std": variance**0.5,
        **{name: float(levels[index]) for name, index in below.items()},
    }


def sample_indices(length: int, *, most: int = 12) -> NDArray[np.int64]:
    """Evenly spaced frame numbers of one episode for image statistics: deterministic, first and last included."""
    return np.unique(np.linspace(0, length - 1, min(most, length)).round().astype(np.int64))


def merge_moments(items: Sequence[Moments]) -> Moments:
    """All moments together, in order."""
    total = items[0]
    for item in items[1:]:
        total = total.merge(item)
    return total
