"""Structured light: a camera finds a known pattern of dots in what it sees (Kinect v1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray
from scipy import ndimage

from twinloop.sensors.depth.chance import looked_at, normal_field, uniform_field
from twinloop.sensors.depth.disparity import disparity, from_disparity, hidden, quantized
from twinloop.sensors.depth.frames import DepthFrames, DepthReading, per_frame
from twinloop.sensors.depth.returns import Returns


@dataclass(frozen=True, kw_only=True)
class StructuredLightSpec:
    """How a structured-light camera is built.

    ``baseline`` in m from the camera to the projector on its right, ``unit`` of its counts in m, ``subpixel`` steps of
    disparity to a pixel (0: not rounded), ``min_depth`` and ``max_depth`` in m that it reports. It matches ``window``
    px a side, and believes a match where ``inlier_share`` of them are within ``inlier_disparity`` px of their mean, and
    for every px that they are off the middle as much again.
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
class StructuredLightDepth(Returns):
    """A structured-light camera; numbers, or one for each frame ``(n,)``.

    Quantities are those of `StereoDepth`. The test of windows after A. Handa et al., "A benchmark for RGB-D visual
    odometry, 3D reconstruction and SLAM" (ICRA 2014), and J. T. Barron and J. Malik, "Intrinsic scene properties from
    a single RGB-D image" (CVPR 2013), in a form of our own.
    """

    spec: StructuredLightSpec
    scale_error: ArrayLike = 0.0
    disparity_noise: ArrayLike = 0.0
    disparity_bias: ArrayLike = 0.0
    edge_noise: ArrayLike = 0.0

    def read(self, frames: DepthFrames, chance: Sequence[Generator]) -> DepthReading:
        """What the camera reports of every frame, with a generator for each."""
        spec, shape = self.spec, frames.depth.shape[1:]
        focal_baseline = frames.intrinsics.fx * spec.baseline
        errors, aside, along = (normal_field(chance, shape) for _ in range(3))
        luck = uniform_field(chance, shape)

        ideal = disparity(frames.depth, focal_baseline)
        moved = looked_at(ideal, per_frame(self.edge_noise) * aside, per_frame(self.edge_noise) * along)
        lit = (moved > 0.0) & ~hidden(ideal)
        survival = self.survival(frames, frames.cosine())
        believed = agreeing(moved, lit, spec.window, spec.inlier_disparity) >= spec.inlier_share
        measured = quantized(
            moved + per_frame(self.disparity_bias) + per_frame(self.disparity_noise) * errors, spec.subpixel
        )
        depth = from_disparity(measured, focal_baseline) * (1.0 + per_frame(self.scale_error))
        near_enough = (depth >= spec.min_depth) & (depth <= spec.max_depth)
        return DepthReading.of(depth, lit & believed & near_enough & (luck < survival), spec.unit)


def agreeing(
    disparities: NDArray[np.float64], lit: NDArray[np.bool_], window: int, threshold: float
) -> NDArray[np.float64]:
    """Share ``(n, h, w)`` of the window's pixels that are lit and agree with the mean of those that are.

    A pixel agrees that is within ``threshold`` · (1 + r) px of the mean, r px off the middle: slopes of up to
    ``threshold`` px to the pixel are one surface. What lies beyond the picture is as its border.
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
