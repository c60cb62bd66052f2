"""From linear to display values: a rising curve, and the 255 steps of linear light at which its 8 bits change."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.imaging import display_of, linear_of
from twinloop.sensors.camera.model import CameraModel

TONE_BINS = 4096  # of the table that says where in the steps to begin looking


def display_of_linear(linear: ArrayLike, model: CameraModel) -> NDArray[np.float64]:
    """Display values from 0 to 1 of linear ones; what lies outside 0 to 1 is clipped.

    First the camera's curve (sRGB, IEC 61966-2-1, or its points, linearly interpolated), then ``gamma`` as an exponent,
    ``contrast`` c as x^c / (x^c + (1 − x)^c), which keeps black, white and the middle, then ``brightness`` added.
    """
    x = np.clip(np.asarray(linear, dtype=np.float64), 0.0, 1.0)
    x = np.interp(x, model.tone_curve[0::2], model.tone_curve[1::2]) if model.tone_curve else display_of(x)
    return np.clip(_steep(x**model.gamma, model.contrast) + model.brightness, 0.0, 1.0)


def linear_of_display(display: ArrayLike, model: CameraModel) -> NDArray[np.float64]:
    """The inverse: linear values of display values from 0 to 1; −∞ and ∞ where no linear value is so dark or bright."""
    x = np.asarray(display, dtype=np.float64) - model.brightness
    inside = _steep(np.clip(x, 0.0, 1.0), 1.0 / model.contrast) ** (1.0 / model.gamma)
    if model.tone_curve:
        inside = np.interp(inside, model.tone_curve[1::2], model.tone_curve[0::2])
    else:
        inside = linear_of(inside)
    return np.where(x < 0.0, -np.inf, np.where(x > 1.0, np.inf, inside))


def tone(linear: NDArray, steps: NDArray[np.float64]) -> NDArray[np.uint8]:
    """8-bit values of linear ones, by the steps of `tone_steps`: rounded, clipped."""
    return np.searchsorted(steps, linear, side="right").astype(np.uint8)


@lru_cache(maxsize=64)
def tone_steps(model: CameraModel) -> NDArray[np.float64]:
    """Linear values ``(255,)`` at which a display value rounds to 1, 2, …, 255."""
    steps = linear_of_display((np.arange(255) + 0.5) / 255.0, model)
    steps.setflags(write=False)
    return steps


@lru_cache(maxsize=64)
def first_steps(model: CameraModel) -> tuple[NDArray[np.uint8], int]:
    """For each of `TONE_BINS` bins from 0 to 1, and for 1, the 8-bit value where it begins; and most steps in a bin."""
    table = tone(np.arange(TONE_BINS + 1) / TONE_BINS, tone_steps(model))
    ends = tone(np.nextafter(np.arange(1, TONE_BINS + 1) / TONE_BINS, 0.0), tone_steps(model))
    table.setflags(write=False)
    return table, int((ends.astype(np.int64) - table[:-1]).max())


def _steep(x: NDArray[np.float64], power: float) -> NDArray[np.float64]:
    if power == 1.0:
        return x
    up, down = x**power, (1.0 - x) ** power
    return up / (up + down)
