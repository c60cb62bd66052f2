"""What lies between the real arm and its controllers, measured on the logs of their rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from benchmarks.predictivity.closed_loop import Wiring
from twinloop.core.errors import InputError
from twinloop.core.records import Episode

Array = NDArray[np.float64]
QUANTUM = 25.0 / (2**16 - 1)  # rad: positions travel as 16 bits over ±12.5 rad, and all recorded ones are multiples
_LAGS = (2e-4, 2e-2)  # s
_FAST = 0.01  # s: periods of rollouts that can tell a lag of some ms
_THIRD_DIFFERENCE = 20.0  # variance of a third difference of white noise of variance 1


@dataclass(frozen=True, kw_only=True)
class TorqueReading:
    """How the shoulder's measured torque follows its command: time constant in s, and gain."""

    lag: float
    gain: float


def measured_wiring(rollouts: Sequence[Episode]) -> Wiring:
    """The real robot's wiring, from rollouts at a few hundred Hz; noise is what third differences hold beyond rounding.

    Torque is taken to follow commands at once: that the measured torque lags (`torque_reading`) is the reading's doing.

    Raises:
        InputError: all rollouts are too slow to tell.
    """
    return Wiring(late=1, noise=_noise(_fast(rollouts)), quantum=QUANTUM, differences=True)


def torque_reading(rollouts: Sequence[Episode]) -> TorqueReading:
    """The first-order response that fits measured torques best.

    A drive reports the torque it had when it got the command before, so that what is measured at a step answers to
    commands up to two steps before.

    Raises:
        InputError: all rollouts are too slow to tell.
    """
    fast = _fast(rollouts)
    best = minimize_scalar(lambda lag: _response(fast, lag)[0], bounds=_LAGS, method="bounded")
    return TorqueReading(lag=float(best.x), gain=_response(fast, float(best.x))[1])


def _fast(rollouts: Sequence[Episode]) -> list[Episode]:
    fast = [each for each in rollouts if np.median(np.diff(each.time)) < _FAST]
    if not fast:
        raise InputError(f"None of {len(rollouts)} rollouts was recorded fast enough (100 Hz) to tell lag and noise.")
    return fast


def _response(rollouts: Sequence[Episode], lag: float) -> tuple[float, float]:
    """Squared error of the shoulder's measured torque as a lagged command, and the gain that makes it least."""
    lagged, measured = [], []
    for rollout in rollouts:
        command, torque = rollout.action[:, 0], rollout.signals["joint_torque"].values[:, 0]
        kept = 1 - np.exp(-np.diff(rollout.time) / lag)
        value, values = 0.0, np.zeros(len(command))
        for step, share in enumerate(kept):  # the torque when the next command arrives
            value += share * (command[step] - value)
            values[step + 1] = value
        lagged.append(values[:-1])
        measured.append(torque[1:])
    x, y = np.concatenate(lagged), np.concatenate(measured)
    gain = float(x @ y / (x @ x))
    return float(np.sum((y - gain * x) ** 2)), gain


def _noise(rollouts: Sequence[Episode]) -> float:
    """Standard deviation of a position reading in rad, without the rounding's."""
    thirds = np.concatenate([np.diff(each.state, n=3, axis=0).ravel() for each in rollouts])
    variance = float(np.mean(thirds**2)) / _THIRD_DIFFERENCE
    return float(np.sqrt(max(variance - QUANTUM**2 / 12, 0.0)))
