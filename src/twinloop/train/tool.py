"""Compute where a twin's tool is, from positions of the joints or from states."""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.simulate.protocol import state_poses
from twinloop.twin import Twin


class ToolKinematics:
    """Forward kinematics of the tool centre point of a twin, with its nominal geometry.

    Raises:
        InputError: If the twin has no tool centre point.
    """

    def __init__(self, twin: Twin) -> None:
        if twin.robot.tcp is None:
            raise InputError(f"The twin {twin.name} has no tool centre point. Add `tcp:` to the robot in its YAML.")
        self.twin, self.data = twin, mujoco.MjData(twin.model)
        self._site, self._home = twin.model.site(twin.robot.tcp).id, twin.home()[0]

    def pose(self, joints: NDArray[np.float64]) -> mujoco.MjData:
        """Return the data of the model at home with the joints at given positions, ``(n,)`` in rad or m."""
        qpos = self._home.copy()
        qpos[self.twin.joint_qpos] = joints
        self.data.qpos[:] = self.twin.align_motors(qpos)
        mujoco.mj_kinematics(self.twin.model, self.data)
        return self.data

    def locate(self, joints: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return positions of the tool in the world in m, ``(m, 3)``, for positions of the joints ``(m, n)``."""
        return np.array([self.pose(row).site_xpos[self._site].copy() for row in joints]).reshape(-1, 3)

    def locate_in_states(self, states: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return positions of the tool in the world in m, ``(m, 3)``, in states ``(m, nstate)``."""
        found = np.zeros((len(states), 3))
        for row, qpos in enumerate(state_poses(self.twin.model, states)["qpos"]):
            self.data.qpos[:] = qpos
            mujoco.mj_kinematics(self.twin.model, self.data)
            found[row] = self.data.site_xpos[self._site]
        return found
