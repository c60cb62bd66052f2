"""Simulated pictures with statistics of real ones, before the policy sees them; real pictures stay as they are.

All in the stored RGB values of the pictures, 0 to 255, as the policy reads them: neither linear light nor another
space, so that what is measured equal is what the network gets.
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
from twinloop.train.prepared import TrainingSetup
from twinloop.train.samples import open_caches

_EPISODES = 32  # of a kind whose pictures are measured: each is decoded whole


class PixelMethod(Protocol):
    """Pictures ``(n, t, h, w, 3)`` in float32, 0 to 255, made like others."""

    def __call__(self, pictures: Tensor) -> Tensor:
        """The pictures, not yet clipped or rounded."""
        ...


@dataclass(frozen=True, kw_only=True)
class MomentMatching:
    """Each channel shifted and scaled so that mean and deviation, ``(3,)`` each, go from the simulated to the real.

    The channelwise part of Reinhard et al., "Color transfer between images", 2001, with the statistics of all pictures
    together: differences between simulated pictures, such as of light, stay.
    """

    sim: tuple[Tensor, Tensor]
    real: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, real: Tensor, sim: Tensor) -> MomentMatching:
        """Measured on pictures ``(…, 3)``."""
        return cls(sim=_moments(sim), real=_moments(real))

    def __call__(self, pictures: Tensor) -> Tensor:
        """See `PixelMethod`."""
        (mean, deviation), (wanted, spread) = self.sim, self.real
        return (pictures - mean.to(pictures)) / deviation.to(pictures) * spread.to(pictures) + wanted.to(pictures)


@dataclass(frozen=True, kw_only=True)
class FourierAdaptation:
    """The amplitudes of low frequencies from a real picture drawn at random; phases and all else stay.

    Yang & Soatto, "FDA: Fourier domain adaptation for semantic segmentation", CVPR 2020. Low are those with fewer than
    ``beta`` · min(h, w) periods in either direction: the m places ``low`` ``(h, w // 2 + 1)`` of a spectrum.
    ``amplitudes`` ``(K, 3, m)`` are the real pictures'. Which picture each sample gets follows from torch's generator,
    which the loop seeds anew for every step.
    """

    amplitudes: Tensor
    low: Tensor

    @classmethod
    def of(cls, real: Tensor, beta: float) -> FourierAdaptation:
        """Measured on pictures ``(K, h, w, 3)``."""
        height, width = real.shape[1:3]
        most = beta * min(height, width)
        rows, columns = torch.fft.fftfreq(height) * height, torch.fft.rfftfreq(width) * width
        low = (rows.abs() < most)[:, None] & (columns.abs() < most)
        found = [torch.fft.rfft2(one.to(torch.float32).movedim(-1, 0))[:, low].abs() for one in real]
        return cls(amplitudes=torch.stack(found), low=low)

    def __call__(self, pictures: Tensor) -> Tensor:
        """See `PixelMethod`."""
        spectrum, low = torch.fft.rfft2(pictures.movedim(-1, 2)), self.low.to(pictures.device)
        drawn = self.amplitudes[torch.randint(len(self.amplitudes), (len(pictures),))].to(pictures.device)
        before = spectrum[..., low]
        spectrum[..., low] = torch.polar(drawn[:, None].expand(before.shape), before.angle())
        return torch.fft.irfft2(spectrum, s=pictures.shape[2:4]).movedim(2, -1)


def like_real(prepared: TrainingSetup, config: PixelsConfig) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    """The transform of batches that a configuration asks for, with statistics of training pictures, drawn by the seed.

    Raises:
        InputError: the policy sees no pictures, or one kind of them is missing.
    """
    data = prepared.data
    if not data.contract.cameras:
        raise InputError("pixels changes pictures, and the policy sees none. Name cameras with --inputs.")
    simulated = torch.tensor([not source.real for source in data.sources])
    frames = {kind: _frames(prepared, config.pictures, real=kind == "real") for kind in ("real", "sim")}
    methods: dict[str, PixelMethod] = {}
    for camera, cache in open_caches(data).items():
        real, sim = (torch.from_numpy(cache.read(frames[kind])) for kind in ("real", "sim"))
        methods[camera] = (
            MomentMatching.of(real, sim) if config.method == "moments" else FourierAdaptation.of(real, config.beta)
        )
    return changed(methods, simulated)


def changed(methods: Mapping[str, PixelMethod], simulated: Tensor) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    """A transform that applies a method for each camera to pictures of sources where ``simulated`` ``(S,)`` is true."""

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


def _moments(pictures: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation by channel; a channel that does not vary counts as varying by one grey level."""
    mean, square = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for picture in pictures:  # one at a time, because all of them in float64 are gigabytes
        rows = picture.to(torch.float64).reshape(-1, 3)
        mean += rows.mean(dim=0) / len(pictures)
        square += rows.square().mean(dim=0) / len(pictures)
    deviation = (square - mean.square()).clamp(min=0).sqrt()
    return mean, torch.where(deviation > 1e-3, deviation, 1.0)


def _frames(prepared: TrainingSetup, count: int, *, real: bool) -> Ints:
    """Training frames of one kind, spread over some of its episodes."""
    data = prepared.data
    mine = np.array(
        [place for place in prepared.training if data.sources[data.source_of[place]].real == real], dtype=int
    )
    name = "real" if real else "simulated"
    if not len(mine):
        raise InputError(
            f"pixels compares real with simulated pictures, and no {name} one is trained on. Add a source."
        )
    chance = generator(prepared.config.seed, f"train/pixels/{name}")
    chosen = chance.permutation(mine)[:_EPISODES]
    each = -(-count // len(chosen))
    return np.concatenate([chance.integers(data.first[e], data.last[e] + 1, each) for e in chosen])[:count]
