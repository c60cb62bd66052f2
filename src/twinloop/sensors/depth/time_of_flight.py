"""Model continuous-wave time of flight: distance from the phase of modulated light (Azure Kinect)."""

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

LIGHT = 299_792_458.0  # m/s, exact (SI)
NOISE_FREE_UNTIL = 0.5  # m; up to here noise is constant (DLR-RM/BlenderProc, Azure Kinect noise)


@dataclass(frozen=True, kw_only=True)
class TimeOfFlightSpec:
    """Construction of a time-of-flight camera.

    ``unit`` of its counts in m, smallest and largest reported depth ``min_depth`` and ``max_depth`` in m,
    ``modulation`` frequency of its light in Hz, ``footprint`` in px, the standard deviation of a pixel's spot (0: a
    point), ``edge_limit`` in m, the largest spread of distances in 3×3 px at which it reports a depth.
    """

    unit: float = 0.001
    min_depth: float = 0.0
    max_depth: float = math.inf
    modulation: float = 2e8
    footprint: float = 0.0
    edge_limit: float = math.inf


@dataclass(frozen=True, kw_only=True)
class TimeOfFlightDepth(ReturnLosses):
    """A time-of-flight camera; numbers, or one for each frame ``(n,)``.

    Errors are of the distance r along a pixel's ray: ``range_bias`` in m, ``scale_error`` relative, noise of standard
    deviation ``range_noise`` + ``range_noise_slope`` · max(r - 0.5 m, 0), and a systematic error of
    ``wiggle_amplitude`` m by odd harmonics in the light, with four periods to an unambiguous range of c / 2f (M.
    Lindner and A. Kolb, "Lateral and depth calibration of PMD distance sensors", ISVC 2006). A pixel with an amplitude,
    brightness · cos θ / r², below ``amplitude_limit`` in 1/m² is lost. ``edge_noise`` in px is the displacement of a
    pixel's line of sight.

    Multipath (light reflected by a second surface) is not modelled.
    """

    spec: TimeOfFlightSpec
    scale_error: ArrayLike = 0.0
    range_bias: ArrayLike = 0.0
    range_noise: ArrayLike = 0.0
    range_noise_slope: ArrayLike = 0.0
    wiggle_amplitude: ArrayLike = 0.0
    amplitude_limit: ArrayLike = 0.0
    edge_noise: ArrayLike = 0.0

    def read(self, frames: DepthFrames, chance: Sequence[Generator]) -> DepthReading:
        """Return the camera's reading of every frame, with a random generator for each."""
        spec, shape = self.spec, frames.depth.shape[1:]
        errors, aside, along = (normal_field(chance, shape) for _ in range(3))
        luck = uniform_field(chance, shape)

        ideal = frames.depth * frames.distance_ratio
        cosine = frames.cosine()
        amplitude = compute_amplitude(ideal, frames.brightness, cosine)
        moved = displace_depths(
            ideal, expand_per_frame(self.edge_noise) * aside, expand_per_frame(self.edge_noise) * along
        )
        mixed = mix_distances(moved, amplitude, spec.footprint)
        seen = np.isfinite(mixed)
        distance = np.where(seen, mixed, 1.0)
        measured = distance * (1.0 + expand_per_frame(self.scale_error)) + expand_per_frame(self.range_bias)
        phase = 4.0 * math.pi * spec.modulation / LIGHT * distance
        measured += expand_per_frame(self.wiggle_amplitude) * np.sin(4.0 * phase)
        measured += errors * self._deviation(distance)
        depth = measured / frames.distance_ratio

        within = (depth >= spec.min_depth) & (depth <= spec.max_depth) & (compute_spread(ideal) <= spec.edge_limit)
        lit = (amplitude > 0.0) & (amplitude >= expand_per_frame(self.amplitude_limit))
        return DepthReading.of(depth, seen & within & lit & (luck < self.survival(frames, cosine)), spec.unit)

    def _deviation(self, distance: NDArray[np.float64]) -> NDArray[np.float64]:
        beyond = np.maximum(distance - NOISE_FREE_UNTIL, 0.0)
        return expand_per_frame(self.range_noise) + expand_per_frame(self.range_noise_slope) * beyond


def compute_amplitude(
    distance: NDArray[np.float64], brightness: NDArray[np.floating] | None, cosine: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    """Return the amplitude of returned light in 1/m²: 1 for a white surface at 1 m met head-on, 0 without one."""
    amplitude = 1.0 / distance**2
    for factor in (brightness, cosine):
        if factor is not None:
            amplitude = amplitude * factor
    return amplitude


def mix_distances(
    distance: NDArray[np.float64], amplitude: NDArray[np.float64], footprint: float
) -> NDArray[np.float64]:
    """Return the distances of pixels with a footprint: the mean distance weighted by amplitude; inf without light.

    At an edge that is a point in the air between the two surfaces. Phases add as vectors; for differences well below
    the unambiguous range that is this mean.
    """
    if footprint <= 0.0:
        return distance
    seen = np.isfinite(distance)
    light = np.where(seen, amplitude, 0.0)

    def blurred(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return ndimage.gaussian_filter(values, footprint, axes=(1, 2), mode="nearest", radius=1)

    total = blurred(light)
    mean = np.divide(
        blurred(light * np.where(seen, distance, 0.0)), total, out=np.full_like(total, np.inf), where=total > 0.0
    )
    return np.where(seen, mean, np.inf)


def compute_spread(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the largest minus the smallest distance in 3×3 px around each pixel, in m; infinite without a surface."""
    seen = np.isfinite(distance)
    largest = ndimage.maximum_filter(np.where(seen, distance, -np.inf), size=(1, 3, 3), mode="nearest")
    smallest = ndimage.minimum_filter(distance, size=(1, 3, 3), mode="nearest")
    return np.where(seen, largest, np.inf) - np.where(seen, smallest, 0.0)
