"""How long a camera gathers light, and with which gain: by hand, or following the pictures before."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from twinloop.sensors.camera.model import CameraModel

_DARKEST = 1e-6  # linear level below which a picture counts as this dark


class Exposure(NamedTuple):
    """Of one capture: ``time`` in s, and the analog ``gain``."""

    time: float
    gain: float


def split(model: CameraModel, product: float) -> Exposure:
    """An exposure whose time times gain is ``product`` in s: longer first, more gain where it is longest.

    Where the mains are told, an automatic exposure longer than half their period is a multiple of it, so that lamps
    look equally bright in every picture.
    """
    time = min(product, longest(model))
    if model.exposure == "auto" and model.mains_hz > 0.0 and time * 2.0 * model.mains_hz >= 1.0:
        time = math.floor(time * 2.0 * model.mains_hz) / (2.0 * model.mains_hz)
    return Exposure(time=time, gain=product / time)


def manual(model: CameraModel) -> Exposure:
    """The exposure set by hand; a compensation below what gain can give shortens it."""
    return split(model, longest(model) * model.gain * 2.0**model.exposure_compensation)


def longest(model: CameraModel) -> float:
    """The longest exposure in s; a camera that takes no time at all counts as one that fills its wells with white."""
    return model.exposure_time or full_scale(model)


def full_scale(model: CameraModel) -> float:
    """Exposure in s, at a gain of 1, with which light of 1 becomes white."""
    return model.full_well / model.electron_rate


def settled(model: CameraModel, light: NDArray) -> float:
    """The product of time and gain at which automatic exposure comes to rest before unchanging ``light`` (…, 3)."""
    low, high = (math.log(limit) for limit in _limits(model))
    for _ in range(50):
        middle = 0.5 * (low + high)
        level = float(np.minimum(light * (math.exp(middle) / full_scale(model)), 1.0).mean())
        low, high = (middle, high) if level < target(model) else (low, middle)
    return math.exp(0.5 * (low + high))


def followed(model: CameraModel, product: float, level: float, passed: float) -> float:
    """The next product of time and gain.

    The logarithm of the exposure approaches the one that would have brought the last picture to the target, with the
    time constant ``exposure_lag``; cameras do so picture by picture, as a filter of the first order.

    Args:
        product: of the last capture, in s.
        level: mean of its linear values, between 0 and 1.
        passed: time since it, in s.
    """
    part = 1.0 if model.exposure_lag == 0.0 else -math.expm1(-passed / model.exposure_lag)
    low, high = _limits(model)
    return float(np.clip(product * (target(model) / max(level, _DARKEST)) ** part, low, high))


def target(model: CameraModel) -> float:
    """The level that automatic exposure seeks, compensated."""
    return min(model.exposure_target * 2.0**model.exposure_compensation, 0.99)


def _limits(model: CameraModel) -> tuple[float, float]:
    return min(model.exposure_time_min, longest(model)), longest(model) * model.gain_max
