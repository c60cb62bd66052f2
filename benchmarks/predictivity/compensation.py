"""Re-implement the robot's software around a controller: velocity filter, friction compensation, torque limits.

Form and constants of the filter are those of ``double_pendulum/filter/lowpass`` and of the leaderboard's hardware
scripts. The constants of the compensation are fitted to the logs, which store it with the command.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.records import Episode

Array = NDArray[np.float64]
LIMITS = np.array([5.0, 0.5])  # N·m: the passive joint's motor may compensate its own friction
ALPHA = 0.2  # weight of each new velocity
SPEED_CUT = 0.1  # rad/s, smaller velocities count as noise and are set to 0
_STEEPNESS = 100.0  # s/rad, of the smoothed sign


@dataclass(frozen=True, kw_only=True)
class Compensation:
    """Torque that cancels friction: c · 2/π · atan(100 q̇) + b · q̇, with c in N·m and b in N·m·s/rad per joint."""

    coulomb: Array
    viscous: Array

    def __call__(self, velocity: Array) -> Array:
        """Return torques in N·m for filtered velocities ``(…, 2)``."""
        return self.coulomb * _sign(velocity) + self.viscous * velocity

    @classmethod
    def of_logs(cls, episodes: Sequence[Episode]) -> Compensation:
        """Fit the constants to the signal ``friction_compensation`` of recorded rollouts.

        Raises:
            InputError: If no rollout has a friction compensation.
        """
        compensated = [each for each in episodes if np.any(_values(each, "friction_compensation"))]
        if not compensated:
            raise InputError(
                f"None of the {len(episodes)} rollouts has a friction compensation (signal friction_compensation)."
            )
        speeds = np.concatenate([_values(each, "filtered_velocity") for each in compensated])
        torques = np.concatenate([_values(each, "friction_compensation") for each in compensated])
        fits = [
            np.linalg.lstsq(np.stack([_sign(speed), speed], axis=-1), torque, rcond=None)[0]
            for speed, torque in zip(speeds.T, torques.T, strict=True)
        ]
        return cls(coulomb=np.array([row[0] for row in fits]), viscous=np.array([row[1] for row in fits]))


class SpeedFilter:
    """Low-pass filter of measured velocities; called once per control period."""

    def __init__(self, nworld: int) -> None:
        self._value = np.zeros((nworld, 2))

    def __call__(self, velocity: Array) -> Array:
        """Return filtered velocities ``(nworld, 2)``."""
        significant = np.where(np.abs(velocity) < SPEED_CUT, 0.0, velocity)
        self._value = (1 - ALPHA) * self._value + ALPHA * significant
        return self._value


def _sign(velocity: Array) -> Array:
    return 2 / np.pi * np.arctan(_STEEPNESS * velocity)


def _values(episode: Episode, name: str) -> Array:
    signal = episode.signals.get(name)
    return np.zeros((len(episode), 2)) if signal is None else signal.values
