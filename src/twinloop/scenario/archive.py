"""An archive of failures that differ: the most probable failure in each cell of a map (Mouret and Clune, 2015)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from twinloop.core.errors import UnknownNameError
from twinloop.scenario.proposal import Proposal, log_density
from twinloop.scenario.rare import Seen, Try

Array = NDArray[np.float64]
CELLS = 8  # per axis of the map: equally probable parts of each parameter; our choice
_STEP = 0.4  # standard deviation of a step from an elite, along the axes that failures depend on; our choice


@dataclass(kw_only=True)
class Archive:
    """A map of two axes in `CELLS` × `CELLS` equally probable cells.

    ``rows`` is, by cell, the row of ``seen`` that stands for it: its most probable failure or, before there is one, its
    lowest score. Every world that was run is in ``seen``.
    """

    axes: tuple[int, int]
    seen: Seen
    rows: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])

    @classmethod
    def of(cls, axes: tuple[int, int], seen: Seen) -> Archive:
        """The archive of worlds that were run."""
        archive = cls(axes=axes, seen=seen)
        archive._enter(np.arange(len(seen)))
        return archive

    def add(self, seen: Seen) -> None:
        """Enter further worlds."""
        first = len(self.seen)
        self.seen = Seen.joined([self.seen, seen])
        self._enter(np.arange(first, len(self.seen)))

    @property
    def failures(self) -> list[int]:
        """Rows of ``seen``: the most probable failure of each cell that has one, most probable first."""
        rows = [row for row in self.rows.values() if self.seen.failed[row]]
        return sorted(rows, key=lambda row: -float(log_density(self.seen.z[row])))

    @property
    def odds(self) -> Array:
        """By cell, how much less probable its most probable failure is than the middle of all, as ½ |z|²; else NaN."""
        table = np.full((CELLS, CELLS), np.nan)
        for cell, row in self.rows.items():
            if self.seen.failed[row]:
                table[cell] = 0.5 * float((self.seen.z[row] ** 2).sum())
        return table

    def _enter(self, rows: NDArray[np.intp]) -> None:
        chosen = self.seen.z[np.ix_(rows, np.array(self.axes))]
        cells = np.minimum((ndtr(chosen) * CELLS).astype(np.intp), CELLS - 1)
        for row, cell in zip(rows.tolist(), map(tuple, cells.tolist()), strict=True):
            if not self.seen.lost[row] and (cell not in self.rows or self._better(row, self.rows[cell])):
                self.rows[cell] = row

    def _better(self, row: int, other: int) -> bool:
        seen = self.seen
        if seen.failed[row] != seen.failed[other]:
            return bool(seen.failed[row])
        if seen.failed[row]:
            return bool(log_density(seen.z[row]) > log_density(seen.z[other]))
        return bool(seen.score[row] < seen.score[other])


def illuminate(
    archive: Archive, try_: Try, active: NDArray[np.bool_], *, worlds: int, rounds: int, rng: np.random.Generator
) -> None:
    """Look for failures in cells that have none, and for more probable ones in those that have: steps from elites.

    Args:
        active: axes ``(d,)`` that failures depend on; the rest of an elite is drawn towards the middle, which makes a
            failure that does not need it more probable.
        worlds: per round.
    """
    for _ in range(rounds):
        parents = np.array([row for _, row in sorted(archive.rows.items())])
        chosen = archive.seen.z[rng.choice(parents, size=worlds)]
        step = _STEP * rng.standard_normal(chosen.shape)
        archive.add(try_(np.where(active, chosen + step, chosen * rng.uniform(0.5, 1.0, (worlds, 1)) + 0.25 * step)))


def active_axes(proposal: Proposal) -> NDArray[np.bool_]:
    """The axes along which a search has moved, ``(d,)``; all of them where it has not."""
    moved = (proposal.mean != 0.0).any(axis=0) if proposal.modes else np.zeros(proposal.axes, dtype=bool)
    return moved if moved.any() else np.ones(proposal.axes, dtype=bool)


def map_axes(names: Sequence[str], asked: Sequence[str], proposal: Proposal, seen: Seen) -> tuple[int, int]:
    """Which two axes the map has: those asked for, then those along which failures lie farthest from the middle.

    Raises:
        UnknownNameError: an axis that nothing draws.
    """
    for name in asked:
        if name not in names:
            raise UnknownNameError("axis", name, names)
    failures = seen.z[seen.failed & ~seen.lost]
    off = np.abs(failures.mean(axis=0)) if len(failures) else np.zeros(len(names))
    ranked = np.argsort(-np.where(active_axes(proposal), off, -1.0), kind="stable").tolist()
    chosen = [list(names).index(name) for name in asked[:2]]
    chosen += [axis for axis in ranked if axis not in chosen]
    return chosen[0], chosen[min(1, len(chosen) - 1)]
