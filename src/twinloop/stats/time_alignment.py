"""Compare recordings over time: errors, delays, clock drift, and near-duplicate series.

To find duplicates, comparing n series in pairs takes time in proportion to n². The caller therefore first describes
each series by a feature vector that barely changes if the series is shifted, cut or played at another speed. Only the
nearest few vectors of each (`nearest_pairs`) are then compared at every shift (`aligned_distances`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError

Array = NDArray[np.float64]


def mae(predicted: ArrayLike, measured: ArrayLike) -> NDArray[np.float64]:
    """Return the mean absolute error of each channel, shape ``(nchannel,)``, the mean over all other axes.

    Frames with NaN are ignored.
    """
    error = np.abs(np.asarray(predicted) - np.asarray(measured))
    return np.nanmean(error.reshape(-1, error.shape[-1]), axis=0)


_LONGEST, _STEP = 15.0, 0.25  # longest lag and step of lags in `best_lag`, in frames
_FINENESS = 8  # steps per frame at which the correlation is evaluated before the parabola


def delay_series(series: ArrayLike, lag: ArrayLike) -> NDArray[np.float64]:
    """Delay each channel of a series by a number of frames; fractions are interpolated linearly.

    Frames before the start are filled with the first value.

    Args:
        series: Shape ``(…, nframe, nchannel)``.
        lag: Delay in frames, a number or one per channel.
    """
    values = np.asarray(series, dtype=np.float64)
    nframe, n = values.shape[-2:]
    position = np.arange(nframe)[:, None] - np.broadcast_to(np.asarray(lag, dtype=np.float64), (n,))
    lower = np.floor(position)
    fraction = position - lower
    at_lower = np.clip(lower, 0, nframe - 1).astype(np.intp)
    at_upper = np.clip(lower + 1, 0, nframe - 1).astype(np.intp)
    channel = np.arange(n)
    return (1 - fraction) * values[..., at_lower, channel] + fraction * values[..., at_upper, channel]


def best_lag(inputs: ArrayLike, outputs: ArrayLike) -> NDArray[np.float64]:
    """Return the delay of ``inputs`` in frames, per channel, at which they match ``outputs`` best.

    The match is measured by the mean absolute error. Lags are multiples of a quarter frame up to 15 frames; of equally
    good lags the shortest is taken.

    Args:
        inputs: For example commands, shape ``(nepisode, nframe, nchannel)``.
        outputs: For example measured positions, same shape; NaN frames are ignored.

    Returns:
        Shape ``(nchannel,)``.
    """
    inputs, outputs = np.asarray(inputs, dtype=np.float64), np.asarray(outputs, dtype=np.float64)
    grid = np.arange(0.0, min(_LONGEST, inputs.shape[1] - 1) + _STEP / 2, _STEP)
    errors = np.array([mae(delay_series(inputs, lag), outputs) for lag in grid])
    return grid[np.argmin(errors, axis=0)]


def uncentered_correlation(x: ArrayLike, y: ArrayLike) -> float:
    """Return the correlation of two series ``(n,)`` without subtracting their means; 0 if either is zero.

    It is x·y / √(x·x y·y).
    """
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    energy = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / energy if energy > 0 else 0.0


def correlation_at_lags(
    inputs: ArrayLike, outputs: ArrayLike, *, earliest: int, latest: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the normalized cross-correlation of every input with every output, by FFT.

    Args:
        inputs: Shape ``(nframe, ninput)``.
        outputs: Shape ``(nframe, noutput)``.
        earliest: First (smallest) lag in frames. At a positive lag the output follows the input by this time.
        latest: Last (largest) lag in frames.

    Returns:
        The lags in frames, shape ``(nlag,)``, and the correlations, shape ``(nlag, ninput, noutput)``. They are sums of
        products of the centred series, divided by the square root of the product of their energies (sums of squares
        over the whole series). Their magnitude is at most 1; it is 0 for a constant series.
    """
    x, y = _centre_columns(inputs), _centre_columns(outputs)
    nframe = len(x)
    size = int(2 ** np.ceil(np.log2(2 * nframe)))
    lags = np.arange(max(earliest, 1 - nframe), min(latest, nframe - 1) + 1)
    spectrum = np.conj(np.fft.rfft(x, size, axis=0))[:, :, None] * np.fft.rfft(y, size, axis=0)[:, None, :]
    correlation = np.fft.irfft(spectrum, size, axis=0)[lags % size]
    energy = np.sqrt(np.sum(x**2, axis=0)[:, None] * np.sum(y**2, axis=0)[None, :])
    return lags, np.divide(correlation, energy, out=np.zeros_like(correlation), where=energy > 0)


def cross_lag(inputs: ArrayLike, outputs: ArrayLike, *, earliest: float, latest: float) -> tuple[float, float]:
    """Return the lag in frames with the strongest correlation of two series, and that correlation.

    The strongest correlation is the one of largest magnitude, positive or negative. The lag is estimated to a fraction
    of a frame: the correlation at fractions of a frame is computed by Fourier interpolation (for band-limited series),
    and a parabola is fitted through the best three values.

    Args:
        inputs: The series that leads if the lag is positive, shape ``(nframe,)``.
        outputs: The series that follows, shape ``(nframe,)``.
        earliest: First lag in frames.
        latest: Last lag in frames.
    """
    x, y = _centre_columns(np.asarray(inputs)[:, None])[:, 0], _centre_columns(np.asarray(outputs)[:, None])[:, 0]
    lags, correlation = correlation_at_lags(
        x[:, None], y[:, None], earliest=int(np.floor(earliest)), latest=int(np.ceil(latest))
    )
    values = correlation[:, 0, 0]
    strongest = int(np.argmax(np.abs(values)))
    coarse = int(lags[strongest])
    energy = float(np.sqrt(np.sum(x**2) * np.sum(y**2)))
    if energy == 0:
        return 0.0, 0.0
    fine = coarse + np.arange(-_FINENESS, _FINENESS + 1) / _FINENESS
    between = _correlation_at_fractions(x, y, fine) / energy
    direction = float(np.sign(values[strongest])) or 1.0
    best = int(np.argmax(direction * between))
    return _parabola_peak(fine, direction * between, best), float(between[best])


def following_lag(leader: ArrayLike, follower: ArrayLike, *, longest: float) -> tuple[float, float]:
    """Return the lag in frames at which ``follower`` correlates most with ``leader``, and that correlation.

    Unlike in `cross_lag`, all lags from 0 to ``longest`` are evaluated on the same frames of the follower, so that slow
    motion does not bias the lag towards 0. A parabola through the best integer lag and its neighbours gives a fraction
    of a frame.

    Args:
        leader: The series that moves first, shape ``(nframe,)``.
        follower: The series that follows, shape ``(nframe,)``.
        longest: Longest lag in frames; at most half the length of the series.
    """
    first, later = np.asarray(leader, dtype=np.float64), np.asarray(follower, dtype=np.float64)
    reach = max(1, min(int(np.ceil(longest)), (len(first) - 1) // 2))
    y = _centre_columns(later[reach:])
    x = np.lib.stride_tricks.sliding_window_view(first, len(y))[::-1]  # row k is the leader k frames earlier
    spread = np.sqrt(np.maximum(np.einsum("kn,kn->k", x, x) - len(y) * x.mean(axis=1) ** 2, 0.0) * (y @ y))
    correlation = np.divide(x @ y, spread, out=np.zeros(len(x)), where=spread > 0)
    best = int(np.argmax(correlation))
    return _parabola_peak(np.arange(len(x), dtype=np.float64), correlation, best), float(correlation[best])


def _centre_columns(series: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(series, dtype=np.float64)
    centred = values - values.mean(axis=0)
    centred[:, np.ptp(values, axis=0) == 0] = 0.0  # the mean of equal numbers may differ from them by rounding
    return centred


def _correlation_at_fractions(
    x: NDArray[np.float64], y: NDArray[np.float64], lags: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the unnormalized correlation of two series at fractional lags in frames, from the cross-spectrum."""
    size = int(2 ** np.ceil(np.log2(2 * len(x))))
    spectrum = np.conj(np.fft.rfft(x, size)) * np.fft.rfft(y, size)
    weight = np.full(len(spectrum), 2.0)
    weight[[0, -1]] = 1.0
    phase = np.exp(2j * np.pi * np.outer(lags, np.arange(len(spectrum))) / size)
    return (phase @ (weight * spectrum)).real / size


def _parabola_peak(at: NDArray[np.float64], values: NDArray[np.float64], best: int) -> float:
    """Return the position of the maximum of the parabola through the best value and its two neighbours.

    Args:
        at: Positions, evenly spaced.
        values: Values at these positions.
        best: Index of the largest value.
    """
    if not 0 < best < len(values) - 1:
        return float(at[best])
    left, middle, right = values[best - 1 : best + 2]
    curvature = left - 2 * middle + right
    shift = 0.5 * (left - right) / curvature if curvature < 0 else 0.0
    return float(at[best] + shift * (at[1] - at[0]))


def warped_correlation(
    inputs: ArrayLike, outputs: ArrayLike, *, warps: ArrayLike, lags: ArrayLike, reach: int
) -> NDArray[np.float64]:
    """Return the largest correlation of each output with its delayed input, for several clock warps.

    A clock warp is a delay that changes over time, for example by clock drift. The delay of the input of output j at
    frame t is ``warp[t] + lags[j] + k``. All whole numbers of frames k from −``reach`` to ``reach`` are tried.

    Args:
        inputs: Shape ``(nframe, n)``.
        outputs: Shape ``(nframe, n)``; each column follows the same column of the inputs.
        warps: Delay of the inputs in frames at every frame, shape ``(nwarp, nframe)``.
        lags: Additional constant delay of each output in frames, shape ``(n,)``.
        reach: Number of frames by which the constant delay may be wrong.

    Returns:
        The correlation of largest magnitude for each warp and output, shape ``(nwarp, n)``. Inputs are interpolated
        linearly between frames, and count as zero before the first and after the last frame.
    """
    x, y = (np.asarray(series, dtype=np.float64) for series in (inputs, outputs))
    nframe, n = x.shape
    centred = y - y.mean(axis=0)
    unit = centred / np.maximum(np.sqrt(np.sum(centred**2, axis=0)), np.finfo(float).tiny)
    padded = np.concatenate([np.zeros((1, n)), x, np.zeros((1, n))])
    frame, column = np.arange(nframe)[:, None] + 1.0 - np.asarray(lags, dtype=np.float64), np.arange(n)
    best = []
    for warp in np.asarray(warps, dtype=np.float64):
        position = np.clip(frame - warp[:, None], 0.0, nframe + 0.999)
        lower = position.astype(np.intp)
        part = position - lower
        delayed = (1 - part) * padded[lower, column] + part * padded[lower + 1, column]
        delayed -= delayed.mean(axis=0)
        size = np.maximum(np.sqrt(np.sum(delayed**2, axis=0)), np.finfo(float).tiny)
        correlations = np.stack([_shifted_product(delayed, unit, shift) for shift in range(-reach, reach + 1)]) / size
        best.append(correlations[np.argmax(np.abs(correlations), axis=0), column])
    return np.array(best)


def _shifted_product(x: NDArray[np.float64], y: NDArray[np.float64], shift: int) -> NDArray[np.float64]:
    """Return the sum of ``x[t] · y[t + shift]`` of every column."""
    early, late = (x[: len(x) - shift], y[shift:]) if shift >= 0 else (x[-shift:], y[:shift])
    return np.einsum("tn,tn->n", early, late)


Pairs = NDArray[np.intp]

_BLOCK = 64_000_000  # bytes of distances or of spectra that are held at once
# Two series must overlap by at least three quarters of the shorter one and a third of the longer one: a shorter overlap
# shows a common part, not a duplicate (our choice).
_LEAST_OF_SHORTER, _LEAST_OF_LONGER = 0.75, 1 / 3


@dataclass(frozen=True, kw_only=True)
class AlignedPairs:
    """Pairs of series at the shift in time at which they are most similar.

    Attributes:
        pairs: Indices of both series, shape ``(npair, 2)``.
        distance: Smallest RMS difference over the common frames, shape ``(npair,)``.
        shift: Shift in frames, shape ``(npair,)``: frame t of the first series matches frame t + shift of the second.
    """

    pairs: Pairs
    distance: Array
    shift: NDArray[np.intp]


def nearest_pairs(rows: ArrayLike, neighbours: int) -> Pairs:
    """Return all pairs of rows of which one is among the nearest ``neighbours`` rows of the other.

    Args:
        rows: Feature vectors, shape ``(n, d)``.
        neighbours: Number of nearest rows of each row.

    Returns:
        Indices of both rows, the smaller one first, shape ``(npair, 2)``.

    Raises:
        InputError: If there are no rows, or a value is not finite.
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
    nearest = np.empty((n, k), dtype=np.intp)
    for begin in range(0, n, height):
        block = values[begin : begin + height]
        squared = squares - 2.0 * (block @ values.T)  # without the row's own square, which does not change the order
        squared[np.arange(len(block)), np.arange(begin, begin + len(block))] = np.inf
        nearest[begin : begin + height] = np.argpartition(squared, k - 1, axis=1)[:, :k]
    both = np.stack([np.repeat(np.arange(n), k), nearest.ravel()], axis=1)
    both.sort(axis=1)
    return np.unique(both, axis=0)


def aligned_distances(series: ArrayLike, lengths: ArrayLike, pairs: ArrayLike) -> AlignedPairs:
    """Compare the two series of every pair at every shift in time, and return the best shift.

    The squared distance at a shift is the mean over common frames of the summed squared differences of the k columns;
    the distance has the unit of the series. Shifts with too few common frames are excluded.

    Args:
        series: Series of k columns, centred, shape ``(n, nframe, k)``; frames after a series' own length are ignored.
        lengths: Number of frames of each series, shape ``(n,)``.
        pairs: Indices of both series of each pair, shape ``(npair, 2)``.
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
        best_distance, best_shift = _best_shifts(values[first], values[second], inside[first], inside[second], padded)
        distance[part], shift[part] = best_distance, best_shift
    return AlignedPairs(pairs=chosen, distance=distance, shift=shift)


def _best_shifts(
    x: Array, y: Array, known_x: NDArray[np.bool_], known_y: NDArray[np.bool_], padded: int
) -> tuple[Array, NDArray[np.intp]]:
    """Return the smallest RMS difference and its shift in frames for each pair of series.

    The squared difference at shift s is the mean of (x[t] − y[t + s])² over common frames. The difference is the
    minimum of a parabola through the best integer shift and its neighbours; the returned shift is the integer.

    Args:
        x: First series of each pair, shape ``(npair, nframe, k)``.
        y: Second series of each pair, same shape.
        known_x: Which frames of the first series exist, shape ``(npair, nframe)``.
        known_y: Which frames of the second series exist.
        padded: Length of the FFTs with which all shifts are computed, at least 2 · nframe.
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
    curvature = np.maximum(before - 2.0 * middle + after, 0.0)
    gain = np.divide((before - after) ** 2, 8.0 * curvature, out=np.zeros_like(curvature), where=curvature > 0)
    lowest = np.where((middle <= before) & (middle <= after), np.maximum(middle - gain, 0.0), middle)
    return np.sqrt(lowest), np.where(best < padded // 2, best, best - padded)
