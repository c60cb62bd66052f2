"""Simulate worlds on CPU threads with ``mujoco.batch.Batch``; results equal the reference backend bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import mujoco
import numpy as np
from mujoco.batch import Batch, SimulationError
from numpy.typing import ArrayLike, NDArray

from twinloop.core.params import ParamTable
from twinloop.core.profile import span
from twinloop.simulate.activation import start_activations
from twinloop.simulate.command import CommandPath
from twinloop.simulate.disturbance import Pushes, append_wrenches
from twinloop.simulate.drives import DriveStages
from twinloop.simulate.protocol import OUT_OF_MEMORY, STATE_SPEC, InitialState
from twinloop.simulate.residual import Residuals
from twinloop.twin import Twin
from twinloop.twin.fields import FieldValues

# MjData fields of physics steps with drives, and state components that a rollout with pushes sets.
_DRIVEN = ("qpos", "qvel", "ctrl", "actuator_force", "xfrc_applied")
_PUSHED = int(mujoco.mjtState.mjSTATE_CTRL | mujoco.mjtState.mjSTATE_XFRC_APPLIED)


class BackendThreads:
    """Backend that simulates worlds on C threads of the CPU.

    Attributes:
        nthread: number of threads; 0 for every core.
    """

    name = "threads"

    def __init__(self, nthread: int = 0) -> None:
        self.nthread = nthread

    def start(
        self,
        twin: Twin,
        params: ParamTable,
        initial: InitialState,
        nstep: int,  # noqa: ARG002  # not needed
        *,
        derived: Sequence[str] = (),
    ) -> SimulationThreads:
        """Start a simulation of all worlds in their initial states; arguments are those of `Backend.start`."""
        return SimulationThreads(twin, params, initial, derived=derived, nthread=self.nthread)


class SimulationThreads:
    """Running simulation of worlds in one ``mujoco.batch.Batch``; see `Simulation`."""

    def __init__(
        self,
        twin: Twin,
        params: ParamTable,
        initial: InitialState,
        *,
        derived: Sequence[str],
        nthread: int,
    ) -> None:
        self.nworld, self.step_index = initial.nworld, 0
        self._commands = CommandPath(twin, params, initial.command, earlier=initial.earlier)
        self._pushes, self._residuals = Pushes(twin, params), Residuals(twin, params)
        self._twin, self._params, self._moved = twin, params, twin.find_changed_params(params)
        self.batch = make_batch(twin, params, initial, nthread)
        self._drives = DriveStages(twin, params, initial=initial)
        self._columns = _integration_columns(twin.model)
        self._stops = np.zeros(self.nworld, dtype=np.int64)
        self._derived = {name: self.batch.bind(name) for name in derived}
        if derived:
            self.batch.forward(stage=mujoco.mjtStage.mjSTAGE_POS.value)

    @property
    def state(self) -> NDArray[np.float64]:
        """Current state of every world, shape ``(nworld, nstate)``."""
        return self.batch.state[:, self._columns]

    @property
    def qpos(self) -> NDArray[np.float64]:
        """Current positions, shape ``(nworld, nq)``."""
        return self.batch.bind("qpos").copy()

    @property
    def qvel(self) -> NDArray[np.float64]:
        """Current velocities, shape ``(nworld, nv)``."""
        return self.batch.bind("qvel").copy()

    def read_derived(self, name: str) -> NDArray[np.float64]:
        """Return an MjData field requested at the start, shape ``(nworld, …)``.

        Its values are one physics step older than the state.
        """
        return self._derived[name]

    def jacobian(self, body: int, point: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the linear and angular Jacobians of points on a body, each of shape ``(nworld, 3, nv)``.

        Args:
            body: id of the body.
            point: points in world coordinates in m, shape ``(nworld, 3)``.
        """
        return self.batch.jac(body, point)

    def advance(self, command: ArrayLike) -> None:
        """Run one control step under commands ``(nworld, nu)``.

        All physics steps run in one call of MuJoCo, unless drive effects must act between them.
        """
        step, clock = self._commands.step, self._commands.clock
        with span("command path"):
            controls = self._commands.compute_controls(np.asarray(command, dtype=np.float64))
            if self._residuals.active:
                controls = self._residuals.add(controls, self.qpos, self.qvel)
            wrenches = self._pushes.compute_wrenches(step, clock.began, clock.ratio)
        changes = self._twin.stepped_fields(self._params, step)
        if changes:
            _write(self.batch, changes)
        if not clock.steady:
            self.batch.expand("opt.timestep")[...] = clock.timestep
        self._drives.begin_step()
        with span("physics"):
            if self._drives.active:
                self._step_with_drives(controls, wrenches)
            elif wrenches is None:
                with self._count_stops():
                    self.batch.rollout(controls.shape[1], controls, record=())
            else:
                inputs = append_wrenches(controls, wrenches)
                with self._count_stops():
                    self.batch.rollout(controls.shape[1], inputs, control_spec=_PUSHED, record=())
        self.step_index += 1

    def _step_with_drives(self, controls: NDArray[np.float64], wrenches: NDArray[np.float64] | None) -> None:
        """Run the physics steps one by one, with drive effects before each; a world with a new warning stops early.

        Args:
            controls: controls, shape ``(nworld, substeps, nu)``.
            wrenches: pushes, force in N and then torque in N·m at each body's centre of mass in world axes, shape
                ``(nworld, substeps, nbody, 6)``, or None.
        """
        batch, worlds, before = self.batch, np.arange(self.nworld, dtype=np.int32), self.warnings()
        qpos, qvel, ctrl, force, pushed = (batch.bind(name) for name in _DRIVEN)
        timestep = np.broadcast_to(self._commands.clock.timestep, self.nworld)
        for step in range(controls.shape[1]):
            control, changed = self._drives.apply(
                qpos=qpos, qvel=qvel, force=force, control=controls[:, step], timestep=timestep
            )
            ctrl[worlds] = control[worlds]
            if wrenches is not None:
                pushed[worlds] = wrenches[worlds, step]
            for name, values in changed.items():
                batch.expand(name)[worlds] = values[worlds]
            with self._count_stops():
                batch.step(worlds)
            worlds = np.flatnonzero((self.warnings() <= before).all(axis=1)).astype(np.int32)

    def restart(self, worlds: ArrayLike, params: ParamTable, initial: InitialState) -> None:
        """Restart some worlds with new parameters and initial states.

        Args:
            worlds: indices of the k worlds, shape ``(k,)``.
            params: parameters, one row per restarted world.
            initial: initial states, one row per restarted world.
        """
        index = np.asarray(worlds, dtype=np.int32)
        self._commands.restart(index, params, initial.command)
        self._drives.restart(index, params)
        self._params = self._params.replace_worlds(index, params)
        self._pushes.restart(self._params)
        self._residuals.restart(index, params)
        self._moved |= self._twin.find_changed_params(params)
        _write(self.batch, self._twin.fields(params, always=self._moved), index)
        _begin(self.batch, initial, start_activations(self._twin, params, initial), index)
        self._stops[index] = 0
        if self._derived:
            self.batch.forward(index, stage=mujoco.mjtStage.mjSTAGE_POS.value)

    def warnings(self) -> NDArray[np.int64]:
        """Return how often each MuJoCo warning has occurred in each world, shape ``(nworld, nwarning)``.

        A physics step that MuJoCo stopped with an error counts as a warning.
        """
        counts = self.batch.warning[..., -1].astype(np.int64)
        counts[:, OUT_OF_MEMORY] += self._stops
        return counts

    @contextmanager
    def _count_stops(self) -> Iterator[None]:
        """Return a context manager that counts one warning for each world in which MuJoCo raises a fatal error.

        Such a world keeps its state, and the other worlds continue.
        """
        try:
            yield
        except SimulationError as error:
            self._stops[list(error.ids)] += 1


def make_batch(twin: Twin, params: ParamTable, initial: InitialState, nthread: int) -> Batch:
    """Create a batch of worlds with their parameters and initial states, on ``nthread`` C threads."""
    batch = Batch(twin.model, initial.nworld, nthread)
    _write(batch, twin.fields(params))
    act = start_activations(twin, params, initial)
    _begin(batch, initial, act, np.arange(initial.nworld, dtype=np.int32))
    return batch


def _begin(batch: Batch, initial: InitialState, act: NDArray[np.float64], worlds: NDArray[np.int32]) -> None:
    """Set some worlds of a batch to their initial states, with one row of ``initial`` and ``act`` per world."""
    batch.reset(worlds, stage=mujoco.mjtStage.mjSTAGE_NONE.value)
    for name in ("qpos", "qvel", "mocap_pos", "mocap_quat"):
        batch.bind(name)[worlds] = getattr(initial, name)
    if act.size:
        batch.bind("act")[worlds] = act
    if initial.plastic.size:
        batch.bind("plastic")[worlds] = initial.plastic


def _write(batch: Batch, fields: FieldValues, worlds: NDArray[np.int32] | None = None) -> None:
    """Write model fields into a batch, one row per world.

    Args:
        batch: the worlds.
        fields: values of model fields.
        worlds: indices of the worlds; None for all worlds.
    """
    for field, values in fields.arrays.items():
        batch.expand(field)[slice(None) if worlds is None else worlds] = values
    if fields.set_const:
        batch.set_const(worlds)


def _integration_columns(model: mujoco.MjModel) -> NDArray[np.intp]:
    """Return the indices of the recorded state's components in the full state (``mjSTATE_INTEGRATION``).

    With the result ``columns``, ``full[:, columns]`` is the recorded state of every world of a batch.
    """
    whole = int(mujoco.mjtState.mjSTATE_INTEGRATION)
    source = np.arange(mujoco.mj_stateSize(model, whole), dtype=np.float64)
    columns = np.zeros(mujoco.mj_stateSize(model, STATE_SPEC))
    mujoco.mj_extractState(model, source, whole, columns, STATE_SPEC)
    return columns.astype(np.intp)
