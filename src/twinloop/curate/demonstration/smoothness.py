"""How smoothly the arm, each of its joints and the hand move: spectral arc length, and log dimensionless jerk.

Both measures are of one movement. An episode is cut into movements where the arm stands still; the figure is the mean
of its movements, each weighted by how long it lasts.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from twinloop.curate.check import Measured
from twinloop.curate.demonstration.hand import Hands
from twinloop.curate.demonstration.movement import Array, movement, movements
from twinloop.curate.demonstration.peers import AmongPeers, Kind
from twinloop.curate.recording import Recording
from twinloop.curate.registry import Twins
from twinloop.stats.series import log_dimensionless_jerk, spectral_arc_length

# Joints are many, and some move little: a fence half as far again leaves as few of them outside as of whole arms
# (measured on recorded and simulated pick-and-place; docs/quality.md).
_JOINTS = 1.5
# Of the arm's speed: a joint that is slower in a movement moves by its noise and its steps (our choice).
_OF_ARM = 0.3
HAND, ARM = "hand", ""


class _Smoothness(AmongPeers):
    """What both measures share: the movements, and which of them count.

    Args:
        twins: whose kinematics say where the hand is; without them joints alone are judged.
    """

    def __init__(self, twins: Twins | None = None) -> None:
        self._hands = Hands(twins)

    @abstractmethod
    def smoothness(self, velocity: Array, rate_hz: float) -> float:
        """Of one movement's velocities ``(T, k)``; more is smoother."""

    def measure(self, recording: Recording) -> Sequence[Measured]:
        """See `MeasuringCheck`: the arm, its joints, the hand."""
        motion = movement(recording)
        parts = movements(motion)
        if not parts:
            return [Measured(value=None, said="It does not move.")]
        moving, rate = motion.velocity, motion.rate_hz
        found = [self._of(ARM, moving, parts, rate)]
        for column, joint in enumerate(motion.arm):
            own = [(a, b) for a, b in parts if _rms(moving[a:b, [column]]) >= _OF_ARM * _rms(moving[a:b])]
            if own:
                found.append(self._of(motion.joints[joint], moving[:, [column]], own, rate))
        hand = self._hands.positions(recording)
        if hand is not None and len(hand) == len(motion):
            found.append(self._of(HAND, np.diff(hand, axis=0) * rate, parts, rate))
        return found

    def _of(self, channel: str, velocity: Array, parts: Sequence[tuple[int, int]], rate_hz: float) -> Measured:
        values = np.array([float(self.smoothness(velocity[a:b], rate_hz)) for a, b in parts])
        lasts = np.array([b - a for a, b in parts], dtype=np.float64)
        known = np.isfinite(values)
        if not known.any():
            return Measured(value=None, channel=channel, said="It does not move.")
        worst = int(np.nanargmin(np.where(known, values, np.nan)))
        begin, end = parts[worst]
        return Measured(
            value=float(np.average(values[known], weights=lasts[known])),
            channel=channel,
            said=f" (where it is roughest, from {begin / rate_hz:.1f} to {end / rate_hz:.1f} s, {values[worst]:.2f})",
            first_frame=begin,
            last_frame=end,
        )


def _rms(velocity: Array) -> float:
    return float(np.sqrt(np.mean(np.sum(velocity**2, axis=1))))


def _kinds(*, least: float, words: str) -> Mapping[str, Kind]:
    whole = Kind(worse="low", unit="1", least=least, words=words)
    return {ARM: whole, HAND: whole, "*": replace(whole, stretch=_JOINTS)}


class Smoothness(_Smoothness):
    """Spectral arc length: tremor, submovements and stops between 0 and 10 Hz."""

    name = "demonstration/smoothness"
    meaning = "spectral arc length (SPARC) of movements: arm, joints, hand"
    # Two reaches that flow into each other without a standstill count as one movement, less smooth by so much.
    kinds: Mapping[str, Kind] = _kinds(least=0.6, words="Its spectral arc length is")

    def smoothness(self, velocity: Array, rate_hz: float) -> float:
        """See the class."""
        return float(spectral_arc_length(np.sqrt(np.sum(velocity**2, axis=1)), rate_hz))


class Jerk(_Smoothness):
    """Log dimensionless jerk: what is faster than a hand's tremor too."""

    name = "demonstration/jerk"
    meaning = "log dimensionless jerk (LDLJ) of movements: arm, joints, hand"
    # 0.7 is a doubling of the squared jerk (our choice of what matters).
    kinds: Mapping[str, Kind] = _kinds(least=0.7, words="Its log dimensionless jerk is")

    def smoothness(self, velocity: Array, rate_hz: float) -> float:
        """See the class."""
        return min(float(log_dimensionless_jerk(velocity, rate_hz)), 0.0)
