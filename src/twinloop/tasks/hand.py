"""Describe a gripper relative to its tool site, and constrain randomization to objects that fit into it."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.randomize import Constraint
from twinloop.twin import Twin

_DOWN = np.array([0.0, 0.0, -1.0])
_POINTS_DOWN = 0.7  # cosine: the home pose must point the hand within 45 deg of straight down


@dataclass(frozen=True, kw_only=True)
class GripperHand:
    """Gripper that can grasp from above.

    Attributes:
        approach: reaching direction in the tool site's frame, as (axis index, sign).
        opening: opening direction of the driven finger in the tool site's frame, as (axis index, sign).
        tip: length of the fingers beyond the tool site along the approach direction, in m.
        one_sided: whether only one finger moves and the other one is fixed.
        joint_qpos: index of the finger's joint in qpos.
        joint_dof: index of the finger's joint in qvel.
        actuator: index of the finger's actuator.
        open: position of the finger's joint when the gripper is open, in rad or m.
        closed: position of the finger's joint when the gripper is closed.
    """

    approach: tuple[int, float]
    opening: tuple[int, float]
    tip: float
    one_sided: bool
    joint_qpos: int
    joint_dof: int
    actuator: int
    open: float
    closed: float

    @classmethod
    def of(cls, twin: Twin, hand: str = "") -> GripperHand:
        """Return the gripper of a twin's robot, measured in its model.

        Args:
            twin: the twin.
            hand: name of the hand in ``robot.hands``; by default the robot's main hand.

        Raises:
            InputError: If the robot names no tool site or gripper, or its home pose does not point the hand down.
            UnknownNameError: If the robot has no such hand.
        """
        robot, model = twin.robot, twin.model
        spec = robot.find_hand(hand)
        tool, gripper = spec.tcp, spec.gripper
        if tool is None or gripper is None:
            raise InputError(f"The YAML of the twin {twin.name} does not name {robot.missing_for_grasp}. Add it.")
        joint = model.joint(gripper.joint)
        data = mujoco.MjData(model)
        data.qpos[:], _ = twin.home()
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        frame = data.site(tool).xmat.reshape(3, 3).copy()
        approach = _nearest_axis(_DOWN @ frame)
        if approach[1] * (_DOWN @ frame)[approach[0]] < _POINTS_DOWN:
            raise InputError(
                f"The home pose of {twin.name} does not point the hand {tool!r} down, but a grasp from above "
                "starts with the hand down. Change the keyframe `home`."
            )
        motion = np.zeros((3, model.nv))
        mujoco.mj_jacBodyCom(model, data, motion, None, int(model.jnt_bodyid[joint.id]))
        towards = np.sign(gripper.open - gripper.closed) * motion[:, joint.dofadr[0]] @ frame
        towards[approach[0]] = 0.0
        return cls(
            approach=approach,
            opening=_nearest_axis(towards),
            tip=max(
                _reach_below_tool(model, data, tool, int(joint.qposadr[0]), value)
                for value in (gripper.open, gripper.closed)
            ),
            one_sided=not _is_coupled(model, joint.id),
            joint_qpos=int(joint.qposadr[0]),
            joint_dof=int(joint.dofadr[0]),
            actuator=robot.joints.index(gripper.joint),
            open=gripper.open,
            closed=gripper.closed,
        )

    def opening_share(self, qpos: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return how far the hand is open, ``(…)`` from 0 to 1, for positions ``(…, nq)`` of the model."""
        return (qpos[..., self.joint_qpos] - self.closed) / (self.open - self.closed)


def _nearest_axis(direction: NDArray[np.float64]) -> tuple[int, float]:
    index = int(np.argmax(np.abs(direction)))
    return index, float(np.sign(direction[index]))


def _is_coupled(model: mujoco.MjModel, joint: int) -> bool:
    """Return whether an equality constraint couples another joint to this one."""
    tied = model.eq_type == mujoco.mjtEq.mjEQ_JOINT
    return bool(((model.eq_obj1id[tied] == joint) | (model.eq_obj2id[tied] == joint)).any())


def _reach_below_tool(model: mujoco.MjModel, data: mujoco.MjData, tool: str, finger: int, opening: float) -> float:
    """Return how far the colliding geoms of the hand extend below the tool site, in m, by their bounding boxes.

    ``finger`` is the index of the finger's joint in qpos, and ``opening`` its position.
    """
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
    """Return the ids of the colliding geoms of the body ``hand`` and of its descendants."""
    inside = {hand}
    for body in range(hand + 1, model.nbody):
        if int(model.body_parentid[body]) in inside:
            inside.add(body)
    solid = (model.geom_contype != 0) | (model.geom_conaffinity != 0)
    return [geom for geom in range(model.ngeom) if solid[geom] and int(model.geom_bodyid[geom]) in inside]


FITS = "object fits between the jaws"
_CLEARANCE = 0.002  # m, sum of both sides, for the descent of the jaws; our choice, no published value
_DEPTHS = 60  # points along the jaws at which their distance is measured
_SOLID = np.array([1, 0, 0, 0, 0, 0], dtype=np.uint8)  # geom groups that a ray can hit
_TALLEST = 3.0  # height over which jaws are measured, in heights of the nominal object


def object_fits_constraint(twin: Twin, hand: GripperHand, name: str, *, tips: float = 0.0) -> Constraint:
    """Return the constraint that the open jaws are wider than the object, from the finger tips to the object's top.

    The object's top must also be below the palm. A size factor of the object that is not a parameter of the twin counts
    as 1.

    Args:
        twin: the twin.
        hand: its gripper.
        name: name of the object.
        tips: height of the finger tips above the object's support, in m.
    """
    extent = _object_extents(twin, name)
    heights, openings = measure_jaw_openings(twin, hand, _TALLEST * float(extent[2]))
    every, along = f"object/{name}/size", [f"object/{name}/size/{axis}" for axis in "xyz"]

    def holds(table: ParamTable) -> NDArray[np.bool_]:
        ones = np.ones(table.nworld)
        factors = np.stack([table.get(every, ones) * table.get(one, ones) for one in along], axis=-1)
        sides = extent * factors
        place = np.minimum(np.searchsorted(heights, sides[:, 2] - tips), len(heights) - 1)
        return np.maximum(sides[:, 0], sides[:, 1]) <= openings[place] - _CLEARANCE

    names = tuple(factor for factor in (every, *along) if factor in twin.params)
    return Constraint(name=FITS, names=names, holds=holds)


def measure_jaw_openings(
    twin: Twin, hand: GripperHand, tallest: float = 0.1
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return heights above the tips of the open jaws, and how wide an object may be up to each height.

    The distance of the jaws is measured by rays along the opening direction, from points on a line through the tool
    site, because a hinged jaw is inclined. It is infinite if a ray hits nothing, and zero for heights inside the palm.

    Args:
        twin: the twin.
        hand: its gripper.
        tallest: largest height in m; by default more than the height of an object that fits.

    Returns:
        Heights from 0 to ``tallest``, and for each height h the smallest distance of the jaws between the tips and h,
        both ``(n,)`` in m.
    """
    model, data = _group_solid_geoms(twin.model), mujoco.MjData(twin.model)
    data.qpos[:], _ = twin.home()
    data.qpos[hand.joint_qpos] = hand.open
    mujoco.mj_forward(model, data)
    site = data.site(str(twin.robot.tcp))
    frame = site.xmat.reshape(3, 3)
    (approach, forward), (across, outward) = hand.approach, hand.opening
    direction = outward * frame[:, across]
    heights, widths = np.linspace(0.0, tallest, _DEPTHS), []
    for height in heights:
        origin = site.xpos + (hand.tip - height) * forward * frame[:, approach]
        widths.append(sum(_cast_ray(model, data, origin, sign * direction) for sign in (1.0, -1.0)))
    deep = hand.tip + _cast_ray(model, data, site.xpos, -forward * frame[:, approach])
    return heights, np.where(heights <= deep - _CLEARANCE, np.minimum.accumulate(widths), 0.0)


def _group_solid_geoms(model: mujoco.MjModel) -> mujoco.MjModel:
    """Return a copy of the model with colliding geoms in group 0 and visual geoms in group 1, for ray casting."""
    grouped = copy.copy(model)
    grouped.geom_group[:] = (model.geom_contype == 0) & (model.geom_conaffinity == 0)
    return grouped


def _cast_ray(
    model: mujoco.MjModel, data: mujoco.MjData, origin: NDArray[np.float64], direction: NDArray[np.float64]
) -> float:
    hit = mujoco.mj_ray(model, data, origin, direction, _SOLID, 1, -1, np.zeros(1, dtype=np.int32))
    return hit if hit >= 0 else np.inf


def _object_extents(twin: Twin, name: str) -> NDArray[np.float64]:
    """Return the side lengths of the bounding box of an object's geoms in the object's frame, ``(3,)`` in m."""
    model, data = twin.model, mujoco.MjData(twin.model)
    mujoco.mj_kinematics(model, data)
    body = model.body(name).id
    low, high = np.full(3, np.inf), np.full(3, -np.inf)
    for geom in np.flatnonzero(model.geom_bodyid == body):
        turn = np.zeros(9)
        mujoco.mju_quat2Mat(turn, model.geom_quat[geom])
        turn = turn.reshape(3, 3)
        centre = model.geom_pos[geom] + turn @ model.geom_aabb[geom, :3]
        half = np.abs(turn) @ model.geom_aabb[geom, 3:]
        low, high = np.minimum(low, centre - half), np.maximum(high, centre + half)
    return high - low
