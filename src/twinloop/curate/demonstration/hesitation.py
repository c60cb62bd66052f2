"""Pauses in the middle of a movement, by the demonstrator's own speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from twinloop.curate.check import Measured
from twinloop.curate.demonstration.movement import PAUSE_S, Movement, movement, still, stretches
from twinloop.curate.demonstration.peers import AmongPeers, Kind
from twinloop.curate.recording import Recording

_GRIP_S = 0.5  # standing still while the gripper moves, and so long about it, is no hesitation
_ENDS = 0.02  # of the way: what lies before and after is the beginning and the end, and no middle (our choice)
TIME, COUNT = "", "pauses"


class Hesitation(AmongPeers):
    """How long and how often the arm stands still between its first and last movement, the gripper at rest too."""

    name = "demonstration/hesitation"
    meaning = "seconds and number of pauses in the middle, the gripper at rest too"
    kinds: Mapping[str, Kind] = {
        # A second in all, or two pauses more than usual, is what anybody may do (our choice).
        TIME: Kind(worse="high", unit="s", least=1.0, words="It stands still in the middle for"),
        COUNT: Kind(worse="high", unit="1", least=2.0, words="Pauses in the middle:", show="{:.0f}"),
    }

    def measure(self, recording: Recording) -> Sequence[Measured]:
        """See `MeasuringCheck`."""
        motion = movement(recording)
        if motion.speed.max() <= 0:
            return [Measured(value=None, channel=channel, said="It does not move.") for channel in (TIME, COUNT)]
        found = pauses(motion)
        lasts = np.array([(end - begin) / motion.rate_hz for begin, end in found])
        said, first, last = "", None, None
        if len(lasts):
            longest = int(np.argmax(lasts))
            first, last = found[longest]
            said = f" (the longest {lasts[longest]:.1f} s, from {first / motion.rate_hz:.1f} s on)"
        return [
            Measured(value=float(lasts.sum()), channel=TIME, said=said, first_frame=first, last_frame=last),
            Measured(value=float(len(lasts)), channel=COUNT, said=said, first_frame=first, last_frame=last),
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
