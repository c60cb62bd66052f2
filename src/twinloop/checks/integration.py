"""Check the numerical integrator: convergence with smaller steps, and conservation of energy.

For convergence, the complete twin follows slow sine commands from its home pose. Contacts are off, because a contact
that occurs one step earlier changes the motion more than any integrator does.

For energy, the arm falls freely from near its home pose. Gravity is on. Contacts, joint limits, equality constraints
and actuators are off. Gravity compensation is off, too, because it acts like a controller, which may add energy. If the
twin has an arm, free bodies get almost no mass. Otherwise the energy of their fall would be so large that an error of
the arm's energy could not be seen.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.checks.corners import command_ranges
from twinloop.checks.report import CheckOutcome
from twinloop.twin import Twin

CONVERGENCE_S = 1.0
CHANGE_LIMIT = 0.02  # rad or m
MIN_ORDER = 0.5
# Below a tenth of the limit the order is not used: dry friction that holds or slips a step earlier gives any order,
# and changes of constant size add up to the limit only after ten halvings.
UNJUDGED = 0.1
NEGLIGIBLE = 1e-7  # changes below this are rounding and have no order
AMPLITUDE = 0.05  # of each actuator's range
FREQUENCY_HZ = 1.0


def check_convergence(twin: Twin) -> CheckOutcome:
    """Check the largest change of a joint position (or free body position) over 1 s when the physics step is halved.

    The order of convergence is computed from a second halving. The check also fails if the order is below one half,
    because the changes then do not decrease. The order is ignored if both changes are below a tenth of the limit.
    """
    name = "half-step convergence"
    paths = [_simulate_path(twin, refine) for refine in (1, 2, 4)]
    first, second = (float(np.abs(a - b).max(initial=0.0)) for a, b in pairwise(paths))
    order = np.log2(first / second) if min(first, second) > NEGLIGIBLE else np.inf
    detail = f"order {order:.2f} from steps of {1e3 * twin.dt:.3g} ms, its half and its quarter"
    metrics = {"change": first, "change_at_half": second, "order": float(order)}
    check = CheckOutcome.judge(name, first, CHANGE_LIMIT, "rad or m", detail=detail, metrics=metrics)
    if order >= MIN_ORDER:
        return check
    if max(first, second) < UNJUDGED * CHANGE_LIMIT:
        return replace(check, detail=f"{detail}, not judged: the changes are far below the limit")
    return replace(check, status="fail", detail=f"{detail}: it does not converge")


def _simulate_path(twin: Twin, refine: int) -> NDArray[np.float64]:
    """Return the positions of hinge and slide joints at each control step, shape ``(nstep, n)``, in rad or m.

    A model without them gives the positions of free bodies, in m, and the quaternions of ball joints.

    Args:
        twin: Twin to simulate.
        refine: Number by which each physics step is divided.
    """
    model = copy.copy(twin.model)
    model.opt.timestep = twin.dt / refine
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
    data = mujoco.MjData(model)
    data.qpos[:], data.ctrl[:] = twin.home()
    columns, commands = _find_position_columns(model), _sine_commands(twin)
    path = np.empty((len(commands), len(columns)))
    for row, command in zip(path, commands, strict=True):
        data.ctrl[:] = command
        mujoco.mj_step(model, data, nstep=twin.substeps * refine)
        row[:] = data.qpos[columns]
    return path


def _find_position_columns(model: mujoco.MjModel) -> NDArray[np.intp]:
    """Return the ``qpos`` indices of hinge and slide joints.

    A model without them gives those of the positions of free bodies and of the quaternions of ball joints.
    """
    free, ball = (model.jnt_type == kind for kind in (mujoco.mjtJoint.mjJNT_FREE, mujoco.mjtJoint.mjJNT_BALL))
    if not (free | ball).all():
        return model.jnt_qposadr[~(free | ball)].astype(np.intp)
    width = np.where(free, 3, 4)
    return np.concatenate([address + np.arange(n) for address, n in zip(model.jnt_qposadr, width, strict=True)])


def _sine_commands(twin: Twin) -> NDArray[np.float64]:
    """Return sine commands with another phase for each actuator, shape ``(nstep, nu)``.

    They begin at the home command, and have a frequency of 1 Hz and an amplitude of 5 % of each actuator's range. They
    have the unit of MuJoCo's ``ctrl`` and are clipped to the range.
    """
    low, high = command_ranges(twin.model)
    time = np.arange(round(CONVERGENCE_S * twin.control_hz))[:, None] / twin.control_hz
    phase = np.arange(twin.model.nu)
    wave = np.sin(2 * np.pi * FREQUENCY_HZ * time + phase) - np.sin(phase)
    return np.clip(twin.home()[1] + AMPLITUDE * (high - low) * wave, low, high)


# One fall. Later, an arm with light links moves chaotically. Over 2 s the drift of I2RT's YAM is 8 to 97 % for steps of
# 0.5 to 2 ms, without an order; over 1 s it is proportional to the step.
ENERGY_S = 1.0
DRIFT_LIMIT = 0.05  # a first-order integrator at 2 ms keeps a falling seven-joint arm to about 0.02
GAIN_LIMIT = 0.005
TURN = 1.0  # rad by which every other hinge is displaced from home, so that an arm that is stable there falls too
SPIN = 4.0  # rad/s given to free bodies
_OFF = (
    mujoco.mjtDisableBit.mjDSBL_CONTACT
    | mujoco.mjtDisableBit.mjDSBL_LIMIT
    | mujoco.mjtDisableBit.mjDSBL_ACTUATION
    | mujoco.mjtDisableBit.mjDSBL_EQUALITY
)


def check_energy_drift(twin: Twin) -> CheckOutcome:
    """Check the largest change of the total energy in undamped free fall, relative to the largest kinetic energy."""
    if not twin.model.nv:
        return CheckOutcome.skip("energy drift", "the twin has no moving parts")
    total, kinetic = _energies(twin, _make_conservative_model(twin))
    drift = _relative_to_kinetic(np.abs(total - total[0]), kinetic)
    detail = f"free fall of {ENERGY_S:g} s without damping, friction or contact; step {1e3 * twin.dt:.3g} ms"
    return CheckOutcome.judge("energy drift", drift, DRIFT_LIMIT, "of peak kinetic", detail=detail)


def check_energy_gain(twin: Twin) -> CheckOutcome:
    """Check that damping and friction do not add energy in free fall, relative to the largest kinetic energy.

    The integrator alone also changes the energy. This change is measured in a fall without damping and friction, and is
    subtracted from the gain. The limit is 0.5 % (`GAIN_LIMIT`).
    """
    if not twin.model.nv:
        return CheckOutcome.skip("no energy from damping", "the twin has no moving parts")
    energies = (_energies(twin, model) for model in (_make_falling_model(twin), _make_conservative_model(twin)))
    own, integrator = (_relative_to_kinetic(total - total[0], kinetic) for total, kinetic in energies)
    gain = max(own - integrator, 0.0) if np.isfinite(integrator) else own
    detail = f"free fall of {ENERGY_S:g} s with the twin's damping and friction"
    return CheckOutcome.judge("no energy from damping", gain, GAIN_LIMIT, "of peak kinetic", detail=detail)


def _make_conservative_model(twin: Twin) -> mujoco.MjModel:
    model = _make_falling_model(twin)
    model.dof_damping[:] = 0.0
    model.dof_dampingpoly[:] = 0.0
    model.dof_frictionloss[:] = 0.0
    return model


def _make_falling_model(twin: Twin) -> mujoco.MjModel:
    model = copy.copy(twin.model)
    model.opt.disableflags |= int(_OFF)
    model.opt.enableflags |= int(mujoco.mjtEnableBit.mjENBL_ENERGY)
    model.body_gravcomp[:] = 0.0
    _lock_gears(twin, model)
    free = _free_bodies(model)
    if len(free) < model.njnt:
        model.body_mass[free] = 1e-9
        model.body_inertia[free] = 1e-12
        mujoco.mj_setConst(model, mujoco.MjData(model))
    return model


def _lock_gears(twin: Twin, model: mujoco.MjModel) -> None:
    """Add inertia, damping and friction of the motors to their links, in place in ``model``.

    Motor and link are separate joints, and the backlash of the gear is a limit of their difference. Limits are off in
    the energy checks, so motor and link would otherwise move independently.
    """
    if twin.spec.robot is None or twin.spec.robot.gears is None:
        return
    for field in (model.dof_armature, model.dof_damping, model.dof_frictionloss):
        field[twin.joint_qvel] += field[twin.motor_qvel]
    model.tendon_damping[:], model.tendon_stiffness[:] = 0.0, 0.0
    mujoco.mj_setConst(model, mujoco.MjData(model))


def _free_bodies(model: mujoco.MjModel) -> NDArray[np.intp]:
    """Return the indices of the bodies that have a free joint and no child bodies."""
    free = model.jnt_bodyid[model.jnt_type == mujoco.mjtJoint.mjJNT_FREE].astype(np.intp)
    return free[~np.isin(free, model.body_parentid)]


def _energies(twin: Twin, model: mujoco.MjModel) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Simulate free fall; return total and kinetic energy per physics step in J, shape ``(nstep,)`` each.

    Values that are not finite are replaced by infinity.
    """
    data = mujoco.MjData(model)
    data.qpos[:] = twin.home()[0]
    hinges = np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_HINGE)
    data.qpos[model.jnt_qposadr[hinges[::2]]] += TURN
    for joint in np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE):
        data.qvel[model.jnt_dofadr[joint] + 3] = SPIN
    energy = np.empty((round(ENERGY_S / twin.dt), 2))
    for row in energy:
        mujoco.mj_step(model, data)
        row[:] = data.energy
    energy[~np.isfinite(energy)] = np.inf
    with np.errstate(invalid="ignore"):
        return energy.sum(axis=1), energy[:, 1]


def _relative_to_kinetic(energy: NDArray[np.float64], kinetic: NDArray[np.float64]) -> float:
    """Return the largest energy divided by the largest kinetic energy; infinite if the simulation diverged."""
    return float(energy.max()) / max(float(kinetic.max()), 1e-12) if np.isfinite(kinetic).all() else np.inf
