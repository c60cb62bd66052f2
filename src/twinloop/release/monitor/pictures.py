"""Pictures against those of good days: how light, how sharp, and how far the still part of the scene has moved."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.records import frozen
from twinloop.encoders.sharpness import sharpness
from twinloop.release.monitor.registration import Registration

Array = NDArray[np.float64]
# The least spread of each that is told from a picture's own noise and rounding: stops, and pixels; our choice.
LEAST = {"light": 0.02, "sharpness": 0.02, "shift": 0.1}
_GREY = np.full(3, 1 / 3, dtype=np.float32)
_MOST = 200  # pictures that a reference is made of; the median of more is the same (our choice)
LOOKS = {"light": (0,), "sharpness": (1,), "shift": (2, 3, 4, 5)}  # columns of a look, by what they tell
_CALM, _MOSTLY = 3.0, 0.75  # a still pixel is within so many grey levels of its median in this share of pictures


@dataclass(frozen=True, kw_only=True)
class PictureReference:
    """What one camera sees of a scene when nobody is in the way.

    ``background`` ``(height, width)`` is the median of many pictures in grey levels, ``still`` the mask of the pixels
    that hardly ever differ from it.
    """

    background: Array
    still: NDArray[np.bool_]

    def __post_init__(self) -> None:
        object.__setattr__(self, "background", frozen(self.background))
        object.__setattr__(self, "still", np.array(self.still, dtype=bool))

    @classmethod
    def of(cls, pictures: NDArray[np.uint8]) -> PictureReference:
        """From pictures ``(n, height, width, 3)`` of several episodes at several times.

        Raises:
            InputError: there is none.
        """
        if not len(pictures):
            raise InputError("A camera's reference needs pictures, and there are none.")
        chosen = _grey(pictures[np.linspace(0, len(pictures) - 1, min(len(pictures), _MOST)).astype(int)])
        background = np.median(chosen, axis=0).astype(np.float64)
        apart = np.quantile(np.abs(chosen - background), _MOSTLY, axis=0)
        return cls(background=background, still=apart <= _CALM)

    @cached_property
    def registration(self) -> Registration | None:
        """What tells how far the still scene has moved; None where hardly an edge of it stands still."""
        try:
            return Registration(self.background, self.still)
        except InputError:
            return None

    def look(self, pictures: NDArray[np.uint8], name: str) -> Array:
        """Columns as in ``LOOKS`` of pictures ``(n, height, width, 3)``, ``(n, 6)``.

        Light in stops (factors of two) against the reference, the median over still pixels; sharpness as
        `encoders.sharpness`; shift, scale and rotation in pixels as `registration`, NaN where it can tell nothing.

        Raises:
            InputError: pictures of another size; names the camera.
        """
        if pictures.shape[1:] != (*self.background.shape, 3):
            height, width = self.background.shape
            raise InputError(
                f"The camera {name} gives pictures {pictures.shape[1:]}; the monitor was calibrated on "
                f"{width}x{height}. Calibrate it again for this camera."
            )
        grey = _grey(pictures)
        counts = self.still if self.still.any() else np.ones_like(self.still)
        ratio = np.log2((grey[:, counts] + 1.0) / (self.background[counts].astype(np.float32) + 1.0))
        moved = np.full((len(grey), 4), np.nan) if self.registration is None else self.registration.moved(grey)
        return np.column_stack([np.median(ratio, axis=1), sharpness(grey), moved]).astype(np.float64)


def how_far(row: Array, focal: float | None) -> str:
    """A row of `PictureReference.look` in words: how far the scene has moved, for a focal length in pixels if known.

    Degrees are those that a camera would have to turn by; how far one must move depends on what is how far away.
    """
    middle, corner = math.hypot(row[2], row[3]), math.hypot(row[4], row[5])
    turned = "" if focal is None else f", as if turned by {math.degrees(math.atan(middle / focal)):.1f}°"
    return f"by {middle:.1f} px in the middle{turned}, and by {corner:.1f} px in the corners beside"


def _grey(pictures: NDArray[np.uint8]) -> NDArray[np.float32]:
    return pictures.astype(np.float32) @ _GREY
