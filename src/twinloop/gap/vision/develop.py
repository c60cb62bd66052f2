"""Delivered pictures as another camera would have delivered them, by the formulas of `sensors.camera`.

What a camera did to light is undone as far as 8 bits hold it and done again with other values: tone curve and colour
matrix are inverted, exposure, white balance and shading scale linear values, spots add up in quadrature, noise is added
by the difference of its variance. Clipped light stays clipped, and noise that is already there is never taken away.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from twinloop.core.seeds import generator
from twinloop.dataset.media.pictures import Pictures
from twinloop.sensors.camera import CameraModel, sensor
from twinloop.sensors.camera.colour import demosaic, mixing, pattern, responses
from twinloop.sensors.camera.exposure import CaptureExposure, manual
from twinloop.sensors.camera.shading import falloff_at, radius_squared
from twinloop.sensors.camera.tone import display_of_linear, linear_of_display

Array = NDArray[np.float64]
_MOST_SHARPENING = 4.0  # factor on a frequency whose spot is taken away; beyond it rounding is what grows
BLUR = "blur"


@dataclass(frozen=True, kw_only=True)
class CameraResponse:
    """What decides how a camera's pictures look: its model and its lens's spot, in px; the default is an ideal one."""

    model: CameraModel = field(default_factory=CameraModel)
    blur: float = 0.0

    def value(self, quantity: str) -> float:
        """A parameter's value."""
        return self.blur if quantity == BLUR else float(getattr(self.model, quantity))

    def with_values(self, **values: float) -> CameraResponse:
        """The same with other values of parameters."""
        blur = values.pop(BLUR, self.blur)
        return CameraResponse(model=replace(self.model, **values), blur=blur)


def sensor_values(display: Array, model: CameraModel) -> Array:
    """Linear balanced values behind the colour matrix, 1 at white, of display values ``(…, 3)`` from 0 to 1."""
    linear = np.clip(linear_of_display(display, model), 0.0, 1.0)
    matrix = mixing(model)
    if np.linalg.cond(matrix) > 1e3:  # a picture without colours does not say which it had
        return linear
    return np.clip(linear @ np.linalg.inv(matrix).T, 0.0, 1.0)


def scaled(values: Array, radius2: Array, old: CameraModel, new: CameraModel) -> Array:
    """Sensor values under another exposure, white balance and shading; ``radius2`` is ρ² of each ``(…)``."""
    return np.minimum(values * (light_factor(radius2, old, new)[..., None] * balance_factor(old, new)), 1.0)


def light_factor(radius2: Array, old: CameraModel, new: CameraModel) -> Array:
    """Factor of exposure and shading on what pixels read, at places ρ²."""
    stops = new.exposure_compensation - old.exposure_compensation
    return 2.0**stops * falloff_at(radius2, new.vignetting) / falloff_at(radius2, old.vignetting)


def balance_factor(old: CameraModel, new: CameraModel) -> Array:
    """Factors of white balance on red, green and blue."""
    return colour_gains(new) / colour_gains(old)


def delivered(values: Array, model: CameraModel) -> Array:
    """Display values from 0 to 1 of sensor values ``(…, 3)``, before they are rounded."""
    return display_of_linear(values @ mixing(model).T, model)


def noise_variance(values: Array, model: CameraModel) -> Array:
    """Variance of what a pixel reads, in units of white, at unbalanced values.

    EMVA 1288's line (`sensors.camera.sensor`): s² (λ + σ_read²) · (gain / full well)² with λ = value · full well / gain
    electrons. An automatic exposure's gain is not known and counts as 1.
    """
    gain = exposure_of(model).gain
    unit = gain / model.full_well
    electrons = np.maximum(values, 0.0) / unit
    return model.noise_scale**2 * (electrons + sensor.read_noise(model, gain) ** 2) * unit**2


def exposure_of(model: CameraModel) -> CaptureExposure:
    """The exposure that is set by hand; at a gain of 1 where it is automatic."""
    return CaptureExposure(time=model.exposure_time, gain=1.0) if model.exposure == "auto" else manual(model)


def colour_gains(model: CameraModel) -> Array:
    """Factors from what red, green and blue pixels read to balanced values."""
    return np.array([model.white_balance_red, 1.0, model.white_balance_blue]) / responses(model)


def redeveloped(pictures: Pictures, old: CameraResponse, new: CameraResponse, *, seed: int = 0) -> Pictures:
    """Pictures ``(n, h, w, 3)`` of a camera with one look as one with another would have delivered them."""
    factor = light_factor(radius_squared(*pictures.shape[1:3]), old.model, new.model)[..., None]
    made = np.empty_like(pictures)
    for number, picture in enumerate(pictures):
        rng = generator(seed, "gap/vision/noise", number)
        values = _spread(sensor_values(picture / 255.0, old.model), new.blur**2 - old.blur**2, old.model, rng)
        lacking = _lacking_noise(values / colour_gains(old.model), factor, old.model, new.model)
        values = values * (factor * balance_factor(old.model, new.model))
        if lacking.any():
            values = values + _noise(np.sqrt(lacking), new.model, rng)
        made[number] = np.rint(255.0 * delivered(np.clip(values, 0.0, 1.0), new.model))
    return made


def _lacking_noise(read: Array, factor: Array, old: CameraModel, new: CameraModel) -> Array:
    """Variance that noise already there lacks once what pixels read ``(h, w, 3)`` is scaled; 0 where it is enough."""
    if old.noise_scale == new.noise_scale == 0.0:
        return np.zeros_like(read)
    return np.maximum(noise_variance(read * factor, new) - factor**2 * noise_variance(read, old), 0.0)


def _spread(values: Array, square: float, model: CameraModel, rng: np.random.Generator) -> Array:
    """Values ``(h, w, 3)`` with a spot of ``square`` px² more, or less.

    Noise comes after the lens: what a larger spot takes from that of the pictures is put back, frequency by frequency.
    """
    if square == 0.0:
        return values
    # The discrete Gaussian of variance t passes exp(t (cos ω − 1)) of a frequency (`sensors.camera.blur`).
    down, across = (np.cos(np.pi * np.arange(side) / side) - 1.0 for side in values.shape[:2])
    passed = np.minimum(np.exp(square * (down[:, None] + across)), _MOST_SHARPENING)
    spread = _filtered(values, passed)
    if square > 0.0 and model.noise_scale > 0.0:
        lost = _noise(np.sqrt(noise_variance(spread / colour_gains(model), model)), model, rng)
        spread = spread + _filtered(lost, np.sqrt(1.0 - passed**2))
    return np.clip(spread, 0.0, 1.0)


def _filtered(values: Array, passed: Array) -> Array:
    """Values ``(h, w, 3)``, mirrored at their borders, of whose cosine waves so much is passed ``(h, w)``."""
    waves: Any = scipy.fft.dctn(values, axes=(0, 1))
    return np.asarray(scipy.fft.idctn(waves * passed[..., None], axes=(0, 1)))


def _noise(spread: Array, model: CameraModel, rng: np.random.Generator) -> Array:
    """Noise of so large a standard deviation ``(h, w, 3)`` at the pixels, as it comes out balanced and demosaicked."""
    spread = spread * colour_gains(model)
    if model.mosaic == "none":
        return spread * rng.standard_normal(spread.shape)
    plane = np.empty(spread.shape[:2])
    for site, colour in enumerate(pattern(model.mosaic)):
        here = (slice(site // 2, None, 2), slice(site % 2, None, 2))
        plane[here] = spread[(*here, colour)]
    plane *= rng.standard_normal(plane.shape)
    return demosaic(plane[None], model.mosaic, malvar=model.demosaic == "malvar")[0]
