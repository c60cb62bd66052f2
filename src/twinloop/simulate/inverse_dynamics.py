"""Compute the joint torques that a motion of a twin requires."""

from __future__ import annotations

import copy

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.params import ParamTable
from twinloop.twin import Twin


class InverseDynamics:
    """Joint torques of a twin in free space by MuJoCo's inverse dynamics, passive forces (damping, friction) included.

    Args:
        twin: a twin without gears: with play between motor and link, torque is not a function of the motion.
        params: parameters of one world; by default the nominal ones.
    """

    def __init__(self, twin: Twin, params: ParamTable | None = None) -> None:
        self._twin, self._model = twin, copy.copy(twin.model)
        if params is not None:
            twin.fields(params).write_inplace(self._model, 0)
        self._model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONTACT | mujoco.mjtDisableBit.mjDSBL_LIMIT)

    @property
    def model(self) -> mujoco.MjModel:
        """The model with its parameters, without contacts and joint stops."""
        return self._model

    def __call__(
        self, position: NDArray[np.float64], velocity: NDArray[np.float64], acceleration: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the torques ``(T, n)`` of motions ``(T, n)``, in N·m or N; everything but the robot rests at home."""
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
