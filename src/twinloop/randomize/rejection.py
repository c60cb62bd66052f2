"""Keeping only worlds that meet the constraints, and counting what was refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.randomize.constraints import Constraint

# Candidates that tell a plan's acceptance when it is made.
PROBE = 2000
# A plan that accepts fewer than this has a mistake in its ranges rather than a condition on them; our choice.
LEAST_ACCEPTED = 0.01
# Of the plans that pass the probe, the worst has an acceptance above 0.5 % with certainty for all purposes (at 0.5 %
# the probe passes once in 300), and then an episode in 10^21 needs more candidates than this.
MOST_REDRAWS = 10_000


class Rejection:
    """The bookkeeping of one batch of worlds; ``redraws`` counts refused candidates per world."""

    def __init__(self, constraints: Sequence[Constraint], nworld: int) -> None:
        self.names = {name for constraint in constraints for name in constraint.names}
        self.redraws = np.zeros(nworld, dtype=np.int64)
        self._constraints = constraints
        self._candidates = self._accepted = self._redraw = 0
        self._held = np.zeros(len(constraints), dtype=np.int64)

    def refused(self, table: ParamTable, worlds: NDArray[np.intp]) -> NDArray[np.intp]:
        """Which of ``worlds``, whose candidates are the rows of ``table``, break a constraint."""
        held = np.array([constraint.holds(table) for constraint in self._constraints])
        accepted = held.all(axis=0)
        self._candidates += len(worlds)
        self._held += held.sum(axis=1)
        self._accepted += int(accepted.sum())
        self.redraws[worlds[~accepted]] += 1
        return worlds[~accepted]

    def next_redraw(self) -> int:
        """The number of the next redraw, from 1.

        Raises:
            InputError: there were too many; names the constraint that refuses most, with its rate.
        """
        if self._redraw >= MOST_REDRAWS:
            raise self._too_few()
        self._redraw += 1
        return self._redraw

    def check_rate(self) -> None:
        """Refuse a plan whose candidates are hardly ever accepted.

        Raises:
            InputError: names the constraint that refuses most, with its rate.
        """
        if self._accepted < LEAST_ACCEPTED * self._candidates:
            raise self._too_few()

    def _too_few(self) -> InputError:
        worst = int(np.argmin(self._held))
        together = f", all {len(self._held)} constraints together for {self._accepted}" if len(self._held) > 1 else ""
        return InputError(
            f"The constraint {self._constraints[worst].name!r} held for {self._held[worst]} of {self._candidates} "
            f"candidates ({self._held[worst] / self._candidates:.2%}){together}. At least {LEAST_ACCEPTED:.0%} must be "
            f"accepted. Change its numbers, or narrow the ranges of {', '.join(sorted(self.names))}."
        )
