"""Check that every simulated motor reacts with the delay that its parameter requests.

Each world is simulated twice: once with a step command to one joint, once with a constant command. The delay is the
time of the first physics step after which the two motions differ. The check computes these motions itself: one world at
a time, with a command for every physics step from the command pipeline of `simulate`. The simulation backend
``threads`` must compute exactly the same states.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.checks.corners import command_ranges
from twinloop.checks.report import CheckOutcome
from twinloop.core.params import ParamTable
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.simulate.command import CommandPath
from twinloop.simulate.drives import DriveStages, apply_drives
from twinloop.twin import Twin

LEAD_STEPS = 2  # control steps before the command changes
STEP_FRACTION = 0.1  # of the actuator's range
LIMIT_STEPS = 0.999  # a fractional number of steps starts in the step before; an error of a whole step is wrong
_MOVED = 1e-9  # rad/s or m/s: far above rounding, far below what any motor does in one step


@dataclass(frozen=True, kw_only=True)
class _DelayProbe:
    """Experiment in which each world sends a step command to one joint whose actuator has a given delay.

    Attributes:
        joint: Index of the stepped joint, shape ``(nworld,)``.
        delay_s: Delay of that joint's actuator in s, shape ``(nworld,)``; all other delays are nominal.
        params: Parameter values of the worlds.
        command: Commands, shape ``(nworld, nstep, nu)`` for nu actuators.
        nstep: Number of control steps.
    """

    joint: NDArray[np.intp]
    delay_s: NDArray[np.float64]
    params: ParamTable
    command: NDArray[np.float64]
    nstep: int


def check_delay(twin: Twin) -> CheckOutcome:
    """Check that the simulated delay of every joint is within one physics step of the requested delay."""
    name = "realised delay"
    if twin.spec.robot is None:
        return CheckOutcome.skip(name, "the twin has no robot")
    missing = [a for a in twin.robot.actuator_names if f"actuator/{a}/delay" not in twin.params]
    if missing:
        return CheckOutcome.skip(name, f"actuator/{missing[0]}/delay is not a parameter of the twin")
    probe = _make_probe(twin)
    onset, differing = _measure_onset(twin, probe)
    error = np.abs(onset - probe.delay_s) / twin.dt
    worst = int(np.argmax(error))
    joint = twin.robot.joints[probe.joint[worst]]
    detail = (
        f"worst {joint}: requested {1e3 * probe.delay_s[worst]:.2f} ms, realized {1e3 * onset[worst]:.2f} ms; "
        f"{len(onset)} worlds, step {1e3 * twin.dt:.2f} ms"
    )
    if differing:
        return CheckOutcome.fail(
            name, f"the backend's states differ from those of the command path in {differing} worlds; {detail}"
        )
    return CheckOutcome.judge(name, float(error[worst]), LIMIT_STEPS, "physics steps", detail=detail)


def delays_to_try(twin: Twin) -> NDArray[np.float64]:
    """Return the delays to test, in s.

    They are 0, the ends of the default ranges, and whole and fractional numbers of physics steps and control steps.
    """
    params = [twin.params[f"actuator/{name}/delay"] for name in twin.robot.actuator_names]
    bounded = min(param.high for param in params)
    ends = [v for p in params if p.default_range for v in p.absolute(p.default_range, p.op)]
    periods = [0.0, 0.4 * twin.dt, 3 * twin.dt, 7.3 * twin.dt, 1.0 / twin.control_hz, 2.6 / twin.control_hz]
    return np.unique([delay for delay in [*periods, *ends] if 0.0 <= delay <= bounded])


def _make_probe(twin: Twin) -> _DelayProbe:
    delays = delays_to_try(twin)
    njoint = len(twin.robot.joints)
    joint = np.repeat(np.arange(njoint), len(delays))
    delay_s = np.tile(delays, njoint)
    values = {}
    for index, name in enumerate(twin.robot.actuator_names):
        param = twin.params[f"actuator/{name}/delay"]
        values[param.name] = np.where(joint == index, delay_s, param.nominal)
    nstep = LEAD_STEPS + 2 + int(np.ceil(delays.max() * twin.control_hz))
    command = np.tile(twin.home()[1], (len(joint), nstep, 1))
    for world, index in enumerate(joint.tolist()):
        command[world, LEAD_STEPS:, index] += _step_size(twin, index)
    return _DelayProbe(
        joint=joint, delay_s=delay_s, params=twin.table(len(joint), values), command=command, nstep=nstep
    )


def _step_size(twin: Twin, joint: int) -> float:
    """Return the size of the step command: a tenth of the actuator's range, towards the farther limit."""
    actuator = twin.model.actuator(twin.robot.actuator_names[joint]).id
    low, high = command_ranges(twin.model)[:, actuator]
    size = STEP_FRACTION * (high - low)
    return size if twin.home()[1][actuator] + size <= high else -size


def _measure_onset(twin: Twin, probe: _DelayProbe) -> tuple[NDArray[np.float64], int]:
    """Measure the delay from the step command to the first motion, and compare the backend ``threads`` with this check.

    Returns:
        The delay in s per world, shape ``(nworld,)``, infinite if the joint does not move; and the number of worlds in
        which the states of the backend differ from those that the check computes itself, which should be 0.
    """
    initial = InitialState.home(twin, len(probe.joint))
    still = np.broadcast_to(probe.command[:, :1], probe.command.shape).copy()
    moved, held = (_simulate_probe(twin, probe, initial, command) for command in (probe.command, still))
    dof = twin.motor_qvel[probe.joint]
    world = np.arange(len(dof))
    differs = np.abs(moved[world, :, dof] - held[world, :, dof]) > _MOVED
    start = LEAD_STEPS * twin.substeps
    onset = np.where(differs.any(axis=1), (differs.argmax(axis=1) - start) * twin.dt, np.inf)
    backend = rollout(open_backend("threads"), twin, probe.params, initial, probe.command, probe.nstep)
    sampled = moved[:, twin.substeps - 1 :: twin.substeps]
    return onset, int((backend.qvel[:, 1:] != sampled).any(axis=(1, 2)).sum())


def _simulate_probe(
    twin: Twin, probe: _DelayProbe, initial: InitialState, command: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the joint velocities after every physics step, shape ``(nworld, nstep * substeps, nv)``.

    Args:
        twin: Twin to simulate.
        probe: Experiment that measures delays; its parameter values are used.
        initial: Initial state.
        command: Commands at the control rate, shape ``(nworld, nstep, nu)``.
    """
    path = CommandPath(twin, probe.params, initial.command)
    controls = np.concatenate([path.compute_controls(command[:, step]) for step in range(probe.nstep)], axis=1)
    velocity = np.empty((*controls.shape[:2], twin.model.nv))
    fields = twin.fields(probe.params)
    for world in range(len(controls)):
        model = copy.copy(twin.model)
        fields.write_inplace(model, world)
        data = mujoco.MjData(model)
        data.qpos[:], data.qvel[:] = initial.qpos[world], initial.qvel[world]
        data.mocap_pos[:], data.mocap_quat[:] = initial.mocap_pos[world], initial.mocap_quat[world]
        drives = DriveStages(twin, probe.params.take([world]))
        for step, control in enumerate(controls[world]):
            data.ctrl[:] = apply_drives(drives, model, data, control) if drives.active else control
            mujoco.mj_step(model, data)
            velocity[world, step] = data.qvel
    return velocity
