"""Fit a baseline without physics to a servo arm: delay, second-order response and bias, joint by joint."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import expm
from scipy.optimize import least_squares
from scipy.signal import lfilter

from benchmarks.real_data.case import Array
from twinloop.simulate.replay_logs import ReplayLogs
from twinloop.stats import delay_series

_START = np.array([np.log(20.0), 0.0, 0.06, 0.0])  # 20 rad/s, critically damped, 60 ms, no bias


@dataclass(frozen=True, kw_only=True)
class SecondOrder:
    """Second-order response of n joints.

    Rows of ``params`` ``(n, 4)`` are ln of the natural frequency in rad/s, ln of the damping ratio, delay in s, and
    bias in the log's unit.
    """

    params: Array

    @classmethod
    def fit(cls, logs: ReplayLogs) -> SecondOrder:
        """Fit every joint by least squares to whole windows that start at rest at their first positions."""
        commands, rate = logs.units.from_si(logs.commands), logs.twin.control_hz
        found = []
        for joint in range(len(logs.joints)):
            command, measured = commands[..., joint], logs.measured[..., joint]
            valid = ~np.isnan(measured)

            def residual(
                point: Array, command: Array = command, measured: Array = measured, valid: NDArray[np.bool_] = valid
            ) -> Array:
                return (_response(point, command, measured[:, 0], rate) - measured)[valid]

            bounds = ([0.0, -3.0, 0.0, -np.inf], [6.0, 3.0, 0.5, np.inf])
            found.append(least_squares(residual, _START, bounds=bounds, x_scale=[0.1, 0.1, 0.01, 0.1]).x)
        return cls(params=np.array(found))

    def readings(self, logs: ReplayLogs) -> Array:
        """Predict positions ``(nwindow, nframe, n)`` in the log's units."""
        commands, rate = logs.units.from_si(logs.commands), logs.twin.control_hz
        columns = [
            _response(point, commands[..., joint], logs.measured[:, 0, joint], rate)
            for joint, point in enumerate(self.params)
        ]
        return np.stack(columns, axis=-1)


def _response(point: Array, command: Array, first: Array, rate: float) -> Array:
    """Simulate positions ``(nwindow, nframe)`` under held commands, from rest at ``first`` ``(nwindow,)``.

    ``point`` is a row of `SecondOrder.params`; ``rate`` is the frame rate in Hz.
    """
    frequency, damping = np.exp(point[:2])
    step = expm(
        np.array([[0.0, 1.0, 0.0], [-(frequency**2), -2.0 * damping * frequency, frequency**2], [0.0] * 3]) / rate
    )
    numerator = [0.0, step[0, 2], step[0, 1] * step[1, 2] - step[0, 2] * step[1, 1]]
    denominator = [1.0, -(step[0, 0] + step[1, 1]), step[0, 0] * step[1, 1] - step[0, 1] * step[1, 0]]
    late = delay_series(command[..., None], np.array([point[2] * rate]))[..., 0]
    drive = late + point[3] - first[:, None]
    return first[:, None] + np.asarray(lfilter(numerator, denominator, drive, axis=1))
