"""Equations of motion of the two-joint arm without friction, with which the leaderboard's controllers are designed.

Parameters: the published ones of design C.1, model 1.0, excluding friction and rotor inertia, as in the leaderboard's
simulation and controllers. State: angles and velocities ``(…, 4)`` in rad and rad/s; at angle 0 the arm hangs down, and
the second joint is relative to the first link.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_continuous_are

Array = NDArray[np.float64]
UPRIGHT = np.array([np.pi, 0.0, 0.0, 0.0])
_STEP = 1e-6  # of central differences


@dataclass(frozen=True, kw_only=True)
class Arm:
    """Masses (kg), lengths and centres of mass (m), and inertias about the joints (kg·m²) of the two links."""

    m1: float = 0.5234602302310271
    m2: float = 0.6255677234174437
    l1: float = 0.2
    r1: float = 0.2
    r2: float = 0.25569305436052964
    i1: float = 0.031887199591513114
    i2: float = 0.05086984812807257
    gravity: float = 9.81

    def derivative(self, state: Array, torque: Array) -> Array:
        """Return velocities and accelerations ``(…, 4)`` under torques ``(…, 2)``: M(q) q̈ + C(q, q̇) q̇ + G(q) = τ."""
        q1, q2, w1, w2 = np.moveaxis(state, -1, 0)
        lever = self.m2 * self.l1 * self.r2
        cosine, sine = lever * np.cos(q2), lever * np.sin(q2)
        m11 = self.i1 + self.i2 + self.m2 * self.l1**2 + 2 * cosine
        m12 = self.i2 + cosine
        first, second = self.m1 * self.r1 + self.m2 * self.l1, self.m2 * self.r2
        weight2 = self.gravity * second * np.sin(q1 + q2)
        weight1 = self.gravity * first * np.sin(q1) + weight2
        f1 = torque[..., 0] + sine * (2 * w1 * w2 + w2**2) - weight1
        f2 = torque[..., 1] - sine * w1**2 - weight2
        determinant = m11 * self.i2 - m12**2
        a1 = (self.i2 * f1 - m12 * f2) / determinant
        a2 = (m11 * f2 - m12 * f1) / determinant
        return np.stack([w1, w2, a1, a2], axis=-1)

    def energy(self, state: Array) -> Array:
        """Return kinetic plus potential energy in J; the potential energy is 0 if both links are horizontal."""
        q1, q2, w1, w2 = np.moveaxis(state, -1, 0)
        coupling = self.i2 + self.m2 * self.l1 * self.r2 * np.cos(q2)
        m11 = self.i1 + self.m2 * self.l1**2 + 2 * coupling - self.i2
        kinetic = 0.5 * m11 * w1**2 + coupling * w1 * w2 + 0.5 * self.i2 * w2**2
        first, second = self.m1 * self.r1 + self.m2 * self.l1, self.m2 * self.r2
        return kinetic - self.gravity * (first * np.cos(q1) + second * np.cos(q1 + q2))

    def step(self, state: Array, torque: Array, dt: float) -> Array:
        """Integrate one time step ``dt`` in s under constant torque, by the fourth-order Runge–Kutta method."""
        k1 = self.derivative(state, torque)
        k2 = self.derivative(state + 0.5 * dt * k1, torque)
        k3 = self.derivative(state + 0.5 * dt * k2, torque)
        k4 = self.derivative(state + dt * k3, torque)
        return state + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    def linearized(self, state: Array, torque: Array, *, dt: float | None = None) -> tuple[Array, Array]:
        """Return ``∂f/∂x`` ``(…, 4, 4)`` and ``∂f/∂τ`` ``(…, 4, 2)`` for f = `derivative`, or `step` with ``dt``."""
        nudges = _STEP * np.vstack([np.eye(6), -np.eye(6)])
        x, u = state[..., None, :] + nudges[:, :4], torque[..., None, :] + nudges[:, 4:]
        moved = self.derivative(x, u) if dt is None else self.step(x, u, dt)
        slopes = np.swapaxes(moved[..., :6, :] - moved[..., 6:, :], -1, -2) / (2 * _STEP)
        return slopes[..., :4], slopes[..., 4:]

    def lqr(self, q: Array, r: float, *, joint: int) -> tuple[Array, Array]:
        """Return LQR gain ``(4,)`` and cost-to-go matrix ``(4, 4)`` about the upright state: u = −K (x − upright).

        Args:
            q: Weights of the state's deviations, ``(4,)``.
            r: Weight of the torque.
            joint: Index of the driven joint.
        """
        a, b = self.linearized(UPRIGHT, np.zeros(2))
        driven = b[:, joint : joint + 1]
        cost = solve_continuous_are(a, driven, np.diag(q), np.array([[r]]))
        return driven[:, 0] @ cost / r, cost


def deviation(state: Array) -> Array:
    """Return the deviation from the upright state, ``(…, 4)``, with angles within ±π."""
    delta = state - UPRIGHT
    delta[..., :2] = (delta[..., :2] + np.pi) % (2 * np.pi) - np.pi
    return delta
