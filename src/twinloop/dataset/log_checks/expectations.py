"""What a twin expects of a log, in plain arrays: checks know no simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.core.records import Episode
from twinloop.dataset.importers.raw import RawEpisode

LogRecord = Episode | RawEpisode
InverseDynamics = Callable[[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True)
class Expectations:
    """A twin's joints as a log should show them.

    Attributes:
        name: the twin's, for messages.
        joints: its robot's joints.
        ranges: their positions in rad or m, ``(n, 2)``; infinite where a joint has no limits.
        slides: which of them slide, ``(n,)``.
        control: what it is commanded.
        inverse_dynamics: joint torques ``(T, n)`` from positions, velocities and accelerations ``(T, n)``, in SI and in
            the order of ``joints``; None where the twin cannot say.
    """

    name: str
    joints: tuple[str, ...]
    ranges: NDArray[np.float64]
    slides: NDArray[np.bool_]
    control: Literal["position", "torque"]
    inverse_dynamics: InverseDynamics | None = None

    def shared(self, joints: Sequence[str]) -> list[tuple[int, int]]:
        """Column here and column in a log of each joint that both have."""
        return [(row, list(joints).index(joint)) for row, joint in enumerate(self.joints) if joint in joints]
