"""Compute a tool's orientation at a position, and the joint step that reduces the tool's error.

The tool's error is the required pose of the tool site minus its actual pose.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from twinloop.simulate.arrays import ArrayLibrary
from twinloop.tasks.hand import GripperHand
from twinloop.tasks.kinematics import Chain, ChainPose, cross

Columns = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]

# Damped least squares, with rotation weighted in metres per radian: a hand that cannot reach the required orientation
# still reaches its position within a millimetre (0.03^2 / 0.2 m of arm x 0.2 rad).
_ROTATION_WEIGHT = 0.03
_DAMPING = 0.006  # m per rad, well below the smallest lever of a reachable grasp
_POSTURE_WEIGHT = 0.001  # weight of staying near home for joints that the task leaves free
_ROTATION_GAIN = 0.35  # of a rotation error per control step: a wrong initial orientation is corrected smoothly


class ToolFrame(Protocol):
    """Orientation of a tool that follows from its position."""

    def tool_axes(self, position: NDArray[np.float64], turn: NDArray[np.float64]) -> Columns:
        """Return the axes x, y, z of the tool site, each ``(nworld, 3)``, in the world frame.

        Args:
            position: position of the tool in the world frame, ``(nworld, 3)`` in m.
            turn: additional rotation of the tool, ``(nworld,)`` in rad.
        """
        ...


_UPRIGHT = 0.9  # cosine: the axis of a first joint that turns the tool's bearing


class BearingFrame:
    """Orientation of the home pose, rotated about the vertical together with the line from the base to the tool.

    An arm of five joints cannot choose its heading freely, because its heading follows from the tool's position. This
    orientation suits arms of five and more joints. The additional ``turn`` is about the vertical. If the first joint is
    not a vertical hinge, the orientation is the same everywhere.

    Args:
        chain: kinematic chain of the arm.
        home: ``qpos`` of the home pose.
    """

    def __init__(self, chain: Chain, home: NDArray[np.float64]) -> None:
        pose = chain.pose(home[None, chain.qpos])
        self._axes = [column[0] for column in pose.columns]
        self._base = tuple(map(float, pose.anchors[0, 0, :2]))
        self._follows = bool(chain.hinge[0]) and abs(float(pose.axes[0, 0, 2])) > _UPRIGHT
        self._home = float(azimuth(pose.position, self._base)[0])

    def tool_axes(self, position: NDArray[np.float64], turn: NDArray[np.float64]) -> Columns:
        """Return the axes x, y, z of the tool site; see `ToolFrame`."""
        xp = array_namespace(position)
        angle = turn + (azimuth(position, self._base) - self._home if self._follows else 0.0)
        cosine, sine = xp.cos(angle), xp.sin(angle)
        x, y, z = (
            xp.stack([cosine * a - sine * b, sine * a + cosine * b, 0.0 * cosine + c], axis=-1)
            for a, b, c in (map(float, axis) for axis in self._axes)
        )
        return x, y, z

    def turn_of(self, position: NDArray[np.float64], columns: Columns) -> NDArray[np.float64]:  # noqa: ARG002
        """Return the present additional turn, ``(nworld,)`` in rad; it is 0, because this orientation is the aim."""
        return 0.0 * position[:, 0]


def azimuth(position: NDArray[np.float64], base: tuple[float, ...]) -> NDArray[np.float64]:
    """Return the angles ``(nworld,)`` in rad, from the x axis, of the horizontal lines from a base to positions."""
    xp = array_namespace(position)
    return xp.atan2(position[:, 1] - base[1], position[:, 0] - base[0])


def heading(quaternion: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rotations about the vertical, ``(…)`` in rad, of quaternions wxyz ``(…, 4)``."""
    xp = array_namespace(quaternion)
    w, x, y, z = (quaternion[..., i] for i in range(4))
    return xp.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))


def nearest_turn(angle: NDArray[np.float64], symmetry: int = 1) -> NDArray[np.float64]:
    """Return the smallest rotation in rad that is equal to ``angle`` for an object with so many equal turns."""
    period = 2.0 * np.pi / symmetry
    return angle - period * np.round(angle / period)


def rotate_level(vectors: NDArray[np.float64], angle: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return vectors ``(…, 2)`` turned to the left by angles ``(…)`` in rad."""
    x, y, cosine, sine = vectors[..., 0], vectors[..., 1], np.cos(angle), np.sin(angle)
    return np.stack([cosine * x - sine * y, sine * x + cosine * y], axis=-1)


class GraspFrame:
    """Orientations of a hand that points down, and tilts outwards with increasing height if ``tilt`` is not zero.

    ``tilt`` is the angle in rad between the vertical and the approach direction at the upper of the two ``heights``;
    the approach direction then points away from the arm's base. The hand keeps its angle to the horizontal line from
    the arm's base to the hand, so that a rotation of the base does not rotate the wrist. In the methods, ``turn`` is an
    additional angle about the approach direction, in rad.
    """

    def __init__(
        self,
        chain: Chain,
        hand: GripperHand,
        home: NDArray[np.float64],
        *,
        tilt: float = 0.0,
        heights: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        """Define the orientations of a hand.

        Args:
            chain: kinematic chain of the arm.
            hand: the gripper.
            home: ``qpos`` of the home pose, which defines the hand's angle to the horizontal line from base to hand.
            tilt: outward tilt at the upper height, in rad; zero at the lower height.
            heights: lower and upper height of the tool site, in m.
        """
        pose = chain.pose(home[None, chain.qpos])
        self._hand, self._tilt, self._heights = hand, tilt, heights
        self._base = tuple(map(float, pose.anchors[0, 0, :2]))
        opening = hand.opening[1] * pose.columns[hand.opening[0]][0]
        self._bearing = float(np.arctan2(opening[1], opening[0]) - azimuth(pose.position, self._base)[0])

    def alignment_turn(
        self, position: NDArray[np.float64], yaw: NDArray[np.float64], period: float
    ) -> NDArray[np.float64]:
        """Return the smallest turn in rad, ``(nworld,)``, that aligns the hand's opening direction with an object.

        Args:
            position: position of the hand, ``(nworld, 3)``.
            yaw: rotation of the object about the vertical, ``(nworld,)`` in rad.
            period: angle of the object's symmetry in rad, for example π/2 for a box.
        """
        xp = array_namespace(position)
        angle = yaw - self._bearing - azimuth(position, self._base)
        return angle - period * xp.round(angle / period)

    def turn_of(self, position: NDArray[np.float64], columns: Columns) -> NDArray[np.float64]:
        """Return the present additional angle of a hand about its approach direction, ``(nworld,)`` in rad.

        Args:
            position: position of the hand, ``(nworld, 3)`` in m.
            columns: axes x, y, z of the tool site, each ``(nworld, 3)``.
        """
        index, sign = self._hand.opening
        angle = azimuth(sign * columns[index], (0.0, 0.0)) - self._bearing - azimuth(position, self._base)
        return angle - 2 * np.pi * np.round(angle / (2 * np.pi))

    def opening_direction(self, position: NDArray[np.float64], turn: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the direction in which the gripper of a hand that points straight down opens, ``(nworld, 3)``.

        The directions are horizontal unit vectors.

        Args:
            position: position of the hand, ``(nworld, 3)`` in m.
            turn: additional rotation of the hand about the vertical, ``(nworld,)`` in rad.
        """
        xp = array_namespace(position)
        angle = azimuth(position, self._base) + self._bearing + turn
        return xp.stack([xp.cos(angle), xp.sin(angle), xp.zeros_like(angle)], axis=-1)

    def tool_axes(self, position: NDArray[np.float64], turn: NDArray[np.float64]) -> Columns:
        """Return the axes x, y, z of the tool site for a hand at ``position``.

        Each axis has shape ``(nworld, 3)``, in the world frame.

        Args:
            position: position of the hand in the world frame, ``(nworld, 3)`` in m.
            turn: additional rotation of the hand about the approach direction, ``(nworld,)`` in rad.
        """
        xp = array_namespace(position)
        bearing = azimuth(position, self._base)
        outward = xp.stack([xp.cos(bearing), xp.sin(bearing), xp.zeros_like(bearing)], axis=-1)
        low, high = self._heights
        angle = self._tilt * xp.clip((position[:, 2] - low) / (high - low), 0.0, 1.0)
        cosine, sine = xp.cos(angle)[:, None], xp.sin(angle)[:, None]
        up = ArrayLibrary.of(position).constant([0.0, 0.0, 1.0])
        approach = sine * outward - cosine * up
        flat = self.opening_direction(position, turn)
        along = (flat[:, 0] * outward[:, 0] + flat[:, 1] * outward[:, 1])[:, None]
        opening = flat + along * ((cosine - 1.0) * outward + sine * up)
        return self._order_axes(approach, opening)

    def _order_axes(self, approach: NDArray[np.float64], opening: NDArray[np.float64]) -> Columns:
        (i, approach_sign), (j, opening_sign) = self._hand.approach, self._hand.opening
        x, y = approach_sign * approach, opening_sign * opening
        k = 3 - i - j
        third = cross(x, y) if (j - i) % 3 == 1 else cross(y, x)
        arranged = {i: x, j: y, k: third}
        return arranged[0], arranged[1], arranged[2]


def tool_error(pose: ChainPose, position: NDArray[np.float64], columns: Columns) -> NDArray[np.float64]:
    """Return the tool's pose error ``(nworld, 6)``: translation in m, then rotation in rad about the world's axes.

    It is the required minus the actual pose; small rotations are approximated.

    Args:
        pose: pose of the arm's kinematic chain.
        position: required position of the tool site, ``(nworld, 3)`` in m.
        columns: required axes x, y, z of the tool site, each ``(nworld, 3)``.
    """
    xp = array_namespace(position)
    (x, y, z), (wanted_x, wanted_y, wanted_z) = pose.columns, columns
    turn = 0.5 * (cross(x, wanted_x) + cross(y, wanted_y) + cross(z, wanted_z))
    return xp.concat([position - pose.position, turn], axis=1)


def position_error(pose: ChainPose, position: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the tool's error ``(nworld, 6)`` if any orientation is accepted: translation in m, then zeros.

    Args:
        pose: pose of the arm's kinematic chain.
        position: required position of the tool site, ``(nworld, 3)`` in m.
    """
    return array_namespace(position).concat([position - pose.position, 0.0 * position], axis=1)


def joint_step(
    jacobian: NDArray[np.float64], error: NDArray[np.float64], posture: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the damped least-squares step of k joints, ``(nworld, k)`` in rad or m, that reduces a tool error.

    Args:
        jacobian: Jacobian of the tool, ``(nworld, 6, k)``.
        error: tool error ``(nworld, 6)``, see `tool_error`.
        posture: step towards a preferred posture, ``(nworld, k)``; it has a small weight, so that it acts almost only
            in the null space of the Jacobian.
    """
    arrays = ArrayLibrary.of(error)
    xp = arrays.xp
    weight = arrays.constant([1.0] * 3 + [_ROTATION_WEIGHT] * 3)
    gain = arrays.constant([1.0] * 3 + [_ROTATION_GAIN] * 3)
    weighted = weight[:, None] * jacobian
    transposed = weighted.swapaxes(1, 2)
    gradient = xp.matmul(transposed, (weight * gain * error)[..., None]) + _POSTURE_WEIGHT**2 * posture[..., None]
    ridge = (_DAMPING**2 + _POSTURE_WEIGHT**2) * arrays.constant(np.eye(jacobian.shape[2]))
    return xp.linalg.solve(xp.matmul(transposed, weighted) + ridge, gradient)[..., 0]
