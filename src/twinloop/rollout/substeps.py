"""Recompute the physics steps between the stored states of an episode, bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.core.records import SimEpisode
from twinloop.render.protocol import SceneStates
from twinloop.rollout.episodes import INITIAL_COMMAND
from twinloop.rollout.replay import recorded_params
from twinloop.simulate.command import CommandPath
from twinloop.simulate.disturbance import Pushes
from twinloop.simulate.drives import DriveStages, apply_drives
from twinloop.simulate.protocol import STATE_SPEC, state_columns, state_poses
from twinloop.twin import Twin


@dataclass(frozen=True, kw_only=True)
class StepInputs:
    """Controls ``(substeps, nu)``, wrenches ``(substeps, nbody, 6)`` or None, physics step in s or None for nominal."""

    controls: NDArray[np.float64]
    wrenches: NDArray[np.float64] | None
    timestep: float | None


def step_inputs(
    twin: Twin, params: ParamTable, initial: NDArray[np.float64], commands: NDArray[np.float64]
) -> Iterator[StepInputs]:
    """Yield the inputs of one control step after the other.

    Args:
        params: parameters of the world, one row.
        initial: command before the first step, ``(1, nu)``.
        commands: ``(T, nu)``.
    """
    path, pushes = CommandPath(twin, params, initial), Pushes(twin, params)
    for command in commands:
        step, clock = path.step, path.clock
        controls = path.compute_controls(command[None])[0]
        wrenches = pushes.compute_wrenches(step, clock.began, clock.ratio)
        yield StepInputs(
            controls=np.broadcast_to(controls, (twin.substeps, twin.model.nu)),
            wrenches=None if wrenches is None else wrenches[0],
            # Without timing errors the physics step equals the model's bit for bit.
            timestep=None if clock.steady else float(clock.timestep[0]),
        )


VOLTAGE, TEMPERATURE = "voltage", "temperature_rise"  # recorded from the drives, in addition to MjData's fields
_BIT = mujoco.mjtState
Look: TypeAlias = Callable[[int, mujoco.MjModel, mujoco.MjData], None]


@dataclass(frozen=True, kw_only=True)
class PhysicsSteps:
    """Physics steps of some control steps of one episode.

    ``steps`` ``(n,)`` are the control steps, ``states`` ``(n, substeps + 1, nstate)`` the states at the start of each
    physics step and at the end of the last, which is the start of the next control step. ``records`` are MuJoCo's
    results at the start of each physics step, ``(n, substeps, …)`` by name. ``ends`` are its results at the end, under
    the last controls, ``(n, …)``: all that is known at that time before the next command.
    """

    model: mujoco.MjModel
    steps: NDArray[np.intp]
    states: NDArray[np.float64]
    records: Mapping[str, NDArray[np.float64]]
    ends: Mapping[str, NDArray[np.float64]]

    def part(self, component: int) -> NDArray[np.float64]:
        """Return one component of the states (``mjtState`` bit)."""
        return self.states[..., state_columns(self.model, int(component))]

    @property
    def time(self) -> NDArray[np.float64]:
        """True time since the start of the world, ``(n, substeps + 1)`` in s."""
        return self.part(int(_BIT.mjSTATE_TIME))[..., 0]

    @property
    def qpos(self) -> NDArray[np.float64]:
        """Positions ``(n, substeps + 1, nq)``."""
        return self.part(int(_BIT.mjSTATE_QPOS))

    @property
    def qvel(self) -> NDArray[np.float64]:
        """Velocities ``(n, substeps + 1, nv)``."""
        return self.part(int(_BIT.mjSTATE_QVEL))


class Restepper:
    """Recomputation of the physics steps of one stored episode.

    Every control step starts from its stored state. So only the requested steps cost time, and an episode of another
    engine (``warp``, float32) stays within one control step of its record. Quantities outside the state are recomputed:
    delayed commands and the clock from the commands since the start; bus voltage, winding temperature and load friction
    by stepping once from the start, if the world has them.
    """

    def __init__(
        self,
        twin: Twin,
        params: ParamTable,
        states: ArrayLike,
        commands: ArrayLike,
        initial_command: ArrayLike,
        *,
        model: mujoco.MjModel | None = None,
    ) -> None:
        """Take the record of one world.

        Args:
            params: its parameters, one row, with the seed path if there are random effects.
            states, commands: as stored, ``(T + 1, nstate)`` and ``(T, nu)``.
            initial_command: command before the first step, ``(nu,)``.
            model: a variant of the twin's model with the same state, such as one with more sensors.

        Raises:
            InputError: the shapes do not match each other or the twin.
        """
        self.twin, self.params = twin, params
        self.states = np.ascontiguousarray(states, dtype=np.float64)
        self._commands = np.ascontiguousarray(commands, dtype=np.float64)
        self._check()
        self._initial = np.atleast_2d(np.asarray(initial_command, dtype=np.float64))
        self._model = copy.copy(model or twin.model)
        twin.fields(params, model=model).write_inplace(self._model, 0)
        self._data, self._seen = mujoco.MjData(self._model), mujoco.MjData(self._model)
        self._inputs = list(step_inputs(twin, params, self._initial, self._commands))
        self._drives, self._next = DriveStages(twin, params), 0
        self._poses: dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}

    @classmethod
    def of_episode(cls, twin: Twin, episode: SimEpisode, *, model: mujoco.MjModel | None = None) -> Restepper:
        """Make the recomputation of an episode from its record and provenance.

        Raises:
            InputError: another twin made the episode, or the episode lacks required data.
        """
        provenance = episode.provenance
        if provenance.twin_hash != twin.hash:
            raise InputError(
                f"Episode {episode.number} was made with {provenance.twin} {provenance.twin_hash[:12]}, "
                f"this is {twin.name} {twin.hash[:12]}. Step it with the version of the twin that made it."
            )
        command = provenance.extra.get(INITIAL_COMMAND)
        if command is None:
            raise InputError(
                f"Episode {episode.number} holds no {INITIAL_COMMAND!r} in its provenance, so it cannot be stepped."
            )
        params = recorded_params(twin, provenance)
        return cls(twin, params, episode.states, episode.commands, command, model=model)

    def __len__(self) -> int:
        """Number of control steps."""
        return len(self._commands)

    @property
    def time(self) -> NDArray[np.float64]:
        """Start of each control step and end of the last, ``(T + 1,)`` in s."""
        return self.states[:, 0]

    def run(self, steps: ArrayLike | None = None, *, record: Sequence[str] = ()) -> PhysicsSteps:
        """Return the physics steps of some or all control steps.

        Args:
            steps: numbers of control steps, from 0, in any order.
            record: MjData fields by name (``sensordata``, ``qacc``, ``actuator_force``), and of the drives ``voltage``
                and ``temperature_rise``, ``(nu,)`` in V and K, available if the supply sags or windings warm.

        Raises:
            InputError: the episode does not have the step.
        """
        asked = self._check_steps(steps)
        done = {int(step): self._run(int(step), record) for step in np.unique(asked)}
        rows = [done[int(step)] for step in asked]
        states = np.stack([row[0] for row in rows]) if rows else np.empty((0, self.twin.substeps + 1, self._width))
        found = {name: np.stack([row[1][name] for row in rows]) for name in (rows[0][1] if rows else ())}
        return PhysicsSteps(
            model=self._model,
            steps=asked,
            states=states,
            records={name: values[:, :-1] for name, values in found.items()},
            ends={name: values[:, -1] for name, values in found.items()},
        )

    def read_initial_records(self, record: Sequence[str]) -> dict[str, NDArray[np.float64]]:
        """Return the recorded quantities of `run` in the first state under the initial command."""
        held = next(step_inputs(self.twin, self.params, self._initial, self._initial))
        control, drives = held.controls[0], DriveStages(self.twin, self.params)
        changes = self.twin.stepped_fields(self.params, [0])
        if changes:
            changes.write_inplace(self._model, 0)
        drives.begin()
        mujoco.mj_setState(self._model, self._data, self.states[0], STATE_SPEC)
        self._data.xfrc_applied[:] = 0.0
        self._data.ctrl[:] = apply_drives(drives, self._model, self._data, control) if drives.active else control
        data = self._compute_results(self.states[0])
        values = {name: self._read_field(name, data, drives) for name in record}
        return {name: np.array(value) for name, value in values.items() if value is not None}

    def visit_steps(self, see: Look, steps: ArrayLike | None = None) -> None:
        """Pass MuJoCo's results at the start of control steps to a function: forces, contacts, all of MjData.

        They equal those of the simulation bit for bit if it computed in float64, as in the first physics step of each.

        Args:
            see: function called with the number of the step, the model with its fields at that step, and the data;
                model and data are overwritten for the next step.
            steps: numbers of control steps in ascending order; None for all.

        Raises:
            InputError: the episode does not have the step.
        """
        for step in self._check_steps(steps):
            self._run(int(step), (), see)

    def poses_at(self, times: ArrayLike) -> SceneStates:
        """Return poses at any times ``(k,)`` in s, interpolated between two physics steps.

        Between physics steps velocities are constant, as in MuJoCo's integrators: joints move linearly, free bodies
        rotate about a fixed axis. Before the episode the world is at rest in its first state, after it in its last.
        """
        asked = np.clip(np.atleast_1d(np.asarray(times, dtype=np.float64)), self.time[0], self.time[-1])
        step = np.clip(np.searchsorted(self.time, asked, side="right") - 1, 0, max(len(self) - 1, 0))
        for missing in sorted(set(step.tolist()) - self._poses.keys()):
            states = self._run(missing, ())[0] if len(self) else self.states
            self._poses[missing] = (states[:, 0], state_poses(self._model, states)["qpos"])
        qpos = np.stack(
            [self._interpolate_positions(*self._poses[int(s)], at) for s, at in zip(step, asked, strict=True)]
        )
        held = state_poses(self._model, self.states[step])  # mocap bodies do not move within a control step
        return SceneStates(qpos=qpos, mocap_pos=held["mocap_pos"], mocap_quat=held["mocap_quat"])

    def _interpolate_positions(
        self, time: NDArray[np.float64], qpos: NDArray[np.float64], at: float
    ) -> NDArray[np.float64]:
        """Return positions at a time, interpolated between physics steps."""
        last = int(np.clip(np.searchsorted(time, at, side="right") - 1, 0, max(len(time) - 2, 0)))
        if at == time[last] or len(time) == 1:
            return qpos[last]
        if at == time[last + 1]:
            return qpos[last + 1]
        speed, between, span = np.empty(self._model.nv), qpos[last].copy(), time[last + 1] - time[last]
        mujoco.mj_differentiatePos(self._model, speed, span, qpos[last], qpos[last + 1])
        mujoco.mj_integratePos(self._model, between, speed, at - time[last])
        return between

    @property
    def _width(self) -> int:
        return mujoco.mj_stateSize(self.twin.model, STATE_SPEC)

    def _check(self) -> None:
        count, nu = len(self._commands), self.twin.model.nu
        if self.params.nworld != 1:
            raise InputError(f"{self.params.nworld} rows of parameters for one episode. Give its own row.")
        if self.states.shape != (count + 1, self._width) or self._commands.shape != (count, nu):
            raise InputError(
                f"States of shape {self.states.shape} and commands of shape {self._commands.shape} for "
                f"{self.twin.name}, which has {self._width} numbers a state and {nu} commands. Give T + 1 states "
                "and T commands of one episode."
            )

    def _check_steps(self, steps: ArrayLike | None) -> NDArray[np.intp]:
        """Return checked numbers of control steps."""
        asked = np.arange(len(self)) if steps is None else np.atleast_1d(np.asarray(steps, dtype=np.intp))
        wrong = asked[(asked < 0) | (asked >= len(self))]
        if len(wrong):
            raise InputError(f"Control step {wrong[0]} of an episode of {len(self)}. They are numbered from 0.")
        return asked

    def _run(
        self, step: int, record: Sequence[str], see: Look | None = None
    ) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
        """Run one control step; if the drives have memory, first the earlier steps that were not run yet."""
        remembers = self._drives.active and self._drives.remembers
        if remembers:
            if step < self._next:
                self._drives, self._next = DriveStages(self.twin, self.params), 0
            for before in range(self._next, step):
                self._advance(before, ())
        self._next = step + 1
        return self._advance(step, record, see, only_look=see is not None and not remembers)

    def _advance(
        self, step: int, record: Sequence[str], see: Look | None = None, *, only_look: bool = False
    ) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
        model, data, inputs, drives = self._model, self._data, self._inputs[step], self._drives
        changes = self.twin.stepped_fields(self.params, [step])
        if changes:
            changes.write_inplace(model, 0)
        if inputs.timestep is not None:
            model.opt.timestep = inputs.timestep
        mujoco.mj_setState(model, data, self.states[step], STATE_SPEC)
        drives.step = np.array([step])
        drives.begin()
        states = np.empty((self.twin.substeps + 1, self._width))
        states[0] = self.states[step]
        first = {name: self._read_field(name, data, drives) for name in record}
        rows = {
            name: np.empty((self.twin.substeps + 1, *value.shape)) for name, value in first.items() if value is not None
        }
        for substep, control in enumerate(inputs.controls):
            data.ctrl[:] = apply_drives(drives, model, data, control) if drives.active else control
            if inputs.wrenches is not None:
                data.xfrc_applied[:] = inputs.wrenches[substep]
            if see and substep == 0:
                see(step, model, self._compute_results(states[0]))
            if only_look:
                break
            mujoco.mj_step(model, data)
            mujoco.mj_getState(model, data, states[substep + 1], STATE_SPEC)
            for name, values in rows.items():
                values[substep] = self._read_field(name, data, drives)
        if rows:
            data = self._compute_results(states[-1])
        for name, values in rows.items():
            values[-1] = self._read_field(name, data, drives)
        return states, rows

    def _compute_results(self, state: NDArray[np.float64]) -> mujoco.MjData:
        """Return the results of a state under the present controls and wrenches, in a separate MjData.

        The drives read the forces of the previous physics step in the MjData that is stepped.
        """
        data = self._seen
        mujoco.mj_setState(self._model, data, state, STATE_SPEC)
        data.ctrl[:], data.xfrc_applied[:] = self._data.ctrl, self._data.xfrc_applied
        mujoco.mj_forward(self._model, data)
        return data

    @staticmethod
    def _read_field(name: str, data: mujoco.MjData, drives: DriveStages) -> NDArray[np.float64] | None:
        """Return a field without copying it; for the drives, None if they have no supply."""
        if name not in (VOLTAGE, TEMPERATURE):
            return np.asarray(getattr(data, name))
        supply = drives.supply
        return None if supply is None else np.asarray(supply[name == TEMPERATURE])[0]
