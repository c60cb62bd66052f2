"""Compute the statistics that LeRobot stores: moments, quantiles and image statistics.

Moments are exact. They are merged block by block with the pairwise update of Chan, Golub & LeVeque (1979), which avoids
cancellation. Image statistics come from histograms of sampled frames, which are exact for 8-bit pixels and are merged
by addition.

Quantiles are exact and need bounded memory, because they are computed by radix selection. Every value is mapped to an
integer of the same order, its key. The first pass counts the upper 16 bits of the keys and finds the bins that contain
the requested order statistics. Each further pass counts the next bits within those bins. The results are stored values,
not approximations. Keys of float32, flags and whole numbers up to 2^32 have 32 bits (two passes); keys of float64 and
other whole numbers have 64 bits (four passes).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import DatasetError

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Moments of the n columns of a table; they can be merged exactly.

    Attributes:
        count: Number of rows.
        low: Minimum of each column, shape ``(n,)``.
        high: Maximum of each column, shape ``(n,)``.
        mean: Mean of each column, shape ``(n,)``.
        m2: Sum of squared deviations from the mean of each column, shape ``(n,)``.
    """

    count: int
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    mean: NDArray[np.float64]
    m2: NDArray[np.float64]

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Moments:
        """Compute count, extremes, mean and sum of squared deviations of values ``(count, n)``; count is 1 or more."""
        mean = values.mean(axis=0)
        return cls(
            count=len(values),
            low=values.min(axis=0),
            high=values.max(axis=0),
            mean=mean,
            m2=((values - mean) ** 2).sum(axis=0),
        )

    def merge(self, other: Moments) -> Moments:
        """Return the moments of the rows of both objects together."""
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
        """Population standard deviation of each column, as in LeRobot, shape ``(n,)``."""
        return np.sqrt(self.m2 / self.count)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary; floats are kept exactly."""
        arrays = {name: getattr(self, name).tolist() for name in ("low", "high", "mean", "m2")}
        return {"count": self.count, **arrays}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Moments:
        """Read the dictionary that `to_json` returns."""
        arrays = {name: np.array(value[name], dtype=np.float64) for name in ("low", "high", "mean", "m2")}
        return cls(count=value["count"], **arrays)


def sorted_quantiles(ordered: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Return LeRobot's quantiles (q01 to q99) of columns sorted along the first axis, with linear interpolation."""
    return interpolate_quantiles(ordered[quantile_ranks(len(ordered))], len(ordered))


def quantile_ranks(count: int) -> NDArray[np.int64]:
    """Return the ranks, counted from 0, of the two sorted values between which each quantile is interpolated.

    The quantiles are q01, q10, q50, q90 and q99.

    Args:
        count: Number of values.

    Returns:
        Lower and upper rank of each quantile, one quantile after the other, shape ``(10,)``.
    """
    last = count - 1
    below = [int(q * last) for q in QUANTILES.values()]
    return np.array([rank for low in below for rank in (low, min(low + 1, last))], dtype=np.int64)


def interpolate_quantiles(ordered: NDArray[np.float64], count: int) -> dict[str, NDArray[np.float64]]:
    """Interpolate LeRobot's quantiles from the sorted values at `quantile_ranks`.

    Args:
        ordered: Values at the ranks, along the first axis.
        count: Number of all values.
    """
    result: dict[str, NDArray[np.float64]] = {}
    for i, (name, q) in enumerate(QUANTILES.items()):
        below, above, place = ordered[2 * i], ordered[2 * i + 1], q * (count - 1)
        result[name] = below + (place - int(place)) * (above - below)
    return result


def column_stats(moments: Moments, quantiles: Mapping[str, NDArray[np.float64]]) -> dict[str, list[Any]]:
    """Return the entry of one feature in ``stats.json``.

    Args:
        moments: Moments of the feature.
        quantiles: Quantiles by name, ``q01`` to ``q99``.
    """
    return {
        "min": moments.low.tolist(),
        "max": moments.high.tolist(),
        "mean": moments.mean.tolist(),
        "std": moments.std.tolist(),
        "count": [moments.count],
        **{name: np.asarray(value).tolist() for name, value in quantiles.items()},
    }


def take_columns(moments: Moments, columns: slice) -> Moments:
    """Return the moments of the selected columns."""
    arrays = {name: getattr(moments, name)[columns] for name in ("low", "high", "mean", "m2")}
    return Moments(count=moments.count, **arrays)


def pixel_histogram(frames: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Count the pixels per colour channel and 8-bit value, shape ``(3, 256)``, of images ``(n, height, width, 3)``."""
    flat = frames.reshape(-1, 3)
    return np.stack([np.bincount(flat[:, channel], minlength=256) for channel in range(3)]).astype(np.int64)


def image_stats(histogram: NDArray[np.int64], frames: int) -> dict[str, list[Any]]:
    """Return LeRobot's statistics of an image feature, scaled to [0, 1], as nested lists of shape ``(3, 1, 1)``.

    Args:
        histogram: Number of pixels by colour channel and 8-bit value, shape ``(3, 256)``.
        frames: Number of sampled frames; stored as ``count``.
    """
    rows = [level_stats(channel, np.arange(256) / 255.0) for channel in histogram]
    names = rows[0].keys()
    return {**{name: [[[row[name]]] for row in rows] for name in names}, "count": [frames]}


def level_stats(counts: NDArray[np.int64], levels: NDArray[np.float64]) -> dict[str, float]:
    """Return minimum, maximum, mean, standard deviation and quantiles of pixels that have one of a few values.

    Args:
        counts: Number of pixels with each value, shape ``(n,)``.
        levels: The values in ascending order, shape ``(n,)``.
    """
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
    """Return evenly spaced frame numbers of an episode, including the first and the last, for image statistics.

    Args:
        length: Number of frames of the episode.
        most: Largest number of sampled frames.
    """
    return np.unique(np.linspace(0, length - 1, min(most, length)).round().astype(np.int64))


def merge_moments(items: Sequence[Moments]) -> Moments:
    """Merge several moments, in order; at least one."""
    total = items[0]
    for item in items[1:]:
        total = total.merge(item)
    return total


Columns = Mapping[str, NDArray[Any]]
_FIRST = 16  # bits that the first pass counts
_SIGN = {32: np.uint32(1 << 31), 64: np.uint64(1 << 63)}
_KEY: dict[int, type[np.unsignedinteger[Any]]] = {32: np.uint32, 64: np.uint64}
# Bytes of counts in memory at a time. A column has ten order statistics, so at most ten bins of 2^16 counts. If all
# columns together need more, each pass counts 8 bits and there are more passes.
_MOST_BYTES = 1 << 28
_BINS = 10


def stream_quantiles(
    chunks: Callable[[], Iterable[Columns]], count: int, *, wide: Collection[str] = ()
) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Compute the same quantiles as `sorted_quantiles`, without all rows in memory.

    Args:
        chunks: Function that yields chunks of rows, and the same rows at each call. A chunk has per feature an array of
            shape ``(nrow, width)``.
        count: Number of rows in all chunks together.
        wide: Names of whole-number features with values that are negative or at least 2^32.

    Returns:
        For each feature the quantiles by name (``q01`` to ``q99``), shape ``(width,)``.

    Raises:
        DatasetError: If whole numbers are negative or at least 2^32, and ``wide`` does not name the feature.
    """
    picks: dict[str, list[_QuantileSearch]] = {}
    kinds: dict[str, np.dtype[Any]] = {}
    first = True
    while first or any(pick.left for row in picks.values() for pick in row):
        for columns in chunks():
            for name, values in columns.items():
                kinds[name] = values.dtype
                bits = _bits(values.dtype, name in wide)
                if name not in picks:
                    picks[name] = [_QuantileSearch(bits, count) for _ in range(values.shape[1])]
                if picks[name] and picks[name][0].left:
                    keys = _to_keys(values, bits)
                    for column, pick in enumerate(picks[name]):
                        pick.add(keys[:, column])
        total = sum(map(len, picks.values()))
        digit = 16 if total * _BINS * (1 << 16) * 8 <= _MOST_BYTES else 8
        for pick in (pick for row in picks.values() for pick in row if pick.left):
            pick.narrow(digit)
        first = False
    found = {name: np.stack([pick.found for pick in row], axis=1) for name, row in picks.items()}
    return {name: interpolate_quantiles(_from_keys(keys, kinds[name]), count) for name, keys in found.items()}


class _QuantileSearch:
    """Radix selection of the requested order statistics of one column.

    Each pass over the data counts one digit (some bits) of the keys, and narrows the bins that contain the order
    statistics.

    Args:
        bits: Number of bits of a key, 32 or 64.
        count: Number of values.

    Attributes:
        left: Number of key bits that are not determined yet; 0 at the end.
        found: Key at each requested rank, complete when ``left`` is 0.
    """

    def __init__(self, bits: int, count: int) -> None:
        self.found = np.zeros(len(quantile_ranks(count)), dtype=_KEY[bits])
        self.left, self._bits, self._digit = bits, bits, _FIRST
        self._within = quantile_ranks(count)
        self._bins = np.zeros(1, dtype=_KEY[bits])
        self._coarse = np.ones(1 << _FIRST, dtype=np.bool_)
        self._counts = np.zeros((1, 1 << _FIRST), dtype=np.int64)

    def add(self, keys: NDArray[Any]) -> None:
        """Count, in the current pass of the radix selection, the values of the next bits of the keys.

        Only keys whose higher bits equal those of a searched order statistic (the current bins) are counted.

        Args:
            keys: Keys of a part of the column: integers in the same order as the values.
        """
        rest, size = self.left - self._digit, 1 << self._digit
        if self.left == self._bits:
            self._counts[0] += np.bincount((keys >> keys.dtype.type(rest)).astype(np.int64), minlength=size)
            return
        near = keys[self._coarse[keys >> keys.dtype.type(self._bits - _FIRST)]]
        high = near >> near.dtype.type(self.left)
        slot = np.minimum(np.searchsorted(self._bins, high), len(self._bins) - 1)
        inside = self._bins[slot] == high
        digits = (near[inside] >> near.dtype.type(rest)).astype(np.int64) & (size - 1)
        places = slot[inside] * size + digits
        if len(places) * 16 < self._counts.size:
            np.add.at(self._counts.reshape(-1), places, 1)
        else:
            self._counts += np.bincount(places, minlength=self._counts.size).reshape(self._counts.shape)

    def narrow(self, bits: int) -> None:
        """End a pass of the radix selection: determine further bits of the searched keys from the counts of this pass.

        The bins of the next pass are the keys that begin with the bits found so far.

        Args:
            bits: Number of key bits that the next pass determines.
        """
        slots = np.searchsorted(self._bins, self.found)
        ends = np.cumsum(self._counts, axis=1)
        for rank, slot in enumerate(slots.tolist()):
            place = int(np.searchsorted(ends[slot], self._within[rank], side="right"))
            self._within[rank] -= int(ends[slot, place] - self._counts[slot, place])
            kind = self.found.dtype.type
            self.found[rank] = (self.found[rank] << kind(self._digit)) | kind(place)
        self.left -= self._digit
        self._digit = min(bits, self.left)
        self._bins = np.unique(self.found)
        self._counts = np.zeros((len(self._bins), 1 << self._digit) if self.left else (0, 0), dtype=np.int64)
        known = self._bits - self.left
        self._coarse = np.zeros(1 << _FIRST, dtype=np.bool_)
        self._coarse[(self._bins >> self._bins.dtype.type(known - _FIRST)).astype(np.int64)] = True


def _bits(kind: np.dtype[Any], wide: bool) -> int:
    return 64 if kind == np.float64 or wide else 32


def _to_keys(values: NDArray[Any], bits: int) -> NDArray[Any]:
    """Map values ``(n, width)`` to unsigned integers in the same order.

    Args:
        values: Numbers or flags.
        bits: Number of bits of a key, 32 or 64.
    """
    kind, sign = _KEY[bits], _SIGN[bits]
    if values.dtype.kind == "f":
        exact = values.astype(np.float32 if bits == 32 else np.float64)
        raw = (exact + exact.dtype.type(0)).view(kind)  # adding zero makes -0 and 0 one value
        return np.where(raw & sign, ~raw, raw | sign)
    if bits == 64:
        return values.astype(np.int64).view(np.uint64) ^ sign
    if values.dtype != np.bool_ and values.size and not 0 <= values.min() <= values.max() < 2**32:
        raise DatasetError("Quantiles need whole numbers from 0 to 2^32 - 1; the dataset has others.")
    return values.astype(np.uint32)


def _from_keys(keys: NDArray[Any], kind: np.dtype[Any]) -> NDArray[np.float64]:
    """Map keys back to values, the inverse of `_to_keys`.

    Args:
        keys: Unsigned integers.
        kind: Data type of the original values.
    """
    bits = keys.dtype.itemsize * 8
    sign = _SIGN[bits]
    if kind.kind == "f":
        raw = np.where(keys & sign, keys ^ sign, ~keys)
        return raw.view(np.float32 if bits == 32 else np.float64).astype(np.float64)
    return (keys ^ sign).view(np.int64).astype(np.float64) if bits == 64 else keys.astype(np.float64)
