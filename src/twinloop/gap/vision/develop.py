"""Compute images as a camera with other parameters would have delivered them, with the formulas of `sensors.camera`.

The processing of the old camera is inverted as far as 8-bit images allow, and repeated with the new values. Tone curve
and colour matrix are inverted. Exposure, white balance and shading scale linear values. Blurs add in quadrature. Noise
is added according to the difference of variances. Clipped values stay clipped, and existing noise is never removed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from twinloop.core.seeds import generator
from twinloop.dataset.media.images import Images
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
    """Camera parameters that determine how its images look; by default an ideal camera.

    Attributes:
        model: Exposure, colour, tone and noise of the camera.
        blur: Standard deviation of the lens blur in px.
    """

    model: CameraModel = field(default_factory=CameraModel)
    blur: float = 0.0

    def value(self, quantity: str) -> float:
        """Return the value of a camera parameter, such as ``blur`` or ``gamma``."""
        return self.blur if quantity == BLUR else float(getattr(self.model, quantity))

    def with_values(self, **values: float) -> CameraResponse:
        """Return a copy with other parameter values, given by name."""
        blur = values.pop(BLUR, self.blur)
        return CameraResponse(model=replace(self.model, **values), blur=blur)


def sensor_values(display: Array, model: CameraModel) -> Array:
    """Convert display values to linear, white-balanced sensor values before the colour matrix; 1 is white.

    Args:
        display: Pixel values from 0 to 1, shape ``(…, 3)``.
        model: Camera that delivered them.
    """
    linear = np.clip(linear_of_display(display, model), 0.0, 1.0)
    matrix = compute_mixing_matrix(model)
    if np.linalg.cond(matrix) > 1e3:  # an image without colours cannot be inverted
        return linear
    return np.clip(linear @ np.linalg.inv(matrix).T, 0.0, 1.0)


def scale_sensor_values(values: Array, radius2: Array, old: CameraModel, new: CameraModel) -> Array:
    """Convert sensor values to another exposure, white balance and shading; the result is at most 1.

    Args:
        values: Sensor values of the camera ``old``, shape ``(…, 3)``.
        radius2: Squared distance from the image centre of each pixel, shape ``(…)``; 0 at the centre, 1 in a corner.
        old: Camera of the given values.
        new: Camera of the returned values.
    """
    return np.minimum(values * (light_factor(radius2, old, new)[..., None] * balance_factor(old, new)), 1.0)


def light_factor(radius2: Array, old: CameraModel, new: CameraModel) -> Array:
    """Return the factor by which exposure and shading of a new camera change linear pixel values.

    Args:
        radius2: Squared distance from the image centre; 0 at the centre, 1 in a corner.
        old: Present camera.
        new: New camera.
    """
    stops = new.exposure_compensation - old.exposure_compensation
    return 2.0**stops * vignetting_factors_at(radius2, new.vignetting) / vignetting_factors_at(radius2, old.vignetting)


def balance_factor(old: CameraModel, new: CameraModel) -> Array:
    """Return the factors by which the white balance of a new camera changes red, green and blue, shape ``(3,)``."""
    return colour_gains(new) / colour_gains(old)


def compute_display_values(values: Array, model: CameraModel) -> Array:
    """Convert sensor values ``(…, 3)`` to display values from 0 to 1, before rounding; inverts `sensor_values`."""
    return display_of_linear(values @ compute_mixing_matrix(model).T, model)


def noise_variance(values: Array, model: CameraModel) -> Array:
    """Return the noise variance of pixel values, where white is 1.

    The variance is linear in the signal, as in EMVA 1288 (`sensors.camera.sensor`): s² (λ + σ_read²) · (gain / full
    well)². Here s is the noise scale, σ_read is the read noise in electrons, and λ is the number of electrons: value ·
    full well / gain. The gain of an automatic exposure is unknown and is taken as 1.

    Args:
        values: Raw pixel values before white balance, from 0 to 1.
        model: The camera.
    """
    gain = choose_exposure(model).gain
    unit = gain / model.full_well
    electrons = np.maximum(values, 0.0) / unit
    return model.noise_scale**2 * (electrons + sensor.read_noise(model, gain) ** 2) * unit**2


def choose_exposure(model: CameraModel) -> CaptureExposure:
    """Return the manual exposure of a camera; for an automatic exposure, its exposure time with gain 1."""
    return CaptureExposure(time=model.exposure_time, gain=1.0) if model.exposure == "auto" else manual_exposure(model)


def colour_gains(model: CameraModel) -> Array:
    """Return the factors from raw to white-balanced red, green and blue values, shape ``(3,)``."""
    return np.array([model.white_balance_red, 1.0, model.white_balance_blue]) / responses(model)


def redevelop_images(images: Images, old: CameraResponse, new: CameraResponse, *, seed: int = 0) -> Images:
    """Convert images of the camera ``old`` to the images that the camera ``new`` would have delivered.

    Args:
        images: Images of ``old``, shape ``(n, height, width, 3)``, 8-bit sRGB.
        old: Camera that delivered the images.
        new: Camera with other values.
        seed: Seed of the added noise.
    """
    factor = light_factor(radius_squared(*images.shape[1:3]), old.model, new.model)[..., None]
    made = np.empty_like(images)
    for number, image in enumerate(images):
        rng = generator(seed, "gap/vision/noise", number)
        values = _change_blur(sensor_values(image / 255.0, old.model), new.blur**2 - old.blur**2, old.model, rng)
        lacking = _missing_noise_variance(values / colour_gains(old.model), factor, old.model, new.model)
        values = values * (factor * balance_factor(old.model, new.model))
        if lacking.any():
            values = values + _draw_noise(np.sqrt(lacking), new.model, rng)
        made[number] = np.rint(255.0 * compute_display_values(np.clip(values, 0.0, 1.0), new.model))
    return made


def _missing_noise_variance(read: Array, factor: Array, old: CameraModel, new: CameraModel) -> Array:
    """Return the noise variance that must be added to raw values after scaling, so that they have the noise of ``new``.

    Args:
        read: Raw values before scaling, shape ``(h, w, 3)``.
        factor: Factor by which they are scaled.
        old: Camera that delivered the values.
        new: Camera whose noise is wanted.

    Returns:
        Variance per value, at least 0.
    """
    if old.noise_scale == new.noise_scale == 0.0:
        return np.zeros_like(read)
    return np.maximum(noise_variance(read * factor, new) - factor**2 * noise_variance(read, old), 0.0)


def _change_blur(values: Array, square: float, model: CameraModel, rng: np.random.Generator) -> Array:
    """Change the blur of an image by adding ``square`` px² to the squared blur; a negative number sharpens.

    Noise arises after the lens. Therefore the noise that a larger blur would remove from the image is added again, per
    frequency.

    Args:
        values: Sensor values, shape ``(h, w, 3)``.
        square: Change of the squared blur in px².
        model: Camera of the image.
        rng: Source of the added noise.
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
    """Multiply the cosine transform of ``values`` by a gain per frequency, and transform back.

    Args:
        values: Values, shape ``(h, w, 3)``; mirrored at the borders.
        passed: Gain of each frequency, shape ``(h, w)``.
    """
    waves: Any = scipy.fft.dctn(values, axes=(0, 1))
    return np.asarray(scipy.fft.idctn(waves * passed[..., None], axes=(0, 1)))


def _draw_noise(spread: Array, model: CameraModel, rng: np.random.Generator) -> Array:
    """Draw camera noise, white-balanced and demosaicked, shape ``(h, w, 3)``.

    Args:
        spread: Standard deviation of the noise at the raw pixels, shape ``(h, w, 3)``.
        model: The camera.
        rng: Source of random numbers.
    """
    spread = spread * colour_gains(model)
    if model.mosaic == "none":
        return spread * rng.standard_normal(spread.shape)
    plane = np.empty(spread.shape[:2])
    for site, colour in enumerate(filter_colours(model.mosaic)):
        here = (slice(site // 2, None, 2), slice(site % 2, None, 2))
        plane[here] = spread[(*here, colour)]
    plane *= rng.standard_normal(plane.shape)
    return demosaic(plane[None], model.mosaic, malvar=model.demosaic == "malvar")[0]
