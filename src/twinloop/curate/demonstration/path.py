"""How directly a demonstration goes where it goes: straight way over way taken, between what the gripper does.

Of the hand both are lengths in space. Of the joints they are sums over joints of how far each turns: joints that turn
at different times, as those of many arms do, bend the way in joint space and are no detour, but a joint that turns back
is one.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.curate.check import Measured
from twinloop.curate.demonstration.grip import grip_events
from twinloop.curate.demonstration.hand import Hands
from twinloop.curate.demonstration.movement import Array, movement
from twinloop.curate.demonstration.peers import AmongPeers, Kind
from twinloop.curate.recording import Recording
from twinloop.curate.registry import Twins

_STEP_S = 0.2  # the way is measured between points so far apart, so that noise and tremor do not lengthen it
_RETURNS = 0.3  # of its furthest: a piece that ends nearer to its beginning went there and came back (our choice)
JOINTS, HAND = "joints", "hand"


class PathEfficiency(AmongPeers):
    """Straight way over way taken, in joint space and, with a twin, of the hand.

    The way is cut where the gripper closes or opens, and a piece that ends where it began where it is furthest from
    there; straight ways are summed over the pieces.

    Args:
        twins: whose kinematics say where the hand is; without them joints alone are judged.
    """

    name = "demonstration/path"
    meaning = "straight way over way taken between gripper events: in joint space, and of the hand"
    # A twentieth longer is not worth a word (our choice).
    kinds: Mapping[str, Kind] = {"*": Kind(worse="low", unit="1", least=0.05, words="Its path efficiency is")}

    def __init__(self, twins: Twins | None = None) -> None:
        self._hands = Hands(twins)

    def measure(self, recording: Recording) -> Sequence[Measured]:
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


def _of(channel: str, points: Array, cuts: Sequence[int], rate_hz: float) -> Measured:
    straight, taken, bounds = path_pieces(points, cuts, rate_hz, norm=2 if channel == HAND else 1)
    if taken.sum() <= 0:
        return Measured(value=None, channel=channel, said="It does not move.")
    worst = int(np.argmax(taken - straight))
    first, last = int(bounds[worst]), int(bounds[worst + 1])
    said = f" (most is lost between {first / rate_hz:.1f} and {last / rate_hz:.1f} s)"
    value = float(straight.sum() / taken.sum())
    return Measured(value=value, channel=channel, said=said, first_frame=first, last_frame=last)
