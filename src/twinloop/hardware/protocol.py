"""What every robot offers: LeRobot's words, and the three things that a log needs besides them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from twinloop.core.errors import InputError
from twinloop.core.records import Source
from twinloop.core.units import UnitMap

POSITION, TORQUE = "pos", "torque"
SEEN = "environment."  # before the name of what a tracker of the scene sees


class NotConnectedError(InputError):
    """A robot was spoken to before `connect` or after `disconnect`."""


class Clock(Protocol):
    """The time a robot lives in: a real one sleeps through it, a virtual one is moved along by it."""

    def now(self) -> float:
        """Seconds since some fixed moment."""
        ...

    def wait_until(self, moment: float) -> None:
        """Return at ``moment`` or, as clocks do, a little later; at once where it has passed."""
        ...


class WallClock:
    """The computer's own clock."""

    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return time.perf_counter()

    def wait_until(self, moment: float) -> None:
        """Sleep until ``moment``."""
        time.sleep(max(0.0, moment - self.now()))


@runtime_checkable
class Robot(Protocol):
    """A robot as LeRobot speaks to one (lerobot 0.6.1, ``robots/robot.py``), plus ``clock``, ``units``, ``source``.

    Observations and actions are dictionaries of floats: ``<joint>.pos`` in the units that ``units`` maps to rad or m,
    ``<joint>.torque`` in N·m for the actions of a torque-controlled robot. Where a tracker watches the scene,
    observations go on with ``environment.NAME``: positions in m, headings as cosine and sine.
    """

    name: str

    @property
    def observation_features(self) -> Mapping[str, type]:
        """Keys and types of an observation: joints in the order of ``units``, then what a tracker sees."""
        ...

    @property
    def action_features(self) -> Mapping[str, type]:
        """Keys and types of an action, in the order of ``units``."""
        ...

    @property
    def is_connected(self) -> bool:
        """Whether it can be spoken to."""
        ...

    def connect(self, calibrate: bool = True) -> None:
        """Open the connection; calibrate where that is needed and asked for."""
        ...

    @property
    def is_calibrated(self) -> bool:
        """Whether readings mean what ``units`` says."""
        ...

    def calibrate(self) -> None:
        """Calibrate."""
        ...

    def configure(self) -> None:
        """Write the settings that the robot needs."""
        ...

    def get_observation(self) -> dict[str, float]:
        """What the robot reads now."""
        ...

    def send_action(self, action: Mapping[str, float]) -> dict[str, float]:
        """Issue a command; returns the one sent, which is within limits."""
        ...

    def disconnect(self) -> None:
        """Close the connection."""
        ...

    @property
    def clock(self) -> Clock:
        """The time the robot lives in."""
        ...

    @property
    def units(self) -> UnitMap:
        """The unit of every joint, in column order."""
        ...

    @property
    def source(self) -> Source:
        """``real``, or ``sim`` for a robot that is computed."""
        ...

    @property
    def origin(self) -> str:
        """The name by which logs say where they come from, such as ``virtual:so101_tabletop?seed=3``."""
        ...
