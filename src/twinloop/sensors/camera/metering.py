"""How bright automatic exposure finds a picture, and by how much it would change it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinloop.sensors.camera import sensor
from twinloop.sensors.camera.colour import LUMA, pattern, responses
from twinloop.sensors.camera.exposure import Exposure, full_scale
from twinloop.sensors.camera.model import CameraModel

_EVERY = 8  # pixels of a side, an even number; statistics of light do not need them all
_BRIGHTEST = 0.02  # part of the picture that counts as its highlights (libcamera, AGC constraint, q_lo 0.98)
_HIGHEST = 0.9  # level sought at most: nearer to saturation means say nothing (libcamera, EvGainYTargetLimit)
_DARKEST = 1e-6  # linear level below which a picture counts as this dark


def wanted(luma: NDArray[np.float64], model: CameraModel) -> float:
    """Factor on the exposure that would bring metered values to where they are sought.

    Their mean is sought at ``exposure_target``; where the mean of the brightest 2 % would then stay below
    ``exposure_highlight``, they decide. A compensation shifts both.
    """
    shift = 2.0**model.exposure_compensation
    mean, count = max(float(luma.mean()), _DARKEST), max(int(luma.size * _BRIGHTEST), 1)
    factor = min(model.exposure_target * shift, _HIGHEST) / mean
    if model.exposure_highlight > 0.0:
        bright = max(float(np.partition(luma, luma.size - count, axis=None)[-count:].mean()), _DARKEST)
        factor = max(factor, min(model.exposure_highlight * shift, _HIGHEST) / bright)
    return factor


def metered(numbers: NDArray, model: CameraModel, exposure: Exposure) -> NDArray[np.float64]:
    """Linear luma, 1 at white, of some pixels of one capture's digital numbers, or of quads of filters."""
    dark, scale = sensor.black(model, exposure), 1.0 / (sensor.span(model) * responses(model))
    if model.mosaic == "none":
        plain = (numbers[::_EVERY, ::_EVERY] - dark) * scale
        return np.clip(plain @ LUMA, 0.0, 1.0)
    colours = pattern(model.mosaic)
    weights = LUMA * scale / np.bincount(colours)
    height, width = (side // 2 * 2 for side in numbers.shape)
    quads = [numbers[site // 2 : height : _EVERY, site % 2 : width : _EVERY] for site in range(4)]
    luma = sum(weights[colour] * (quad - dark) for colour, quad in zip(colours, quads, strict=True))
    return np.clip(np.asarray(luma), 0.0, 1.0)


def metered_light(light: NDArray, model: CameraModel, product: float) -> NDArray[np.float64]:
    """What would be metered of light ``(height, width, 3)`` at a product of time and gain, without noise."""
    return np.clip(np.asarray(light, dtype=np.float64) @ LUMA * (product / full_scale(model)), 0.0, 1.0)
