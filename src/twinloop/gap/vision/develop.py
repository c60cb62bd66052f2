"""Compute images as another camera would have delivered them, with the formulas of `sensors.camera`.

The camera's processing is inverted as far as 8 bits allow and repeated with other values. Tone curve and colour matrix
are inverted; exposure, white balance and shading scale linear values; blurs add in quadrature; noise is added by the
difference of variances. Clipped light stays clipped, and existing noise is never removed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from twinloop.core.seeds import generator
from twinloop.dataset.media.images import Pictures
from twinloop.sensors.camera import CameraModel, sensor
from twinloop.sensors.camera.colour import compute_mixing_matrix, demosaic, filter_colours, responses
from twinloop.sensors.camera.exposure import CaptureExposure, manual_exposure
from twinloop.sensors.camera.shading import radius_squared, vignetting_factors_at
from twinloop.sensors.camera.tone import display_of_linear, linear_of_display

Array = NDArray[np.float64]
_MOST_SHARPENING = 4.0  # largest gain of a frequency when blur is removed; a larger one amplifies rounding errors
BLUR = "blur"


@dataclass(frozen=True, kw_only=True)
class CameraResponse:
    """Model of a camera and blur of its lens in px, which determine how its images look; an ideal camera by default."""

    model: CameraModel = field(default_factory=CameraModel)
    blur: float = 0.0

    def value(self, quantity: str) -> float:
        """Return the value of a parameter."""
        return self.blur if quantity == BLUR else float(getattr(self.model, quantity))

    def with_values(self, **values: float) -> CameraResponse:
        """Return a copy with other parameter values."""
        blur = values.pop(BLUR, self.blur)
        return CameraResponse(model=replace(self.model, **values), blur=blur)


def sensor_values(display: Array, model: CameraModel) -> Array:
    """Return linear balanced values before the colour matrix, 1 at white, from display values ``(…, 3)`` of 0 to 1."""
    linear = np.clip(linear_of_display(display, model), 0.0, 1.0)
    matrix = compute_mixing_matrix(model)
    if np.linalg.cond(matrix) > 1e3:  # an image without colours cannot be inverted
        return linear
    return np.clip(linear @ np.linalg.inv(matrix).T, 0.0, 1.0)


def scale_sensor_values(values: Array, radius2: Array, old: CameraModel, new: CameraModel) -> Array:
    """Return sensor values at another exposure, white balance and shading; ``radius2`` is ρ² of each value ``(…)``."""
    return np.minimum(values * (light_factor(radius2, old, new)[..., None] * balance_factor(old, new)), 1.0)


def light_factor(radius2: Array, old: CameraModel, new: CameraModel) -> Array:
    """Return the factor of exposure and shading on pixel values at squared radii ρ²."""
    stops = new.exposure_compensation - old.exposure_compensation
    return 2.0**stops * vignetting_factors_at(radius2, new.vignetting) / vignetting_factors_at(radius2, old.vignetting)


def balance_factor(old: CameraModel, new: CameraModel) -> Array:
    """Return the factors of white balance on red, green and blue."""
    return colour_gains(new) / colour_gains(old)


def compute_display_values(values: Array, model: CameraModel) -> Array:
    """Return display values from 0 to 1 of sensor values ``(…, 3)``, before rounding."""
    return display_of_linear(values @ compute_mixing_matrix(model).T, model)


def noise_variance(values: Array, model: CameraModel) -> Array:
    """Return the variance of a pixel's reading, in units of white squared, at unbalanced values.

    The line of EMVA 1288 (`sensors.camera.sensor`): s² (λ + σ_read²) · (gain / full well)² with
    λ = value · full well / gain electrons. The gain of an automatic exposure is unknown and counts as 1.
    """
    gain = choose_exposure(model).gain
    unit = gain / model.full_well
    electrons = np.maximum(values, 0.0) / unit
    return model.noise_scale**2 * (electrons + sensor.read_noise(model, gain) ** 2) * unit**2


def choose_exposure(model: CameraModel) -> CaptureExposure:
    """Return the exposure that is set by hand, or that of gain 1 if it is automatic."""
    return CaptureExposure(time=model.exposure_time, gain=1.0) if model.exposure == "auto" else manual_exposure(model)


def colour_gains(model: CameraModel) -> Array:
    """Return the factors from raw red, green and blue values to balanced values."""
    return np.array([model.white_balance_red, 1.0, model.white_balance_blue]) / responses(model)


def redevelop_images(pictures: Pictures, old: CameraResponse, new: CameraResponse, *, seed: int = 0) -> Pictures:
    """Return images ``(n, h, w, 3)`` of one camera as another camera would have delivered them."""
    factor = light_factor(radius_squared(*pictures.shape[1:3]), old.model, new.model)[..., None]
    made = np.empty_like(pictures)
    for number, picture in enumerate(pictures):
        rng = generator(seed, "gap/vision/noise", number)
        values = _change_blur(sensor_values(picture / 255.0, old.model), new.blur**2 - old.blur**2, old.model, rng)
        lacking = _missing_noise_variance(values / colour_gains(old.model), factor, old.model, new.model)
        values = values * (factor * balance_factor(old.model, new.model))
        if lacking.any():
            values = values + _draw_noise(np.sqrt(lacking), new.model, rng)
        made[number] = np.rint(255.0 * compute_display_values(np.clip(values, 0.0, 1.0), new.model))
    return made


def _missing_noise_variance(read: Array, factor: Array, old: CameraModel, new: CameraModel) -> Array:
    """Return the noise variance that raw values ``(h, w, 3)`` lack after they are scaled by ``factor``; at least 0."""
    if old.noise_scale == new.noise_scale == 0.0:
        return np.zeros_like(read)
    return np.maximum(noise_variance(read * factor, new) - factor**2 * noise_variance(read, old), 0.0)


def _change_blur(values: Array, square: float, model: CameraModel, rng: np.random.Generator) -> Array:
    """Return values ``(h, w, 3)`` with the squared blur changed by ``square`` px².

    Noise arises after the lens. Therefore the noise that a larger blur removes from the images is added again, per
    frequency.
    """
    if square == 0.0:
        return values
    # The discrete Gaussian of variance t passes exp(t (cos ω − 1)) of a frequency (`sensors.camera.blur`).
    down, across = (np.cos(np.pi * np.arange(side) / side) - 1.0 for side in values.shape[:2])
    passed = np.minimum(np.exp(square * (down[:, None] + across)), _MOST_SHARPENING)
    spread = _filter_frequencies(values, passed)
    if square > 0.0 and model.noise_scale > 0.0:
        lost = _draw_noise(np.sqrt(noise_variance(spread / colour_gains(model), model)), model, rng)
        spread = spread + _filter_frequencies(lost, np.sqrt(1.0 - passed**2))
    return np.clip(spread, 0.0, 1.0)


def _filter_frequencies(values: Array, passed: Array) -> Array:
    """Return mirrored values ``(h, w, 3)`` with their cosine transform multiplied by ``passed``, ``(h, w)``."""
    waves: Any = scipy.fft.dctn(values, axes=(0, 1))
    return np.asarray(scipy.fft.idctn(waves * passed[..., None], axes=(0, 1)))


def _draw_noise(spread: Array, model: CameraModel, rng: np.random.Generator) -> Array:
    """Return balanced and demosaicked noise whose standard deviation at the raw pixels is ``spread``, ``(h, w, 3)``."""
    spread = spread * colour_gains(model)
    if model.mosaic == "none":
        return spread * rng.standard_normal(spread.shape)
    plane = np.empty(spread.shape[:2])
    for site, colour in enumerate(filter_colours(model.mosaic)):
        here = (slice(site // 2, None, 2), slice(site % 2, None, 2))
        plane[here] = spread[(*here, colour)]
    plane *= rng.standard_normal(plane.shape)
    return demosaic(plane[None], model.mosaic, malvar=model.demosaic == "malvar")[0]
