"""Simulate worlds with a plain loop over ``mj_step``; all other backends are tested against this simple one."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.params import ParamTable
from twinloop.simulate.activation import start_activations
from twinloop.simulate.command import CommandPath
from twinloop.simulate.disturbance import Pushes
from twinloop.simulate.drives import DriveStages, apply_drives
from twinloop.simulate.protocol import OUT_OF_MEMORY, STATE_SPEC, InitialState
from twinloop.simulate.residual import Residuals
from twinloop.twin import Twin


class BackendReference:
    """Slow and simple backend with one MjModel and one MjData per world, stepped one after the other."""

    name = "reference"

    def start(
        self,
        twin: Twin,
        params: ParamTable,
        initial: InitialState,
        nstep: int,  # noqa: ARG002  # not needed
        *,
        derived: Sequence[str] = (),  # noqa: ARG002  # every field of MjData is available
    ) -> SimulationReference:
        """Start a simulation of all worlds in their initial states; arguments are those of `Backend.start`."""
        return SimulationReference(twin, params, initial)


class SimulationReference:
    """Running simulation with one MjModel and one MjData per world; see `Simulation`."""

    def __init__(self, twin: Twin, params: ParamTable, initial: InitialState) -> None:
        self.nworld, self.step_index = initial.nworld, 0
        self._commands = CommandPath(twin, params, initial.command, earlier=initial.earlier)
        self._pushes, self._residuals = Pushes(twin, params), Residuals(twin, params)
        self._twin, self._params = twin, params
        self._worlds = [_begin(twin, params, initial, world) for world in range(self.nworld)]
        each = ([world] for world in range(self.nworld))
        self._drives = [DriveStages(twin, params.take(row), initial=initial.take(row)) for row in each]

    @property
    def state(self) -> NDArray[np.float64]:
        """Current full state of every world, shape ``(nworld, nstate)``, with the components of ``STATE_SPEC``."""
        states = np.empty((self.nworld, mujoco.mj_stateSize(self._worlds[0][0], STATE_SPEC)))
        for row, (model, data) in zip(states, self._worlds, strict=True):
            mujoco.mj_getState(model, data, row, STATE_SPEC)
        return states

    @property
    def qpos(self) -> NDArray[np.float64]:
        """Current positions, shape ``(nworld, nq)``."""
        return self.read_derived("qpos")

    @property
    def qvel(self) -> NDArray[np.float64]:
        """Current velocities, shape ``(nworld, nv)``."""
        return self.read_derived("qvel")

    def read_derived(self, name: str) -> NDArray[np.float64]:
        """Return a field of every world's MjData, shape ``(nworld, …)``."""
        return np.stack([getattr(data, name) for _, data in self._worlds])

    def jacobian(self, body: int, point: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the linear and angular Jacobians of points on a body, each of shape ``(nworld, 3, nv)``.

        They are computed at the current positions.

        Args:
            body: id of the body.
            point: points in world coordinates in m, shape ``(nworld, 3)``.
        """
        points = np.broadcast_to(point, (self.nworld, 3))
        linear, angular = (np.zeros((self.nworld, 3, self._worlds[0][0].nv)) for _ in range(2))
        for world, (model, data) in enumerate(self._worlds):
            scratch = copy.copy(data)
            mujoco.mj_kinematics(model, scratch)
            mujoco.mj_comPos(model, scratch)
            mujoco.mj_jac(model, scratch, linear[world], angular[world], points[world], body)
        return linear, angular

    def advance(self, command: ArrayLike) -> None:
        """Run one control step under commands ``(nworld, nu)``, world by world.

        If MuJoCo warns during a physics step (for example because the simulation diverges), the world skips the
        remaining physics steps of the control step.
        """
        step, clock = self._commands.step, self._commands.clock
        controls = self._commands.compute_controls(np.asarray(command, dtype=np.float64))
        if self._residuals.active:
            controls = self._residuals.add(controls, self.qpos, self.qvel)
        wrenches = self._pushes.compute_wrenches(step, clock.began, clock.ratio)
        changes = self._twin.stepped_fields(self._params, step)
        for world, ((model, data), sequence) in enumerate(zip(self._worlds, controls, strict=True)):
            if changes:
                changes.write_inplace(model, world)
            if not clock.steady:
                model.opt.timestep = clock.timestep[world]
            before = data.warning.number.copy()
            drives = self._drives[world]
            drives.begin_step()
            for substep, control in enumerate(sequence):
                data.ctrl[:] = apply_drives(drives, model, data, control) if drives.active else control
                if wrenches is not None:
                    data.xfrc_applied[:] = wrenches[world, substep]
                try:
                    mujoco.mj_step(model, data)
                except mujoco.FatalError:
                    data.warning[OUT_OF_MEMORY].number += 1
                if (data.warning.number > before).any():
                    break
        self.step_index += 1

    def restart(self, worlds: ArrayLike, params: ParamTable, initial: InitialState) -> None:
        """Restart some worlds with new models, data and drives.

        Args:
            worlds: indices of the k worlds, shape ``(k,)``.
            params: parameters, one row per restarted world.
            initial: initial states, one row per restarted world.
        """
        index = np.asarray(worlds)
        self._commands.restart(index, params, initial.command)
        self._params = self._params.replace_worlds(index, params)
        self._pushes.restart(self._params)
        self._residuals.restart(index, params)
        for row, world in enumerate(index):
            self._worlds[world] = _begin(self._twin, params, initial, row)
            self._drives[world] = DriveStages(self._twin, params.take([row]))

    def warnings(self) -> NDArray[np.int64]:
        """Return how often each MuJoCo warning has occurred in each world, shape ``(nworld, nwarning)``."""
        return np.stack([data.warning.number for _, data in self._worlds]).astype(np.int64)


def _begin(twin: Twin, params: ParamTable, initial: InitialState, world: int) -> tuple[mujoco.MjModel, mujoco.MjData]:
    """Create MjModel and MjData of one world in its initial state.

    ``world`` is its row in ``params`` and ``initial``.
    """
    model = copy.copy(twin.model)
    twin.fields(params.take([world])).write_inplace(model, 0)
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = initial.qpos[world], initial.qvel[world]
    data.mocap_pos[:], data.mocap_quat[:] = initial.mocap_pos[world], initial.mocap_quat[world]
    data.act[:] = start_activations(twin, params.take([world]), initial.take([world]))[0]
    if initial.plastic.size:
        data.plastic[:] = initial.plastic[world]
    mujoco.mj_fwdPosition(model, data)
    return model, data
