"""Simulate continuous-wave time-of-flight cameras, which measure distance by the phase of modulated light.

The Azure Kinect is such a camera.
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

LIGHT = 299_792_458.0  # m/s, exact (SI)
NOISE_FREE_UNTIL = 0.5  # m; up to here noise is constant (DLR-RM/BlenderProc, Azure Kinect noise)


@dataclass(frozen=True, kw_only=True)
class TimeOfFlightSpec:
    """Construction parameters of a time-of-flight camera.

    Attributes:
        unit: size of one depth count, in m.
        min_depth: smallest reported depth, in m.
        max_depth: largest reported depth, in m.
        modulation: modulation frequency of the light, in Hz.
        footprint: standard deviation of the spot that one pixel measures, in pixels; 0 for a point.
        edge_limit: largest range of distances within 3×3 pixels at which a depth is reported, in m.
    """

    unit: float = 0.001
    min_depth: float = 0.0
    max_depth: float = math.inf
    modulation: float = 2e8
    footprint: float = 0.0
    edge_limit: float = math.inf


@dataclass(frozen=True, kw_only=True)
class TimeOfFlightDepth(ReturnLosses):
    """Time-of-flight camera with its errors; each error is a number or one per frame ``(n,)``.

    Errors apply to the distance r along a pixel's ray. Multipath (light reflected by a second surface) is not
    modelled.

    Attributes:
        spec: construction parameters.
        scale_error: relative error of the distance.
        range_bias: constant error, in m.
        range_noise: standard deviation of the noise up to 0.5 m, in m.
        range_noise_slope: increase of that deviation per m of distance beyond 0.5 m.
        wiggle_amplitude: amplitude in m of the periodic error that odd harmonics of the light cause; it has four
            periods in the unambiguous range c / 2f (M. Lindner and A. Kolb, "Lateral and depth calibration of PMD
            distance sensors", ISVC 2006).
        amplitude_limit: smallest amplitude, brightness · cos θ / r² in 1/m², at which a pixel is measured.
        edge_noise: standard deviation of the displacement of a pixel's line of sight, in pixels.
    """

    spec: TimeOfFlightSpec
    scale_error: ArrayLike = 0.0
    range_bias: ArrayLike = 0.0
    range_noise: ArrayLike = 0.0
    range_noise_slope: ArrayLike = 0.0
    wiggle_amplitude: ArrayLike = 0.0
    amplitude_limit: ArrayLike = 0.0
    edge_noise: ArrayLike = 0.0

    def read(self, frames: DepthFrames, generators: Sequence[Generator]) -> DepthReading:
        """Return the depth images that the camera reports for the true frames.

        Args:
            frames: true values of n frames.
            generators: one random generator for each frame.
        """
        spec, shape = self.spec, frames.depth.shape[1:]
        errors, right, down = (normal_field(generators, shape) for _ in range(3))
        loss_draw = uniform_field(generators, shape)

        ideal = frames.depth * frames.distance_ratio
        cosine = frames.cosine()
        amplitude = compute_amplitude(ideal, frames.brightness, cosine)
        moved = displace_depths(
            ideal, expand_per_frame(self.edge_noise) * right, expand_per_frame(self.edge_noise) * down
        )
        mixed = mix_distances(moved, amplitude, spec.footprint)
        has_surface = np.isfinite(mixed)
        distance = np.where(has_surface, mixed, 1.0)
        measured = distance * (1.0 + expand_per_frame(self.scale_error)) + expand_per_frame(self.range_bias)
        phase = 4.0 * math.pi * spec.modulation / LIGHT * distance
        measured += expand_per_frame(self.wiggle_amplitude) * np.sin(4.0 * phase)
        measured += errors * self._deviation(distance)
        depth = measured / frames.distance_ratio

        within = (depth >= spec.min_depth) & (depth <= spec.max_depth) & (compute_spread(ideal) <= spec.edge_limit)
        bright_enough = (amplitude > 0.0) & (amplitude >= expand_per_frame(self.amplitude_limit))
        returned = bright_enough & (loss_draw < self.survival(frames, cosine))
        return DepthReading.of(depth, has_surface & within & returned, spec.unit)

    def _deviation(self, distance: NDArray[np.float64]) -> NDArray[np.float64]:
        beyond = np.maximum(distance - NOISE_FREE_UNTIL, 0.0)
        return expand_per_frame(self.range_noise) + expand_per_frame(self.range_noise_slope) * beyond


def compute_amplitude(
    distance: NDArray[np.float64], brightness: NDArray[np.floating] | None, cosine: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    """Return the amplitude of the returned light in 1/m², which is 1 for a white surface at 1 m met head-on.

    Args:
        distance: distance along the ray in m, inf if there is no surface (amplitude 0).
        brightness: share of the light that the surface reflects; None counts as 1.
        cosine: cosine of incidence; None counts as 1.
    """
    amplitude = 1.0 / distance**2
    for factor in (brightness, cosine):
        if factor is not None:
            amplitude = amplitude * factor
    return amplitude


def mix_distances(
    distance: NDArray[np.float64], amplitude: NDArray[np.float64], footprint: float
) -> NDArray[np.float64]:
    """Return the distances that pixels with a finite spot size measure: means weighted by amplitude.

    At an edge this is the distance of a point in the air between the two surfaces. In reality phases add as
    vectors; for differences well below the unambiguous range the result is this mean.

    Args:
        distance: distance along the ray in m, inf if there is no surface, shape ``(n, height, width)``.
        amplitude: amplitude of the returned light, same shape.
        footprint: standard deviation of the spot in pixels; 0 returns ``distance`` unchanged.

    Returns:
        Mean distances in m, inf for a pixel that receives no light.
    """
    if footprint <= 0.0:
        return distance
    has_surface = np.isfinite(distance)
    light = np.where(has_surface, amplitude, 0.0)

    def blurred(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return ndimage.gaussian_filter(values, footprint, axes=(1, 2), mode="nearest", radius=1)

    total = blurred(light)
    mean = np.divide(
        blurred(light * np.where(has_surface, distance, 0.0)), total, out=np.full_like(total, np.inf), where=total > 0.0
    )
    return np.where(has_surface, mean, np.inf)


def compute_spread(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the largest minus the smallest distance within 3×3 pixels of each pixel, in m; inf without a surface."""
    has_surface = np.isfinite(distance)
    largest = ndimage.maximum_filter(np.where(has_surface, distance, -np.inf), size=(1, 3, 3), mode="nearest")
    smallest = ndimage.minimum_filter(distance, size=(1, 3, 3), mode="nearest")
    return np.where(has_surface, largest, np.inf) - np.where(has_surface, smallest, 0.0)
