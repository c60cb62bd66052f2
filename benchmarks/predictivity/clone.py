"""Clone policies from recorded states and torques, as squashed sums of Gaussians, deterministic or stochastic.

Both learned policies of the leaderboard squash: MC-PILCO's is limit · tanh(sum of Gaussians of speeds, cosines and
sines of the angles) (Amadio et al., "Model-Based Policy Search Using Monte Carlo Gradient Estimation With Real Systems
Application", T-RO 2022), SAC's is limit · tanh(mean + deviation · normal) of a network (Haarnoja et al., ICML 2018).
Here mean and log deviation are sums of Gaussians around recorded states plus a linear part. A clone is valid only near
recorded states; `Clone.strangeness` returns the distance from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_ndtr

Array = NDArray[np.float64]
SPEED = 10.0  # rad/s, scale of the velocities: about the root mean square speed of the swing-ups
WIDTH = 0.3  # of a Gaussian, in scaled units; best of 0.3, 0.6 and 1.0 on held-out rollouts, for both policies
CENTRES = 200
_RIDGE = {"torque": 1e-4, "likelihood": 0.1}  # penalty of weights; best power of ten on held-out rollouts
_ITERATIONS = 400
_LOG_DEVIATION = (-5.0, 2.0)
_NEAR_LIMIT = 1e-6  # relative distance from the limit at which a torque counts as clipped
_MOST = 1 - 1e-5


def features(state: Array) -> Array:
    """Return cosines, sines and scaled velocities ``(…, 6)`` of states ``(…, 4)``."""
    angle, speed = state[..., :2], state[..., 2:]
    return np.concatenate([np.cos(angle), np.sin(angle), speed / SPEED], axis=-1)


@dataclass(frozen=True, kw_only=True)
class Clone:
    """Clone of one torque of a policy.

    Attributes:
        centres: Centres of the Gaussians, ``(ncentre, 6)`` in the space of `features`.
        weights: Weights of the Gaussians, of the linear part and of the constant.
        limit: Torque limit, N·m.
        deviation: Weights of the log standard deviation; None for a deterministic policy.
    """

    centres: Array
    weights: Array
    limit: float
    deviation: Array | None = None

    def __call__(self, state: Array, rng: np.random.Generator | None = None) -> Array:
        """Return torques ``(n,)`` in N·m for states ``(n, 4)``; the median torque if ``rng`` is None."""
        rows = _basis(features(state), self.centres)
        latent = rows @ self.weights
        if self.deviation is not None and rng is not None:
            latent = latent + np.exp(np.clip(rows @ self.deviation, *_LOG_DEVIATION)) * rng.standard_normal(len(rows))
        return self.limit * np.tanh(latent)

    def strangeness(self, state: Array) -> Array:
        """Return the distance of states ``(…, 4)`` to the nearest centre, in widths; above 2 the clone is not valid."""
        rows = features(state)
        return (
            np.sqrt(_distances(rows.reshape(-1, rows.shape[-1]), self.centres).min(axis=-1)).reshape(rows.shape[:-1])
            / WIDTH
        )


def clone_torques(state: Array, torque: Array, limit: float) -> Clone:
    """Fit a deterministic policy to torques ``(n,)`` at states ``(n, 4)``, by least squares."""
    centres = _farthest_points(features(state))
    rows, ridge = _basis(features(state), centres), _RIDGE["torque"]
    latent_target = np.arctanh(np.clip(torque / limit, -0.99, 0.99))
    first: Array = np.linalg.solve(rows.T @ rows + 1e-2 * np.eye(rows.shape[1]), rows.T @ latent_target).astype(
        np.float64
    )

    def loss(weights: Array) -> tuple[float, Array]:
        squashed = np.tanh(rows @ weights)
        error = limit * squashed - torque
        slope = rows.T @ (error * limit * (1 - squashed**2)) + ridge * weights
        return 0.5 * float(error @ error + ridge * weights @ weights), slope

    return Clone(centres=centres, weights=_minimize(loss, first), limit=limit)


def clone_by_chance(state: Array, command: Array, added: Array, limit: float) -> Clone:
    """Fit a stochastic policy, by maximum likelihood.

    Args:
        state: Recorded states ``(n, 4)``.
        command: Recorded commands, ``(n,)`` in N·m: the policy's torque plus ``added``, clipped at the limit.
        added: Friction compensation that the command includes, ``(n,)`` in N·m.
        limit: Torque limit of policy and command, N·m.
    """
    centres = _farthest_points(features(state))
    rows, ridge = _basis(features(state), centres), _RIDGE["likelihood"]
    high, low = command >= limit * (1 - _NEAR_LIMIT), command <= -limit * (1 - _NEAR_LIMIT)
    latent = np.arctanh(np.clip((command - added) / limit, -_MOST, _MOST))
    whole = ~(high | low)

    def loss(weights: Array) -> tuple[float, Array]:
        mean, spread = weights[: rows.shape[1]], weights[rows.shape[1] :]
        log_sd = np.clip(rows @ spread, *_LOG_DEVIATION)
        sd = np.exp(log_sd)
        z = (latent - rows @ mean) / sd
        of_mean, of_spread = np.where(whole, -z / sd, 0.0), np.where(whole, 1 - z**2, 0.0)
        value = float(np.sum(0.5 * z[whole] ** 2 + log_sd[whole]))
        for cut, sign in ((high, 1.0), (low, -1.0)):  # clipped commands: censored likelihood
            reach = -sign * z[cut]
            log_share = log_ndtr(reach)
            hazard = np.exp(-0.5 * reach**2 - 0.5 * np.log(2 * np.pi) - log_share)
            value -= float(log_share.sum())
            of_mean[cut], of_spread[cut] = -sign * hazard / sd[cut], hazard * reach
        slope = np.concatenate([rows.T @ of_mean, rows.T @ of_spread]) + ridge * weights
        return value + 0.5 * ridge * float(weights @ weights), slope

    mean, spread = np.split(_minimize(loss, np.zeros(2 * rows.shape[1])), 2)
    return Clone(centres=centres, weights=mean, limit=limit, deviation=spread)


def _minimize(loss: Callable[[Array], tuple[float, Array]], first: Array) -> Array:
    found = minimize(loss, first, jac=True, method="L-BFGS-B", options={"maxiter": _ITERATIONS})
    return np.asarray(found.x, dtype=np.float64)


def _farthest_points(rows: Array) -> Array:
    """Select rows by farthest-point sampling: each next row is the farthest from all selected ones."""
    chosen = [0]
    distance = ((rows - rows[0]) ** 2).sum(axis=-1)
    while len(chosen) < min(CENTRES, len(rows)):
        chosen.append(int(np.argmax(distance)))
        distance = np.minimum(distance, ((rows - rows[chosen[-1]]) ** 2).sum(axis=-1))
    return rows[chosen]


def _distances(rows: Array, centres: Array) -> Array:
    """Return squared distances ``(n, ncentre)``."""
    squares = (rows**2).sum(axis=-1)[:, None] + (centres**2).sum(axis=-1) - 2 * rows @ centres.T
    return np.maximum(squares, 0.0)


def _basis(rows: Array, centres: Array) -> Array:
    gaussians = np.exp(-_distances(rows, centres) / (2 * WIDTH**2))
    return np.concatenate([gaussians, rows, np.ones((len(rows), 1))], axis=-1)
