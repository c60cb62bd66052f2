"""Define the processing stages of a camera from light to an 8-bit image, in order.

Up to the converter: glare, vignetting, dust, filters, electrons, noise, fixed pattern, converter. After it:
white balance, demosaicing, colour, tone, sharpening. Stages that have no effect for a camera are skipped. If a
camera has no filters, noise and converter, a single exposure stage replaces the stages after dust.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from twinloop.sensors.camera import colour, sensor
from twinloop.sensors.camera.colour import demosaic
from twinloop.sensors.camera.exposure import CaptureExposure, full_scale_exposure, manual_exposure
from twinloop.sensors.camera.model import CameraModel
from twinloop.sensors.camera.seeds import CameraSeeds, normals
from twinloop.sensors.camera.shading import compute_glare, dust_shadows, vignetting_factors
from twinloop.sensors.camera.tone import apply_tone, compute_tone_steps, sharpen_image

_SAME = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0)


class CameraUnit:
    """Constants of one camera unit in one world: vignetting, dust, colour filters and fixed pixel pattern.

    Arrays are computed at their first use, for images of ``height`` × ``width`` pixels.
    """

    def __init__(self, model: CameraModel, seeds: CameraSeeds, height: int, width: int, *, fast: bool = False) -> None:
        self.model, self.seeds, self.height, self.width = model, seeds, height, width
        self._draw = partial(normals if fast else CameraSeeds.normals, seeds, unit=True)

    @cached_property
    def falloff(self) -> NDArray[np.float64]:
        """Light at each pixel after vignetting, relative to the centre, shape ``(height, width)``."""
        return vignetting_factors(self.height, self.width, self.model.vignetting)

    @cached_property
    def shadows(self) -> NDArray[np.float64]:
        """Share of light that passes the dust near the sensor, shape ``(height, width)``; 1 means no dust."""
        model = self.model
        if model.dust_count == 0.0:
            return np.ones((self.height, self.width))
        return dust_shadows(
            self.height,
            self.width,
            self.seeds,
            count=model.dust_count,
            radius=model.dust_radius,
            depth=model.dust_depth,
        )

    @cached_property
    def pattern(self) -> sensor.FixedPattern:
        """Sensitivity and dark signal of each pixel."""
        return sensor.unit_pattern(self.model, self._draw, self.height, self.width)

    @cached_property
    def filter_transmission(self) -> NDArray[np.float64]:
        """Matrix from linear sRGB light to the light behind each colour filter, shape ``(3, 3)``."""
        return colour.transmission(self.model)

    @cached_property
    def shaded_response(self) -> NDArray[np.float64]:
        """Sensitivity of each pixel multiplied by vignetting and dust."""
        shade = self.falloff * self.shadows
        return self.pattern.response * (shade if self.model.mosaic != "none" else shade[..., None])


class Capture(NamedTuple):
    """One capture (image to be taken) of a camera.

    Attributes:
        number: number of the image, which determines its random numbers.
        exposure: exposure time and gain.
        gains: white balance gains of red, green and blue.
        unit: constants of the camera unit.
    """

    number: int
    exposure: CaptureExposure
    gains: NDArray[np.float64]
    unit: CameraUnit


class CameraStage(NamedTuple):
    """One processing stage of a camera.

    Attributes:
        name: name of the stage.
        function: function of image data and capture that returns the processed data.
    """

    name: str
    function: Callable[[NDArray, Capture], NDArray]


def list_stages(model: CameraModel) -> list[CameraStage]:
    """Return all processing stages of a camera in order, excluding the codec."""
    return [*list_sensing_stages(model), *list_processing_stages(model)]


def list_sensing_stages(model: CameraModel) -> list[CameraStage]:
    """Return the stages of a camera from light ``(height, width, 3)`` to digital numbers."""
    ahead = [
        (model.veiling_glare > 0.0 or model.ghost > 0.0, CameraStage("glare", _add_glare)),
        (
            model.vignetting > 0.0,
            CameraStage("vignetting", lambda light, capture: light * capture.unit.falloff[..., None]),
        ),
        (model.dust_count > 0.0, CameraStage("dust", lambda light, capture: light * capture.unit.shadows[..., None])),
    ]
    chosen = [stage for there, stage in ahead if there]
    if not has_sensor(model):
        exposed = model.exposure == "auto" or _product(manual_exposure(model)) != full_scale_exposure(model)
        return [*chosen, *([CameraStage("exposure", _expose)] if exposed else [])]
    fixed = model.dsnu > 0.0 or model.column_noise > 0.0
    return [
        *chosen,
        CameraStage("filters", lambda light, capture: colour.apply_filters(light[None], capture.unit.model)[0]),
        CameraStage("electrons", _collect_electrons),
        *([CameraStage("noise", _add_noise)] if model.noise_scale > 0.0 else []),
        *([CameraStage("fixed_pattern", lambda counts, capture: counts + capture.unit.pattern.dark)] if fixed else []),
        CameraStage(
            "converter",
            lambda counts, capture: sensor.digitize_electrons(counts, capture.unit.model, capture.exposure.gain),
        ),
    ]


def list_processing_stages(model: CameraModel) -> list[CameraStage]:
    """Return the stages of a camera from digital numbers to an 8-bit image ``(height, width, 3)``."""
    white = (model.white_balance_red, model.white_balance_blue, model.white_balance_drift) != (1.0, 1.0, 0.0)
    later = [
        (has_sensor(model) or white, CameraStage("white_balance", _balance_white)),
        (model.mosaic != "none", CameraStage("demosaic", _demosaic)),
        (model.colour_matrix != _SAME or model.saturation != 1.0, CameraStage("colour", _mix_colours)),
        (True, CameraStage("tone", lambda linear, capture: apply_tone(linear, compute_tone_steps(capture.unit.model)))),
        (
            model.sharpness > 0.0,
            CameraStage("sharpening", lambda view, capture: sharpen_image(view, capture.unit.model.sharpness)),
        ),
    ]
    return [stage for there, stage in later if there]


def has_sensor(model: CameraModel) -> bool:
    """Return whether the camera simulates a sensor (filters, noise or converter), which an ideal camera does not."""
    counted = model.noise_scale or model.prnu or model.dsnu or model.column_noise or model.dark_current or model.bits
    filters = model.mosaic != "none" or model.colour_matrix != _SAME or tuple(colour.responses(model)) != (1, 1, 1)
    return bool(counted) or filters


def needs_seeds(model: CameraModel) -> bool:
    """Return whether a camera's images have random effects, so that it needs seeds."""
    by_chance = (model.noise_scale, model.prnu, model.dsnu, model.column_noise, model.dust_count)
    return any(value > 0.0 for value in (*by_chance, model.white_balance_drift))


def _product(exposure: CaptureExposure) -> float:
    return exposure.time * exposure.gain


def _expose(light: NDArray, capture: Capture) -> NDArray:
    return np.minimum(light * (_product(capture.exposure) / full_scale_exposure(capture.unit.model)), 1.0)


def _add_glare(light: NDArray, capture: Capture) -> NDArray:
    model = capture.unit.model
    spread = compute_glare(light[None], scattered=model.veiling_glare, width=model.glare_width, ghost=model.ghost)
    return spread.direct_share * light.astype(np.float64) + spread.interpolate_pixels(*light.shape[:2])[0]


def _collect_electrons(light: NDArray, capture: Capture) -> NDArray:
    return sensor.collect_electrons(light, capture.unit.model, capture.unit.pattern, capture.exposure)


def _add_noise(mean: NDArray, capture: Capture) -> NDArray:
    return sensor.add_noise(mean, capture.unit.model, capture.exposure, capture.unit.seeds, capture.number)


def _balance_white(numbers: NDArray, capture: Capture) -> NDArray:
    return sensor.balance_white(numbers, capture.unit.model, capture.exposure, capture.gains)


def _demosaic(plane: NDArray, capture: Capture) -> NDArray:
    model = capture.unit.model
    return demosaic(plane[None], model.mosaic, malvar=model.demosaic == "malvar")[0]


def _mix_colours(linear: NDArray, capture: Capture) -> NDArray:
    return colour.apply_matrix(linear, colour.compute_mixing_matrix(capture.unit.model))
