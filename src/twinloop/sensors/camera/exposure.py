"""Compute exposure time and gain of a camera: manual, or automatic from the previous images."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from twinloop.sensors.camera.model import CameraModel

_ROUND_OFF = 1e-9  # of a lamp's flashes
_BISECTIONS = 40  # of the logarithm, whose range is below 30


class CaptureExposure(NamedTuple):
    """Exposure of one capture: ``time`` in s, and the analog ``gain``."""

    time: float
    gain: float


def split_exposure(model: CameraModel, product: float) -> CaptureExposure:
    """Return an exposure with the product ``product`` of time and gain in s; time increases before gain.

    With a mains frequency, an automatic exposure longer than half its period is a multiple of it, so that the
    brightness of lamps is the same in every image.
    """
    time = min(product, longest_exposure(model))
    flashes = math.floor(time * 2.0 * model.mains_hz + _ROUND_OFF)
    if model.exposure == "auto" and flashes >= 1:
        time = flashes / (2.0 * model.mains_hz)
    return CaptureExposure(time=time, gain=product / time)


def manual_exposure(model: CameraModel) -> CaptureExposure:
    """Return the manual exposure; a product of gain and compensation below 1 shortens its time."""
    return split_exposure(model, longest_exposure(model) * model.gain * 2.0**model.exposure_compensation)


def longest_exposure(model: CameraModel) -> float:
    """Return the longest exposure in s; one without exposure time counts as one in which white fills the wells."""
    return model.exposure_time or full_scale_exposure(model)


def full_scale_exposure(model: CameraModel) -> float:
    """Return the exposure in s, at a gain of 1, with which light of 1 becomes white."""
    return model.full_well / model.electron_rate


def settle_exposure(model: CameraModel, factor: Callable[[float], float]) -> float:
    """Return the product of time and gain at which automatic exposure settles in a constant world.

    Args:
        factor: function from a product of time and gain to the factor that would reach the target; decreasing.
    """
    low, high = (math.log(limit) for limit in _limits(model))
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if factor(math.exp(middle)) > 1.0 else (low, middle)
    return math.exp(0.5 * (low + high))


def update_exposure(model: CameraModel, product: float, factor: float, passed: float) -> float:
    """Return the next product of time and gain of automatic exposure, in s.

    The logarithm of the exposure approaches the value that would have been right for the last image, with the time
    constant ``exposure_lag``; cameras do so image by image, as a first-order filter.

    Args:
        product: product of time and gain of the last image, in s.
        factor: factor on it that would have been right for that image.
        passed: time since that image, in s.
    """
    part = 1.0 if model.exposure_lag == 0.0 else -math.expm1(-passed / model.exposure_lag)
    low, high = _limits(model)
    return min(max(product * factor**part, low), high)


def _limits(model: CameraModel) -> tuple[float, float]:
    return min(model.exposure_time_min, longest_exposure(model)), longest_exposure(model) * model.gain_max
