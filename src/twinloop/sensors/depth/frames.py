"""Define what all depth cameras share: true frames, readings, spatially correlated noise, and loss of weak light."""

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


def normal_field(
    generators: Sequence[Generator], shape: tuple[int, int], correlation: float = 0.0
) -> NDArray[np.float64]:
    """Return images of standard normal numbers with a spatial correlation, shape ``(n, height, width)``.

    White noise is filtered by a Gaussian of standard deviation s. The correlation of two pixels at the distance r is
    exp(-r² / 4s²), which is 1/e at the correlation length r = 2s. The filter continues at the opposite border of the
    image, so that borders have the same statistics as the rest.

    Args:
        generators: one random generator for each of the n images.
        shape: height and width in pixels.
        correlation: correlation length in pixels; 0 for white noise.
    """
    field = np.stack([generator.standard_normal(shape) for generator in generators])
    if correlation <= 0.0:
        return field
    smooth = ndimage.gaussian_filter(field, correlation / 2.0, mode="wrap", axes=(1, 2), truncate=_TRUNCATE)
    return smooth / _gain(correlation, shape)


def uniform_field(
    generators: Sequence[Generator], shape: tuple[int, int], correlation: float = 0.0
) -> NDArray[np.float64]:
    """Return images of numbers uniform in (0, 1) with a spatial correlation, shape ``(n, height, width)``.

    Args:
        generators: one random generator for each of the n images.
        shape: height and width in pixels.
        correlation: correlation length in pixels as in `normal_field`; 0 for independent pixels.
    """
    if correlation > 0.0:
        return ndtr(normal_field(generators, shape, correlation))
    return np.stack([generator.random(shape) for generator in generators])


_TRUNCATE = 3.0  # standard deviations; 0.3 % of a Gaussian is beyond


@lru_cache(maxsize=32)
def _gain(correlation: float, shape: tuple[int, int]) -> float:
    """Return the standard deviation of unit white noise after the Gaussian filter of `normal_field`.

    Args:
        correlation: correlation length in pixels, twice the standard deviation of the filter.
        shape: height and width in pixels.
    """
    impulse = np.zeros(shape)
    impulse[shape[0] // 2, shape[1] // 2] = 1.0
    answer = ndimage.gaussian_filter(impulse, correlation / 2.0, mode="wrap", truncate=_TRUNCATE)
    return float(np.sqrt((answer**2).sum()))


def displace_depths(
    depth: NDArray[np.float64], right: NDArray[np.float64], down: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return depth images in which each pixel has the depth of a displaced pixel, shape ``(n, height, width)``.

    The displaced position is rounded to the nearest pixel, so no value is a mixture of two surfaces.

    Args:
        depth: depth images, shape ``(n, height, width)``.
        right: displacement of each pixel to the right, in pixels.
        down: displacement of each pixel downwards, in pixels.
    """
    count, height, width = depth.shape
    row = np.clip(np.round(np.arange(height)[:, None] + down), 0, height - 1).astype(np.intp)
    column = np.clip(np.round(np.arange(width) + right), 0, width - 1).astype(np.intp)
    return depth[np.arange(count)[:, None, None], row, column]


@dataclass(frozen=True, kw_only=True)
class DepthFrames:
    """True values in n frames of a pinhole camera, in camera axes x right, y down, z forward.

    If an optional array is None, its effect on the camera's light (angle, absorption or mirror reflection) is ignored.

    Attributes:
        depth: depth along the optical axis in m, inf if there is no surface, shape ``(n, height, width)``.
        intrinsics: pinhole parameters of the camera.
        normals: unit surface normals towards the camera, shape ``(n, height, width, 3)``.
        brightness: linear light from 0 to 1, used as the share of the camera's own light that a surface reflects,
            shape ``(n, height, width)``.
        shine: share of the reflected light that is specular (mirror reflection), from 0 to 1, shape ``(n, height,
            width)``.

    Raises:
        InputError: If the shapes do not fit each other or the intrinsics.
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
                raise InputError(
                    f"{name} of shape {np.shape(value)} do not fit depth. Use the shape {(*depth.shape, *width)}."
                )

    def __len__(self) -> int:
        return len(self.depth)

    @property
    def distance_ratio(self) -> NDArray[np.float64]:
        """Ratio of the distance to a point to its depth, for each pixel, shape ``(height, width)``."""
        return _rays(self.intrinsics)[1]

    def cosine(self, baseline: float = 0.0) -> NDArray[np.float64] | None:
        """Return the cosine of the angle between the surface normal and the direction to a camera.

        Args:
            baseline: position of that camera in m to the right; 0 for this camera.

        Returns:
            Cosines, 0 if there is no surface, shape ``(n, height, width)``; None if the normals are unknown.
        """
        if self.normals is None:
            return None
        rays, stretch = _rays(self.intrinsics)
        has_surface = np.isfinite(self.depth)
        depth = np.where(has_surface, self.depth, 1.0)
        towards = baseline * self.normals[..., 0] - depth * np.einsum("hwi,nhwi->nhw", rays, self.normals)
        path = np.sqrt((depth * stretch) ** 2 - 2.0 * baseline * depth * rays[..., 0] + baseline**2)
        return np.where(has_surface, np.maximum(towards / path, 0.0), 0.0)


@lru_cache(maxsize=8)
def _rays(intrinsics: Intrinsics) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the directions of a camera's pixels, scaled to z = 1, and their lengths.

    Returns:
        Read-only arrays of shape ``(height, width, 3)`` and ``(height, width)``.
    """
    rays = intrinsics.unproject(intrinsics.pixel_centres())
    lengths = np.sqrt(np.einsum("hwi,hwi->hw", rays, rays))
    for array in (rays, lengths):
        array.setflags(write=False)
    return rays, lengths


@dataclass(frozen=True, kw_only=True)
class DepthReading:
    """Depth images as a camera reports them: integer counts of a length unit.

    Attributes:
        counts: depth in counts, 0 for a pixel without a measurement, uint16 of shape ``(n, height, width)``.
        unit: size of one count, in m.
    """

    counts: NDArray[np.uint16]
    unit: float

    @classmethod
    def of(cls, depth: NDArray[np.float64], valid: NDArray[np.bool_], unit: float) -> DepthReading:
        """Round depths to counts, halves to even.

        Args:
            depth: depth in m, shape ``(n, height, width)``.
            valid: whether a pixel has a measurement. Invalid pixels, and pixels below 1 or above 65535 counts, become
                0.
            unit: size of one count, in m.
        """
        counts = np.round(np.where(valid, depth, 0.0) / unit)
        counts[~((counts >= 1.0) & (counts <= np.iinfo(np.uint16).max))] = 0.0
        return cls(counts=counts.astype(np.uint16), unit=unit)

    @property
    def metres(self) -> NDArray[np.float64]:
        """Depth in m, NaN for a pixel without a measurement."""
        return np.where(self.counts > 0, self.counts * self.unit, np.nan)


def expand_per_frame(value: ArrayLike) -> NDArray[np.float64]:
    """Return a number unchanged, or one number per frame ``(n,)`` as ``(n, 1, 1)``, which broadcasts with images."""
    array = np.asarray(value, dtype=np.float64)
    return array.reshape(-1, 1, 1) if array.ndim else array


GRAZING_POWER = 4.0  # exponent of the loss at grazing incidence: our choice, 6 % of the full loss half way


@dataclass(frozen=True, kw_only=True)
class ReturnLosses:
    """Probabilities that light does not return to a depth camera; each a number or one per frame ``(n,)``.

    The defaults lose nothing.

    Attributes:
        grazing_limit: largest angle of incidence in rad; beyond it every pixel is lost.
        grazing_dropout: probability of loss at that limit. With the cosine of incidence E and its value E_min at
            the limit, a pixel is lost with probability ``grazing_dropout`` · ((1 - E) / (1 - E_min))^4.
        dark_limit: brightness below which a pixel is lost with probability 1 - brightness / dark_limit.
        specular_dropout: factor on the specular share ``shine``; the product is the probability of loss, because a
            mirror reflects the light elsewhere.
    """

    grazing_limit: ArrayLike = math.pi / 2
    grazing_dropout: ArrayLike = 0.0
    dark_limit: ArrayLike = 0.0
    specular_dropout: ArrayLike = 0.0

    def survival(self, frames: DepthFrames, cosine: NDArray[np.float64] | None) -> NDArray[np.float64]:
        """Return the probability that the light of each pixel returns, shape ``(n, height, width)``.

        Args:
            frames: true values of the frames.
            cosine: cosine of incidence of each pixel, or None if unknown.
        """
        probability = np.ones(frames.depth.shape)
        if cosine is not None:
            probability *= 1.0 - self._grazing_loss(cosine)
        dark = np.broadcast_to(expand_per_frame(self.dark_limit), probability.shape)
        if frames.brightness is not None and dark.any():
            share = np.divide(frames.brightness, dark, out=np.ones(probability.shape), where=dark > 0.0)
            probability *= np.clip(share, 0.0, 1.0)
        if frames.shine is not None:
            probability *= 1.0 - expand_per_frame(self.specular_dropout) * np.clip(frames.shine, 0.0, 1.0)
        return probability

    def _grazing_loss(self, cosine: NDArray[np.float64]) -> NDArray[np.float64]:
        least = np.cos(expand_per_frame(self.grazing_limit))
        share = np.clip((1.0 - cosine) / (1.0 - least), 0.0, 1.0)
        # The cosine of a right angle is 6e-17 and not 0; at an unlimited angle nothing is beyond.
        beyond = (cosine <= least) & (least > 1e-12)
        return np.where(beyond, 1.0, expand_per_frame(self.grazing_dropout) * share**GRAZING_POWER)
