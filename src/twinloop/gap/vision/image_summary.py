"""Summarize real or simulated images, and find the image regions in which simulation differs from reality.

Images are sampled, encoded and measured one episode at a time and then discarded. The following data of an episode are
kept: its embeddings, one row of statistics, the features of regions, about a thousand pixels, and for some episodes one
or two images.

An image is divided into 6 rows of 8 regions with seven features each. A classifier is trained on the features of one
region and tested on held-out episodes (`stats.classifier_test`). A score of 0.5 means no difference; 1 means that every
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
from twinloop.dataset.media.images import LEAST_EPISODES, Images, ImageSet, Size, sample_images
from twinloop.encoders.classical import convert_to_lab
from twinloop.encoders.images import ImageEncoder
from twinloop.gap.vision.image_statistics import ImageStatistics, PixelSample, compute_image_statistics, sample_pixels
from twinloop.stats import classifier_test, holm

_KEPT = 4e6  # pixels of kept images, 50 of 320 × 240: enough for blur and noise, and 12 MB


@dataclass(frozen=True, kw_only=True)
class ImageSide:
    """Summary of one side of a comparison: of all real or of all simulated images.

    Attributes:
        label: Source of the images and name of the camera.
        embedding: Embeddings, one row per image.
        statistics: Image statistics, one row per episode.
        regions: Features of the 48 regions of every image, shape ``(nimage, 48, 7)``. The regions form a grid of 6 rows
            and 8 columns; the features are lightness, a*, b* (CIELAB), spread of lightness and of colour, edges, and
            fine detail.
        pixels: Sampled pixels, one sample per episode.
        sampled_images: A few images of some episodes, one array per episode.
        names: Names of the episodes.
        size: Height and width of the images in px.
        plain: Number of images that were omitted because they have a single colour.
    """

    label: str
    embedding: Embedding
    statistics: ImageStatistics
    regions: NDArray[np.float32]
    pixels: tuple[PixelSample, ...]
    sampled_images: tuple[Images, ...]
    names: tuple[str, ...]
    size: Size
    plain: int

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible summary, without embeddings and images."""
        return {
            "label": self.label,
            "episodes": len(self.names),
            "images": len(self.embedding),
            "height": self.size[0],
            "width": self.size[1],
            "plain": self.plain,
        }


def summarize_images(
    images: ImageSet, encoder: ImageEncoder, *, frames: int, seed: int = 0, size: Size | None = None
) -> ImageSide:
    """Sample, encode and measure images, one episode at a time.

    Args:
        images: Source of the images.
        encoder: Encoder that computes the embeddings.
        frames: Largest number of images per episode.
        seed: Seed of the sampling.
        size: Height and width in px to which images are scaled; None keeps their size.

    Raises:
        InputError: If there are too few episodes, images have several sizes, or too many images have a single colour.
    """
    images.require_episodes()
    rows, statistics, regions, pixels, kept, names, clusters = [], [], [], [], [], [], []
    plain, budget, shape = 0, _KEPT, (0, 0)
    for number, sample in enumerate(sample_images(images, frames, seed=seed, size=size)):
        plain += sample.plain
        if not len(sample.images):
            continue
        shape = sample.images.shape[1:3]
        each = _count_kept_images(len(images), shape)
        if budget > 0:
            kept.append(sample.images[:: max(len(sample.images) // each, 1)][:each].copy())
            budget -= kept[-1].size / 3
        rows.append(encoder.encode(sample.images))
        regions.append(region_features(sample.images))
        pixels.append(sample_pixels(sample.images, seed=seed + number))
        statistics.append(compute_image_statistics(sample.images, pixels[-1]))
        clusters.append(np.full(len(sample.images), number))
        names.append(sample.name)
    if len(names) < LEAST_EPISODES:
        raise InputError(
            f"{images.name}: {plain} of the images sampled from {images.camera} have a single colour, and "
            f"{len(names)} episodes remain; at least {LEAST_EPISODES} are needed. Check that camera: a lens "
            "cap, a wrong camera, or a renderer without light."
        )
    label = f"{images.name}, {images.camera}"
    embedding = Embedding(
        values=np.concatenate(rows), clusters=np.concatenate(clusters), encoder=encoder.name,
        encoder_hash=encoder.hash, source=label,
    )  # fmt: skip
    return ImageSide(
        label=label, embedding=embedding, statistics=ImageStatistics.join_episodes(statistics),
        regions=np.concatenate(regions), pixels=tuple(pixels), sampled_images=tuple(kept), names=tuple(names),
        size=(int(shape[0]), int(shape[1])), plain=plain,
    )  # fmt: skip


def _count_kept_images(episodes: int, shape: Size) -> int:
    """Return the number of images to keep of each episode: 1 or 2, so that many episodes are represented.

    It is 2 if two images of every episode have at most 4 million pixels together, else 1.

    Args:
        episodes: Number of episodes.
        shape: Height and width of the images in px.
    """
    return int(np.clip(_KEPT / (episodes * shape[0] * shape[1]), 1, 2))


Array = NDArray[np.float64]
GRID = (6, 8)  # rows and columns: square regions for an aspect ratio of 4 : 3
FEATURES = ("lightness", "a*", "b*", "spread of lightness", "spread of colour", "edges", "fine detail")
_SMALL = 1e-3  # of the range of luma: detail below a quarter of an 8-bit step is rounding error


@dataclass(frozen=True, kw_only=True)
class RegionScores(JsonRecord):
    """Scores of classifiers that distinguish real from simulated images by one region each.

    All arrays have the shape ``(6, 8)``; the first row is at the top of the image.

    Attributes:
        auc: Area under the ROC curve on held-out episodes; 0.5 means no difference.
        low: Lower end of its interval.
        high: Upper end of its interval.
        p_value: p-value of no difference, adjusted for all regions (Holm); NaN if no test was made.
        separation: Distance between the held-out scores of real and simulated images, in their standard deviations. It
            still grows when ``auc`` is 1.
        by: Name of the feature that differs most, per region.
    """

    auc: Array
    low: Array
    high: Array
    p_value: Array
    separation: Array
    by: tuple[tuple[str, ...], ...]

    @property
    def significant_regions(self) -> int:
        """Number of regions that differ significantly, at the 5 % level."""
        return int(np.sum(self.p_value <= 0.05))


def region_features(images: Images) -> NDArray[np.float32]:
    """Compute the seven features (`FEATURES`) of each of the 48 regions of images ``(n, h, w, 3)``.

    Returns:
        Features, shape ``(n, 48, 7)``.
    """
    rows = []
    for image in images:
        lab = convert_to_lab(image[None])[0]
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
    return np.array(rows, dtype=np.float32).reshape(len(images), GRID[0] * GRID[1], len(FEATURES))


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
    """Test for every region whether a classifier can distinguish real from simulated images.

    The 48 regions form a grid of 6 rows and 8 columns over the image; each one has 7 features, such as lightness.

    Args:
        real: `region_features` of the real images, shape ``(nreal, 48, 7)``.
        sim: `region_features` of the simulated images, shape ``(nsim, 48, 7)``.
        real_clusters: Episode of each real image.
        sim_clusters: Episode of each simulated image.
        draws: Number of random relabellings of episodes; 0 for no test. The smallest p-value of 48 regions is 48 / (1 +
            draws).
        level: Confidence level of the intervals.
        seed: Seed of relabellings and resamples.

    Raises:
        InputError: If there are too few episodes for the test.
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
        separation=_reshape_to_grid([float(np.sum(test.contributions.estimate)) for test in found]),
        by=tuple(map(tuple, np.reshape(words, GRID).tolist())),
    )


def _region_means(planes: NDArray[np.float32]) -> Array:
    """Return the means over each region, shape ``(48, c)``, of c image planes with shape ``(h, w, c)``.

    The regions form a grid of 6 rows and 8 columns, in the order of rows from top left; they are of about equal size.
    """
    edges = [
        np.linspace(0, side, count + 1).astype(np.intp)[:-1] for side, count in zip(planes.shape, GRID, strict=False)
    ]
    sums = np.add.reduceat(np.add.reduceat(planes.astype(np.float64), edges[0], axis=0), edges[1], axis=1)
    counts = [np.diff(np.append(edge, side)) for edge, side in zip(edges, planes.shape, strict=False)]
    return (sums / np.multiply.outer(counts[0], counts[1])[..., None]).reshape(-1, planes.shape[-1])


def _reshape_to_grid(values: Sequence[float] | Array) -> Array:
    return np.asarray(values, dtype=np.float64).reshape(GRID)
