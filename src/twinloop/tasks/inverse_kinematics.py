"""Find joint positions that bring the tool of an arm to positions or poses, within the limits of its joints.

Damped least squares on the tool's Jacobian (Wampler, "Manipulator inverse kinematic solutions based on vector
formulations and damped least-squares methods", 1986), with steps of `reaching.joint_step`. Joints that a step would
move beyond their limits are excluded from it. An arm with fewer joints than a pose needs reaches the position and, as
far as possible, the orientation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.seeds import uniforms
from twinloop.tasks.kinematics import Chain, ChainPose, cross
from twinloop.tasks.reaching import Columns, joint_step, position_error, tool_error

_STEPS = 200  # of each try; our choice
_TRIES = 8  # start poses: the given one, and seven random ones for goals that are not reached; our choice
_LARGEST_STEP = 0.3  # rad or m
_UNBOUNDED = np.pi  # rad or m: half range of random start poses of a joint without limits


@dataclass(frozen=True, kw_only=True)
class ReachSolution:
    """Joint positions for goals of the tool.

    Attributes:
        q: joint positions, ``(n, k)`` in rad or m for n goals and k joints.
        position_error: distance of the tool from each goal, ``(n,)`` in m.
        rotation_error: angle between the tool's orientation and each goal's, ``(n,)`` in rad; 0 for positions.
    """

    q: NDArray[np.float64]
    position_error: NDArray[np.float64]
    rotation_error: NDArray[np.float64]

    def reached(self, position: float = 1e-3, rotation: float = np.inf) -> NDArray[np.bool_]:
        """Return which goals are reached within a distance in m and an angle in rad, ``(n,)``."""
        return (self.position_error <= position) & (self.rotation_error <= rotation)


def solve_reach(
    chain: Chain, start: NDArray[np.float64], position: NDArray[np.float64], axes: Columns | None = None
) -> ReachSolution:
    """Return joint positions that bring the tool to goals.

    Each goal is solved from ``start``, and then from random poses until it is reached. If it is never reached, the
    result is the pose with the smallest error. The computation is deterministic.

    Args:
        chain: kinematic chain of the arm.
        start: joint positions from which to start, ``(k,)`` in rad or m. Solutions near them are preferred.
        position: positions of the tool site, ``(n, 3)`` in m in the world frame.
        axes: axes x, y and z of the tool site, each ``(n, 3)``; None accepts any orientation.
    """
    best = _describe(chain, np.tile(start, (len(position), 1)), position, axes)
    low, high = np.clip(chain.limits, start[:, None] - _UNBOUNDED, start[:, None] + _UNBOUNDED).T
    for attempt in range(_TRIES):
        left = np.flatnonzero(~best.reached(1e-4, 1e-3))
        if not len(left):
            break
        chance = uniforms(attempt, "inverse kinematics", left, size=chain.njoint)
        begin = low + chance * (high - low) if attempt else np.tile(start, (len(left), 1))
        goal = None if axes is None else (axes[0][left], axes[1][left], axes[2][left])
        found = _descend(chain, begin, position[left], goal)
        better = _cost(found) < _cost(best)[left]
        values = {name: getattr(best, name).copy() for name in ("q", "position_error", "rotation_error")}
        for name, old in values.items():
            old[left[better]] = getattr(found, name)[better]
        best = ReachSolution(**values)
    return best


def _descend(
    chain: Chain, q: NDArray[np.float64], position: NDArray[np.float64], axes: Columns | None
) -> ReachSolution:
    low, high = chain.limits.T
    for _ in range(_STEPS):
        pose = chain.pose(q)
        error, jacobian, still = _error(pose, position, axes), chain.jacobian(pose), np.zeros_like(q)
        step = joint_step(jacobian, error, still)
        blocked = ((q <= low) & (step < 0.0)) | ((q >= high) & (step > 0.0))
        if blocked.any():
            step = joint_step(np.where(blocked[:, None], 0.0, jacobian), error, still)
        q = np.clip(q + np.clip(step, -_LARGEST_STEP, _LARGEST_STEP), low, high)
        if np.abs(step).max() < 1e-7:
            break
    return _describe(chain, q, position, axes)


def _error(pose: ChainPose, position: NDArray[np.float64], axes: Columns | None) -> NDArray[np.float64]:
    return position_error(pose, position) if axes is None else tool_error(pose, position, axes)


def _describe(
    chain: Chain, q: NDArray[np.float64], position: NDArray[np.float64], axes: Columns | None
) -> ReachSolution:
    pose = chain.pose(q)
    distance = np.linalg.norm(position - pose.position, axis=1)
    if axes is None:
        return ReachSolution(q=q, position_error=distance, rotation_error=np.zeros(len(q)))
    pairs = list(zip(pose.columns, axes, strict=True))
    turned = np.linalg.norm(sum(cross(own, goal) for own, goal in pairs), axis=1)  # 2 sin of the angle
    trace = sum((own * goal).sum(axis=1) for own, goal in pairs)  # 1 + 2 cos of the angle
    return ReachSolution(q=q, position_error=distance, rotation_error=np.arctan2(turned, trace - 1.0))


def _cost(solution: ReachSolution) -> NDArray[np.float64]:
    return solution.position_error + 0.03 * solution.rotation_error  # m per rad, as in `reaching.joint_step`
