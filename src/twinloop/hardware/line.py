"""Commands on their way: each arrives when it arrives, none overtakes another, the newest arrived is in force."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ROUND_OFF = 1e-9


class CommandLine:
    """Commands ``(nworld, nu)`` with an arrival time each, counted in physics steps.

    Args:
        initial: what was in force before the first command, ``(nworld, nu)``.
    """

    def __init__(self, initial: NDArray[np.float64]) -> None:
        self._commands = initial[:, None].copy()  # (nworld, queue, nu), in the order of issue
        self._arrivals = np.full_like(self._commands, -np.inf)

    def send(self, command: NDArray[np.float64], arrival: NDArray[np.float64], now: NDArray[np.int64]) -> None:
        """Add a command ``(nworld, nu)`` that arrives at steps ``(nworld, nu)``, or right after the one before it."""
        settled = self._commands.shape[1] - 1
        while settled and not (self._arrivals[:, settled] <= now[:, None]).all():
            settled -= 1
        arrival = np.maximum(arrival, self._arrivals[:, -1])
        self._commands = np.concatenate([self._commands[:, settled:], command[:, None]], axis=1)
        self._arrivals = np.concatenate([self._arrivals[:, settled:], arrival[:, None]], axis=1)

    def in_force(self, now: NDArray[np.int64]) -> NDArray[np.float64]:
        """The newest command that has arrived at steps ``(nworld,)``, per actuator, ``(nworld, nu)``."""
        arrived = self._arrivals <= now[:, None, None] + _ROUND_OFF
        newest = np.count_nonzero(arrived, axis=1) - 1
        return np.take_along_axis(self._commands, newest[:, None], axis=1)[:, 0]
