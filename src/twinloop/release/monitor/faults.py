"""Identify faults of a robot's drives: twins run in parallel with it, and their residuals distinguish the faults.

One twin has the identified parameters; each other twin has one fault (see `list_hypotheses`). At every control step all
twins start from the measured joint positions, get the sent commands, and predict the next reading. The prediction error
of the first twin is the residual. The difference between another twin's prediction and the first one's is the direction
in which that fault would move the robot. This is the bank of observers of multiple-model fault detection (Willsky, "A
survey of design methods for failure detection in dynamic systems", Automatica 12, 1976).

Positions and speeds are corrected by shares of the residual, an α–β filter with the twin as its model. With α and β of
tracking index Λ (Kalata, "The tracking index: a generalized parameter for α–β and α–β–γ target trackers", IEEE Trans.
Aerosp. Electron. Syst. 20, 1984) it is the steady-state Kalman filter of a joint whose acceleration the model misses by
Λ reading errors per squared control period.

The signature of a fault is computed from successful episodes. Their commands run through the twin without a fault and
through the twin with one fault, and the same observers process both. The signature is the difference of their
coefficients at each time. It includes the size of the fault, the effect of the correction by readings, and the
similarity between faults.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import filter as matching
from typing import Literal

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.simulate.threads import BackendThreads
from twinloop.twin import Twin
from twinloop.twin.quantities import QUANTITIES, Quantity
from twinloop.twin.quantities.kinds import FAULTS, FaultDeclaration
from twinloop.twin.spec import GearSpec
from twinloop.twin.variant import add_twin_gears


@dataclass(frozen=True, kw_only=True)
class FaultHypothesis:
    """Hypothesis of one fault: parameters that match ``pattern`` are scaled by ``change`` or shifted by it.

    ``unit`` is the meaning of a coefficient of 1. ``geared``: the change is made in a twin with backlash in its gears.
    """

    name: str
    pattern: str
    op: Literal["scale", "add"]
    change: float
    unit: str
    geared: bool = False


def list_hypotheses(twin: Twin) -> tuple[FaultHypothesis, ...]:
    """Return the possible faults of a twin's drives, each large enough to be detected within seconds.

    The sizes are our choice; coefficients are multiples of them. Faults that the twin cannot have are left out.
    """
    elastic = twin.robot.gears is not None and twin.robot.gears.stiffness is not None
    playing = twin.robot.control == "position" and not elastic
    every = [_make_hypothesis(twin, kind, fault) for kind in QUANTITIES if (fault := kind.fault)]
    found = [one for one in every if (playing if one.geared else matching(twin.params, one.pattern))]
    return tuple(sorted(found, key=lambda one: FAULTS.index(one.name) if one.name in FAULTS else len(FAULTS)))


def _make_hypothesis(twin: Twin, kind: Quantity, fault: FaultDeclaration) -> FaultHypothesis:
    return FaultHypothesis(
        name=fault.name,
        pattern=kind.path(_find_hand_body(twin) if fault.at_hand else "*"),
        op=fault.op,
        change=fault.change / twin.control_hz if fault.per_period else fault.change,
        unit=fault.unit,
        geared=fault.geared,
    )


def apply_fault(twin: Twin, table: ParamTable, one: FaultHypothesis) -> tuple[Twin, ParamTable]:
    """Return the twin with one fault and its row of parameters, within their physical bounds."""
    if one.geared and twin.robot.gears is None:
        return add_twin_gears(twin, GearSpec(backlash=one.change)), ParamTable(names=table.names, values=table.values)
    values = table.values.copy()
    columns = [table.names.index(name) for name in matching(table.names, one.pattern)]
    if not columns:
        raise InputError(f"The twin {twin.name} has no parameter {one.pattern}, which {one.name} would change.")
    told = values[:, columns] * one.change if one.op == "scale" else values[:, columns] + one.change
    low, high = np.array([(twin.params[table.names[c]].low, twin.params[table.names[c]].high) for c in columns]).T
    values[:, columns] = np.clip(told, low, high)
    return twin, ParamTable(names=table.names, values=values)


def list_hypothesis_names(given: Sequence[FaultHypothesis]) -> tuple[str, ...]:
    """Return the names of hypotheses, in order."""
    return tuple(one.name for one in given)


def _find_hand_body(twin: Twin) -> str:
    """Return the name of the body that carries the robot's tool site, or ""."""
    model, tool = twin.model, twin.robot.tcp
    return "" if tool is None else model.body(int(model.site(tool).bodyid[0])).name


Array = NDArray[np.float64]
MEMORY_S = 2.0  # our choice: the time of a reach of the SO-101; every joint moves, and a fault shows before its end
_NOISE = 1e-3  # rad or m: residual per control step of a good twin; two thirds of an encoder count
_USUAL = 2.0  # prior standard deviation of the coefficients


class ResidualDirections:
    """Ridge regression of each joint's residuals on the directions of the hypotheses, over the last seconds.

    Args:
        shape: numbers of worlds, joints and hypotheses.
        control_hz: steps per second.
        memory_s: time in s after which the weight of a step is 1/e.
    """

    def __init__(self, shape: tuple[int, int, int], control_hz: float, *, memory_s: float = MEMORY_S) -> None:
        self._keep = math.exp(-1.0 / (memory_s * control_hz))
        self._normal = np.zeros((*shape, shape[-1]))
        self._right = np.zeros(shape)
        self._prior = (_NOISE / _USUAL) ** 2 * np.eye(shape[-1])

    def restart(self, worlds: NDArray[np.intp]) -> None:
        """Discard the past steps of some worlds."""
        self._normal[worlds] = self._right[worlds] = 0.0

    def update_coefficients(self, residual: Array, moved: Array) -> Array:
        """Return the coefficients ``(nworld, n, nwrong)`` after one more step.

        ``residual`` is ``(nworld, n)``; ``moved`` is the change of the readings by each fault, ``(nworld, n, nwrong)``.
        """
        self._normal = self._keep * self._normal + moved[..., :, None] * moved[..., None, :]
        self._right = self._keep * self._right + moved * residual[..., None]
        found = np.linalg.solve(self._normal + self._prior, self._right[..., None])
        return np.asarray(found[..., 0], dtype=np.float64)


TRACKING_INDEX = (
    1.0  # our choice: an STS3215's reading error is one count, and so is the model error of the SO-101's twin
)


def compute_alpha_beta(index: float) -> tuple[float, float]:
    """Return the gains of position and speed for a tracking index (Kalata 1984, eqs. 22 and 23).

    Raises:
        InputError: the index is not positive.
    """
    if not index > 0:
        raise InputError(f"A tracking index of {index:g} is too small. Give a number above 0; 1 is usual.")
    root = (4.0 + index - math.sqrt(8.0 * index + index**2)) / 4.0
    return 1.0 - root**2, 2.0 * (1.0 - root) ** 2


class ObserverBank:
    """Bank of twins that run in parallel with ``nworld`` robots.

    Readings are ``(nworld, n)`` over the robot's joints in rad or m, commands ``(nworld, nu)`` in the actuators' unit.
    These twins have no contacts: forces from held or pushed objects are part of the residual.
    """

    def __init__(
        self,
        twin: Twin,
        params: ParamTable | None = None,
        *,
        wrong: Sequence[FaultHypothesis] | None = None,
        index: float = TRACKING_INDEX,
        nthread: int = 1,
    ) -> None:
        """Create the observers of a twin with one row of parameters, for example identified ones; nominal by default.

        Raises:
            InputError: more than one row, or a hypothesis about a parameter that the twin does not have.
        """
        table = twin.table(1) if params is None else params
        if table.nworld != 1:
            raise InputError(f"A monitor needs one row of parameters, not {table.nworld}. Give those of one robot.")
        self.wrong = list_hypotheses(twin) if wrong is None else tuple(wrong)
        self._gains = compute_alpha_beta(index)
        alike = [apply_fault(twin, table, one) for one in self.wrong]
        plain = [table, *(row for other, row in alike if other is twin)]
        self._banks = [_TwinBank(twin, plain, nthread)]
        self._banks += [_TwinBank(other, [row], nthread) for other, row in alike if other is not twin]
        self._places = np.argsort(sorted(range(len(alike)), key=lambda i: alike[i][0] is not twin))

    def begin(self, reading: ArrayLike, command: ArrayLike | None = None) -> None:
        """Start with robots at rest at their first readings ``(nworld, n)``, holding ``command`` or these positions."""
        first = np.asarray(reading, dtype=np.float64)
        held = first if command is None else np.asarray(command, dtype=np.float64)
        for bank in self._banks:
            bank.begin(first, held)

    def restart(self, worlds: ArrayLike, reading: ArrayLike, command: ArrayLike | None = None) -> None:
        """Start some worlds again, with one row of readings and held commands for each."""
        index, first = np.asarray(worlds), np.asarray(reading, dtype=np.float64)
        held = first if command is None else np.asarray(command, dtype=np.float64)
        for bank in self._banks:
            bank.restart(index, first, held)

    def advance_step(self, command: ArrayLike, reading: ArrayLike) -> tuple[Array, Array]:
        """Advance all twins by one control period under ``command``, then correct them by the robots' ``reading``.

        Returns:
            Residuals ``(nworld, n)``, reading minus prediction, and the change of the reading under each hypothesis,
            ``(nworld, n, nwrong)``, in rad or m.
        """
        given, read = np.asarray(command, dtype=np.float64), np.asarray(reading, dtype=np.float64)
        predicted = np.concatenate([bank.predict(given) for bank in self._banks])
        residual = read - predicted[0]
        moved = np.moveaxis(predicted[1:] - predicted[0], 0, -1)[..., self._places]
        alpha, beta = self._gains
        position, speed = self._banks[0].correct_state(alpha * residual, beta * residual)
        for bank in self._banks:
            bank.set_state(position, speed)
        return residual, moved


class _TwinBank:
    """Worlds of one compiled twin: all robots with the first row of parameters, then all with the second, and so on."""

    def __init__(self, twin: Twin, rows: Sequence[ParamTable], nthread: int) -> None:
        self._twin = disable_contacts(twin)
        self._rows = ParamTable(names=rows[0].names, values=np.concatenate([row.values for row in rows]))
        self._kinds, self._backend = len(rows), BackendThreads(nthread)
        self._home = twin.home()[0]

    def begin(self, reading: Array, command: Array) -> None:
        self._n = len(reading)
        self._table = self._rows.take(np.repeat(np.arange(self._kinds), self._n))
        self._offset, self._scale = (self._twin.column(self._table, "sensor", kind) for kind in ("offset", "scale"))
        initial = self._make_initial_state(reading, command, np.arange(len(self._offset)))
        self._simulation = self._backend.start(self._twin, self._table, initial, 1)

    def restart(self, worlds: NDArray[np.intp], reading: Array, command: Array) -> None:
        every = (worlds + self._n * np.arange(self._kinds)[:, None]).ravel()
        self._simulation.restart(every, self._table.take(every), self._make_initial_state(reading, command, every))

    def predict(self, command: Array) -> Array:
        """Return the next readings ``(nkind, nworld, n)``."""
        self._simulation.advance(np.tile(command, (self._kinds, 1)))
        position = self._simulation.batch.bind("qpos")[:, self._twin.joint_qpos]
        return ((position - self._offset) / self._scale).reshape(self._kinds, self._n, -1)

    def correct_state(self, forward: Array, faster: Array) -> tuple[Array, Array]:
        """Return the first twin's joint positions and speeds, plus ``forward`` and ``faster`` (per control period)."""
        batch, scale = self._simulation.batch, self._scale[: self._n]
        position = batch.bind("qpos")[: self._n, self._twin.joint_qpos] + scale * forward
        speed = batch.bind("qvel")[: self._n, self._twin.joint_qvel]
        return position, speed + scale * faster * self._twin.control_hz

    def set_state(self, position: Array, speed: Array) -> None:
        """Set the joint state of every twin; motors keep their position within the backlash of their gears."""
        twin, batch = self._twin, self._simulation.batch
        qpos, qvel = batch.bind("qpos"), batch.bind("qvel")
        links, turning = np.tile(position, (self._kinds, 1)), np.tile(speed, (self._kinds, 1))
        ahead = qpos[:, twin.motor_qpos] - qpos[:, twin.joint_qpos]
        faster = qvel[:, twin.motor_qvel] - qvel[:, twin.joint_qvel]
        qpos[...], qvel[...] = self._home, 0.0
        qpos[:, twin.joint_qpos], qvel[:, twin.joint_qvel] = links, turning
        qpos[:, twin.motor_qpos], qvel[:, twin.motor_qvel] = links + ahead, turning + faster

    def _make_initial_state(self, reading: Array, command: Array, rows: NDArray[np.intp]) -> InitialState:
        initial = InitialState.home(self._twin, len(rows))
        qpos = initial.qpos.copy()
        true = np.tile(reading, (self._kinds, 1)) * self._scale[rows] + self._offset[rows]
        qpos[:, self._twin.joint_qpos] = true
        return replace(initial, qpos=self._twin.align_motors(qpos), command=np.tile(command, (self._kinds, 1)))


def disable_contacts(twin: Twin) -> Twin:
    """Return the twin with contacts disabled."""
    model = copy.copy(twin.model)
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
    return replace(twin, model=model)


_PERIODS = 2.0  # control periods of latency in its signature: a fault, not jitter (our choice)


def compute_signatures(
    twin: Twin, params: ParamTable, positions: Array, commands: Array, *, nthread: int = 1
) -> tuple[tuple[FaultHypothesis, ...], Array]:
    """Return the mean change of the coefficients under each hypothesis, ``(nwrong, T, n, nwrong)``, over episodes.

    Args:
        twin: the identified twin, with one row of ``params``.
        positions: first readings ``(m, n)`` of episodes, rad or m.
        commands: commands of these episodes, ``(m, T, nu)`` in the actuators' unit.
        nthread: C threads.
    """
    observers = ObserverBank(twin, params, nthread=nthread)
    plain = _compute_mean_coefficients(observers, twin, params, positions, commands, nthread)
    moved = []
    for one in observers.wrong:
        planted = replace(one, change=one.change * _PERIODS) if one.name == "latency" else one
        other, row = apply_fault(twin, params, planted)
        moved.append(_compute_mean_coefficients(observers, other, row, positions, commands, nthread) - plain)
    return observers.wrong, np.stack(moved)


def weight_load_signature(
    signature: Array, hypotheses: Sequence[FaultHypothesis], held: Array, control_hz: float
) -> Array:
    """Return the signatures; that of ``load`` is weighted by the share of episodes that hold an object at that time.

    Args:
        signature: ``(nwrong, T, …)`` as of `compute_signatures`.
        hypotheses: hypotheses of the signatures.
        held: share of successful episodes ``(T,)`` in which an object is held at that step.
        control_hz: steps per second; the share is averaged over the memory of `ResidualDirections`.
    """
    keep, share, lasting = math.exp(-1.0 / (MEMORY_S * control_hz)), 0.0, np.empty(signature.shape[1])
    for step in range(len(lasting)):
        share = keep * share + (1.0 - keep) * float(held[min(step, len(held) - 1)])
        lasting[step] = share
    weighted = signature.copy()
    for row, one in enumerate(hypotheses):
        if one.name == "load":
            weighted[row] *= lasting.reshape(-1, *[1] * (signature.ndim - 2))
    return weighted


def _compute_mean_coefficients(
    observers: ObserverBank, twin: Twin, params: ParamTable, positions: Array, commands: Array, nthread: int
) -> Array:
    """Return mean coefficients ``(T, n, nwrong)`` of episodes of a twin without contacts."""
    readings = _replay_commands(twin, params, positions, commands, nthread)
    directions = ResidualDirections((*positions.shape, len(observers.wrong)), twin.control_hz)
    observers.begin(readings[:, 0])
    means = [np.zeros((positions.shape[1], len(observers.wrong)))]
    for step in range(1, commands.shape[1]):
        residual, moved = observers.advance_step(commands[:, step - 1], readings[:, step])
        means.append(directions.update_coefficients(residual, moved).mean(axis=0))
    return np.stack(means)


def _replay_commands(twin: Twin, params: ParamTable, positions: Array, commands: Array, nthread: int) -> Array:
    """Return readings ``(m, T, n)`` of a twin under these commands, without noise."""
    alone, table = disable_contacts(twin), params.take(np.zeros(len(positions), dtype=int))
    offset, scale = (twin.column(table, "sensor", kind) for kind in ("offset", "scale"))
    initial = InitialState.home(alone, len(positions))
    qpos = initial.qpos.copy()
    qpos[:, alone.joint_qpos] = offset + scale * positions
    initial = replace(initial, qpos=alone.align_motors(qpos), command=positions)
    run = rollout(open_backend("threads", nthread=nthread), alone, table, initial, commands, commands.shape[1])
    return (run.qpos[:, :-1, alone.joint_qpos] - offset[:, None]) / scale[:, None]
