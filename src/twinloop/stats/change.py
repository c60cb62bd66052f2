"""Where in a series something changes: the factor between two series, or the level of one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change at row ``index`` (the first one after it), or none (``index`` 0, ``before`` equals ``after``).

    ``gain`` is the part of the squared residuals of the fit without a change that the change explains, 0 to 1.
    """

    index: int
    before: float
    after: float
    gain: float


def slope_change(x: ArrayLike, y: ArrayLike, *, least: int) -> Change:
    """The row at which ``y = slope · x`` changes its slope, by least squares over all splits.

    Args:
        x: ``(n,)``, about zero: no intercept is fitted.
        y: ``(n,)``.
        least: fewest rows on either side.
    """
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    xx, xy = np.cumsum(a * a), np.cumsum(a * b)
    whole = _ratio(xy[-1:], xx[-1:])[0] if len(a) else 0.0
    residual = float(np.sum((b - whole * a) ** 2))
    splits = np.arange(least, len(a) - least + 1)
    if not len(splits) or residual == 0:
        return Change(index=0, before=float(whole), after=float(whole), gain=0.0)
    xx_left, xy_left = xx[splits - 1], xy[splits - 1]
    xx_right, xy_right = xx[-1] - xx_left, xy[-1] - xy_left
    explained = xy_left * _ratio(xy_left, xx_left) + xy_right * _ratio(xy_right, xx_right)
    best = int(np.argmax(explained))
    left, right = (
        float(_ratio(p[best : best + 1], q[best : best + 1])[0]) for p, q in ((xy_left, xx_left), (xy_right, xx_right))
    )
    gain = float((explained[best] - whole * xy[-1]) / residual)
    return Change(index=int(splits[best]), before=left, after=right, gain=gain)


def level_change(y: ArrayLike, *, least: int) -> Change:
    """The row at which the level of a series ``(n,)`` steps, by least squares over all splits."""
    values = np.asarray(y, dtype=np.float64)
    if not len(values):
        return Change(index=0, before=0.0, after=0.0, gain=0.0)
    mean = float(values.mean())
    found = slope_change(np.ones(len(values)), values - mean, least=least)
    return Change(index=found.index, before=mean + found.before, after=mean + found.after, gain=found.gain)


@dataclass(frozen=True, kw_only=True)
class Trend:
    """A straight line through points: ``slope`` per unit of time with its standard error, and the residual spread."""

    slope: float
    standard_error: float
    spread: float


def linear_trend(time: ArrayLike, values: ArrayLike, weights: ArrayLike | None = None) -> Trend:
    """Weighted least squares of a line through at least three points ``(n,)``; its error from the residuals."""
    t, y = np.asarray(time, dtype=np.float64), np.asarray(values, dtype=np.float64)
    w = np.ones(len(t)) if weights is None else np.asarray(weights, dtype=np.float64)
    t = t - np.average(t, weights=w)
    power = float(np.sum(w * t * t))
    slope = float(np.sum(w * t * y)) / power
    residual = y - np.average(y, weights=w) - slope * t
    variance = float(np.sum(w * residual**2)) / np.sum(w)
    scaled = float(np.sum((w * t) ** 2)) / power**2 * variance * len(t) / max(len(t) - 2, 1)
    return Trend(slope=slope, standard_error=float(np.sqrt(scaled)), spread=float(np.sqrt(variance)))


def _ratio(numerator: NDArray[np.float64], denominator: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)
