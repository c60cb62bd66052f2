"""Which regions of a picture give away that it is simulated: a classifier of every region's own features.

A picture is cut into 6 rows of 8 regions. Each has seven numbers, and a classifier that sees those alone is judged on
episodes that it has not seen (`stats.classifier_test`): ½ says that the region tells nothing, 1 that it tells all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.dataset.media.pictures import Pictures
from twinloop.encoders.classical import lab_of
from twinloop.stats import classifier_test, holm

Array = NDArray[np.float64]
GRID = (6, 8)  # rows and columns: squares of pictures in 4 : 3
FEATURES = ("lightness", "a*", "b*", "spread of lightness", "spread of colour", "edges", "fine detail")
_SMALL = 1e-3  # of the range of luma: detail below a quarter of an 8-bit step is rounding


@dataclass(frozen=True, kw_only=True)
class Regions:
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

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        return {
            **{k: getattr(self, k).tolist() for k in ("auc", "low", "high", "p_value", "apart")},
            "by": [*map(list, self.by)],
        }


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
) -> Regions:
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
    return Regions(
        auc=_grid([float(test.auc.estimate) for test in found]),
        low=_grid([float(test.auc.low) for test in found]),
        high=_grid([float(test.auc.high) for test in found]),
        p_value=_grid(holm(p_values) if draws else p_values),
        apart=_grid([float(np.sum(test.contributions.estimate)) for test in found]),
        by=_rows([FEATURES[int(np.argmax(test.contributions.estimate))] for test in found]),
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


def _rows(words: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(words[row * GRID[1] : (row + 1) * GRID[1]]) for row in range(GRID[0]))
