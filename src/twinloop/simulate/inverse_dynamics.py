"""Compute the joint torques that a given motion of a twin requires (inverse dynamics)."""

from __future__ import annotations

import copy

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.params import ParamTable
from twinloop.twin import Twin


class InverseDynamics:
    """Function from joint motions to joint torques, by MuJoCo's inverse dynamics in free space.

    Passive forces (damping, friction) are included; contacts and joint limits are ignored.

    Args:
        twin: a twin without gears, because with play between motor and link the torque is not a function of the
            motion.
        params: parameters of one world; by default the nominal ones.
    """

    def __init__(self, twin: Twin, params: ParamTable | None = None) -> None:
        self._twin, self._model = twin, copy.copy(twin.model)
        if params is not None:
            twin.fields(params).write_inplace(self._model, 0)
        self._model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONTACT | mujoco.mjtDisableBit.mjDSBL_LIMIT)

    @property
    def model(self) -> mujoco.MjModel:
        """Model with the given parameters, in which contacts and joint limits are disabled."""
        return self._model

    def __call__(
        self, position: NDArray[np.float64], velocity: NDArray[np.float64], acceleration: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the joint torques (N·m) or forces (N) of a motion, shape ``(T, n)`` for T times and n joints.

        Everything except the robot rests at its home position. Position, velocity and acceleration have the shape ``(T,
        n)``.
        """
        data = mujoco.MjData(self._model)
        data.qpos[:], _ = self._twin.home()
        columns = self._twin.joint_qvel
        torques = np.empty_like(position)
        for row in range(len(position)):
            data.qpos[self._twin.joint_qpos] = position[row]
            data.qvel[columns], data.qacc[columns] = velocity[row], acceleration[row]
            mujoco.mj_inverse(self._model, data)
            torques[row] = data.qfrc_inverse[columns]
        return torques
