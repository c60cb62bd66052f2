"""What a twin must beat: guesses that know nothing of physics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.simulate.replay_logs import ReplayLogs
from twinloop.stats import best_lag, delayed


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A guess at every reading, ``(nepisode, nframe, n)`` in log units, and what it is."""

    name: str
    meaning: str
    readings: NDArray[np.float64]


def baselines(logs: ReplayLogs, lag_logs: ReplayLogs) -> tuple[Baseline, ...]:
    """Command taken as position (position-controlled robots), the best pure delay of it, and hold.

    Args:
        logs: the episodes to be guessed.
        lag_logs: the episodes on which the delay of each joint is chosen; it must not be told by ``logs``.
    """
    hold = Baseline(
        name="hold",
        meaning="the first frame held to the end",
        readings=logs.held,
    )
    positions_alone = len(logs.channels) == len(logs.joints)
    if not positions_alone or logs.twin.robot.control != "position":
        return (hold,)
    command = logs.units.from_si(logs.commands)
    lag = best_lag(lag_logs.units.from_si(lag_logs.commands), lag_logs.measured)
    shifts = ", ".join(f"{value / logs.twin.control_hz * 1e3:.0f}" for value in lag)
    return (
        Baseline(name="command", meaning="the command taken as position", readings=command),
        Baseline(name="delay", meaning=f"the command {shifts} ms late, joint by joint", readings=delayed(command, lag)),
        hold,
    )
