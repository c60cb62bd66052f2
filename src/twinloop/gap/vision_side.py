"""One side of a comparison of pictures: what stays of them.

Pictures are sampled, encoded and measured episode by episode and then forgotten: what stays of each is an embedding, a
row of statistics, features of regions, a thousand pixels, and of some episodes a picture or two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.records import Embedding
from twinloop.dataset.media.pictures import LEAST_EPISODES, Pictures, PictureSet, Size, samples
from twinloop.encoders.pictures import Encoder
from twinloop.gap.picture_statistics import PictureStatistics, PixelSample, picture_statistics, sampled_pixels
from twinloop.gap.vision_regions import region_features

_KEPT = 4e6  # pixels of pictures that stay, 50 of 320 × 240: enough for blur and noise, and 12 MB


@dataclass(frozen=True, kw_only=True)
class Side:
    """What is kept of the real or of the simulated pictures.

    Attributes:
        label: the source and its camera.
        embedding: a row per picture.
        statistics: a row per episode.
        regions: ``(n, 48, 7)`` of every picture.
        pixels: a sample of each episode.
        kept: a few pictures of some episodes.
        names: of the episodes.
        size: height and width of the pictures.
        plain: how many pictures were left out because they are one single colour.
    """

    label: str
    embedding: Embedding
    statistics: PictureStatistics
    regions: NDArray[np.float32]
    pixels: tuple[PixelSample, ...]
    kept: tuple[Pictures, ...]
    names: tuple[str, ...]
    size: Size
    plain: int

    def to_json(self) -> dict[str, Any]:
        """What is told of it in files."""
        return {
            "label": self.label,
            "episodes": len(self.names),
            "pictures": len(self.embedding),
            "height": self.size[0],
            "width": self.size[1],
            "plain": self.plain,
        }


def gather(pictures: PictureSet, encoder: Encoder, *, frames: int, seed: int = 0, size: Size | None = None) -> Side:
    """Sample, encode and measure pictures, an episode at a time.

    Args:
        pictures: where they come from.
        encoder: what turns them into numbers.
        frames: how many of each episode, at most.
        seed: of what is sampled.
        size: height and width to scale them to; None leaves them as they are.

    Raises:
        InputError: too few episodes, pictures of several sizes, or of one colour only.
    """
    pictures.require()
    rows, statistics, regions, pixels, kept, names, clusters = [], [], [], [], [], [], []
    plain, budget, shape = 0, _KEPT, (0, 0)
    for number, sample in enumerate(samples(pictures, frames, seed=seed, size=size)):
        plain += sample.plain
        if not len(sample.pictures):
            continue
        shape = sample.pictures.shape[1:3]
        each = _kept_each(len(pictures), shape)
        if budget > 0:
            kept.append(sample.pictures[:: max(len(sample.pictures) // each, 1)][:each].copy())
            budget -= kept[-1].size / 3
        rows.append(encoder.encode(sample.pictures))
        regions.append(region_features(sample.pictures))
        pixels.append(sampled_pixels(sample.pictures, seed=seed + number))
        statistics.append(picture_statistics(sample.pictures, pixels[-1]))
        clusters.append(np.full(len(sample.pictures), number))
        names.append(sample.name)
    if len(names) < LEAST_EPISODES:
        raise InputError(
            f"{pictures.name}: {plain} of the pictures sampled from {pictures.camera} are one single colour, and "
            f"{len(names)} episodes remain where at least {LEAST_EPISODES} are needed. Look at that camera: a lens "
            "cap, a wrong camera, or a renderer without light."
        )
    label = f"{pictures.name}, {pictures.camera}"
    embedding = Embedding(
        values=np.concatenate(rows), clusters=np.concatenate(clusters), encoder=encoder.name,
        encoder_hash=encoder.hash, source=label,
    )  # fmt: skip
    return Side(
        label=label, embedding=embedding, statistics=PictureStatistics.joined(statistics),
        regions=np.concatenate(regions), pixels=tuple(pixels), kept=tuple(kept), names=tuple(names),
        size=(int(shape[0]), int(shape[1])), plain=plain,
    )  # fmt: skip


def _kept_each(episodes: int, shape: Size) -> int:
    """Pictures to keep of each episode: two at most, so that different episodes are kept before many of one."""
    return int(np.clip(_KEPT / (episodes * shape[0] * shape[1]), 1, 2))
