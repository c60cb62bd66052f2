"""How much of reality simulation covers, clip by clip: shares with intervals, and how far each real clip is left alone.

A real clip's own neighbour distance is how far its k-th neighbour among the clips of *other real episodes* lies: what
another real episode would be expected to come within. A real clip is covered where a simulated one lies within it
(coverage of Naeem et al., ICML 2020); the ratio of its distance to the nearest simulated clip over its own neighbour
distance says how far it is from that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.headline import Headline
from twinloop.stats import NeighbourFigures, precision_recall_density_coverage
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
class CoverageOfReality:
    """Figures of real and simulated clips, and of every real clip how far it is left alone.

    ``nearest`` ``(nreal,)`` is the distance to the nearest simulated clip, ``nearest_sim`` its row, ``own`` the clip's
    own neighbour distance, all in the space's unit. ``k`` is the neighbour that ``own`` reaches to.
    """

    figures: NeighbourFigures
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
) -> CoverageOfReality:
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
    return CoverageOfReality(figures=figures, nearest=nearest, nearest_sim=which, own=own, k=k)


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


def headlines_of(measured: CoverageOfReality) -> list[Headline]:
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
