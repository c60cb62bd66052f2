"""Move the joints of any robot to a pose: a scripted expert without a tool, for all kinds of commands."""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.simulate import InitialState, Simulation
from twinloop.tasks.waypoints import minimum_jerk
from twinloop.twin import Twin

_VELOCITY_GAIN = 4.0  # 1/s: commanded velocity per distance from the path; our choice
_STIFF_RAD = 0.5  # rad or m of distance at which a torque is at its limit; our choice


class JointExpert:
    """Scripted controller that moves the joints on minimum-jerk paths to a goal pose, and holds it.

    Positions are commanded along the path, velocities in proportion to the distance from it. Torques are those of a
    proportional and derivative law, plus MuJoCo's gravity and Coriolis torques of the nominal model.

    Args:
        twin: the twin.
        initial: initial states of the worlds.
        goal: goal of the n robot joints, ``(n,)`` or ``(nworld, n)`` in rad or m.
        seconds: duration of the motion.
    """

    def __init__(self, twin: Twin, initial: InitialState, goal: NDArray[np.float64], *, seconds: float = 2.0) -> None:
        self._twin, self._model, self._data = twin, twin.model, mujoco.MjData(twin.model)
        self._start = initial.qpos[:, twin.joint_qpos]
        self._goal = np.broadcast_to(np.asarray(goal, dtype=np.float64), self._start.shape)
        self._steps, self._step = max(1.0, seconds * twin.control_hz), 0
        limited = self._model.actuator_ctrllimited.astype(bool)[:, None]
        self._low, self._high = np.where(limited, self._model.actuator_ctrlrange, [-np.inf, np.inf]).T
        law = {"position": self._follow, "velocity": self._approach, "torque": self._push}
        self._law = law[twin.robot.control]
        if twin.robot.control == "torque":
            self._stiffness, self._damping = self._gains()

    def __call__(self, simulation: Simulation) -> NDArray[np.float64]:
        """Return the commands of the next control step, ``(nworld, nu)``."""
        self._step += 1
        fraction = minimum_jerk(np.array(min(self._step / self._steps, 1.0)))
        path = self._start + fraction * (self._goal - self._start)
        return np.clip(self._law(path, simulation), self._low, self._high)

    def _follow(self, path: NDArray[np.float64], simulation: Simulation) -> NDArray[np.float64]:  # noqa: ARG002
        return path

    def _approach(self, path: NDArray[np.float64], simulation: Simulation) -> NDArray[np.float64]:
        return _VELOCITY_GAIN * (path - np.nan_to_num(simulation.qpos[:, self._twin.joint_qpos]))

    def _push(self, path: NDArray[np.float64], simulation: Simulation) -> NDArray[np.float64]:
        qpos, qvel = np.nan_to_num(simulation.qpos), np.nan_to_num(simulation.qvel)
        rows, dofs = self._twin.joint_qpos, self._twin.joint_qvel
        bias = np.stack([self._bias(*state)[dofs] for state in zip(qpos, qvel, strict=True)])
        return bias + self._stiffness * (path - qpos[:, rows]) - self._damping * qvel[:, dofs]

    def _bias(self, qpos: NDArray[np.float64], qvel: NDArray[np.float64]) -> NDArray[np.float64]:
        self._data.qpos[:], self._data.qvel[:] = qpos, qvel
        mujoco.mj_fwdPosition(self._model, self._data)
        mujoco.mj_fwdVelocity(self._model, self._data)
        return self._data.qfrc_bias

    def _gains(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the gains of torques, ``(n,)`` each: the torque limit at 0.5 rad or m, and critical damping."""
        self._data.qpos[:] = self._twin.home()[0]
        mujoco.mj_fwdPosition(self._model, self._data)
        inertia = np.zeros((self._model.nv, self._model.nv))
        mujoco.mj_fullM(self._model, self._data, inertia)
        own = np.diag(inertia)[self._twin.joint_qvel]
        most = np.where(np.isfinite(self._high), np.abs(self._high), 100.0 * own)
        stiffness = np.minimum(most / _STIFF_RAD, own * (0.2 * self._twin.control_hz) ** 2)  # slower than the loop
        return stiffness, 2.0 * np.sqrt(stiffness * own)
