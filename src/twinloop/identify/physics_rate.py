"""Choose the physics rate of a fit's replays, and extrapolate replays to an infinitely short physics step.

MuJoCo's integrators have an error of first order in the physics step h. A fit at one step would put this error into its
parameters: a step of 2 ms shifts delays by about 1 ms. Richardson's extrapolation 2 f(h/2) − f(h) of the readings f
removes the error of first order (Richardson, "The deferred approach to the limit", Phil. Trans. R. Soc. A 226, 1927).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.params import ParamTable
from twinloop.simulate import Backend
from twinloop.simulate.replay import change_physics_rate, change_substeps, replay
from twinloop.simulate.replay_logs import ReplayLogs
from twinloop.twin import Twin

Array = NDArray[np.float64]
# An extrapolation is precise if halving the step changes it by less than this part of the Huber width (root mean
# square). The rest is part of the uncertainty. Our choice.
_PRECISE = 0.1
_LEAST_SUBSTEPS = 4  # per control step: with fewer, delays have ripples of the size of good encoders' noise
_MOST = 4  # times the twin's own number of physics steps


def limit_physics_rate(logs: ReplayLogs, physics_hz: float) -> ReplayLogs:
    """Return the same logs with a twin whose physics runs at about ``physics_hz`` and whose commands arrive gradually.

    It is at least four times the control rate, and a physics step is not longer than the settling time of a joint: the
    error of a longer step is not of first order, so that it cannot be extrapolated. The twin's own physics rate is kept
    if it is lower.
    """
    twin = replace(logs.twin, gradual_commands=True)
    steps = max(_LEAST_SUBSTEPS, math.ceil(np.max(1.0 / settling_times(twin), initial=0.0) / twin.control_hz))
    return replace(logs, twin=change_physics_rate(twin, max(physics_hz, min(steps * twin.control_hz, 1.0 / twin.dt))))


def settling_times(twin: Twin) -> Array:
    """Return the time in which the speed of each robot joint settles, inertia / (damping + kd), in s, ``(n,)``.

    Inertias are those of the home pose. The array is empty for a twin without a robot.
    """
    if twin.spec.robot is None:
        return np.zeros(0)
    table, model = twin.table(1), twin.model
    data, mass = mujoco.MjData(model), np.zeros((model.nv, model.nv))
    data.qpos[:] = twin.home()[0]
    mujoco.mj_forward(model, data)
    mujoco.mj_fullM(model, data, mass)
    damping = twin.column(table, "joint", "damping", 0.0) + twin.column(table, "actuator", "kd", 0.0)
    return np.diag(mass)[twin.joint_qvel] / np.maximum(damping[0], 1e-12)


class StepCorrection(NamedTuple):
    """Change of the readings if the physics step becomes infinitely short, in the channels' units.

    Attributes:
        value: The change, ``(nwindow, nframe, nchannel)``; 0 where a replay diverged.
        error: Estimate of its error, same shape.
    """

    value: Array
    error: Array


def compute_step_correction(
    backend: Backend, logs: ReplayLogs, params: ParamTable, local: Array, width: Array, *, own: int
) -> StepCorrection:
    """Return the change of the readings if the physics step of replays becomes infinitely short.

    The physics step is halved until the extrapolation is precise.

    Args:
        backend: The backend that simulates the replays.
        logs: The windows.
        params: One row of parameters.
        local: Corrections of the windows' initial states, ``(1, nwindow, m)``.
        width: Huber widths, ``(nchannel,)``, in the channels' units.
        own: The twin's own number of physics steps per control step; at most about four times as many are used.
    """

    def read(substeps: int) -> Array:
        twin = change_substeps(logs.twin, substeps)
        return replay(backend, replace(logs, twin=twin), params, local)[0]

    substeps = logs.twin.substeps
    start, now = read(substeps), read(2 * substeps)
    extrapolated = 2.0 * now - start
    while True:
        substeps *= 2
        finer = read(2 * substeps)
        better = 2.0 * finer - now
        error = _finite(better - extrapolated)
        typical = np.sqrt(np.mean(np.minimum(np.abs(error) / width, 1.0) ** 2, axis=(0, 1)))
        now, extrapolated = finer, better
        if np.max(typical) < _PRECISE or 4 * substeps > _MOST * own:
            return StepCorrection(value=_finite(extrapolated - start), error=error)


def _finite(values: Array) -> Array:
    return np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
