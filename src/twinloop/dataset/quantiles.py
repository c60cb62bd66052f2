"""Exact quantiles of columns of any length in bounded memory, from two passes over the data.

Every value becomes a 32-bit key of the same order. The first pass counts the upper halves of the keys and finds the
bins in which the wanted order statistics lie; the second counts the lower halves within those bins. This is selection
by radix; what it finds are the stored values themselves, not approximations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import DatasetError
from twinloop.dataset.statistics import interpolated, ranks

Columns = Mapping[str, NDArray[Any]]
_HALF = 1 << 16  # values of half a key: a pass counts one half
_SIGN = np.uint32(1 << 31)


def streamed_quantiles(
    chunks: Callable[[], Iterable[Columns]], count: int
) -> dict[str, dict[str, NDArray[np.float64]]]:
    """The quantiles that `sorted_quantiles` gives, per feature, without ever holding all rows.

    Args:
        chunks: yields the same rows each time it is called: per feature ``(n, width)`` of float32, bool, or whole
            numbers from 0 to 2^32.
        count: rows altogether.
    """
    wanted = ranks(count)
    upper: dict[str, NDArray[np.int64]] = {}
    kinds: dict[str, np.dtype[Any]] = {}
    for columns in chunks():
        for name, values in columns.items():
            keys = _keys(values)
            total = upper.setdefault(name, np.zeros((keys.shape[1], _HALF), dtype=np.int64))
            kinds[name] = values.dtype
            for column in range(keys.shape[1]):
                total[column] += np.bincount(keys[:, column] >> 16, minlength=_HALF)
    picks = {name: [_Pick(counts, wanted) for counts in total] for name, total in upper.items()}
    for columns in chunks():
        for name, values in columns.items():
            keys = _keys(values)
            for column, pick in enumerate(picks[name]):
                pick.add(keys[:, column])
    found = {name: np.stack([pick.keys() for pick in row], axis=1) for name, row in picks.items()}
    return {name: interpolated(_values(keys, kinds[name]), count) for name, keys in found.items()}


class _Pick:
    """The lower halves of one column's keys, counted within the bins that hold the wanted ranks."""

    def __init__(self, upper: NDArray[np.int64], wanted: NDArray[np.int64]) -> None:
        """``upper`` ``(65536,)`` counts the keys' upper halves; ``wanted`` ranks count from 0."""
        ends = np.cumsum(upper)
        self._bin = np.searchsorted(ends, wanted, side="right")
        self._within = wanted - (ends - upper)[self._bin]
        self._bins, self._slot_of_rank = np.unique(self._bin, return_inverse=True)
        self._slot = np.full(_HALF, -1, dtype=np.int64)
        self._slot[self._bins] = np.arange(len(self._bins))
        self._lower = np.zeros(len(self._bins) * _HALF, dtype=np.int64)

    def add(self, keys: NDArray[np.uint32]) -> None:
        slot = self._slot[keys >> 16]
        inside = slot >= 0
        places = slot[inside] * _HALF + (keys[inside] & np.uint32(_HALF - 1))
        if len(places) * 16 < len(self._lower):
            np.add.at(self._lower, places, 1)
        else:
            self._lower += np.bincount(places, minlength=len(self._lower))

    def keys(self) -> NDArray[np.uint32]:
        """The key at each wanted rank."""
        ends = np.cumsum(self._lower.reshape(-1, _HALF), axis=1)
        rows = zip(self._slot_of_rank, self._within, strict=True)
        lower = [int(np.searchsorted(ends[slot], rank, side="right")) for slot, rank in rows]
        return (self._bin.astype(np.uint32) << np.uint32(16)) | np.array(lower, dtype=np.uint32)


def _keys(values: NDArray[Any]) -> NDArray[np.uint32]:
    """Keys ``(n, width)`` in the order of the values."""
    if values.dtype == np.float32:
        bits = (values + np.float32(0)).view(np.uint32)  # adding zero makes -0 and 0 one value
        return np.where(bits & _SIGN, ~bits, bits | _SIGN)
    if values.dtype != np.bool_ and values.size and not 0 <= values.min() <= values.max() < 2**32:
        raise DatasetError("Quantiles are for whole numbers from 0 to 2^32; the dataset has grown beyond that.")
    return values.astype(np.uint32)


def _values(keys: NDArray[np.uint32], kind: np.dtype[Any]) -> NDArray[np.float64]:
    """The values of keys, the inverse of `_keys`."""
    if kind != np.float32:
        return keys.astype(np.float64)
    bits = np.where(keys & _SIGN, keys ^ _SIGN, ~keys)
    return bits.view(np.float32).astype(np.float64)
