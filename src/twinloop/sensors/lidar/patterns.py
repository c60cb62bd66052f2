"""Compute directions and times of a lidar's beams as functions of the device's clock.

The axes are x forward, y left, z up (ROS REP 103). Azimuth is counter-clockwise about z from x, and elevation
is the angle above the x-y plane.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError

GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
"""Inverse golden ratio, 0.618…; steps of this share of a circle fill the circle evenly."""


@dataclass(frozen=True, kw_only=True)
class Beams:
    """Beams of a lidar in the order of firing, each array of shape ``(n,)``.

    Attributes:
        time: firing time by the device's clock, in s.
        azimuth: angle about z, in rad.
        elevation: angle above the x-y plane, in rad.
        line: number of the laser or scan line.
    """

    time: NDArray[np.float64]
    azimuth: NDArray[np.float64]
    elevation: NDArray[np.float64]
    line: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.time)

    @property
    def directions(self) -> NDArray[np.float64]:
        """Directions of the beams as unit vectors in the device's axes, shape ``(n, 3)``."""
        return directions(self.azimuth, self.elevation)


def directions(azimuth: NDArray[np.float64], elevation: NDArray[np.float64]) -> NDArray[np.float64]:
    """Convert azimuth and elevation in rad to unit vectors, shape ``(…, 3)``."""
    level = np.cos(elevation)
    return np.stack([level * np.cos(azimuth), level * np.sin(azimuth), np.sin(elevation)], axis=-1)


@dataclass(frozen=True, kw_only=True)
class SpinningPattern:
    """Scan pattern of a spinning lidar: vertically stacked lasers on a rotating head.

    Lines are numbered from the lowest elevation.

    Attributes:
        scan_rate: rotations per second.
        cycle: time in s after which all lasers fire again.
        elevations: elevation of each laser in rad, in the order of firing.
        firing_interval: time between two lasers, in s.
        clockwise: whether the head rotates clockwise, viewed from above.

    Raises:
        InputError: If there is no laser, a time is not positive, or the lasers take longer than a cycle.
    """

    scan_rate: float
    cycle: float
    elevations: tuple[float, ...] = (0.0,)
    firing_interval: float = 0.0
    clockwise: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "elevations", tuple(float(value) for value in self.elevations))
        if not (self.elevations and self.scan_rate > 0.0 and self.cycle > 0.0 and self.firing_interval >= 0.0):
            raise InputError(f"{self} fires no beams. Give at least one elevation, and a positive scan rate and cycle.")
        if (len(self.elevations) - 1) * self.firing_interval >= self.cycle:
            raise InputError(
                f"{len(self.elevations)} lasers every {self.firing_interval:g} s do not fit cycles of {self.cycle:g} s."
                " Use a shorter firing interval or a longer cycle."
            )

    def beams(self, begin: float, end: float) -> Beams:
        """Return all beams fired at times ``begin ≤ t < end``, both in s."""
        lasers = np.arange(len(self.elevations))
        cycles = np.arange(math.floor(begin / self.cycle) - 1, math.ceil(end / self.cycle) + 1)
        time = (cycles[:, None] * self.cycle + lasers * self.firing_interval).ravel()
        laser = np.broadcast_to(lasers, (len(cycles), len(lasers))).ravel()
        within = (time >= begin) & (time < end)
        time, laser = time[within], laser[within]
        turn = 2.0 * math.pi * np.mod(time * self.scan_rate, 1.0)
        heights = np.array(self.elevations)
        return Beams(
            time=time,
            azimuth=-turn if self.clockwise else turn,
            elevation=heights[laser],
            line=np.argsort(np.argsort(heights, kind="stable"), kind="stable")[laser],
        )


@dataclass(frozen=True, kw_only=True)
class NonRepetitivePattern:
    """Scan pattern whose lines sweep up and down while the head rotates, and never repeat their directions.

    It approximates the Livox Mid-360. Field of view, points per second and number of lines are those of the device. The
    curves are our choice, because the maker does not publish the pattern. In one rotation each line sweeps 40.618…
    times (`SWEEPS` plus the golden ratio's fraction) from ``elevation_min`` to ``elevation_max`` and back. The fraction
    is irrational, so the curves of each rotation are between those of earlier rotations. After any time, the beams
    cover at least as much of the field of view as beams in random directions.

    Attributes:
        scan_rate: approximate rotations per second.
        point_rate: beams per second of all lines together; the lines fire one after another.
        lines: number of lines.
        elevation_min: lowest elevation of the field of view, in rad.
        elevation_max: highest elevation of the field of view, in rad.

    Raises:
        InputError: If there is no line, a rate is not positive, or the field of view is empty.
    """

    scan_rate: float
    point_rate: float
    lines: int
    elevation_min: float
    elevation_max: float

    def __post_init__(self) -> None:
        if not (self.lines >= 1 and self.scan_rate > 0.0 and self.point_rate > 0.0):
            raise InputError(f"{self} fires no beams. Give at least one line, and a positive scan rate and point rate.")
        if not -math.pi / 2 <= self.elevation_min < self.elevation_max <= math.pi / 2:
            raise InputError(f"{self} has no field of view. Elevations must increase within -π/2 to π/2 rad.")

    def beams(self, begin: float, end: float) -> Beams:
        """Return all beams fired at times ``begin ≤ t < end``, both in s."""
        number = np.arange(math.ceil(begin * self.point_rate), math.ceil(end * self.point_rate))
        time, line = number / self.point_rate, np.mod(number, self.lines)
        # A turn is a little quicker than a scan, so that no beam has an azimuth of the previous turn.
        turns = time * self.scan_rate * (1.0 + GOLDEN * self.lines * self.scan_rate / self.point_rate)
        # The phase shift from a line's offset in azimuth is removed, so that sweeps of all lines alternate.
        phase = np.mod((turns + line / self.lines) * (SWEEPS + GOLDEN) + line / self.lines, 1.0)
        rise = 1.0 - np.abs(2.0 * phase - 1.0)
        return Beams(
            time=time,
            azimuth=2.0 * math.pi * np.mod(turns + line / self.lines, 1.0),
            elevation=self.elevation_min + (self.elevation_max - self.elevation_min) * rise,
            line=line.astype(np.int64),
        )


SWEEPS = 40
"""Sweeps of a line per rotation (our choice), which gives a Mid-360 frame 1° between points in both directions."""

BeamPattern = SpinningPattern | NonRepetitivePattern
