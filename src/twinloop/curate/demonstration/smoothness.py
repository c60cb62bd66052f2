"""Check how smoothly and directly a demonstration moves: pauses, path length, spectral arc length, jerk.

Of the hand both are lengths in space. Of the joints they are sums over joints of how far each turns: joints that turn
at different times, as those of many arms do, bend the way in joint space and are no detour, but a joint that turns back
is one.

Both measures are of one movement. An episode is cut into movements where the arm stands still; the figure is the mean
of its movements, each weighted by how long it lasts.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.curate.check import Measurement
from twinloop.curate.demonstration.gripper import grip_events
from twinloop.curate.demonstration.movement import (
    PAUSE_S,
    Array,
    Movement,
    ToolPositions,
    movement,
    movements,
    still,
    stretches,
)
from twinloop.curate.demonstration.peers import MetricKind, PeerCheck
from twinloop.curate.recording import RecordedEpisode
from twinloop.curate.registry import EpisodeTwins
from twinloop.stats.series import log_dimensionless_jerk, spectral_arc_length

_GRIP_S = 0.5  # standing still while the gripper moves, and so long about it, is no hesitation
_ENDS = 0.02  # of the way: what lies before and after is the beginning and the end, and no middle (our choice)
TIME, COUNT = "", "pauses"


class Hesitation(PeerCheck):
    """How long and how often the arm stands still between its first and last movement, the gripper at rest too."""

    name = "demonstration/hesitation"
    meaning = "seconds and number of pauses in the middle, the gripper at rest too"
    kinds: Mapping[str, MetricKind] = {
        # A second in all, or two pauses more than usual, is what anybody may do (our choice).
        TIME: MetricKind(worse="high", unit="s", least=1.0, words="It stands still in the middle for"),
        COUNT: MetricKind(worse="high", unit="1", least=2.0, words="Pauses in the middle:", show="{:.0f}"),
    }

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """See `MeasuringCheck`."""
        motion = movement(recording)
        if motion.speed.max() <= 0:
            return [Measurement(value=None, channel=channel, said="It does not move.") for channel in (TIME, COUNT)]
        found = pauses(motion)
        lasts = np.array([(end - begin) / motion.rate_hz for begin, end in found])
        said, first, last = "", None, None
        if len(lasts):
            longest = int(np.argmax(lasts))
            first, last = found[longest]
            said = f" (the longest {lasts[longest]:.1f} s, from {first / motion.rate_hz:.1f} s on)"
        return [
            Measurement(value=float(lasts.sum()), channel=TIME, said=said, first_frame=first, last_frame=last),
            Measurement(value=float(len(lasts)), channel=COUNT, said=said, first_frame=first, last_frame=last),
        ]


def pauses(motion: Movement) -> list[tuple[int, int]]:
    """First and last frame of every pause between the first and the last fiftieth of the way."""
    way = np.cumsum(motion.speed) / np.sum(motion.speed)
    paused = still(motion) & ~_gripping(motion) & (way > _ENDS) & (way < 1.0 - _ENDS)
    return stretches(paused, PAUSE_S * motion.rate_hz)


def _gripping(motion: Movement) -> NDArray[np.bool_]:
    """Frames ``(T − 1,)`` at which, or shortly about which, the gripper moves or is told to."""
    near = np.zeros(len(motion) - 1, dtype=bool)
    if motion.gripper is None:
        return near
    for series in (motion.position, motion.command):
        if series is None:
            continue
        speed = np.abs(np.diff(series[:, motion.gripper]))
        if speed.max() > 0:
            near |= speed * motion.rate_hz >= 0.2 * float(np.ptp(series[:, motion.gripper]))
    reach = round(_GRIP_S * motion.rate_hz)
    return np.convolve(near, np.ones(2 * reach + 1), mode="same") > 0


_STEP_S = 0.2  # the way is measured between points so far apart, so that noise and tremor do not lengthen it
_RETURNS = 0.3  # of its furthest: a piece that ends nearer to its beginning went there and came back (our choice)
JOINTS, HAND = "joints", "hand"


class PathEfficiency(PeerCheck):
    """Straight way over way taken, in joint space and, with a twin, of the hand.

    The way is cut where the gripper closes or opens, and a piece that ends where it began where it is furthest from
    there; straight ways are summed over the pieces.

    Args:
        twins: whose kinematics say where the hand is; without them joints alone are judged.
    """

    name = "demonstration/path"
    meaning = "straight way over way taken between gripper events: in joint space, and of the hand"
    # A twentieth longer is not worth a word (our choice).
    kinds: Mapping[str, MetricKind] = {
        "*": MetricKind(worse="low", unit="1", least=0.05, words="Its path efficiency is")
    }

    def __init__(self, twins: EpisodeTwins | None = None) -> None:
        self._hands = ToolPositions(twins)

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """See `MeasuringCheck`."""
        motion = movement(recording)
        events = grip_events(motion)
        cuts = [] if events is None else [event.frame for event in events.changes]
        found = [_of(JOINTS, motion.position[:, motion.arm], cuts, motion.rate_hz)]
        hand = self._hands.positions(recording)
        return found if hand is None else [*found, _of(HAND, hand, cuts, motion.rate_hz)]


def path_pieces(
    points: Array, cuts: Sequence[int], rate_hz: float, *, norm: Literal[1, 2] = 2
) -> tuple[Array, Array, NDArray[np.intp]]:
    """Straight ways and ways taken of the pieces of a path ``(T, k)``, and the first frame of each and the last.

    ``norm`` is 2 for lengths in space and 1 for sums over columns.
    """
    last = len(points) - 1
    ends = sorted({0, last, *(cut for cut in cuts if 0 < cut < last)})
    pieces: list[int] = [0]
    for a, b in itertools.pairwise(ends):
        away = np.linalg.norm(points[a : b + 1] - points[a], ord=norm, axis=1)
        returns = bool(away[-1] < _RETURNS * away.max())
        pieces += [a + int(np.argmax(away))] * returns + [b]
    bounds = np.array(pieces, dtype=np.intp)
    step = max(1, round(_STEP_S * rate_hz))
    taken = np.array([_way(points[a : b + 1], step, norm) for a, b in itertools.pairwise(bounds)])
    return np.linalg.norm(np.diff(points[bounds], axis=0), ord=norm, axis=1), taken, bounds


def _way(points: Array, step: int, norm: Literal[1, 2]) -> float:
    coarse = np.concatenate([points[:-1:step], points[-1:]])
    return float(np.linalg.norm(np.diff(coarse, axis=0), ord=norm, axis=1).sum())


def _of(channel: str, points: Array, cuts: Sequence[int], rate_hz: float) -> Measurement:
    straight, taken, bounds = path_pieces(points, cuts, rate_hz, norm=2 if channel == HAND else 1)
    if taken.sum() <= 0:
        return Measurement(value=None, channel=channel, said="It does not move.")
    worst = int(np.argmax(taken - straight))
    first, last = int(bounds[worst]), int(bounds[worst + 1])
    said = f" (most is lost between {first / rate_hz:.1f} and {last / rate_hz:.1f} s)"
    value = float(straight.sum() / taken.sum())
    return Measurement(value=value, channel=channel, said=said, first_frame=first, last_frame=last)


# Joints are many, and some move little: a fence half as far again leaves as few of them outside as of whole arms
# (measured on recorded and simulated pick-and-place; docs/evidence/curation.md).
_JOINTS = 1.5
# Of the arm's speed: a joint that is slower in a movement moves by its noise and its steps (our choice).
_OF_ARM = 0.3
ARM = ""


class _Smoothness(PeerCheck):
    """What both measures share: the movements, and which of them count.

    Args:
        twins: whose kinematics say where the hand is; without them joints alone are judged.
    """

    def __init__(self, twins: EpisodeTwins | None = None) -> None:
        self._hands = ToolPositions(twins)

    @abstractmethod
    def smoothness(self, velocity: Array, rate_hz: float) -> float:
        """Of one movement's velocities ``(T, k)``; more is smoother."""

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """See `MeasuringCheck`: the arm, its joints, the hand."""
        motion = movement(recording)
        parts = movements(motion)
        if not parts:
            return [Measurement(value=None, said="It does not move.")]
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

    def _of(self, channel: str, velocity: Array, parts: Sequence[tuple[int, int]], rate_hz: float) -> Measurement:
        values = np.array([float(self.smoothness(velocity[a:b], rate_hz)) for a, b in parts])
        lasts = np.array([b - a for a, b in parts], dtype=np.float64)
        known = np.isfinite(values)
        if not known.any():
            return Measurement(value=None, channel=channel, said="It does not move.")
        worst = int(np.nanargmin(np.where(known, values, np.nan)))
        begin, end = parts[worst]
        return Measurement(
            value=float(np.average(values[known], weights=lasts[known])),
            channel=channel,
            said=f" (where it is roughest, from {begin / rate_hz:.1f} to {end / rate_hz:.1f} s, {values[worst]:.2f})",
            first_frame=begin,
            last_frame=end,
        )


def _rms(velocity: Array) -> float:
    return float(np.sqrt(np.mean(np.sum(velocity**2, axis=1))))


def _kinds(*, least: float, words: str) -> Mapping[str, MetricKind]:
    whole = MetricKind(worse="low", unit="1", least=least, words=words)
    return {ARM: whole, HAND: whole, "*": replace(whole, stretch=_JOINTS)}


class Smoothness(_Smoothness):
    """Spectral arc length: tremor, submovements and stops between 0 and 10 Hz."""

    name = "demonstration/smoothness"
    meaning = "spectral arc length (SPARC) of movements: arm, joints, hand"
    # Two reaches that flow into each other without a standstill count as one movement, less smooth by so much.
    kinds: Mapping[str, MetricKind] = _kinds(least=0.6, words="Its spectral arc length is")

    def smoothness(self, velocity: Array, rate_hz: float) -> float:
        """See the class."""
        return float(spectral_arc_length(np.sqrt(np.sum(velocity**2, axis=1)), rate_hz))


class DimensionlessJerk(_Smoothness):
    """Log dimensionless jerk: what is faster than a hand's tremor too."""

    name = "demonstration/jerk"
    meaning = "log dimensionless jerk (LDLJ) of movements: arm, joints, hand"
    # 0.7 is a doubling of the squared jerk (our choice of what matters).
    kinds: Mapping[str, MetricKind] = _kinds(least=0.7, words="Its log dimensionless jerk is")

    def smoothness(self, velocity: Array, rate_hz: float) -> float:
        """See the class."""
        return min(float(log_dimensionless_jerk(velocity, rate_hz)), 0.0)
