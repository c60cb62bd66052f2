"""Measure which share of the real data is covered by simulation, and group the uncovered clips into holes.

Terms:

- clip: a short section of an episode, described by a feature vector.
- own neighbour distance: distance of a real clip to its k-th nearest clip in the *other real episodes*.
- covered: a real clip is covered if a simulated clip is within its own neighbour distance (coverage of Naeem et al.,
  ICML 2020).
- ratio: distance of a real clip to the nearest simulated clip, divided by its own neighbour distance.
- hole: a group of uncovered clips, of any shape.
- mass: share of the real data in a hole, with equal weight for every episode.
- weight: importance of a hole. It grows with the mass and with the failure rate of the robot in the hole.

Two uncovered clips belong to the same hole if one of them is among the 2 k nearest real neighbours of the other (ten
for k = 5). With fewer neighbours, dense regions would be divided by chance: randomly placed points in a plane are
connected only from about 4.5 neighbours per point (continuum percolation).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.headline import HeadlineMetric
from twinloop.core.plain import JsonRecord
from twinloop.stats import NeighbourMetrics, precision_recall_density_coverage
from twinloop.stats.kernel_distance import squared_distances

Array = NDArray[np.float64]
NEIGHBOUR = 5  # Naeem et al., section 4
LEVEL = 0.95
_BLOCK_BYTES = 64e6
_FLOOR_DRAWS = 19  # permutations of the labels that estimate the metrics without a gap; enough for a mean


@dataclass(frozen=True, kw_only=True)
class ClipRows:
    """Feature vectors of the clips of the real or the simulated episodes.

    Attributes:
        rows: feature vectors ``(n, d)`` of n clips, in the space that real and simulated clips share.
        episode: index of each clip's episode ``(n,)``.
        first: first frame of each clip ``(n,)``.
        success: outcome of each episode ``(nepisode,)``: 1 for success, 0 for failure, NaN if unknown.
    """

    rows: Array
    episode: NDArray[np.int64]
    first: NDArray[np.int64]
    success: Array

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def weight(self) -> Array:
        """Weight of each clip ``(n,)``, with sum 1. Every episode has the same total weight, whether long or short."""
        count = np.bincount(self.episode, minlength=len(self.success))
        return 1.0 / (count[self.episode] * np.count_nonzero(count))


@dataclass(frozen=True, kw_only=True)
class RealCoverage:
    """Coverage metrics, and the distance of every real clip to the simulated clips.

    All distances are Euclidean distances of feature vectors.

    Attributes:
        metrics: precision, recall, density and coverage with intervals.
        nearest: distance of each real clip to the nearest simulated clip ``(nreal,)``.
        nearest_sim: index of that simulated clip ``(nreal,)``.
        own_distance: distance of each real clip to its k-th neighbour in other real episodes ``(nreal,)``.
        k: number of the neighbour that defines ``own_distance``.
    """

    metrics: NeighbourMetrics
    nearest: Array
    nearest_sim: NDArray[np.int64]
    own_distance: Array
    k: int

    @property
    def ratio(self) -> Array:
        """Distance to the nearest simulated clip, divided by ``own_distance``, ``(nreal,)``.

        A real clip with a ratio above 1 is uncovered.
        """
        return self.nearest / np.maximum(self.own_distance, np.finfo(np.float64).tiny)

    @property
    def uncovered_mask(self) -> NDArray[np.bool_]:
        """Mask ``(nreal,)`` of the real clips that have no simulated clip within the distance ``own_distance``."""
        return self.nearest > self.own_distance

    def to_json(self) -> dict[str, Any]:
        """Return the metrics and the number of uncovered clips as a JSON-compatible dictionary."""
        return {**self.metrics.to_json(), "uncovered_clips": int(self.uncovered_mask.sum())}


def measure_real_coverage(
    real: ClipRows, sim: ClipRows, *, k: int = NEIGHBOUR, level: float = LEVEL, floor: bool = True, seed: int = 0
) -> RealCoverage:
    """Measure how much of the real clips the simulated clips cover.

    A real clip is covered if a simulated clip is nearer than its k-th nearest clip in other real episodes.

    Args:
        real: real clips.
        sim: simulated clips, in the same feature space.
        k: which nearest neighbour defines that distance: 5 is the fifth nearest clip.
        level: confidence level of the metrics' intervals, which are bootstrapped over episodes.
        floor: whether to also compute the metrics after randomly exchanging the labels (real or simulated) of the
            episodes. This gives the values for simulated data that do not differ from real data.
        seed: seed of the bootstrap and of the exchanged labels.

    Raises:
        InputError: If the real or the simulated episodes, excluding the one with most clips, have fewer than ``k``
            clips.
    """
    metrics = precision_recall_density_coverage(
        real.rows,
        sim.rows,
        real_clusters=real.episode,
        sim_clusters=sim.episode,
        k=k,
        level=level,
        draws=_FLOOR_DRAWS if floor else 0,
        seed=seed,
    )
    own = compute_own_distances(real, k)
    nearest, which = find_nearest_rows(real.rows, sim.rows)
    return RealCoverage(metrics=metrics, nearest=nearest, nearest_sim=which, own_distance=own, k=k)


def compute_own_distances(clips: ClipRows, k: int) -> Array:
    """Return the distance of each clip to its k-th nearest clip in other episodes, ``(n,)``.

    Raises:
        InputError: If there are fewer than ``k`` clips outside the longest episode.
    """
    most = int(np.bincount(clips.episode).max())
    if not 1 <= k <= len(clips) - most:
        raise InputError(
            f"Every real clip needs {k} neighbours in other episodes, but outside the longest episode there are only "
            f"{len(clips) - most} clips. "
            "Give more real episodes, shorter clips (--clip), or a smaller --k."
        )
    centred = clips.rows - clips.rows.mean(axis=0)
    own = np.empty(len(clips))
    for block in _split_rows(len(clips), len(clips)):
        squares = _compute_squares(centred[block], centred)
        squares[clips.episode[block, None] == clips.episode] = np.inf
        own[block] = np.partition(squares, k - 1, axis=1)[:, k - 1]
    return np.sqrt(own)


def find_nearest_rows(rows: Array, others: Array) -> tuple[Array, NDArray[np.int64]]:
    """Return the distance of each row to the nearest row of ``others``, and the index of that row.

    Args:
        rows: feature vectors ``(n, d)``.
        others: feature vectors ``(m, d)``.

    Returns:
        Distances ``(n,)`` and indices into ``others`` ``(n,)``.
    """
    centre = others.mean(axis=0)
    rows, others = rows - centre, others - centre
    distance, which = np.empty(len(rows)), np.empty(len(rows), dtype=np.int64)
    for block in _split_rows(len(rows), len(others)):
        squares = _compute_squares(rows[block], others)
        which[block] = squares.argmin(axis=1)
        distance[block] = squares.min(axis=1)
    return np.sqrt(distance), which


def list_headlines(measured: RealCoverage) -> list[HeadlineMetric]:
    """Return recall, coverage, precision and density with their intervals, as the main metrics of a coverage report."""
    meanings = {
        "recall": "share of real clips within the neighbourhood of a simulated clip",
        "coverage": "share of real clips with a simulated one within their own neighbour distance",
        "precision": "share of simulated clips within the neighbourhood of a real clip",
        "density": "real neighbourhoods around a simulated clip, over k",
    }
    return [
        getattr(measured.metrics, name).headline(name, better="higher", meaning=meaning)
        for name, meaning in meanings.items()
    ]


def _compute_squares(left: Array, right: Array) -> Array:
    sizes = np.einsum("nd,nd->n", left, left)[:, None], np.einsum("nd,nd->n", right, right)
    return squared_distances(left @ right.T, *sizes)


def _split_rows(rows: int, columns: int) -> list[slice]:
    height = int(np.clip(_BLOCK_BYTES / (8 * columns), 1, rows))
    return [slice(begin, min(begin + height, rows)) for begin in range(0, rows, height)]


FAILURE_WEIGHT = 1.0  # a hole where every episode fails has twice the weight of one without failures (an option)
MOST_CLIPS = 20_000  # uncovered clips to group; distances of more do not fit in memory
# A region with a larger share of the real data than this is divided, so that its parts can be reported and filled
# separately (our choice).
_MOST_MASS, _MOST_PARTS = 0.3, 8


@dataclass(frozen=True, kw_only=True)
class CoverageHole(JsonRecord):
    """Region of real data that simulation does not cover.

    Attributes:
        clips: indices of its real clips; the clip nearest to the region's median comes first.
        mass: share of the real data in the hole, with equal weight for every episode.
        episodes: number of real episodes with clips in the hole.
        distance: median over the clips of the distance to the nearest simulated clip, divided by the distance to the
            k-th nearest clip in other real episodes.
        judged: number of these episodes with a known outcome.
        failure: failure rate of the episodes with a known outcome; NaN if no outcome is known.
        weight: importance by which holes are sorted: mass × (1 + failure_weight × failure rate); ``failure_weight`` is
            a parameter of `find_holes`.
    """

    clips: NDArray[np.int64]
    mass: float
    episodes: int
    distance: float
    judged: int
    failure: float
    weight: float


def find_holes(
    real: ClipRows, measured: RealCoverage, *, failure_weight: float = FAILURE_WEIGHT
) -> tuple[CoverageHole, ...]:
    """Group the uncovered real clips into holes, and return the hole with the largest weight first.

    A clip is a short section of an episode. A hole is a group of similar real clips that no simulated clip resembles.
    Its mass is its share of the real data.

    Args:
        real: real clips.
        measured: coverage of the real clips.
        failure_weight: factor of the failure rate in a hole's weight, at least 0; 0 ranks holes by mass alone.

    Raises:
        InputError: If there are too many uncovered clips to group, or the weight is negative.
    """
    if not failure_weight >= 0:
        raise InputError(
            f"--failure-weight {failure_weight:g}: it must be at least 0; with 0, holes are ranked by mass alone."
        )
    rows = np.flatnonzero(measured.uncovered_mask)
    if len(rows) > MOST_CLIPS:
        raise InputError(
            f"{len(rows)} real clips are uncovered, more than the {MOST_CLIPS} that can be grouped. Choose fewer "
            "episodes (--real-where), or longer clips (--clip)."
        )
    if not len(rows):
        return ()
    others = len(real) - int(np.bincount(real.episode).max())
    near = compute_own_distances(real, min(2 * measured.k, others))
    labels = _label_regions(real.rows[rows], near[rows], real.weight[rows])
    holes = [_make_hole(real, measured, rows[labels == label], failure_weight) for label in np.unique(labels)]
    return tuple(sorted(holes, key=lambda hole: (-hole.weight, -hole.distance, int(hole.clips[0]))))


def _label_regions(rows: Array, reach: Array, weight: Array) -> NDArray[np.int64]:
    """Return the number of the region (future hole) of each uncovered clip ``(n,)``.

    Two clips belong to one region if one is within the reach of the other; regions grow over chains of such clips. A
    region with more than 30 % of the real data is divided into at most 8 regions.

    Args:
        rows: feature vectors of the uncovered clips ``(n, d)``.
        reach: largest distance at which each clip is connected to another clip ``(n,)``.
        weight: share of the real data of each clip ``(n,)``.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    square = np.einsum("nd,nd->n", rows, rows)
    distance = np.sqrt(np.maximum(square[:, None] + square - 2 * rows @ rows.T, 0.0))
    near = distance <= np.maximum(reach[:, None], reach)
    labels = connected_components(csr_array(near), directed=False)[1].astype(np.int64)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        mass = float(weight[members].sum())
        if mass > _MOST_MASS and len(members) > _MOST_PARTS:
            parts = min(_MOST_PARTS, int(np.ceil(mass / _MOST_MASS * 2)))
            labels[members] = labels.max() + 1 + _divide_region(rows[members], parts)
    return labels


def _divide_region(rows: Array, parts: int) -> NDArray[np.int64]:
    """Divide a region into ``parts`` compact parts, and return the part of each row ``(n,)``.

    Method: Ward's linkage (J. Am. Stat. Assoc. 58, 1963).
    """
    from scipy.cluster.hierarchy import fcluster, linkage

    return fcluster(linkage(rows, method="ward"), parts, criterion="maxclust").astype(np.int64)


def _make_hole(real: ClipRows, measured: RealCoverage, clips: NDArray[np.int64], failure_weight: float) -> CoverageHole:
    mass = float(real.weight[clips].sum())
    episodes = np.unique(real.episode[clips])
    outcome = real.success[episodes]
    known = ~np.isnan(outcome)
    failure = float(1.0 - outcome[known].mean()) if known.any() else float("nan")
    middle = np.median(real.rows[clips], axis=0)
    order = np.argsort(((real.rows[clips] - middle) ** 2).sum(axis=1), kind="stable")
    return CoverageHole(
        clips=clips[order],
        mass=mass,
        episodes=len(episodes),
        distance=float(np.median(measured.ratio[clips])),
        judged=int(known.sum()),
        failure=failure,
        weight=mass * (1.0 + failure_weight * (0.0 if np.isnan(failure) else failure)),
    )
