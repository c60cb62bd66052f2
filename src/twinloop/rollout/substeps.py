"""Recompute the physics steps between the stored states of an episode, bit for bit.

Stored states exist only once per control step. Sensors, cameras and force tables need the physics steps between them.
"""

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
from twinloop.simulate.residual import Residuals
from twinloop.twin import Twin

_BIT = mujoco.mjtState


@dataclass(frozen=True, kw_only=True)
class StepInputs:
    """Inputs of the physics steps of one control step.

    Attributes:
        controls: actuator controls, ``(substeps, nu)``.
        wrenches: external force in N and torque in N·m on each body, at its centre of mass in world axes
            (``xfrc_applied``), ``(substeps, nbody, 6)``; None if there are none.
        timestep: physics step in s; None for the model's.
    """

    controls: NDArray[np.float64]
    wrenches: NDArray[np.float64] | None
    timestep: float | None


def step_inputs(
    twin: Twin,
    params: ParamTable,
    initial: NDArray[np.float64],
    commands: NDArray[np.float64],
    states: NDArray[np.float64],
) -> Iterator[StepInputs]:
    """Yield the inputs of the physics steps, one control step after the other.

    Args:
        twin: twin of the world.
        params: parameters of the world, one row.
        initial: command that was in effect before the first step, ``(1, nu)``.
        commands: commands of the T control steps, ``(T, nu)``.
        states: states at the start of the control steps, at least T, ``(T, nstate)``.
    """
    path, pushes, residuals = CommandPath(twin, params, initial), Pushes(twin, params), Residuals(twin, params)
    qpos, qvel = (states[:, state_columns(twin.model, int(part))] for part in (_BIT.mjSTATE_QPOS, _BIT.mjSTATE_QVEL))
    for row, command in enumerate(commands):
        step, clock = path.step, path.clock
        controls = path.compute_controls(command[None])
        if residuals.active:
            controls = residuals.add(controls, qpos[row, None], qvel[row, None])
        wrenches = pushes.compute_wrenches(step, clock.began, clock.ratio)
        yield StepInputs(
            controls=np.broadcast_to(controls[0], (twin.substeps, twin.model.nu)),
            wrenches=None if wrenches is None else wrenches[0],
            # Without timing errors the physics step equals the model's bit for bit.
            timestep=None if clock.steady else float(clock.timestep[0]),
        )


VOLTAGE, TEMPERATURE = "voltage", "temperature_rise"  # recorded from the drives, in addition to MjData's fields
VisitStep: TypeAlias = Callable[[int, mujoco.MjModel, mujoco.MjData], None]


@dataclass(frozen=True, kw_only=True)
class PhysicsSteps:
    """Physics steps of n control steps of one episode.

    Attributes:
        model: model with the fields of the world.
        steps: numbers of the control steps, ``(n,)``.
        states: states at the start of each physics step, ``(n, substeps + 1, nstate)``. The last one is the state at
            the end of the control step.
        records: recorded MuJoCo results at the start of each physics step by name, ``(n, substeps, …)``.
        ends: recorded MuJoCo results at the end of each control step by name, ``(n, …)``. They are computed with the
            last controls of the step, because the next command is not known at that time.
    """

    model: mujoco.MjModel
    steps: NDArray[np.intp]
    states: NDArray[np.float64]
    records: Mapping[str, NDArray[np.float64]]
    ends: Mapping[str, NDArray[np.float64]]

    def state_component(self, component: int) -> NDArray[np.float64]:
        """Return one component of the states in n control steps, ``(n, substeps + 1, …)``.

        Args:
            component: bit of ``mjtState`` that selects the component.
        """
        return self.states[..., state_columns(self.model, int(component))]

    @property
    def time(self) -> NDArray[np.float64]:
        """True time since the start of the world, ``(n, substeps + 1)`` in s."""
        return self.state_component(int(_BIT.mjSTATE_TIME))[..., 0]

    @property
    def qpos(self) -> NDArray[np.float64]:
        """Generalized positions, ``(n, substeps + 1, nq)``."""
        return self.state_component(int(_BIT.mjSTATE_QPOS))

    @property
    def qvel(self) -> NDArray[np.float64]:
        """Generalized velocities, ``(n, substeps + 1, nv)``."""
        return self.state_component(int(_BIT.mjSTATE_QVEL))


class PhysicsStepper:
    """Recomputation of the physics steps of one stored episode, of which only the states at control steps are stored.

    Every control step starts from its stored state, so only the requested steps cost time. For an episode of another
    engine (``warp``, float32), the deviation from the record does not accumulate beyond one control step.

    Some quantities are not in the state and depend on the past. Delayed commands and the control clock are computed
    from the commands since the start of the episode. Bus voltage, winding temperature and load friction, if the world
    has them, are computed by simulating all earlier steps once.
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
        """Prepare to recompute the physics steps between the stored states of one world.

        Args:
            twin: twin of the world.
            params: parameters of the world, one row; for random effects they also need the world's seeds.
            states: stored states, ``(T + 1, nstate)``.
            commands: stored commands in SI units, ``(T, nu)``.
            initial_command: command before the first step, ``(nu,)``.
            model: variant of the twin's model with the same state, such as one with more sensors; None for the twin's
                model.

        Raises:
            InputError: If the shapes do not match each other or the twin.
        """
        self.twin, self.params = twin, params
        self.states = np.ascontiguousarray(states, dtype=np.float64)
        self._commands = np.ascontiguousarray(commands, dtype=np.float64)
        self._check()
        self._initial = np.atleast_2d(np.asarray(initial_command, dtype=np.float64))
        self._model = copy.copy(model or twin.model)
        twin.fields(params, model=model).write_inplace(self._model, 0)
        self._data, self._seen = mujoco.MjData(self._model), mujoco.MjData(self._model)
        self._inputs = list(step_inputs(twin, params, self._initial, self._commands, self.states))
        self._drives, self._next = DriveStages(twin, params), 0
        self._poses: dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}

    @classmethod
    def of_episode(cls, twin: Twin, episode: SimEpisode, *, model: mujoco.MjModel | None = None) -> PhysicsStepper:
        """Prepare the recomputation of an episode from its record and provenance.

        Args:
            twin: twin version that made the episode.
            episode: record of the episode.
            model: variant of the twin's model with the same state; None for the twin's model.

        Raises:
            InputError: If another twin made the episode, or the episode lacks required data.
        """
        provenance = episode.provenance
        if provenance.twin_hash != twin.hash:
            raise InputError(
                f"Episode {episode.number} was made with {provenance.twin} {provenance.twin_hash[:12]}, "
                f"this is {twin.name} {twin.hash[:12]}. Use the version of the twin that made it."
            )
        command = provenance.extra.get(INITIAL_COMMAND)
        if command is None:
            raise InputError(
                f"Episode {episode.number} has no {INITIAL_COMMAND!r} in its provenance, so its physics steps "
                "cannot be recomputed."
            )
        params = recorded_params(twin, provenance)
        return cls(twin, params, episode.states, episode.commands, command, model=model)

    def __len__(self) -> int:
        """Return the number of control steps."""
        return len(self._commands)

    @property
    def time(self) -> NDArray[np.float64]:
        """Start time of each control step and end time of the last one, ``(T + 1,)`` in s."""
        return self.states[:, 0]

    def run(self, steps: ArrayLike | None = None, *, record: Sequence[str] = ()) -> PhysicsSteps:
        """Recompute the physics steps of some or all control steps.

        Args:
            steps: numbers of control steps from 0, in any order; None for all.
            record: MjData fields to record by name (``sensordata``, ``qacc``, ``actuator_force``). Also ``voltage`` (V)
                and ``temperature_rise`` (K) of the drives, ``(nu,)`` each, which are left out if the world has neither
                voltage drop of the supply nor heating of windings.

        Raises:
            InputError: If the episode has no such step.
        """
        requested = self._check_steps(steps)
        done = {int(step): self._run(int(step), record) for step in np.unique(requested)}
        rows = [done[int(step)] for step in requested]
        states = np.stack([row[0] for row in rows]) if rows else np.empty((0, self.twin.substeps + 1, self._width))
        found = {name: np.stack([row[1][name] for row in rows]) for name in (rows[0][1] if rows else ())}
        return PhysicsSteps(
            model=self._model,
            steps=requested,
            states=states,
            records={name: values[:, :-1] for name, values in found.items()},
            ends={name: values[:, -1] for name, values in found.items()},
        )

    def read_initial_records(self, record: Sequence[str]) -> dict[str, NDArray[np.float64]]:
        """Return the quantities that `run` records, for the first state under the initial command, by name."""
        held = next(step_inputs(self.twin, self.params, self._initial, self._initial, self.states))
        control, drives = held.controls[0], DriveStages(self.twin, self.params)
        changes = self.twin.stepped_fields(self.params, [0])
        if changes:
            changes.write_inplace(self._model, 0)
        drives.begin_step()
        mujoco.mj_setState(self._model, self._data, self.states[0], STATE_SPEC)
        self._data.xfrc_applied[:] = 0.0
        self._data.ctrl[:] = apply_drives(drives, self._model, self._data, control) if drives.active else control
        data = self._compute_results(self.states[0])
        values = {name: self._read_field(name, data, drives) for name in record}
        return {name: np.array(value) for name, value in values.items() if value is not None}

    def visit_steps(self, visit: VisitStep, steps: ArrayLike | None = None) -> None:
        """Call a function with all of MuJoCo's results (forces, contacts, …) at the start of control steps.

        If the episode was simulated in float64, the results equal those of the first physics step in the simulation bit
        for bit.

        Args:
            visit: callback with three arguments: number of the control step, the model with its fields at that step,
                and the data. The next step overwrites model and data.
            steps: numbers of control steps in ascending order; None for all.

        Raises:
            InputError: If the episode has no such step.
        """
        for step in self._check_steps(steps):
            self._run(int(step), (), visit)

    def poses_at(self, times: ArrayLike) -> SceneStates:
        """Return the poses of the world at given times, interpolated between physics steps.

        Velocities are constant between physics steps, as in MuJoCo's integrators: joints move linearly, and free bodies
        rotate about a fixed axis. Before the episode the world is in its first state, after it in its last state.

        Args:
            times: times since the start of the world in s, ``(k,)``.
        """
        clipped = np.clip(np.atleast_1d(np.asarray(times, dtype=np.float64)), self.time[0], self.time[-1])
        step = np.clip(np.searchsorted(self.time, clipped, side="right") - 1, 0, max(len(self) - 1, 0))
        for missing in sorted(set(step.tolist()) - self._poses.keys()):
            states = self._run(missing, ())[0] if len(self) else self.states
            self._poses[missing] = (states[:, 0], state_poses(self._model, states)["qpos"])
        qpos = np.stack(
            [self._interpolate_positions(*self._poses[int(s)], at) for s, at in zip(step, clipped, strict=True)]
        )
        held = state_poses(self._model, self.states[step])  # mocap bodies do not move within a control step
        return SceneStates(qpos=qpos, mocap_pos=held["mocap_pos"], mocap_quat=held["mocap_quat"])

    def _interpolate_positions(
        self, time: NDArray[np.float64], qpos: NDArray[np.float64], at: float
    ) -> NDArray[np.float64]:
        """Return the generalized positions ``(nq,)`` at one time of a control step.

        Args:
            time: times of its physics steps in s, ``(substeps + 1,)``.
            qpos: positions at these times, ``(substeps + 1, nq)``.
            at: the time in s.
        """
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
            raise InputError(f"{self.params.nworld} rows of parameters for one episode. Give one row.")
        if self.states.shape != (count + 1, self._width) or self._commands.shape != (count, nu):
            raise InputError(
                f"States of shape {self.states.shape} and commands of shape {self._commands.shape} for "
                f"{self.twin.name}, which has {self._width} numbers a state and {nu} commands. Give T + 1 states "
                "and T commands of one episode."
            )

    def _check_steps(self, steps: ArrayLike | None) -> NDArray[np.intp]:
        """Return the numbers of control steps as an array; None means all steps.

        Raises:
            InputError: If the episode has no such step.
        """
        requested = np.arange(len(self)) if steps is None else np.atleast_1d(np.asarray(steps, dtype=np.intp))
        wrong = requested[(requested < 0) | (requested >= len(self))]
        if len(wrong):
            raise InputError(
                f"The episode has no control step {wrong[0]}. Its {len(self)} control steps are numbered from 0."
            )
        return requested

    def _run(
        self, step: int, record: Sequence[str], visit: VisitStep | None = None
    ) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
        """Run one control step; return its states ``(substeps + 1, nstate)`` and its records by name.

        If the drives have memory (temperature, voltage), earlier control steps that were not run yet are run first.
        """
        has_memory = self._drives.active and self._drives.has_memory
        if has_memory:
            if step < self._next:
                self._drives, self._next = DriveStages(self.twin, self.params), 0
            for before in range(self._next, step):
                self._advance(before, ())
        self._next = step + 1
        return self._advance(step, record, visit, only_visit=visit is not None and not has_memory)

    def _advance(
        self, step: int, record: Sequence[str], visit: VisitStep | None = None, *, only_visit: bool = False
    ) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
        model, data, inputs, drives = self._model, self._data, self._inputs[step], self._drives
        changes = self.twin.stepped_fields(self.params, [step])
        if changes:
            changes.write_inplace(model, 0)
        if inputs.timestep is not None:
            model.opt.timestep = inputs.timestep
        mujoco.mj_setState(model, data, self.states[step], STATE_SPEC)
        drives.step = np.array([step])
        drives.begin_step()
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
            if visit and substep == 0:
                visit(step, model, self._compute_results(states[0]))
            if only_visit:
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
        """Return MuJoCo's results for a state under the current controls and wrenches, in a separate MjData.

        A separate MjData is needed because the drives read the forces of the previous physics step from the MjData that
        is stepped.
        """
        data = self._seen
        mujoco.mj_setState(self._model, data, state, STATE_SPEC)
        data.ctrl[:], data.xfrc_applied[:] = self._data.ctrl, self._data.xfrc_applied
        mujoco.mj_forward(self._model, data)
        return data

    @staticmethod
    def _read_field(name: str, data: mujoco.MjData, drives: DriveStages) -> NDArray[np.float64] | None:
        """Return a recorded quantity as a view of the array in which it is stored.

        None for bus voltage and winding temperature, if the world has no model of the voltage supply.
        """
        if name not in (VOLTAGE, TEMPERATURE):
            return np.asarray(getattr(data, name))
        supply = drives.supply
        return None if supply is None else np.asarray(supply[name == TEMPERATURE])[0]
