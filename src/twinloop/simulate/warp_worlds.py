"""Simulate worlds with ``mujoco_warp`` as torch tensors on a device, and count warnings per world."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import mujoco
import mujoco_warp as mjw  # pyright: ignore[reportMissingImports]
import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import warp as wp  # pyright: ignore[reportMissingImports]
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.simulate.activation import start_activations
from twinloop.simulate.arrays import ArrayLibrary, to_host
from twinloop.simulate.command import CommandPath
from twinloop.simulate.disturbance import Pushes
from twinloop.simulate.drives import DriveStages
from twinloop.simulate.protocol import WARNINGS, InitialState, state_columns
from twinloop.simulate.residual import Residuals
from twinloop.simulate.warp_model import GraphCache, WarpModel, use_device
from twinloop.twin import Twin

_BAD = {"qpos": "mjWARN_BADQPOS", "qvel": "mjWARN_BADQVEL", "qacc": "mjWARN_BADQACC"}
# The solver's iteration limits are not an overflow: MuJoCo continues with its result, without a warning.
_OVERFLOWS = {
    mjw.OverflowType.NEFC: "mjWARN_CNSTRFULL",
    mjw.OverflowType.NJMAX_NNZ: "mjWARN_CNSTRFULL",
    mjw.OverflowType.NVMAX: "mjWARN_CNSTRFULL",
    mjw.OverflowType.BROADPHASE: "mjWARN_CONTACTFULL",
    mjw.OverflowType.NARROWPHASE: "mjWARN_CONTACTFULL",
    mjw.OverflowType.CCD: "contact buffers of convex pairs overflowed",
    mjw.OverflowType.EPA_HORIZON: "contact buffers of convex pairs overflowed",
    mjw.OverflowType.HFIELD: "contact buffers of height fields overflowed",
    mjw.OverflowType.CONTACT_MATCH: "buffers of contact sensors overflowed",
    mjw.OverflowType.TACTILE: "buffers of contact sensors overflowed",
}


class WarningCounters:
    """Counters of warnings since each world's start; a counter increases by at most one per control step and cause.

    Attributes:
        counts: counters, shape ``(nworld, len(WARNINGS))``.
    """

    def __init__(self, nworld: int, device: torch.device) -> None:
        self.counts = torch.zeros((nworld, len(WARNINGS)), dtype=torch.int64, device=device)
        shifts = [int(bit).bit_length() - 1 for bit in _OVERFLOWS]
        self._shifts = torch.tensor(shifts, dtype=torch.int32, device=device)
        self._columns = torch.tensor([WARNINGS.index(name) for name in _OVERFLOWS.values()], device=device)

    def zero_invalid_controls(self, controls: torch.Tensor) -> torch.Tensor:
        """Set the controls of physics steps with invalid values to zero, as MuJoCo does, and count a warning.

        ``controls`` have the shape ``(nworld, substeps, nu)``; the result is a new tensor.
        """
        valid = _is_valid(controls).all(dim=2, keepdim=True)
        self._increment_counter("mjWARN_BADCTRL", ~valid.flatten(1).all(dim=1))
        return torch.where(valid, controls, 0.0)

    def count_warnings(self, data: Any) -> None:
        """Count the warnings of a control step and reset the overflow flags of ``data`` in place.

        ``data`` is the data of ``mujoco_warp``.
        """
        for name, kind in _BAD.items():
            self._increment_counter(kind, ~_is_valid(wp.to_torch(getattr(data, name))).all(dim=1))
        overflow = wp.to_torch(data.overflow)
        bits = (overflow[:, None] >> self._shifts) & 1
        self.counts.index_add_(1, self._columns, bits.long())
        overflow.zero_()

    def _increment_counter(self, kind: str, worlds: torch.Tensor) -> None:
        self.counts[:, WARNINGS.index(kind)] += worlds


def _is_valid(values: torch.Tensor) -> torch.Tensor:
    return torch.isfinite(values) & (values.abs() <= mujoco.mjMAXVAL)


_STATE = {
    "time": mujoco.mjtState.mjSTATE_TIME,
    "qpos": mujoco.mjtState.mjSTATE_QPOS,
    "qvel": mujoco.mjtState.mjSTATE_QVEL,
    "act": mujoco.mjtState.mjSTATE_ACT,
    "qacc_warmstart": mujoco.mjtState.mjSTATE_WARMSTART,
    "mocap_pos": mujoco.mjtState.mjSTATE_MOCAP_POS,
    "mocap_quat": mujoco.mjtState.mjSTATE_MOCAP_QUAT,
    "plastic": mujoco.mjtState.mjSTATE_PLASTIC,
}


class WarpWorlds:
    """Running simulation whose arrays are torch tensors on a device; see `Simulation`.

    Tensors are float64, except ``state``, which is float32 as computed. On a CUDA device and on the CPU, the physics
    steps of a control step are recorded once at the start (captured as a Warp graph) and then replayed. They are
    captured again only when a parameter gets a value other than its nominal one for the first time in any world. On a
    CUDA device Warp works in torch's stream, so that neither library has to wait for the other.

    Attributes:
        device: device of Warp.
        arrays: array library of the tensors.
        model: model of ``mujoco_warp`` with fields per world.
        data: data of ``mujoco_warp``.
        substeps: physics steps per control step.
    """

    def __init__(
        self,
        twin: Twin,
        params: ParamTable,
        initial: InitialState,
        *,
        derived: Sequence[str],
        device: wp.Device,
        deterministic: bool,
        buffers: tuple[int, int],
    ) -> None:
        """Create the worlds in their initial states and capture the graphs of their physics steps.

        Args:
            twin: the twin.
            params: parameters, one row per world.
            initial: initial states of all worlds.
            derived: names of the computed MjData fields that will be read.
            device: device of Warp.
            deterministic: whether to compute in a fixed order, so that a GPU repeats a run bit for bit.
            buffers: maximum number of contacts and of constraint rows per world.
        """
        self.nworld, self.step_index, self.substeps = initial.nworld, 0, twin.substeps
        self.arrays = ArrayLibrary.of(torch.zeros(0, device=wp.device_to_torch(device)))
        self._graphs = GraphCache(device)
        self.device, self._twin, self._params, self._moved = device, twin, params, twin.find_changed_params(params)
        self._commands = CommandPath(
            twin, params, initial.command, earlier=initial.earlier, as_array=self.arrays.asarray
        )
        self._pushes = Pushes(twin, params)
        self._residuals = Residuals(twin, params, as_array=self.arrays.asarray)
        self._drives = DriveStages(twin, params, as_array=self.arrays.asarray, initial=initial)
        with use_device(self.device):
            self.model = WarpModel(twin, self.nworld)
            if deterministic:
                self.model.device.opt.deterministic = int(mjw.DeterminismType.ALL)
            nconmax, njmax = buffers
            self.data = mjw.make_data(self.model.host, nworld=self.nworld, nconmax=nconmax, njmax=njmax)
            self._controls: Any = wp.zeros((twin.substeps, self.nworld, twin.model.nu), dtype=float)
            self._wrenches: Any = None
        self._sizes = _derived_shapes(self.model.host, derived)
        self._columns = _order_components(twin.model)
        self._faults = WarningCounters(self.nworld, self.arrays.device)
        self._fresh = torch.zeros(self.nworld, dtype=torch.bool, device=self.arrays.device)
        self._write(params)
        # Poses of geoms are excluded: those of fixed geoms are set when fields are written.
        self._first = {name: self._tensor(name).clone() for name in self._sizes if not name.startswith("geom_x")}
        self._begin(np.arange(self.nworld), params, initial)
        self._prepare_step(params)
        self._begin(np.arange(self.nworld), params, initial)

    @property
    def state(self) -> torch.Tensor:
        """Current state of every world, float32, shape ``(nworld, nstate)``."""
        with use_device(self.device):
            parts = [self._tensor(name).reshape(self.nworld, -1) for name in self._columns]
            return torch.cat(parts, dim=1)

    @property
    def qpos(self) -> torch.Tensor:
        """Current positions, shape ``(nworld, nq)``."""
        with use_device(self.device):
            return self._tensor("qpos").double()

    @property
    def qvel(self) -> torch.Tensor:
        """Current velocities, shape ``(nworld, nv)``."""
        with use_device(self.device):
            return self._tensor("qvel").double()

    def read_derived(self, name: str) -> torch.Tensor:
        """Return an MjData field requested at the start, shape ``(nworld, …)``.

        Its values are one physics step older than the state.
        """
        with use_device(self.device):
            return self._tensor(name).reshape(self.nworld, *self._sizes[name]).double()

    def jacobian(self, body: int, point: ArrayLike) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the linear and angular Jacobians of points on a body, each of shape ``(nworld, 3, nv)``.

        Args:
            body: id of the body.
            point: points in world coordinates in m, shape ``(nworld, 3)``.
        """
        scratch, nv = self.model.scratch, self.model.host.nv
        points = self.arrays.asarray(np.broadcast_to(np.asarray(point, dtype=np.float32), (self.nworld, 3)).copy())
        with use_device(self.device):
            for name in ("qpos", "mocap_pos", "mocap_quat"):
                wp.copy(getattr(scratch, name), getattr(self.data, name))
            mjw.kinematics(self.model.device, scratch)
            mjw.com_pos(self.model.device, scratch)
            linear, angular = (wp.zeros((self.nworld, 3, nv), dtype=float) for _ in range(2))
            bodies = wp.full(self.nworld, body, dtype=int)
            mjw.jac(self.model.device, scratch, linear, angular, wp.from_torch(points, dtype=wp.vec3), bodies)
            return wp.to_torch(linear).double(), wp.to_torch(angular).double()

    def advance(self, command: torch.Tensor) -> None:
        """Run one control step under commands ``(nworld, nu)``.

        The physics steps run as a captured graph, unless drive effects must act between them.
        """
        step, clock = self._commands.step, self._commands.clock
        controls = self._commands.compute_controls(command)
        if self._residuals.active:
            controls = self._residuals.add(controls, self.qpos, self.qvel)
        changes = self._twin.stepped_fields(self._params, step)
        with use_device(self.device):
            if changes:
                self.model.write(changes)
                self.model.update_fixed_geoms(self.data, changes)
            if not clock.steady:
                self.model.view("opt.timestep").copy_(clock.timestep)
            controls = self._faults.zero_invalid_controls(controls)
            wp.to_torch(self._controls).copy_(controls.transpose(0, 1))
            self._push(step)
            self._drives.begin_step()
            if self._drives.active:
                self._step_with_drives(controls)
            else:
                self._graphs.run(*self._make_physics_work(self.substeps))
            self._faults.count_warnings(self.data)
        self.step_index += 1

    def restart(self, worlds: ArrayLike, params: ParamTable, initial: InitialState) -> None:
        """Restart some worlds with new parameters and initial states.

        Args:
            worlds: indices of the k worlds, shape ``(k,)``.
            params: parameters, one row per restarted world.
            initial: initial states, one row per restarted world.
        """
        index = np.asarray(worlds)
        self._commands.restart(index, params, initial.command)
        self._drives.restart(index, params)
        self._params = self._params.replace_worlds(index, params)
        self._pushes.restart(self._params)
        self._residuals.restart(index, params)
        self._moved |= self._twin.find_changed_params(params)
        self._write(params, index)
        self._begin(index, params, initial)

    def warnings(self) -> torch.Tensor:
        """Return how often each warning has occurred in each world since its start, shape ``(nworld, nwarning)``."""
        return self._faults.counts.clone()

    def _write(self, params: ParamTable, worlds: NDArray[np.intp] | None = None) -> None:
        """Write the model fields of the parameters to the device, one row per world.

        Args:
            params: parameters of the worlds.
            worlds: indices of the worlds; None for all worlds.
        """
        fields = self._twin.fields(params, always=self._moved)
        self.model.check(params, fields.arrays)
        with use_device(self.device):
            self.model.write(fields, worlds)
            if not self._commands.clock.steady:
                self.model.view("opt.timestep")
            self.model.update_fixed_geoms(self.data, fields)

    def _begin(self, worlds: NDArray[np.intp], params: ParamTable, initial: InitialState) -> None:
        """Set some worlds to their initial states.

        Args:
            worlds: indices of the worlds.
            params: parameters, one row for each index in ``worlds``.
            initial: initial states, one row for each index in ``worlds``.
        """
        index = torch.as_tensor(worlds, device=self.arrays.device)
        self._fresh.zero_()
        self._fresh[index] = True
        previous = {name: self._tensor(name).clone() for name in self._sizes}
        with use_device(self.device):
            self._graphs.run("reset", self.model.version, self._reset)
            first = {name: getattr(initial, name) for name in ("qpos", "qvel", "mocap_pos", "mocap_quat")}
            for name, values in {**first, "act": start_activations(self._twin, params, initial)}.items():
                rows, target = self.arrays.asarray(values), self._tensor(name)
                target[index] = rows.reshape(len(worlds), *target.shape[1:]).to(target.dtype)
            for name, initial_value in self._first.items():
                self._tensor(name)[index] = initial_value[index]
            if previous:
                mjw.fwd_position(self.model.device, self.data)
            for name, before in previous.items():  # worlds that continue keep theirs, one step behind their state
                now = self._tensor(name)
                now[~self._fresh] = before[~self._fresh]
        self._faults.counts[index] = 0

    def _reset(self) -> None:
        mjw.reset_data(self.model.device, self.data, wp.from_torch(self._fresh))

    def _prepare_step(self, params: ParamTable) -> None:
        """Allocate the arrays, compile the kernels and capture the graph of a control step, once at the start.

        This runs one physics step, so the states must be set again afterwards.

        Args:
            params: parameters, one row per world. Model fields of parameters that change during an episode get one
                array per world.
        """
        stepped = self._twin.stepped_fields(params, 0)
        names = [*(stepped.arrays if stepped else ()), *self._drives.fields]
        self.model.check(params, names)
        with use_device(self.device):
            for name in names:
                self.model.view(name)
            if self._pushes.active:
                self._get_wrenches()
            self._run_substeps(1)
            self._graphs.prepare(*self._make_physics_work(1 if self._drives.active else self.substeps))

    def _get_wrenches(self) -> torch.Tensor:
        if self._wrenches is None:
            shape = (self.substeps, self.nworld, self._twin.model.nbody)
            self._wrenches = wp.zeros(shape, dtype=wp.spatial_vector)
        return wp.to_torch(self._wrenches)

    def _push(self, step: NDArray[np.int64]) -> None:
        """Write the pushes of the coming control step; they are few, so they are computed on the CPU.

        ``step`` is the number of the control step in each world.
        """
        clock = self._commands.clock
        wrenches = None
        if self._pushes.active:
            wrenches = self._pushes.compute_wrenches(step, to_host(clock.began), to_host(clock.ratio))
        if wrenches is not None:
            self._get_wrenches()[:] = self.arrays.asarray(wrenches.swapaxes(0, 1))
        elif self._wrenches is not None:  # the worlds that were pushed have restarted
            self._wrenches.zero_()

    def _step_with_drives(self, controls: torch.Tensor) -> None:
        """Run the physics steps one by one, with drive effects before each.

        Args:
            controls: controls of the control step, shape ``(nworld, substeps, nu)``. The controls and wrenches of each
                physics step are copied to row 0 of the device arrays, because the captured graph of one step reads only
                that row.
        """
        state = [self._tensor(name) for name in ("qpos", "qvel", "actuator_force")]
        inputs = [wp.to_torch(rows) for rows in (self._controls, self._wrenches) if rows is not None]
        for substep in range(self.substeps):
            qpos, qvel, force = (values.double() for values in state)
            control, changed = self._drives.apply(
                qpos=qpos,
                qvel=qvel,
                force=force,
                control=controls[:, substep],
                timestep=self._commands.clock.timestep,
            )
            for rows in inputs:
                rows[0] = rows[substep]
            inputs[0][0] = control
            for name, values in changed.items():
                self.model.view(name).copy_(values)
            self._graphs.run(*self._make_physics_work(1))

    def _make_physics_work(self, count: int) -> tuple[str, Any, Callable[[], None]]:
        """Return the arguments of `GraphCache.run` that run ``count`` physics steps: name, cache key and function."""
        return "physics", (count, self.model.version, self._wrenches is not None), lambda: self._run_substeps(count)

    def _run_substeps(self, count: int) -> None:
        for substep in range(count):
            if self._controls.size:
                wp.copy(self.data.ctrl, self._controls[substep])
            if self._wrenches is not None:
                wp.copy(self.data.xfrc_applied, self._wrenches[substep])
            mjw.step(self.model.device, self.data)

    def _tensor(self, name: str) -> torch.Tensor:
        return wp.to_torch(getattr(self.data, name))


def _order_components(model: mujoco.MjModel) -> list[str]:
    """Return the names of the components of a recorded state in column order, as far as the model has them."""
    first = {name: state_columns(model, int(part))[:1] for name, part in _STATE.items()}
    present = {name: int(column[0]) for name, column in first.items() if len(column)}
    return sorted(present, key=present.__getitem__)


def _derived_shapes(model: mujoco.MjModel, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the named MjData fields, for one world.

    Raises:
        UnknownNameError: If MuJoCo or ``mujoco_warp`` has no such field.
    """
    data = mujoco.MjData(model)
    available = {field for field in mjw.Data.__dataclass_fields__ if isinstance(getattr(data, field, None), np.ndarray)}
    for name in names:
        if name not in available:
            raise UnknownNameError("derived field", name, available, where="the backend warp")
    return {name: getattr(data, name).shape for name in names}


def measure_bare_seconds(worlds: WarpWorlds, commands: NDArray[np.float64]) -> float:
    """Measure the time in s of a rollout's physics steps alone, from the current states.

    Model, parameters and contact buffer are those of the simulation, and the physics steps also run as a captured graph
    of kernel launches (CUDA graph on a GPU). Commands are on the device before the start and act without delay. There
    is no controller, no check and no recording.

    Args:
        worlds: the simulation.
        commands: commands, shape ``(nworld, nstep, nu)``.
    """

    def physics() -> None:
        for _ in range(worlds.substeps):
            mjw.step(worlds.model.device, worlds.data)

    with use_device(worlds.device):
        rows: Any = wp.array(commands.swapaxes(0, 1).astype(np.float32), dtype=float)
        graphs = GraphCache(worlds.device)
        graphs.prepare("physics", worlds.model.version, physics)
        wp.synchronize_device()
        began = time.perf_counter()
        for step in range(commands.shape[1]):
            wp.copy(worlds.data.ctrl, rows[step])
            graphs.run("physics", worlds.model.version, physics)
        wp.synchronize_device()
        return time.perf_counter() - began
