"""Compare image statistics with intervals, and measure how much of the gap a change of camera parameters closes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from twinloop.core.plain import JsonRecord
from twinloop.dataset.media.images import Images
from twinloop.encoders.images import ImageEncoder
from twinloop.gap.vision.camera_remedy import CameraRemedy, apply_remedies, compute_statistics, redevelop_episodes
from twinloop.gap.vision.develop import CameraResponse
from twinloop.gap.vision.image_statistics import CHROMA_QUANTILES, ImageStatistics
from twinloop.gap.vision.image_summary import ImageSide
from twinloop.stats import Interval, KernelDistance, holm, mmd, welch_test

Array = NDArray[np.float64]
_STATISTICS = {  # unit and meaning by name
    "red": ("of 255", "mean of the red channel"),
    "green": ("of 255", "mean of the green channel"),
    "blue": ("of 255", "mean of the blue channel"),
    "contrast": ("of 255", "standard deviation of luma within an image"),
    "red to green": ("", "ratio of mean linear light, which white balance sets"),
    "blue to green": ("", "ratio of mean linear light, which white balance sets"),
    "colourfulness": ("of 255", "median difference between the largest and the smallest of the three colours"),
    "corner light": ("", "linear light in the outermost fifth of the image, divided by that in the innermost"),
    "edge width": (
        "px",
        "standard deviation of the spread of the sharpest edges; a lens's MTF50 is 0.187 / width per pixel",
    ),
    "spectral slope": ("", "slope of log power over log spatial frequency; closer to 0 is sharper or noisier"),
    "noise": ("of 255", "standard deviation in flat areas of the green channel, over levels of brightness"),
}
MEANINGS = {name: meaning for name, (_, meaning) in _STATISTICS.items()}


@dataclass(frozen=True, kw_only=True)
class StatisticDifference(JsonRecord):
    """Difference of one image statistic between real and simulated episodes.

    Attributes:
        name: Name of the statistic.
        unit: Its unit.
        real: Mean over real episodes.
        sim: Mean over simulated episodes.
        difference: Real minus simulated, with interval; NaN if fewer than two episodes of a set have the statistic.
        p_value: p-value of no difference, adjusted over all statistics (Holm); NaN if the interval is NaN.
        remedied: Real minus simulated after all proposed changes of camera parameters (remedies) are applied; NaN if
            not computed.
    """

    name: str
    unit: str
    real: float
    sim: float
    difference: Interval
    p_value: float
    remedied: float = math.nan


@dataclass(frozen=True, kw_only=True)
class ImageMetrics:
    """Reported image statistics of episodes.

    Attributes:
        values: Shape ``(nepisode, nstatistic)``; NaN if an episode does not have the statistic.
    """

    values: Array

    @property
    def mean(self) -> Array:
        """Means over episodes, shape ``(nstatistic,)``."""
        there = np.isfinite(self.values)
        sums = np.where(there, self.values, 0.0).sum(axis=0)
        return np.where(there.any(axis=0), sums / np.maximum(there.sum(axis=0), 1), np.nan)


def compute_image_metrics(statistics: ImageStatistics) -> ImageMetrics:
    """Compute the reported statistics of each episode, such as mean red, contrast and noise.

    The columns have the order of `MEANINGS`, which describes the statistics, and of the result of `compare_statistics`.
    """
    middle = int(np.searchsorted(CHROMA_QUANTILES, 0.5))
    there = np.isfinite(statistics.noise)
    noise = np.where(there, statistics.noise, 0.0).sum(axis=1) / np.maximum(there.sum(axis=1), 1)
    noise = np.where(there.any(axis=1), np.sqrt(noise), np.nan)
    columns = [
        *statistics.means.T,
        statistics.contrast,
        *statistics.balance.T,
        255.0 * statistics.chroma[:, middle],
        statistics.rings[:, -1] / np.maximum(statistics.rings[:, 0], 1e-6),
        statistics.edge,
        statistics.slope,
        noise,
    ]
    return ImageMetrics(values=np.stack(columns, axis=1))


def compare_statistics(
    real: ImageStatistics, sim: ImageStatistics, *, level: float = 0.95
) -> tuple[StatisticDifference, ...]:
    """Compare every image statistic by Welch's test over episodes; p-values are adjusted over all statistics (Holm).

    Args:
        real: Statistics of the real episodes.
        sim: Statistics of the simulated episodes.
        level: Confidence level of the intervals.
    """
    sides = compute_image_metrics(real), compute_image_metrics(sim)
    rows, p_values = [], []
    for column, (name, (unit, _)) in enumerate(_STATISTICS.items()):
        one, two = (side.values[np.isfinite(side.values[:, column]), column] for side in sides)
        if min(len(one), len(two)) < 2:
            why = f"{len(one)} real and {len(two)} simulated episodes have it; an interval needs two of each"
            interval, p_value = Interval.of(math.nan, math.nan, math.nan, level=level, method=why), math.nan
        else:
            test = welch_test(one, two, level=level)
            interval, p_value = test.difference, float(test.p_value)
        rows.append((name, unit, interval))
        p_values.append(p_value)
    known = np.isfinite(p_values)
    corrected = np.full(len(rows), np.nan)
    corrected[known] = holm(np.array(p_values)[known])
    return tuple(
        StatisticDifference(
            name=name, unit=unit, real=float(sides[0].mean[i]), sim=float(sides[1].mean[i]), difference=interval,
            p_value=float(corrected[i]),
        )
        for i, (name, unit, interval) in enumerate(rows)
    )  # fmt: skip


_LEAST = 0.02  # part of MMD² that a remedy must close to be reported if it closes no statistic
_ALPHA = 0.05  # significance level of the statistics that a remedy may close


class RemedyJudge:
    """Evaluation of proposed camera values: how much of the gap between real and simulated images each of them closes.

    Args:
        real: Summary of the real images.
        sim: Summary of the simulated images.
        encoder: Encoder of both sets of embeddings.
        camera: The simulated camera.
        distance: MMD² of both sets of embeddings; its kernel width is used again.
        differences: Differences of all image statistics.
    """

    def __init__(
        self,
        real: ImageSide,
        sim: ImageSide,
        encoder: ImageEncoder,
        camera: CameraResponse,
        distance: KernelDistance,
        differences: Sequence[StatisticDifference],
    ) -> None:
        self._real, self._sim, self._encoder, self._camera = real, sim, encoder, camera
        self._scale = distance.scale
        self._names = [row.name for row in differences]
        self._differs = np.array([row.p_value <= _ALPHA for row in differences])
        self._target = compute_image_metrics(real.statistics).mean
        self._is_significant = distance.p_value <= 1.0 - distance.distance.level
        self._effects: dict[tuple[str, ...], tuple[float, Array]] = {}
        self._base = self._measure_effect([])

    def rank_remedies(self, remedies: Sequence[CameraRemedy]) -> tuple[CameraRemedy, ...]:
        """Return the remedies with their effects, sorted by their share of MMD², excluding those without effect."""
        judged = [self._evaluate_remedy(remedy, remedies) for remedy in remedies]
        kept = [row for row in judged if row.closes or row.share >= _LEAST]
        if len(kept) < len(judged):
            return self.rank_remedies(kept)
        return tuple(sorted(kept, key=lambda row: (-row.share if math.isfinite(row.share) else 0.0, -len(row.closes))))

    def remaining_share(self, remedies: Sequence[CameraRemedy]) -> float:
        """Return the part of the image gap that remains after all proposed changes of camera parameters (remedies).

        The gap is the MMD² (squared maximum mean discrepancy) between the embeddings of real and simulated images. The
        result is NaN if the gap is not significant or if there is no remedy.
        """
        return self._measure_effect(remedies)[0] / self._base[0] if remedies and self._is_significant else math.nan

    def apply_to_differences(
        self, differences: Sequence[StatisticDifference], remedies: Sequence[CameraRemedy]
    ) -> tuple[StatisticDifference, ...]:
        """Return the differences with their attribute ``remedied`` set to the value after all remedies.

        The value is real minus simulated statistic. Remedies are proposed changes of camera parameters.

        Args:
            differences: Differences of all image statistics, in the order of `compare_statistics`.
            remedies: The remedies, which are applied together.
        """
        _, left = self._measure_effect(remedies)
        return tuple(replace(row, remedied=float(value)) for row, value in zip(differences, left, strict=True))

    def remedied_images(self, remedies: Sequence[CameraRemedy]) -> Sequence[Images]:
        """Return the sampled simulated images, recomputed with the remedies, one array per episode.

        Remedies are proposed changes of camera parameters.
        """
        kept = self._sim.sampled_images
        return redevelop_episodes(kept, self._camera, apply_remedies(self._camera, remedies)) if remedies else kept

    def _evaluate_remedy(self, remedy: CameraRemedy, remedies: Sequence[CameraRemedy]) -> CameraRemedy:
        """Return a remedy (proposed change of a camera parameter) with its effect on the image gap.

        ``closes`` becomes the names of the image statistics whose difference it more than halves. ``share`` becomes the
        part of the gap (MMD²) that it removes: the mean of its effect alone and its effect after all other remedies (an
        approximate Shapley value).

        Args:
            remedy: Remedy to evaluate.
            remedies: All remedies, including this one.
        """
        others = [other for other in remedies if other is not remedy]
        (alone, one), (without, two), (together, three) = (
            self._measure_effect(chosen) for chosen in ([remedy], others, remedies)
        )
        before = self._base[1]
        closes = (np.abs(one) < 0.5 * np.abs(before)) | (
            (np.abs(three) < 0.5 * np.abs(two)) & (np.abs(two) > 0.25 * np.abs(before))
        )
        names = tuple(name for name, yes in zip(self._names, closes & self._differs, strict=True) if yes)
        share = (
            ((self._base[0] - alone) + (without - together)) / (2.0 * self._base[0])
            if self._is_significant
            else math.nan
        )
        return replace(remedy, closes=names, share=share)

    def _measure_effect(self, remedies: Sequence[CameraRemedy]) -> tuple[float, Array]:
        """Return the image gap and the differences of image statistics after the remedies; results are cached.

        Remedies are proposed changes of camera parameters. The gap is the MMD² (squared maximum mean discrepancy)
        between the embeddings of real and simulated images; NaN if the original gap is not significant. The differences
        are real minus simulated, shape ``(nstatistic,)``.
        """
        key = tuple(sorted(remedy.parameter for remedy in remedies))
        if key not in self._effects:
            images = self.remedied_images(remedies)
            metrics = self._target - compute_image_metrics(compute_statistics(images)).mean
            self._effects[key] = (self._compute_mmd(images) if self._is_significant else math.nan, metrics)
        return self._effects[key]

    def _compute_mmd(self, images: Sequence[Images]) -> float:
        rows = [self._encoder.encode(part) for part in images]
        clusters = np.repeat(np.arange(len(rows)), [len(part) for part in rows])
        found = mmd(
            self._real.embedding.values,
            np.concatenate(rows),
            real_clusters=self._real.embedding.clusters,
            sim_clusters=clusters,
            bandwidth=self._scale,
            draws=0,
        )
        return float(found.distance.estimate)
