"""Define the stages from light to a delivered image, in order; stages without effect on a camera are skipped.

Up to the converter: glare, vignetting, dust, filters, electrons, noise, fixed pattern, converter. After it: white
balance, demosaicing, colour, tone, sharpening. A single exposure stage replaces all stages up to the converter for a
camera without filters, noise and converter.
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
    """Constants of one camera in one world: lens shading, dust, filters, and pixels."""

    def __init__(self, model: CameraModel, seeds: CameraSeeds, height: int, width: int, *, fast: bool = False) -> None:
        self.model, self.seeds, self.height, self.width = model, seeds, height, width
        self._draw = partial(normals if fast else CameraSeeds.normals, seeds, unit=True)

    @cached_property
    def falloff(self) -> NDArray[np.float64]:
        """Factors of vignetting, ``(height, width)``."""
        return vignetting_factors(self.height, self.width, self.model.vignetting)

    @cached_property
    def shadows(self) -> NDArray[np.float64]:
        """Factors of dust, ``(height, width)``."""
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
        """Responses and dark signals of its pixels."""
        return sensor.unit_pattern(self.model, self._draw, self.height, self.width)

    @cached_property
    def filter_transmission(self) -> NDArray[np.float64]:
        """Transmission of its filters, see `colour.transmission`."""
        return colour.transmission(self.model)

    @cached_property
    def shaded_response(self) -> NDArray[np.float64]:
        """Responses of its pixels, multiplied by the factors of vignetting and dust."""
        shade = self.falloff * self.shadows
        return self.pattern.response * (shade if self.model.mosaic != "none" else shade[..., None])


class Capture(NamedTuple):
    """One capture: its number and exposure, the gains of red, green and blue, the unit that made it."""

    number: int
    exposure: CaptureExposure
    gains: NDArray[np.float64]
    unit: CameraUnit


class CameraStage(NamedTuple):
    """One stage: ``function(image, capture)`` of one exposure."""

    name: str
    function: Callable[[NDArray, Capture], NDArray]


def list_stages(model: CameraModel) -> list[CameraStage]:
    """Return the stages of a camera, in order, up to its codec."""
    return [*list_sensing_stages(model), *list_processing_stages(model)]


def list_sensing_stages(model: CameraModel) -> list[CameraStage]:
    """Return the stages from light ``(height, width, 3)`` to digital numbers."""
    ahead = [
        (model.veiling_glare > 0.0 or model.ghost > 0.0, CameraStage("glare", _add_glare)),
        (model.vignetting > 0.0, CameraStage("vignetting", lambda light, shot: light * shot.unit.falloff[..., None])),
        (model.dust_count > 0.0, CameraStage("dust", lambda light, shot: light * shot.unit.shadows[..., None])),
    ]
    chosen = [stage for there, stage in ahead if there]
    if not has_sensor(model):
        exposed = model.exposure == "auto" or _product(manual_exposure(model)) != full_scale_exposure(model)
        return [*chosen, *([CameraStage("exposure", _expose)] if exposed else [])]
    fixed = model.dsnu > 0.0 or model.column_noise > 0.0
    return [
        *chosen,
        CameraStage("filters", lambda light, shot: colour.apply_filters(light[None], shot.unit.model)[0]),
        CameraStage("electrons", _collect_electrons),
        *([CameraStage("noise", _add_noise)] if model.noise_scale > 0.0 else []),
        *([CameraStage("fixed_pattern", lambda counts, shot: counts + shot.unit.pattern.dark)] if fixed else []),
        CameraStage(
            "converter", lambda counts, shot: sensor.digitize_electrons(counts, shot.unit.model, shot.exposure.gain)
        ),
    ]


def list_processing_stages(model: CameraModel) -> list[CameraStage]:
    """Return the stages from digital numbers to 8 bits ``(height, width, 3)``."""
    white = (model.white_balance_red, model.white_balance_blue, model.white_balance_drift) != (1.0, 1.0, 0.0)
    later = [
        (has_sensor(model) or white, CameraStage("white_balance", _balance_white)),
        (model.mosaic != "none", CameraStage("demosaic", _demosaic)),
        (model.colour_matrix != _SAME or model.saturation != 1.0, CameraStage("colour", _mix_colours)),
        (True, CameraStage("tone", lambda linear, shot: apply_tone(linear, compute_tone_steps(shot.unit.model)))),
        (
            model.sharpness > 0.0,
            CameraStage("sharpening", lambda view, shot: sharpen_image(view, shot.unit.model.sharpness)),
        ),
    ]
    return [stage for there, stage in later if there]


def has_sensor(model: CameraModel) -> bool:
    """Return whether pixels convert light to electrons; an ideal camera shows the light itself."""
    counted = model.noise_scale or model.prnu or model.dsnu or model.column_noise or model.dark_current or model.bits
    filters = model.mosaic != "none" or model.colour_matrix != _SAME or tuple(colour.responses(model)) != (1, 1, 1)
    return bool(counted) or filters


def needs_seeds(model: CameraModel) -> bool:
    """Return whether a camera's images have random effects."""
    by_chance = (model.noise_scale, model.prnu, model.dsnu, model.column_noise, model.dust_count)
    return any(value > 0.0 for value in (*by_chance, model.white_balance_drift))


def _product(exposure: CaptureExposure) -> float:
    return exposure.time * exposure.gain


def _expose(light: NDArray, shot: Capture) -> NDArray:
    return np.minimum(light * (_product(shot.exposure) / full_scale_exposure(shot.unit.model)), 1.0)


def _add_glare(light: NDArray, shot: Capture) -> NDArray:
    model = shot.unit.model
    spread = compute_glare(light[None], scattered=model.veiling_glare, width=model.glare_width, ghost=model.ghost)
    return spread.kept * light.astype(np.float64) + spread.interpolate_pixels(*light.shape[:2])[0]


def _collect_electrons(light: NDArray, shot: Capture) -> NDArray:
    return sensor.collect_electrons(light, shot.unit.model, shot.unit.pattern, shot.exposure)


def _add_noise(mean: NDArray, shot: Capture) -> NDArray:
    return sensor.add_noise(mean, shot.unit.model, shot.exposure, shot.unit.seeds, shot.number)


def _balance_white(numbers: NDArray, shot: Capture) -> NDArray:
    return sensor.balance_white(numbers, shot.unit.model, shot.exposure, shot.gains)


def _demosaic(plane: NDArray, shot: Capture) -> NDArray:
    model = shot.unit.model
    return demosaic(plane[None], model.mosaic, malvar=model.demosaic == "malvar")[0]


def _mix_colours(linear: NDArray, shot: Capture) -> NDArray:
    return colour.apply_matrix(linear, colour.compute_mixing_matrix(shot.unit.model))
