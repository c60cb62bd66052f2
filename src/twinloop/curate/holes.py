"""Holes: what reality shows and simulation does not, real clips without a simulated neighbour put together and ranked.

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
from twinloop.curate.coverage import ClipRows, CoverageOfReality, own_distance

Array = NDArray[np.float64]
FAILURE_WEIGHT = 1.0  # a hole in which every episode fails weighs as two in which none does (our choice; an option)
MOST_CLIPS = 20_000  # uncovered clips that are put together; distances of more do not fit in memory
# A region that holds more of reality than this is no hole but most of reality: it is divided, so that its parts can be
# told and filled apart (our choice).
_MOST_MASS, _MOST_PARTS = 0.3, 8


@dataclass(frozen=True, kw_only=True)
class Hole:
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

    def to_json(self) -> dict[str, Any]:
        """A plain form for files."""
        return {**vars(self), "clips": self.clips.tolist()}


def find_holes(
    real: ClipRows, measured: CoverageOfReality, *, failure_weight: float = FAILURE_WEIGHT
) -> tuple[Hole, ...]:
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


def _hole(real: ClipRows, measured: CoverageOfReality, clips: NDArray[np.int64], failure_weight: float) -> Hole:
    mass = float(real.weight[clips].sum())
    episodes = np.unique(real.episode[clips])
    outcome = real.success[episodes]
    known = ~np.isnan(outcome)
    failure = float(1.0 - outcome[known].mean()) if known.any() else float("nan")
    middle = np.median(real.rows[clips], axis=0)
    order = np.argsort(((real.rows[clips] - middle) ** 2).sum(axis=1), kind="stable")
    return Hole(
        clips=clips[order],
        mass=mass,
        episodes=len(episodes),
        distance=float(np.median(measured.ratio[clips])),
        judged=int(known.sum()),
        failure=failure,
        weight=mass * (1.0 + failure_weight * (0.0 if np.isnan(failure) else failure)),
    )
