"""Simulate the drives of a robot: servo, motor with friction, elastic gear with play, encoder, and late commands.

Nothing here is twinloop's: the robot is to differ from every twin in its structure, too. Arrays are
``(nworld, n)`` for n joints.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.transfer.drake_so101.hidden import DriveValues

Array = NDArray[np.float64]


class CommandLine:
    """Commands on their way to the servos.

    Args:
        command: command that the servos hold, ``(nworld, n)``.
    """

    def __init__(self, command: Array) -> None:
        self._active, self._pending = command.copy(), list[tuple[Array, Array]]()

    def send(self, command: Array, arrival: Array) -> None:
        """Add a command that arrives at the times ``arrival`` ``(nworld, n)`` in s, but not before the previous one."""
        if self._pending:
            arrival = np.maximum(arrival, self._pending[-1][0])
        self._pending.append((arrival, command.copy()))

    def active_command(self, now: float) -> Array:
        """Return the newest command that has arrived at the time ``now`` in s, per joint."""
        waiting = list[tuple[Array, Array]]()
        for arrival, command in self._pending:
            arrived = arrival <= now
            self._active = np.where(arrived, command, self._active)
            if not arrived.all():
                waiting.append((arrival, command))
        self._pending = waiting
        return self._active


class Drives:
    """Drives of all joints of one robot in several worlds.

    The servo compares the command with its own encoder on the output of the gear, as the STS3215 does. The gear
    connects motor and link by a spring and a damper, which do not touch within the play.

    Args:
        values: true values of the drives.
        position: initial positions of the links in rad; their motors are at rest.
        load: torques in the gears that hold the links at rest, N·m.
        step: time step in s.
    """

    def __init__(self, values: DriveValues, position: Array, load: Array, step: float) -> None:
        self._values, self._step = values, step
        self.motor = position + load / values.gear_stiffness + np.sign(load) * values.backlash / 2.0
        self.speed = np.zeros_like(self.motor)

    def encode(self, position: Array, noise: Array | float = 0.0) -> Array:
        """Return readings in rad of true positions; ``noise`` in rad is added before they are rounded to counts."""
        values = self._values
        reading = (position - values.zero) / values.scale
        return np.round((reading + noise) / values.count) * values.count

    def advance(self, command: Array, position: Array, velocity: Array) -> Array:
        """Return the torques on the links during the next time step, and advance the motors to its end.

        Args:
            command: active commands, as readings of the encoders in rad.
            position: true positions of the links in rad.
            velocity: their velocities in rad/s.
        """
        values, step = self._values, self._step
        torque = self._gear_torque(position, velocity)
        error = command - self.encode(position)
        error = np.where(np.abs(error) <= values.dead_zone, 0.0, error)
        drive = np.clip(values.stiffness * error, -values.torque_limit, values.torque_limit)
        slowing = values.inertia + step * values.damping  # viscous friction is implicit
        free = (values.inertia * self.speed + step * (drive - torque)) / slowing
        grip = step * self._dry_friction(torque) / slowing
        self.speed = np.sign(free) * np.maximum(np.abs(free) - grip, 0.0)
        self.motor = self.motor + step * self.speed
        return torque

    def _gear_torque(self, position: Array, velocity: Array) -> Array:
        values = self._values
        twist = self.motor - position
        strain = twist - np.clip(twist, -values.backlash / 2.0, values.backlash / 2.0)
        torque = values.gear_stiffness * strain + values.gear_damping * (self.speed - velocity)
        return np.where(strain > 0, np.maximum(torque, 0.0), np.where(strain < 0, np.minimum(torque, 0.0), 0.0))

    def _dry_friction(self, torque: Array) -> Array:
        """Return the largest dry friction of the motors in N·m (Stribeck curve) under a torque in the gear."""
        values = self._values
        slow = np.exp(-((self.speed / values.stribeck_velocity) ** 2))
        ratio = 1.0 + (values.static_ratio - 1.0) * slow
        return (values.coulomb + values.load_friction * np.abs(torque)) * ratio
