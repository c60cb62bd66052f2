"""The parameters of a simulated camera that would make its pictures the real ones, with the values that would.

First colours and shading (`camera_remedy_tone`), then edges, then noise (`camera_remedy_detail`), each on pictures that
have what was found before. What is compared are distributions: both sides must show the same scenes, on average.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from twinloop.core.plain import JsonRecord
from twinloop.dataset.media.pictures import Pictures
from twinloop.gap.vision.camera_detail import DetailFit, fit_blur, fit_noise
from twinloop.gap.vision.camera_tone import ToneProblem
from twinloop.gap.vision.develop import CameraResponse, redeveloped
from twinloop.gap.vision.picture_statistics import ImageStatistics, PixelSample, picture_statistics, sampled_pixels
from twinloop.twin.quantities.sensing import SENSING

UNITS = {quantity.quantity: quantity.unit for quantity in SENSING if quantity.device == "camera"}
BOUNDS = {quantity.quantity: (quantity.low, quantity.high) for quantity in SENSING if quantity.device == "camera"}


@dataclass(frozen=True, kw_only=True)
class CameraRemedy(JsonRecord):
    """One parameter of the twin's camera and the value that would close a part of the gap.

    Attributes:
        parameter: ``sensor/NAME/QUANTITY``.
        now: the value that the simulated pictures were made with.
        value, low, high: the value to give it, with its interval over episodes; within the parameter's bounds.
        closes: names of the statistics whose difference it more than halves, alone or beside the other remedies.
        share: part of the embedding's MMD² that it closes, the mean of alone and beside the others; NaN where there
            is no gap beyond chance.
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
    """What to change of a camera, colours first.

    Args:
        real: statistics of real episodes.
        sim: of simulated ones.
        pixels: samples of all simulated episodes.
        kept: some pictures of some simulated episodes, an array for each episode.
        look: of the simulated camera.
        sensor: its name, for those of parameters.
        level: of the intervals.
    """
    tone = ToneProblem(real, sim, pixels, look, level=level).select()
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
    return tuple(_remedy(row, look, sensor) for row in found)


def remedied(look: CameraResponse, remedies: Sequence[CameraRemedy]) -> CameraResponse:
    """The camera with the values of remedies."""
    return look.with_values(**{remedy.quantity: remedy.value for remedy in remedies})


def statistics_of(pictures: Sequence[Pictures], *, seed: int = 0) -> ImageStatistics:
    """Statistics of episodes whose pictures are at hand."""
    return ImageStatistics.joined(
        picture_statistics(part, sampled_pixels(part, seed=seed + i)) for i, part in enumerate(pictures)
    )


def developed_again(kept: Sequence[Pictures], old: CameraResponse, new: CameraResponse) -> list[Pictures]:
    """Pictures of episodes as a camera with other values would have delivered them."""
    return [redeveloped(part, old, new, seed=i) for i, part in enumerate(kept)]


def _remedy(row: DetailFit, look: CameraResponse, sensor: str) -> CameraRemedy:
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
