"""Estimate delay, noise and quantization between the real arm and its controllers, from logs of their rollouts."""

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
_FAST = 0.01  # s: longest control period from which a lag of a few ms can be estimated
_THIRD_DIFFERENCE = 20.0  # variance of a third difference of white noise of variance 1


@dataclass(frozen=True, kw_only=True)
class TorqueReading:
    """First-order response of the shoulder's measured torque to its command: time constant ``lag`` in s, and gain."""

    lag: float
    gain: float


def measured_wiring(rollouts: Sequence[Episode]) -> Wiring:
    """Estimate the real robot's `Wiring` from rollouts at a few hundred Hz.

    Noise is estimated from third differences of positions, minus the quantization noise. The motor lag is set to 0,
    because the lag of the measured torque (`torque_reading`) is attributed to the reading.

    Raises:
        InputError: If all rollouts are below 100 Hz.
    """
    return Wiring(late=1, noise=_noise(_fast_rollouts(rollouts)), quantum=QUANTUM, differences=True)


def torque_reading(rollouts: Sequence[Episode]) -> TorqueReading:
    """Fit a first-order response of measured torque to commanded torque.

    A drive reports the torque at the time of its previous command. A measured torque therefore depends on commands up
    to two steps earlier.

    Raises:
        InputError: If all rollouts are below 100 Hz.
    """
    fast = _fast_rollouts(rollouts)
    best = minimize_scalar(lambda lag: _response(fast, lag)[0], bounds=_LAGS, method="bounded")
    return TorqueReading(lag=float(best.x), gain=_response(fast, float(best.x))[1])


def _fast_rollouts(rollouts: Sequence[Episode]) -> list[Episode]:
    fast = [each for each in rollouts if np.median(np.diff(each.time)) < _FAST]
    if not fast:
        raise InputError(
            f"Lag and noise need a rollout recorded above 100 Hz. All {len(rollouts)} rollouts are slower."
        )
    return fast


def _response(rollouts: Sequence[Episode], lag: float) -> tuple[float, float]:
    """Return the squared error in N²m² of a first-order response with time constant ``lag`` s, and its best gain."""
    lagged, measured = [], []
    for rollout in rollouts:
        command, torque = rollout.action[:, 0], rollout.signals["joint_torque"].values[:, 0]
        fractions = 1 - np.exp(-np.diff(rollout.time) / lag)
        value, values = 0.0, np.zeros(len(command))
        for step, share in enumerate(fractions):  # the torque when the next command arrives
            value += share * (command[step] - value)
            values[step + 1] = value
        lagged.append(values[:-1])
        measured.append(torque[1:])
    x, y = np.concatenate(lagged), np.concatenate(measured)
    gain = float(x @ y / (x @ x))
    return float(np.sum((y - gain * x) ** 2)), gain


def _noise(rollouts: Sequence[Episode]) -> float:
    """Return the standard deviation of a position reading in rad, excluding quantization."""
    thirds = np.concatenate([np.diff(each.state, n=3, axis=0).ravel() for each in rollouts])
    variance = float(np.mean(thirds**2)) / _THIRD_DIFFERENCE
    return float(np.sqrt(max(variance - QUANTUM**2 / 12, 0.0)))
