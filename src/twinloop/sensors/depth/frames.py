"""Define input and output of depth cameras: frames, random numbers per frame, and losses of light."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray
from scipy import ndimage
from scipy.special import ndtr

from twinloop.core.errors import InputError
from twinloop.core.imaging import Intrinsics


def normal_field(chance: Sequence[Generator], shape: tuple[int, int], correlation: float = 0.0) -> NDArray[np.float64]:
    """Return standard normal numbers ``(n, h, w)``, correlated over ``correlation`` px.

    White noise through a Gaussian of standard deviation s has the autocorrelation exp(-r² / 4s²), which is 1/e at
    r = 2s: that r is the correlation length. Images are periodic, so that borders do not differ from the centre.
    """
    field = np.stack([generator.standard_normal(shape) for generator in chance])
    if correlation <= 0.0:
        return field
    smooth = ndimage.gaussian_filter(field, correlation / 2.0, mode="wrap", axes=(1, 2), truncate=_TRUNCATE)
    return smooth / _gain(correlation, shape)


def uniform_field(chance: Sequence[Generator], shape: tuple[int, int], correlation: float = 0.0) -> NDArray[np.float64]:
    """Return uniform numbers ``(n, h, w)`` from 0 to 1, correlated over ``correlation`` px as in `normal_field`."""
    if correlation > 0.0:
        return ndtr(normal_field(chance, shape, correlation))
    return np.stack([generator.random(shape) for generator in chance])


_TRUNCATE = 3.0  # standard deviations; 0.3 % of a Gaussian is beyond


@lru_cache(maxsize=32)
def _gain(correlation: float, shape: tuple[int, int]) -> float:
    """Return the standard deviation of white noise of unit variance after the filter."""
    impulse = np.zeros(shape)
    impulse[shape[0] // 2, shape[1] // 2] = 1.0
    answer = ndimage.gaussian_filter(impulse, correlation / 2.0, mode="wrap", truncate=_TRUNCATE)
    return float(np.sqrt((answer**2).sum()))


def displace_depths(
    depth: NDArray[np.float64], aside: NDArray[np.float64], along: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return depths ``(n, h, w)`` of pixels whose line of sight is displaced, in px: columns to the right, rows down.

    Each pixel gets the depth of one surface, never a mixture.
    """
    count, height, width = depth.shape
    row = np.clip(np.round(np.arange(height)[:, None] + along), 0, height - 1).astype(np.intp)
    column = np.clip(np.round(np.arange(width) + aside), 0, width - 1).astype(np.intp)
    return depth[np.arange(count)[:, None, None], row, column]


@dataclass(frozen=True, kw_only=True)
class DepthFrames:
    """True values in ``n`` frames of one pinhole, in camera axes x right, y down, z forward.

    ``depth`` ``(n, h, w)`` is in m along the optical axis, inf without a surface. Missing inputs cause no losses:
    ``normals`` ``(n, h, w, 3)`` towards the camera; ``brightness`` ``(n, h, w)``, linear light from 0 to 1, used as
    the share of the device's light that a surface returns; and ``shine`` ``(n, h, w)``, the
    specular share of it, from 0 to 1.

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
    def distance_ratio(self) -> NDArray[np.float64]:
        """Ratio of the distance to a point to its depth, ``(h, w)``."""
        return _rays(self.intrinsics)[1]

    def cosine(self, baseline: float = 0.0) -> NDArray[np.float64] | None:
        """Return the cosine between a surface's normal and the direction to a camera ``baseline`` m to the right.

        ``(n, h, w)``, 0 without a surface; None if normals are unknown.
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
    """Return directions of a camera's pixels ``(h, w, 3)``, 1 along the optical axis, and their lengths ``(h, w)``."""
    rays = intrinsics.unproject(intrinsics.pixel_centres())
    lengths = np.sqrt(np.einsum("hwi,hwi->hw", rays, rays))
    for array in (rays, lengths):
        array.setflags(write=False)
    return rays, lengths


@dataclass(frozen=True, kw_only=True)
class DepthReading:
    """Reading of a device: ``counts`` ``(n, h, w)`` uint16 of ``unit`` m, 0 without a measurement."""

    counts: NDArray[np.uint16]
    unit: float

    @classmethod
    def of(cls, depth: NDArray[np.float64], valid: NDArray[np.bool_], unit: float) -> DepthReading:
        """Round depth ``(n, h, w)`` in m to counts, halves to even; pixels invalid or beyond 65535 counts are 0."""
        counts = np.round(np.where(valid, depth, 0.0) / unit)
        counts[~((counts >= 1.0) & (counts <= np.iinfo(np.uint16).max))] = 0.0
        return cls(counts=counts.astype(np.uint16), unit=unit)

    @property
    def metres(self) -> NDArray[np.float64]:
        """Depth in m, nan without a measurement."""
        return np.where(self.counts > 0, self.counts * self.unit, np.nan)


def expand_per_frame(value: ArrayLike) -> NDArray[np.float64]:
    """Return a number, or one for each frame as ``(n, 1, 1)``."""
    array = np.asarray(value, dtype=np.float64)
    return array.reshape(-1, 1, 1) if array.ndim else array


GRAZING_POWER = 4.0  # exponent of the loss at grazing incidence: our choice, 6 % of the full loss half way


@dataclass(frozen=True, kw_only=True)
class ReturnLosses:
    """Losses of light, each a number or one for each frame ``(n,)``; the defaults lose nothing.

    With E the cosine of incidence, ``grazing_limit`` the angle in rad beyond which nothing comes back, and E_min its
    cosine, a pixel is lost with probability ``grazing_dropout`` · ((1 - E) / (1 - E_min))^4, and with certainty
    beyond the limit. Below the brightness ``dark_limit`` it is lost with probability 1 - brightness / dark_limit, and
    on a specular surface with ``shine`` · ``specular_dropout``, since a mirror reflects the light elsewhere.
    """

    grazing_limit: ArrayLike = math.pi / 2
    grazing_dropout: ArrayLike = 0.0
    dark_limit: ArrayLike = 0.0
    specular_dropout: ArrayLike = 0.0

    def survival(self, frames: DepthFrames, cosine: NDArray[np.float64] | None) -> NDArray[np.float64]:
        """Return the probability ``(n, h, w)`` that a pixel's light returns, for cosines of incidence ``(n, h, w)``."""
        kept = np.ones(frames.depth.shape)
        if cosine is not None:
            kept *= 1.0 - self._grazing_loss(cosine)
        dark = np.broadcast_to(expand_per_frame(self.dark_limit), kept.shape)
        if frames.brightness is not None and dark.any():
            share = np.divide(frames.brightness, dark, out=np.ones(kept.shape), where=dark > 0.0)
            kept *= np.clip(share, 0.0, 1.0)
        if frames.shine is not None:
            kept *= 1.0 - expand_per_frame(self.specular_dropout) * np.clip(frames.shine, 0.0, 1.0)
        return kept

    def _grazing_loss(self, cosine: NDArray[np.float64]) -> NDArray[np.float64]:
        least = np.cos(expand_per_frame(self.grazing_limit))
        share = np.clip((1.0 - cosine) / (1.0 - least), 0.0, 1.0)
        # The cosine of a right angle is 6e-17 and not 0; at an unlimited angle nothing is beyond.
        beyond = (cosine <= least) & (least > 1e-12)
        return np.where(beyond, 1.0, expand_per_frame(self.grazing_dropout) * share**GRAZING_POWER)
