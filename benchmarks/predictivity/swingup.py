"""Compute a swing-up with low torque by iterative LQR, and the time-varying gains that track it.

The controller ``ilqr_tvlqr_lqr`` of the leaderboard tracks such a trajectory of the frictionless arm, which is stored
in a file there. Here it is computed, with weights on torque and velocity that give approximately the published torque
and time (torque cost 1.26 N²m²s, upright after 4.13 s). Iterative LQR: Li and Todorov, ICINCO 2004.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.predictivity.arm import UPRIGHT, Arm

Array = NDArray[np.float64]
HORIZON = 4.8  # s
DT = 0.02  # s, between torques
_TORQUE_WEIGHT = 0.1
_SPEED_WEIGHT = 0.0005
_END_WEIGHTS = np.array([100.0, 100.0, 10.0, 10.0])
_FIRST = (0.3, 1.1)  # N·m and Hz of the first guess, near the arm's slower swing
_ITERATIONS = 80
_BETTER = 1e-5  # relative decrease of the cost at which the iteration stops
_FRACTIONS = np.array([1.0, 0.5, 0.25, 0.1, 0.03, 0.01])
_DAMPING = (1e-3, 1e-8, 1e6)  # added to the second derivative with respect to torque: initial, smallest, largest


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """States ``(n + 1, 4)`` and torques of one joint ``(n,)`` in N·m, each torque held for ``dt`` s."""

    state: Array
    torque: Array
    dt: float
    joint: int


def swing_up(arm: Arm, *, joint: int = 0, horizon: float = HORIZON, iterations: int = _ITERATIONS) -> Trajectory:
    """Compute a locally optimal trajectory from hanging to upright with one driven joint.

    Args:
        arm: Equations of motion.
        joint: Index of the driven joint.
        horizon: Length of the trajectory, s.
        iterations: Largest number of iterations.
    """
    count = round(horizon / DT)
    strength, hz = _FIRST
    torque = -strength * np.cos(2 * np.pi * hz * DT * np.arange(count))
    state = _rollout(arm, torque[None], joint)[0]
    cost, (damping, least, most) = _costs(state[None], torque[None])[0], _DAMPING
    for _ in range(iterations):
        feedforward, gain = _backward(arm, state, torque, joint, damping)
        states, torques = _forward(arm, state, torque, feedforward, gain, joint)
        costs = _costs(states, torques)
        best = int(np.nanargmin(np.where(np.isfinite(costs), costs, np.inf)))
        if not costs[best] < cost:
            damping *= 10
            if damping > most:
                break
            continue
        gained = cost - costs[best]
        state, torque, cost = states[best], torques[best], costs[best]
        damping = max(damping / 3, least)
        if gained < _BETTER * cost:
            break
    return Trajectory(state=state, torque=torque, dt=DT, joint=joint)


def tracking_gains(arm: Arm, path: Trajectory, *, q: Array, r: float, last: Array) -> Array:
    """Return gains ``(n, 4)`` of u = u_path − K (x − x_path), by the discrete Riccati equation along the path.

    Args:
        arm: Equations of motion.
        path: Trajectory to track.
        q: Weights of the state's deviations, ``(4,)``.
        r: Weight of the torque.
        last: Cost-to-go matrix at the end, ``(4, 4)``.
    """
    a, b = _slopes(arm, path.state, path.torque, path.joint, path.dt)
    cost, gains = last, np.empty((len(path.torque), 4))
    for k in range(len(gains) - 1, -1, -1):
        gains[k] = b[k] @ cost @ a[k] / (r * path.dt + b[k] @ cost @ b[k])
        closed = a[k] - np.outer(b[k], gains[k])
        cost = np.diag(q) * path.dt + r * path.dt * np.outer(gains[k], gains[k]) + closed.T @ cost @ closed
    return gains


def _backward(arm: Arm, state: Array, torque: Array, joint: int, damping: float) -> tuple[Array, Array]:
    """Compute torque changes ``(n,)`` and gains ``(n, 4)`` from a quadratic model of the cost-to-go."""
    a, b = _slopes(arm, state, torque, joint, DT)
    slope, curve = _END_WEIGHTS * (state[-1] - UPRIGHT), np.diag(_END_WEIGHTS)
    speeds = np.diag([0.0, 0.0, _SPEED_WEIGHT * DT, _SPEED_WEIGHT * DT])
    feedforward, gain = np.empty(len(torque)), np.empty((len(torque), 4))
    for k in range(len(torque) - 1, -1, -1):
        q_u = _TORQUE_WEIGHT * DT * torque[k] + b[k] @ slope
        q_uu = _TORQUE_WEIGHT * DT + b[k] @ curve @ b[k] + damping
        q_ux = b[k] @ curve @ a[k]
        feedforward[k], gain[k] = -q_u / q_uu, -q_ux / q_uu
        slope = speeds @ state[k] + a[k].T @ slope + gain[k] * (q_uu * feedforward[k] + q_u) + q_ux * feedforward[k]
        cross = np.outer(gain[k], q_ux)
        curve = speeds + a[k].T @ curve @ a[k] + q_uu * np.outer(gain[k], gain[k]) + cross + cross.T
        curve = 0.5 * (curve + curve.T)
    return feedforward, gain


def _forward(arm: Arm, state: Array, torque: Array, feedforward: Array, gain: Array, joint: int) -> tuple[Array, Array]:
    """Simulate the changed trajectory for all step lengths `_FRACTIONS` at once."""
    states = np.zeros((len(_FRACTIONS), len(state), 4))
    torques = np.zeros((len(_FRACTIONS), len(torque)))
    with np.errstate(over="ignore", invalid="ignore"):  # a step that is too long diverges and is not used
        for k in range(len(torque)):
            torques[:, k] = torque[k] + _FRACTIONS * feedforward[k] + (states[:, k] - state[k]) @ gain[k]
            states[:, k + 1] = arm.step(states[:, k], _both_torques(torques[:, k], joint), DT)
    return states, torques


def _rollout(arm: Arm, torques: Array, joint: int) -> Array:
    states = np.zeros((len(torques), torques.shape[1] + 1, 4))
    for k in range(torques.shape[1]):
        states[:, k + 1] = arm.step(states[:, k], _both_torques(torques[:, k], joint), DT)
    return states


def _costs(states: Array, torques: Array) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        running = _TORQUE_WEIGHT * (torques**2).sum(axis=-1) + _SPEED_WEIGHT * (states[:, :-1, 2:] ** 2).sum((-2, -1))
        return 0.5 * (DT * running + (_END_WEIGHTS * (states[:, -1] - UPRIGHT) ** 2).sum(axis=-1))


def _slopes(arm: Arm, state: Array, torque: Array, joint: int, dt: float) -> tuple[Array, Array]:
    a, b = arm.linearized(state[:-1], _both_torques(torque, joint), dt=dt)
    return a, b[..., joint]


def _both_torques(torque: Array, joint: int) -> Array:
    both = np.zeros((*torque.shape, 2))
    both[..., joint] = torque
    return both
