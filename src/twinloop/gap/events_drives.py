"""What drives were asked for in a recording, what their gears carried, and what the twin says that they can exert."""

from __future__ import annotations

import copy

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.params import ParamTable
from twinloop.simulate.open_loop import control_series
from twinloop.simulate.replay_logs import ReplayLogs

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


def demands(logs: ReplayLogs, table: ParamTable, position: Array, speed: Array) -> tuple[Array, bool]:
    """Forces that the actuators' law asks for at measured positions, before limits, and whether there are limits.

    Commands arrive as late as the table's delays say. Limits of the supply and of heat are not counted.

    Args:
        logs: the windows.
        table: a row for each window.
        position: of the joints, ``(nwindow, nframe, n)``; n is 0 for a thing without.
        speed: of the same.

    Returns:
        ``(nwindow, nframe, nu)``, NaN where nothing was measured; of a thing without joints the controls themselves.
    """
    model, twin = logs.twin.model, logs.twin
    count = logs.commands.shape[1]
    if not model.nu:
        return np.empty((len(logs), count, 0)), False
    initial = logs.start.states(twin, table, np.zeros((len(logs), logs.nlocal)))
    control = control_series(twin, table, initial, logs.commands)[:, :: twin.substeps]
    limited = bool(model.actuator_forcelimited.any() or model.actuator_ctrllimited.any())
    if not position.shape[-1]:
        return control, limited
    gain, bias, gear = _law(logs, table)
    length = position * gear
    force = gain * control + bias[..., 0] + bias[..., 1] * length
    return force + bias[..., 2] * np.nan_to_num(speed) * gear, limited


def saturated(logs: ReplayLogs, table: ParamTable, demand: Array, part: float) -> Mask:
    """Where a demand reaches ``part`` of what its actuator can exert, of the same shape."""
    model, full = logs.twin.model, np.zeros(demand.shape, dtype=bool)
    ranges = _values(logs, table, "actuator_forcerange")[:, None]
    for column in range(demand.shape[-1]):
        asked = np.nan_to_num(demand[..., column])
        if model.actuator_forcelimited[column]:
            low, high = ranges[..., column, 0], ranges[..., column, 1]
        elif model.actuator_ctrllimited[column] and model.actuator_biastype[column] == mujoco.mjtBias.mjBIAS_NONE:
            gain = float(model.actuator_gainprm[column, 0]) if logs.joints else 1.0
            low, high = (gain * bound for bound in model.actuator_ctrlrange[column])
        else:
            continue
        full[..., column] = ((high > 0) & (asked >= part * high)) | ((low < 0) & (asked <= part * low))
    return full


def loads(logs: ReplayLogs, position: Array, speed: Array, acceleration: Array) -> Array:
    """Torques that the gears carry to the links, ``(nwindow, nframe, n)``: inertia and weight of what hangs on them.

    By inverse dynamics at measured motion with the twin's nominal masses; rotors, friction and contacts are left out,
    because they act on the motor's side of a gear or are not known. NaN where motion is not known.
    """
    if not position.shape[-1]:
        return np.empty(position.shape)
    twin, model = logs.twin, copy.copy(logs.twin.model)
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT | mujoco.mjtDisableBit.mjDSBL_ACTUATION)
    for field in (model.dof_armature, model.dof_damping, model.dof_frictionloss):
        field[:] = 0.0
    data, found = mujoco.MjData(model), np.full(position.shape, np.nan)
    data.qpos[:] = logs.start.rest.qpos[0]
    known = ~np.isnan(position + speed + acceleration).any(axis=-1)
    for window, frame in np.argwhere(known):
        data.qpos[twin.joint_qpos] = position[window, frame]
        data.qvel[twin.joint_qvel], data.qacc[twin.joint_qvel] = speed[window, frame], acceleration[window, frame]
        mujoco.mj_inverse(model, data)
        found[window, frame] = data.qfrc_inverse[twin.joint_qvel]
    return found


def _law(logs: ReplayLogs, table: ParamTable) -> tuple[Array, Array, Array]:
    """Gains ``(nwindow, 1, nu)``, biases ``(nwindow, 1, nu, 3)`` and gears ``(nu,)`` of affine actuators."""
    gain = _values(logs, table, "actuator_gainprm")[:, None, :, 0]
    bias = _values(logs, table, "actuator_biasprm")[:, None, :, :3]
    return gain, bias, logs.twin.model.actuator_gear[:, 0]


def _values(logs: ReplayLogs, table: ParamTable, field: str) -> Array:
    """A field of the model in every window, ``(nwindow, …)``."""
    own = getattr(logs.twin.model, field)
    return np.asarray(logs.twin.fields(table).arrays.get(field, np.broadcast_to(own, (len(logs), *own.shape))))
