"""Triangulate between two adjacent views: active stereo (RealSense) and structured light (Kinect v1).

The image is the left view's. A point at depth z appears d = f·B / z px further left in the right view.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray
from scipy import ndimage

from twinloop.sensors.depth.frames import (
    DepthFrames,
    DepthReading,
    ReturnLosses,
    displace_depths,
    expand_per_frame,
    normal_field,
    uniform_field,
)

EDGE = 1.0  # px of disparity; a larger step is an edge and not a slope: our choice, the pitch of the pixels


def disparity_of_depth(depth: ArrayLike, focal_baseline: float) -> NDArray[np.float64]:
    """Return disparities in px of depths in m, for a focal length in px times a baseline in m; 0 without a surface."""
    return focal_baseline / np.asarray(depth, dtype=np.float64)


def depth_of_disparity(disparities: NDArray[np.float64], focal_baseline: float) -> NDArray[np.float64]:
    """Return depths in m of disparities in px; inf for those that are not positive."""
    seen = disparities > 0.0
    return np.where(seen, focal_baseline / np.where(seen, disparities, 1.0), np.inf)


def find_hidden(disparities: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return pixels ``(n, h, w)`` whose points are hidden in the right view: beyond its left border, or occluded.

    Every pixel is projected into the right view, and is hidden if a surface nearer by at least `EDGE` is projected to
    the same position. A border between depths z₁ < z₂ thus causes a shadow of f·B (1/z₁ - 1/z₂) px to its left, and at
    the image's left border there is a band of d px outside the other view (Intel RealSense D400 data sheet, "invalid
    depth band").
    """
    count, height, width = disparities.shape
    place = np.arange(width) + 0.5 - disparities  # of pixel centres in the right view
    cell = np.floor(place).astype(np.intp)
    outside = cell < 0
    line = np.arange(count * height).reshape(count, height, 1) * (width + 1)
    nearest = np.zeros(count * height * (width + 1))
    # A surface that is larger in the right view would have gaps, so every point also fills the next cell.
    for beside in (0, 1):
        np.maximum.at(nearest, (line + np.clip(cell + beside, 0, width))[~outside], disparities[~outside])
    there = nearest[line + np.clip(cell, 0, width)]
    return outside | (there > disparities + EDGE)


def fatten_edges(disparities: NDArray[np.float64], radius: int) -> NDArray[np.float64]:
    """Return disparities after window matching, which widens the nearer side of edges, not slopes, by ``radius`` px."""
    if radius <= 0:
        return disparities
    size = 2 * radius + 1
    nearer = ndimage.maximum_filter(disparities, size=(1, size, size), mode="nearest")
    return np.where(nearer - disparities > EDGE, nearer, disparities)


def quantize_disparities(disparities: NDArray[np.float64], levels: float) -> NDArray[np.float64]:
    """Return disparities rounded to 1 / ``levels`` px; 0 levels leave them unchanged."""
    return np.round(disparities * levels) / levels if levels > 0 else disparities


@dataclass(frozen=True, kw_only=True)
class StereoSpec:
    """Construction of a stereo camera.

    ``baseline`` in m between its cameras, ``unit`` of its counts in m, ``subpixel`` steps of disparity per pixel (0:
    not rounded), ``max_disparity`` in px of its search, which limits the nearest distance, ``max_depth`` in m that it
    reports, ``correlation`` in px of its errors and losses, ``fattening`` in px of near objects.
    """

    baseline: float
    unit: float = 0.001
    subpixel: float = 0.0
    max_disparity: float = math.inf
    max_depth: float = math.inf
    correlation: float = 0.0
    fattening: int = 0


@dataclass(frozen=True, kw_only=True)
class StereoDepth(ReturnLosses):
    """A stereo camera; numbers, or one for each frame ``(n,)``. An ideal one has only the errors of ``spec``.

    The depth error is σ_z = z² σ_d / (f·B) for a ``disparity_noise`` σ_d in px. ``disparity_bias`` in px is a
    calibration error of the pair, ``edge_noise`` in px the displacement of a pixel's line of sight, ``scale_error``
    relative.
    """

    spec: StereoSpec
    scale_error: ArrayLike = 0.0
    disparity_noise: ArrayLike = 0.0
    disparity_bias: ArrayLike = 0.0
    edge_noise: ArrayLike = 0.0

    def read(self, frames: DepthFrames, chance: Sequence[Generator]) -> DepthReading:
        """Return the camera's reading of every frame, with a random generator for each."""
        spec, shape = self.spec, frames.depth.shape[1:]
        focal_baseline = frames.intrinsics.fx * spec.baseline
        errors = normal_field(chance, shape, spec.correlation)
        aside, along = normal_field(chance, shape, spec.correlation), normal_field(chance, shape, spec.correlation)
        luck = uniform_field(chance, shape, spec.correlation)

        ideal = disparity_of_depth(frames.depth, focal_baseline)
        blurred = displace_depths(
            ideal, expand_per_frame(self.edge_noise) * aside, expand_per_frame(self.edge_noise) * along
        )
        grown = fatten_edges(blurred, spec.fattening)
        measured = quantize_disparities(
            grown + expand_per_frame(self.disparity_bias) + expand_per_frame(self.disparity_noise) * errors,
            spec.subpixel,
        )
        depth = depth_of_disparity(measured, focal_baseline) * (1.0 + expand_per_frame(self.scale_error))

        seen = ~find_hidden(ideal) | (grown > ideal + EDGE)
        found = (grown > 0.0) & (measured > 0.0) & (measured <= spec.max_disparity) & (depth <= spec.max_depth)
        left, right = frames.cosine(), frames.cosine(spec.baseline)
        cosine = None if left is None or right is None else np.minimum(left, right)
        return DepthReading.of(depth, seen & found & (luck < self.survival(frames, cosine)), spec.unit)


@dataclass(frozen=True, kw_only=True)
class StructuredLightSpec:
    """Construction of a structured-light camera.

    ``baseline`` in m from the camera to the projector on its right, ``unit`` of its counts in m, ``subpixel`` steps of
    disparity per pixel (0: not rounded), ``min_depth`` and ``max_depth`` in m that it reports. It matches windows of
    ``window`` px per side, and accepts a match if ``inlier_share`` of the pixels agree with their mean: within
    ``inlier_disparity`` px, and as much again for every px of distance from the centre.
    """

    baseline: float
    unit: float = 0.001
    subpixel: float = 0.0
    min_depth: float = 0.0
    max_depth: float = math.inf
    window: int = 1
    inlier_disparity: float = 0.1
    inlier_share: float = 0.0


@dataclass(frozen=True, kw_only=True)
class StructuredLightDepth(ReturnLosses):
    """A structured-light camera; numbers, or one for each frame ``(n,)``.

    Quantities are those of `StereoDepth`. The test of windows follows A. Handa et al., "A benchmark for RGB-D visual
    odometry, 3D reconstruction and SLAM" (ICRA 2014), and J. T. Barron and J. Malik, "Intrinsic scene properties from
    a single RGB-D image" (CVPR 2013), in a form of our own.
    """

    spec: StructuredLightSpec
    scale_error: ArrayLike = 0.0
    disparity_noise: ArrayLike = 0.0
    disparity_bias: ArrayLike = 0.0
    edge_noise: ArrayLike = 0.0

    def read(self, frames: DepthFrames, chance: Sequence[Generator]) -> DepthReading:
        """Return the camera's reading of every frame, with a random generator for each."""
        spec, shape = self.spec, frames.depth.shape[1:]
        focal_baseline = frames.intrinsics.fx * spec.baseline
        errors, aside, along = (normal_field(chance, shape) for _ in range(3))
        luck = uniform_field(chance, shape)

        ideal = disparity_of_depth(frames.depth, focal_baseline)
        moved = displace_depths(
            ideal, expand_per_frame(self.edge_noise) * aside, expand_per_frame(self.edge_noise) * along
        )
        lit = (moved > 0.0) & ~find_hidden(ideal)
        survival = self.survival(frames, frames.cosine())
        believed = compute_agreeing_share(moved, lit, spec.window, spec.inlier_disparity) >= spec.inlier_share
        measured = quantize_disparities(
            moved + expand_per_frame(self.disparity_bias) + expand_per_frame(self.disparity_noise) * errors,
            spec.subpixel,
        )
        depth = depth_of_disparity(measured, focal_baseline) * (1.0 + expand_per_frame(self.scale_error))
        near_enough = (depth >= spec.min_depth) & (depth <= spec.max_depth)
        return DepthReading.of(depth, lit & believed & near_enough & (luck < survival), spec.unit)


def compute_agreeing_share(
    disparities: NDArray[np.float64], lit: NDArray[np.bool_], window: int, threshold: float
) -> NDArray[np.float64]:
    """Return the share ``(n, h, w)`` of the window's pixels that are lit and agree with the mean of the lit ones.

    A pixel agrees if it is within ``threshold`` · (1 + r) px of the mean, r px from the centre: slopes of up to
    ``threshold`` px per pixel are one surface. Beyond the border the image is continued.
    """
    if window <= 1:
        return np.ones(disparities.shape)
    count = ndimage.uniform_filter(lit.astype(np.float64), size=window, axes=(1, 2), mode="nearest")
    total = ndimage.uniform_filter(np.where(lit, disparities, 0.0), size=window, axes=(1, 2), mode="nearest")
    mean = np.divide(total, count, out=np.zeros_like(total), where=count > 0.0)
    half = window // 2
    margin = ((0, 0), (half, half), (half, half))
    values, lights = np.pad(disparities, margin, mode="edge"), np.pad(lit, margin, mode="edge")
    agree = np.zeros(disparities.shape, dtype=np.intp)
    height, width = disparities.shape[1:]
    for row in range(window):
        for column in range(window):
            part = np.s_[:, row : row + height, column : column + width]
            reach = threshold * (1.0 + math.hypot(row - half, column - half))
            agree += lights[part] & (np.abs(values[part] - mean) <= reach)
    return agree / window**2
