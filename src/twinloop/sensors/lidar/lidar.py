"""Compute the points that a lidar reports from true distances along several rays per beam."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.sensors.lidar.patterns import Beams, directions


def split_beams(
    azimuth: NDArray[np.float64], elevation: NDArray[np.float64], divergence: ArrayLike, count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Represent each lidar beam by several rays that sample its width.

    One ray is the centre, with half of the light. The other rays are on the 1/e² radius of a Gaussian beam, which
    is half of the full ``divergence``. With these weights the rays have the second moments of the Gaussian.

    Args:
        azimuth: angle about z of each of the n beams, in rad.
        elevation: angle above the x-y plane of each beam, in rad.
        divergence: full width of a beam, in rad.
        count: rays per beam: 1 for no width, otherwise at least 4.

    Returns:
        Unit directions of the rays, shape ``(n, count, 3)``, and the share of the beam's light in each ray,
        ``(count,)``.

    Raises:
        InputError: If ``count`` is 0, 2 or 3.
    """
    if count == 1:
        return directions(azimuth, elevation)[:, None], np.ones(1)
    if count < 4:
        raise InputError(f"{count} rays cannot represent a beam. Use 1 (no beam width), or at least 4.")
    around = 2.0 * np.pi * np.arange(count - 1) / (count - 1)
    rim = np.asarray(divergence, dtype=np.float64) / 2.0
    middle = directions(azimuth, elevation)
    upwards = directions(azimuth, elevation + np.pi / 2)
    sideways = np.cross(upwards, middle)
    offsets = np.cos(around)[:, None] * sideways[:, None] + np.sin(around)[:, None] * upwards[:, None]
    edge = np.cos(rim) * middle[:, None] + np.sin(rim) * offsets
    weights = np.concatenate([[0.5], np.full(count - 1, 0.5 / (count - 1))])
    return np.concatenate([middle[:, None], edge], axis=1), weights


@dataclass(frozen=True, kw_only=True)
class BeamEchoes:
    """Strongest echo of each of n beams.

    Attributes:
        distance: distance in m, inf for no echo.
        strength: returned light in 1/m²; 1 is the light of a white surface at 1 m met head-on.
        cosine: cosine of the angle of incidence.
        source: index of the ray that returned most of the light.
    """

    distance: NDArray[np.float64]
    strength: NDArray[np.float64]
    cosine: NDArray[np.float64]
    source: NDArray[np.intp]


def find_strongest_echo(
    distance: NDArray[np.float64],
    reflectivity: NDArray[np.float64],
    cosine: NDArray[np.float64],
    weights: NDArray[np.float64],
    *,
    pulse_length: float,
) -> BeamEchoes:
    """Return the strongest echo of each beam, computed from the hits of its rays.

    A ray returns the light weight · reflectivity · cosine / distance². Rays whose distances differ by at most
    ``pulse_length`` return in one pulse, and the measured distance is their mean, weighted by light. At an edge
    this is a point in the air between two surfaces. If there are several pulses, the strongest is reported.

    Args:
        distance: true distance of each ray in m, inf for no hit, shape ``(n, k)`` for n beams of k rays.
        reflectivity: reflectivity of the surface from 0 to 1, shape ``(n, k)``.
        cosine: cosine of the angle of incidence, shape ``(n, k)``.
        weights: share of the beam's light in each ray, shape ``(k,)``.
        pulse_length: length of a light pulse, in m.
    """
    hit = np.isfinite(distance) & (distance > 0.0)
    reached = np.where(hit, distance, 1.0)
    light = np.where(hit, weights * reflectivity * cosine / reached**2, 0.0)
    together = (np.abs(reached[:, :, None] - reached[:, None, :]) <= pulse_length) & hit[:, :, None] & hit[:, None, :]
    pulses = np.einsum("nij,nj->ni", together, light)
    beam, best = np.arange(len(distance)), pulses.argmax(axis=1)
    share = np.where(together[beam, best], light, 0.0)
    total = share.sum(axis=1)
    has_echo = total > 0.0
    fraction = share / np.where(has_echo, total, 1.0)[:, None]
    return BeamEchoes(
        distance=np.where(has_echo, np.einsum("nk,nk->n", fraction, reached), np.inf),
        strength=total,
        cosine=np.einsum("nk,nk->n", fraction, cosine),
        source=share.argmax(axis=1),
    )


LEAST_COSINE = 0.1  # beyond 84° noise grows no further: our choice, the return is negligible


@dataclass(frozen=True, kw_only=True)
class LidarSpec:
    """Construction parameters of a lidar's receiver.

    Attributes:
        min_range: smallest reported distance, in m.
        max_range: largest reported distance, in m.
        range_step: quantization step of the distance in m, 0 for no rounding.
        pulse_length: difference of distances up to which echoes merge into one, in m.
        subrays: rays that represent the width of a beam: 1, or at least 4.
    """

    min_range: float = 0.0
    max_range: float = math.inf
    range_step: float = 0.0
    pulse_length: float = 0.0
    subrays: int = 1


@dataclass(frozen=True, kw_only=True)
class LidarReturns:
    """Returns (measured points) of a lidar scan, m in number, in the order of firing.

    Attributes:
        beam: index of the beam of each return, shape ``(m,)``.
        distance: measured distance in m, shape ``(m,)``.
        points: measured position in the axes that the device had at the time of the return, in m, shape ``(m, 3)``.
        strength: returned light in 1/m², shape ``(m,)``; 1 is the light of a white surface at 1 m met head-on.
        source: index of the beam's ray that returned most of the light, shape ``(m,)``.
    """

    beam: NDArray[np.intp]
    distance: NDArray[np.float64]
    points: NDArray[np.float64]
    strength: NDArray[np.float64]
    source: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.beam)


@dataclass(frozen=True, kw_only=True)
class Lidar:
    """Lidar of one world with its errors.

    A distance r is reported as r (1 + ``scale_error``) + ``range_bias`` + N(0, σ), with σ = (``range_noise`` +
    ``range_noise_slope`` · r) (1 + ``incidence_noise`` (1/cos θ - 1)) at the angle of incidence θ.

    Attributes:
        spec: construction parameters of the receiver.
        scale_error: relative error of the distance.
        range_bias: constant error, in m.
        range_noise: standard deviation of the noise, in m.
        range_noise_slope: increase of that deviation per m of distance.
        incidence_noise: increase of that deviation at slanted surfaces.
        angle_noise: standard deviation of the beam's azimuth and elevation in rad; the reported direction does not
            include this error.
        divergence: full width of a beam, in rad.
        drop_threshold: smallest returned light of an echo that is detected, in 1/m² (``strength`` of `BeamEchoes`); 1
            is the light of a white surface at 1 m met head-on.
        drop_rate: share of detected echoes that are lost at random.
    """

    spec: LidarSpec
    scale_error: float = 0.0
    range_bias: float = 0.0
    range_noise: float = 0.0
    range_noise_slope: float = 0.0
    incidence_noise: float = 0.0
    angle_noise: float = 0.0
    divergence: float = 0.0
    drop_threshold: float = 0.0
    drop_rate: float = 0.0

    def aim(self, beams: Beams, generator: Generator) -> NDArray[np.float64]:
        """Return the true directions of all rays in the device's axes, including errors of the beams' directions.

        Args:
            beams: n beams of the scan pattern.
            generator: random generator of the direction errors.

        Returns:
            Unit vectors, shape ``(n, k, 3)`` for k rays per beam.
        """
        angle_errors = self.angle_noise * generator.standard_normal((2, len(beams)))
        # A turn about z moves a steep beam less; the error is equal in both directions.
        azimuth = beams.azimuth + angle_errors[0] / np.maximum(np.cos(beams.elevation), LEAST_COSINE)
        return split_beams(azimuth, beams.elevation + angle_errors[1], self.divergence, self.spec.subrays)[0]

    def receive(
        self,
        beams: Beams,
        distance: NDArray[np.float64],
        reflectivity: NDArray[np.float64],
        cosine: NDArray[np.float64],
        generator: Generator,
    ) -> LidarReturns:
        """Return the points that the lidar reports for the hits of the rays of `aim`.

        Args:
            beams: n beams of the scan pattern.
            distance: true distance of each ray in m, inf for no hit, shape ``(n, k)`` for k rays per beam.
            reflectivity: reflectivity of the surface at each hit from 0 to 1, shape ``(n, k)``.
            cosine: cosine of the angle between ray and normal at each hit from 0 to 1, shape ``(n, k)``.
            generator: random generator of noise and losses.
        """
        spec = self.spec
        weights = split_beams(beams.azimuth[:1], beams.elevation[:1], self.divergence, spec.subrays)[1]
        echo = find_strongest_echo(distance, reflectivity, cosine, weights, pulse_length=spec.pulse_length)
        errors, loss_draw = generator.standard_normal(len(beams)), generator.random(len(beams))
        true = np.where(np.isfinite(echo.distance), echo.distance, 0.0)
        measured = true * (1.0 + self.scale_error) + self.range_bias + errors * self._deviation(true, echo)
        if spec.range_step > 0.0:
            measured = np.round(measured / spec.range_step) * spec.range_step
        detected = (echo.strength > 0.0) & (echo.strength >= self.drop_threshold) & (loss_draw >= self.drop_rate)
        beam = np.flatnonzero(detected & (measured >= spec.min_range) & (measured <= spec.max_range) & (measured > 0.0))
        return LidarReturns(
            beam=beam,
            distance=measured[beam],
            points=measured[beam, None] * beams.directions[beam],
            strength=echo.strength[beam],
            source=echo.source[beam],
        )

    def _deviation(self, distance: NDArray[np.float64], echo: BeamEchoes) -> NDArray[np.float64]:
        slant = 1.0 / np.maximum(echo.cosine, LEAST_COSINE) - 1.0
        return (self.range_noise + self.range_noise_slope * distance) * (1.0 + self.incidence_noise * slant)
