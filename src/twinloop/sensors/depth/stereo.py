"""Active stereo: two cameras match what they see, with a projected pattern for texture (RealSense D400)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike

from twinloop.sensors.depth.chance import looked_at, normal_field, uniform_field
from twinloop.sensors.depth.disparity import EDGE, disparity, fattened, from_disparity, hidden, quantized
from twinloop.sensors.depth.frames import DepthFrames, DepthReading, per_frame
from twinloop.sensors.depth.returns import Returns


@dataclass(frozen=True, kw_only=True)
class StereoSpec:
    """How a stereo camera is built.

    ``baseline`` in m between its cameras, ``unit`` of its counts in m, ``subpixel`` steps of disparity to a pixel (0:
    not rounded), ``max_disparity`` in px that it searches, and so how near it sees, ``max_depth`` in m that it
    reports, ``correlation`` in px over which its errors and losses are alike, ``fattening`` in px by which near things
    grow.
    """

    baseline: float
    unit: float = 0.001
    subpixel: float = 0.0
    max_disparity: float = math.inf
    max_depth: float = math.inf
    correlation: float = 0.0
    fattening: int = 0


@dataclass(frozen=True, kw_only=True)
class StereoDepth(Returns):
    """A stereo camera; numbers, or one for each frame ``(n,)``. Only ``spec`` is wrong about an ideal one.

    The depth error is σ_z = z² σ_d / (f·B) for a ``disparity_noise`` σ_d in px. ``disparity_bias`` in px is a shift of
    the pair's calibration, ``edge_noise`` in px how far aside a pixel looks, ``scale_error`` relative.
    """

    spec: StereoSpec
    scale_error: ArrayLike = 0.0
    disparity_noise: ArrayLike = 0.0
    disparity_bias: ArrayLike = 0.0
    edge_noise: ArrayLike = 0.0

    def read(self, frames: DepthFrames, chance: Sequence[Generator]) -> DepthReading:
        """What the camera reports of every frame, with a generator for each."""
        spec, shape = self.spec, frames.depth.shape[1:]
        focal_baseline = frames.intrinsics.fx * spec.baseline
        errors = normal_field(chance, shape, spec.correlation)
        aside, along = normal_field(chance, shape, spec.correlation), normal_field(chance, shape, spec.correlation)
        luck = uniform_field(chance, shape, spec.correlation)

        ideal = disparity(frames.depth, focal_baseline)
        blurred = looked_at(ideal, per_frame(self.edge_noise) * aside, per_frame(self.edge_noise) * along)
        grown = fattened(blurred, spec.fattening)
        measured = quantized(
            grown + per_frame(self.disparity_bias) + per_frame(self.disparity_noise) * errors, spec.subpixel
        )
        depth = from_disparity(measured, focal_baseline) * (1.0 + per_frame(self.scale_error))

        seen = ~hidden(ideal) | (grown > ideal + EDGE)
        found = (grown > 0.0) & (measured > 0.0) & (measured <= spec.max_disparity) & (depth <= spec.max_depth)
        left, right = frames.cosine(), frames.cosine(spec.baseline)
        cosine = None if left is None or right is None else np.minimum(left, right)
        return DepthReading.of(depth, seen & found & (luck < self.survival(frames, cosine)), spec.unit)
