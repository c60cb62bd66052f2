"""Compute readings of a lidar from distances along its beams, which have a width."""

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
    """Return unit directions ``(n, count, 3)`` of the rays of beams ``(n,)``, and each ray's share of the beam's light.

    One ray is the centre with half of the light; the others are on the 1/e² radius of a Gaussian beam, half of the full
    ``divergence`` in rad from the centre. These weights have the Gaussian's second moments.

    Raises:
        InputError: an impossible number of rays (possible: 1, or 4 and more).
    """
    if count == 1:
        return directions(azimuth, elevation)[:, None], np.ones(1)
    if count < 4:
        raise InputError(f"{count} rays cannot represent a beam. Use 1, without width, or 4 and more.")
    around = 2.0 * np.pi * np.arange(count - 1) / (count - 1)
    rim = np.asarray(divergence, dtype=np.float64) / 2.0
    middle = directions(azimuth, elevation)
    upwards = directions(azimuth, elevation + np.pi / 2)
    sideways = np.cross(upwards, middle)
    aside = np.cos(around)[:, None] * sideways[:, None] + np.sin(around)[:, None] * upwards[:, None]
    edge = np.cos(rim) * middle[:, None] + np.sin(rim) * aside
    weights = np.concatenate([[0.5], np.full(count - 1, 0.5 / (count - 1))])
    return np.concatenate([middle[:, None], edge], axis=1), weights


@dataclass(frozen=True, kw_only=True)
class BeamEchoes:
    """Echoes of beams ``(n,)``.

    ``distance`` in m, inf without an echo; ``strength`` in 1/m², 1: a white surface met head-on at 1 m; ``cosine``, of
    incidence; ``source``, the ray that returned most of the light.
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
    """Return the strongest echo of each beam, from the hits of its rays ``(n, k)``.

    A ray returns the light weight · reflectivity · cosine / distance². Rays whose distances differ by at most
    ``pulse_length`` m return in one pulse, and the measured distance is their mean, weighted by light: at an edge, a
    point in the air between two surfaces. Of several pulses the strongest is reported.
    """
    seen = np.isfinite(distance) & (distance > 0.0)
    near = np.where(seen, distance, 1.0)
    light = np.where(seen, weights * reflectivity * cosine / near**2, 0.0)
    together = (np.abs(near[:, :, None] - near[:, None, :]) <= pulse_length) & seen[:, :, None] & seen[:, None, :]
    pulses = np.einsum("nij,nj->ni", together, light)
    beam, best = np.arange(len(distance)), pulses.argmax(axis=1)
    share = np.where(together[beam, best], light, 0.0)
    total = share.sum(axis=1)
    back = total > 0.0
    part = share / np.where(back, total, 1.0)[:, None]
    return BeamEchoes(
        distance=np.where(back, np.einsum("nk,nk->n", part, near), np.inf),
        strength=total,
        cosine=np.einsum("nk,nk->n", part, cosine),
        source=share.argmax(axis=1),
    )


LEAST_COSINE = 0.1  # beyond 84° noise grows no further: our choice, the return is negligible


@dataclass(frozen=True, kw_only=True)
class LidarSpec:
    """Construction of a lidar's receiver.

    ``min_range`` and ``max_range`` in m that it reports, ``range_step`` of its counts in m (0: not rounded),
    ``pulse_length`` in m within which echoes are merged, ``subrays`` per beam.
    """

    min_range: float = 0.0
    max_range: float = math.inf
    range_step: float = 0.0
    pulse_length: float = 0.0
    subrays: int = 1


@dataclass(frozen=True, kw_only=True)
class LidarReturns:
    """Returns of a scan: ``beam`` ``(m,)`` are the rows of the beams with a return, in the order of firing.

    ``distance`` in m, ``points`` ``(m, 3)`` in the device's axes at the time of each, ``strength`` in 1/m² (1: a white
    surface met head-on at 1 m), ``source`` the ray of the beam that returned most of the light.
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
    """A lidar of one world.

    A distance r is reported as r (1 + ``scale_error``) + ``range_bias`` + N(0, σ), with σ = (``range_noise`` +
    ``range_noise_slope`` · r) (1 + ``incidence_noise`` (1/cos θ - 1)). Beam directions have an error of ``angle_noise``
    rad in azimuth and elevation, which is not in the reported direction. Echoes weaker than ``drop_threshold`` in 1/m²
    are not detected, and of the others the share ``drop_rate`` is lost. ``divergence`` in rad is a beam's full width.
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

    def aim(self, beams: Beams, chance: Generator) -> NDArray[np.float64]:
        """Return the true directions of the rays of beams ``(n,)``, ``(n, k, 3)`` in the device's axes."""
        astray = self.angle_noise * chance.standard_normal((2, len(beams)))
        # A turn about z moves a steep beam less; the error is equal in both directions.
        azimuth = beams.azimuth + astray[0] / np.maximum(np.cos(beams.elevation), LEAST_COSINE)
        return split_beams(azimuth, beams.elevation + astray[1], self.divergence, self.spec.subrays)[0]

    def receive(
        self,
        beams: Beams,
        distance: NDArray[np.float64],
        reflectivity: NDArray[np.float64],
        cosine: NDArray[np.float64],
        chance: Generator,
    ) -> LidarReturns:
        """Return the reported returns for the hits of the rays of `aim`.

        Args:
            distance: true distances ``(n, k)`` in m, inf without a hit.
            reflectivity: reflectivity of the surface at each hit, 0 to 1.
            cosine: cosine of the angle between ray and normal at each hit, 0 to 1.
        """
        spec = self.spec
        weights = split_beams(beams.azimuth[:1], beams.elevation[:1], self.divergence, spec.subrays)[1]
        echo = find_strongest_echo(distance, reflectivity, cosine, weights, pulse_length=spec.pulse_length)
        errors, luck = chance.standard_normal(len(beams)), chance.random(len(beams))
        true = np.where(np.isfinite(echo.distance), echo.distance, 0.0)
        measured = true * (1.0 + self.scale_error) + self.range_bias + errors * self._deviation(true, echo)
        if spec.range_step > 0.0:
            measured = np.round(measured / spec.range_step) * spec.range_step
        noticed = (echo.strength > 0.0) & (echo.strength >= self.drop_threshold) & (luck >= self.drop_rate)
        beam = np.flatnonzero(noticed & (measured >= spec.min_range) & (measured <= spec.max_range) & (measured > 0.0))
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
