"""Compute success and scores of a pendubot's swing-up by the rules of the RealAIGym leaderboards.

The task: swing up from hanging at rest, so that the end effector is above 0.45 m (nine tenths of the arm's length) at
the end of 10 s. Rules and weights: ``dfki-ric-underactuated-lab/double_pendulum``, ``leaderboard/pendubot/
{simulation,real_hardware}_{v1,v2}``, and Wiebe et al., "RealAIGym", 2023. As there, measured angles and velocities and
commanded torques are scored. Each function takes arrays with any number of leading axes, time before joints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import LogError
from twinloop.core.records import Episode

Array = NDArray[np.float64]
Version = Literal["v1", "v2"]
LENGTHS = (0.2, 0.3)  # m, of the links of design C.1
THRESHOLD = 0.45  # m above the mount

COSTS = ("swingup_time", "max_torque", "energy", "integrated_torque", "torque_cost", "smoothness", "velocity_cost")
UNITS = ("s", "N·m", "J", "N·m·s", "N²m²s", "N·m", "rad²/s")
# For the costs in that order. The score is 1 minus their weighted sum (version 1), or 1 minus the mean of
# tanh(π · cost / scale).
_WEIGHTS_V1 = (0.2, 0.1, 0.1, 0.1, 0.1, 0.2, 0.2)
_SCALES_V1 = (10.0, 6.0, 100.0, 60.0, 360.0, 12.0, 1000.0)
_SCALES_V2 = {"swingup_time": 20.0, "energy": 60.0, "torque_cost": 100.0, "smoothness": 4.0, "velocity_cost": 400.0}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Results of rollouts; arrays have the leading axes of the scored arrays.

    Attributes:
        success: Whether the end effector is above the threshold at the end.
        swingup_time: Time after which the end effector stays above the threshold, s; the last time of the rollout if it
            does not stay above.
        costs: Values of the costs `COSTS`, by name.
        score: Score by version; 0 for a failure.
    """

    success: NDArray[np.bool_]
    swingup_time: Array
    costs: Mapping[str, Array]
    score: Mapping[Version, Array]


def height(position: Array) -> Array:
    """Return the end effector's height above the mount in m, for joint angles ``(…, 2)`` in rad; 0 hangs down."""
    return -LENGTHS[0] * np.cos(position[..., 0]) - LENGTHS[1] * np.cos(position.sum(axis=-1))


def succeeded(position: Array) -> NDArray[np.bool_]:
    """Return whether the end effector is above the threshold at the end of positions ``(…, T, 2)``."""
    return height(position[..., -1, :]) > THRESHOLD


def swingup_time(time: Array, position: Array) -> Array:
    """Return the time in s after which the end effector stays above the threshold; the last time if it does not."""
    below = height(position) <= THRESHOLD
    after = below.shape[-1] - np.argmax(below[..., ::-1], axis=-1)  # the first frame after the last one below
    first = np.where(below.any(axis=-1), np.minimum(after, below.shape[-1] - 1), 0)
    return time[first]


def outcome(time: Array, position: Array, velocity: Array, torque: Array) -> Outcome:
    """Score rollouts with a common time axis.

    Args:
        time: Times ``(T,)`` in s.
        position: Measured angles ``(…, T, 2)`` in rad.
        velocity: Measured velocities in rad/s.
        torque: Commanded torques in N·m.
    """
    success, settling_time = succeeded(position), swingup_time(time, position)
    step, held_torque = np.diff(time), torque[..., :-1, :]
    values = (
        settling_time,
        np.abs(torque).max(axis=(-2, -1)),
        np.abs(np.diff(position, axis=-2) * held_torque).sum(axis=(-2, -1)),
        np.einsum("...tj,t->...", np.abs(held_torque), step),
        np.einsum("...tj,t->...", held_torque**2, step),
        np.diff(torque, axis=-2).std(axis=-2).sum(axis=-1),
        np.einsum("...tj,t->...", velocity[..., :-1, :] ** 2, step),
    )
    costs: dict[str, Array] = dict(zip(COSTS, values, strict=True))
    terms = zip(_WEIGHTS_V1, values, _SCALES_V1, strict=True)
    loss = {
        "v1": sum(weight * value / scale for weight, value, scale in terms),
        "v2": np.mean([np.tanh(np.pi * costs[name] / scale) for name, scale in _SCALES_V2.items()], axis=0),
    }
    scores: dict[Version, Array] = {"v1": success * (1 - loss["v1"]), "v2": success * (1 - loss["v2"])}
    return Outcome(success=success, swingup_time=settling_time, costs=costs, score=scores)


def outcome_of(episode: Episode) -> Outcome:
    """Score a recorded rollout.

    Raises:
        LogError: If the log does not have two joints, torque commands and measured velocities.
    """
    speeds = episode.signals.get("joint_velocity")
    if episode.command != "torque" or len(episode.joints) != len(LENGTHS) or speeds is None:
        raise LogError(
            f"Episode {episode.index} of {episode.origin or 'the log'} is not a rollout of the two-joint arm. It needs "
            "two joints, torque commands and the signal joint_velocity."
        )
    return outcome(episode.time, episode.units.to_si(episode.state), speeds.values, episode.action)
