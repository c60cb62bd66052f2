"""Compute the required orientation of the hand at its position, and the joint step towards it."""

from __future__ import annotations

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


class GraspFrame:
    """Orientations of a hand that points down, possibly tilted outwards with its height.

    The hand keeps its angle to the line from the arm's base, so that a rotation of the base does not rotate the wrist;
    ``turn`` is an additional angle about the approach direction, in rad.
    """

    def __init__(
        self, chain: Chain, hand: GripperHand, home: NDArray[np.float64], *, tilt: float, heights: tuple[float, float]
    ):
        """Set the tilt: ``tilt`` rad at the upper of ``heights`` (m), zero at the lower one."""
        pose = chain.pose(home[None, chain.qpos])
        self._hand, self._tilt, self._heights = hand, tilt, heights
        self._base = tuple(map(float, pose.anchors[0, 0, :2]))
        opening = hand.opening[1] * pose.columns[hand.opening[0]][0]
        self._bearing = float(np.arctan2(opening[1], opening[0]) - self._azimuth(pose.position)[0])

    def alignment_turn(
        self, position: NDArray[np.float64], yaw: NDArray[np.float64], period: float
    ) -> NDArray[np.float64]:
        """Return the smallest turn that aligns the opening at ``position`` with ``yaw`` modulo ``period`` rad."""
        xp = array_namespace(position)
        angle = yaw - self._bearing - self._azimuth(position)
        return angle - period * xp.round(angle / period)

    def opening_direction(self, position: NDArray[np.float64], turn: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the opening direction of an untilted hand, unit vectors ``(nworld, 3)``."""
        xp = array_namespace(position)
        angle = self._azimuth(position) + self._bearing + turn
        return xp.stack([xp.cos(angle), xp.sin(angle), xp.zeros_like(angle)], axis=-1)

    def tool_axes(self, position: NDArray[np.float64], turn: NDArray[np.float64]) -> Columns:
        """Return the axes x, y, z of the tool site in world coordinates for a hand at ``position``."""
        xp = array_namespace(position)
        azimuth = self._azimuth(position)
        outward = xp.stack([xp.cos(azimuth), xp.sin(azimuth), xp.zeros_like(azimuth)], axis=-1)
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

    def _azimuth(self, position: NDArray[np.float64]) -> NDArray[np.float64]:
        xp = array_namespace(position)
        return xp.atan2(position[:, 1] - self._base[1], position[:, 0] - self._base[0])


def tool_error(pose: ChainPose, position: NDArray[np.float64], columns: Columns) -> NDArray[np.float64]:
    """Return the tool's pose error ``(nworld, 6)``: metres, then radians about the world's axes."""
    xp = array_namespace(position)
    (x, y, z), (wanted_x, wanted_y, wanted_z) = pose.columns, columns
    turn = 0.5 * (cross(x, wanted_x) + cross(y, wanted_y) + cross(z, wanted_z))
    return xp.concat([position - pose.position, turn], axis=1)


def joint_step(
    jacobian: NDArray[np.float64], error: NDArray[np.float64], posture: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the damped least-squares joint step ``(nworld, k)`` that reduces a tool error.

    Args:
        jacobian: Jacobian of the tool, ``(nworld, 6, k)``.
        error: see `tool_error`.
        posture: step towards a preferred posture, ``(nworld, k)``, followed as far as the tool's task leaves freedom.
    """
    arrays = ArrayLibrary.of(error)
    xp = arrays.xp
    weight = arrays.constant([1.0] * 3 + [_ROTATION_WEIGHT] * 3)
    gain = arrays.constant([1.0] * 3 + [_ROTATION_GAIN] * 3)
    weighted = weight[:, None] * jacobian
    transposed = weighted.swapaxes(1, 2)
    pull = xp.matmul(transposed, (weight * gain * error)[..., None]) + _POSTURE_WEIGHT**2 * posture[..., None]
    ridge = (_DAMPING**2 + _POSTURE_WEIGHT**2) * arrays.constant(np.eye(jacobian.shape[2]))
    return xp.linalg.solve(xp.matmul(transposed, weighted) + ridge, pull)[..., 0]
