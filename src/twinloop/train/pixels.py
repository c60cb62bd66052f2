"""Change simulated images so that their pixel statistics match real ones; real images stay unchanged.

All methods work on the stored RGB values, 0 to 255, as the policy reads them, not in linear light. Statistics that are
equal here are therefore also equal at the network's input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor  # pyright: ignore[reportMissingImports]

from twinloop.core.contract import IMAGES
from twinloop.core.errors import InputError
from twinloop.core.seeds import generator
from twinloop.train.additions import SOURCE
from twinloop.train.config import PixelsConfig
from twinloop.train.data import Ints
from twinloop.train.preparation import TrainingSetup
from twinloop.train.samples import open_caches

_EPISODES = 32  # most episodes of a kind that are measured: each is decoded completely


class PixelMethod(Protocol):
    """A method that changes images ``(n, t, h, w, 3)``, float32, 0 to 255, to resemble the target images."""

    def __call__(self, pictures: Tensor) -> Tensor:
        """Return the changed images, not yet clipped or rounded."""
        ...


@dataclass(frozen=True, kw_only=True)
class MomentMatching:
    """Shift and scale of each channel that map the simulated mean and deviation, ``(3,)`` each, to the real ones.

    This is the channelwise part of Reinhard et al., "Color transfer between images", 2001. The statistics are computed
    over all images together, so differences between simulated images, such as lighting, remain.
    """

    sim: tuple[Tensor, Tensor]
    real: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, real: Tensor, sim: Tensor) -> MomentMatching:
        """Measure the statistics on images ``(…, 3)``."""
        return cls(sim=_compute_moments(sim), real=_compute_moments(real))

    def __call__(self, pictures: Tensor) -> Tensor:
        """Return the changed images; see `PixelMethod`."""
        (mean, deviation), (wanted, spread) = self.sim, self.real
        return (pictures - mean.to(pictures)) / deviation.to(pictures) * spread.to(pictures) + wanted.to(pictures)


@dataclass(frozen=True, kw_only=True)
class FourierAdaptation:
    """Replacement of low-frequency amplitudes by those of a randomly drawn real image; phases stay unchanged.

    Source: Yang & Soatto, "FDA: Fourier domain adaptation for semantic segmentation", CVPR 2020. A frequency is low if
    it has fewer than ``beta`` · min(h, w) periods in both directions. ``low`` ``(h, w // 2 + 1)`` marks the m low
    entries of a spectrum; ``amplitudes`` ``(K, 3, m)`` are those of the real images. Torch's generator, which the
    training loop reseeds at every step, chooses the real image for each sample.
    """

    amplitudes: Tensor
    low: Tensor

    @classmethod
    def of(cls, real: Tensor, beta: float) -> FourierAdaptation:
        """Measure the amplitudes of real images ``(K, h, w, 3)``."""
        height, width = real.shape[1:3]
        most = beta * min(height, width)
        rows, columns = torch.fft.fftfreq(height) * height, torch.fft.rfftfreq(width) * width
        low = (rows.abs() < most)[:, None] & (columns.abs() < most)
        found = [torch.fft.rfft2(one.to(torch.float32).movedim(-1, 0))[:, low].abs() for one in real]
        return cls(amplitudes=torch.stack(found), low=low)

    def __call__(self, pictures: Tensor) -> Tensor:
        """Return the changed images; see `PixelMethod`."""
        spectrum, low = torch.fft.rfft2(pictures.movedim(-1, 2)), self.low.to(pictures.device)
        drawn = self.amplitudes[torch.randint(len(self.amplitudes), (len(pictures),))].to(pictures.device)
        before = spectrum[..., low]
        spectrum[..., low] = torch.polar(drawn[:, None].expand(before.shape), before.angle())
        return torch.fft.irfft2(spectrum, s=pictures.shape[2:4]).movedim(2, -1)


def make_pixel_transform(
    prepared: TrainingSetup, config: PixelsConfig
) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    """Return the batch transform of a configuration, with statistics of training images drawn with the run's seed.

    Raises:
        InputError: the policy uses no images, or real or simulated images are missing.
    """
    data = prepared.data
    if not data.contract.cameras:
        raise InputError("pixels changes images, but the policy uses none. Name cameras with --inputs.")
    simulated = torch.tensor([not source.real for source in data.sources])
    frames = {kind: _choose_frames(prepared, config.pictures, real=kind == "real") for kind in ("real", "sim")}
    methods: dict[str, PixelMethod] = {}
    for camera, cache in open_caches(data).items():
        real, sim = (torch.from_numpy(cache.read(frames[kind])) for kind in ("real", "sim"))
        methods[camera] = (
            MomentMatching.of(real, sim) if config.method == "moments" else FourierAdaptation.of(real, config.beta)
        )
    return make_source_transform(methods, simulated)


def make_source_transform(
    methods: Mapping[str, PixelMethod], simulated: Tensor
) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    """Return a transform that applies each camera's method to sources where ``simulated`` ``(S,)`` is true."""

    def run(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        rows = simulated.to(batch[SOURCE].device)[batch[SOURCE]]
        made = dict(batch)
        for camera, method in methods.items():
            pictures = batch[IMAGES + camera].clone()
            if rows.any():
                pictures[rows] = method(pictures[rows].to(torch.float32)).round().clamp(0, 255).to(torch.uint8)
            made[IMAGES + camera] = pictures
        return made

    return run


def _compute_moments(pictures: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and deviation per channel; the deviation of a constant channel is set to one grey level."""
    mean, square = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for picture in pictures:  # one at a time, because all images in float64 need gigabytes
        rows = picture.to(torch.float64).reshape(-1, 3)
        mean += rows.mean(dim=0) / len(pictures)
        square += rows.square().mean(dim=0) / len(pictures)
    deviation = (square - mean.square()).clamp(min=0).sqrt()
    return mean, torch.where(deviation > 1e-3, deviation, 1.0)


def _choose_frames(prepared: TrainingSetup, count: int, *, real: bool) -> Ints:
    """Choose training frames of one kind, spread over at most `_EPISODES` episodes."""
    data = prepared.data
    mine = np.array(
        [place for place in prepared.training if data.sources[data.source_of[place]].real == real], dtype=int
    )
    name = "real" if real else "simulated"
    if not len(mine):
        raise InputError(
            f"pixels needs real and simulated images, but there are no {name} training images. Add a source."
        )
    chance = generator(prepared.config.seed, f"train/pixels/{name}")
    chosen = chance.permutation(mine)[:_EPISODES]
    each = -(-count // len(chosen))
    return np.concatenate([chance.integers(data.first[e], data.last[e] + 1, each) for e in chosen])[:count]
