"""Compute the images that a camera delivers from the light that reaches it, including automatic exposure and codec."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.imaging import LUMA
from twinloop.core.params import SeedPath
from twinloop.sensors.camera import colour, sensor
from twinloop.sensors.camera.codec import CameraCodec, open_codec
from twinloop.sensors.camera.colour import filter_colours, responses
from twinloop.sensors.camera.exposure import (
    CaptureExposure,
    full_scale_exposure,
    manual_exposure,
    settle_exposure,
    split_exposure,
    update_exposure,
)
from twinloop.sensors.camera.fast import process_numbers, sense_light
from twinloop.sensors.camera.model import CameraModel
from twinloop.sensors.camera.seeds import CameraSeeds
from twinloop.sensors.camera.stages import (
    CameraUnit,
    Capture,
    has_sensor,
    list_processing_stages,
    list_sensing_stages,
    needs_seeds,
)
from twinloop.sensors.camera.tone import apply_tone, compute_tone_steps, sharpen_image
from twinloop.sensors.compiled import has_numba

_EVERY = 8  # pixels between metered ones, an even number; statistics of light do not need all
_BRIGHTEST = 0.02  # share of the image that counts as its highlights (libcamera, AGC constraint, q_lo 0.98)
_HIGHEST = 0.9  # largest target level: closer to saturation, means are unreliable (libcamera, EvGainYTargetLimit)
_DARKEST = 1e-6  # linear level; darker images count as this


def compute_exposure_factor(luma: NDArray[np.float64], model: CameraModel) -> float:
    """Return the factor on exposure time times gain that brings the image to the target of automatic exposure.

    The target is a mean luma of ``exposure_target``. If the brightest 2 % of the pixels would then have a mean below
    ``exposure_highlight``, the factor is larger, so that their mean reaches it. Exposure compensation shifts both
    targets.

    Args:
        luma: linear luma of the metered pixels, 1 at white.
        model: the camera.
    """
    shift = 2.0**model.exposure_compensation
    mean, count = max(float(luma.mean()), _DARKEST), max(int(luma.size * _BRIGHTEST), 1)
    factor = min(model.exposure_target * shift, _HIGHEST) / mean
    if model.exposure_highlight > 0.0:
        bright = max(float(np.partition(luma, luma.size - count, axis=None)[-count:].mean()), _DARKEST)
        factor = max(factor, min(model.exposure_highlight * shift, _HIGHEST) / bright)
    return factor


def meter_numbers(numbers: NDArray, model: CameraModel, exposure: CaptureExposure) -> NDArray[np.float64]:
    """Return the linear luma of every eighth pixel in both directions for automatic exposure, 1 at white.

    If the sensor has a colour filter mosaic, each value is computed from 2×2 pixels.

    Args:
        numbers: digital numbers of one capture (raw image of the sensor).
        model: the camera.
        exposure: exposure of the capture.

    Returns:
        Luma values from 0 to 1, about ``(height / 8, width / 8)``.
    """
    dark, scale = sensor.black_number(model, exposure), 1.0 / (sensor.number_span(model) * responses(model))
    if model.mosaic == "none":
        plain = (numbers[::_EVERY, ::_EVERY] - dark) * scale
        return np.clip(plain @ LUMA, 0.0, 1.0)
    colours = filter_colours(model.mosaic)
    weights = LUMA * scale / np.bincount(colours)
    height, width = (side // 2 * 2 for side in numbers.shape)
    quads = [numbers[site // 2 : height : _EVERY, site % 2 : width : _EVERY] for site in range(4)]
    luma = sum(weights[colour] * (quad - dark) for colour, quad in zip(colours, quads, strict=True))
    return np.clip(np.asarray(luma), 0.0, 1.0)


def meter_light(light: NDArray, model: CameraModel, product: float) -> NDArray[np.float64]:
    """Return the linear luma that automatic exposure would measure at a given exposure, without noise, 1 at white.

    Args:
        light: linear light, shape ``(height, width, 3)``.
        model: the camera.
        product: exposure time times gain, in s.

    Returns:
        Luma values from 0 to 1, shape ``(height, width)``.
    """
    return np.clip(np.asarray(light, dtype=np.float64) @ LUMA * (product / full_scale_exposure(model)), 0.0, 1.0)


_LEAST = 3  # pixels per side, so that a filter's neighbours beyond the edge can be mirrored
_METERED = 4  # pixels between those that automatic exposure meters before the first image


class CameraPipeline:
    """Camera of one world, from light to delivered images; exposure and codec keep their state between images.

    Args:
        model: the camera in this world.
        seeds: seeds of its random numbers; not needed for a camera without random effects.
        compiled: whether to compute pixels in compiled code, with the same result; by default if numba is
            installed.

    Raises:
        InputError: If the model has random effects and ``seeds`` is None.
    """

    def __init__(self, model: CameraModel, seeds: CameraSeeds | None = None, *, compiled: bool | None = None) -> None:
        if seeds is None and needs_seeds(model):
            raise InputError(
                "This camera has noise, a pattern, dust or a drift, but no seeds. Give it "
                "CameraSeeds(path=SeedPath.of(run_seed, episode), sensor=NAME)."
            )
        self.model = model
        self._seeds = replace(seeds or CameraSeeds(path=SeedPath.of(0, 0), sensor=""), serial=model.serial)
        self._sensing, self._processing = list_sensing_stages(model), list_processing_stages(model)
        self._fast = has_numba() if compiled is None else compiled
        self._codec: CameraCodec | None = open_codec(model, fast=self._fast)
        self._balance = colour.WhiteBalance(model, self._seeds)
        self._unit: CameraUnit | None = None
        self._product: float | None = None
        self._factor = 1.0
        self._time = 0.0

    def develop(self, light: NDArray[np.float32], *, time: ArrayLike, numbers: ArrayLike) -> NDArray[np.uint8]:
        """Return the next n images as the camera delivers them, 8-bit sRGB of shape ``(n, height, width, 3)``.

        Args:
            light: linear light after lens and shutter, 1 at sRGB white, shape ``(n, height, width, 3)``.
            time: time of each image in s, increasing, shape ``(n,)``.
            numbers: number of each image, shape ``(n,)``; it determines the random numbers of the image.

        Raises:
            InputError: If ``light`` is not an array of images, or the camera cannot deliver images of this size.
        """
        images = np.empty(light.shape, dtype=np.uint8)
        for index, (capture, image) in enumerate(self._iterate_captures(light, time, numbers)):
            raw = self._apply_sensing(image, capture)
            self._meter(raw, capture)
            processed = self._apply_processing(raw, capture)
            images[index] = processed if self._codec is None else self._codec(processed)
        return images

    def next_exposure_time(self, time: float) -> float | None:
        """Return the exposure time in s of the next image, which is taken at ``time`` in s.

        None before the first image of automatic exposure, because its exposure depends on the light of that image.
        """
        if not self.model.exposure_time:
            return 0.0
        if self.model.exposure != "auto":
            return manual_exposure(self.model).time
        if self._product is None:
            return None
        product = update_exposure(self.model, self._product, self._factor, time - self._time)
        return split_exposure(self.model, product).time

    def iterate_stages(
        self, light: NDArray[np.float32], *, time: ArrayLike, numbers: ArrayLike
    ) -> Iterator[list[tuple[str, NDArray[np.uint8]]]]:
        """Yield, for each image, the intermediate result after every stage of the camera, to show what each stage does.

        Args:
            light: linear light after lens and shutter, 1 at sRGB white, shape ``(n, height, width, 3)``.
            time: time of each image in s, increasing, shape ``(n,)``.
            numbers: number of each image, shape ``(n,)``.

        Yields:
            Stage names with displayable images ``(height, width, 3)``, beginning with ``light``. Light is scaled by the
            exposure of the image. In an image with a colour filter mosaic, each pixel has the colour of its filter.
        """
        for capture, image in self._iterate_captures(light, time, numbers):
            results: list[tuple[str, NDArray[np.uint8]]] = [("light", _view(image, "light", capture))]
            for stage in self._sensing:
                image = stage.function(image, capture)
                results.append((stage.name, _view(image, stage.name, capture)))
            self._meter(image, capture)
            for stage in self._processing:
                image = stage.function(image, capture)
                results.append((stage.name, _view(image, stage.name, capture)))
            if self._codec is not None:
                results.append((self.model.codec, self._codec(image)))
            yield results

    def _iterate_captures(
        self, light: NDArray[np.float32], time: ArrayLike, numbers: ArrayLike
    ) -> Iterator[tuple[Capture, NDArray]]:
        """Yield each capture with its light ``(height, width, 3)``; automatic exposure depends on the previous capture.

        Arguments are those of `develop`.
        """
        light = np.ascontiguousarray(light, dtype=np.float32)
        _check(light, self.model)
        times = np.asarray(time, dtype=np.float64)
        gains = self._balance.gains(times)
        unit = self._get_unit(*light.shape[1:3])
        for index, number in enumerate(np.asarray(numbers)):
            exposure = manual_exposure(self.model)
            if self.model.exposure == "auto":
                exposure = split_exposure(self.model, self._update_exposure(light[index], unit, times[index]))
            yield Capture(number=int(number), exposure=exposure, gains=gains[index], unit=unit), light[index]

    def _update_exposure(self, light: NDArray[np.float32], unit: CameraUnit, time: float) -> float:
        """Return the product of exposure time and gain in s for the next capture under automatic exposure.

        For the first capture it is the product at which automatic exposure would settle in the light of this capture.
        """
        if self._product is None:
            metered = slice(None, None, _METERED)
            shaded = light[metered, metered] * (unit.falloff * unit.shadows)[metered, metered, None]
            self._product = settle_exposure(
                self.model,
                lambda product: compute_exposure_factor(meter_light(shaded, self.model, product), self.model),
            )
        else:
            self._product = update_exposure(self.model, self._product, self._factor, time - self._time)
        self._time = time
        return self._product

    def _meter(self, numbers: NDArray, capture: Capture) -> None:
        if self.model.exposure == "auto":
            self._factor = compute_exposure_factor(meter_numbers(numbers, self.model, capture.exposure), self.model)

    def _get_unit(self, height: int, width: int) -> CameraUnit:
        if self._unit is None or (self._unit.height, self._unit.width) != (height, width):
            self._unit = CameraUnit(self.model, self._seeds, height, width, fast=self._fast)
        return self._unit

    def _apply_sensing(self, image: NDArray, capture: Capture) -> NDArray:
        if self._fast and has_sensor(self.model):
            return sense_light(image, capture)
        for stage in self._sensing:
            image = stage.function(image, capture)
        return image

    def _apply_processing(self, image: NDArray, capture: Capture) -> NDArray[np.uint8]:
        if self._fast:
            processed = process_numbers(image, capture)
            return (
                sharpen_image(processed, self.model.sharpness, fast=True) if self.model.sharpness > 0.0 else processed
            )
        for stage in self._processing:
            image = stage.function(image, capture)
        return image


def develop(
    light: NDArray[np.float32],
    model: CameraModel,
    *,
    time: ArrayLike,
    numbers: ArrayLike,
    seeds: CameraSeeds | None = None,
) -> NDArray[np.uint8]:
    """Return all images of one camera in one world, 8-bit sRGB of shape ``(n, height, width, 3)``.

    The first image is that of the episode's start, because exposure control and codec depend on the earlier images.

    Args:
        light: linear light after lens and shutter, 1 at sRGB white, shape ``(n, height, width, 3)``.
        model: the camera.
        time: time of each image in s, increasing, shape ``(n,)``.
        numbers: number of each image, shape ``(n,)``; it determines the random numbers of the image.
        seeds: seeds of the random numbers; not needed for a camera without random effects.

    Raises:
        InputError: If seeds are missing, or the light is not an array of images that this camera can deliver.
    """
    return CameraPipeline(model, seeds).develop(light, time=time, numbers=numbers)


def develop_steps(
    light: NDArray[np.float32],
    model: CameraModel,
    *,
    time: ArrayLike,
    numbers: ArrayLike,
    seeds: CameraSeeds | None = None,
) -> list[tuple[str, NDArray[np.uint8]]]:
    """Return the last image after each stage of the camera, with the stage names, beginning with ``light``.

    Arguments are those of `develop`; see also `CameraPipeline.iterate_stages`.
    """
    *_, last = CameraPipeline(model, seeds).iterate_stages(light, time=time, numbers=numbers)
    return last


def _check(light: NDArray[np.float32], model: CameraModel) -> None:
    if light.ndim != 4 or light.shape[-1] != 3:
        raise InputError(
            f"Light of shape {light.shape} is not an array of images. The axes are image, height, width, colour (3)."
        )
    if light.size and not -np.inf < light.min() <= light.max() < np.inf:  # compiled code would index tables with it
        raise InputError(
            "Light that is nan or infinite cannot be developed. Give finite numbers, 1 where sRGB is white."
        )
    if model.mosaic != "none" and min(light.shape[1:3]) < _LEAST:
        raise InputError(
            f"A mosaic of {light.shape[2]}x{light.shape[1]} pixels cannot be developed. Both sides must be {_LEAST} or "
            "more."
        )


def _view(image: NDArray, stage: str, capture: Capture) -> NDArray[np.uint8]:
    """Convert an intermediate result of a camera stage to a displayable 8-bit image.

    Args:
        image: the intermediate result; an 8-bit image is returned unchanged.
        stage: name of the stage that produced it, which determines the scale of its values.
        capture: number, exposure and camera unit of the capture.
    """
    model = capture.unit.model
    if image.dtype == np.uint8:
        return image
    exposed = capture.exposure.time * capture.exposure.gain / full_scale_exposure(model)
    scales = {"electrons": capture.exposure.gain / model.full_well, "converter": 1.0 / sensor.number_span(model)}
    scales |= {"noise": scales["electrons"], "fixed_pattern": scales["electrons"], "filters": exposed}
    scales |= dict.fromkeys(("light", "glare", "vignetting", "dust"), exposed)
    dark = model.black_level if stage == "converter" else 0.0
    linear = (image.astype(np.float64) - dark) * scales.get(stage, 1.0)
    if linear.ndim == 2:
        coloured = np.zeros((*linear.shape, 3))
        for site, filter_ in enumerate(colour.filter_colours(model.mosaic)):
            here = (slice(site // 2, None, 2), slice(site % 2, None, 2))
            coloured[(*here, filter_)] = linear[here]
        linear = coloured
    return apply_tone(linear, compute_tone_steps(CameraModel()))
