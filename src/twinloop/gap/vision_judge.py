"""What a change of the camera does to the gap: kept pictures are developed again, encoded and measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from twinloop.dataset.media.pictures import Pictures
from twinloop.encoders.pictures import Encoder
from twinloop.gap.camera_remedy import Remedy, developed_again, remedied, statistics_of
from twinloop.gap.camera_remedy_develop import Look
from twinloop.gap.vision_difference import Difference, figures_of
from twinloop.gap.vision_side import Side
from twinloop.stats import KernelDistance, mmd

Array = NDArray[np.float64]
_LEAST = 0.02  # part of MMD² that a remedy which closes no statistic must close to be named
_ALPHA = 0.05  # of a statistic's difference, to count as one that can be closed


class RemedyJudge:
    """Judges remedies of the simulated camera.

    Args:
        real: the real side.
        sim: the simulated one.
        encoder: what made both embeddings.
        look: of the simulated camera.
        distance: MMD² of both embeddings; its kernel is used again.
        differences: of all statistics.
    """

    def __init__(
        self,
        real: Side,
        sim: Side,
        encoder: Encoder,
        look: Look,
        distance: KernelDistance,
        differences: Sequence[Difference],
    ) -> None:
        self._real, self._sim, self._encoder, self._look = real, sim, encoder, look
        self._scale = distance.scale
        self._names = [row.name for row in differences]
        self._differs = np.array([row.p_value <= _ALPHA for row in differences])
        self._target = figures_of(real.statistics).mean
        tells = distance.p_value <= 1.0 - distance.distance.level
        self._seen: dict[tuple[str, ...], tuple[float, Array]] = {}
        self._tells = tells
        self._base = self._effect([])

    def ranked(self, remedies: Sequence[Remedy]) -> tuple[Remedy, ...]:
        """Remedies with what they close, the largest share of MMD² first; without those that close nothing."""
        judged = [self._judged(remedy, remedies) for remedy in remedies]
        kept = [row for row in judged if row.closes or row.share >= _LEAST]
        if len(kept) < len(judged):
            return self.ranked(kept)
        return tuple(sorted(kept, key=lambda row: (-row.share if math.isfinite(row.share) else 0.0, -len(row.closes))))

    def left(self, remedies: Sequence[Remedy]) -> float:
        """Part of MMD² that remains with all remedies; NaN where there is no gap beyond chance, or no remedy."""
        return self._effect(remedies)[0] / self._base[0] if remedies and self._tells else math.nan

    def after(self, differences: Sequence[Difference], remedies: Sequence[Remedy]) -> tuple[Difference, ...]:
        """Differences with what is left of them."""
        _, left = self._effect(remedies)
        return tuple(replace(row, remedied=float(value)) for row, value in zip(differences, left, strict=True))

    def pictures(self, remedies: Sequence[Remedy]) -> Sequence[Pictures]:
        """The pictures that were kept, as the camera with remedies delivers them."""
        kept = self._sim.kept
        return developed_again(kept, self._look, remedied(self._look, remedies)) if remedies else kept

    def _judged(self, remedy: Remedy, remedies: Sequence[Remedy]) -> Remedy:
        """A remedy alone, and beside the others: the mean of both, as Shapley's value has it for two."""
        others = [other for other in remedies if other is not remedy]
        (alone, one), (without, two), (together, three) = (
            self._effect(chosen) for chosen in ([remedy], others, remedies)
        )
        before = self._base[1]
        closes = (np.abs(one) < 0.5 * np.abs(before)) | (
            (np.abs(three) < 0.5 * np.abs(two)) & (np.abs(two) > 0.25 * np.abs(before))
        )
        names = tuple(name for name, yes in zip(self._names, closes & self._differs, strict=True) if yes)
        share = ((self._base[0] - alone) + (without - together)) / (2.0 * self._base[0]) if self._tells else math.nan
        return replace(remedy, closes=names, share=share)

    def _effect(self, remedies: Sequence[Remedy]) -> tuple[float, Array]:
        """MMD² (NaN where it is not asked) and real − simulated statistics ``(f,)``."""
        key = tuple(sorted(remedy.parameter for remedy in remedies))
        if key not in self._seen:
            pictures = self.pictures(remedies)
            figures = self._target - figures_of(statistics_of(pictures)).mean
            self._seen[key] = (self._mmd(pictures) if self._tells else math.nan, figures)
        return self._seen[key]

    def _mmd(self, pictures: Sequence[Pictures]) -> float:
        rows = [self._encoder.encode(part) for part in pictures]
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
