"""Bands that whole curves stay below with a promised chance: conformal prediction for functions of time.

A curve's score is the largest of (value − centre) / width over its time. Centre and width are made of one set of
curves, the threshold is the conformal quantile of the scores of another (Diquigiovanni, Fontana & Vantini, "Conformal
prediction bands for multivariate functional data", J. Multivar. Anal. 189, 2022). A new curve that is exchangeable with
those leaves the band anywhere with a chance of at most 1 − level, in finite samples, whatever centre and width are. Of
several signals the score is the largest of all theirs, each over a spread of its own, so that they hold together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.records import frozen
from twinloop.stats.conformal import conformal_threshold, least_clips

Array = NDArray[np.float64]
_LEAST_WIDTH = 0.1  # of a band's mean width: where all curves agree by accident, it must not be a trap (our choice)
_SMOOTHED = 7  # steps over which centre and width are averaged: with tens of curves they are ragged (our choice)


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """Where curves lie at each time: ``centre`` and ``width`` ``(T,)``; later times are as the last."""

    centre: Array
    width: Array

    def __post_init__(self) -> None:
        for name in ("centre", "width"):
            object.__setattr__(self, name, frozen(getattr(self, name)))

    def standard(self, values: ArrayLike, step: ArrayLike) -> Array:
        """(value − centre) / width of values ``(…,)`` at their steps."""
        at = np.minimum(np.asarray(step), len(self.centre) - 1)
        return (np.asarray(values, dtype=np.float64) - self.centre[at]) / self.width[at]

    def largest(self, curves: ArrayLike) -> Array:
        """The largest standardized value of each curve ``(n, T)``; NaN where a curve has ended."""
        values = np.asarray(curves, dtype=np.float64)
        standard = self.standard(values, np.arange(values.shape[1])[None])
        return np.max(np.where(np.isnan(standard), -np.inf, standard), axis=1)


def envelope(curves: ArrayLike) -> Envelope:
    """Mean and standard deviation of curves ``(n, T)`` at each time, smoothed a little; NaN where one has ended.

    Times at which fewer than three curves, or fewer than half, have a value take the figures of the nearest other.

    Raises:
        InputError: fewer than three curves, or a value that is infinite.
    """
    values = np.asarray(curves, dtype=np.float64)
    if values.ndim != 2 or len(values) < 3 or np.isinf(values).any():
        raise InputError(f"An envelope needs at least three finite curves (n, T); given {values.shape}.")
    there = np.flatnonzero(np.isfinite(values).sum(axis=0) >= max(3, len(values) / 2))
    if not len(there):
        raise InputError("No three curves have a value at the same time.")
    nearest = there[np.abs(np.arange(there[-1] + 1)[:, None] - there[None]).argmin(axis=1)]
    head = values[:, nearest]
    centre, width = np.nanmean(head, axis=0), np.nanstd(head, axis=0, ddof=1)
    centre, width = running_mean(centre, _SMOOTHED), np.sqrt(running_mean(width**2, _SMOOTHED))
    floor = max(_LEAST_WIDTH * float(width.mean()), 1e-9 * (1.0 + float(np.abs(centre).max())))
    return Envelope(centre=centre, width=np.maximum(width, floor))


def least_curves(rate: float) -> int:
    """The fewest calibration curves for which a finite threshold keeps a false-alarm rate: 19 for 5 %."""
    return least_clips(1.0 - rate)


@dataclass(frozen=True, kw_only=True)
class JointBand:
    """Thresholds of several signals: ``alone`` each holds by itself, ``together`` all of them hold at once.

    Both by name, of standardized values; ``rate`` is the chance per curve of an alarm where nothing is wrong.
    """

    alone: dict[str, float]
    together: dict[str, float]
    rate: float
    count: int


def joint_band(shape: dict[str, Array], calibration: dict[str, Array], *, rate: float) -> JointBand:
    """Thresholds from the largest standardized values of curves, ``(n,)`` by signal.

    Args:
        shape: those of the curves that envelopes were made of; they say how large each signal's usually are.
        calibration: those of other curves, the same ones in every signal.
        rate: chance of a false alarm per curve, of each signal alone and of all together.

    Raises:
        InputError: too few calibration curves for the rate; says how many it needs.
    """
    count = len(next(iter(calibration.values()), ()))
    if count < least_curves(rate):
        raise InputError(
            f"A false-alarm rate of {100 * rate:g} % needs at least {least_curves(rate)} calibration episodes, and "
            f"there are {count}. Give more successful episodes, or ask for a rate of "
            f"{math.ceil(1000 / (count + 1)) / 10:g} % or more."
        )
    scale = {name: max(float(np.quantile(values, 1.0 - rate)), 1e-9) for name, values in shape.items()}
    worst = np.max([calibration[name] / scale[name] for name in scale], axis=0)
    shared = conformal_threshold(worst, 1.0 - rate)
    if not math.isfinite(shared):
        raise InputError("A calibration score is infinite. Leave that episode out, or look at why.")
    return JointBand(
        alone={name: conformal_threshold(values, 1.0 - rate) for name, values in calibration.items()},
        together={name: shared * scale[name] for name in scale},
        rate=rate,
        count=count,
    )


def running_mean(values: ArrayLike, steps: int) -> Array:
    """Means of values ``(T, …)`` over so many neighbouring steps, of fewer at the ends."""
    given = np.asarray(values, dtype=np.float64)
    kernel = np.ones(min(steps, len(given)))
    flat = given.reshape(len(given), -1)
    summed = np.stack([np.convolve(column, kernel, mode="same") for column in flat.T], axis=-1)
    return (summed / np.convolve(np.ones(len(given)), kernel, mode="same")[:, None]).reshape(given.shape)
