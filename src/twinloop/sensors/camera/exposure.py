"""How long a camera gathers light, and with which gain: by hand, or following the pictures before."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from twinloop.sensors.camera.model import CameraModel

_ROUND_OFF = 1e-9  # of a lamp's flashes
_BISECTIONS = 40  # of the logarithm; the range is below e³⁰


class CaptureExposure(NamedTuple):
    """Of one capture: ``time`` in s, and the analog ``gain``."""

    time: float
    gain: float


def split(model: CameraModel, product: float) -> CaptureExposure:
    """An exposure whose time times gain is ``product`` in s: longer first, more gain where it is longest.

    Where the mains are told, an automatic exposure longer than half their period is a multiple of it, so that lamps
    look equally bright in every picture.
    """
    time = min(product, longest(model))
    flashes = math.floor(time * 2.0 * model.mains_hz + _ROUND_OFF)
    if model.exposure == "auto" and flashes >= 1:
        time = flashes / (2.0 * model.mains_hz)
    return CaptureExposure(time=time, gain=product / time)


def manual(model: CameraModel) -> CaptureExposure:
    """The exposure set by hand; a compensation below what gain can give shortens it."""
    return split(model, longest(model) * model.gain * 2.0**model.exposure_compensation)


def longest(model: CameraModel) -> float:
    """The longest exposure in s; a camera that takes no time at all counts as one that fills its wells with white."""
    return model.exposure_time or full_scale(model)


def full_scale(model: CameraModel) -> float:
    """Exposure in s, at a gain of 1, with which light of 1 becomes white."""
    return model.full_well / model.electron_rate


def settled(model: CameraModel, factor: Callable[[float], float]) -> float:
    """The product of time and gain at which automatic exposure comes to rest before an unchanging world.

    Args:
        factor: on a product of time and gain that would bring the picture to where it is sought; falling in it.
    """
    low, high = (math.log(limit) for limit in _limits(model))
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if factor(math.exp(middle)) > 1.0 else (low, middle)
    return math.exp(0.5 * (low + high))


def followed(model: CameraModel, product: float, factor: float, passed: float) -> float:
    """The next product of time and gain.

    The logarithm of the exposure approaches the one that would have brought the last picture to where it is sought,
    with the time constant ``exposure_lag``; cameras do so picture by picture, as a filter of the first order.

    Args:
        product: of the last capture, in s.
        factor: on it that would have brought that capture to where it is sought.
        passed: time since it, in s.
    """
    part = 1.0 if model.exposure_lag == 0.0 else -math.expm1(-passed / model.exposure_lag)
    low, high = _limits(model)
    return min(max(product * factor**part, low), high)


def _limits(model: CameraModel) -> tuple[float, float]:
    return min(model.exposure_time_min, longest(model)), longest(model) * model.gain_max
