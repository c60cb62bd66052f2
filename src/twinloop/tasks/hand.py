"""What a gripper looks like from its tool site: which way it approaches and opens, and how far its tips reach."""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.twin import Twin

_DOWN = np.array([0.0, 0.0, -1.0])
_POINTS_DOWN = 0.7  # cosine: the home pose must point the hand within 45 deg of straight down


@dataclass(frozen=True, kw_only=True)
class Hand:
    """A gripper that can grasp from above.

    ``approach`` and ``opening`` are (axis index, sign) in the tool site's frame: the way it reaches, and the way its
    driven finger moves to open. ``tip`` is how far the fingers reach beyond the site along the approach, in m.
    ``one_sided`` says that the other finger is fixed.
    """

    approach: tuple[int, float]
    opening: tuple[int, float]
    tip: float
    one_sided: bool
    joint_qpos: int
    actuator: int
    open: float
    closed: float

    @classmethod
    def of(cls, twin: Twin) -> Hand:
        """Read the hand of a twin's robot from its model.

        Raises:
            InputError: the robot names no tool site or gripper, or its home pose does not point the hand down.
        """
        robot, model = twin.robot, twin.model
        if robot.tcp is None or robot.gripper is None:
            raise InputError(
                f"The twin {twin.name} names no tool site or no gripper. Add `robot.tcp` and `robot.gripper`."
            )
        joint = model.joint(robot.gripper.joint)
        data = mujoco.MjData(model)
        data.qpos[:], _ = twin.home()
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        frame = data.site(robot.tcp).xmat.reshape(3, 3).copy()
        approach = _nearest_axis(_DOWN @ frame)
        if approach[1] * (_DOWN @ frame)[approach[0]] < _POINTS_DOWN:
            raise InputError(
                f"The home pose of {twin.name} does not point the hand {robot.tcp!r} down, which a grasp from above "
                "starts from. Change the keyframe `home`."
            )
        motion = np.zeros((3, model.nv))
        mujoco.mj_jacBodyCom(model, data, motion, None, int(model.jnt_bodyid[joint.id]))
        towards = np.sign(robot.gripper.open - robot.gripper.closed) * motion[:, joint.dofadr[0]] @ frame
        towards[approach[0]] = 0.0
        return cls(
            approach=approach,
            opening=_nearest_axis(towards),
            tip=max(
                _reach(model, data, robot.tcp, int(joint.qposadr[0]), value)
                for value in (robot.gripper.open, robot.gripper.closed)
            ),
            one_sided=not _is_tied(model, joint.id),
            joint_qpos=int(joint.qposadr[0]),
            actuator=robot.joints.index(robot.gripper.joint),
            open=robot.gripper.open,
            closed=robot.gripper.closed,
        )


def _nearest_axis(direction: NDArray[np.float64]) -> tuple[int, float]:
    index = int(np.argmax(np.abs(direction)))
    return index, float(np.sign(direction[index]))


def _is_tied(model: mujoco.MjModel, joint: int) -> bool:
    """Whether an equality moves another joint together with this one."""
    tied = model.eq_type == mujoco.mjtEq.mjEQ_JOINT
    return bool(((model.eq_obj1id[tied] == joint) | (model.eq_obj2id[tied] == joint)).any())


def _reach(model: mujoco.MjModel, data: mujoco.MjData, tool: str, finger: int, opening: float) -> float:
    """How far colliding parts of the hand lie beyond the tool site along the vertical, by their bounding boxes."""
    data.qpos[finger] = opening
    mujoco.mj_kinematics(model, data)
    site = data.site(tool)
    frame = site.xmat.reshape(3, 3)
    index, sign = _nearest_axis(_DOWN @ frame)
    axis = sign * frame[:, index]
    reach = 0.0
    for geom in _hand_geoms(model, int(model.site(tool).bodyid[0])):
        turn = data.geom_xmat[geom].reshape(3, 3)
        centre, half = model.geom_aabb[geom, :3], model.geom_aabb[geom, 3:]
        offset = data.geom_xpos[geom] + turn @ centre - site.xpos
        reach = max(reach, float(offset @ axis + np.abs(axis @ turn) @ half))
    return reach


def _hand_geoms(model: mujoco.MjModel, hand: int) -> list[int]:
    """Colliding geoms of a body and of everything that hangs on it."""
    inside = {hand}
    for body in range(hand + 1, model.nbody):
        if int(model.body_parentid[body]) in inside:
            inside.add(body)
    solid = (model.geom_contype != 0) | (model.geom_conaffinity != 0)
    return [geom for geom in range(model.ngeom) if solid[geom] and int(model.geom_bodyid[geom]) in inside]
