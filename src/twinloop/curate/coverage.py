"""Measure how much of the real data simulation covers, clip by clip, and group the uncovered clips into holes.

A real clip's own neighbour distance is the distance to its k-th neighbour among clips of *other real episodes*. A real
clip is covered if a simulated clip is within this distance (coverage of Naeem et al., ICML 2020). The ratio is the
distance to the nearest simulated clip divided by the own neighbour distance.

Two uncovered clips belong to the same hole if one is among the 2 k nearest real neighbours of the other, where k is the
neighbour of the own distance: connected regions of any shape. Ten neighbours instead of five, because regions of random
points are connected from about 4.5 links per point (continuum percolation in the plane). A hole's mass is its share of
the real data, with equal weight for every episode. A hole has more weight if the robot fails there.
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
_FLOOR_DRAWS = 19  # relabellings that estimate the metrics without a gap; enough for a mean


@dataclass(frozen=True, kw_only=True)
class ClipRows:
    """Clips of one side (real or simulated) as rows of a common space.

    ``rows`` ``(n, d)``; ``episode`` ``(n,)`` is each clip's episode number, ``first`` ``(n,)`` its first frame;
    ``success`` ``(nepisode,)``, by episode number, is 1, 0 or NaN if unknown.
    """

    rows: Array
    episode: NDArray[np.int64]
    first: NDArray[np.int64]
    success: Array

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def weight(self) -> Array:
        """Mass of each clip ``(n,)``: all episodes have equal weight, also if their lengths differ; the sum is 1."""
        count = np.bincount(self.episode, minlength=len(self.success))
        return 1.0 / (count[self.episode] * np.count_nonzero(count))


@dataclass(frozen=True, kw_only=True)
class RealCoverage:
    """Coverage metrics, and the distance of every real clip to simulation.

    ``nearest`` ``(nreal,)`` is the distance to the nearest simulated clip, ``nearest_sim`` its row, ``own`` the clip's
    own neighbour distance, all in the unit of the space. ``own`` is the distance to the ``k``-th neighbour.
    """

    figures: NeighbourMetrics
    nearest: Array
    nearest_sim: NDArray[np.int64]
    own: Array
    k: int

    @property
    def ratio(self) -> Array:
        """``nearest`` divided by ``own``, ``(nreal,)``; a clip with a ratio above 1 is uncovered."""
        return self.nearest / np.maximum(self.own, np.finfo(np.float64).tiny)

    @property
    def uncovered_mask(self) -> NDArray[np.bool_]:
        """Mask ``(nreal,)`` of the real clips without a simulated clip within their own neighbour distance."""
        return self.nearest > self.own

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary without the data of single clips."""
        return {**self.figures.to_json(), "uncovered_clips": int(self.uncovered_mask.sum())}


def measure_real_coverage(
    real: ClipRows, sim: ClipRows, *, k: int = NEIGHBOUR, level: float = LEVEL, floor: bool = True, seed: int = 0
) -> RealCoverage:
    """Measure how much of the real clips the simulated ones cover.

    Args:
        real: real clips.
        sim: simulated clips, in the same space.
        k: neighbour that defines a clip's own distance.
        level: level of the intervals, bootstrapped over episodes.
        floor: whether to measure the metrics for exchanged episode labels too.
        seed: seed of bootstrap and relabellings.

    Raises:
        InputError: too few clips in other episodes for ``k``.
    """
    figures = precision_recall_density_coverage(
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
    return RealCoverage(figures=figures, nearest=nearest, nearest_sim=which, own=own, k=k)


def compute_own_distances(clips: ClipRows, k: int) -> Array:
    """Return the distance of each clip to its k-th neighbour in other episodes, ``(n,)``.

    Raises:
        InputError: besides the longest episode there are fewer than ``k`` clips.
    """
    most = int(np.bincount(clips.episode).max())
    if not 1 <= k <= len(clips) - most:
        raise InputError(
            f"Every real clip needs {k} neighbours in other episodes, which have {len(clips) - most} clips. "
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
    """Return the distance of each row to the nearest of the others, and that row's index, ``(n,)`` each."""
    centre = others.mean(axis=0)
    rows, others = rows - centre, others - centre
    distance, which = np.empty(len(rows)), np.empty(len(rows), dtype=np.int64)
    for block in _split_rows(len(rows), len(others)):
        squares = _compute_squares(rows[block], others)
        which[block] = squares.argmin(axis=1)
        distance[block] = squares.min(axis=1)
    return np.sqrt(distance), which


def list_headlines(measured: RealCoverage) -> list[HeadlineMetric]:
    """Return recall, coverage, precision and density as headline metrics."""
    meanings = {
        "recall": "share of real clips within the neighbourhood of a simulated clip",
        "coverage": "share of real clips with a simulated one within their own neighbour distance",
        "precision": "share of simulated clips within the neighbourhood of a real clip",
        "density": "real neighbourhoods around a simulated clip, over k",
    }
    return [
        getattr(measured.figures, name).headline(name, better="higher", meaning=meaning)
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
    """A region of real data that simulation does not cover.

    ``clips`` are rows of real clips, the central one first. ``mass`` is the hole's share of the real data, ``episodes``
    its number of episodes. ``distance`` is the median of the clips' distances to the nearest simulated clip, divided
    by the clip's own neighbour distance. ``failure`` is the failure rate of its ``judged`` episodes with known outcome,
    NaN without any. ``weight`` ranks holes: mass × (1 + failure weight × failure rate).
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
    """Group the uncovered real clips into holes; return the hole with the largest weight first.

    Args:
        real: real clips.
        measured: coverage of the real clips.
        failure_weight: weight of failures, at least 0.

    Raises:
        InputError: too many uncovered clips to group, or a negative weight.
    """
    if not failure_weight >= 0:
        raise InputError(f"--failure-weight {failure_weight:g}: a number from 0 is needed; 0 ranks by mass alone.")
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
    """Return a region label for each uncovered clip ``(n,)``."""
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
    """Return labels ``(n,)`` of ``parts`` compact parts, by Ward's linkage (J. Am. Stat. Assoc. 58, 1963)."""
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
