"""The way of a command to the motor: encoder map, bias, delay. All act at the physics rate.

A smart servo closes its loop on its own encoder, so a commanded angle passes the same map as a reading:
joint target = offset + scale · command (+ bias). A command issued at step t holds until t + 1; the motor sees that
signal ``delay`` seconds late, linearly interpolated across one physics step so that it is differentiable in the
delay (a zero-order hold has no gradient). Before the first command the history holds the initial one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.records import ParamTable
from twinloop.twin import Twin


class CommandPath:
    """The command stages of a batch of worlds, with the history that the longest delay needs."""

    def __init__(self, twin: Twin, params: ParamTable, initial: NDArray[np.float64], nstep: int) -> None:
        self._substeps = twin.substeps
        self._identity = twin.spec.robot is None or twin.robot.control == "torque"
        self._twin, self._params = twin, params
        self._load(params.at(0) if nstep else params)
        # Row 0 is the initial command; row t + 1 the command of control step t.
        self._history = np.empty((params.nworld, nstep + 1, twin.model.nu))
        self._history[:, 0] = self._target(initial)

    def _load(self, params: ParamTable) -> None:
        column = self._twin.column
        if self._twin.spec.robot is None:
            self._delay_steps = np.zeros((params.nworld, self._twin.model.nu))
            return
        self._offset = column(params, "sensor", "offset", 0.0) + column(params, "actuator", "bias", 0.0)
        self._scale = column(params, "sensor", "scale", 1.0)
        self._delay_steps = column(params, "actuator", "delay", 0.0) / self._twin.dt
        if (self._delay_steps < 0).any():
            raise InputError("A command delay is negative; commands cannot arrive before they are issued.")

    def _target(self, command: NDArray[np.float64]) -> NDArray[np.float64]:
        return command if self._identity else self._offset + self._scale * command

    def controls(self, step: int, command: NDArray[np.float64]) -> NDArray[np.float64]:
        """Controls ``(nworld, substeps, nu)`` that the motors see during control step ``step``."""
        if self._params.steps:
            self._load(self._params.at(step))
        self._history[:, step + 1] = self._target(command)
        newest = (step + 1) * self._substeps - 1
        position = np.arange(step * self._substeps, newest + 1)[:, None] - self._delay_steps[:, None, :]
        older = np.floor(position)
        fraction = position - older
        index = older.astype(np.intp)
        return (1.0 - fraction) * self._at(index) + fraction * self._at(np.minimum(index + 1, newest))

    def _at(self, substep: NDArray[np.intp]) -> NDArray[np.float64]:
        """The undelayed signal at physics steps ``(nworld, k, nu)``; the initial command before step 0."""
        return np.take_along_axis(self._history, np.maximum(substep // self._substeps + 1, 0), axis=1)
