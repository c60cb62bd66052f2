"""Convert light to digital numbers by the linear camera model of EMVA 1288, with additional row and column noise.

The mean number λ of electrons in a pixel is electron rate · light · (1 + prnu) · time + dark current · time, where
prnu is the relative deviation of the pixel's sensitivity. The pixel collects a Poisson number of electrons of this
mean. Readout adds normal noise of standard deviation σ_read. Offsets of the pixel, its column and its row are added,
and the full well limits the sum. The digital number is K · gain · electrons + black level, rounded. The conversion
gain K is chosen so that a full well is the largest number at a gain of 1. Hence the variance of a digital number is
σ_DN² = K²(σ_read² + λ) + 1/12 at a gain of 1.

Sources: EMVA Standard 1288, release 4.0 Linear (2021), sections 2 and 3; read noise before and after the gain:
E. Martinec, "Noise, dynamic range and bit depth in digital SLRs" (2008).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.sensors.camera.colour import filter_colours, responses
from twinloop.sensors.camera.exposure import CaptureExposure
from twinloop.sensors.camera.model import CameraModel
from twinloop.sensors.camera.seeds import POISSON_BELOW, CameraSeeds, poisson_of_words

NOISE, READ, ROWS = "noise", "noise/read", "noise/rows"


@dataclass(frozen=True, kw_only=True)
class FixedPattern:
    """Deviations between the pixels of one physical camera, which are the same in all its images.

    Arrays have the shape ``(height, width)`` with a colour filter mosaic, else ``(height, width, 3)``.

    Attributes:
        response: sensitivity of each pixel to white light; 1 for an average green pixel.
        dark: offset of each pixel, in electrons.
    """

    response: NDArray[np.float64]
    dark: NDArray[np.float64]


def unit_pattern(
    model: CameraModel, draw: Callable[[str, int], NDArray[np.float64]], height: int, width: int
) -> FixedPattern:
    """Create the fixed pattern of one physical camera: pixel deviations, column offsets and colour filters.

    Args:
        model: the camera, with its deviations of sensitivity (PRNU) and dark signal (DSNU).
        draw: function ``draw(purpose, size)`` that returns ``size`` standard normal numbers; the purpose, such as
            ``prnu``, is the name of the random stream.
        height: height of the image, in pixels.
        width: width of the image, in pixels.
    """
    shape = (height, width) if model.mosaic != "none" else (height, width, 3)
    response, dark = np.ones(shape), np.zeros(shape)
    for stage, strength, result in (("prnu", model.prnu, response), ("dsnu", model.dsnu, dark)):
        if strength > 0.0:
            result += strength * draw(stage, result.size).reshape(shape)
    if model.column_noise > 0.0:
        columns = model.column_noise * draw("columns", width)
        dark += columns if model.mosaic != "none" else columns[:, None]
    response, colours = np.maximum(response, 0.0), responses(model)
    if model.mosaic == "none":
        return FixedPattern(response=response * colours, dark=dark)
    for site, colour in enumerate(filter_colours(model.mosaic)):
        response[site // 2 :: 2, site % 2 :: 2] *= colours[colour]
    return FixedPattern(response=response, dark=dark)


def collect_electrons(
    light: NDArray[np.float64], model: CameraModel, fixed: FixedPattern, exposure: CaptureExposure
) -> NDArray[np.float64]:
    """Return the mean number of electrons in each pixel, from light and from dark current.

    Args:
        light: light behind the colour filters (`colour.apply_filters`), 1 for white.
        model: the camera.
        fixed: fixed pattern of the camera, whose ``response`` is the relative sensitivity of each pixel.
        exposure: exposure of the capture.
    """
    return light * (fixed.response * (model.electron_rate * exposure.time)) + model.dark_current * exposure.time


def add_noise(
    mean: NDArray[np.float64], model: CameraModel, exposure: CaptureExposure, seeds: CameraSeeds, number: int
) -> NDArray[np.float64]:
    """Return the electrons of one capture with photon noise, read noise and row noise.

    Below a mean λ of 12 electrons (`POISSON_BELOW`), the photon noise is an exact Poisson number and read noise of
    standard deviation σ is added. For larger means, one random number approximates both (E. A. Cornish, R. A. Fisher,
    Rev. Inst. Int. Stat. 5, 1938). With a standard normal number z it is λ + √(S − 2 g²) z + g (z² − 1), where S = λ +
    σ² is the variance and g = λ / 6S. Mean, variance and third moment are those of the exact sum, and the distribution
    differs by less than 0.1 %.

    Args:
        mean: mean electrons of each pixel.
        model: the camera.
        exposure: exposure of the capture.
        seeds: seeds of the random numbers.
        number: number of the capture.
    """
    read = read_noise(model, exposure.gain)
    first = seeds.normals(NOISE, mean.size, number=number).reshape(mean.shape)
    variance = mean + read * read
    skewness = mean / (6.0 * np.maximum(variance, 1e-300))
    spread = np.sqrt(np.maximum(variance - 2.0 * skewness * skewness, 0.0))
    deviation = spread * first + skewness * (first * first - 1.0)
    is_poisson = mean < POISSON_BELOW
    if is_poisson.any():
        words = seeds.words(NOISE, mean.size, number=number).reshape(mean.shape)[is_poisson]
        second = seeds.normals(READ, mean.size, number=number).reshape(mean.shape)[is_poisson]
        deviation[is_poisson] = (poisson_of_words(words, mean[is_poisson]) - mean[is_poisson]) + read * second
    rows = model.row_noise * seeds.normals(ROWS, len(mean), number=number)
    return mean + model.noise_scale * (deviation + rows.reshape(-1, *(1,) * (mean.ndim - 1)))


def digitize_electrons(electrons: NDArray[np.float64], model: CameraModel, gain: float) -> NDArray:
    """Convert electrons to digital numbers.

    Returns:
        Integers as uint16; if the camera has no converter (0 bits), float64 from 0 at black to 1 at white.
    """
    numbers = np.minimum(electrons, model.full_well) * (conversion_gain(model) * gain) + model.black_level
    if model.bits == 0:
        return np.minimum(numbers, 1.0)
    return np.rint(np.clip(numbers, 0.0, white_level(model))).astype(np.uint16)


def balance_white(
    numbers: NDArray, model: CameraModel, exposure: CaptureExposure, gains: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Convert digital numbers to linear values: subtract black, apply white balance, clip at 1 (white).

    Black is the value of a pixel without light, including dark current, as optically black rows measure it.

    Args:
        numbers: digital numbers of one capture, shape ``(height, width)`` with a colour filter mosaic, else ``(height,
            width, 3)``.
        model: the camera.
        exposure: exposure of the capture.
        gains: gains of red, green and blue, shape ``(3,)``.

    Returns:
        Linear values, shape of ``numbers``.
    """
    plain = numbers - black_number(model, exposure)
    if model.mosaic == "none":
        return np.minimum(plain * (gains / number_span(model)), 1.0)
    linear = np.empty(plain.shape)
    for site, colour in enumerate(filter_colours(model.mosaic)):
        here = (slice(site // 2, None, 2), slice(site % 2, None, 2))
        linear[here] = plain[here] * (gains[colour] / number_span(model))
    return np.minimum(linear, 1.0)


def read_noise(model: CameraModel, gain: float) -> float:
    """Return the standard deviation of the read noise at a gain, in electrons."""
    return math.hypot(model.read_noise, model.adc_noise / gain)


def white_level(model: CameraModel) -> float:
    """Return the largest digital number; 1 if the camera has no converter."""
    return 2.0**model.bits - 1.0 if model.bits else 1.0


def number_span(model: CameraModel) -> float:
    """Return the difference of the digital numbers of white and black."""
    return white_level(model) - model.black_level


def conversion_gain(model: CameraModel) -> float:
    """Return the digital numbers per electron at a gain of 1 (the system gain K of EMVA 1288)."""
    return number_span(model) / model.full_well


def black_number(model: CameraModel, exposure: CaptureExposure) -> float:
    """Return the mean digital number of a pixel without light, including dark current."""
    return model.black_level + conversion_gain(model) * exposure.gain * model.dark_current * exposure.time
