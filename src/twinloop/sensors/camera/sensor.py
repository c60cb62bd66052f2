"""Convert light to digital numbers, pixel by pixel: EMVA 1288's linear camera model, with row and column noise.

A pixel collects Poisson(λ) electrons, λ = rate · light · (1 + prnu) · time + dark current · time; readout adds normal
noise, and the pixel, its column and its row an offset; the full well limits them; DN = K · gain · electrons + black,
rounded. K is such that a full well is the largest number at a gain of 1. Hence σ_DN² = K²(σ_read² + λ) + 1/12.

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
    """Fixed pattern of the pixels of one unit, ``(height, width)`` or, without a mosaic, ``(height, width, 3)``.

    ``response`` is the factor on the electrons freed by light, relative to white light at a green pixel; ``dark`` in
    electrons is added.
    """

    response: NDArray[np.float64]
    dark: NDArray[np.float64]


def unit_pattern(
    model: CameraModel, draw: Callable[[str, int], NDArray[np.float64]], height: int, width: int
) -> FixedPattern:
    """Return the pattern of a unit: PRNU and the filters' responses, DSNU and column offsets.

    ``draw`` returns the requested number of normal numbers for a named purpose.
    """
    shape = (height, width) if model.mosaic != "none" else (height, width, 3)
    response, dark = np.ones(shape), np.zeros(shape)
    for stage, strength, result in (("prnu", model.prnu, response), ("dsnu", model.dsnu, dark)):
        if strength > 0.0:
            result += strength * draw(stage, result.size).reshape(shape)
    if model.column_noise > 0.0:
        columns = model.column_noise * draw("columns", width)
        dark += columns if model.mosaic != "none" else columns[:, None]
    colours = responses(model)
    if model.mosaic == "none":
        return FixedPattern(response=response * colours, dark=dark)
    for site, colour in enumerate(filter_colours(model.mosaic)):
        response[site // 2 :: 2, site % 2 :: 2] *= colours[colour]
    return FixedPattern(response=np.maximum(response, 0.0), dark=dark)


def collect_electrons(
    light: NDArray[np.float64], model: CameraModel, fixed: FixedPattern, exposure: CaptureExposure
) -> NDArray[np.float64]:
    """Return the mean electrons of one capture, freed by filtered light and by dark current."""
    return light * (fixed.response * (model.electron_rate * exposure.time)) + model.dark_current * exposure.time


def add_noise(
    mean: NDArray[np.float64], model: CameraModel, exposure: CaptureExposure, seeds: CameraSeeds, number: int
) -> NDArray[np.float64]:
    """Return the electrons as counted and read, of the capture ``number``.

    From `POISSON_BELOW` mean electrons λ on, the Poisson number and the read noise are one number with their mean,
    their variance S = λ + σ² and their third moment: with g = λ / 6S and a normal z, λ + √(S − 2 g²) z + g (z² − 1)
    (E. A. Cornish, R. A. Fisher, Rev. Inst. Int. Stat. 5, 1938). Its distribution differs by less than 0.1 %.
    """
    read = read_noise(model, exposure.gain)
    first = seeds.normals(NOISE, mean.size, number=number).reshape(mean.shape)
    variance = mean + read * read
    skewed = mean / (6.0 * np.maximum(variance, 1e-300))
    apart = np.sqrt(np.maximum(variance - 2.0 * skewed * skewed, 0.0)) * first + skewed * (first * first - 1.0)
    few = mean < POISSON_BELOW
    if few.any():
        words = seeds.words(NOISE, mean.size, number=number).reshape(mean.shape)[few]
        second = seeds.normals(READ, mean.size, number=number).reshape(mean.shape)[few]
        apart[few] = (poisson_of_words(words, mean[few]) - mean[few]) + read * second
    rows = model.row_noise * seeds.normals(ROWS, len(mean), number=number)
    return mean + model.noise_scale * (apart + rows.reshape(-1, *(1,) * (mean.ndim - 1)))


def digitize_electrons(electrons: NDArray[np.float64], model: CameraModel, gain: float) -> NDArray:
    """Return digital numbers: uint16 with a converter of some bits, else float64 from black at 0 to white at 1."""
    numbers = np.minimum(electrons, model.full_well) * (conversion_gain(model) * gain) + model.black_level
    if model.bits == 0:
        return np.minimum(numbers, 1.0)
    return np.rint(np.clip(numbers, 0.0, white_level(model))).astype(np.uint16)


def balance_white(
    numbers: NDArray, model: CameraModel, exposure: CaptureExposure, gains: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return linear values, 1 at white, of digital numbers of one exposure: black subtracted, white-balanced, clipped.

    Black is the value of pixels without light, including dark current, as measured by optically black rows.
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
    """Return the standard deviation of reading a pixel at a gain, in electrons."""
    return math.hypot(model.read_noise, model.adc_noise / gain)


def white_level(model: CameraModel) -> float:
    """Return the largest digital number."""
    return 2.0**model.bits - 1.0 if model.bits else 1.0


def number_span(model: CameraModel) -> float:
    """Return the digital numbers from black to white."""
    return white_level(model) - model.black_level


def conversion_gain(model: CameraModel) -> float:
    """Return the digital numbers per electron at a gain of 1, EMVA's K."""
    return number_span(model) / model.full_well


def black_number(model: CameraModel, exposure: CaptureExposure) -> float:
    """Return the mean digital number of a pixel without light."""
    return model.black_level + conversion_gain(model) * exposure.gain * model.dark_current * exposure.time
