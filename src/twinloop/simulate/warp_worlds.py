"""Run worlds of ``mujoco_warp`` in a rollout as torch tensors, with warnings counted per world."""

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
from twinloop.simulate.arrays import ArrayLibrary, to_host
from twinloop.simulate.command import CommandPath
from twinloop.simulate.disturbance import Pushes
from twinloop.simulate.drives import DriveStages
from twinloop.simulate.protocol import WARNINGS, InitialState, state_columns
from twinloop.simulate.warp_model import GraphCache, WarpModel, use_device
from twinloop.twin import Twin

_BAD = {"qpos": "mjWARN_BADQPOS", "qvel": "mjWARN_BADQVEL", "qacc": "mjWARN_BADQACC"}
# The solver's iteration limits are no overflow: MuJoCo continues with its result, without a warning.
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
    """Counters ``(nworld, len(WARNINGS))`` since each world's start, raised at most once per control step."""

    def __init__(self, nworld: int, device: torch.device) -> None:
        self.counts = torch.zeros((nworld, len(WARNINGS)), dtype=torch.int64, device=device)
        shifts = [int(bit).bit_length() - 1 for bit in _OVERFLOWS]
        self._shifts = torch.tensor(shifts, dtype=torch.int32, device=device)
        self._columns = torch.tensor([WARNINGS.index(name) for name in _OVERFLOWS.values()], device=device)

    def zero_invalid_controls(self, controls: torch.Tensor) -> torch.Tensor:
        """Return controls ``(nworld, substeps, nu)``, with invalid steps set to zero and counted, as in MuJoCo."""
        sound = _is_valid(controls).all(dim=2, keepdim=True)
        self._increment_counter("mjWARN_BADCTRL", ~sound.flatten(1).all(dim=1))
        return torch.where(sound, controls, 0.0)

    def count_warnings(self, data: Any) -> None:
        """Count the warnings of a control step in a Data, and reset its overflow flags."""
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
    """A `Simulation` whose arrays are torch tensors, float64 except ``state`` (float32, as computed).

    The physics steps of a control step are captured as a graph at the start, on a CUDA device and on the CPU, and
    again only when a parameter first departs from nominal in any world. On a CUDA device Warp works in torch's
    stream, so that neither has to wait for the other.

    Attributes:
        on: Warp's device.
        arrays: array library of the tensors.
        model, data: the model and data of ``mujoco_warp``.
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
        """Create the worlds; ``buffers`` are the contacts and the constraint rows that a world has room for."""
        self.nworld, self.step_index, self.substeps = initial.nworld, 0, twin.substeps
        self.arrays = ArrayLibrary.of(torch.zeros(0, device=wp.device_to_torch(device)))
        self._graphs = GraphCache(device)
        self.on, self._twin, self._params, self._moved = device, twin, params, twin.find_changed_params(params)
        self._commands = CommandPath(
            twin, params, initial.command, earlier=initial.earlier, as_array=self.arrays.asarray
        )
        self._pushes = Pushes(twin, params)
        self._drives = DriveStages(twin, params, as_array=self.arrays.asarray)
        with use_device(self.on):
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
        self._begin(np.arange(self.nworld), initial)
        self._prepare_step(params)
        self._begin(np.arange(self.nworld), initial)

    @property
    def state(self) -> torch.Tensor:
        """Present state of every world, ``(nworld, nstate)``, float32."""
        with use_device(self.on):
            parts = [self._tensor(name).reshape(self.nworld, -1) for name in self._columns]
            return torch.cat(parts, dim=1)

    @property
    def qpos(self) -> torch.Tensor:
        """Positions ``(nworld, nq)``."""
        with use_device(self.on):
            return self._tensor("qpos").double()

    @property
    def qvel(self) -> torch.Tensor:
        """Velocities ``(nworld, nv)``."""
        with use_device(self.on):
            return self._tensor("qvel").double()

    def read_derived(self, name: str) -> torch.Tensor:
        """Return a field requested at the start, ``(nworld, …)``, one physics step behind the state."""
        with use_device(self.on):
            return self._tensor(name).reshape(self.nworld, *self._sizes[name]).double()

    def jacobian(self, body: int, point: ArrayLike) -> tuple[torch.Tensor, torch.Tensor]:
        """Return linear and angular Jacobians ``(nworld, 3, nv)`` of world points ``(nworld, 3)`` on a body."""
        scratch, nv = self.model.scratch, self.model.host.nv
        points = self.arrays.asarray(np.broadcast_to(np.asarray(point, dtype=np.float32), (self.nworld, 3)).copy())
        with use_device(self.on):
            for name in ("qpos", "mocap_pos", "mocap_quat"):
                wp.copy(getattr(scratch, name), getattr(self.data, name))
            mjw.kinematics(self.model.device, scratch)
            mjw.com_pos(self.model.device, scratch)
            linear, angular = (wp.zeros((self.nworld, 3, nv), dtype=float) for _ in range(2))
            bodies = wp.full(self.nworld, body, dtype=int)
            mjw.jac(self.model.device, scratch, linear, angular, wp.from_torch(points, dtype=wp.vec3), bodies)
            return wp.to_torch(linear).double(), wp.to_torch(angular).double()

    def advance(self, command: torch.Tensor) -> None:
        """Run one control step under commands ``(nworld, nu)``, as a captured graph unless drives act."""
        step, clock = self._commands.step, self._commands.clock
        controls = self._commands.compute_controls(command)
        changes = self._twin.stepped_fields(self._params, step)
        with use_device(self.on):
            if changes:
                self.model.write(changes)
                self.model.place(self.data, changes)
            if not clock.steady:
                self.model.view("opt.timestep").copy_(clock.timestep)
            controls = self._faults.zero_invalid_controls(controls)
            wp.to_torch(self._controls).copy_(controls.transpose(0, 1))
            self._push(step)
            self._drives.begin()
            if self._drives.active:
                self._step_with_drives(controls)
            else:
                self._graphs.run(*self._make_physics_work(self.substeps))
            self._faults.count_warnings(self.data)
        self.step_index += 1

    def restart(self, worlds: ArrayLike, params: ParamTable, initial: InitialState) -> None:
        """Restart some worlds with their new parameters and initial states."""
        index = np.asarray(worlds)
        self._commands.restart(index, params, initial.command)
        self._drives.restart(index, params)
        self._params = self._params.put(index, params)
        self._pushes.restart(self._params)
        self._moved |= self._twin.find_changed_params(params)
        self._write(params, index)
        self._begin(index, initial)

    def warnings(self) -> torch.Tensor:
        """Return the warning counters, raised at most once per control step since a world's start."""
        return self._faults.counts.clone()

    def _write(self, params: ParamTable, worlds: NDArray[np.intp] | None = None) -> None:
        """Write the fields of all worlds, or of some, one row each."""
        fields = self._twin.fields(params, always=self._moved)
        self.model.check(params, fields.arrays)
        with use_device(self.on):
            self.model.write(fields, worlds)
            if not self._commands.clock.steady:
                self.model.view("opt.timestep")
            self.model.place(self.data, fields)

    def _begin(self, worlds: NDArray[np.intp], initial: InitialState) -> None:
        """Set some worlds to their initial states, one row of ``initial`` each."""
        index = torch.as_tensor(worlds, device=self.arrays.device)
        self._fresh.zero_()
        self._fresh[index] = True
        kept = {name: self._tensor(name).clone() for name in self._sizes}
        with use_device(self.on):
            self._graphs.run("reset", self.model.version, self._reset)
            for name in ("qpos", "qvel", "mocap_pos", "mocap_quat"):
                rows = self.arrays.asarray(getattr(initial, name))
                target = self._tensor(name)
                target[index] = rows.reshape(len(worlds), *target.shape[1:]).to(target.dtype)
            for name, first in self._first.items():
                self._tensor(name)[index] = first[index]
            if kept:
                mjw.fwd_position(self.model.device, self.data)
            for name, before in kept.items():  # worlds that continue keep theirs, one step behind their state
                now = self._tensor(name)
                now[~self._fresh] = before[~self._fresh]
        self._faults.counts[index] = 0

    def _reset(self) -> None:
        mjw.reset_data(self.model.device, self.data, wp.from_torch(self._fresh))

    def _prepare_step(self, params: ParamTable) -> None:
        """Allocate the arrays, compile the kernels and capture the graph of a control step."""
        stepped = self._twin.stepped_fields(params, 0)
        names = [*(stepped.arrays if stepped else ()), *self._drives.fields]
        self.model.check(params, names)
        with use_device(self.on):
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
        """Set the pushes of the coming control step; they are few, so they are computed on the host."""
        clock = self._commands.clock
        wrenches = None
        if self._pushes.active:
            wrenches = self._pushes.compute_wrenches(step, to_host(clock.began), to_host(clock.ratio))
        if wrenches is not None:
            self._get_wrenches()[:] = self.arrays.asarray(wrenches.swapaxes(0, 1))
        elif self._wrenches is not None:  # the worlds that were pushed have restarted
            self._wrenches.zero_()

    def _step_with_drives(self, controls: torch.Tensor) -> None:
        """Run physics steps one by one from the first row of the inputs, with drives before each."""
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
        """Return some physics steps as work for `GraphCache`."""
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
    """Return the components of a recorded state in column order, without those that this model lacks."""
    first = {name: state_columns(model, int(part))[:1] for name, part in _STATE.items()}
    present = {name: int(column[0]) for name, column in first.items() if len(column)}
    return sorted(present, key=present.__getitem__)


def _derived_shapes(model: mujoco.MjModel, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of computed fields of MjData."""
    data = mujoco.MjData(model)
    both = {field for field in mjw.Data.__dataclass_fields__ if isinstance(getattr(data, field, None), np.ndarray)}
    for name in names:
        if name not in both:
            raise UnknownNameError("derived field", name, both, where="the backend warp")
    return {name: getattr(data, name).shape for name in names}


def measure_bare_seconds(worlds: WarpWorlds, commands: NDArray[np.float64]) -> float:
    """Measure the seconds of a rollout's physics steps from the current states, without anything around the physics.

    It uses the same model with the same parameters, the same contact buffer, and the same graph of physics steps.
    Commands ``(nworld, nstep, nu)`` are on the device before the start and act without delay; no controller, checks or
    recording.
    """

    def physics() -> None:
        for _ in range(worlds.substeps):
            mjw.step(worlds.model.device, worlds.data)

    with use_device(worlds.on):
        rows: Any = wp.array(commands.swapaxes(0, 1).astype(np.float32), dtype=float)
        graphs = GraphCache(worlds.on)
        graphs.prepare("physics", worlds.model.version, physics)
        wp.synchronize_device()
        began = time.perf_counter()
        for step in range(commands.shape[1]):
            wp.copy(worlds.data.ctrl, rows[step])
            graphs.run("physics", worlds.model.version, physics)
        wp.synchronize_device()
        return time.perf_counter() - began
