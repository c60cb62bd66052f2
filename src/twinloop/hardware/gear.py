"""A twin's model with play in its gears, and where the two sides of every gear are."""

from __future__ import annotations

from dataclasses import dataclass, replace

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.twin import Twin
from twinloop.twin.compiling import compile_model
from twinloop.twin.gear import Gear, add_gears, geared_qpos
from twinloop.twin.quantities.joints import GEAR, MOTOR

_ANY_PLAY = 2e-3  # written per world, see `VirtualArms`


@dataclass(frozen=True, kw_only=True)
class Geared:
    """A twin with play, and where its parts are.

    ``twin`` is the same twin on the geared model: parameters of a joint's drive reach its motor side. Indices are per
    robot joint: ``motor_qpos``, ``link_qpos`` in qpos, ``motor_dof``, ``link_dof`` in qvel, ``torque`` in sensordata
    (what the flank transmits), ``gear`` among the tendons.
    """

    twin: Twin
    motor_qpos: NDArray[np.intp]
    link_qpos: NDArray[np.intp]
    motor_dof: NDArray[np.intp]
    link_dof: NDArray[np.intp]
    torque: NDArray[np.intp]
    gear: NDArray[np.intp]

    def qpos(self, twin: Twin, qpos: NDArray[np.float64]) -> NDArray[np.float64]:
        """Positions ``(nq,)`` of the plain twin as the geared model's, gears in the middle of their play."""
        return geared_qpos(self.twin.model, twin.model, qpos)


def with_gears(twin: Twin) -> Geared:
    """The twin with play at every robot joint, and its servos' commands unlimited.

    A command limit is the servo's business here, and applies before its feedback is added. All dry friction is at the
    motors; `VirtualArms` shares it out.
    """
    spec = twin.mjspec.copy()
    joints = twin.robot.joints
    if twin.spec.robot and twin.spec.robot.gears and twin.spec.robot.gears.stiffness is not None:
        raise InputError(
            f"A virtual robot has rigid gears, {twin.name} has elastic ones. Leave robot.gears.stiffness out."
        )
    missing = [name for name in joints if mujoco.mj_name2id(twin.model, _JOINT, MOTOR.format(name)) < 0]
    add_gears(spec, {name: Gear(backlash=_ANY_PLAY) for name in missing}, bearing=0.0, where=twin.name)
    model = compile_model(spec)
    model.actuator_ctrllimited[:] = 0
    geared = replace(twin, model=model, mjspec=spec)
    return Geared(
        twin=geared,
        motor_qpos=geared.motor_qpos,
        link_qpos=geared.joint_qpos,
        motor_dof=geared.motor_qvel,
        link_dof=geared.joint_qvel,
        torque=np.array([model.sensor(GEAR.format(name)).adr[0] for name in joints]),
        gear=np.array([model.tendon(GEAR.format(name)).id for name in joints]),
    )


_JOINT = mujoco.mjtObj.mjOBJ_JOINT
