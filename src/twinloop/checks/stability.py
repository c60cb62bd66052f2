"""Check that worlds do not diverge under random commands, and compare the constraint solver with a dense solver.

The sparse and the dense constraint Jacobian have the same numbers in two formats. The solver must therefore compute the
same accelerations with both. A version of MuJoCo with different accelerations has a fault.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.checks.corners import command_ranges, corner_table, find_failing_parameters, make_initial_state
from twinloop.checks.report import CheckOutcome
from twinloop.core.engine_faults import SolverSettings
from twinloop.core.params import ParamTable, SeedPath
from twinloop.core.seeds import uniforms
from twinloop.simulate import InitialState, Trajectories, open_backend, rollout
from twinloop.simulate.protocol import STATE_SPEC, state_columns
from twinloop.twin import Twin
from twinloop.twin.compiling import solver_settings

HOLD_S = 0.5  # every second world holds each random command this long, the others for one control period
_GRACE_S = 2.0  # with one parameter a world may diverge later than with all of them; our choice
_NAMED = 3  # parameters named in the message
TOSS_SPEED = 2.0  # m/s; and four times that in rad/s: the faster of the published cube tosses


def check_stability(twin: Twin, *, seconds: float = 60.0, nworld: int = 8, seed: int = 0) -> CheckOutcome:
    """Count the worlds at corners of the default ranges that diverge under random commands.

    In a corner, every randomized parameter is at the lower or upper end of its range. A twin without actuators starts
    with random velocities instead. If a world diverges, the message names the parameters that cause it.

    Args:
        twin: Twin to check.
        seconds: Simulated time in s.
        nworld: Number of worlds.
        seed: Seed of the corners and the commands.
    """
    nstep = round(seconds * twin.control_hz)
    params = corner_table(twin, nworld, seed=seed)
    result = run_random(twin, params, nstep, commands=np.arange(nworld), seed=seed)
    speed = np.abs(result.qvel).max(initial=0.0)
    broken = np.flatnonzero(~result.valid)
    detail = f"{nworld} worlds at all-low, all-high and mixed corners, {seconds:g} s"
    if len(broken):
        first = int(broken[np.argmin(result.invalid_step[broken])])
        step = int(result.invalid_step[first])
        detail += f"; world {first} diverged at {step / twin.control_hz:.2f} s: {result.reason[first]}. "
        horizon = min(nstep, step + 1 + round(_GRACE_S * twin.control_hz))
        detail += _describe_failing_parameters(twin, params.take([first]), first, horizon, seed)
    return CheckOutcome.judge(
        "finite at the extremes", len(broken), 0, "worlds", detail=detail, metrics={"max_speed": float(speed)}
    )


def _describe_failing_parameters(twin: Twin, corner: ParamTable, sequence: int, nstep: int, seed: int) -> str:
    """Return a sentence with the parameters that make one corner diverge.

    In a corner, every randomized parameter is at the lower or upper end of its default range.

    Args:
        twin: Twin to simulate.
        corner: Parameter values of the corner, one row.
        sequence: Number of the random command sequence of the corner.
        nstep: Number of control steps to simulate.
        seed: Seed of the commands.
    """

    def find_diverged(params: ParamTable) -> NDArray[np.bool_]:
        return ~run_random(twin, params, nstep, commands=np.full(params.nworld, sequence), seed=seed).valid

    failing = find_failing_parameters(twin, corner, find_diverged)
    if not failing:
        return "No range is the cause: the model diverges at nominal values. Raise substeps, or check its integrator."
    named = "; ".join(param.text() for param in failing[:_NAMED])
    more = f" and {len(failing) - _NAMED} more" if len(failing) > _NAMED else ""
    return f"Cause: {named}{more}. Narrow that range in the twin's YAML, or raise substeps."


def run_random(twin: Twin, params: ParamTable, nstep: int, *, commands: NDArray[np.intp], seed: int) -> Trajectories:
    """Simulate worlds under random commands.

    Args:
        twin: Twin to simulate.
        params: Parameter values of the worlds.
        nstep: Number of control steps.
        commands: Number of the random command sequence of each world, shape ``(nworld,)``; worlds with equal numbers
            get equal commands.
        seed: Seed of the commands.
    """
    initial = make_initial_state(twin, params)
    if not twin.model.nu:
        initial = _toss_bodies(twin, initial, commands, seed)
    sequence = _random_commands(twin, commands, nstep, seed)
    seeded = params.with_seeds(SeedPath.of(seed, commands))
    with np.errstate(all="ignore"):  # a diverging world is a result of the check, not an error
        return rollout(open_backend("threads"), twin, seeded, initial, sequence, nstep)


def _random_commands(twin: Twin, sequences: NDArray[np.intp], nstep: int, seed: int) -> NDArray[np.float64]:
    """Return uniform random commands over the range of each actuator, shape ``(nworld, nstep, nu)``.

    A sequence with an odd number holds each command for 0.5 s, all others hold it for one control step.
    """
    nu, (low, high) = twin.model.nu, command_ranges(twin.model)
    numbers = uniforms(seed, "checks/commands", sequences, size=nstep * max(nu, 1))
    numbers = numbers.reshape(len(sequences), nstep, -1)[..., :nu]
    held = np.arange(nstep) // max(1, round(HOLD_S * twin.control_hz))
    slow = sequences % 2 == 1
    numbers[slow] = numbers[slow][:, held]
    return low + (high - low) * numbers


def _toss_bodies(twin: Twin, start: InitialState, sequences: NDArray[np.intp], seed: int) -> InitialState:
    """Return the initial state with random velocities of free bodies: up to 2 m/s and 8 rad/s.

    Args:
        twin: Twin to simulate.
        start: Initial state.
        sequences: Number of the random sequence of each world, shape ``(nworld,)``. It determines the velocities.
        seed: Seed of the velocities.
    """
    size = max(twin.model.nv, 1)
    numbers = 2.0 * uniforms(seed, "checks/toss", sequences, size=size) - 1.0
    scale = np.where(np.arange(twin.model.nv) % 6 < 3, TOSS_SPEED, 4 * TOSS_SPEED)
    velocity = numbers[:, : twin.model.nv] * scale
    velocity[:, 2::6] = np.abs(velocity[:, 2::6])
    return InitialState(
        qpos=start.qpos,
        qvel=velocity,
        mocap_pos=start.mocap_pos,
        mocap_quat=start.mocap_quat,
        command=start.command,
    )


# Rounding separates a correct pair by up to 1.2e-7 (measured: 30 cubes in a heap with elliptic cones; 1e-11 with
# pyramidal ones). The fault of MuJoCo 4.0.0 separated them by 0.4 to 7 in each of 24 branched models.
DIFFERENCE_LIMIT = 1e-4
_COMPARED_S, _COMPARED, _SEED = 2.0, 4, 0  # duration, number of worlds, and seed of commands; our choice
_TURN = 2.0  # rad or m; our choice: enough for the links of a tree to reach each other


def check_solver(twin: Twin) -> CheckOutcome:
    """Check the largest relative difference between the twin's accelerations and those of a dense constraint solver.

    The check passes without a simulation if the twin already has the dense Newton solver. It also passes for the
    iterative solvers (CG, PGS), because their dense and sparse results may differ by the solver's tolerance. If
    twinloop changed the settings because of a known fault of MuJoCo, the difference of the sparse solver is reported,
    too.
    """
    name = "solver agrees with dense"
    settings = solver_settings(twin.model)
    if settings.solver != "Newton" or (settings.jacobian == "dense" and not settings.changed_for):
        return CheckOutcome(name=name, status="pass", detail=f"not affected: {_describe_solver(settings)}")
    nstep = max(1, round(_COMPARED_S * twin.control_hz))
    params = corner_table(twin, _COMPARED, seed=_SEED)
    made = run_random(twin, params, nstep, commands=np.arange(_COMPARED), seed=_SEED)
    lost = np.where(made.valid, nstep + 1, made.invalid_step)  # later states are not a motion of the twin
    states = made.states[np.arange(nstep + 1) < lost[:, None]]
    states = np.concatenate([states, _displace_joints(twin.model, states, _SEED)])
    rows = np.array(list(_acceleration_differences(twin.model, states))).reshape(-1, 2)
    own, sparse = rows.max(axis=0, initial=0.0)
    detail = f"{len(rows)} states with contacts or other constraints; {_describe_solver(settings)}"
    if settings.changed_for:
        wrong = np.mean(rows[:, 1] > DIFFERENCE_LIMIT) if len(rows) else 0.0
        detail += (
            f", changed because of a known fault of MuJoCo {mujoco.mj_versionString()} "
            f"({', '.join(settings.changed_for)}). The sparse solver differs by up to {sparse:.2g}, and by more than "
            f"the limit in {wrong:.1%} of the states"
        )
    return CheckOutcome.judge(name, own, DIFFERENCE_LIMIT, "relative", detail=detail, metrics={"sparse": float(sparse)})


def _displace_joints(model: mujoco.MjModel, states: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Return copies of the states with random displacements of the joints, so that further pairs of bodies touch.

    Free bodies rotate but keep their positions.

    Args:
        model: MuJoCo model.
        states: States in the layout of ``STATE_SPEC``, one per row.
        seed: Seed of the displacements.
    """
    turned = states.copy()
    columns = state_columns(model, int(mujoco.mjtState.mjSTATE_QPOS))
    angles = 2.0 * uniforms(seed, "checks/solver", np.arange(len(states)), size=max(model.nv, 1)) - 1.0
    free = model.jnt_dofadr[model.jnt_type == mujoco.mjtJoint.mjJNT_FREE]
    angles[:, (free[:, None] + np.arange(3)).ravel()] = 0.0
    for state, angle in zip(turned, angles, strict=True):
        qpos = state[columns]
        mujoco.mj_integratePos(model, qpos, _TURN * angle, 1.0)
        state[columns] = qpos
    return turned


def _describe_solver(settings: SolverSettings) -> str:
    return f"{settings.solver} solver, {settings.jacobian} Jacobian, {settings.dof} degrees of freedom"


def _acceleration_differences(model: mujoco.MjModel, states: NDArray[np.float64]) -> Iterator[tuple[float, float]]:
    """Compare accelerations of two solver settings with those of the dense Jacobian in each state with constraints.

    The two settings are the model's own, and the same with the sparse Jacobian.

    Yields:
        The largest difference of an acceleration with the model's own settings, and with the sparse Jacobian, each
        divided by the largest acceleration with the dense Jacobian.
    """
    models = [model, copy.copy(model), copy.copy(model)]
    models[1].opt.jacobian = mujoco.mjtJacobian.mjJAC_SPARSE
    models[2].opt.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
    data = [mujoco.MjData(each) for each in models]
    for state in states:
        try:
            for each, computed in zip(models, data, strict=True):
                mujoco.mj_setState(each, computed, state, STATE_SPEC)
                mujoco.mj_forward(each, computed)
        except mujoco.FatalError:  # too many contacts for the model's memory
            data = [mujoco.MjData(each) for each in models]
            continue
        if not data[2].nefc or not np.isfinite(data[2].qacc).all():
            continue
        own, sparse, dense = (computed.qacc for computed in data)
        size = max(float(np.abs(dense).max()), np.finfo(np.float64).tiny)
        yield float(np.abs(own - dense).max() / size), float(np.abs(sparse - dense).max() / size)
