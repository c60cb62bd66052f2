"""Which picture stands before the robot when a command is due: a camera's own clock, and the way to the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.params import SeedPath
from twinloop.sensors.sampling import newest_sample

_ROUND_OFF = 1e-9  # s; an arrival this much later is on time


@dataclass(frozen=True, kw_only=True)
class CaptureClock:
    """When pictures are taken and how they arrive; numbers, or ``(nworld,)`` each.

    Picture k, from 0, is taken at (``frame_phase`` + k) / ``frame_rate``; with a rate of 0, whenever one is asked for.
    It arrives ``latency`` later, and later still by a time that is uniform between 0 and ``latency_jitter``, but never
    before the one before it. With probability ``drop_rate`` it never arrives, and with probability
    ``duplicate_rate`` what arrives in its place is once more the one before.
    """

    frame_rate: ArrayLike = 0.0
    frame_phase: ArrayLike = 0.0
    latency: ArrayLike = 0.0
    latency_jitter: ArrayLike = 0.0
    drop_rate: ArrayLike = 0.0
    duplicate_rate: ArrayLike = 0.0

    def column(self, name: str) -> NDArray[np.float64]:
        """One of the quantities, ``(nworld, 1)`` or ``(1, 1)``."""
        return np.asarray(getattr(self, name), dtype=np.float64).reshape(-1, 1)

    @property
    def by_chance(self) -> bool:
        """Whether any picture is late, lost or repeated by chance."""
        return any(bool((self.column(name) > 0.0).any()) for name in ("latency_jitter", "drop_rate", "duplicate_rate"))


class Captures(NamedTuple):
    """What stands before the robot at each step, ``(nworld, nstep)`` each.

    ``taken`` is the time of the picture in s (`shutter`: the middle of its exposure) and ``number`` which it is: 0 is
    what was seen at time 0, which stands until a first picture arrives, and k + 1 is picture k. A number seen again is
    the same picture, to the bit. ``arrived`` says when the host last received one, the same or another, and is when it
    believes to have seen something new; it is 0 before.
    """

    taken: NDArray[np.float64]
    number: NDArray[np.int64]
    arrived: NDArray[np.float64]


def captures(time: ArrayLike, clock: CaptureClock, *, seeds: SeedPath | None = None, stream: str = "") -> Captures:
    """The newest picture that has arrived when asked at ``time``, ``(nworld, nstep)`` in s, increasing from 0 on.

    Args:
        seeds: of each world; what happens to a picture is a function of these, ``stream`` and its number alone.
        stream: names the camera among all that is drawn, such as ``sensor/front/captures``.

    Raises:
        InputError: chance is asked for and seeds are not given.
    """
    asked = np.asarray(time, dtype=np.float64)
    rate, phase, latency = (clock.column(name) for name in ("frame_rate", "frame_phase", "latency"))
    taken, newest = newest_sample(asked, rate=rate, phase=phase, delay=latency)
    if not clock.by_chance:
        return Captures(taken, newest, np.where(newest > 0, np.minimum(taken + latency, asked), 0.0))
    if seeds is None:
        raise InputError(
            "Pictures that are late, lost or repeated by chance need seeds. Give the table of parameters its seed path."
        )
    times, arrivals, shown = _deliveries(asked, clock, int(newest.max()), seeds, stream)
    slot = newest
    while (late := np.take_along_axis(arrivals, slot, axis=1) > asked + _ROUND_OFF).any():
        slot = np.where(late, slot - 1, slot)
    number = np.take_along_axis(shown, slot, axis=1)
    taken = np.maximum(np.minimum(np.take_along_axis(times, number, axis=1), asked - latency), 0.0)
    return Captures(taken, number, np.minimum(np.take_along_axis(arrivals, slot, axis=1), asked))


def _deliveries(
    asked: NDArray[np.float64], clock: CaptureClock, last: int, seeds: SeedPath, stream: str
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """What becomes of the pictures 0 to ``last``, ``(nworld, last + 1)`` each.

    Returns:
        When each was taken, when it or the one before it had arrived, and which picture the host then has.
    """
    rate, jitter = clock.column("frame_rate"), clock.column("latency_jitter")
    chance = _chance(len(asked), last, seeds, stream)
    wait = clock.column("latency") + jitter * chance[..., 0]
    lost = chance[..., 1] < clock.column("drop_rate")
    stale = lost | (chance[..., 2] < clock.column("duplicate_rate"))
    number = np.arange(last + 1)
    clocked = np.broadcast_to(rate > 0.0, lost.shape)
    asking = asked[:, np.clip(number - 1, 0, asked.shape[1] - 1)]
    ticks = (clock.column("frame_phase") + number - 1.0) / np.where(rate > 0.0, rate, 1.0)
    # One that is taken when asked for arrives then: being late means being taken earlier.
    times = np.where(clocked, ticks, np.maximum.accumulate(np.maximum(asking - wait, 0.0), axis=1))
    arrivals = np.where(lost, 0.0, np.where(clocked, ticks + wait, asking))
    times[:, 0] = arrivals[:, 0] = 0.0
    stale[:, 0] = False
    shown = np.maximum.accumulate(np.where(stale, 0, number), axis=1)
    return times, np.maximum.accumulate(arrivals, axis=1), shown


def _chance(nworld: int, last: int, seeds: SeedPath, stream: str) -> NDArray[np.float64]:
    """Three uniform numbers of each picture: how late, whether lost, whether repeated, ``(nworld, last + 1, 3)``."""
    paths = seeds.take(np.repeat(np.arange(nworld), last + 1))
    return paths.uniforms(stream, size=3, step=np.tile(np.arange(last + 1), nworld)).reshape(nworld, last + 1, 3)
