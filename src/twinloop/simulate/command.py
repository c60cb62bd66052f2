"""Control clock and command pipeline: times of control steps, encoder map, bias, loss and delay of commands.

A smart servo closes its loop on its own encoder, so a commanded angle passes the same map as a reading:
joint target = offset + scale · command (+ bias). A command issued at step t is valid until t + 1. The motor gets that
signal ``delay`` seconds later (``timing/command/jitter`` adds a random delay to each command; an overtaken command is
ignored), ramped across one physics step so that it is differentiable in the delay (a zero-order hold has no gradient).
A lost command never arrives. Before the first command the motor holds the initial one.
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


class ControlClock:
    """Start and length of the control steps of every world, in nominal physics steps since the world's start.

    A control step always has the same number of physics steps; a longer period makes each of them longer
    (``opt.timestep`` of that world), so that worlds with different clocks run in one batch. Control step t lasts
    period · ``timing/control/period`` + ``timing/control/jitter`` · u, u uniform in (0, 1): a loop that sleeps until
    its next tick wakes up late, never early.
    """

    def __init__(self, twin: Twin, params: ParamTable, *, as_array: AsArray = np.asarray) -> None:
        self._nominal, self._dt, self._as_array = twin.substeps, twin.dt, as_array
        self._time = self.began = as_array(np.zeros(params.nworld))
        self.steady = True
        self._load(params)

    def _load(self, params: ParamTable) -> None:
        scale = params.get(PERIOD, np.ones(params.nworld))
        self._jitter = params.get(PERIOD_JITTER, np.zeros(params.nworld))
        self._seeds = params.seed_path(f"{PERIOD_JITTER} happens") if np.any(self._jitter > 0) else None
        self.shortest = float(scale.min(initial=1.0))
        # Once unsteady, always: a restarted world must get the nominal physics step back.
        self.steady = self.steady and bool(np.all(scale == 1.0)) and self._seeds is None
        self._scale = self._as_array(scale)
        self.ratio = self._scale

    def begin(self, step: NDArray[np.int64]) -> tuple[Array, Array]:
        """Begin the next control step; return its start, and the length of its physics steps relative to nominal.

        Args:
            step: number of the control step in each world, ``(nworld,)``; both results have this shape.
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
        """Length of the physics steps of every world in the current control step, ``(nworld,)`` in s."""
        return self._dt * self.ratio

    def restart(self, worlds: NDArray[np.intp], params: ParamTable) -> None:
        """Set the time of some worlds to zero; ``params`` are the rows of all."""
        fresh = np.zeros(params.nworld, dtype=bool)
        fresh[worlds] = True
        xp = array_namespace(self._time)
        self._time = xp.where(self._as_array(fresh), 0.0 * self._time, self._time)
        self._load(params)


JITTER, DROP_RATE = "timing/command/jitter", "timing/command/drop_rate"
_ROUND_OFF = 1e-9


def command_map(twin: Twin, params: ParamTable) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return offset and scale ``(nworld, nu)`` of a servo's target = offset + scale · command.

    A servo closes its loop on its own encoder, so the encoder's error is in the target, and the command's bias is too.
    """
    offset = twin.column(params, "sensor", "offset") + twin.column(params, "actuator", "bias")
    return offset, twin.column(params, "sensor", "scale")


class CommandPath:
    """Command pipeline of a batch of worlds, with as much history as the longest delay needs.

    Times are in nominal physics steps since a world's start. Elementwise over worlds, so that a world's controls depend
    on that world alone. Host arrays are created only for random effects and changes per step.
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
        """Begin with the motors holding ``initial`` ``(nworld, nu)``.

        Args:
            earlier: commands of the control steps before, ``(nworld, k, nu)``, oldest first; they arrive on time.
            as_array: converts host arrays to the array library of the commands.
        """
        self._twin, self._params, self._as_array = twin, params, as_array
        self._identity = twin.spec.robot is None or twin.robot.control == "torque"
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
        self._seeds = params.seed_path(f"{JITTER} and {DROP_RATE} happen") if chance else None
        if self._twin.spec.robot is None:
            self._delay = self._as_array(np.zeros((params.nworld, self._twin.model.nu)))
            return
        self._offset, self._scale = (self._as_array(values) for values in command_map(self._twin, params))
        delay = self._twin.column(params, "actuator", "delay")
        if (delay < 0).any():
            raise InputError("A command delay is negative; commands cannot arrive before they are issued.")
        self._delay = self._as_array(delay / self._twin.dt)

    def _count_max_pending(self) -> int:
        """Return the largest number of commands that can be on their way at once."""
        params = self._params
        motors = () if self._twin.spec.robot is None else self._twin.robot.actuator_names
        delays = {f"actuator/{motor}/delay" for motor in motors}
        columns = {name: params[name] for name in params.names if name in delays or name == JITTER}
        columns |= {name: rows for name, rows in params.steps.items() if name in columns}
        jitter = columns.pop(JITTER, np.zeros(1)).max(initial=0.0)
        longest = max((float(values.max(initial=0.0)) for values in columns.values()), default=0.0) + jitter
        return math.ceil(longest * self._twin.control_hz / self.clock.shortest - _ROUND_OFF) + 1

    def _compute_target(self, command: Array) -> Array:
        return command if self._identity else self._offset + self._scale * command

    def compute_controls(self, command: Array) -> Array:
        """Return the controls ``(nworld, substeps, nu)`` that the motors receive in the coming control step."""
        xp = self._xp
        if self._params.steps:
            self._load(self._params.at(self.step))
        began, ratio = self.clock.begin(self.step)
        self._issue(command, began)
        width = ratio[:, None, None]
        now = began[:, None, None] + self._substeps * width
        signal = self._held[:, None, :]
        for arrival, target in self._issued:
            weight = xp.clip((now - arrival[:, None, :]) / width + 1.0, 0.0, 1.0)
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
        """Restart some worlds with their rows of ``params`` and motors that hold ``initial``, one row each."""
        index = np.asarray(worlds)
        self._params = self._params.put(index, params)
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
