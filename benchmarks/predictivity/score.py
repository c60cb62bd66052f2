"""Success and scores of a pendubot's swing-up as the leaderboards of RealAIGym count them.

The task: from hanging at rest to the end effector above 0.45 m, nine tenths of the arm's length, where it must be at
the end of 10 s. Rules and weights: ``dfki-ric-underactuated-lab/double_pendulum``, ``leaderboard/pendubot/
{simulation,real_hardware}_{v1,v2}``, and Wiebe et al., "RealAIGym", 2023. Measured angles and speeds and the commanded
torques are scored, as there. Each function takes arrays with any number of leading axes, time before the joints.
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
# Of the costs in that order. Version 1 takes their weighted sum from 1, version 2 the mean of tanh(π · cost / scale).
_WEIGHTS_V1 = (0.2, 0.1, 0.1, 0.1, 0.1, 0.2, 0.2)
_SCALES_V1 = (10.0, 6.0, 100.0, 60.0, 360.0, 12.0, 1000.0)
_SCALES_V2 = {"swingup_time": 20.0, "energy": 60.0, "torque_cost": 100.0, "smoothness": 4.0, "velocity_cost": 400.0}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How rollouts ended: arrays with the leading axes of what was scored.

    ``swingup_time`` (s) is the time from which on the end effector stays above the line; the last time of all where
    it does not. ``costs`` are those of `COSTS` by name, ``score`` by version; 0 for a failure.
    """

    success: NDArray[np.bool_]
    swingup_time: Array
    costs: Mapping[str, Array]
    score: Mapping[Version, Array]


def height(position: Array) -> Array:
    """The end effector's height above the mount in m, of joint angles ``(…, 2)`` in rad that hang at 0."""
    return -LENGTHS[0] * np.cos(position[..., 0]) - LENGTHS[1] * np.cos(position.sum(axis=-1))


def succeeded(position: Array) -> NDArray[np.bool_]:
    """Whether the end effector is above the line at the end of ``(…, T, 2)``."""
    return height(position[..., -1, :]) > THRESHOLD


def swingup_time(time: Array, position: Array) -> Array:
    """From when on the end effector stays above the line, in s; the last time where it does not at the end."""
    below = height(position) <= THRESHOLD
    after = below.shape[-1] - np.argmax(below[..., ::-1], axis=-1)  # the first frame after the last one below
    first = np.where(below.any(axis=-1), np.minimum(after, below.shape[-1] - 1), 0)
    return time[first]


def outcome(time: Array, position: Array, velocity: Array, torque: Array) -> Outcome:
    """Score rollouts on one time axis.

    Args:
        time: ``(T,)`` in s.
        position: measured angles ``(…, T, 2)`` in rad.
        velocity: measured speeds in rad/s.
        torque: commanded torques in N·m.
    """
    success, settled = succeeded(position), swingup_time(time, position)
    step, held = np.diff(time), torque[..., :-1, :]
    values = (
        settled,
        np.abs(torque).max(axis=(-2, -1)),
        np.abs(np.diff(position, axis=-2) * held).sum(axis=(-2, -1)),
        np.einsum("...tj,t->...", np.abs(held), step),
        np.einsum("...tj,t->...", held**2, step),
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
    return Outcome(success=success, swingup_time=settled, costs=costs, score=scores)


def outcome_of(episode: Episode) -> Outcome:
    """Score a recorded rollout.

    Raises:
        LogError: it is no log of two joints under torques with their speeds.
    """
    speeds = episode.signals.get("joint_velocity")
    if episode.command != "torque" or len(episode.joints) != len(LENGTHS) or speeds is None:
        raise LogError(
            f"Episode {episode.index} of {episode.origin or 'the log'} is no rollout of the two-joint arm: that takes "
            "two joints, torques as commands and the signal joint_velocity."
        )
    return outcome(episode.time, episode.units.to_si(episode.state), speeds.values, episode.action)
