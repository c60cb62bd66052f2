"""Compute the states of actuators with a memory (filter, integrator, slew limit) at the start of a world."""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.params import ParamTable
from twinloop.simulate.command import compute_targets
from twinloop.simulate.protocol import InitialState
from twinloop.twin import Twin

_DYN = mujoco.mjtDyn


def start_activations(twin: Twin, params: ParamTable, initial: InitialState) -> NDArray[np.float64]:
    """Return the activations of all worlds at their start, shape ``(nworld, na)``.

    They are those of ``initial``, if it has any. Otherwise the actuators have held ``initial.command`` for long: a
    filter and a limited setpoint have reached the command, and the integrator of a velocity servo has the joint's
    position. All other activations, such as the integral of a PID controller, are 0.

    Args:
        twin: the twin.
        params: parameters, one row per world.
        initial: initial states.
    """
    model = twin.model
    if initial.act.shape[1]:
        return initial.act
    act = np.zeros((initial.nworld, model.na))
    if not model.na:
        return act
    targets = compute_targets(twin, params, initial.command)
    for actuator in np.flatnonzero(model.actuator_actnum):
        kind, first = int(model.actuator_dyntype[actuator]), int(model.actuator_actadr[actuator])
        filtered = kind in (_DYN.mjDYN_FILTER, _DYN.mjDYN_FILTEREXACT)
        if filtered or (kind == _DYN.mjDYN_PID and model.actuator_dynprm[actuator, 1] > 0):
            act[:, first] = targets[:, model.actuator_ctrladr[actuator]]
        elif kind == _DYN.mjDYN_INTEGRATOR and _is_joint_servo(model, actuator):
            joint = model.actuator_trnid[actuator, 0]
            act[:, first] = model.actuator_gear[actuator, 0] * initial.qpos[:, model.jnt_qposadr[joint]]
    return act


def _is_joint_servo(model: mujoco.MjModel, actuator: np.intp) -> bool:
    """Return whether an actuator turns a joint towards its activation."""
    servo = model.actuator_gainprm[actuator, 0] == -model.actuator_biasprm[actuator, 1]
    return bool(servo and model.actuator_trntype[actuator] == mujoco.mjtTrn.mjTRN_JOINT)
