"""When each row of a picture gathers light, and the picture that light which changes meanwhile becomes.

A picture begins when its first row does. Row r of h gathers light from r · readout / h on, for ``exposure_time``
(Meingast, Geyer & Sastry, "Geometric models of rolling-shutter cameras", OMNIVIS 2005), all rows of a global shutter
from 0 on. **The time of a picture** is the middle of the exposure of its row h / 2, which is half of readout plus
exposure after its beginning: a thing that moves evenly lies in that row where it was then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.sensors.camera.remap import Remap

ShutterKind = Literal["rolling", "global"]


@dataclass(frozen=True, kw_only=True)
class Shutter:
    """How long each row gathers light (``exposure_time``), how long until the last begins (``readout``), both in s.

    A global shutter has a readout as well; it only says how long the picture takes to be read.

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
        """Time from the first row's beginning to that of the row below the last, in s: none of a global shutter."""
        return self.readout if self.kind == "rolling" else 0.0

    @property
    def span(self) -> float:
        """Time in which light is gathered at all, in s."""
        return self.skew + self.exposure_time

    @property
    def middle(self) -> float:
        """The time of the picture after its beginning, in s; it is half of `span`.

        A picture cannot be delivered earlier than this after its own time, so a smaller latency shows the future.
        """
        return 0.5 * self.span


def subframe_times(shutter: Shutter, count: int) -> NDArray[np.float64]:
    """When to draw subframes, ``(count,)`` in s after the picture's beginning; a single one is at its middle.

    The first and the last are the ends of `Shutter.span`; between two, light is taken to change linearly.

    Raises:
        InputError: no subframe at all.
    """
    if count < 1:
        raise InputError(f"A picture of {count} subframes shows nothing. Take one or more.")
    if count == 1:
        return np.array([shutter.middle])
    return np.linspace(0.0, shutter.span, count)


def row_weights(shutter: Shutter, count: int, height: int) -> NDArray[np.float64]:
    """What each of the subframes of `subframe_times` adds to each row, ``(height, count)``; every row sums to 1.

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
    """Integral of max(1 - |t|, 0) from -1 to ``at``."""
    inside = np.clip(at, -1.0, 1.0)
    return 0.5 + inside - 0.5 * inside * np.abs(inside)


def combine(light: NDArray[np.float32], shutter: Shutter, *, lens: Remap | None = None) -> NDArray[np.float32]:
    """The picture ``(height, width, c)`` of light seen at `subframe_times`, ``(count, height, width, c)``, linear.

    Rows are the sensor's: what was drawn for a lens is seen through it, each subframe only by the rows that are exposed
    then. Where nothing moves the picture is what every subframe shows, to the bit.

    Args:
        lens: what the light has yet to pass, ``(count, h', w', c)`` before it; None: it has.
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
