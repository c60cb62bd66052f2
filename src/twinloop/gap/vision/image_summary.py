"""Summarize the images of one side of a comparison, and find the regions where simulation differs.

Images are sampled, encoded and measured per episode and then discarded. What remains of an episode: its embeddings,
a row of statistics, features of regions, a thousand pixels, and for some episodes one or two images.

An image is divided into 6 rows of 8 regions with seven features each. A classifier is trained on the features of one
region and tested on held-out episodes (`stats.classifier_test`): a score of ½ means no difference, 1 means that every
image is classified correctly.
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
from twinloop.dataset.media.images import LEAST_EPISODES, ImageSet, Pictures, Size, sample_images
from twinloop.encoders.classical import convert_to_lab
from twinloop.encoders.images import ImageEncoder
from twinloop.gap.vision.image_statistics import ImageStatistics, PixelSample, compute_image_statistics, sample_pixels
from twinloop.stats import classifier_test, holm

_KEPT = 4e6  # pixels of kept images, 50 of 320 × 240: enough for blur and noise, and 12 MB


@dataclass(frozen=True, kw_only=True)
class ImageSide:
    """Summary of the real or of the simulated images.

    Attributes:
        label: the source and its camera.
        embedding: one row per image.
        statistics: one row per episode.
        regions: features ``(n, 48, 7)`` of every image.
        pixels: a sample of pixels per episode.
        kept: a few images of some episodes.
        names: names of the episodes.
        size: height and width of the images.
        plain: number of images that were left out because they have a single colour.
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
        """Return a JSON-compatible summary."""
        return {
            "label": self.label,
            "episodes": len(self.names),
            "pictures": len(self.embedding),
            "height": self.size[0],
            "width": self.size[1],
            "plain": self.plain,
        }


def summarize_images(
    pictures: ImageSet, encoder: ImageEncoder, *, frames: int, seed: int = 0, size: Size | None = None
) -> ImageSide:
    """Sample, encode and measure images, one episode at a time.

    Args:
        pictures: the source of the images.
        encoder: the encoder that turns images into embeddings.
        frames: largest number of images per episode.
        seed: seed of the sampling.
        size: height and width to which images are scaled; None keeps their size.

    Raises:
        InputError: too few episodes, images of several sizes, or images with a single colour only.
    """
    pictures.require_episodes()
    rows, statistics, regions, pixels, kept, names, clusters = [], [], [], [], [], [], []
    plain, budget, shape = 0, _KEPT, (0, 0)
    for number, sample in enumerate(sample_images(pictures, frames, seed=seed, size=size)):
        plain += sample.plain
        if not len(sample.pictures):
            continue
        shape = sample.pictures.shape[1:3]
        each = _count_kept_images(len(pictures), shape)
        if budget > 0:
            kept.append(sample.pictures[:: max(len(sample.pictures) // each, 1)][:each].copy())
            budget -= kept[-1].size / 3
        rows.append(encoder.encode(sample.pictures))
        regions.append(region_features(sample.pictures))
        pixels.append(sample_pixels(sample.pictures, seed=seed + number))
        statistics.append(compute_image_statistics(sample.pictures, pixels[-1]))
        clusters.append(np.full(len(sample.pictures), number))
        names.append(sample.name)
    if len(names) < LEAST_EPISODES:
        raise InputError(
            f"{pictures.name}: {plain} of the images sampled from {pictures.camera} have a single colour, and "
            f"{len(names)} episodes remain; at least {LEAST_EPISODES} are needed. Check that camera: a lens "
            "cap, a wrong camera, or a renderer without light."
        )
    label = f"{pictures.name}, {pictures.camera}"
    embedding = Embedding(
        values=np.concatenate(rows), clusters=np.concatenate(clusters), encoder=encoder.name,
        encoder_hash=encoder.hash, source=label,
    )  # fmt: skip
    return ImageSide(
        label=label, embedding=embedding, statistics=ImageStatistics.join_episodes(statistics),
        regions=np.concatenate(regions), pixels=tuple(pixels), kept=tuple(kept), names=tuple(names),
        size=(int(shape[0]), int(shape[1])), plain=plain,
    )  # fmt: skip


def _count_kept_images(episodes: int, shape: Size) -> int:
    """Return the number of images to keep per episode: at most two, so that many episodes are represented."""
    return int(np.clip(_KEPT / (episodes * shape[0] * shape[1]), 1, 2))


Array = NDArray[np.float64]
GRID = (6, 8)  # rows and columns: square regions for an aspect ratio of 4 : 3
FEATURES = ("lightness", "a*", "b*", "spread of lightness", "spread of colour", "edges", "fine detail")
_SMALL = 1e-3  # of the range of luma: detail below a quarter of an 8-bit step is rounding error


@dataclass(frozen=True, kw_only=True)
class RegionScores(JsonRecord):
    """Scores of a classifier of real and simulated images by region; the first row is at the top of the image.

    Attributes:
        auc, low, high: area under the curve on held-out episodes, ``(6, 8)``, with intervals.
        p_value: p-value of no difference, corrected for all regions (Holm), ``(6, 8)``; NaN without a test.
        apart: distance of both sides' held-out scores in their standard deviations, ``(6, 8)``; it still grows when the
            area under the curve is 1.
        by: the feature that differs most, per region.
    """

    auc: Array
    low: Array
    high: Array
    p_value: Array
    apart: Array
    by: tuple[tuple[str, ...], ...]

    @property
    def significant_regions(self) -> int:
        """Number of regions that differ beyond chance, at the 5 % level."""
        return int(np.sum(self.p_value <= 0.05))


def region_features(pictures: Pictures) -> NDArray[np.float32]:
    """Return the features of every region, ``(n, 6 · 8, 7)``, of images ``(n, h, w, 3)``."""
    rows = []
    for picture in pictures:
        lab = convert_to_lab(picture[None])[0]
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
        mean = _region_means(planes)
        spread = np.sqrt(np.maximum(mean[:, 3] - mean[:, 0] ** 2, 0.0))
        colour = np.sqrt(np.maximum(mean[:, 4] - mean[:, 1] ** 2 - mean[:, 2] ** 2, 0.0))
        rows.append(np.column_stack([mean[:, :3], spread, colour, np.log(mean[:, 5:] + _SMALL)]))
    return np.array(rows, dtype=np.float32).reshape(len(pictures), GRID[0] * GRID[1], len(FEATURES))


def classify_regions(
    real: Array,
    sim: Array,
    real_clusters: NDArray[np.int64],
    sim_clusters: NDArray[np.int64],
    *,
    draws: int = 199,
    level: float = 0.95,
    seed: int = 0,
) -> RegionScores:
    """Test every region by its features ``(n, 48, 7)`` and ``(m, 48, 7)``.

    Args:
        real: `region_features` of the real images.
        sim: `region_features` of the simulated images.
        real_clusters: episode of each real image.
        sim_clusters: episode of each simulated image.
        draws: relabellings of episodes; 0 for no test. The smallest p-value of 48 regions is 48 / (1 + draws).
        level: confidence level of the intervals.
        seed: seed of relabellings and resamples.

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
        auc=_reshape_to_grid([float(test.auc.estimate) for test in found]),
        low=_reshape_to_grid([float(test.auc.low) for test in found]),
        high=_reshape_to_grid([float(test.auc.high) for test in found]),
        p_value=_reshape_to_grid(holm(p_values) if draws else p_values),
        apart=_reshape_to_grid([float(np.sum(test.contributions.estimate)) for test in found]),
        by=tuple(map(tuple, np.reshape(words, GRID).tolist())),
    )


def _region_means(planes: NDArray[np.float32]) -> Array:
    """Return means ``(48, c)`` over the regions of ``(h, w, c)``."""
    edges = [
        np.linspace(0, side, count + 1).astype(np.intp)[:-1] for side, count in zip(planes.shape, GRID, strict=False)
    ]
    sums = np.add.reduceat(np.add.reduceat(planes.astype(np.float64), edges[0], axis=0), edges[1], axis=1)
    counts = [np.diff(np.append(edge, side)) for edge, side in zip(edges, planes.shape, strict=False)]
    return (sums / np.multiply.outer(counts[0], counts[1])[..., None]).reshape(-1, planes.shape[-1])


def _reshape_to_grid(values: Sequence[float] | Array) -> Array:
    return np.asarray(values, dtype=np.float64).reshape(GRID)
