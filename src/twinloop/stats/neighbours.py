"""Precision, recall, density and coverage: whether simulated rows are realistic and include all real behaviour.

Every row has a ball whose radius is the distance to its k-th neighbour. Precision is the share of simulated rows within
some real ball, recall the share of real rows within some simulated ball (Kynkäänniemi et al., "Improved precision and
recall metric for assessing generative models", NeurIPS 2019). Density is the number of real balls around a simulated
row divided by k; single outliers do not distort it. Coverage is the share of real balls that contain a simulated row
(Naeem et al., "Reliable fidelity and diversity metrics for generative models", ICML 2020).

Neighbours are only searched among rows of *other* episodes. The next frame of the same episode would always be near,
and balls up to it would contain no row of a new episode.
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
_FIGURES = ("precision", "recall", "density", "coverage")


@dataclass(frozen=True, kw_only=True)
class NeighbourMetrics(JsonRecord):
    """Precision, recall, density and coverage with intervals.

    ``floor`` is, by metric, the mean under relabelling of episodes, that is, the value without a gap. ``p_value`` is
    the chance of a value as low under relabelling. Both are NaN without relabellings. ``k`` is the number of the
    neighbour that defines the balls.
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
    """Return the four metrics of rows ``(n, d)`` and ``(m, d)``; they depend on the numbers of rows and episodes.

    Intervals are bootstrapped over the evaluated episodes (simulated ones for precision and density, real ones for
    recall and coverage), given the balls of the others.

    Args:
        real: real rows ``(n, d)``.
        sim: simulated rows ``(m, d)``.
        real_clusters: episode number of each real row.
        sim_clusters: episode number of each simulated row.
        k: number of the neighbour that defines the balls (5: Naeem et al., section 4).
        level: confidence level of the intervals.
        draws: number of relabellings for floor and p-values; each takes as long as the metrics themselves.
        seed: seed of bootstrap and relabellings.

    Raises:
        InputError: the rows cannot be compared, or the other episodes have fewer than ``k`` rows.
    """
    samples = two_samples(real, sim, real_clusters=real_clusters, sim_clusters=sim_clusters)
    _check_neighbour_count(samples, k)
    is_real = np.arange(samples.nepisode) < samples.nreal
    judged = _compute_metrics(samples, is_real, k)
    figures = {name: bootstrap_mean(values, level=level, seed=seed) for name, values in judged.items()}
    floor: dict[str, float] = {name: float("nan") for name in _FIGURES}
    p_value = dict(floor)
    if draws:
        labels = relabel_episodes(samples, draws, seed=seed)
        drawn = [
            {name: -float(v.mean()) for name, v in _compute_metrics(samples, row, k).items()} for row in labels.real
        ]
        for name in _FIGURES:
            relabelled = np.array([row[name] for row in drawn])
            floor[name] = -float(relabelled.mean())
            p_value[name] = float(labels.p_value(-judged[name].mean(), relabelled))
    return NeighbourMetrics(**figures, k=k, floor=floor, p_value=p_value)


def _check_neighbour_count(samples: TwoSampleRows, k: int) -> None:
    for name, sizes in (("real", samples.sizes[: samples.nreal]), ("simulated", samples.sizes[samples.nreal :])):
        others = int(sizes.sum() - sizes.max())
        if not 1 <= k <= others:
            raise InputError(
                f"Neighbour {k} of every {name} row is sought in other episodes, which have {others} rows. Choose k "
                f"from 1 to {others}, or give more episodes."
            )


def _compute_metrics(samples: TwoSampleRows, is_real: NDArray[np.bool_], k: int) -> dict[str, Array]:
    """Return each metric's mean in every episode that it evaluates."""
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
    """Return the squared distance of every row to its k-th neighbour among the rows of other episodes."""
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
