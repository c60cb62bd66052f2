"""Find the parameters and values with which a simulated camera would produce the real images.

Colours and shading come first (`camera_tone`), then edges, then noise (`camera_detail`); each step uses images with the
changes found before. Distributions are compared, so both sides must show the same scenes on average.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from twinloop.core.plain import JsonRecord
from twinloop.dataset.media.images import Pictures
from twinloop.gap.vision.camera_detail import DetailFit, fit_blur, fit_noise
from twinloop.gap.vision.camera_tone import ToneProblem
from twinloop.gap.vision.develop import CameraResponse, redevelop_images
from twinloop.gap.vision.image_statistics import ImageStatistics, PixelSample, compute_image_statistics, sample_pixels
from twinloop.twin.quantities.sensing import SENSING

UNITS = {quantity.quantity: quantity.unit for quantity in SENSING if quantity.device == "camera"}
BOUNDS = {quantity.quantity: (quantity.low, quantity.high) for quantity in SENSING if quantity.device == "camera"}


@dataclass(frozen=True, kw_only=True)
class CameraRemedy(JsonRecord):
    """One camera parameter of the twin with the value that would close a part of the gap.

    Attributes:
        parameter: ``sensor/NAME/QUANTITY``.
        now: the value with which the simulated images were made.
        value, low, high: the proposed value with its interval over episodes; within the parameter's bounds.
        closes: names of the statistics whose difference it more than halves, alone or together with the other remedies.
        share: part of the embedding's MMD² that it closes: the mean of its effect alone and its effect after all other
            remedies; NaN if there is no gap beyond chance.
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
        """The last part of the parameter's name."""
        return self.parameter.rpartition("/")[2]


def find_remedies(
    real: ImageStatistics,
    sim: ImageStatistics,
    pixels: Sequence[PixelSample],
    kept: Sequence[Pictures],
    look: CameraResponse,
    *,
    sensor: str,
    level: float = 0.95,
) -> tuple[CameraRemedy, ...]:
    """Return the changes of a camera that close the gap, colours first.

    Args:
        real: statistics of the real episodes.
        sim: statistics of the simulated episodes.
        pixels: pixel samples of all simulated episodes.
        kept: some images of some simulated episodes, one array per episode.
        look: the simulated camera.
        sensor: its name, used in parameter names.
        level: confidence level of the intervals.
    """
    tone = ToneProblem(real, sim, pixels, look, level=level).select_parameters()
    found = [
        DetailFit(quantity=name, value=float(v), low=float(low), high=float(high))
        for name, v, low, high in zip(tone.names, tone.values, tone.low, tone.high, strict=True)
    ]
    coloured = look.with_values(**{row.quantity: row.value for row in found})
    blur = fit_blur(real.edge, kept, coloured, source=look, level=level)
    sharp = coloured
    if blur is not None and abs(blur.value - look.blur) > 1e-6:
        found.append(blur)
        sharp = coloured.with_values(blur=blur.value)
    noise = fit_noise(real.noise, kept, sharp, source=look, level=level)
    found += [row for row in noise if not row.low <= look.value(row.quantity) <= row.high]
    return tuple(_build_remedy(row, look, sensor) for row in found)


def apply_remedies(look: CameraResponse, remedies: Sequence[CameraRemedy]) -> CameraResponse:
    """Return the camera with the values of the remedies."""
    return look.with_values(**{remedy.quantity: remedy.value for remedy in remedies})


def compute_statistics(pictures: Sequence[Pictures], *, seed: int = 0) -> ImageStatistics:
    """Return the statistics of episodes whose images are in memory."""
    return ImageStatistics.join_episodes(
        compute_image_statistics(part, sample_pixels(part, seed=seed + i)) for i, part in enumerate(pictures)
    )


def redevelop_episodes(kept: Sequence[Pictures], old: CameraResponse, new: CameraResponse) -> list[Pictures]:
    """Return images of episodes as a camera with other values would have delivered them."""
    return [redevelop_images(part, old, new, seed=i) for i, part in enumerate(kept)]


def _build_remedy(row: DetailFit, look: CameraResponse, sensor: str) -> CameraRemedy:
    low, high = BOUNDS[row.quantity]
    value, *ends = (float(np.clip(number, low, high)) for number in (row.value, row.low, row.high))
    return CameraRemedy(
        parameter=f"sensor/{sensor}/{row.quantity}",
        now=look.value(row.quantity),
        value=value,
        low=ends[0],
        high=ends[1],
        unit="" if UNITS[row.quantity] == "1" else UNITS[row.quantity],
    )
