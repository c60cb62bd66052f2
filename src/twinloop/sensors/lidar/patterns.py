"""Compute directions and times of a lidar's beams, as functions of the device's clock.

Azimuth is counter-clockwise about z from x, elevation up from the x-y plane, in axes x forward, y left, z up (ROS
REP 103).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError

GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
"""The number that fractions approximate worst: steps of this share fill a circle evenly."""


@dataclass(frozen=True, kw_only=True)
class Beams:
    """Beams in the order of firing: ``time`` in s by the device's clock, ``azimuth``, ``elevation`` (rad), ``line``."""

    time: NDArray[np.float64]
    azimuth: NDArray[np.float64]
    elevation: NDArray[np.float64]
    line: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.time)

    @property
    def directions(self) -> NDArray[np.float64]:
        """Unit vectors ``(n, 3)`` in the device's axes."""
        return directions(self.azimuth, self.elevation)


def directions(azimuth: NDArray[np.float64], elevation: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return unit vectors ``(…, 3)`` of angles in rad."""
    level = np.cos(elevation)
    return np.stack([level * np.cos(azimuth), level * np.sin(azimuth), np.sin(elevation)], axis=-1)


@dataclass(frozen=True, kw_only=True)
class SpinningPattern:
    """Lasers stacked vertically on a head that rotates ``scan_rate`` times a second.

    Every ``cycle`` s the lasers fire in the order of ``elevations``, at intervals of ``firing_interval`` s.
    ``clockwise`` is viewed from above. Lines are numbered from the lowest elevation.

    Raises:
        InputError: no laser, a time that is not positive, or lasers that take longer than a cycle.
    """

    scan_rate: float
    cycle: float
    elevations: tuple[float, ...] = (0.0,)
    firing_interval: float = 0.0
    clockwise: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "elevations", tuple(float(value) for value in self.elevations))
        if not (self.elevations and self.scan_rate > 0.0 and self.cycle > 0.0 and self.firing_interval >= 0.0):
            raise InputError(f"{self} fires no beams: it needs an elevation, and a positive scan rate and cycle.")
        if (len(self.elevations) - 1) * self.firing_interval >= self.cycle:
            raise InputError(
                f"{len(self.elevations)} lasers every {self.firing_interval:g} s do not fit cycles of {self.cycle:g} s."
            )

    def beams(self, begin: float, end: float) -> Beams:
        """Return all beams fired at times ``begin ≤ t < end`` in s."""
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
    """Lines that sweep up and down while a head turns, and never repeat their directions.

    An approximation of the Livox Mid-360, whose maker does not publish its pattern: field of view, points per second
    and number of lines are the device's, the curves are ours. The head turns about ``scan_rate`` times a second. In a
    turn each of the ``lines`` sweeps `SWEEPS` + 0.618… times from ``elevation_min`` to ``elevation_max`` and back, so
    that every turn falls between the earlier ones. Lines fire in turn, ``point_rate`` beams per second in total.
    After any time, the beams cover at least as much of the field as beams in random directions.

    Raises:
        InputError: no line, a rate that is not positive, or an empty field of view.
    """

    scan_rate: float
    point_rate: float
    lines: int
    elevation_min: float
    elevation_max: float

    def __post_init__(self) -> None:
        if not (self.lines >= 1 and self.scan_rate > 0.0 and self.point_rate > 0.0):
            raise InputError(f"{self} fires no beams: it needs a line, and a positive scan rate and point rate.")
        if not -math.pi / 2 <= self.elevation_min < self.elevation_max <= math.pi / 2:
            raise InputError(f"{self} has no field of view: elevations rise within -π/2 … π/2.")

    def beams(self, begin: float, end: float) -> Beams:
        """Return all beams fired at times ``begin ≤ t < end`` in s."""
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
"""Sweeps of a line per rotation: our choice, which gives a Mid-360's frame 1° between points in both directions."""

BeamPattern = SpinningPattern | NonRepetitivePattern
