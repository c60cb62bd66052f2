"""Score a trial: success, progress, time, smoothness, contact force and violated safety limits.

Simulated and real trials are scored by the same functions.
"""

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
# Relative tolerance of the acceleration, for the rounding of commands that are stored as float32 and differenced twice.
ROUNDING = 1e-3
VIOLATIONS = ("range", "speed", "acceleration", "world", "self")


@dataclass(frozen=True, kw_only=True)
class TrialScores:
    """Scores of a batch of trials, shape ``(ntrial,)`` each; NaN if a score is unknown.

    Attributes:
        success: Whether the task is done at the end of the trial.
        progress: Progress of the task at the end.
        time_s: Time to success in s; NaN for a failure.
        smoothness: Spectral arc length of the tool's motion; nearer to 0 is smoother.
        peak_force_n: Largest contact force of the robot in N.
        violations: Number of control steps that violate each kind of limit in `VIOLATIONS` (joint range, speed,
            acceleration as in `find_joint_violations`, contact with the world, contact with itself), shape
            ``(ntrial, 5)``. Trial tables have it as the columns ``broken/KIND``.
        violating_steps: Number of control steps that violate any limit; the column ``violations`` of trial tables.
    """

    success: NDArray[np.bool_]
    progress: Array
    time_s: Array
    smoothness: Array
    peak_force_n: Array
    violations: NDArray[np.int64]
    violating_steps: NDArray[np.int64]


def compute_arm_limits(twin: Twin) -> MotionLimits:
    """Return the robot's motion limits from `hardware.limits.motion_limits`, but with higher limits for the gripper.

    A gripper closes as fast as its servo can until the object stops it. Therefore its speed limit is the servo's
    no-load speed, and its acceleration is not limited.
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


def find_joint_violations(
    twin: Twin, limits: MotionLimits, qpos: Array, qvel: Array, commands: Array, hz: float
) -> NDArray[np.bool_]:
    """Return at which time steps any joint exceeds its range, its speed limit or its acceleration limit.

    The acceleration of a robot that takes positions or velocities is that of its commands: friction stops a joint
    within one time step, harder than its drive can, whatever the commands are.

    Args:
        twin: The twin, for the joint ranges and the kind of commands.
        limits: Limits of speed and acceleration.
        qpos: Joint positions, shape ``(…, T, njoint)`` for T time steps.
        qvel: Joint velocities, same shape.
        commands: Commands in SI units, shape ``(…, T, njoint)``, or ``(…, T - 1, njoint)`` if none follows the last
            state.
        hz: Time steps per second.

    Returns:
        Mask of shape ``(…, T, 3)``: range, speed and acceleration on the last axis.
    """
    low, high = twin.joint_ranges.T
    outside = ((qpos < low - STOP_TOLERANCE) | (qpos > high + STOP_TOLERANCE)) & (high > low)  # wheels have no range
    fast = np.abs(qvel) > limits.speed
    moved = {"position": np.diff(commands, axis=-2) * hz, "velocity": commands}.get(twin.robot.control, qvel)
    acceleration = np.abs(np.diff(moved, axis=-2)) * hz
    hard = np.zeros_like(fast)
    hard[..., 1 : 1 + acceleration.shape[-2], :] = acceleration > limits.acceleration * (1 + ROUNDING)
    return np.stack([outside.any(axis=-1), fast.any(axis=-1), hard.any(axis=-1)], axis=-1)


def compute_tool_smoothness(twin: Twin, qpos: Array, hz: float) -> Array:
    """Return the spectral arc length of the tool's speed in each trial (see `stats.series.spectral_arc_length`).

    Args:
        twin: The twin with the robot's kinematics.
        qpos: Positions of all joints, shape ``(ntrial, T, nq)`` for T time steps.
        hz: Time steps per second.

    Returns:
        Shape ``(ntrial,)``; nearer to 0 is smoother, NaN if the robot has no tool site.
    """
    if twin.robot.tcp is None:
        return np.full(len(qpos), np.nan)
    chain = Chain(twin.model, twin.robot.tcp, twin.home()[0])
    flat = np.nan_to_num(qpos[..., chain.qpos]).reshape(-1, chain.njoint)
    tool = chain.pose(flat).position.reshape(*qpos.shape[:-1], 3)
    speed = np.sqrt((np.diff(tool, axis=-2) ** 2).sum(axis=-1)) * hz
    return spectral_arc_length(speed, hz)


def score_batch(result: BatchResult, limits: MotionLimits) -> TrialScores:
    """Score a batch of simulated trials that ran on a twin with contact sensors (`variants.with_contact_sensors`).

    The time to success is the time at which the task became done and stayed done until the end of the trial. States
    after the divergence of a world do not count. Forces and contacts are those of the physics step before each command,
    so that a shorter impact may be missed.

    Args:
        result: Result of the rollout.
        limits: Limits of speed and acceleration.
    """
    twin, trajectories, held = result.twin, result.trajectories, result.success_by_state
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
    broken[..., :3] = find_joint_violations(twin, limits, qpos, qvel, trajectories.commands, twin.control_hz)
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
        violating_steps=broken.any(axis=-1).sum(axis=1),
    )


def _read_contacts(result: BatchResult) -> tuple[Array, NDArray[np.bool_], NDArray[np.bool_]]:
    """Read the recorded contact sensors of a batch.

    Returns:
        Largest contact force in N, whether the robot touches the world, and whether it touches itself, per state, shape
        ``(ntrial, nframe)`` each.

    Raises:
        InputError: If the batch ran without contact sensors.
    """
    values = result.trajectories.records.get("sensordata")
    model = result.twin.model
    names = [model.sensor(i).name for i in range(model.nsensor)]
    if values is None or PEAK not in names:
        raise InputError(
            f"The twin {result.twin.name} ran without contact sensors. Add them with `with_contact_sensors`."
        )

    def read(name: str) -> Array:
        sensor = model.sensor(name)
        return values[..., sensor.adr[0] : sensor.adr[0] + sensor.dim[0]]

    hand = read(HAND)[..., 0] if HAND in names else 0.0
    force = np.sqrt((read(PEAK) ** 2).sum(axis=-1))
    return force, read(WORLD)[..., 0] > 0, read(SELF)[..., 0] > hand
