"""The twin runs beside the robot: what it says the next reading will be, and what it would say if a part were worn.

One twin is as it was identified; each other has one thing wrong with it (see `hypotheses`). All start every control
step where the readings say that the robot is, get the commands on their way, and predict the next reading. The first
one's prediction error is the residual; the difference of another's prediction from it is the direction in which that
fault would move the robot. This is the bank of observers of multiple-model fault detection (Willsky, "A survey of
design methods for failure detection in dynamic systems", Automatica 12, 1976).

Positions and speeds are corrected by shares of the residual, an α–β filter with the twin as its model. With α and β of
tracking index Λ (Kalata, "The tracking index: a generalized parameter for α–β and α–β–γ target trackers", IEEE Trans.
Aerosp. Electron. Syst. 20, 1984) it is the steady-state Kalman filter of a joint whose acceleration the model misses by
Λ reading errors per squared control period.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.release.monitor.hypotheses import Hypothesis, changed, hypotheses
from twinloop.simulate import InitialState
from twinloop.simulate.threads import BackendThreads
from twinloop.twin import Twin

Array = NDArray[np.float64]
TRACKING_INDEX = 1.0  # our choice: an STS3215's reading errors are a count, and so is what the SO-101's twin misses


def alpha_beta(index: float) -> tuple[float, float]:
    """The gains of position and speed of a tracking index (Kalata 1984, eqs. 22 and 23).

    Raises:
        InputError: an index that is not positive.
    """
    if not index > 0:
        raise InputError(f"A tracking index of {index:g} corrects nothing. Give a number above 0; 1 is usual.")
    root = (4.0 + index - math.sqrt(8.0 * index + index**2)) / 4.0
    return 1.0 - root**2, 2.0 * (1.0 - root) ** 2


class Observers:
    """A bank of twins beside ``nworld`` robots.

    Readings are ``(nworld, n)`` over the robot's joints in rad or m, commands ``(nworld, nu)`` in the actuators' unit.
    Nothing touches anything in these twins: what the robot holds or pushes is part of the residual.
    """

    def __init__(
        self,
        twin: Twin,
        params: ParamTable | None = None,
        *,
        wrong: Sequence[Hypothesis] | None = None,
        index: float = TRACKING_INDEX,
        nthread: int = 1,
    ) -> None:
        """The twin with one row of parameters, such as those that were identified; nominal if none is given.

        Raises:
            InputError: more than one row, or a hypothesis about a parameter that the twin lacks.
        """
        table = twin.table(1) if params is None else params
        if table.nworld != 1:
            raise InputError(f"A monitor follows one robot: give one row of parameters, not {table.nworld}.")
        self.wrong = hypotheses(twin) if wrong is None else tuple(wrong)
        self._gains = alpha_beta(index)
        alike = [changed(twin, table, one) for one in self.wrong]
        plain = [table, *(row for other, row in alike if other is twin)]
        self._banks = [_Bank(twin, plain, nthread)]
        self._banks += [_Bank(other, [row], nthread) for other, row in alike if other is not twin]
        order = [i for i, (other, _) in enumerate(alike) if other is twin]
        order += [i for i, (other, _) in enumerate(alike) if other is not twin]
        self._places = np.argsort(order)

    def begin(self, reading: ArrayLike, command: ArrayLike | None = None) -> None:
        """Robots at rest at their first readings ``(nworld, n)``, holding ``command`` or where they are."""
        first = np.asarray(reading, dtype=np.float64)
        held = first if command is None else np.asarray(command, dtype=np.float64)
        for bank in self._banks:
            bank.begin(first, held)

    def restart(self, worlds: ArrayLike, reading: ArrayLike, command: ArrayLike | None = None) -> None:
        """Begin some worlds anew, with readings and held commands of one row each."""
        index, first = np.asarray(worlds), np.asarray(reading, dtype=np.float64)
        held = first if command is None else np.asarray(command, dtype=np.float64)
        for bank in self._banks:
            bank.restart(index, first, held)

    def look(self, command: ArrayLike, reading: ArrayLike) -> tuple[Array, Array]:
        """One control period under ``command``, after which the robots read ``reading``.

        Returns:
            Residuals ``(nworld, n)``, reading less prediction, and how far each hypothesis would have moved the
            reading, ``(nworld, n, nwrong)``, in rad or m.
        """
        given, read = np.asarray(command, dtype=np.float64), np.asarray(reading, dtype=np.float64)
        predicted = np.concatenate([bank.predict(given) for bank in self._banks])
        residual = read - predicted[0]
        moved = np.moveaxis(predicted[1:] - predicted[0], 0, -1)[..., self._places]
        alpha, beta = self._gains
        position, speed = self._banks[0].corrected(alpha * residual, beta * residual)
        for bank in self._banks:
            bank.put(position, speed)
        return residual, moved


class _Bank:
    """Worlds of one compiled twin, all robots with the first row of parameters, then with the second."""

    def __init__(self, twin: Twin, rows: Sequence[ParamTable], nthread: int) -> None:
        self._twin = untouched(twin)
        self._rows = ParamTable(names=rows[0].names, values=np.concatenate([row.values for row in rows]))
        self._kinds, self._backend = len(rows), BackendThreads(nthread)
        self._home = twin.home()[0]

    def begin(self, reading: Array, command: Array) -> None:
        self._n = len(reading)
        self._table = self._rows.take(np.repeat(np.arange(self._kinds), self._n))
        self._offset, self._scale = (self._twin.column(self._table, "sensor", kind) for kind in ("offset", "scale"))
        initial = self._initial(reading, command, np.arange(len(self._offset)))
        self._simulation = self._backend.start(self._twin, self._table, initial, 1)

    def restart(self, worlds: NDArray[np.intp], reading: Array, command: Array) -> None:
        every = (worlds + self._n * np.arange(self._kinds)[:, None]).ravel()
        self._simulation.restart(every, self._table.take(every), self._initial(reading, command, every))

    def predict(self, command: Array) -> Array:
        """The next readings ``(nkind, nworld, n)``."""
        self._simulation.advance(np.tile(command, (self._kinds, 1)))
        position = self._simulation.batch.bind("qpos")[:, self._twin.joint_qpos]
        return ((position - self._offset) / self._scale).reshape(self._kinds, self._n, -1)

    def corrected(self, forward: Array, faster: Array) -> tuple[Array, Array]:
        """True positions and speeds of the first kind, moved by ``forward`` and, per control period, ``faster``."""
        batch, scale = self._simulation.batch, self._scale[: self._n]
        position = batch.bind("qpos")[: self._n, self._twin.joint_qpos] + scale * forward
        speed = batch.bind("qvel")[: self._n, self._twin.joint_qvel]
        return position, speed + scale * faster * self._twin.control_hz

    def put(self, position: Array, speed: Array) -> None:
        """Every kind goes on from there; motors keep their place in the play of their gears."""
        twin, batch = self._twin, self._simulation.batch
        qpos, qvel = batch.bind("qpos"), batch.bind("qvel")
        links, turning = np.tile(position, (self._kinds, 1)), np.tile(speed, (self._kinds, 1))
        ahead = qpos[:, twin.motor_qpos] - qpos[:, twin.joint_qpos]
        faster = qvel[:, twin.motor_qvel] - qvel[:, twin.joint_qvel]
        qpos[...], qvel[...] = self._home, 0.0
        qpos[:, twin.joint_qpos], qvel[:, twin.joint_qvel] = links, turning
        qpos[:, twin.motor_qpos], qvel[:, twin.motor_qvel] = links + ahead, turning + faster

    def _initial(self, reading: Array, command: Array, rows: NDArray[np.intp]) -> InitialState:
        initial = InitialState.home(self._twin, len(rows))
        qpos = initial.qpos.copy()
        true = np.tile(reading, (self._kinds, 1)) * self._scale[rows] + self._offset[rows]
        qpos[:, self._twin.joint_qpos] = true
        return replace(initial, qpos=self._twin.with_motors(qpos), command=np.tile(command, (self._kinds, 1)))


def untouched(twin: Twin) -> Twin:
    """The twin without contacts."""
    model = copy.copy(twin.model)
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
    return replace(twin, model=model)
