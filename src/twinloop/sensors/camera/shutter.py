"""Compute which image is available at a command, and the exposure times of its rows.

An image begins with its first row. Row r of h is exposed from r · readout / h on, for ``exposure_time`` (Meingast,
Geyer & Sastry, "Geometric models of rolling-shutter cameras", OMNIVIS 2005), all rows of a global shutter from 0 on.
**The time of an image** is the middle of the exposure of its row h / 2, which is half of readout plus exposure after
its beginning: an object in uniform motion appears in that row at its position at that time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import SeedPath
from twinloop.sensors.camera.remap import Remap
from twinloop.sensors.sampling import find_newest_sample

_ROUND_OFF = 1e-9  # s; an arrival later by this is still on time


@dataclass(frozen=True, kw_only=True)
class CaptureClock:
    """Times of images and of their arrival; numbers, or ``(nworld,)`` each.

    Image k, from 0, is taken at (``frame_phase`` + k) / ``frame_rate``; with a rate of 0, at every request. It arrives
    ``latency`` later plus a time that is uniform between 0 and ``latency_jitter``, but never before the previous one.
    With probability ``drop_rate`` it never arrives, and with probability ``duplicate_rate`` the previous one arrives
    again instead.
    """

    frame_rate: ArrayLike = 0.0
    frame_phase: ArrayLike = 0.0
    latency: ArrayLike = 0.0
    latency_jitter: ArrayLike = 0.0
    drop_rate: ArrayLike = 0.0
    duplicate_rate: ArrayLike = 0.0

    def column(self, name: str) -> NDArray[np.float64]:
        """Return one of the quantities, ``(nworld, 1)`` or ``(1, 1)``."""
        return np.asarray(getattr(self, name), dtype=np.float64).reshape(-1, 1)

    @property
    def is_random(self) -> bool:
        """Return whether any image is randomly late, lost or repeated."""
        return any(bool((self.column(name) > 0.0).any()) for name in ("latency_jitter", "drop_rate", "duplicate_rate"))


class DeliveredCaptures(NamedTuple):
    """The available image at each step, ``(nworld, nstep)`` each.

    ``taken`` is the time of the image in s (`shutter`: the middle of its exposure) and ``number`` its number: 0 is the
    image at time 0, which is used until a first image arrives, and k + 1 is image k. The same number is the same image,
    to the bit. ``arrived`` is the last time at which the host received an image, new or repeated, and thus its time
    stamp for new data; it is 0 before.
    """

    taken: NDArray[np.float64]
    number: NDArray[np.int64]
    arrived: NDArray[np.float64]


def find_delivered_captures(
    time: ArrayLike, clock: CaptureClock, *, seeds: SeedPath | None = None, stream: str = ""
) -> DeliveredCaptures:
    """Return the newest image that has arrived at ``time``, ``(nworld, nstep)`` in s, increasing from 0 on.

    Args:
        seeds: seeds of each world; the timing of an image depends only on these, ``stream`` and its number.
        stream: identifies the camera among all draws, such as ``sensor/front/captures``.

    Raises:
        InputError: the clock has random effects and there are no seeds.
    """
    asked = np.asarray(time, dtype=np.float64)
    rate, phase, latency = (clock.column(name) for name in ("frame_rate", "frame_phase", "latency"))
    taken, newest = find_newest_sample(asked, rate=rate, phase=phase, delay=latency)
    if not clock.is_random:
        return DeliveredCaptures(taken, newest, np.where(newest > 0, np.minimum(taken + latency, asked), 0.0))
    if seeds is None:
        raise InputError(
            "Randomly late, lost or repeated images need seeds. Give the table of parameters its seed path."
        )
    times, arrivals, shown = _simulate_deliveries(asked, clock, int(newest.max()), seeds, stream)
    slot = newest
    while (late := np.take_along_axis(arrivals, slot, axis=1) > asked + _ROUND_OFF).any():
        slot = np.where(late, slot - 1, slot)
    number = np.take_along_axis(shown, slot, axis=1)
    taken = np.maximum(np.minimum(np.take_along_axis(times, number, axis=1), asked - latency), 0.0)
    return DeliveredCaptures(taken, number, np.minimum(np.take_along_axis(arrivals, slot, axis=1), asked))


def _simulate_deliveries(
    asked: NDArray[np.float64], clock: CaptureClock, last: int, seeds: SeedPath, stream: str
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Return the deliveries of images 0 to ``last``, ``(nworld, last + 1)`` each.

    Returns:
        Time of each image, time by which it or the previous one had arrived, and number of the image at the host.
    """
    rate, jitter = clock.column("frame_rate"), clock.column("latency_jitter")
    chance = _draw_capture_chance(len(asked), last, seeds, stream)
    wait = clock.column("latency") + jitter * chance[..., 0]
    lost = chance[..., 1] < clock.column("drop_rate")
    stale = lost | (chance[..., 2] < clock.column("duplicate_rate"))
    number = np.arange(last + 1)
    clocked = np.broadcast_to(rate > 0.0, lost.shape)
    asking = asked[:, np.clip(number - 1, 0, asked.shape[1] - 1)]
    ticks = (clock.column("frame_phase") + number - 1.0) / np.where(rate > 0.0, rate, 1.0)
    # An image taken at request arrives at that time: latency means that it was taken earlier.
    times = np.where(clocked, ticks, np.maximum.accumulate(np.maximum(asking - wait, 0.0), axis=1))
    arrivals = np.where(lost, 0.0, np.where(clocked, ticks + wait, asking))
    times[:, 0] = arrivals[:, 0] = 0.0
    stale[:, 0] = False
    shown = np.maximum.accumulate(np.where(stale, 0, number), axis=1)
    return times, np.maximum.accumulate(arrivals, axis=1), shown


def _draw_capture_chance(nworld: int, last: int, seeds: SeedPath, stream: str) -> NDArray[np.float64]:
    """Return three uniform numbers per image, for delay, loss and repetition, ``(nworld, last + 1, 3)``."""
    paths = seeds.take(np.repeat(np.arange(nworld), last + 1))
    return paths.uniforms(stream, size=3, step=np.tile(np.arange(last + 1), nworld)).reshape(nworld, last + 1, 3)


ShutterKind = Literal["rolling", "global"]


@dataclass(frozen=True, kw_only=True)
class Shutter:
    """Exposure of each row (``exposure_time``), and delay of the last row (``readout``), both in s.

    A global shutter also has a readout, which is only the time of reading the image.

    Raises:
        UnknownNameError: an unknown kind.
        InputError: a time below 0.
    """

    exposure_time: float = 0.0
    readout: float = 0.0
    kind: ShutterKind = "rolling"

    def __post_init__(self) -> None:
        if self.kind not in get_args(ShutterKind):
            raise UnknownNameError("shutter", self.kind, get_args(ShutterKind))
        for name in ("exposure_time", "readout"):
            if not 0.0 <= getattr(self, name) < np.inf:
                raise InputError(f"A shutter's {name} of {getattr(self, name):g} s is none. Give seconds from 0 on.")

    @property
    def skew(self) -> float:
        """Time from the start of the first row to that of the row below the last, in s; 0 for a global shutter."""
        return self.readout if self.kind == "rolling" else 0.0

    @property
    def span(self) -> float:
        """Total time in which any row gathers light, in s."""
        return self.skew + self.exposure_time

    @property
    def middle(self) -> float:
        """Time from an image's beginning to its own time, in s: half of `span`.

        An image cannot be delivered earlier than this after its own time; a smaller latency would be acausal.
        """
        return 0.5 * self.span


def subframe_times(shutter: Shutter, count: int) -> NDArray[np.float64]:
    """Return the times of subframes, ``(count,)`` in s after the image's beginning; a single one is at its middle.

    The first and the last are the ends of `Shutter.span`; between two of them light is interpolated linearly.

    Raises:
        InputError: no subframe at all.
    """
    if count < 1:
        raise InputError(f"An image of {count} subframes is impossible. Use one or more.")
    if count == 1:
        return np.array([shutter.middle])
    return np.linspace(0.0, shutter.span, count)


def row_weights(shutter: Shutter, count: int, height: int) -> NDArray[np.float64]:
    """Return the weight of each subframe of `subframe_times` in each row, ``(height, count)``; rows sum to 1.

    It is the mean over the row's exposure of the function that is 1 at that subframe, 0 at its neighbours, and linear
    between, in closed form; without exposure, that function's value when the row begins.
    """
    times = subframe_times(shutter, count)
    if count == 1 or shutter.span == 0.0:
        weights = np.zeros((height, count))
        weights[:, 0] = 1.0
        return weights
    between = times[1] - times[0]
    begin = np.arange(height)[:, None] * (shutter.skew / height)
    since = (begin - times) / between
    if shutter.exposure_time == 0.0:
        return np.maximum(1.0 - np.abs(since), 0.0)
    until = since + shutter.exposure_time / between
    weights = _hat_integral(until) - _hat_integral(since)
    return weights / weights.sum(axis=1, keepdims=True)


def _hat_integral(at: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the integral of max(1 - |t|, 0) from -1 to ``at``."""
    inside = np.clip(at, -1.0, 1.0)
    return 0.5 + inside - 0.5 * inside * np.abs(inside)


def combine_subframes(
    light: NDArray[np.float32], shutter: Shutter, *, lens: Remap | None = None
) -> NDArray[np.float32]:
    """Return the image ``(height, width, c)`` of linear light at `subframe_times`, ``(count, height, width, c)``.

    Rows are the sensor's: a view rendered for a lens is distorted first, each subframe only in the rows exposed at that
    time. Without motion the image equals every subframe bit for bit.

    Args:
        lens: the map of a lens to apply to ``(count, h', w', c)``; None: already applied.
    """
    subframes = np.asarray(light, dtype=np.float32)
    height, width = subframes.shape[1:3] if lens is None else lens.size
    weights = row_weights(shutter, len(subframes), height)
    begun = (weights > 0.0).argmax(axis=1)
    picture = np.empty((height, width, subframes.shape[3]), dtype=np.float32)
    base = picture if len(subframes) == 1 else np.empty_like(picture)
    for number, (subframe, weight) in enumerate(zip(subframes, weights.T, strict=True)):
        (rows,) = np.nonzero(weight > 0.0)
        if not len(rows):
            continue
        part, new = slice(rows[0], rows[-1] + 1), slice(*np.searchsorted(begun, [number, number + 1]))
        seen = subframe[part] if lens is None else lens.apply(subframe[None], rows=part)[0]
        base[new] = picture[new] = seen[new.start - part.start :]
        old = slice(part.start, new.start)
        share = weight[old, None, None].astype(np.float32)
        picture[old] += share * (seen[: new.start - part.start] - base[old])
    return picture
