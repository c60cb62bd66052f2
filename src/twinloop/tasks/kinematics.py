"""Compute the kinematics of a serial arm for many worlds at once, in plain array arithmetic.

The chain is read from a model once: a frame per joint whose z axis is the joint's axis, and the constant transforms
between these frames, all at the model's reference position. All later computations are elementwise over worlds, so the
result of a world does not depend on other worlds. Any array library with NumPy's function names can run them, also on a
device.
"""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.records import freeze_array
from twinloop.simulate.arrays import ArrayLibrary

_ZERO = 1e-12  # constants of a transform below this are rounding of an exact zero


@dataclass(frozen=True, kw_only=True)
class ChainPose:
    """Pose of a kinematic chain of k joints, in world coordinates.

    Attributes:
        position: position of the tool site, ``(nworld, 3)`` in m.
        columns: axes x, y and z of the tool site, each ``(nworld, 3)``.
        anchors: a point on each joint's axis, ``(nworld, k, 3)`` in m.
        axes: direction of each joint's axis, ``(nworld, k, 3)``.
        centres: centre of mass of the link that each joint carries, ``(nworld, k, 3)`` in m.
    """

    position: NDArray[np.float64]
    columns: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]
    anchors: NDArray[np.float64]
    axes: NDArray[np.float64]
    centres: NDArray[np.float64]


class Chain:
    """Kinematic chain: the k joints between the world and a site, in order from the base.

    Attributes:
        joints: model ids of the joints.
        qpos: indices of the joints in qpos.
        dof: indices of the joints in qvel.
        limits: ranges of the joints, ``(k, 2)`` in rad or m, infinite if unlimited.
        hinge: whether each joint is a hinge and not a slide, ``(k,)``.

    Args:
        model: the model.
        site: name of the site.
        reference: ``qpos`` that gives the positions of joints that are not on the chain, such as fingers.

    Raises:
        InputError: If the site is moved by no hinge or slide joint, or by a ball or free joint.
    """

    def __init__(self, model: mujoco.MjModel, site: str, reference: NDArray[np.float64]) -> None:
        data = mujoco.MjData(model)
        data.qpos[:] = reference  # position of parts that are not on the chain (fingers)
        self.joints = _chain_joints(model, site)
        self.qpos = model.jnt_qposadr[self.joints]
        self.dof = model.jnt_dofadr[self.joints]
        self._zero = model.qpos0[self.qpos].copy()
        data.qpos[self.qpos] = self._zero
        mujoco.mj_kinematics(model, data)
        limited = model.jnt_limited[self.joints].astype(bool)[:, None]
        self.limits = np.where(limited, model.jnt_range[self.joints], [-np.inf, np.inf])
        self.hinge = model.jnt_type[self.joints] == mujoco.mjtJoint.mjJNT_HINGE
        frames = [_rotation_to_axis(data.xaxis[joint]) for joint in self.joints]
        origins = [data.xanchor[joint].copy() for joint in self.joints]
        tool = data.site(site)
        self._steps = _relative_transforms([*origins, tool.xpos.copy()], [*frames, tool.xmat.reshape(3, 3).copy()])
        masses, centres = _carried_masses(model, data, self.joints)
        self._weights = masses
        self._centres = [frame.T @ (c - origin) for frame, c, origin in zip(frames, centres, origins, strict=True)]
        self._gravity = float(-model.opt.gravity[2])

    @property
    def njoint(self) -> int:
        """Number of joints ``k``."""
        return len(self.joints)

    def pose(self, q: NDArray[np.float64]) -> ChainPose:
        """Return the pose of the chain at joint positions ``q`` ``(nworld, k)``, in rad or m."""
        arrays = ArrayLibrary.of(q)
        xp = arrays.xp
        turned = q - arrays.constant(self._zero)
        cosine, sine = xp.cos(turned), xp.sin(turned)
        position = arrays.zeros((len(q), 3))
        columns = tuple(position + arrays.constant(row) for row in np.eye(3))
        anchors, axes, centres = [], [], []
        for i, (shift, rotation) in enumerate(self._steps):
            position = position + _sum_scaled_columns(columns, shift)
            columns = tuple(_sum_scaled_columns(columns, rotation[:, j]) for j in range(3))
            if i == self.njoint:
                break
            anchors.append(position)
            axes.append(columns[2])
            if self.hinge[i]:
                c, s = cosine[:, i, None], sine[:, i, None]
                columns = (c * columns[0] + s * columns[1], c * columns[1] - s * columns[0], columns[2])
            else:
                position = position + turned[:, i, None] * columns[2]
            centres.append(position + _sum_scaled_columns(columns, self._centres[i]))
        return ChainPose(
            position=position,
            columns=(columns[0], columns[1], columns[2]),
            anchors=xp.stack(anchors, axis=1),
            axes=xp.stack(axes, axis=1),
            centres=xp.stack(centres, axis=1),
        )

    def tool_position(self, qpos: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the positions of the tool site ``(…, 3)`` in m for positions ``(…, nq)`` of the model."""
        flat = qpos[..., self.qpos].reshape(-1, self.njoint)
        return self.pose(flat).position.reshape(*qpos.shape[:-1], 3)

    def jacobian(self, pose: ChainPose) -> NDArray[np.float64]:
        """Return the geometric Jacobian of the tool site in world axes: linear rows, then angular rows.

        Its shape is ``(nworld, 6, k)``.
        """
        arrays = ArrayLibrary.of(pose.position)
        xp, hinge = arrays.xp, arrays.constant(self.hinge)[:, None]
        linear = xp.where(hinge, cross(pose.axes, pose.position[:, None] - pose.anchors), pose.axes)
        angular = xp.where(hinge, pose.axes, 0.0 * pose.axes)
        return xp.concat([linear, angular], axis=2).swapaxes(1, 2)

    def gravity_torques(self, pose: ChainPose) -> NDArray[np.float64]:
        """Return the joint torques that hold the chain still against gravity along −z, ``(nworld, k)`` in N·m or N.

        Compensated bodies (``gravcomp``) have no weight. Parts attached to the chain, such as fingers, are at their
        reference position.
        """
        arrays = ArrayLibrary.of(pose.position)
        xp, masses = arrays.xp, arrays.constant(self._weights)
        onwards = arrays.constant(np.triu(np.ones((self.njoint, self.njoint))))  # each joint and those after it
        carried = xp.matmul(onwards, masses)
        moment = xp.matmul(onwards, masses[:, None] * pose.centres)
        arm = moment - carried[:, None] * pose.anchors
        lift = pose.axes[..., 0] * arm[..., 1] - pose.axes[..., 1] * arm[..., 0]
        return self._gravity * xp.where(arrays.constant(self.hinge), lift, carried * pose.axes[..., 2])


def cross(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cross products of vectors along the last axis."""
    xp = array_namespace(a)
    a0, a1, a2 = a[..., 0], a[..., 1], a[..., 2]
    b0, b1, b2 = b[..., 0], b[..., 1], b[..., 2]
    return xp.stack([a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0], axis=-1)


def _sum_scaled_columns(columns: tuple[NDArray[np.float64], ...], factors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sum of each column times its constant factor; columns with factor zero are skipped."""
    total = None
    for column, factor in zip(columns, factors, strict=True):
        if factor == 0.0:
            continue
        term = column if factor == 1.0 else float(factor) * column
        total = term if total is None else total + term
    return 0.0 * columns[0] if total is None else total


def _chain_joints(model: mujoco.MjModel, site: str) -> NDArray[np.intp]:
    body, joints = int(model.site(site).bodyid[0]), []
    while body:
        first, count = int(model.body_jntadr[body]), int(model.body_jntnum[body])
        joints += reversed(range(first, first + count))
        body = int(model.body_parentid[body])
    simple = {int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE)}
    wrong = [model.joint(j).name for j in joints if int(model.jnt_type[j]) not in simple]
    if wrong or not joints:
        reason = f"passes the ball or free joint {wrong[0]!r}" if wrong else "has no joint"
        raise InputError(
            f"The chain from the world to the site {site!r} {reason}; an arm of hinge and slide joints is expected. "
            "Name the tool site of such an arm as `robot.tcp`."
        )
    return np.array(joints[::-1], dtype=np.intp)


def _rotation_to_axis(axis: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a rotation matrix whose third column is ``axis``.

    If ``axis`` is a world axis, the other columns are world axes too (± sign).
    """
    other = np.eye(3)[np.argmin(np.abs(axis))]
    x = np.cross(other, axis)
    x /= np.linalg.norm(x)
    return np.stack([x, np.cross(axis, x), axis], axis=1)


def _relative_transforms(
    origins: list[NDArray[np.float64]], frames: list[NDArray[np.float64]]
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return the constant (translation, rotation) of each frame relative to the previous frame.

    The first frame is relative to the world.
    """
    steps, origin, frame = [], np.zeros(3), np.eye(3)
    for next_origin, next_frame in zip(origins, frames, strict=True):
        shift, rotation = frame.T @ (next_origin - origin), frame.T @ next_frame
        steps.append(tuple(freeze_array(np.where(np.abs(part) < _ZERO, 0.0, part)) for part in (shift, rotation)))
        origin, frame = next_origin, next_frame
    return steps


def _carried_masses(
    model: mujoco.MjModel, data: mujoco.MjData, joints: NDArray[np.intp]
) -> tuple[NDArray[np.float64], list[NDArray[np.float64]]]:
    """Return the mass in kg that each joint moves, and its centre of mass in world coordinates.

    A body counts only for the last chain joint that moves it. The share of its mass that ``gravcomp`` compensates is
    excluded.
    """
    owner = {int(model.jnt_bodyid[joint]): i for i, joint in enumerate(joints)}
    mass, moment = np.zeros(len(joints)), np.zeros((len(joints), 3))
    mujoco.mj_comPos(model, data)
    for body in range(1, model.nbody):
        ancestor = body
        while ancestor and ancestor not in owner:
            ancestor = int(model.body_parentid[ancestor])
        if ancestor:
            weighing = model.body_mass[body] * (1.0 - model.body_gravcomp[body])
            mass[owner[ancestor]] += weighing
            moment[owner[ancestor]] += weighing * data.xipos[body]
    centres = [m / w if w > 0 else data.xanchor[j] for m, w, j in zip(moment, mass, joints, strict=True)]
    return mass, centres
