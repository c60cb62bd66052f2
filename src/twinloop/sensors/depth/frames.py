"""What a depth camera looks at, and what it gives."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.imaging import Intrinsics


@dataclass(frozen=True, kw_only=True)
class DepthFrames:
    """The truth in ``n`` frames of one pinhole, in camera axes x right, y down, z forward.

    ``depth`` ``(n, h, w)`` is in m along the optical axis, inf where there is nothing. Of what is not known nothing is
    lost: ``normals`` ``(n, h, w, 3)`` towards the camera, ``brightness`` ``(n, h, w)`` of the picture as linear light
    from 0 to 1, which stands for how much of its own light the camera gets back from a surface, and ``shine``
    ``(n, h, w)``, how much of that goes like a mirror's, from 0 to 1.

    Raises:
        InputError: arrays that do not fit each other or the pinhole.
    """

    depth: NDArray[np.float64]
    intrinsics: Intrinsics
    normals: NDArray[np.floating] | None = None
    brightness: NDArray[np.floating] | None = None
    shine: NDArray[np.floating] | None = None

    def __post_init__(self) -> None:
        depth = np.asarray(self.depth, dtype=np.float64)
        object.__setattr__(self, "depth", depth)
        size = (self.intrinsics.height, self.intrinsics.width)
        if depth.ndim != 3 or depth.shape[1:] != size:
            raise InputError(
                f"Depth of shape {depth.shape} for a camera of {size[1]}×{size[0]}. Give (frames, height, width)."
            )
        for name, width in (("normals", (3,)), ("brightness", ()), ("shine", ())):
            value = getattr(self, name)
            if value is not None and np.shape(value) != (*depth.shape, *width):
                raise InputError(f"{name} of shape {np.shape(value)} beside depth of shape {depth.shape}.")

    def __len__(self) -> int:
        return len(self.depth)

    @property
    def stretch(self) -> NDArray[np.float64]:
        """How many times longer the way to a point is than its depth, ``(h, w)``."""
        return _rays(self.intrinsics)[1]

    def cosine(self, baseline: float = 0.0) -> NDArray[np.float64] | None:
        """Cosine of the angle between a surface's normal and the way to a camera ``baseline`` m to the right.

        ``(n, h, w)``, 0 where there is nothing; None where normals are not known.
        """
        if self.normals is None:
            return None
        rays, stretch = _rays(self.intrinsics)
        seen = np.isfinite(self.depth)
        depth = np.where(seen, self.depth, 1.0)
        towards = baseline * self.normals[..., 0] - depth * np.einsum("hwi,nhwi->nhw", rays, self.normals)
        way = np.sqrt((depth * stretch) ** 2 - 2.0 * baseline * depth * rays[..., 0] + baseline**2)
        return np.where(seen, np.maximum(towards / way, 0.0), 0.0)


@lru_cache(maxsize=8)
def _rays(intrinsics: Intrinsics) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Directions of a camera's pixels ``(h, w, 3)``, 1 along the optical axis, and their lengths ``(h, w)``."""
    rays = intrinsics.unproject(intrinsics.pixel_centres())
    lengths = np.sqrt(np.einsum("hwi,hwi->hw", rays, rays))
    for array in (rays, lengths):
        array.setflags(write=False)
    return rays, lengths


@dataclass(frozen=True, kw_only=True)
class DepthReading:
    """What a device gives: ``counts`` ``(n, h, w)`` uint16 of ``unit`` m, 0 where it knows nothing."""

    counts: NDArray[np.uint16]
    unit: float

    @classmethod
    def of(cls, depth: NDArray[np.float64], valid: NDArray[np.bool_], unit: float) -> DepthReading:
        """Round depth ``(n, h, w)`` in m to counts, halves to even; what is not valid or beyond 65535 counts is 0."""
        counts = np.round(np.where(valid, depth, 0.0) / unit)
        counts[~((counts >= 1.0) & (counts <= np.iinfo(np.uint16).max))] = 0.0
        return cls(counts=counts.astype(np.uint16), unit=unit)

    @property
    def metres(self) -> NDArray[np.float64]:
        """Depth in m, nan where the device knows nothing."""
        return np.where(self.counts > 0, self.counts * self.unit, np.nan)


def per_frame(value: ArrayLike) -> NDArray[np.float64]:
    """A number, or one for each frame as ``(n, 1, 1)``."""
    array = np.asarray(value, dtype=np.float64)
    return array.reshape(-1, 1, 1) if array.ndim else array
