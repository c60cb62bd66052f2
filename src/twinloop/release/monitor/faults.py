"""Detect faults of a robot's drives by comparing its readings with twins that have these faults.

One twin has the identified parameters; each other twin has one fault (see `list_hypotheses`). At every control step all
twins start from the same estimated joint positions and speeds, get the sent commands, and predict the next reading.
This is the bank of observers of multiple-model fault detection (Willsky, "A survey of design methods for failure
detection in dynamic systems", Automatica 12, 1976). The terms are:

- Residual: reading minus prediction of the twin without a fault.
- Direction of a fault: prediction of the twin with the fault minus prediction of the twin without. If the robot has the
  fault, its residuals are similar to this direction.
- Coefficient of a fault at a joint: result of a ridge regression of the joint's residuals on the directions. It
  estimates the size of the fault.
- Signature of a fault: mean change of all coefficients over time that the fault causes. Faults resemble each other, so
  one fault changes the coefficients of several. The change is computed from two simulations with the commands of
  successful episodes, one with the fault and one without.

After each step, an α–β filter corrects the estimated positions and speeds by the shares α and β of the residual. Both
follow from the tracking index Λ (Kalata, "The tracking index: a generalized parameter for α–β and α–β–γ target
trackers", IEEE Trans. Aerosp. Electron. Syst. 20, 1984). Λ is the assumed error of the twin's acceleration times the
squared control period, divided by the reading error. The filter is then the steady-state Kalman filter of a joint.
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
    """Hypothesis of one fault: a change of some parameters of the twin.

    Attributes:
        name: name of the fault, one of `FAULTS`.
        pattern: pattern of the names of the changed parameters.
        op: ``scale`` multiplies the parameters by ``change``, ``add`` adds ``change``.
        change: factor, or difference in the unit of the parameters.
        unit: words after the fault's coefficient in reports, for example "control periods" for a latency; the
            coefficient 1 means a fault of the size ``change``.
        geared: whether the fault is backlash, so that gears with the backlash ``change`` are added to a twin without
            gears.
    """

    name: str
    pattern: str
    op: Literal["scale", "add"]
    change: float
    unit: str
    geared: bool = False


def list_hypotheses(twin: Twin) -> tuple[FaultHypothesis, ...]:
    """Return the possible faults of a twin's drives, each large enough to be detected within seconds.

    The sizes of the faults are our choice. The monitor's regression coefficients are multiples of these sizes. Faults
    that the twin cannot have are left out.
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
    """Return a twin with one fault, and its row of parameters, limited to their physical bounds.

    Args:
        twin: twin without the fault.
        table: parameters of the twin, one row.
        one: fault to apply.

    Raises:
        InputError: If the twin has no parameter that the fault would change.
    """
    if one.geared and twin.robot.gears is None:
        return add_twin_gears(twin, GearSpec(backlash=one.change)), ParamTable(names=table.names, values=table.values)
    values = table.values.copy()
    columns = [table.names.index(name) for name in matching(table.names, one.pattern)]
    if not columns:
        raise InputError(f"The twin {twin.name} has no parameter {one.pattern}, which {one.name} would change.")
    changed = values[:, columns] * one.change if one.op == "scale" else values[:, columns] + one.change
    low, high = np.array([(twin.params[table.names[c]].low, twin.params[table.names[c]].high) for c in columns]).T
    values[:, columns] = np.clip(changed, low, high)
    return twin, ParamTable(names=table.names, values=values)


def list_hypothesis_names(given: Sequence[FaultHypothesis]) -> tuple[str, ...]:
    """Return the names of hypotheses, in the same order."""
    return tuple(one.name for one in given)


def _find_hand_body(twin: Twin) -> str:
    """Return the name of the body that carries the robot's tool site; "" if the robot has no tool site."""
    model, tool = twin.model, twin.robot.tcp
    return "" if tool is None else model.body(int(model.site(tool).bodyid[0])).name


Array = NDArray[np.float64]
MEMORY_S = 2.0  # our choice: the time of a reach of the SO-101; every joint moves, and a fault shows before its end
_NOISE = 1e-3  # rad or m: residual per control step of a good twin; two thirds of an encoder count
_USUAL = 2.0  # prior standard deviation of the coefficients


class ResidualDirections:
    """Estimator of the size of each fault at each joint, updated at every control step.

    It is a recursive ridge regression, in which older steps have less weight. It regresses a joint's residuals
    (readings minus predictions) on the directions of the faults (changes of the predictions that the faults cause).

    Args:
        shape: numbers of worlds, joints and fault hypotheses.
        control_hz: control steps per second.
        memory_s: time in s after which the weight of a step is 1/e.
    """

    def __init__(self, shape: tuple[int, int, int], control_hz: float, *, memory_s: float = MEMORY_S) -> None:
        self._keep = math.exp(-1.0 / (memory_s * control_hz))
        self._normal = np.zeros((*shape, shape[-1]))
        self._right = np.zeros(shape)
        self._prior = (_NOISE / _USUAL) ** 2 * np.eye(shape[-1])

    def restart(self, worlds: NDArray[np.intp]) -> None:
        """Discard the past residuals and directions of the worlds with these indices."""
        self._normal[worlds] = self._right[worlds] = 0.0

    def update_coefficients(self, residual: Array, moved: Array) -> Array:
        """Add one control step; return the estimated size of each fault at each joint, shape ``(nworld, n, nfault)``.

        The sizes are the coefficients of the ridge regression; 1 is the size of the fault hypothesis. The axes are
        worlds, n joints and fault hypotheses.

        Args:
            residual: reading minus prediction in rad or m, shape ``(nworld, n)``.
            moved: directions of the faults, i.e. change of the predicted readings by each fault in rad or m, shape
                ``(nworld, n, nfault)``.
        """
        self._normal = self._keep * self._normal + moved[..., :, None] * moved[..., None, :]
        self._right = self._keep * self._right + moved * residual[..., None]
        found = np.linalg.solve(self._normal + self._prior, self._right[..., None])
        return np.asarray(found[..., 0], dtype=np.float64)


TRACKING_INDEX = (
    1.0  # our choice: an STS3215's reading error is one count, and so is the model error of the SO-101's twin
)


def compute_alpha_beta(index: float) -> tuple[float, float]:
    """Return the gains α (position) and β (speed) of an α–β filter for a tracking index (Kalata 1984, eqs. 22 and 23).

    Raises:
        InputError: If the index is not positive.
    """
    if not index > 0:
        raise InputError(f"A tracking index of {index:g} is too small. Give a number above 0; 1 is usual.")
    root = (4.0 + index - math.sqrt(8.0 * index + index**2)) / 4.0
    return 1.0 - root**2, 2.0 * (1.0 - root) ** 2


class ObserverBank:
    """Bank of twins, with and without faults, that run in parallel with ``nworld`` robots of one kind.

    Readings have the shape ``(nworld, n)`` for n joints, in rad or m. Commands have the shape ``(nworld, nu)`` for nu
    actuators, in the actuators' units. The twins have no contacts, so that forces from held or pushed objects are part
    of the residual.

    Attributes:
        hypotheses: fault hypotheses, in the order of the last axis of the changes that `advance_step` returns.
    """

    def __init__(
        self,
        twin: Twin,
        params: ParamTable | None = None,
        *,
        hypotheses: Sequence[FaultHypothesis] | None = None,
        index: float = TRACKING_INDEX,
        nthread: int = 1,
    ) -> None:
        """Create the observers of one twin.

        Args:
            twin: twin of the robots.
            params: one row of parameters, for example identified ones; nominal values by default.
            hypotheses: faults to distinguish; by default all of `list_hypotheses`.
            index: tracking index Λ > 0 of the α–β filter that corrects the twins: error of the twin's acceleration
                times the squared control period, divided by the reading error. A larger index gives the readings more
                weight; 1 is usual.
            nthread: number of threads for the physics.

        Raises:
            InputError: If there is more than one row of parameters, a fault changes a parameter that the twin does not
                have, or the index is not positive.
        """
        table = twin.table(1) if params is None else params
        if table.nworld != 1:
            raise InputError(
                f"A monitor needs one row of parameters, not {table.nworld}. Give the parameters of one robot."
            )
        self.hypotheses = list_hypotheses(twin) if hypotheses is None else tuple(hypotheses)
        self._gains = compute_alpha_beta(index)
        alike = [apply_fault(twin, table, one) for one in self.hypotheses]
        plain = [table, *(row for other, row in alike if other is twin)]
        self._banks = [_TwinBank(twin, plain, nthread)]
        self._banks += [_TwinBank(other, [row], nthread) for other, row in alike if other is not twin]
        self._places = np.argsort(sorted(range(len(alike)), key=lambda i: alike[i][0] is not twin))

    def begin(self, reading: ArrayLike, command: ArrayLike | None = None) -> None:
        """Start all observers (twins that follow the readings of the ``nworld`` robots) with robots at rest.

        Args:
            reading: first readings in rad or m, shape ``(nworld, n)``.
            command: commands that the robots hold, shape ``(nworld, nu)``; by default the readings.
        """
        first = np.asarray(reading, dtype=np.float64)
        held = first if command is None else np.asarray(command, dtype=np.float64)
        for bank in self._banks:
            bank.begin(first, held)

    def restart(self, worlds: ArrayLike, reading: ArrayLike, command: ArrayLike | None = None) -> None:
        """Start the observers of some worlds again, with robots at rest.

        Args:
            worlds: indices of these worlds.
            reading: first readings of these worlds in rad or m, one row per world.
            command: commands that these robots hold, one row per world; by default the readings.
        """
        index, first = np.asarray(worlds), np.asarray(reading, dtype=np.float64)
        held = first if command is None else np.asarray(command, dtype=np.float64)
        for bank in self._banks:
            bank.restart(index, first, held)

    def advance_step(self, command: ArrayLike, reading: ArrayLike) -> tuple[Array, Array]:
        """Advance all twins by one control period, then correct their states by the robots' readings.

        Args:
            command: commands in this period, shape ``(nworld, nu)``.
            reading: readings at its end in rad or m, shape ``(nworld, n)``.

        Returns:
            Residuals (reading minus prediction of the twin without a fault), shape ``(nworld, n)``, and change of the
            predicted reading by each fault, shape ``(nworld, n, nfault)``, in rad or m.
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
    """Simulated worlds of one compiled twin: every robot with every row of parameters, for example one fault per row.

    `begin` sets the number of robots, ``nworld``. The order of the worlds is all robots with the first row of
    parameters, then all robots with the second row, and so on.

    Args:
        twin: compiled twin.
        rows: rows of parameters.
    """

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
        """Advance by one control period, and return the next readings in rad or m.

        The shape is ``(nrow, nworld, n)`` for nrow rows of parameters, nworld robots and n joints.
        """
        self._simulation.advance(np.tile(command, (self._kinds, 1)))
        position = self._simulation.batch.bind("qpos")[:, self._twin.joint_qpos]
        return ((position - self._offset) / self._scale).reshape(self._kinds, self._n, -1)

    def correct_state(self, position_correction: Array, speed_correction: Array) -> tuple[Array, Array]:
        """Return the simulated joint positions and speeds of the fault-free worlds (parameter row 0), corrected.

        Args:
            position_correction: number to add to the position, in the unit of the readings, shape ``(nworld, n)``.
            speed_correction: number to add to the speed, in the unit of the readings per control period, shape
                ``(nworld, n)``.

        Returns:
            Positions in rad or m and speeds in rad/s or m/s, shape ``(nworld, n)`` each.
        """
        batch, scale = self._simulation.batch, self._scale[: self._n]
        position = batch.bind("qpos")[: self._n, self._twin.joint_qpos] + scale * position_correction
        speed = batch.bind("qvel")[: self._n, self._twin.joint_qvel]
        return position, speed + scale * speed_correction * self._twin.control_hz

    def set_state(self, position: Array, speed: Array) -> None:
        """Set the joint positions and speeds of every twin.

        The position and speed of each motor relative to its joint (the state of the gear's backlash) remain unchanged.

        Args:
            position: joint positions in rad or m, shape ``(nworld, n)``.
            speed: joint speeds in rad/s or m/s, shape ``(nworld, n)``.
        """
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
    """Return a copy of a twin in which contacts are disabled."""
    model = copy.copy(twin.model)
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
    return replace(twin, model=model)


_PERIODS = 2.0  # control periods of latency in its signature: a fault, not jitter (our choice)


def compute_signatures(
    twin: Twin, params: ParamTable, positions: Array, commands: Array, *, nthread: int = 1
) -> tuple[tuple[FaultHypothesis, ...], Array]:
    """Return the fault hypotheses of a twin, and the signature of each fault.

    The signature of a fault is the change of the regression coefficients (estimated fault sizes, see
    `ResidualDirections`) that the fault causes, as the mean over m simulated episodes. The simulated fault has the size
    of its hypothesis (`FaultHypothesis.change`); a latency has twice this size, two control periods. The shape is
    ``(nfault, T, n, nfault)``: the fault that is present, T steps, n joints, and the fault whose coefficient changes.

    Args:
        twin: identified twin.
        params: its parameters, one row.
        positions: first readings of the episodes in rad or m, shape ``(m, n)``.
        commands: commands of the episodes in the actuators' units, shape ``(m, T, nu)`` for nu actuators.
        nthread: number of threads for the physics.
    """
    observers = ObserverBank(twin, params, nthread=nthread)
    plain = _compute_mean_coefficients(observers, twin, params, positions, commands, nthread)
    moved = []
    for one in observers.hypotheses:
        planted = replace(one, change=one.change * _PERIODS) if one.name == "latency" else one
        other, row = apply_fault(twin, params, planted)
        moved.append(_compute_mean_coefficients(observers, other, row, positions, commands, nthread) - plain)
    return observers.hypotheses, np.stack(moved)


def weight_load_signature(
    signature: Array, hypotheses: Sequence[FaultHypothesis], held: Array, control_hz: float
) -> Array:
    """Return the signatures after scaling the signature of ``load`` by the share of episodes that hold an object.

    A signature is the change of the estimated fault sizes (regression coefficients) that a fault causes. A wrong load
    has no effect while no object is held.

    Args:
        signature: signatures of all nfault faults at T steps from `compute_signatures`, shape ``(nfault, T, …)``.
        hypotheses: fault of each signature.
        held: share of successful episodes in which an object is held at each step.
        control_hz: control steps per second. The share is averaged over past steps with the weights of
            `ResidualDirections`.
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
    """Return the mean estimated size of each fault at each joint over simulated episodes, shape ``(T, n, nfault)``.

    The sizes are the coefficients of `ResidualDirections`. The episodes are simulated here, with a twin without
    contacts.

    Args:
        observers: observers that process the simulated readings.
        twin: twin that produces the readings.
        params: parameters of this twin, one row.
        positions: first readings of m episodes, shape ``(m, n)``.
        commands: commands of the episodes, shape ``(m, T, nu)``.
    """
    readings = _replay_commands(twin, params, positions, commands, nthread)
    directions = ResidualDirections((*positions.shape, len(observers.hypotheses)), twin.control_hz)
    observers.begin(readings[:, 0])
    means = [np.zeros((positions.shape[1], len(observers.hypotheses)))]
    for step in range(1, commands.shape[1]):
        residual, moved = observers.advance_step(commands[:, step - 1], readings[:, step])
        means.append(directions.update_coefficients(residual, moved).mean(axis=0))
    return np.stack(means)


def _replay_commands(twin: Twin, params: ParamTable, positions: Array, commands: Array, nthread: int) -> Array:
    """Return noise-free readings of a twin without contacts that follows commands, shape ``(m, T, n)``.

    Args:
        twin: twin to simulate.
        params: its parameters, one row.
        positions: first readings of m episodes, shape ``(m, n)``.
        commands: commands of the episodes, shape ``(m, T, nu)``.
        nthread: number of threads for the physics.
    """
    alone, table = disable_contacts(twin), params.take(np.zeros(len(positions), dtype=int))
    offset, scale = (twin.column(table, "sensor", kind) for kind in ("offset", "scale"))
    initial = InitialState.home(alone, len(positions))
    qpos = initial.qpos.copy()
    qpos[:, alone.joint_qpos] = offset + scale * positions
    initial = replace(initial, qpos=alone.align_motors(qpos), command=positions)
    run = rollout(open_backend("threads", nthread=nthread), alone, table, initial, commands, commands.shape[1])
    return (run.qpos[:, :-1, alone.joint_qpos] - offset[:, None]) / scale[:, None]
