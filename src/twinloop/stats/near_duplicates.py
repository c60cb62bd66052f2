"""Series that are copies of each other or nearly: shifted in time, cut, played at another pace, with noise added.

Comparing n series in pairs grows as n². So each is first made a row of numbers that a shift, a cut or a pace hardly
moves; only the few nearest rows of each are then laid over each other at every shift.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError

Array = NDArray[np.float64]
Pairs = NDArray[np.intp]

_BLOCK = 64_000_000  # bytes of distances, or of spectra, at once
# Two series are laid over each other by three quarters of the shorter one at least, and by a third of the longer: less
# tells that they share a stretch, not that one is a copy of the other (our choice).
_LEAST_OF_SHORTER, _LEAST_OF_LONGER = 0.75, 1 / 3


@dataclass(frozen=True, kw_only=True)
class Aligned:
    """Pairs ``(m, 2)`` laid over each other: least root mean square difference ``(m,)`` over what they share.

    ``shift`` ``(m,)`` in frames: frame t of the first is like frame t + shift of the second.
    """

    pairs: Pairs
    distance: Array
    shift: NDArray[np.intp]


def nearest_pairs(rows: ArrayLike, neighbours: int) -> Pairs:
    """Every pair of rows ``(n, d)`` of which one is among the other's nearest, ``(m, 2)``, the smaller number first.

    Raises:
        InputError: no rows, or a value that is not finite.
    """
    values = np.asarray(rows, dtype=np.float32)
    if values.ndim != 2 or not len(values) or not np.isfinite(values).all():
        raise InputError(f"Rows are a finite table (n, d); given one of shape {values.shape}.")
    n, k = len(values), min(neighbours, len(values) - 1)
    if k < 1:
        return np.empty((0, 2), dtype=np.intp)
    values = values - values.mean(axis=0)
    squares = np.einsum("nd,nd->n", values, values)
    height = max(1, _BLOCK // (4 * n))
    found = np.empty((n, k), dtype=np.intp)
    for begin in range(0, n, height):
        block = values[begin : begin + height]
        apart = squares - 2.0 * (block @ values.T)  # less the row's own square, which does not order its neighbours
        apart[np.arange(len(block)), np.arange(begin, begin + len(block))] = np.inf
        found[begin : begin + height] = np.argpartition(apart, k - 1, axis=1)[:, :k]
    both = np.stack([np.repeat(np.arange(n), k), found.ravel()], axis=1)
    both.sort(axis=1)
    return np.unique(both, axis=0)


def aligned_distances(series: ArrayLike, lengths: ArrayLike, pairs: ArrayLike) -> Aligned:
    """Lay the two series of every pair over each other at every shift.

    Args:
        series: ``(n, T, k)``, columns about their means; what lies after a series' own length is not looked at.
        lengths: frames of each ``(n,)``.
        pairs: ``(m, 2)``.
    """
    values, length = np.asarray(series, dtype=np.float64), np.asarray(lengths, dtype=np.intp)
    chosen = np.asarray(pairs, dtype=np.intp).reshape(-1, 2)
    nframe = values.shape[1]
    inside = np.arange(nframe) < length[:, None]
    values = np.where(inside[..., None], values, 0.0)
    padded = 2 ** int(np.ceil(np.log2(2 * nframe)))
    step = max(1, _BLOCK // (16 * padded * 8))
    distance, shift = np.empty(len(chosen)), np.empty(len(chosen), dtype=np.intp)
    for begin in range(0, len(chosen), step):
        part = slice(begin, begin + step)
        first, second = chosen[part].T
        apart, at = _laid_over(values[first], values[second], inside[first], inside[second], padded)
        distance[part], shift[part] = apart, at
    return Aligned(pairs=chosen, distance=distance, shift=shift)


def _laid_over(
    x: Array, y: Array, known_x: NDArray[np.bool_], known_y: NDArray[np.bool_], padded: int
) -> tuple[Array, NDArray[np.intp]]:
    """Least distance and its shift for pairs ``(m, T, k)``: Σ (x[t] − y[t + s])² of what both have, by Fourier.

    Between whole shifts the squares are a parabola, whose lowest point is taken.
    """
    inside_x, inside_y = (np.fft.rfft(known.astype(np.float64), padded) for known in (known_x, known_y))
    square_x, square_y = (np.fft.rfft(np.sum(side**2, axis=2), padded) for side in (x, y))
    product = np.conj(square_x) * inside_y + np.conj(inside_x) * square_y
    for column in range(x.shape[2]):
        product -= 2.0 * np.conj(np.fft.rfft(x[..., column], padded)) * np.fft.rfft(y[..., column], padded)
    both = np.fft.irfft(np.conj(inside_x) * inside_y, padded)
    sizes = np.sort(np.stack([known_x.sum(axis=1), known_y.sum(axis=1)]), axis=0)
    least = np.maximum(_LEAST_OF_SHORTER * sizes[0], _LEAST_OF_LONGER * sizes[1])
    mean = np.maximum(np.fft.irfft(product, padded), 0.0) / np.maximum(both, 1.0)
    best = np.argmin(np.where(both >= least[:, None] - 0.5, mean, np.inf), axis=1)
    row = np.arange(len(best))
    before, middle, after = (mean[row, (best + step) % padded] for step in (-1, 0, 1))
    bend = np.maximum(before - 2.0 * middle + after, 0.0)
    gain = np.divide((before - after) ** 2, 8.0 * bend, out=np.zeros_like(bend), where=bend > 0)
    lowest = np.where((middle <= before) & (middle <= after), np.maximum(middle - gain, 0.0), middle)
    return np.sqrt(lowest), np.where(best < padded // 2, best, best - padded)
