"""The step of a quantized series."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

_LEAST_VALUES = 40
_ROUND_OFF = 1e-9
_TOLERANCE = 0.05


def quantum(values: ArrayLike) -> float | None:
    """The step that all ``values`` are whole multiples of, up to a common shift; None where there is none.

    The smallest gaps between distinct values give a first guess; a least-squares line of the sorted values over their
    whole numbers sharpens it. Accepted when the values then lie within 5 % of a step (RMS) of whole numbers and are
    visited often, so that noise without steps is not taken for steps.
    """
    samples = np.asarray(values, dtype=np.float64).ravel()
    levels = np.unique(np.round(samples, 5))
    if len(levels) < _LEAST_VALUES or len(levels) > len(samples) / 2:
        return None
    gaps = np.diff(levels)
    step = float(np.median(gaps[gaps < 1.5 * np.quantile(gaps, 0.1)]))
    if step <= _ROUND_OFF:
        return None
    for reach in (20, 200, len(levels)):  # whole numbers stay right when the line grows gradually
        step = _slope(levels[:reach], step)
    return step if on_grid(levels, step) else None


def on_grid(values: ArrayLike, step: float) -> bool:
    """Whether ``values`` lie within 5 % of a step (RMS) of whole multiples of it, up to a common shift."""
    levels = np.unique(np.asarray(values, dtype=np.float64))
    counts = (levels - levels[0]) / step
    shift = np.angle(np.mean(np.exp(2j * np.pi * counts))) / (2 * np.pi)
    return bool(np.sqrt(np.mean((counts - shift - np.round(counts - shift)) ** 2)) < _TOLERANCE)


def _slope(levels: NDArray[np.float64], step: float) -> float:
    """Least-squares step of levels whose whole numbers ``step`` already tells, gap by gap."""
    counts = np.concatenate([[0.0], np.cumsum(np.maximum(np.round(np.diff(levels) / step), 1.0))])
    return float(np.polyfit(counts, levels, 1)[0])
