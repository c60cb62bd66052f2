"""Simulate worlds of one robot in Drake, as a backend of `twinloop.simulate`.

Drake computes the motion of links and cube, `drives.Drives` the torques at the joints. States are translated to the
layout of the twin's MuJoCo model, so that tasks, experts and policies of twinloop run unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from benchmarks.transfer.drake_so101.drives import CommandLine, Drives
from benchmarks.transfer.drake_so101.hidden import DrakeRobot
from benchmarks.transfer.drake_so101.plant import DrakePlant
from twinloop.core.params import ParamTable
from twinloop.core.seeds import uniforms
from twinloop.simulate import InitialState
from twinloop.simulate.protocol import STATE_SPEC, WARNINGS, state_columns
from twinloop.twin import Twin

Array = NDArray[np.float64]
# Time steps of Drake per control step (0.69 ms). The gear's torque is explicit: with the smallest inertia of a link
# (1.4e-5 kg.m2, the jaw) and the stiffest gear (60 N.m/rad), steps above 0.85 ms are unstable. Convergence was measured
# on robots 0 to 2, see docs/evidence/transfer.md.
SUBSTEPS = 48


@dataclass(frozen=True, kw_only=True)
class DrakeBackend:
    """Backend that simulates one robot in Drake; its parameters are those of the robot, whatever the table says.

    Attributes:
        robot: the robot.
        numbers: numbers of the initial conditions of the worlds, from which random effects are drawn.
        substeps: time steps per control step.
        free: whether the cube is part of the scene.
    """

    robot: DrakeRobot
    numbers: Sequence[int]
    substeps: int = SUBSTEPS
    free: bool = True
    name: str = "drake"

    @property
    def step(self) -> float:
        """Time step of Drake in s."""
        return 1.0 / (self.robot.twin.control_hz * self.substeps)

    @cached_property
    def plant(self) -> DrakePlant:
        """Plant of the robot and its scene."""
        return DrakePlant(self.robot.model(), list(self.robot.twin.robot.joints), self.step, free=self.free)

    def start(
        self,
        twin: Twin,  # noqa: ARG002  # the robot's
        params: ParamTable,  # noqa: ARG002  # the robot's
        initial: InitialState,
        nstep: int,  # noqa: ARG002  # not needed
        *,
        derived: Sequence[str] = (),  # noqa: ARG002  # every field of MjData is available
    ) -> DrakeSimulation:
        """Start a simulation of all worlds in their initial states; arguments are those of `Backend.start`."""
        return DrakeSimulation(self, initial)


class DrakeSimulation:
    """Running simulation of several worlds of one robot.

    It has the parts of `twinloop.simulate.Simulation` that a rollout, experts and policies use: not ``read_derived``,
    ``jacobian`` and ``restart``.

    Attributes:
        nworld: number of worlds.
        step_index: number of commands so far.
        ticks: number of time steps so far.
    """

    def __init__(self, backend: DrakeBackend, initial: InitialState) -> None:
        self._plant, self._robot, self._substeps = backend.plant, backend.robot, backend.substeps
        self._initial, self.nworld = initial, initial.nworld
        self._numbers = np.asarray(backend.numbers, dtype=np.int64)
        self._worlds = [self._plant.start(qpos) for qpos in initial.qpos]
        load = -np.stack([world.gravity_torques() for world in self._worlds])
        self._drives = Drives(self._robot.drives, self._joint_states[0], load, self._plant.step)
        self._line = CommandLine(initial.command)
        self.step_index = self._reads = self.ticks = 0

    @property
    def now(self) -> float:
        """Time since the start in s."""
        return self.ticks * self._plant.step

    @property
    def _states(self) -> Array:
        return np.stack([world.state for world in self._worlds])

    @property
    def _joint_states(self) -> tuple[Array, Array]:
        states, layout = self._states, self._plant.layout
        return states[:, layout.positions], states[:, layout.velocities]

    def read_joints(self) -> Array:
        """Return present encoder readings in rad, ``(nworld, n)``; each call draws new noise."""
        position = self._joint_states[0]
        chance = self._draw("read", self._reads, position.shape[1])
        self._reads += 1
        return self._drives.encode(position, self._robot.drives.noise * ndtri(chance))

    def _draw(self, effect: str, step: int, size: int = 1) -> Array:
        return uniforms(self._robot.seed, f"drake/{effect}", self._numbers, size=size, step=step)

    def send(self, command: Array) -> None:
        """Issue a command ``(nworld, n)`` in rad, clipped to the servos' limits; it takes effect later."""
        drives, limits = self._robot.drives, self._robot.twin.model.actuator_ctrlrange.T
        late = drives.command_jitter * self._draw("lateness", self.step_index)
        self._line.send(np.clip(command, *limits), self.now + drives.delay + late)
        self.step_index += 1

    def run(self, ticks: int) -> None:
        """Run a number of time steps under the commands that have arrived."""
        for _ in range(ticks):
            torque = self._drives.advance(self._line.active_command(self.now), *self._joint_states)
            self.ticks += 1
            for world, row in zip(self._worlds, torque, strict=True):
                world.advance(row, self.now)

    def advance(self, command: ArrayLike) -> None:
        """Run one control step under commands ``(nworld, nu)`` in rad."""
        self.send(np.asarray(command, dtype=np.float64))
        self.run(self._substeps)

    @property
    def qpos(self) -> Array:
        """Current positions in the twin's layout, ``(nworld, nq)``."""
        return self._plant.layout.to_mujoco(self._states, self._initial.qpos)[0]

    @property
    def qvel(self) -> Array:
        """Current velocities in the twin's layout, ``(nworld, nv)``."""
        return self._plant.layout.to_mujoco(self._states, self._initial.qpos)[1]

    @property
    def state(self) -> Array:
        """Current states in the twin's layout, ``(nworld, nstate)``; parts that Drake lacks are 0."""
        model, kinds, initial = self._robot.twin.model, mujoco.mjtState, self._initial
        states = np.zeros((self.nworld, mujoco.mj_stateSize(model, STATE_SPEC)))
        qpos, qvel = self._plant.layout.to_mujoco(self._states, initial.qpos)
        parts = {
            kinds.mjSTATE_TIME: np.full((self.nworld, 1), self.now),
            kinds.mjSTATE_QPOS: qpos,
            kinds.mjSTATE_QVEL: qvel,
            kinds.mjSTATE_MOCAP_POS: initial.mocap_pos.reshape(self.nworld, -1),
            kinds.mjSTATE_MOCAP_QUAT: initial.mocap_quat.reshape(self.nworld, -1),
        }
        for kind, values in parts.items():
            states[:, state_columns(model, int(kind))] = values
        return states

    def warnings(self) -> NDArray[np.int64]:
        """Return zeros ``(nworld, nwarning)``: Drake raises an error instead of counting warnings."""
        return np.zeros((self.nworld, len(WARNINGS)), dtype=np.int64)
