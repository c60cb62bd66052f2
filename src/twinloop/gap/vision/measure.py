"""Measure the gap between real and simulated images, per image region, and the camera parameters that reduce it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.headline import HeadlineMetric
from twinloop.core.records import require_same_encoder
from twinloop.dataset.media.images import Images
from twinloop.encoders.images import ImageEncoder
from twinloop.gap.vision.camera_remedy import CameraRemedy, find_remedies
from twinloop.gap.vision.develop import CameraResponse
from twinloop.gap.vision.difference import MEANINGS, RemedyJudge, StatisticDifference, compare_statistics
from twinloop.gap.vision.image_summary import ImageSide, RegionScores, classify_regions, region_features
from twinloop.stats import (
    ClassifierTest,
    KernelDistance,
    NeighbourMetrics,
    classifier_test,
    kid,
    mmd,
    precision_recall_density_coverage,
)

_REGION_DRAWS = 999  # with them the smallest corrected p-value of 48 regions is 0.048


@dataclass(frozen=True, kw_only=True)
class VisionGap:
    """Gap between real and simulated images.

    Attributes:
        encoder: Name of the image encoder.
        encoder_hash: Hash of everything that determines the embeddings.
        dimension: Number of values of an embedding.
        real: Summary of the real images.
        sim: Summary of the simulated images.
        mmd: Squared maximum mean discrepancy (MMD²) of the embeddings.
        kid: Kernel Inception distance of the embeddings.
        neighbours: Precision, recall, density and coverage of the embeddings.
        classifier: Test with a classifier of the embeddings.
        differences: Every image statistic, before and after all remedies (proposed changes of camera parameters).
        remedies: Proposed camera parameters, the most effective first.
        remaining: Part of MMD² that remains after all remedies, measured on simulated images that are recomputed with
            the proposed parameters; NaN if there is no significant gap or no remedy.
        regions: Scores by image region.
        regions_left: Scores by image region after all remedies; None if there is no remedy.
    """

    encoder: str
    encoder_hash: str
    dimension: int
    real: ImageSide
    sim: ImageSide
    mmd: KernelDistance
    kid: KernelDistance
    neighbours: NeighbourMetrics
    classifier: ClassifierTest
    differences: tuple[StatisticDifference, ...]
    remedies: tuple[CameraRemedy, ...]
    remaining: float
    regions: RegionScores
    regions_left: RegionScores | None

    def headline(self) -> list[HeadlineMetric]:
        """Return the headline metrics: distances, scores of the classifier, and differences of all image statistics."""
        what = f"of {self.encoder} embeddings, {len(self.real.names)} real and {len(self.sim.names)} simulated episodes"
        rows = [
            self.mmd.distance.headline("mmd", meaning=f"squared maximum mean discrepancy {what}"),
            self.kid.distance.headline("kid", meaning=f"kernel Inception distance {what}"),
            self.classifier.auc.headline(
                "auc", meaning=f"area under the curve on held-out images, ½ means no difference, {what}"
            ),
            self.classifier.accuracy.headline(
                "accuracy", meaning=f"part of held-out images that are classified correctly, {what}"
            ),
        ]
        rows += [
            getattr(self.neighbours, name).headline(name, better="higher", meaning=f"{name} {what}")
            for name in ("precision", "recall", "density", "coverage")
        ]
        rows += [
            row.difference.headline(
                f"difference/{row.name.replace(' ', '_')}",
                unit=row.unit,
                meaning=f"{MEANINGS[row.name]}; real − simulated",
            )
            for row in self.differences
        ]
        return rows

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        parts = ("mmd", "kid", "neighbours", "classifier", "regions", "real", "sim")
        return {
            "encoder": {"name": self.encoder, "hash": self.encoder_hash, "dimension": self.dimension},
            **{name: getattr(self, name).to_json() for name in parts},
            "differences": [row.to_json() for row in self.differences],
            "remedies": [row.to_json() for row in self.remedies],
            "remaining": self.remaining,
            "regions_left": None if self.regions_left is None else self.regions_left.to_json(),
        }


def measure_vision(
    real: ImageSide,
    sim: ImageSide,
    encoder: ImageEncoder,
    *,
    camera: CameraResponse | None = None,
    sensor: str = "camera",
    draws: int = 4999,
    level: float = 0.95,
    seed: int = 0,
) -> VisionGap:
    """Measure the gap between real and simulated images that were encoded by the same encoder.

    Args:
        real: Summary of the real images.
        sim: Summary of the simulated images.
        encoder: The encoder with which `summarize_images` was called for both.
        camera: The camera of the simulated images; an ideal camera by default.
        sensor: Name of the camera in the twin, used in parameter names.
        draws: Number of random relabellings of episodes for each test.
        level: Confidence level of the intervals.
        seed: Seed of relabellings and resamples.

    Raises:
        InputError: If the encoders differ, the image sizes differ, or there are too few episodes for the tests.
    """
    _require_comparable(real, sim)
    sides = {
        "real_clusters": real.embedding.clusters, "sim_clusters": sim.embedding.clusters, "level": level, "seed": seed,
    }  # fmt: skip
    rows = real.embedding.values, sim.embedding.values
    distance = mmd(*rows, **sides, draws=draws)
    camera = camera or CameraResponse()
    found = find_remedies(
        real.statistics, sim.statistics, sim.pixels, sim.sampled_images, camera, sensor=sensor, level=level
    )
    differences = compare_statistics(real.statistics, sim.statistics, level=level)
    tests = {"draws": min(draws, _REGION_DRAWS), "level": level, "seed": seed}
    judge = RemedyJudge(real, sim, encoder, camera, distance, differences)
    remedies = judge.rank_remedies(found)
    return VisionGap(
        encoder=encoder.name,
        encoder_hash=encoder.hash,
        dimension=rows[0].shape[1],
        real=real,
        sim=sim,
        mmd=distance,
        kid=kid(*rows, **sides, draws=draws),
        neighbours=precision_recall_density_coverage(*rows, **sides),
        classifier=classifier_test(*rows, **sides, draws=min(draws, 999)),
        differences=judge.apply_to_differences(differences, remedies),
        remedies=remedies,
        remaining=judge.remaining_share(remedies),
        regions=_classify_regions(real, sim.regions, sim.embedding.clusters, **tests),
        regions_left=_classify_regions(real, *_compute_features(judge.remedied_images(remedies)), **tests)
        if remedies
        else None,
    )


def _compute_features(images: Sequence[Images]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the features of the 48 regions of all images, shape ``(nimage, 48, 7)``, and each image's episode index.

    The features are those of `region_features`. ``images`` has one array of shape ``(n, h, w, 3)`` per episode.
    """
    clusters = np.repeat(np.arange(len(images)), [len(part) for part in images])
    return np.concatenate([region_features(part) for part in images]), clusters


def _classify_regions(
    real: ImageSide, sim: NDArray[np.float32], clusters: NDArray[np.int64], *, draws: int, level: float, seed: int
) -> RegionScores:
    rows = real.regions.astype(np.float64), sim.astype(np.float64)
    return classify_regions(*rows, real.embedding.clusters, clusters, draws=draws, level=level, seed=seed)


def _require_comparable(real: ImageSide, sim: ImageSide) -> None:
    require_same_encoder(real.embedding, sim.embedding)
    if real.size != sim.size:
        (h, w), (other_h, other_w) = real.size, sim.size
        raise InputError(
            f"Real images are {w}x{h} ({real.label}), simulated ones {other_w}x{other_h} ({sim.label}); sharpness "
            f"and noise of different sizes cannot be compared. Render the same size (twinloop render … --size {w}x{h}),"
            f" or scale both with --size {min(w, other_w)}x{min(h, other_h)}."
        )
