"""Name the phases and the failure of an episode by milestones that it passes one after the other."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Milestone:
    """Event of an episode, and what an episode lacks that does not pass it.

    Attributes:
        phase: name of the phase that begins with the event.
        passed: whether the condition of the event holds at each state, ``(T + 1,)``.
        failure: failure class of an episode in which it never holds.
        reason: reason of that failure.
    """

    phase: str
    passed: NDArray[np.bool_]
    failure: str
    reason: str


class MilestonePhases:
    """Phases and failure classes of a task that lists its milestones.

    Attributes:
        first_phase: name of the phase before the first milestone.
    """

    first_phase = "reach"

    @abstractmethod
    def milestones(self, states: NDArray[np.float64]) -> Sequence[Milestone]:
        """Return the milestones of one episode in order, the last one its success; states are ``(T + 1, nstate)``."""

    def phases(self, states: NDArray[np.float64], fps: float) -> Sequence[tuple[str, int | None]]:  # noqa: ARG002
        """Return each phase's name and the index of the state at which it begins; see `protocol.PhasedTask`.

        A phase is listed only if all earlier milestones are passed.
        """
        begun, found = 0, [(self.first_phase, 0)]
        for milestone in self.milestones(states):
            later = np.flatnonzero(milestone.passed[begun:])
            if not len(later):
                break
            begun += int(later[0])
            found.append((milestone.phase, begun))
        return found

    def failure(self, states: NDArray[np.float64], fps: float) -> tuple[str, str] | None:
        """Return the failure class of an episode and its reason; None if it ends in success."""
        begun, last = 0, None
        for last in self.milestones(states):
            later = np.flatnonzero(last.passed[begun:])
            if not len(later):
                return last.failure, last.reason
            begun += int(later[0])
        if last is None or last.passed[-1]:
            return None
        return "other", f"succeeded at {begun / fps:.2f} s, and no longer at the end"
