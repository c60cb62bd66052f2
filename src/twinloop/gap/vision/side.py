"""Keep what one side of a comparison of pictures needs, and find the regions that give simulation away.

Pictures are sampled, encoded and measured episode by episode and then forgotten: what stays of each is an embedding, a
row of statistics, features of regions, a thousand pixels, and of some episodes a picture or two.

A picture is cut into 6 rows of 8 regions. Each has seven numbers, and a classifier that sees those alone is judged on
episodes that it has not seen (`stats.classifier_test`): ½ says that the region tells nothing, 1 that it tells all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.plain import JsonRecord
from twinloop.core.records import Embedding
from twinloop.dataset.media.pictures import LEAST_EPISODES, ImageSet, Pictures, Size, samples
from twinloop.encoders.classical import lab_of
from twinloop.encoders.pictures import ImageEncoder
from twinloop.gap.vision.picture_statistics import ImageStatistics, PixelSample, picture_statistics, sampled_pixels
from twinloop.stats import classifier_test, holm

_KEPT = 4e6  # pixels of pictures that stay, 50 of 320 × 240: enough for blur and noise, and 12 MB


@dataclass(frozen=True, kw_only=True)
class ImageSide:
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
    statistics: ImageStatistics
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


def gather(
    pictures: ImageSet, encoder: ImageEncoder, *, frames: int, seed: int = 0, size: Size | None = None
) -> ImageSide:
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
    return ImageSide(
        label=label, embedding=embedding, statistics=ImageStatistics.joined(statistics),
        regions=np.concatenate(regions), pixels=tuple(pixels), kept=tuple(kept), names=tuple(names),
        size=(int(shape[0]), int(shape[1])), plain=plain,
    )  # fmt: skip


def _kept_each(episodes: int, shape: Size) -> int:
    """Pictures to keep of each episode: two at most, so that different episodes are kept before many of one."""
    return int(np.clip(_KEPT / (episodes * shape[0] * shape[1]), 1, 2))


Array = NDArray[np.float64]
GRID = (6, 8)  # rows and columns: squares of pictures in 4 : 3
FEATURES = ("lightness", "a*", "b*", "spread of lightness", "spread of colour", "edges", "fine detail")
_SMALL = 1e-3  # of the range of luma: detail below a quarter of an 8-bit step is rounding


@dataclass(frozen=True, kw_only=True)
class RegionScores(JsonRecord):
    """How well each region alone tells real from simulated, first row at the top.

    Attributes:
        auc, low, high: area under the curve of held-out episodes ``(6, 8)`` with intervals.
        p_value: that there is nothing to tell, corrected for all regions (Holm), ``(6, 8)``; NaN without a test.
        apart: distance of both sides' held-out scores in standard deviations of these, which goes on where the area
            under the curve is 1, ``(6, 8)``.
        by: the feature that tells most, by region.
    """

    auc: Array
    low: Array
    high: Array
    p_value: Array
    apart: Array
    by: tuple[tuple[str, ...], ...]

    @property
    def telling(self) -> int:
        """How many regions tell beyond chance, at 5 %."""
        return int(np.sum(self.p_value <= 0.05))


def region_features(pictures: Pictures) -> NDArray[np.float32]:
    """Numbers of every region ``(n, 6 · 8, 7)`` of pictures ``(n, h, w, 3)``."""
    rows = []
    for picture in pictures:
        lab = lab_of(picture[None])[0]
        light = lab[..., 0] / 100.0
        down, across = np.gradient(light)
        fine = np.zeros_like(light)
        fine[1:-1, 1:-1] = np.abs(
            4 * light[1:-1, 1:-1] - light[:-2, 1:-1] - light[2:, 1:-1] - light[1:-1, :-2] - light[1:-1, 2:]
        )
        chroma2 = lab[..., 1] ** 2 + lab[..., 2] ** 2
        planes = np.concatenate(
            [lab, np.stack([lab[..., 0] ** 2, chroma2, np.hypot(down, across), fine], axis=-1)], axis=-1
        )
        mean = _means(planes)
        spread = np.sqrt(np.maximum(mean[:, 3] - mean[:, 0] ** 2, 0.0))
        colour = np.sqrt(np.maximum(mean[:, 4] - mean[:, 1] ** 2 - mean[:, 2] ** 2, 0.0))
        rows.append(np.column_stack([mean[:, :3], spread, colour, np.log(mean[:, 5:] + _SMALL)]))
    return np.array(rows, dtype=np.float32).reshape(len(pictures), GRID[0] * GRID[1], len(FEATURES))


def tell_regions(
    real: Array,
    sim: Array,
    real_clusters: NDArray[np.int64],
    sim_clusters: NDArray[np.int64],
    *,
    draws: int = 199,
    level: float = 0.95,
    seed: int = 0,
) -> RegionScores:
    """Judge every region by its features ``(n, 48, 7)`` and ``(m, 48, 7)``.

    Args:
        real: `region_features` of real pictures.
        sim: of simulated ones.
        real_clusters: episode of each real picture.
        sim_clusters: of each simulated one.
        draws: relabellings of episodes; 0 for no test. The smallest p-value of 48 regions is 48 / (1 + draws).
        level: of the intervals.
        seed: of relabellings and resamples.

    Raises:
        InputError: too few episodes for the test.
    """
    found = [
        classifier_test(
            real[:, region], sim[:, region], real_clusters=real_clusters, sim_clusters=sim_clusters, columns=FEATURES,
            level=level, draws=draws, resamples=200, seed=seed,
        )
        for region in range(real.shape[1])
    ]  # fmt: skip
    p_values = np.array([test.p_value for test in found])
    words = [FEATURES[int(np.argmax(test.contributions.estimate))] for test in found]
    return RegionScores(
        auc=_grid([float(test.auc.estimate) for test in found]),
        low=_grid([float(test.auc.low) for test in found]),
        high=_grid([float(test.auc.high) for test in found]),
        p_value=_grid(holm(p_values) if draws else p_values),
        apart=_grid([float(np.sum(test.contributions.estimate)) for test in found]),
        by=tuple(map(tuple, np.reshape(words, GRID).tolist())),
    )


def _means(planes: NDArray[np.float32]) -> Array:
    """Means ``(48, c)`` over regions of ``(h, w, c)``."""
    edges = [
        np.linspace(0, side, count + 1).astype(np.intp)[:-1] for side, count in zip(planes.shape, GRID, strict=False)
    ]
    sums = np.add.reduceat(np.add.reduceat(planes.astype(np.float64), edges[0], axis=0), edges[1], axis=1)
    counts = [np.diff(np.append(edge, side)) for edge, side in zip(edges, planes.shape, strict=False)]
    return (sums / np.multiply.outer(counts[0], counts[1])[..., None]).reshape(-1, planes.shape[-1])


def _grid(values: Sequence[float] | Array) -> Array:
    return np.asarray(values, dtype=np.float64).reshape(GRID)
