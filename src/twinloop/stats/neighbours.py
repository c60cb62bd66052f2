"""Compute precision, recall, density and coverage: are simulated rows realistic, and do they cover all real behaviour?

Every row (feature vector) gets a ball whose radius is the distance to its k-th nearest neighbour. Precision is the
share of simulated rows within some real row's ball. Recall is the share of real rows within some simulated row's ball
(Kynkäänniemi et al., "Improved precision and recall metric for assessing generative models", NeurIPS 2019). Density is
the number of real balls that contain a simulated row, divided by k; single outliers do not distort it. Coverage is the
share of real balls that contain a simulated row (Naeem et al., "Reliable fidelity and diversity metrics for generative
models", ICML 2020).

Neighbours are only searched among rows of *other* episodes. The next frame of the same episode would always be near,
and such a small ball would contain no row of another episode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.plain import JsonRecord
from twinloop.stats.bootstrap import bootstrap_mean
from twinloop.stats.interval import Interval
from twinloop.stats.kernel_distance import squared_distances
from twinloop.stats.two_sample import Array, TwoSampleRows, relabel_episodes, two_samples

_BLOCK_BYTES = 64e6
_METRICS = ("precision", "recall", "density", "coverage")


@dataclass(frozen=True, kw_only=True)
class NeighbourMetrics(JsonRecord):
    """Precision, recall, density and coverage of simulated rows, with intervals.

    Every row has a ball around it. Its radius is the distance to the k-th nearest row of the same sample (real or
    simulated) in other episodes.

    Attributes:
        precision: Share of simulated rows within some real row's ball.
        recall: Share of real rows within some simulated row's ball.
        density: Mean number of real balls that contain a simulated row, divided by k.
        coverage: Share of real balls that contain a simulated row.
        k: Rank of the neighbour whose distance is the radius of a ball.
        floor: Value of each metric that is expected without a sim-to-real gap: its mean after random exchange of the
            labels real and simulated between episodes (relabelling); NaN if no relabellings were drawn.
        p_value: Share of the relabellings in which the metric is as low as observed or lower; NaN if no relabellings
            were drawn.
    """

    precision: Interval
    recall: Interval
    density: Interval
    coverage: Interval
    k: int
    floor: dict[str, float]
    p_value: dict[str, float]


def precision_recall_density_coverage(
    real: ArrayLike,
    sim: ArrayLike,
    *,
    real_clusters: ArrayLike,
    sim_clusters: ArrayLike,
    k: int = 5,
    level: float = 0.95,
    draws: int = 0,
    seed: int = 0,
) -> NeighbourMetrics:
    """Return precision, recall, density and coverage of simulated rows relative to real rows.

    The values depend on the numbers of rows and episodes, so compare only samples of equal size. Precision and density
    are means over simulated episodes, recall and coverage over real episodes. Intervals are bootstrapped over these
    episodes, while the balls (see `NeighbourMetrics`) stay the same.

    Args:
        real: Real rows (feature vectors), shape ``(n, d)``.
        sim: Simulated rows, shape ``(m, d)``.
        real_clusters: Episode number of each real row, shape ``(n,)``.
        sim_clusters: Episode number of each simulated row, shape ``(m,)``.
        k: Rank of the neighbour whose distance is the radius of a ball (5: Naeem et al., section 4).
        level: Confidence level of the intervals.
        draws: Number of relabellings (random exchanges of the labels real and simulated between episodes). They give
            ``floor``, the value expected without a sim-to-real gap, and ``p_value``. Each takes as long as the metrics
            themselves.
        seed: Seed of bootstrap and relabellings.

    Raises:
        InputError: If the rows cannot be compared, or if the other episodes of a sample have fewer than ``k`` rows, so
            that a row has no k-th neighbour in another episode.
    """
    samples = two_samples(real, sim, real_clusters=real_clusters, sim_clusters=sim_clusters)
    _check_neighbour_count(samples, k)
    is_real = np.arange(samples.nepisode) < samples.nreal
    by_episode = _compute_metrics(samples, is_real, k)
    metrics = {name: bootstrap_mean(values, level=level, seed=seed) for name, values in by_episode.items()}
    floor: dict[str, float] = {name: float("nan") for name in _METRICS}
    p_value = dict(floor)
    if draws:
        labels = relabel_episodes(samples, draws, seed=seed)
        drawn = [
            {name: -float(v.mean()) for name, v in _compute_metrics(samples, row, k).items()} for row in labels.real
        ]
        for name in _METRICS:
            relabelled = np.array([row[name] for row in drawn])
            floor[name] = -float(relabelled.mean())
            p_value[name] = float(labels.p_value(-by_episode[name].mean(), relabelled))
    return NeighbourMetrics(**metrics, k=k, floor=floor, p_value=p_value)


def _check_neighbour_count(samples: TwoSampleRows, k: int) -> None:
    for name, sizes in (("real", samples.sizes[: samples.nreal]), ("simulated", samples.sizes[samples.nreal :])):
        others = int(sizes.sum() - sizes.max())
        if not 1 <= k <= others:
            raise InputError(
                f"Neighbour {k} of every {name} row is sought in other episodes, which have {others} rows. Choose k "
                f"from 1 to {others}, or give more episodes."
            )


def _compute_metrics(samples: TwoSampleRows, is_real: NDArray[np.bool_], k: int) -> dict[str, Array]:
    """Return precision, recall, density and coverage of each episode, by the name of the metric.

    Precision and density have one value per simulated episode, recall and coverage one per real episode. See
    `NeighbourMetrics` for their definitions.

    Args:
        samples: Rows of both samples.
        is_real: Whether each episode counts as real, shape ``(nepisode,)``.
        k: Rank of the neighbour whose distance is the radius of the ball around each row.
    """
    real_row = is_real[samples.episode]
    rows, episode = samples.rows - samples.rows.mean(axis=0), samples.episode
    real, sim = rows[real_row], rows[~real_row]
    real_reach, sim_reach = _neighbour_radii(real, episode[real_row], k), _neighbour_radii(sim, episode[~real_row], k)
    inside = np.zeros(len(sim))
    recalled, covered = np.zeros(len(real), dtype=bool), np.zeros(len(real), dtype=bool)
    for block in _blocks(len(sim), len(real)):
        squares = _squared_row_distances(sim[block], real)
        within = squares <= real_reach
        inside[block] = within.sum(axis=1)
        covered |= within.any(axis=0)
        recalled |= (squares <= sim_reach[block, None]).any(axis=0)
    of_sim, of_real = episode[~real_row], episode[real_row]
    return {
        "precision": _mean_by_episode(inside > 0, of_sim),
        "recall": _mean_by_episode(recalled, of_real),
        "density": _mean_by_episode(inside / k, of_sim),
        "coverage": _mean_by_episode(covered, of_real),
    }


def _neighbour_radii(rows: Array, episode: NDArray[np.intp], k: int) -> Array:
    """Return the squared distance of every row to its k-th nearest neighbour among the rows of other episodes."""
    reach = np.empty(len(rows))
    for block in _blocks(len(rows), len(rows)):
        squares = _squared_row_distances(rows[block], rows)
        squares[episode[block, None] == episode] = np.inf
        reach[block] = np.partition(squares, k - 1, axis=1)[:, k - 1]
    return reach


def _squared_row_distances(left: Array, right: Array) -> NDArray[Any]:
    return squared_distances(
        left @ right.T, np.einsum("nd,nd->n", left, left)[:, None], np.einsum("nd,nd->n", right, right)
    )


def _blocks(rows: int, columns: int) -> list[slice]:
    height = int(np.clip(_BLOCK_BYTES / (8 * columns), 1, rows))
    return [slice(begin, min(begin + height, rows)) for begin in range(0, rows, height)]


def _mean_by_episode(values: NDArray[Any], episode: NDArray[np.intp]) -> Array:
    label = np.unique(episode, return_inverse=True)[1]
    return np.bincount(label, weights=values.astype(np.float64)) / np.bincount(label)
