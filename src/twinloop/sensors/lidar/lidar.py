"""What a lidar makes of the distances along its beams."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from twinloop.sensors.lidar.beam import Echo, strongest_echo, subrays
from twinloop.sensors.lidar.patterns import Beams

LEAST_COSINE = 0.1  # beyond 84° noise grows no further: our choice, there is hardly any return


@dataclass(frozen=True, kw_only=True)
class LidarSpec:
    """How a lidar's receiver is built.

    ``min_range`` and ``max_range`` in m that it reports, ``range_step`` of its counts in m (0: not rounded),
    ``pulse_length`` in m within which echoes are one, ``subrays`` that stand for a beam.
    """

    min_range: float = 0.0
    max_range: float = math.inf
    range_step: float = 0.0
    pulse_length: float = 0.0
    subrays: int = 1


@dataclass(frozen=True, kw_only=True)
class LidarReturns:
    """What a scan reports of its beams: ``beam`` ``(m,)`` the rows of those that came back, in the order of firing.

    ``distance`` in m, ``points`` ``(m, 3)`` in the device's axes at the moment of each, ``strength`` in 1/m² (1: a
    white surface met head-on at 1 m), ``source`` the ray of the beam that brought most of the light.
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
    ``range_noise_slope`` · r) (1 + ``incidence_noise`` (1/cos θ - 1)). Beams go astray by ``angle_noise`` rad sideways
    and upwards, of which the device knows nothing. Echoes weaker than ``drop_threshold`` in 1/m² are not noticed, and
    of the rest the share ``drop_rate`` is lost. ``divergence`` in rad is a beam's full width.
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
        """Where the rays of beams ``(n,)`` really go, ``(n, k, 3)`` in the device's axes; k is `LidarSpec.subrays`."""
        astray = self.angle_noise * chance.standard_normal((2, len(beams)))
        # A turn about z moves a steep beam less; astray is as far in either direction.
        azimuth = beams.azimuth + astray[0] / np.maximum(np.cos(beams.elevation), LEAST_COSINE)
        return subrays(azimuth, beams.elevation + astray[1], self.divergence, self.spec.subrays)[0]

    def receive(
        self,
        beams: Beams,
        distance: NDArray[np.float64],
        reflectivity: NDArray[np.float64],
        cosine: NDArray[np.float64],
        chance: Generator,
    ) -> LidarReturns:
        """What is reported of what the rays of `aim` met.

        Args:
            distance: true distances ``(n, k)`` in m, inf where there is nothing.
            reflectivity: of the surfaces there, 0 to 1.
            cosine: of the angle between ray and normal there, 0 to 1.
        """
        spec = self.spec
        weights = subrays(beams.azimuth[:1], beams.elevation[:1], self.divergence, spec.subrays)[1]
        echo = strongest_echo(distance, reflectivity, cosine, weights, pulse_length=spec.pulse_length)
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

    def _deviation(self, distance: NDArray[np.float64], echo: Echo) -> NDArray[np.float64]:
        slant = 1.0 / np.maximum(echo.cosine, LEAST_COSINE) - 1.0
        return (self.range_noise + self.range_noise_slope * distance) * (1.0 + self.incidence_noise * slant)
