"""Score a trial, simulated or real: success, progress, time, smoothness, force, violated limits."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.evaluate.variants import HAND, PEAK, SELF, WORLD
from twinloop.hardware.limits import SPEED_SHARE, MotionLimits, motion_limits
from twinloop.rollout import BatchResult
from twinloop.stats.series import spectral_arc_length
from twinloop.tasks.kinematics import Chain
from twinloop.tasks.protocol import has_progress
from twinloop.twin import Twin

Array = NDArray[np.float64]
# rad beyond a joint's range that count as driving into its stop: two encoder counts of a 12-bit servo (0.18°).
STOP_TOLERANCE = 0.003
VIOLATIONS = ("range", "speed", "acceleration", "world", "self")


@dataclass(frozen=True, kw_only=True)
class TrialScores:
    """Scores of n trials, ``(n,)`` each; NaN if unknown.

    ``violations`` ``(n, len(VIOLATIONS))`` is the number of control steps that violate each kind of limit; ``broken``
    is the number that violate any.
    """

    success: NDArray[np.bool_]
    progress: Array
    time_s: Array
    smoothness: Array
    peak_force_n: Array
    violations: NDArray[np.int64]
    broken: NDArray[np.int64]


def compute_arm_limits(twin: Twin) -> MotionLimits:
    """Return the limits of a robot's motion: `hardware.limits.motion_limits`, with other limits for the gripper.

    A gripper closes as fast as its servo can until the object stops it. Therefore it may have the servo's whole no-load
    speed, and its acceleration is not limited.
    """
    limits = motion_limits(twin)
    gripper = twin.robot.gripper
    if gripper is None:
        return limits
    hand = twin.robot.joints.index(gripper.joint)
    speed, acceleration = limits.speed.copy(), limits.acceleration.copy()
    speed[hand] /= SPEED_SHARE
    speed[hand] *= 1.05  # no-load speeds of servos of one kind differ by a few percent: hidden.yaml
    acceleration[hand] = np.inf
    return replace(limits, speed=speed, acceleration=acceleration)


def find_joint_violations(twin: Twin, limits: MotionLimits, qpos: Array, qvel: Array, hz: float) -> NDArray[np.bool_]:
    """Return a mask ``(…, T, 3)``: at which steps joints ``(…, T, n)`` exceed range, speed or acceleration."""
    low, high = twin.joint_ranges.T
    outside = (qpos < low - STOP_TOLERANCE) | (qpos > high + STOP_TOLERANCE)
    fast = np.abs(qvel) > limits.speed
    hard = np.zeros_like(fast)
    hard[..., 1:, :] = np.abs(np.diff(qvel, axis=-2)) * hz > limits.acceleration
    return np.stack([outside.any(axis=-1), fast.any(axis=-1), hard.any(axis=-1)], axis=-1)


def compute_tool_smoothness(twin: Twin, qpos: Array, hz: float) -> Array:
    """Return the spectral arc length of the tool's speed along positions ``(n, T, nq)``, ``(n,)``; NaN without a tool.

    See `stats.smoothness`.
    """
    if twin.robot.tcp is None:
        return np.full(len(qpos), np.nan)
    chain = Chain(twin.model, twin.robot.tcp, twin.home()[0])
    flat = np.nan_to_num(qpos[..., chain.qpos]).reshape(-1, chain.njoint)
    tool = chain.pose(flat).position.reshape(*qpos.shape[:-1], 3)
    speed = np.sqrt((np.diff(tool, axis=-2) ** 2).sum(axis=-1)) * hz
    return spectral_arc_length(speed, hz)


def score_batch(result: BatchResult, limits: MotionLimits) -> TrialScores:
    """Score a batch that ran on a twin with contact sensors (`variants.with_contact_sensors`).

    For trials that end in success, the time to success is that of the first state of the last interval in which the
    task was done. States after the divergence of a world do not count. Forces and contacts are those of the physics
    step before each command, so that a shorter impact may be missed.
    """
    twin, trajectories, held = result.twin, result.trajectories, result.held
    n, nframe = held.shape
    trusted = trajectories.valid[:, None] | (np.arange(nframe) < trajectories.invalid_step[:, None])
    progress = np.full(n, np.nan)
    if has_progress(result.task):
        stages = result.task.progress(trajectories.states)
        last = np.where(trajectories.valid, nframe - 1, np.maximum(trajectories.invalid_step - 1, 0))
        progress = stages[np.arange(n), last]
    not_done = np.where(held, 0, np.arange(1, nframe + 1))
    began = np.minimum(not_done.max(axis=1), nframe - 1)
    since = trajectories.time[np.arange(n), began] - trajectories.time[:, 0]
    qpos, qvel = trajectories.qpos[..., twin.joint_qpos], trajectories.qvel[..., twin.joint_qvel]
    broken = np.zeros((n, nframe, len(VIOLATIONS)), dtype=bool)
    broken[..., :3] = find_joint_violations(twin, limits, qpos, qvel, twin.control_hz)
    force, world, own = _read_contacts(result)
    broken[..., 3], broken[..., 4] = world, own
    broken &= trusted[..., None]
    smoothness = compute_tool_smoothness(twin, trajectories.qpos, twin.control_hz)
    return TrialScores(
        success=result.success,
        progress=progress,
        time_s=np.where(result.success, since, np.nan),
        smoothness=np.where(trajectories.valid, smoothness, np.nan),
        peak_force_n=np.max(np.where(trusted, force, 0.0), axis=1),
        violations=broken.sum(axis=1),
        broken=broken.any(axis=-1).sum(axis=1),
    )


def _read_contacts(result: BatchResult) -> tuple[Array, NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the largest force, and contact with the world and with the robot itself, per state, ``(n, nframe)``."""
    values = result.trajectories.records.get("sensordata")
    model = result.twin.model
    names = [model.sensor(i).name for i in range(model.nsensor)]
    if values is None or PEAK not in names:
        raise InputError(f"The twin {result.twin.name} ran without contact sensors. Run it as `evaluate` does.")

    def read(name: str) -> Array:
        sensor = model.sensor(name)
        return values[..., sensor.adr[0] : sensor.adr[0] + sensor.dim[0]]

    hand = read(HAND)[..., 0] if HAND in names else 0.0
    force = np.sqrt((read(PEAK) ** 2).sum(axis=-1))
    return force, read(WORLD)[..., 0] > 0, read(SELF)[..., 0] > hand
