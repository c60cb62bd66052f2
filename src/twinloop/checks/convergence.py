"""Half the step must change little, and half of that must change less: the twin's rate is fine enough.

The full twin follows slow sines of all commands from its starting pose; contacts are off, because a contact that comes
a step earlier changes a path by more than any integrator does.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.checks.report import Check
from twinloop.twin import Twin

SECONDS = 1.0
CHANGE_LIMIT = 0.02  # rad or m
LEAST_ORDER = 0.5
# Below a tenth of the limit the order decides nothing: dry friction that holds or slips a step earlier makes one of any
# size, and changes that keep their size add up to the limit only after ten halvings.
UNJUDGED = 0.1
NEGLIGIBLE = 1e-7  # changes below this are rounding and have no order
AMPLITUDE = 0.05  # of each actuator's range
FREQUENCY_HZ = 1.0


def check_convergence(twin: Twin) -> Check:
    """The largest change of a joint (or free body) over one second when the step is halved.

    The order comes from halving it again. Fails too where the changes do not shrink (order below one half), unless
    they are so small that they may grow on and still be within the limit.
    """
    name = "half-step convergence"
    paths = [_path(twin, refine) for refine in (1, 2, 4)]
    first, second = (float(np.abs(a - b).max(initial=0.0)) for a, b in pairwise(paths))
    order = np.log2(first / second) if min(first, second) > NEGLIGIBLE else np.inf
    detail = f"order {order:.2f} from steps of {1e3 * twin.dt:.3g} ms, its half and its quarter"
    figures = {"change": first, "change_at_half": second, "order": float(order)}
    check = Check.judge(name, first, CHANGE_LIMIT, "rad or m", detail=detail, figures=figures)
    if order >= LEAST_ORDER:
        return check
    if max(first, second) < UNJUDGED * CHANGE_LIMIT:
        return replace(check, detail=f"{detail}, not judged: the changes are far below the limit")
    return replace(check, status="fail", detail=f"{detail}: it does not converge")


def _path(twin: Twin, refine: int) -> NDArray[np.float64]:
    """Positions at the control rate with each physics step cut into ``refine``, ``(nstep, n)``."""
    model = copy.copy(twin.model)
    model.opt.timestep = twin.dt / refine
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
    data = mujoco.MjData(model)
    data.qpos[:], data.ctrl[:] = twin.home()
    columns = _watched(model)
    commands = _commands(twin)
    path = np.empty((len(commands), len(columns)))
    for row, command in zip(path, commands, strict=True):
        data.ctrl[:] = command
        mujoco.mj_step(model, data, nstep=twin.substeps * refine)
        row[:] = data.qpos[columns]
    return path


def _watched(model: mujoco.MjModel) -> NDArray[np.intp]:
    """Hinges and slides; where there are none, the positions of free bodies."""
    free = model.jnt_type == mujoco.mjtJoint.mjJNT_FREE
    if not free.all():
        return model.jnt_qposadr[~free & (model.jnt_type != mujoco.mjtJoint.mjJNT_BALL)].astype(np.intp)
    return (model.jnt_qposadr[:, None] + np.arange(3)).ravel()


def _commands(twin: Twin) -> NDArray[np.float64]:
    """Sines about the home command, each actuator in a phase of its own, ``(nstep, nu)``."""
    model = twin.model
    low, high = np.where(model.actuator_ctrllimited[:, None].astype(bool), model.actuator_ctrlrange, (-1.0, 1.0)).T
    time = np.arange(round(SECONDS * twin.control_hz))[:, None] / twin.control_hz
    phase = np.arange(model.nu)
    wave = np.sin(2 * np.pi * FREQUENCY_HZ * time + phase) - np.sin(phase)
    return np.clip(twin.home()[1] + AMPLITUDE * (high - low) * wave, low, high)
