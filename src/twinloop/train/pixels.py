"""Change simulated images so that their pixel statistics match those of real images; real images stay unchanged.

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

_EPISODES = 32  # most real (or simulated) episodes that are measured, because each is decoded completely


class PixelMethod(Protocol):
    """Interface of an adaptation that changes simulated images in training so that they resemble real images."""

    def __call__(self, images: Tensor) -> Tensor:
        """Return the changed images, not yet clipped or rounded.

        Images have shape ``(n, t, h, w, 3)`` for n samples and t observation steps, float32, 0 to 255.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class MomentMatching:
    """Shift and scale of each colour channel that give simulated images the mean and standard deviation of real images.

    This is the channelwise part of Reinhard et al., "Color transfer between images", 2001. The statistics are computed
    over all images together, so differences between simulated images, such as lighting, remain.

    Attributes:
        sim: mean and standard deviation of simulated images, ``(3,)`` each.
        real: mean and standard deviation of real images, ``(3,)`` each.
    """

    sim: tuple[Tensor, Tensor]
    real: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, real: Tensor, sim: Tensor) -> MomentMatching:
        """Create the adaptation from the mean and standard deviation of real and of simulated images ``(…, 3)``."""
        return cls(sim=_compute_moments(sim), real=_compute_moments(real))

    def __call__(self, images: Tensor) -> Tensor:
        """Return the changed images, not yet clipped or rounded; see `PixelMethod`."""
        (mean, deviation), (wanted, spread) = self.sim, self.real
        return (images - mean.to(images)) / deviation.to(images) * spread.to(images) + wanted.to(images)


@dataclass(frozen=True, kw_only=True)
class FourierAdaptation:
    """Replacement of an image's low-frequency amplitudes by those of a random real image; phases stay unchanged.

    Source: Yang & Soatto, "FDA: Fourier domain adaptation for semantic segmentation", CVPR 2020. A frequency is low if
    it has fewer than ``beta`` · min(h, w) periods in both directions, for images of height h and width w and the
    argument ``beta`` of `of`. Torch's generator, which the training loop reseeds at every step, chooses the real image
    for each sample.

    Attributes:
        amplitudes: amplitudes of K real images at the m low frequencies of each channel, ``(K, 3, m)``.
        low: mask of the low frequencies in a spectrum of `torch.fft.rfft2`, ``(h, w // 2 + 1)``.
    """

    amplitudes: Tensor
    low: Tensor

    @classmethod
    def of(cls, real: Tensor, beta: float) -> FourierAdaptation:
        """Create the adaptation from the amplitude spectra of K real images ``(K, h, w, 3)``.

        ``beta`` is the limit of low frequencies, as a share of the image's shorter side.
        """
        height, width = real.shape[1:3]
        most = beta * min(height, width)
        rows, columns = torch.fft.fftfreq(height) * height, torch.fft.rfftfreq(width) * width
        low = (rows.abs() < most)[:, None] & (columns.abs() < most)
        found = [torch.fft.rfft2(one.to(torch.float32).movedim(-1, 0))[:, low].abs() for one in real]
        return cls(amplitudes=torch.stack(found), low=low)

    def __call__(self, images: Tensor) -> Tensor:
        """Return the images with the low-frequency amplitudes of real images, not yet clipped or rounded.

        All t images of a sample get the amplitudes of the same real image, which is chosen at random.

        Args:
            images: images of n samples, ``(n, t, h, w, 3)``, float32 from 0 to 255.
        """
        spectrum, low = torch.fft.rfft2(images.movedim(-1, 2)), self.low.to(images.device)
        drawn = self.amplitudes[torch.randint(len(self.amplitudes), (len(images),))].to(images.device)
        before = spectrum[..., low]
        spectrum[..., low] = torch.polar(drawn[:, None].expand(before.shape), before.angle())
        return torch.fft.irfft2(spectrum, s=images.shape[2:4]).movedim(2, -1)


def make_pixel_transform(
    prepared: TrainingSetup, config: PixelsConfig
) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    """Return a function that changes the simulated images of a training batch so that they resemble real images.

    The pixel statistics that it needs are computed from random training images; the run's seed determines which ones.

    Raises:
        InputError: If the policy uses no images, or real or simulated images are missing.
    """
    data = prepared.data
    if not data.contract.cameras:
        raise InputError("pixels changes images, but the policy uses none. Name cameras with --inputs.")
    simulated = torch.tensor([not source.real for source in data.sources])
    frames = {kind: _choose_frames(prepared, config.images, real=kind == "real") for kind in ("real", "sim")}
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
    """Return a function that changes the images of simulated sources in a batch and keeps those of real sources.

    Args:
        methods: adaptation that makes simulated images resemble real ones, by camera name.
        simulated: whether each of S sources is simulated, ``(S,)``.
    """

    def run(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        rows = simulated.to(batch[SOURCE].device)[batch[SOURCE]]
        made = dict(batch)
        for camera, method in methods.items():
            images = batch[IMAGES + camera].clone()
            if rows.any():
                images[rows] = method(images[rows].to(torch.float32)).round().clamp(0, 255).to(torch.uint8)
            made[IMAGES + camera] = images
        return made

    return run


def _compute_moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation per colour channel, ``(3,)`` each, of images ``(…, 3)``.

    The standard deviation of a constant channel is set to 1, one grey level.
    """
    mean, square = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for image in images:  # one at a time, because all images in float64 need gigabytes
        rows = image.to(torch.float64).reshape(-1, 3)
        mean += rows.mean(dim=0) / len(images)
        square += rows.square().mean(dim=0) / len(images)
    deviation = (square - mean.square()).clamp(min=0).sqrt()
    return mean, torch.where(deviation > 1e-3, deviation, 1.0)


def _choose_frames(prepared: TrainingSetup, count: int, *, real: bool) -> Ints:
    """Return ``count`` random training frames of real or of simulated sources, from at most 32 episodes."""
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
