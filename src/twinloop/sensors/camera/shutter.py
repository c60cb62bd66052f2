"""Compute which image a program has received at each time, and how a rolling shutter exposes the rows of an image.

In an image of h rows, row r begins its exposure at r · readout / h after the beginning of the image. Each row is
exposed for ``exposure_time`` (Meingast, Geyer & Sastry, "Geometric models of rolling-shutter cameras", OMNIVIS 2005).
With a global shutter all rows begin together.

**The time of an image** (nominal time) is the middle of the exposure of its middle row h / 2. This is (readout +
exposure time) / 2 after the beginning of the image. An object in uniform motion appears in the middle row at its
position at the nominal time.
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
    """Times at which a camera takes images and a program receives them; each a number or ``(nworld,)``.

    Image k, from 0, is taken at (``frame_phase`` + k) / ``frame_rate``. It arrives after ``latency`` plus a random
    time, but never before the previous image.

    Attributes:
        frame_rate: images per second; 0 takes an image at every request.
        frame_phase: time of the first image, in image periods.
        latency: smallest time from the middle of the exposure to the arrival, in s.
        latency_jitter: largest additional time in s; uniform from 0.
        drop_rate: probability that an image never arrives.
        duplicate_rate: probability that the previous image arrives again instead.
    """

    frame_rate: ArrayLike = 0.0
    frame_phase: ArrayLike = 0.0
    latency: ArrayLike = 0.0
    latency_jitter: ArrayLike = 0.0
    drop_rate: ArrayLike = 0.0
    duplicate_rate: ArrayLike = 0.0

    def column(self, name: str) -> NDArray[np.float64]:
        """Return the attribute ``name`` as a column, shape ``(nworld, 1)``; ``(1, 1)`` if it is a single number."""
        return np.asarray(getattr(self, name), dtype=np.float64).reshape(-1, 1)

    @property
    def is_random(self) -> bool:
        """Return whether images can be randomly late, lost or repeated."""
        return any(bool((self.column(name) > 0.0).any()) for name in ("latency_jitter", "drop_rate", "duplicate_rate"))


class DeliveredCaptures(NamedTuple):
    """Newest image that a program has received at each step, each array of shape ``(nworld, nstep)``.

    Attributes:
        capture_time: time of the image (middle of its exposure), in s.
        number: number of the image, from 1 for the first image of the camera. 0 is an image of the state at time 0,
            which is used until the first image arrives. Equal numbers mean the identical image.
        arrived: time in s at which an image last arrived, even if it was a repeated image; 0 before the first arrival.
    """

    capture_time: NDArray[np.float64]
    number: NDArray[np.int64]
    arrived: NDArray[np.float64]


def find_delivered_captures(
    time: ArrayLike, clock: CaptureClock, *, seeds: SeedPath | None = None, stream: str = ""
) -> DeliveredCaptures:
    """Return the newest image that has arrived at each requested time.

    Args:
        time: times of the requests in s, increasing from 0, shape ``(nworld, nstep)``.
        clock: times of images and arrivals.
        seeds: seeds of each world; needed if the clock is random. The timing of an image depends only on them, on
            ``stream`` and on its number.
        stream: name of the camera's random stream, such as ``sensor/front/captures``.

    Raises:
        InputError: If the clock is random and ``seeds`` is None.
    """
    requested = np.asarray(time, dtype=np.float64)
    rate, phase, latency = (clock.column(name) for name in ("frame_rate", "frame_phase", "latency"))
    taken, newest = find_newest_sample(requested, rate=rate, phase=phase, delay=latency)
    if not clock.is_random:
        return DeliveredCaptures(taken, newest, np.where(newest > 0, np.minimum(taken + latency, requested), 0.0))
    if seeds is None:
        raise InputError(
            "Randomly late, lost or repeated images need seeds. Give the table of parameters its seed path."
        )
    times, arrivals, held_number = _simulate_deliveries(requested, clock, int(newest.max()), seeds, stream)
    slot = newest
    while (late := np.take_along_axis(arrivals, slot, axis=1) > requested + _ROUND_OFF).any():
        slot = np.where(late, slot - 1, slot)
    number = np.take_along_axis(held_number, slot, axis=1)
    taken = np.maximum(np.minimum(np.take_along_axis(times, number, axis=1), requested - latency), 0.0)
    return DeliveredCaptures(taken, number, np.minimum(np.take_along_axis(arrivals, slot, axis=1), requested))


def _simulate_deliveries(
    requested: NDArray[np.float64], clock: CaptureClock, last: int, seeds: SeedPath, stream: str
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Return the times and arrivals of the images 0 to ``last``, including random delay, loss and repetition.

    Args:
        requested: times of the requests in s, shape ``(nworld, nstep)``.
        clock: times of images and arrivals.
        last: largest image number.
        seeds: seeds of each world.
        stream: name of the camera's random stream.

    Returns:
        Three arrays of shape ``(nworld, last + 1)``, with one column per image:

        - time at which the image is taken, in s;
        - time of the last arrival in s, of this image or, if this image is lost, of an earlier one;
        - number of the newest image that the program then has.
    """
    rate, jitter = clock.column("frame_rate"), clock.column("latency_jitter")
    chance = _draw_capture_chance(len(requested), last, seeds, stream)
    delay = clock.column("latency") + jitter * chance[..., 0]
    lost = chance[..., 1] < clock.column("drop_rate")
    stale = lost | (chance[..., 2] < clock.column("duplicate_rate"))
    number = np.arange(last + 1)
    has_clock = np.broadcast_to(rate > 0.0, lost.shape)
    request_time = requested[:, np.clip(number - 1, 0, requested.shape[1] - 1)]
    ticks = (clock.column("frame_phase") + number - 1.0) / np.where(rate > 0.0, rate, 1.0)
    # An image taken at request arrives at that time: latency means that it was taken earlier.
    times = np.where(has_clock, ticks, np.maximum.accumulate(np.maximum(request_time - delay, 0.0), axis=1))
    arrivals = np.where(lost, 0.0, np.where(has_clock, ticks + delay, request_time))
    times[:, 0] = arrivals[:, 0] = 0.0
    stale[:, 0] = False
    held_number = np.maximum.accumulate(np.where(stale, 0, number), axis=1)
    return times, np.maximum.accumulate(arrivals, axis=1), held_number


def _draw_capture_chance(nworld: int, last: int, seeds: SeedPath, stream: str) -> NDArray[np.float64]:
    """Return three uniform numbers per image (for delay, loss and repetition), shape ``(nworld, last + 1, 3)``."""
    paths = seeds.take(np.repeat(np.arange(nworld), last + 1))
    return paths.uniforms(stream, size=3, step=np.tile(np.arange(last + 1), nworld)).reshape(nworld, last + 1, 3)


ShutterKind = Literal["rolling", "global"]


@dataclass(frozen=True, kw_only=True)
class Shutter:
    """Shutter of a camera.

    Attributes:
        exposure_time: exposure time of each row, in s.
        readout: time between the exposure starts of the first and the last row of a rolling shutter, in s. For a
            global shutter it is only the time to read the image.
        kind: ``rolling`` or ``global``.

    Raises:
        UnknownNameError: If the kind is unknown.
        InputError: If a time is below 0.
    """

    exposure_time: float = 0.0
    readout: float = 0.0
    kind: ShutterKind = "rolling"

    def __post_init__(self) -> None:
        if self.kind not in get_args(ShutterKind):
            raise UnknownNameError("shutter", self.kind, get_args(ShutterKind))
        for name in ("exposure_time", "readout"):
            if not 0.0 <= getattr(self, name) < np.inf:
                raise InputError(f"A shutter's {name} of {getattr(self, name):g} s is impossible. Use 0 s or more.")

    @property
    def skew(self) -> float:
        """Time in s in which a rolling shutter's exposure start moves over all rows; 0 for a global shutter."""
        return self.readout if self.kind == "rolling" else 0.0

    @property
    def span(self) -> float:
        """Total time in which any row is exposed, in s."""
        return self.skew + self.exposure_time

    @property
    def middle(self) -> float:
        """Time from the beginning of an image to its nominal time (middle of the exposure), half of `span`, in s.

        The exposure ends this long after the nominal time. A smaller latency would deliver the image before its
        exposure has ended.
        """
        return 0.5 * self.span


def subframe_times(shutter: Shutter, count: int) -> NDArray[np.float64]:
    """Return the times of the subframes for motion blur, in s after the beginning of the image, shape ``(count,)``.

    The first and the last subframe are at the ends of `Shutter.span`; light is interpolated linearly between
    subframes. A single subframe is at the middle.

    Raises:
        InputError: If ``count`` is below 1.
    """
    if count < 1:
        raise InputError(f"An image of {count} subframes is impossible. Use one or more.")
    if count == 1:
        return np.array([shutter.middle])
    return np.linspace(0.0, shutter.span, count)


def row_weights(shutter: Shutter, count: int, height: int) -> NDArray[np.float64]:
    """Return the weight of each subframe in each image row, shape ``(height, count)``; the weights of a row sum to 1.

    A weight is the mean, over the row's exposure, of the linear interpolation function that is 1 at the subframe
    and 0 at its neighbours, in closed form. If the exposure time is 0, it is that function at the row's time.
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
    """Return the integral of the triangle function max(1 - |t|, 0) from -1 to ``at``."""
    inside = np.clip(at, -1.0, 1.0)
    return 0.5 + inside - 0.5 * inside * np.abs(inside)


def combine_subframes(
    light: NDArray[np.float32], shutter: Shutter, *, lens: Remap | None = None
) -> NDArray[np.float32]:
    """Combine subframes of linear light into one image with motion blur and rolling shutter.

    Without motion the image equals every subframe bit for bit.

    Args:
        light: subframes at `subframe_times`, shape ``(count, height, width, channels)``.
        shutter: shutter of the camera.
        lens: map of the lens distortion, applied to each subframe before it is combined, only in the rows exposed at
            its time; None if the subframes are already distorted. The shutter exposes rows of the distorted image.

    Returns:
        Linear light, shape ``(height, width, channels)``.
    """
    subframes = np.asarray(light, dtype=np.float32)
    height, width = subframes.shape[1:3] if lens is None else lens.size
    weights = row_weights(shutter, len(subframes), height)
    first_weight = (weights > 0.0).argmax(axis=1)
    image = np.empty((height, width, subframes.shape[3]), dtype=np.float32)
    base = image if len(subframes) == 1 else np.empty_like(image)
    for number, (subframe, weight) in enumerate(zip(subframes, weights.T, strict=True)):
        (rows,) = np.nonzero(weight > 0.0)
        if not len(rows):
            continue
        part, new = slice(rows[0], rows[-1] + 1), slice(*np.searchsorted(first_weight, [number, number + 1]))
        visible = subframe[part] if lens is None else lens.apply(subframe[None], rows=part)[0]
        base[new] = image[new] = visible[new.start - part.start :]
        old = slice(part.start, new.start)
        share = weight[old, None, None].astype(np.float32)
        image[old] += share * (visible[: new.start - part.start] - base[old])
    return image
