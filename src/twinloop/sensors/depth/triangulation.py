"""Simulate depth cameras that triangulate: active stereo (RealSense) and structured light (Kinect v1).

The depth image is that of the left camera. A point at the depth z appears d = f·B / z pixels further left in
the right view, for the focal length f in pixels and the baseline B; d is its disparity.
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
    """Convert depths in m to disparities in pixels.

    Args:
        depth: depths in m, inf if there is no surface (disparity 0).
        focal_baseline: focal length in pixels times baseline in m.
    """
    return focal_baseline / np.asarray(depth, dtype=np.float64)


def depth_of_disparity(disparities: NDArray[np.float64], focal_baseline: float) -> NDArray[np.float64]:
    """Convert disparities in pixels to depths in m; a disparity that is not positive becomes inf.

    Args:
        disparities: disparities, in pixels.
        focal_baseline: focal length in pixels times baseline in m.
    """
    positive = disparities > 0.0
    return np.where(positive, focal_baseline / np.where(positive, disparities, 1.0), np.inf)


def find_hidden(disparities: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which points are hidden in the right view: outside its left border, or occluded.

    Every pixel is projected into the right view. It is hidden if another surface is projected to the same position, and
    is nearer by more than 1 pixel of disparity (`EDGE`). A border between the depths z₁ < z₂ therefore has a hidden
    band of f·B (1/z₁ - 1/z₂) pixels to its left, with the focal length f in pixels and the baseline B. At the left
    border of the image, a band as wide as the disparity is outside the right view (Intel RealSense D400 data sheet,
    "invalid depth band").

    Args:
        disparities: true disparities in pixels, shape ``(n, height, width)``.

    Returns:
        True for hidden pixels, shape ``(n, height, width)``.
    """
    count, height, width = disparities.shape
    column = np.arange(width) + 0.5 - disparities  # of pixel centres in the right view
    cell = np.floor(column).astype(np.intp)
    outside = cell < 0
    line = np.arange(count * height).reshape(count, height, 1) * (width + 1)
    nearest = np.zeros(count * height * (width + 1))
    # A surface that is larger in the right view would have gaps, so every point also fills the next cell.
    for shift in (0, 1):
        np.maximum.at(nearest, (line + np.clip(cell + shift, 0, width))[~outside], disparities[~outside])
    nearest_here = nearest[line + np.clip(cell, 0, width)]
    return outside | (nearest_here > disparities + EDGE)


def fatten_edges(disparities: NDArray[np.float64], radius: int) -> NDArray[np.float64]:
    """Return disparities in which near objects are enlarged by ``radius`` pixels, an effect of window matching.

    Only edges (steps larger than `EDGE`) are widened, slopes are not.
    """
    if radius <= 0:
        return disparities
    size = 2 * radius + 1
    nearer = ndimage.maximum_filter(disparities, size=(1, size, size), mode="nearest")
    return np.where(nearer - disparities > EDGE, nearer, disparities)


def quantize_disparities(disparities: NDArray[np.float64], levels: float) -> NDArray[np.float64]:
    """Return disparities rounded to multiples of 1 / ``levels`` pixels; ``levels`` of 0 leaves them unchanged."""
    return np.round(disparities * levels) / levels if levels > 0 else disparities


@dataclass(frozen=True, kw_only=True)
class StereoSpec:
    """Construction parameters of a stereo camera.

    Attributes:
        baseline: distance between its two cameras, in m.
        unit: size of one depth count, in m.
        subpixel: quantization steps of the disparity per pixel; 0 for no rounding.
        max_disparity: largest disparity that the matching searches, in pixels; it limits the nearest distance.
        max_depth: largest reported depth, in m.
        correlation: correlation length of errors and losses, in pixels.
        fattening: enlargement of near objects by window matching, in pixels.
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
    """Stereo camera with its errors; each error is a number or one per frame ``(n,)``.

    A disparity noise σ_d causes the depth error σ_z = z² σ_d / (f·B) at the depth z. With the default errors only
    the limits of ``spec`` remain.

    Attributes:
        spec: construction parameters.
        scale_error: relative error of the depth.
        disparity_noise: standard deviation of the disparity, in pixels.
        disparity_bias: constant error of the disparity from the calibration of the two cameras, in pixels.
        edge_noise: standard deviation of the displacement of a pixel's line of sight, in pixels.
    """

    spec: StereoSpec
    scale_error: ArrayLike = 0.0
    disparity_noise: ArrayLike = 0.0
    disparity_bias: ArrayLike = 0.0
    edge_noise: ArrayLike = 0.0

    def read(self, frames: DepthFrames, generators: Sequence[Generator]) -> DepthReading:
        """Return the depth images that the camera reports for the true frames.

        Args:
            frames: true values of n frames.
            generators: one random generator for each frame.
        """
        spec, shape = self.spec, frames.depth.shape[1:]
        focal_baseline = frames.intrinsics.fx * spec.baseline
        errors = normal_field(generators, shape, spec.correlation)
        right, down = (
            normal_field(generators, shape, spec.correlation),
            normal_field(generators, shape, spec.correlation),
        )
        loss_draw = uniform_field(generators, shape, spec.correlation)

        ideal = disparity_of_depth(frames.depth, focal_baseline)
        blurred = displace_depths(
            ideal, expand_per_frame(self.edge_noise) * right, expand_per_frame(self.edge_noise) * down
        )
        grown = fatten_edges(blurred, spec.fattening)
        measured = quantize_disparities(
            grown + expand_per_frame(self.disparity_bias) + expand_per_frame(self.disparity_noise) * errors,
            spec.subpixel,
        )
        depth = depth_of_disparity(measured, focal_baseline) * (1.0 + expand_per_frame(self.scale_error))

        visible = ~find_hidden(ideal) | (grown > ideal + EDGE)
        matched = (grown > 0.0) & (measured > 0.0) & (measured <= spec.max_disparity) & (depth <= spec.max_depth)
        left, right = frames.cosine(), frames.cosine(spec.baseline)
        cosine = None if left is None or right is None else np.minimum(left, right)
        return DepthReading.of(depth, visible & matched & (loss_draw < self.survival(frames, cosine)), spec.unit)


@dataclass(frozen=True, kw_only=True)
class StructuredLightSpec:
    """Construction parameters of a structured-light camera.

    Attributes:
        baseline: distance from the camera to the projector on its right, in m.
        unit: size of one depth count, in m.
        subpixel: quantization steps of the disparity per pixel; 0 for no rounding.
        min_depth: smallest reported depth, in m.
        max_depth: largest reported depth, in m.
        window: side of the square matching window, in pixels.
        inlier_disparity: a pixel of the window is an inlier if its disparity differs from the window's mean by at most
            this value times (1 + distance from the centre in pixels), in pixels.
        inlier_share: share of inliers in the window from which a match is accepted.
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
    """Structured-light camera with its errors; each error is a number or one per frame ``(n,)``.

    A pixel is measured only if the disparities in the window around it agree (`StructuredLightSpec.window`). This test
    is our own form of the tests of A. Handa et al., "A benchmark for RGB-D visual odometry, 3D reconstruction and SLAM"
    (ICRA 2014), and of J. T. Barron and J. Malik, "Intrinsic scene properties from a single RGB-D image" (CVPR 2013).

    Attributes:
        spec: construction parameters.
        scale_error: relative error of the depth.
        disparity_noise: standard deviation of the disparity, in pixels.
        disparity_bias: constant error of the disparity from the calibration of camera and projector, in pixels.
        edge_noise: standard deviation of the displacement of a pixel's line of sight, in pixels.
    """

    spec: StructuredLightSpec
    scale_error: ArrayLike = 0.0
    disparity_noise: ArrayLike = 0.0
    disparity_bias: ArrayLike = 0.0
    edge_noise: ArrayLike = 0.0

    def read(self, frames: DepthFrames, generators: Sequence[Generator]) -> DepthReading:
        """Return the depth images that the camera reports for the true frames.

        Args:
            frames: true values of n frames.
            generators: one random generator for each frame.
        """
        spec, shape = self.spec, frames.depth.shape[1:]
        focal_baseline = frames.intrinsics.fx * spec.baseline
        errors, right, down = (normal_field(generators, shape) for _ in range(3))
        loss_draw = uniform_field(generators, shape)

        ideal = disparity_of_depth(frames.depth, focal_baseline)
        moved = displace_depths(
            ideal, expand_per_frame(self.edge_noise) * right, expand_per_frame(self.edge_noise) * down
        )
        lit = (moved > 0.0) & ~find_hidden(ideal)
        survival = self.survival(frames, frames.cosine())
        accepted = compute_agreeing_share(moved, lit, spec.window, spec.inlier_disparity) >= spec.inlier_share
        measured = quantize_disparities(
            moved + expand_per_frame(self.disparity_bias) + expand_per_frame(self.disparity_noise) * errors,
            spec.subpixel,
        )
        depth = depth_of_disparity(measured, focal_baseline) * (1.0 + expand_per_frame(self.scale_error))
        within = (depth >= spec.min_depth) & (depth <= spec.max_depth)
        return DepthReading.of(depth, lit & accepted & within & (loss_draw < survival), spec.unit)


def compute_agreeing_share(
    disparities: NDArray[np.float64], lit: NDArray[np.bool_], window: int, threshold: float
) -> NDArray[np.float64]:
    """Return the share of each matching window's pixels that are lit and agree with the window's mean disparity.

    A pixel at the distance r pixels from the centre agrees if it is within ``threshold`` · (1 + r) pixels of the
    mean over the lit pixels. A slope of up to ``threshold`` pixels of disparity per pixel therefore counts as one
    surface. Border pixels are repeated beyond the border.

    Args:
        disparities: disparities in pixels, shape ``(n, height, width)``.
        lit: whether the projector's light reaches the pixel and returns, same shape.
        window: side of the window, in pixels; at 1 the share is 1.
        threshold: tolerance at the centre, in pixels.

    Returns:
        Shares from 0 to 1, shape ``(n, height, width)``.
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
