"""Check how smooth and direct a demonstration is: pauses, path length, spectral arc length and jerk.

The path length of the hand is a length in space. The path length of the joints is the sum over the joints' rotations.
This sum does not grow if an arm moves its joints one after the other instead of together. It grows if a joint reverses
its motion.

Spectral arc length and jerk are defined for one movement. An episode is split into movements where the arm is at rest.
The value is the mean over the movements, weighted by their duration.
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
from twinloop.curate.demonstration.gripper import find_grip_events
from twinloop.curate.demonstration.movement import (
    PAUSE_S,
    Array,
    Movement,
    ToolPositions,
    compute_movement,
    find_long_runs,
    find_rest,
    split_movements,
)
from twinloop.curate.demonstration.peers import MetricKind, PeerCheck
from twinloop.curate.recording import RecordedEpisode
from twinloop.curate.registry import EpisodeTwins
from twinloop.stats.series import log_dimensionless_jerk, spectral_arc_length

_GRIP_S = 0.5  # rest within this time of a gripper motion is not a hesitation
_ENDS = 0.02  # share of the path at each end that does not count as the middle (our choice)
TIME, COUNT = "", "pauses"


class Hesitation(PeerCheck):
    """Check for pauses between the first and the last movement in which neither arm nor gripper moves.

    The values are the total duration and the number of these pauses.
    """

    name = "demonstration/hesitation"
    meaning = "total duration and number of pauses in the middle, with the gripper at rest too"
    kinds: Mapping[str, MetricKind] = {
        # One second in total, or two pauses more than usual, is acceptable (our choice).
        TIME: MetricKind(worse="high", unit="s", least_difference=1.0, reason_prefix="It pauses in the middle for"),
        COUNT: MetricKind(
            worse="high", unit="1", least_difference=2.0, reason_prefix="Pauses in the middle:", value_format="{:.0f}"
        ),
    }

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return the total duration in s and the number of the pauses: rests of at least 0.3 s, see `find_pauses`."""
        motion = compute_movement(recording)
        if motion.speed.max() <= 0:
            return [Measurement(value=None, channel=channel, text="It does not move.") for channel in (TIME, COUNT)]
        found = find_pauses(motion)
        lasts = np.array([(end - begin) / motion.rate_hz for begin, end in found])
        said, first, last = "", None, None
        if len(lasts):
            longest = int(np.argmax(lasts))
            first, last = found[longest]
            said = f" (the longest {lasts[longest]:.1f} s, from {first / motion.rate_hz:.1f} s on)"
        return [
            Measurement(value=float(lasts.sum()), channel=TIME, text=said, first_frame=first, last_frame=last),
            Measurement(value=float(len(lasts)), channel=COUNT, text=said, first_frame=first, last_frame=last),
        ]


def find_pauses(motion: Movement) -> list[tuple[int, int]]:
    """Return start and end (exclusive) of every pause of arm and gripper, as indices of steps between frames.

    In a pause, the arm is at rest (see `find_rest`) for at least 0.3 s, and the gripper does not move within 0.5 s.
    Pauses in the first and the last 2 % of the path do not count.
    """
    way = np.cumsum(motion.speed) / np.sum(motion.speed)
    paused = find_rest(motion) & ~_find_gripper_motion(motion) & (way > _ENDS) & (way < 1.0 - _ENDS)
    return find_long_runs(paused, PAUSE_S * motion.rate_hz)


def _find_gripper_motion(motion: Movement) -> NDArray[np.bool_]:
    """Return the mask ``(T - 1,)`` of the steps within 0.5 s of a motion or command of the gripper."""
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


_STEP_S = 0.2  # path length is measured between points this far apart, so that noise and tremor do not add to it
_RETURNS = 0.3  # of its largest distance: a piece that ends nearer to its start went out and came back (our choice)
JOINTS, HAND = "joints", "hand"


class PathEfficiency(PeerCheck):
    """Check for detours, by straight distance over path length, of the joints and, if there is a twin, of the hand.

    The path is split where the gripper closes or opens. A piece that ends near its start is split again at its furthest
    point. Straight distances are summed over the pieces.

    Args:
        twins: function that returns the twin of an episode; its kinematics give the hand position. If None, only joints
            are judged.
    """

    name = "demonstration/path"
    meaning = "straight distance over path length between gripper events: in joint space, and of the hand"
    # A path that is 5 % longer is acceptable (our choice).
    kinds: Mapping[str, MetricKind] = {
        "*": MetricKind(worse="low", unit="1", least_difference=0.05, reason_prefix="Its path efficiency is")
    }

    def __init__(self, twins: EpisodeTwins | None = None) -> None:
        self._hands = ToolPositions(twins)

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return straight distance over path length, of the joints and, if there is a twin, of the hand."""
        motion = compute_movement(recording)
        events = find_grip_events(motion)
        cuts = [] if events is None else [event.frame for event in events.changes]
        found = [_measure_path(JOINTS, motion.position[:, motion.arm], cuts, motion.rate_hz)]
        hand = self._hands.compute_positions(recording)
        return found if hand is None else [*found, _measure_path(HAND, hand, cuts, motion.rate_hz)]


def split_path(
    points: Array, cuts: Sequence[int], rate_hz: float, *, norm: Literal[1, 2] = 2
) -> tuple[Array, Array, NDArray[np.intp]]:
    """Split a path into pieces, and measure the straight distance and the path length of each piece.

    A piece that ends near its start is split again at its furthest point.

    Args:
        points: points of the path ``(T, k)`` for T frames.
        cuts: frames at which the path is split, for example those at which the gripper closes or opens.
        rate_hz: frames per second. Path length is measured between points 0.2 s apart, so that noise does not add to
            it.
        norm: 2 for lengths in space, 1 for sums over the k columns (joints).

    Returns:
        Straight distance of each piece ``(n,)``, length of each piece ``(n,)``, and the frames that bound the pieces
            ``(n + 1,)``.
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
    taken = np.array([_measure_path_length(points[a : b + 1], step, norm) for a, b in itertools.pairwise(bounds)])
    return np.linalg.norm(np.diff(points[bounds], axis=0), ord=norm, axis=1), taken, bounds


def _measure_path_length(points: Array, step: int, norm: Literal[1, 2]) -> float:
    coarse = np.concatenate([points[:-1:step], points[-1:]])
    return float(np.linalg.norm(np.diff(coarse, axis=0), ord=norm, axis=1).sum())


def _measure_path(channel: str, points: Array, cuts: Sequence[int], rate_hz: float) -> Measurement:
    straight, taken, bounds = split_path(points, cuts, rate_hz, norm=2 if channel == HAND else 1)
    if taken.sum() <= 0:
        return Measurement(value=None, channel=channel, text="It does not move.")
    worst = int(np.argmax(taken - straight))
    first, last = int(bounds[worst]), int(bounds[worst + 1])
    said = f" (the longest detour is between {first / rate_hz:.1f} and {last / rate_hz:.1f} s)"
    value = float(straight.sum() / taken.sum())
    return Measurement(value=value, channel=channel, text=said, first_frame=first, last_frame=last)


# There are many joints, and some move little. A fence 1.5 times as wide gives as few false alarms for joints as for
# whole arms (measured on recorded and simulated pick-and-place; docs/evidence/curation.md).
_JOINTS = 1.5
# Of the arm's speed: the motion of a slower joint is mostly noise and resolution steps (our choice).
_OF_ARM = 0.3
ARM = ""


class _Smoothness(PeerCheck):
    """Base class of the two smoothness checks; it splits an episode into movements and averages over them.

    Args:
        twins: function that returns the twin of an episode; its kinematics give the hand position. If None, only joints
            are judged.
    """

    def __init__(self, twins: EpisodeTwins | None = None) -> None:
        self._hands = ToolPositions(twins)

    @abstractmethod
    def compute_smoothness(self, velocity: Array, rate_hz: float) -> float:
        """Return the smoothness of one movement; larger is smoother.

        Args:
            velocity: velocities ``(T, k)`` of k joints or space axes.
            rate_hz: frames per second.
        """

    def measure(self, recording: RecordedEpisode) -> Sequence[Measurement]:
        """Return the smoothness of the arm, of each joint that moves, and of the hand if there is a twin."""
        motion = compute_movement(recording)
        parts = split_movements(motion)
        if not parts:
            return [Measurement(value=None, text="It does not move.")]
        moving, rate = motion.velocity, motion.rate_hz
        found = [self._measure_channel(ARM, moving, parts, rate)]
        for column, joint in enumerate(motion.arm):
            own = [
                (a, b) for a, b in parts if _compute_rms(moving[a:b, [column]]) >= _OF_ARM * _compute_rms(moving[a:b])
            ]
            if own:
                found.append(self._measure_channel(motion.joints[joint], moving[:, [column]], own, rate))
        hand = self._hands.compute_positions(recording)
        if hand is not None and len(hand) == len(motion):
            found.append(self._measure_channel(HAND, np.diff(hand, axis=0) * rate, parts, rate))
        return found

    def _measure_channel(
        self, channel: str, velocity: Array, parts: Sequence[tuple[int, int]], rate_hz: float
    ) -> Measurement:
        values = np.array([float(self.compute_smoothness(velocity[a:b], rate_hz)) for a, b in parts])
        lasts = np.array([b - a for a, b in parts], dtype=np.float64)
        known = np.isfinite(values)
        if not known.any():
            return Measurement(value=None, channel=channel, text="It does not move.")
        worst = int(np.nanargmin(np.where(known, values, np.nan)))
        begin, end = parts[worst]
        return Measurement(
            value=float(np.average(values[known], weights=lasts[known])),
            channel=channel,
            text=f" (least smooth from {begin / rate_hz:.1f} to {end / rate_hz:.1f} s, {values[worst]:.2f})",
            first_frame=begin,
            last_frame=end,
        )


def _compute_rms(velocity: Array) -> float:
    return float(np.sqrt(np.mean(np.sum(velocity**2, axis=1))))


def _make_kinds(*, least: float, words: str) -> Mapping[str, MetricKind]:
    whole = MetricKind(worse="low", unit="1", least_difference=least, reason_prefix=words)
    return {ARM: whole, HAND: whole, "*": replace(whole, limit_factor=_JOINTS)}


class Smoothness(_Smoothness):
    """Check for unsmooth movements by spectral arc length (SPARC).

    It is sensitive to tremor, submovements and stops at frequencies from 0 to 10 Hz. An episode is unsmooth if its mean
    value is below a limit from comparable episodes (see `demonstration.peers`), which is at least 0.6 below their
    median.
    """

    name = "demonstration/smoothness"
    meaning = "spectral arc length (SPARC) of movements: arm, joints, hand"
    # Two reaches without rest between them count as one movement, which is less smooth by this amount.
    kinds: Mapping[str, MetricKind] = _make_kinds(least=0.6, words="Its spectral arc length is")

    def compute_smoothness(self, velocity: Array, rate_hz: float) -> float:
        """Return the spectral arc length of the speed; it is negative, and nearer to 0 for smoother motion."""
        return float(spectral_arc_length(np.sqrt(np.sum(velocity**2, axis=1)), rate_hz))


class DimensionlessJerk(_Smoothness):
    """Check for unsmooth movements by log dimensionless jerk (LDLJ).

    Unlike the spectral arc length, it is also sensitive to motion above 10 Hz, faster than the tremor of a human hand.
    """

    name = "demonstration/jerk"
    meaning = "log dimensionless jerk (LDLJ) of movements: arm, joints, hand"
    # 0.7 is a doubling of the squared jerk (our choice of what matters).
    kinds: Mapping[str, MetricKind] = _make_kinds(least=0.7, words="Its log dimensionless jerk is")

    def compute_smoothness(self, velocity: Array, rate_hz: float) -> float:
        """Return the log dimensionless jerk of the velocity, at most 0; it is nearer to 0 for smoother motion.

        Args:
            velocity: velocities ``(T, k)`` of k joints or space axes, in any unit.
            rate_hz: frames per second.
        """
        return min(float(log_dimensionless_jerk(velocity, rate_hz)), 0.0)
