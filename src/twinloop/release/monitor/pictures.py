"""Pictures against those of good days: how light, how sharp, and how far the still part of the scene has moved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.records import frozen
from twinloop.encoders.sharpness import sharpness

Array = NDArray[np.float64]
# The least spread of each that is told from a picture's own noise and rounding: stops, and pixels; our choice.
LEAST = {"light": 0.02, "sharpness": 0.02, "shift": 0.1}
_GREY = np.full(3, 1 / 3, dtype=np.float32)
_MOST = 200  # pictures that a reference is made of; the median of more is the same (our choice)
LOOKS = {"light": (0,), "sharpness": (1,), "shift": (2, 3)}  # columns of a look, by what they tell


@dataclass(frozen=True, kw_only=True)
class PictureReference:
    """What one camera sees of a scene when nobody is in the way: the median ``(height, width)`` of many pictures."""

    background: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "background", frozen(self.background))

    @classmethod
    def of(cls, pictures: NDArray[np.uint8]) -> PictureReference:
        """From pictures ``(n, height, width, 3)`` of several episodes at several times.

        Raises:
            InputError: there is none.
        """
        if not len(pictures):
            raise InputError("A camera's reference needs pictures, and there are none.")
        chosen = pictures[np.linspace(0, len(pictures) - 1, min(len(pictures), _MOST)).astype(int)]
        return cls(background=np.median(_grey(chosen), axis=0).astype(np.float64))

    def look(self, pictures: NDArray[np.uint8], name: str) -> Array:
        """Columns as in ``LOOKS`` of pictures ``(n, height, width, 3)``, ``(n, 4)``.

        Light in stops (factors of two) against the reference, the median over pixels; sharpness as
        `encoders.sharpness`; the shift in pixels.

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
        ratio = np.log2((grey + 1.0) / (self.background.astype(np.float32) + 1.0))
        light = np.median(ratio.reshape(len(grey), -1), axis=1)
        return np.column_stack([light, sharpness(grey), phase_shift(self.background, grey)]).astype(np.float64)


def phase_shift(reference: NDArray, pictures: NDArray) -> Array:
    """How far pictures ``(n, height, width)`` are moved against a reference, along x and y ``(n, 2)`` in pixels.

    Phase correlation (Kuglin & Hines, "The phase correlation image alignment method", IEEE Conf. Cybernetics and
    Society 1975) of windowed pictures, and a parabola through its peak and the neighbours. The cross spectrum is
    weighted by the root of its size, between plain and normalized correlation: what is smooth has no phase to trust.
    """
    height, width = reference.shape
    window = np.hanning(height)[:, None] * np.hanning(width)[None, :]
    known = np.fft.rfft2((reference - reference.mean()) * window)
    seen = np.fft.rfft2((pictures - pictures.mean(axis=(1, 2), keepdims=True)) * window)
    cross = seen * np.conj(known)
    surface = np.fft.irfft2(cross / np.sqrt(np.abs(cross) + 1e-12), s=(height, width))
    peak = surface.reshape(len(surface), -1).argmax(axis=1)
    row, column = np.unravel_index(peak, (height, width))
    worlds = np.arange(len(surface))
    moved = []
    for at, size, along in ((column, width, 1), (row, height, 0)):
        near = [
            surface[worlds, (row + (0 if along else step)) % height, (column + (step if along else 0)) % width]
            for step in (-1, 0, 1)
        ]
        bend = near[0] - 2.0 * near[1] + near[2]
        part = np.where(bend < 0, 0.5 * (near[0] - near[2]) / np.where(bend < 0, bend, 1.0), 0.0)
        moved.append((at + part + size / 2) % size - size / 2)
    return np.stack(moved, axis=1)


def _grey(pictures: NDArray[np.uint8]) -> NDArray[np.float32]:
    return pictures.astype(np.float32) @ _GREY
