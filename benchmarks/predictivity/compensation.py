"""What the robot's software puts around a controller: a filter of speeds, a compensation of friction, torque limits.

Form and constants of the filter are those of ``double_pendulum/filter/lowpass`` and of the leaderboard's hardware
scripts; the compensation's constants are read off the logs, which keep it beside the command.
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
ALPHA = 0.2  # of each new speed
SPEED_CUT = 0.1  # rad/s, below which a speed counts as noise and as 0
_STEEPNESS = 100.0  # s/rad, of the smoothed sign


@dataclass(frozen=True, kw_only=True)
class Compensation:
    """Torque that cancels friction: c · 2/π · atan(100 q̇) + b · q̇ per joint (N·m, N·m·s/rad)."""

    coulomb: Array
    viscous: Array

    def __call__(self, velocity: Array) -> Array:
        """Torques of filtered speeds ``(…, 2)``."""
        return self.coulomb * _sign(velocity) + self.viscous * velocity

    @classmethod
    def of_logs(cls, episodes: Sequence[Episode]) -> Compensation:
        """The constants with which rollouts were recorded, from their ``friction_compensation``.

        Raises:
            InputError: no log keeps it, or none was compensated.
        """
        kept = [each for each in episodes if np.any(_values(each, "friction_compensation"))]
        if not kept:
            raise InputError(f"None of {len(episodes)} rollouts was recorded with a compensation of friction.")
        speeds = np.concatenate([_values(each, "filtered_velocity") for each in kept])
        torques = np.concatenate([_values(each, "friction_compensation") for each in kept])
        found = [
            np.linalg.lstsq(np.stack([_sign(speed), speed], axis=-1), torque, rcond=None)[0]
            for speed, torque in zip(speeds.T, torques.T, strict=True)
        ]
        return cls(coulomb=np.array([row[0] for row in found]), viscous=np.array([row[1] for row in found]))


class SpeedFilter:
    """The low-pass of measured speeds, one call a period."""

    def __init__(self, nworld: int) -> None:
        self._value = np.zeros((nworld, 2))

    def __call__(self, velocity: Array) -> Array:
        """Filtered speeds ``(nworld, 2)``."""
        heard = np.where(np.abs(velocity) < SPEED_CUT, 0.0, velocity)
        self._value = (1 - ALPHA) * self._value + ALPHA * heard
        return self._value


def _sign(velocity: Array) -> Array:
    return 2 / np.pi * np.arctan(_STEEPNESS * velocity)


def _values(episode: Episode, name: str) -> Array:
    signal = episode.signals.get(name)
    return np.zeros((len(episode), 2)) if signal is None else signal.values
