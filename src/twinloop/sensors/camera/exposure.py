"""Compute exposure time and gain of a camera: manual, or automatic exposure control from the previous images.

Automatic exposure controls one number, the product of exposure time and gain.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from twinloop.sensors.camera.model import CameraModel

_ROUND_OFF = 1e-9  # of a lamp's flashes
_BISECTIONS = 40  # of the logarithm, whose range is below 30


class CaptureExposure(NamedTuple):
    """Exposure of one image.

    Attributes:
        time: exposure time, in s.
        gain: analog gain.
    """

    time: float
    gain: float


def split_exposure(model: CameraModel, product: float) -> CaptureExposure:
    """Split a product of exposure time and gain into both; the gain increases only after the time is at its maximum.

    If a mains frequency is set, an automatic exposure time longer than half a mains period is a multiple of that
    half period, so that flickering lamps have the same brightness in every image.

    Args:
        model: the camera.
        product: exposure time times gain, in s.
    """
    time = min(product, longest_exposure(model))
    flashes = math.floor(time * 2.0 * model.mains_hz + _ROUND_OFF)
    if model.exposure == "auto" and flashes >= 1:
        time = flashes / (2.0 * model.mains_hz)
    return CaptureExposure(time=time, gain=product / time)


def manual_exposure(model: CameraModel) -> CaptureExposure:
    """Return the exposure that the camera's settings define.

    If gain times exposure compensation is below 1, the exposure time is shortened instead of the gain.
    """
    return split_exposure(model, longest_exposure(model) * model.gain * 2.0**model.exposure_compensation)


def longest_exposure(model: CameraModel) -> float:
    """Return the largest exposure time that the camera may use, in s.

    It is the camera's ``exposure_time``. If that is 0 (instantaneous images), it is the time in which white light fills
    the pixels (`full_scale_exposure`).
    """
    return model.exposure_time or full_scale_exposure(model)


def full_scale_exposure(model: CameraModel) -> float:
    """Return the exposure time in s in which linear light of 1 (sRGB white) fills the pixels, at a gain of 1."""
    return model.full_well / model.electron_rate


def settle_exposure(model: CameraModel, factor: Callable[[float], float]) -> float:
    """Return the product of exposure time and gain in s at which automatic exposure settles in a constant scene.

    Args:
        model: the camera.
        factor: function of a product of exposure time and gain. It returns target brightness over brightness, so it is
            1 where automatic exposure settles, and it decreases with the product.
    """
    low, high = (math.log(limit) for limit in _limits(model))
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if factor(math.exp(middle)) > 1.0 else (low, middle)
    return math.exp(0.5 * (low + high))


def update_exposure(model: CameraModel, product: float, factor: float, elapsed: float) -> float:
    """Return the product of exposure time and gain in s for the next image under automatic exposure.

    The logarithm of the product approaches, as a first-order filter with the time constant ``exposure_lag``, the
    value that would have been right for the last image.

    Args:
        model: the camera.
        product: product of exposure time and gain of the last image, in s.
        factor: factor on that product with which the last image would have reached the target brightness.
        elapsed: time since the last image, in s.
    """
    part = 1.0 if model.exposure_lag == 0.0 else -math.expm1(-elapsed / model.exposure_lag)
    low, high = _limits(model)
    return min(max(product * factor**part, low), high)


def _limits(model: CameraModel) -> tuple[float, float]:
    return min(model.exposure_time_min, longest_exposure(model)), longest_exposure(model) * model.gain_max
