"""Find the camera parameters, and their values, with which the simulated camera would produce the real images.

Colours and shading are estimated first (`camera_tone`), then blur, then noise (`camera_detail`). Each step uses images
with the changes of the earlier steps. Because distributions of images are compared, both sets must show the same scenes
on average.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from twinloop.core.plain import JsonRecord
from twinloop.dataset.media.images import Images
from twinloop.gap.vision.camera_detail import DetailFit, fit_blur, fit_noise
from twinloop.gap.vision.camera_tone import ToneProblem
from twinloop.gap.vision.develop import CameraResponse, redevelop_images
from twinloop.gap.vision.image_statistics import ImageStatistics, PixelSample, compute_image_statistics, sample_pixels
from twinloop.twin.quantities.sensing import SENSING

UNITS = {quantity.quantity: quantity.unit for quantity in SENSING if quantity.device == "camera"}
BOUNDS = {quantity.quantity: (quantity.low, quantity.high) for quantity in SENSING if quantity.device == "camera"}


@dataclass(frozen=True, kw_only=True)
class CameraRemedy(JsonRecord):
    """Proposed value of one camera parameter of the twin that would reduce the gap.

    Attributes:
        parameter: Name of the parameter, ``sensor/NAME/QUANTITY``.
        now: Value with which the simulated images were rendered.
        value: Proposed value, within the parameter's bounds.
        low: Lower end of its interval over episodes.
        high: Upper end of its interval over episodes.
        unit: Unit of the values; empty if dimensionless.
        closes: Names of the image statistics whose difference the value more than halves, alone or together with all
            other remedies.
        share: Part of the embeddings' MMD² that the value removes. It is the mean of its effect alone and its effect
            after all other remedies; NaN if there is no significant gap.
    """

    parameter: str
    now: float
    value: float
    low: float
    high: float
    unit: str = ""
    closes: tuple[str, ...] = ()
    share: float = math.nan

    @property
    def quantity(self) -> str:
        """Last part of the parameter's name, such as ``blur``."""
        return self.parameter.rpartition("/")[2]


def find_remedies(
    real: ImageStatistics,
    sim: ImageStatistics,
    pixels: Sequence[PixelSample],
    images: Sequence[Images],
    camera: CameraResponse,
    *,
    sensor: str,
    level: float = 0.95,
) -> tuple[CameraRemedy, ...]:
    """Return the changes of camera parameters that reduce the gap: colours first, then blur and noise.

    Args:
        real: Statistics of the real episodes.
        sim: Statistics of the simulated episodes.
        pixels: Sampled pixels of all simulated episodes.
        images: Some images of some simulated episodes, one array per episode.
        camera: The simulated camera.
        sensor: Name of the camera in the twin, used in parameter names.
        level: Confidence level of the intervals.
    """
    tone = ToneProblem(real, sim, pixels, camera, level=level).select_parameters()
    found = [
        DetailFit(quantity=name, value=float(v), low=float(low), high=float(high))
        for name, v, low, high in zip(tone.names, tone.values, tone.low, tone.high, strict=True)
    ]
    coloured = camera.with_values(**{row.quantity: row.value for row in found})
    blur = fit_blur(real.edge, images, coloured, source=camera, level=level)
    sharp = coloured
    if blur is not None and abs(blur.value - camera.blur) > 1e-6:
        found.append(blur)
        sharp = coloured.with_values(blur=blur.value)
    noise = fit_noise(real.noise, images, sharp, source=camera, level=level)
    found += [row for row in noise if not row.low <= camera.value(row.quantity) <= row.high]
    return tuple(_build_remedy(row, camera, sensor) for row in found)


def apply_remedies(camera: CameraResponse, remedies: Sequence[CameraRemedy]) -> CameraResponse:
    """Return a copy of the camera with the proposed values."""
    return camera.with_values(**{remedy.quantity: remedy.value for remedy in remedies})


def compute_statistics(images: Sequence[Images], *, seed: int = 0) -> ImageStatistics:
    """Return the image statistics of episodes whose images are in memory, one array per episode."""
    return ImageStatistics.join_episodes(
        compute_image_statistics(part, sample_pixels(part, seed=seed + i)) for i, part in enumerate(images)
    )


def redevelop_episodes(images: Sequence[Images], old: CameraResponse, new: CameraResponse) -> list[Images]:
    """Convert images of the camera ``old`` to the images that the camera ``new`` would have delivered.

    Args:
        images: Images, one array per episode.
        old: Camera that delivered the images.
        new: Camera with other values.
    """
    return [redevelop_images(part, old, new, seed=i) for i, part in enumerate(images)]


def _build_remedy(row: DetailFit, camera: CameraResponse, sensor: str) -> CameraRemedy:
    low, high = BOUNDS[row.quantity]
    value, *ends = (float(np.clip(number, low, high)) for number in (row.value, row.low, row.high))
    return CameraRemedy(
        parameter=f"sensor/{sensor}/{row.quantity}",
        now=camera.value(row.quantity),
        value=value,
        low=ends[0],
        high=ends[1],
        unit="" if UNITS[row.quantity] == "1" else UNITS[row.quantity],
    )
