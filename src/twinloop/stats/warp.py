"""How well one set of series follows another if its clock is bent: drifts and steps of clocks are found by trying."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def warped_correlation(
    inputs: ArrayLike, outputs: ArrayLike, *, warps: ArrayLike, lags: ArrayLike, reach: int
) -> NDArray[np.float64]:
    """The largest correlation of every output with its own input, seen later by each warp and a constant lag.

    Args:
        inputs: ``(nframe, n)``.
        outputs: ``(nframe, n)``; column by column they follow the inputs.
        warps: frames by which the inputs are seen later at every frame, ``(nwarp, nframe)``.
        lags: frames by which each output follows its input besides, ``(n,)``.
        reach: whole frames by which that lag may be off.

    Returns:
        ``(nwarp, n)``: of all lags within reach the correlation of the largest magnitude. Between frames inputs are
        linear, before and after them zero.
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
        seen = (1 - part) * padded[lower, column] + part * padded[lower + 1, column]
        seen -= seen.mean(axis=0)
        size = np.maximum(np.sqrt(np.sum(seen**2, axis=0)), np.finfo(float).tiny)
        found = np.stack([_shifted_product(seen, unit, shift) for shift in range(-reach, reach + 1)]) / size
        best.append(found[np.argmax(np.abs(found), axis=0), column])
    return np.array(best)


def _shifted_product(x: NDArray[np.float64], y: NDArray[np.float64], shift: int) -> NDArray[np.float64]:
    """Column by column the sum of ``x[t] · y[t + shift]``."""
    early, late = (x[: len(x) - shift], y[shift:]) if shift >= 0 else (x[-shift:], y[:shift])
    return np.einsum("tn,tn->n", early, late)
