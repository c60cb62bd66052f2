"""Compute the controls that the motors receive from the commands, with encoder errors, bias, delay and loss.

A smart servo controls its position with its own encoder, so the encoder's error applies to a commanded angle as
to a reading: joint target = offset + scale · command (+ bias). A commanded velocity is multiplied by the scale only.

A command is issued at each control step and replaces the previous one. The motor receives it ``delay`` seconds
later. The parameter ``timing/command/jitter`` adds a random delay to each command, and a command that a newer
one has overtaken is ignored. A lost command never arrives. Before the first command the motor holds the initial
command. A new command is ramped over one physics step, because a zero-order hold has no gradient with respect
to the delay.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.twin import Twin

Array = Any  # an array of the library that `AsArray` makes: NumPy on the host, else a device's library
AsArray = Callable[[NDArray[Any]], Array]

PERIOD, PERIOD_JITTER = "timing/control/period", "timing/control/jitter"


def arrived_share(xp: Any, since: Array, *, gradual: bool) -> Array:
    """Return the part of a new command that has taken effect, from 0 to 1.

    Usually it is the part of the physics step after the arrival. The displacement by a step of the command then has an
    error of second order in the physics step, which depends on when in the step the command arrives: ripples of the
    loss over the delay. A gradual arrival, the integral of a triangle of two steps, has no such ripples, and its
    centre corrects the half step by which semi-implicit integration is early.

    Args:
        xp: module of the array library, as `array_namespace` returns it.
        since: time since the arrival at the start of the physics step, in physics steps.
        gradual: whether the command arrives over two physics steps.
    """
    if not gradual:
        return xp.clip(since + 1.0, 0.0, 1.0)
    part = xp.clip(0.5 * (since + 1.0), 0.0, 1.0)
    return xp.where(part < 0.5, 2.0 * part**2, 1.0 - 2.0 * (1.0 - part) ** 2)


class ControlClock:
    """Start times and lengths of the control steps of every world.

    Times are in units of the twin's nominal physics step since the world's start. A control step always has the same
    number of physics steps. If a control step is longer, its physics steps (``opt.timestep`` of that world) are longer,
    so that worlds with different clocks run in one batch.

    Control step t lasts period · ``timing/control/period`` + ``timing/control/jitter`` · u, with u uniform in (0,
    1). The jitter is never negative, because a control loop that sleeps until its next tick wakes up late and never
    early.
    """

    def __init__(self, twin: Twin, params: ParamTable, *, as_array: AsArray = np.asarray) -> None:
        self._nominal, self._dt, self._as_array = twin.substeps, twin.dt, as_array
        self._time = self.began = as_array(np.zeros(params.nworld))
        self.steady = True
        self._load(params)

    def _load(self, params: ParamTable) -> None:
        scale = params.get(PERIOD, np.ones(params.nworld))
        self._jitter = params.get(PERIOD_JITTER, np.zeros(params.nworld))
        self._seeds = params.require_seeds(f"{PERIOD_JITTER} happens") if np.any(self._jitter > 0) else None
        self.shortest = float(scale.min(initial=1.0))
        # Once unsteady, always: a restarted world must get the nominal physics step back.
        self.steady = self.steady and bool(np.all(scale == 1.0)) and self._seeds is None
        self._scale = self._as_array(scale)
        self.ratio = self._scale

    def begin_step(self, step: NDArray[np.int64]) -> tuple[Array, Array]:
        """Begin the next control step of every world; return its start and the relative length of its physics steps.

        Args:
            step: number of the control step in each world, shape ``(nworld,)``.

        Returns:
            Start of the control step since the world's start, in units of the nominal physics step; and length of its
            physics steps divided by the nominal length. Each has the shape ``(nworld,)``.
        """
        began = self.began = self._time
        if self._seeds:
            chance = self._seeds.uniforms("simulate/clock", step=step)[:, 0]
            late = self._as_array(self._jitter * chance / (self._nominal * self._dt))
            self.ratio = self._scale + late
        self._time = began + self._nominal * self.ratio
        return began, self.ratio

    @property
    def timestep(self) -> Array:
        """Length of the physics steps in the current control step of every world, in s, shape ``(nworld,)``.

        It varies with the period and the jitter of the control clock.
        """
        return self._dt * self.ratio

    def restart(self, worlds: NDArray[np.intp], params: ParamTable) -> None:
        """Set the time of some worlds to zero.

        Args:
            worlds: indices of the worlds.
            params: parameters of all worlds, including those that continue.
        """
        fresh = np.zeros(params.nworld, dtype=bool)
        fresh[worlds] = True
        xp = array_namespace(self._time)
        self._time = xp.where(self._as_array(fresh), 0.0 * self._time, self._time)
        self._load(params)


JITTER, DROP_RATE = "timing/command/jitter", "timing/command/drop_rate"
_ROUND_OFF = 1e-9


def command_map(twin: Twin, params: ParamTable) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return offset and scale of the servos' position target, target = offset + scale · command, each ``(nworld, nu)``.

    A servo controls its position with its own encoder, so the target includes the encoder's error. The command's
    bias is part of the offset. The target of a velocity servo is a velocity, which has no offset.
    """
    offset = twin.column(params, "sensor", "offset") + twin.column(params, "actuator", "bias")
    if twin.robot.control == "velocity":
        offset = np.zeros_like(offset)
    return offset, twin.column(params, "sensor", "scale")


def compute_targets(twin: Twin, params: ParamTable, command: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the controls ``(nworld, nu)`` of the motors for commands ``(nworld, nu)`` that have arrived."""
    if is_direct(twin):
        return command
    offset, scale = command_map(twin, params)
    return offset + scale * command


def is_direct(twin: Twin) -> bool:
    """Return whether commands are controls, without the encoders' errors: torques, or no robot."""
    return twin.spec.robot is None or twin.robot.control == "torque"


class CommandPath:
    """Command pipeline of a batch of worlds: it delays the commands and converts them to controls.

    It stores as many past commands as the longest delay needs. Times are in units of the nominal physics step since a
    world's start. All operations are elementwise over worlds, so that the controls of a world depend on that world
    alone. Commands on a GPU are processed there. Only random numbers, and parameters that change per step, are computed
    with NumPy and copied to the GPU.
    """

    def __init__(
        self,
        twin: Twin,
        params: ParamTable,
        initial: ArrayLike,
        *,
        earlier: ArrayLike | None = None,
        as_array: AsArray = np.asarray,
    ) -> None:
        """Create the command pipeline of all worlds at their start.

        Args:
            twin: the twin.
            params: parameters of all worlds.
            initial: command that the motors hold before the first one, shape ``(nworld, nu)``.
            earlier: commands of the k control steps before the start, oldest first, shape ``(nworld, k, nu)``; they
                arrive after their normal delay.
            as_array: function that converts NumPy arrays to the array library of the commands.
        """
        self._twin, self._params, self._as_array = twin, params, as_array
        self._identity = is_direct(twin)
        self._substeps = as_array(np.arange(twin.substeps, dtype=np.float64)[None, :, None])
        self.clock = ControlClock(twin, params, as_array=as_array)
        self.step = np.zeros(params.nworld, dtype=np.int64)
        self._load(params.at(self.step))
        self._reach = self._count_max_pending()
        self._held = self._compute_target(as_array(np.asarray(initial, dtype=np.float64)))
        self._xp = array_namespace(self._held)
        self._issued: list[tuple[Array, Array]] = []  # (arrival, target) per command still on its way, oldest first
        before = np.empty((params.nworld, 0, twin.model.nu)) if earlier is None else np.asarray(earlier)
        for step in range(-before.shape[1], 0):
            arrival = self._delay + float(step * twin.substeps)
            self._issued.append((arrival, self._compute_target(as_array(np.ascontiguousarray(before[:, step])))))

    def _load(self, params: ParamTable) -> None:
        zeros = np.zeros(params.nworld)
        self._jitter, self._drop = params.get(JITTER, zeros), params.get(DROP_RATE, zeros)
        chance = np.any(self._jitter > 0) or np.any(self._drop > 0)
        self._seeds = params.require_seeds(f"{JITTER} and {DROP_RATE} happen") if chance else None
        if self._twin.spec.robot is None:
            self._delay = self._as_array(np.zeros((params.nworld, self._twin.model.nu)))
            return
        self._offset, self._scale = (self._as_array(values) for values in command_map(self._twin, params))
        delay = self._twin.column(params, "actuator", "delay")
        if (delay < 0).any():
            raise InputError(
                "A command delay (actuator/*/delay) is negative, so a command would arrive before it is issued. "
                "Use 0 or more."
            )
        self._delay = self._as_array(delay / self._twin.dt)

    def _count_max_pending(self) -> int:
        """Return the largest number of commands that can be issued but not yet arrived at one time."""
        params = self._params
        motors = () if self._twin.spec.robot is None else self._twin.robot.actuator_names
        delays = {f"actuator/{motor}/delay" for motor in motors}
        columns = {name: params[name] for name in params.names if name in delays or name == JITTER}
        columns |= {name: rows for name, rows in params.steps.items() if name in columns}
        jitter = columns.pop(JITTER, np.zeros(1)).max(initial=0.0)
        longest = max((float(values.max(initial=0.0)) for values in columns.values()), default=0.0) + jitter
        longest += self._twin.gradual_commands * self._twin.dt
        return math.ceil(longest * self._twin.control_hz / self.clock.shortest - _ROUND_OFF) + 1

    def _compute_target(self, command: Array) -> Array:
        return command if self._identity else self._offset + self._scale * command

    def compute_controls(self, command: Array) -> Array:
        """Issue a command and return the controls of all physics steps of the coming control step.

        Args:
            command: command of each actuator, shape ``(nworld, nu)``.

        Returns:
            Controls, shape ``(nworld, substeps, nu)``.
        """
        xp = self._xp
        if self._params.steps:
            self._load(self._params.at(self.step))
        began, ratio = self.clock.begin_step(self.step)
        self._issue(command, began)
        width = ratio[:, None, None]
        now = began[:, None, None] + self._substeps * width
        signal = self._held[:, None, :]
        for arrival, target in self._issued:
            since = (now - arrival[:, None, :]) / width
            weight = arrived_share(xp, since, gradual=self._twin.gradual_commands)
            signal = (1.0 - weight) * signal + weight * target[:, None, :]
        self.step = self.step + 1
        return signal

    def _issue(self, command: Array, began: Array) -> None:
        arrival = self._delay + began[:, None]
        if self._seeds:
            chance = self._seeds.uniforms("simulate/command", size=2, step=self.step)
            late = np.where(chance[:, 1] < self._drop, np.inf, self._jitter * chance[:, 0] / self._twin.dt)
            arrival = arrival + self._as_array(late)[:, None]
        self._issued.append((arrival, self._compute_target(command)))
        while len(self._issued) > self._reach:
            arrival, target = self._issued.pop(0)
            self._held = self._xp.where(self._xp.isinf(arrival), self._held, target)

    def restart(self, worlds: ArrayLike, params: ParamTable, initial: ArrayLike) -> None:
        """Restart some worlds.

        Args:
            worlds: indices of the k worlds.
            params: their new parameters, one row per restarted world.
            initial: command that their motors hold, shape ``(k, nu)``.
        """
        index = np.asarray(worlds)
        self._params = self._params.replace_worlds(index, params)
        self.clock.restart(index, self._params)
        self.step = self.step.copy()
        self.step[index] = 0
        self._load(self._params.at(self.step))
        self._reach = max(self._reach, self._count_max_pending())
        fresh = np.zeros(self._params.nworld, dtype=bool)
        fresh[index] = True
        command = np.zeros((len(fresh), self._twin.model.nu))
        command[index] = initial
        mask, start = self._as_array(fresh)[:, None], self._compute_target(self._as_array(command))
        self._held = self._xp.where(mask, start, self._held)
        self._issued = [(arrival, self._xp.where(mask, start, target)) for arrival, target in self._issued]
