"""Measure how much of reality simulation covers, clip by clip, and gather what it does not cover into holes.

A real clip's own neighbour distance is how far its k-th neighbour among the clips of *other real episodes* lies: what
another real episode would be expected to come within. A real clip is covered where a simulated one lies within it
(coverage of Naeem et al., ICML 2020); the ratio of its distance to the nearest simulated clip over its own neighbour
distance says how far it is from that.

Two uncovered clips belong to one hole where one lies among the 2 k nearest real neighbours of the other, k being the
neighbour of a clip's own distance: connected regions of reality, of whatever shape. Ten neighbours, and not five,
because regions of random points hold together from about 4.5 links a point on (continuum percolation in the plane). A
hole's mass is the share of reality that it holds, every episode weighing alike. It counts for more where the robot
fails there.
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
_FLOOR_DRAWS = 19  # relabellings that say what figures are where there is no gap; a mean needs no more


@dataclass(frozen=True, kw_only=True)
class ClipRows:
    """Clips of one side as rows of a common space.

    ``rows`` ``(n, d)``; ``episode`` ``(n,)`` numbers of their episodes, ``first`` ``(n,)`` their first frames;
    ``success`` ``(nepisode,)``, by episode number, 1, 0 or NaN where it is not known.
    """

    rows: Array
    episode: NDArray[np.int64]
    first: NDArray[np.int64]
    success: Array

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def weight(self) -> Array:
        """The mass of each clip ``(n,)``: episodes weigh alike, whatever their length; the sum is 1."""
        count = np.bincount(self.episode, minlength=len(self.success))
        return 1.0 / (count[self.episode] * np.count_nonzero(count))


@dataclass(frozen=True, kw_only=True)
class RealCoverage:
    """Figures of real and simulated clips, and of every real clip how far it is left alone.

    ``nearest`` ``(nreal,)`` is the distance to the nearest simulated clip, ``nearest_sim`` its row, ``own`` the clip's
    own neighbour distance, all in the space's unit. ``k`` is the neighbour that ``own`` reaches to.
    """

    figures: NeighbourMetrics
    nearest: Array
    nearest_sim: NDArray[np.int64]
    own: Array
    k: int

    @property
    def ratio(self) -> Array:
        """``nearest`` in units of ``own``; above 1 the clip is uncovered."""
        return self.nearest / np.maximum(self.own, np.finfo(np.float64).tiny)

    @property
    def uncovered(self) -> NDArray[np.bool_]:
        """Real clips without a simulated one within their own neighbour distance."""
        return self.nearest > self.own

    def to_json(self) -> dict[str, Any]:
        """A plain form for files, without what is of single clips."""
        return {**self.figures.to_json(), "uncovered_clips": int(self.uncovered.sum())}


def measure_coverage_of_reality(
    real: ClipRows, sim: ClipRows, *, k: int = NEIGHBOUR, level: float = LEVEL, floor: bool = True, seed: int = 0
) -> RealCoverage:
    """Measure how much of the real clips the simulated ones cover.

    Args:
        real: real clips.
        sim: simulated ones, in the same space.
        k: neighbour of a clip's own distance.
        level: of the intervals, bootstrapped over episodes.
        floor: whether to measure what the figures are where labels of episodes are exchanged.
        seed: of bootstrap and relabellings.

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
    own = own_distance(real, k)
    nearest, which = nearest_rows(real.rows, sim.rows)
    return RealCoverage(figures=figures, nearest=nearest, nearest_sim=which, own=own, k=k)


def own_distance(clips: ClipRows, k: int) -> Array:
    """Distance of each clip to its k-th neighbour among those of other episodes, ``(n,)``.

    Raises:
        InputError: an episode has fewer than ``k`` clips beside it.
    """
    most = int(np.bincount(clips.episode).max())
    if not 1 <= k <= len(clips) - most:
        raise InputError(
            f"Neighbour {k} of every real clip is sought in other episodes, which have {len(clips) - most} clips. "
            "Give more real episodes, shorter clips (--clip), or a smaller --k."
        )
    centred = clips.rows - clips.rows.mean(axis=0)
    own = np.empty(len(clips))
    for block in _blocks(len(clips), len(clips)):
        squares = _squares(centred[block], centred)
        squares[clips.episode[block, None] == clips.episode] = np.inf
        own[block] = np.partition(squares, k - 1, axis=1)[:, k - 1]
    return np.sqrt(own)


def nearest_rows(rows: Array, others: Array) -> tuple[Array, NDArray[np.int64]]:
    """Distance of each row to the nearest of the others, and which that is, ``(n,)`` each."""
    centre = others.mean(axis=0)
    rows, others = rows - centre, others - centre
    distance, which = np.empty(len(rows)), np.empty(len(rows), dtype=np.int64)
    for block in _blocks(len(rows), len(others)):
        squares = _squares(rows[block], others)
        which[block] = squares.argmin(axis=1)
        distance[block] = squares.min(axis=1)
    return np.sqrt(distance), which


def headlines_of(measured: RealCoverage) -> list[HeadlineMetric]:
    """The figures that conditions and the history see."""
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


def _squares(left: Array, right: Array) -> Array:
    sizes = np.einsum("nd,nd->n", left, left)[:, None], np.einsum("nd,nd->n", right, right)
    return squared_distances(left @ right.T, *sizes)


def _blocks(rows: int, columns: int) -> list[slice]:
    height = int(np.clip(_BLOCK_BYTES / (8 * columns), 1, rows))
    return [slice(begin, min(begin + height, rows)) for begin in range(0, rows, height)]


FAILURE_WEIGHT = 1.0  # a hole in which every episode fails weighs as two in which none does (our choice; an option)
MOST_CLIPS = 20_000  # uncovered clips that are put together; distances of more do not fit in memory
# A region that holds more of reality than this is no hole but most of reality: it is divided, so that its parts can be
# told and filled apart (our choice).
_MOST_MASS, _MOST_PARTS = 0.3, 8


@dataclass(frozen=True, kw_only=True)
class CoverageHole(JsonRecord):
    """A region of reality that simulation leaves out.

    ``clips`` are real rows, the one in the middle first. ``mass`` is the share of reality in it, ``episodes`` from how
    many episodes. ``distance`` is the median of their distances to the nearest simulated clip in units of the clips'
    own neighbour distance. ``failure`` is the failure rate of those of its ``judged`` episodes whose outcome is known,
    NaN where there are none. ``weight`` ranks holes: mass × (1 + failure weight × failure rate).
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
    """The holes, the heaviest first.

    Args:
        real: real clips.
        measured: how far each is left alone.
        failure_weight: how much failures count, from 0.

    Raises:
        InputError: more uncovered clips than can be put together, or a negative weight.
    """
    if not failure_weight >= 0:
        raise InputError(f"--failure-weight {failure_weight:g}: a number from 0 is needed; 0 ranks by mass alone.")
    rows = np.flatnonzero(measured.uncovered)
    if len(rows) > MOST_CLIPS:
        raise InputError(
            f"{len(rows)} real clips are uncovered, more than the {MOST_CLIPS} that can be put together. Choose fewer "
            "episodes (--real-where), or longer clips (--clip)."
        )
    if not len(rows):
        return ()
    others = len(real) - int(np.bincount(real.episode).max())
    near = own_distance(real, min(2 * measured.k, others))
    labels = _regions(real.rows[rows], near[rows], real.weight[rows])
    holes = [_hole(real, measured, rows[labels == label], failure_weight) for label in np.unique(labels)]
    return tuple(sorted(holes, key=lambda hole: (-hole.weight, -hole.distance, int(hole.clips[0]))))


def _regions(rows: Array, reach: Array, weight: Array) -> NDArray[np.int64]:
    """A label for each uncovered clip ``(n,)``."""
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
            labels[members] = labels.max() + 1 + _divided(rows[members], parts)
    return labels


def _divided(rows: Array, parts: int) -> NDArray[np.int64]:
    """Labels ``(n,)`` of so many compact parts, by Ward's linkage (J. Am. Stat. Assoc. 58, 1963)."""
    from scipy.cluster.hierarchy import fcluster, linkage

    return fcluster(linkage(rows, method="ward"), parts, criterion="maxclust").astype(np.int64)


def _hole(real: ClipRows, measured: RealCoverage, clips: NDArray[np.int64], failure_weight: float) -> CoverageHole:
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
