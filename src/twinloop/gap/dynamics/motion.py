"""Compute motion and loads from a recording: positions, speeds, reversals, gear loads, contact.

Events and states in which a twin's error arises are defined by these quantities.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.signal import savgol_coeffs, savgol_filter

from twinloop.core.params import ParamTable
from twinloop.simulate.open_loop import compute_control_series
from twinloop.simulate.replay import apply_conditions
from twinloop.simulate.replay_logs import ReplayLogs
from twinloop.twin import Twin

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


def contact_frames(twin: Twin, qpos: Array, parts: Mask, known: Mask, distance: float) -> Mask:
    """Find the frames in which parts of a twin touch anything else at the measured positions.

    Args:
        twin: A twin with contacts.
        qpos: Generalized positions, shape ``(nwindow, nframe, nq)``; frames with NaN have no contact.
        parts: Mask of the bodies of each part, shape ``(npart, nbody)``. A contact counts for a part if exactly one of
            the two bodies belongs to it.
        known: Mask of the bodies that were measured or do not move, shape ``(nbody,)``; contacts with other bodies do
            not count.
        distance: Distance in m up to which surfaces count as touching.

    Returns:
        Mask of the frames with contact of each part, shape ``(nwindow, nframe, npart)``.
    """
    model = copy.copy(twin.model)
    model.geom_margin[:] = model.body_margin[:] = distance  # the broad phase uses the margins of bodies
    model.geom_gap[:] = 0.0
    data = mujoco.MjData(model)
    touching = np.zeros((*qpos.shape[:2], len(parts)), dtype=bool)
    for window, frame in np.argwhere(~np.isnan(qpos).any(axis=-1)):
        data.qpos[:] = qpos[window, frame]
        mujoco.mj_kinematics(model, data)
        mujoco.mj_collision(model, data)
        touching[window, frame] = _find_touching_parts(model, data, parts, known, distance)
    return touching


def _find_touching_parts(model: mujoco.MjModel, data: mujoco.MjData, parts: Mask, known: Mask, distance: float) -> Mask:
    geoms = data.contact.geom[data.contact.dist <= distance]
    first, second = model.geom_bodyid[geoms[(geoms >= 0).all(axis=1)]].T
    placed = known[first] & known[second]
    between = parts[:, first] != parts[:, second]
    return (between & placed).any(axis=1)


def subtree_mask(model: mujoco.MjModel, body: int) -> Mask:
    """Return a mask of a body and all its descendants in the kinematic tree, shape ``(nbody,)``."""
    below = np.zeros(model.nbody, dtype=bool)
    below[body] = True
    for child in range(body + 1, model.nbody):  # parents come first
        below[child] |= below[model.body_parentid[child]]
    return below


# Standard deviation of third differences of white noise, divided by that of the noise: √(1 + 9 + 9 + 1).
_THIRD = np.sqrt(20.0)
_MAD = 1.4826  # median absolute deviation to standard deviation, of a normal distribution
_ORDER = 2  # parabolas: speeds of accelerated motion are unbiased


def compute_speeds(position: Array, hz: float, span: float) -> tuple[Array, Array]:
    """Compute speeds by a Savitzky-Golay filter with parabolas, and the standard deviation of their noise.

    Args:
        position: Positions, shape ``(nwindow, nframe, n)``, NaN if not measured.
        hz: Frames per second.
        span: Length of the parabolas in s; at least five frames, fewer if a window has fewer.

    Returns:
        Speeds in the unit of the positions per s, same shape, and the noise in the same unit, shape ``(n,)``. Speeds
        are NaN within half a span of a gap. The first and last half span of a window have the speed of the nearest
        other frame.
    """
    width = max(5, 2 * int(span * hz / 2) + 1)
    found = np.full_like(position, np.nan)
    seen = np.any(~np.isnan(position), axis=-1)
    ends = np.where(np.any(seen, axis=1), position.shape[1] - np.argmax(seen[:, ::-1], axis=1), 0)
    for end in np.unique(ends[ends > 1]):
        rows = ends == end
        part = position[rows, :end]
        here = min(width, end - (1 - end % 2))
        if here > _ORDER:
            fitted = savgol_filter(part, here, _ORDER, deriv=1, delta=1.0 / hz, axis=1)
            inner = np.clip(np.arange(end), here // 2, end - 1 - here // 2)
            found[rows, :end] = fitted[
                :, inner
            ]  # the ends of a parabola are several times less accurate than its middle
        else:
            found[rows, :end] = np.gradient(part, 1.0 / hz, axis=1)
    gain = np.linalg.norm(savgol_coeffs(width, _ORDER, deriv=1, delta=1.0 / hz))
    return found, gain * estimate_reading_noise(position)


def estimate_reading_noise(position: Array) -> Array:
    """Estimate the standard deviation of the noise of positions from their third differences, shape ``(n,)``.

    Motion is smooth and changes the median of third differences little. The result is at least the rounding error of
    the readings, which is estimated from their smallest change. Otherwise an encoder at rest, which repeats one count,
    would seem to have no noise.

    Args:
        position: Positions, shape ``(nwindow, nframe, n)``, NaN if not measured.
    """
    n = position.shape[-1]
    noise = np.zeros(n)
    for column in range(n):
        third = np.abs(np.diff(position[..., column], n=3, axis=1))
        steps = np.abs(np.diff(position[..., column], axis=1))
        known, changes = third[~np.isnan(third)], steps[steps > 0]
        noise[column] = _MAD * np.median(known) / _THIRD if len(known) else 0.0
        if len(changes):
            noise[column] = max(noise[column], changes.min() / np.sqrt(12.0))
    return noise


def compute_directions(speed: Array, threshold: ArrayLike) -> NDArray[np.int8]:
    """Return the direction of motion: 1 or −1 if it is faster than the threshold, 0 at rest or without a measurement.

    Args:
        speed: Speeds, shape ``(…, n)``, NaN if not measured.
        threshold: Speed above which something moves, shape ``(n,)`` or one number.
    """
    moving = np.abs(np.nan_to_num(speed)) > np.asarray(threshold)
    return np.where(moving, np.sign(np.nan_to_num(speed)), 0.0).astype(np.int8)


def find_reversals(direction: NDArray[np.int8]) -> Mask:
    """Return a mask of the first frame after each change of direction, shape ``(nwindow, nframe, n)``.

    ``direction`` is 1, −1 or 0 (rest), of the same shape. A reversal may have frames at rest in between.
    """
    last = _find_last_direction(direction)
    return (direction != 0) & (last != 0) & (direction != last)


def find_breakaways(direction: NDArray[np.int8], rest: int) -> Mask:
    """Return a mask of the first frames of motion after at least ``rest`` frames without motion.

    ``direction`` is 1, −1 or 0 (rest), shape ``(nwindow, nframe, n)``.
    """
    still = np.cumsum(direction == 0, axis=1, dtype=np.int64)
    waited = np.zeros(direction.shape, dtype=bool)
    if direction.shape[1] > rest:
        waited[:, rest] = still[:, rest - 1] == rest
        waited[:, rest + 1 :] = still[:, rest:-1] - still[:, : -rest - 1] == rest
    return waited & (direction != 0)


def find_onsets(mask: Mask) -> Mask:
    """Return a mask of the frames at which a mask becomes true; the first frame of a window is not counted."""
    begun = np.zeros_like(mask)
    begun[:, 1:] = mask[:, 1:] & ~mask[:, :-1]
    return begun


def widen_mask(mask: Mask, before: int, after: int) -> Mask:
    """Extend each true frame of a mask by ``before`` frames before it and ``after`` frames after it."""
    nframe = mask.shape[1]
    count = np.concatenate([np.zeros_like(mask[:, :1], dtype=np.int64), np.cumsum(mask, axis=1)], axis=1)
    at = np.arange(nframe)
    last, first = np.minimum(at + before + 1, nframe), np.maximum(at - after, 0)
    return count[:, last] > count[:, first]


def compute_angular_speeds(quaternion: Array, hz: float) -> Array:
    """Return angular speeds in rad/s, shape ``(nwindow, nframe)``.

    Args:
        quaternion: Orientations as quaternions (w, x, y, z), shape ``(nwindow, nframe, 4)``.
        hz: Frames per second.
    """
    dot = np.abs(np.sum(quaternion[:, 1:] * quaternion[:, :-1], axis=-1))
    angle = 2.0 * np.arccos(np.minimum(dot, 1.0)) * hz
    return np.concatenate([angle[:, :1], angle], axis=1)


def _find_last_direction(direction: NDArray[np.int8]) -> NDArray[np.int8]:
    """Return the last direction other than 0 (rest) before each frame; 0 if there is none."""
    frame = np.where(direction != 0, np.arange(direction.shape[1])[None, :, None], -1)
    newest = np.maximum.accumulate(frame, axis=1)
    newest = np.concatenate([np.full_like(newest[:, :1], -1), newest[:, :-1]], axis=1)
    last = np.take_along_axis(direction, np.maximum(newest, 0), axis=1)
    return np.where(newest >= 0, last, 0).astype(np.int8)


def compute_demands(logs: ReplayLogs, table: ParamTable, position: Array, speed: Array) -> tuple[Array, bool]:
    """Compute the force that each actuator's control law demands at the measured motion, before any limit.

    Commands are delayed as in the table. Limits of the supply voltage and of heat are not included.

    Args:
        logs: Windows of the log.
        table: A row of parameters for each window.
        position: Joint positions, shape ``(nwindow, nframe, n)``; n is 0 if no joint is measured, for example if only
            free bodies are.
        speed: Joint speeds, same shape.

    Returns:
        Forces of the ``nu`` actuators in SI units, shape ``(nwindow, nframe, nu)``, NaN if not measured. If n is 0, the
            delayed controls are returned instead of forces. Second: whether any actuator has a limit of force or
            control.
    """
    model, twin = logs.twin.model, logs.twin
    count = logs.commands.shape[1]
    if not model.nu:
        return np.empty((len(logs), count, 0)), False
    initial = logs.start.make_initial_states(twin, table, np.zeros((len(logs), logs.nlocal)))
    control = compute_control_series(twin, table, initial, logs.commands)[:, :: twin.substeps]
    limited = bool(model.actuator_forcelimited.any() or model.actuator_ctrllimited.any())
    if not position.shape[-1]:
        return control, limited
    gain = _read_model_field(logs, table, "actuator_gainprm")[:, None, :, 0]
    bias = _read_model_field(logs, table, "actuator_biasprm")[:, None]
    gain = np.where(model.actuator_gaintype == mujoco.mjtGain.mjGAIN_PID, -bias[..., 1], gain)
    gear = model.actuator_gear[:, 0]
    force = gain * control + bias[..., 0] + bias[..., 1] * (position * gear)
    return force + bias[..., 2] * np.nan_to_num(speed) * gear, limited


def find_saturation(logs: ReplayLogs, table: ParamTable, demand: Array, limit_fraction: float) -> Mask:
    """Return a mask of the frames in which an actuator's demand reaches its limit, shape ``(nwindow, nframe, nu)``.

    Args:
        logs: Windows of the log.
        table: A row of parameters for each window.
        demand: Demanded forces, see `compute_demands`.
        limit_fraction: Fraction of the limit from which an actuator counts as saturated.
    """
    model, full = logs.twin.model, np.zeros(demand.shape, dtype=bool)
    ranges = _read_model_field(logs, table, "actuator_forcerange")[:, None]
    gains = _read_model_field(logs, table, "actuator_gainprm")[:, None]
    for column in range(demand.shape[-1]):
        asked = np.nan_to_num(demand[..., column])
        if model.actuator_forcelimited[column]:
            low, high = ranges[..., column, 0], ranges[..., column, 1]
        elif model.actuator_ctrllimited[column] and model.actuator_biastype[column] == mujoco.mjtBias.mjBIAS_NONE:
            gain = gains[..., column, 0] if logs.joints else np.ones(1)
            low, high = (gain * bound for bound in model.actuator_ctrlrange[column])
        else:
            continue
        full[..., column] = ((high > 0) & (asked >= limit_fraction * high)) | (
            (low < 0) & (asked <= limit_fraction * low)
        )
    return full


def compute_loads(logs: ReplayLogs, position: Array, speed: Array, acceleration: Array) -> Array:
    """Compute the torque of the load's inertia and weight at each gear, shape ``(nwindow, nframe, n)``, in SI units.

    The torques result from inverse dynamics at the measured motion with the twin's nominal masses. Rotors, friction and
    contacts are left out, because they act on the motor's side of a gear or are unknown. NaN if the motion is unknown.

    Args:
        logs: Windows of the log.
        position: Joint positions, shape ``(nwindow, nframe, n)``.
        speed: Joint speeds, same shape.
        acceleration: Joint accelerations, same shape.
    """
    if not position.shape[-1]:
        return np.empty(position.shape)
    twin, model = logs.twin, copy.copy(logs.twin.model)
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT | mujoco.mjtDisableBit.mjDSBL_ACTUATION)
    for field in (model.dof_armature, model.dof_damping, model.dof_frictionloss):
        field[:] = 0.0
    data, found = mujoco.MjData(model), np.full(position.shape, np.nan)
    data.qpos[:] = logs.start.initial.qpos[0]
    known = ~np.isnan(position + speed + acceleration).any(axis=-1)
    for window, frame in np.argwhere(known):
        data.qpos[twin.joint_qpos] = position[window, frame]
        data.qvel[twin.joint_qvel], data.qacc[twin.joint_qvel] = speed[window, frame], acceleration[window, frame]
        mujoco.mj_inverse(model, data)
        found[window, frame] = data.qfrc_inverse[twin.joint_qvel]
    return found


def _read_model_field(logs: ReplayLogs, table: ParamTable, field: str) -> Array:
    """Return a field of the MuJoCo model in every window with the parameters of the table, shape ``(nwindow, …)``."""
    own = getattr(logs.twin.model, field)
    return np.asarray(logs.twin.fields(table).arrays.get(field, np.broadcast_to(own, (len(logs), *own.shape))))


@dataclass(frozen=True, kw_only=True)
class EventThresholds:
    """Thresholds that define events such as reversals and contact.

    Attributes:
        smoothing: Duration in s over which speeds are computed; a servo's strokes last several times as long.
        sigmas: Multiple of the standard deviation of a speed's noise above which something moves; normal noise alone
            exceeds 4 in one of 16 000 frames.
        creep: Fraction of the 95th percentile of speed below which something counts as still, even if the noise is
            smaller. The same fraction of the 95th percentile of load is the limit below which a gear counts as
            unloaded. Servos dither and sag by a few per cent.
        before: Duration in s before a reversal or a start that belongs to it: while the motor crosses the backlash, the
            link waits.
        after: Duration in s after a reversal or a start that belongs to it: the effect lasts about as long as a servo's
            loop needs, 0.1 to 0.2 s.
        rest: Duration in s without motion that counts as rest.
        touch: Distance in m between surfaces that counts as touching: motion capture is accurate to about a millimetre,
            and in the public recordings of a tossed cube, the cube at rest is 1.2 mm above its ground.
        impact: Duration in s after a first touch that belongs to it; rebounds of small bodies settle within some
            hundredths of a second.
        limit: Fraction of a drive's limit from which it counts as saturated; the remainder allows for errors of the
            readings.
        effort: Fraction of the frames that count as high effort of a drive, namely those with the largest force.
        fast: Fraction of the moving frames that count as fast.
        end: Fraction of a joint's range at either end that counts as near its end: stops, cables and calibration have
            an effect there.
    """

    smoothing: float = 0.12
    sigmas: float = 4.0
    creep: float = 0.03
    before: float = 0.1
    after: float = 0.2
    rest: float = 0.1
    touch: float = 0.002
    impact: float = 0.05
    limit: float = 0.98
    effort: float = 0.1
    fast: float = 0.25
    end: float = 0.03


@dataclass(frozen=True, kw_only=True)
class LoggedKinematics:
    """Motion and loads in a log, in SI units and the twin's coordinates.

    The n moving things are the robot's joints, then free bodies.

    Attributes:
        names: Names of the joints and bodies.
        position: Joint positions, shape ``(nwindow, nframe, n)``; NaN for free bodies.
        speed: Joint speeds and, for free bodies, the approximate speed of their fastest point in m/s, same shape.
        threshold: Speed above which each joint or body moves, shape ``(n,)``.
        channel: Mask of the channels of each joint or body, shape ``(n, nchannel)``.
        load: Torque at each joint's gear, shape ``(nwindow, nframe, njoint)``, see `compute_loads`.
        demand: Force of each actuator before limits, shape ``(nwindow, nframe, nu)``, see `compute_demands`.
        saturated: Mask of the frames in which an actuator reaches its limit, same shape as ``demand``.
        limited: Whether any actuator has a limit.
        drive: Mask of the channels of each actuator, shape ``(nu, nchannel)``.
    """

    names: tuple[str, ...]
    position: Array
    speed: Array
    threshold: Array
    channel: Mask
    load: Array
    demand: Array
    saturated: Mask
    limited: bool
    drive: Mask


def compute_kinematics(
    logs: ReplayLogs, values: Mapping[str, float] | None, thresholds: EventThresholds
) -> LoggedKinematics:
    """Compute the positions, speeds, gear loads and demanded actuator forces of a log, in SI units.

    A gear load is the torque of the load's inertia and weight at a joint's gear, see `compute_loads`. A demanded force
    is the force that an actuator's control law demands before any limit, see `compute_demands`.

    Args:
        logs: Windows of the log.
        values: Identified parameters in SI units, which replace the nominal ones.
        thresholds: Thresholds of motion and saturation.
    """
    twin, nframe = logs.twin, logs.measured.shape[1]
    table = apply_conditions(logs, twin.table(1, values))
    joints, hz, span = joint_positions(logs, values or {}), twin.control_hz, thresholds.smoothing
    bodies = body_poses(logs)
    turning, noise = compute_speeds(joints, hz, span)
    pairs = [_body_speed(logs, body, pose, thresholds) for body, pose in bodies.items()]
    speed = np.concatenate([turning, *(pair[0][..., None] for pair in pairs)], axis=-1)
    floor = np.concatenate([noise, [pair[1] for pair in pairs]]) * thresholds.sigmas
    force, limited = compute_demands(logs, table, joints, turning)
    robot = logs.joints if joints.shape[-1] else ()
    drives = channel_mask(logs, robot, ()) if robot else np.ones((force.shape[-1], len(logs.channels)), dtype=bool)
    return LoggedKinematics(
        names=(*robot, *bodies),
        position=np.concatenate([joints, np.full((len(logs), nframe, len(bodies)), np.nan)], axis=-1),
        speed=speed,
        threshold=np.maximum(floor, thresholds.creep * compute_quantiles(np.abs(speed), 0.95)),
        channel=channel_mask(logs, robot, tuple(bodies)),
        load=compute_loads(logs, joints, turning, compute_speeds(turning, hz, span)[0]),
        demand=force,
        saturated=find_saturation(logs, table, force, thresholds.limit),
        limited=limited and bool(drives.any()),
        drive=drives,
    )


def compute_quantiles(values: Array, level: float) -> Array:
    """Return the quantile of the values that are not NaN in each column, shape ``(n,)``; 0 if a column has none.

    Args:
        values: Values, shape ``(nwindow, nframe, n)``.
        level: Probability of the quantile, from 0 to 1.
    """
    known = (column[~np.isnan(column)] for column in np.moveaxis(values, -1, 0))
    return np.array([np.quantile(column, level) if len(column) else 0.0 for column in known])


def joint_positions(logs: ReplayLogs, values: Mapping[str, float]) -> Array:
    """Return the joint positions, corrected for the encoders' offset and scale, in SI units.

    Args:
        logs: Windows of the log.
        values: Identified parameters in SI units, which replace the nominal ones.

    Returns:
        Shape ``(nwindow, nframe, njoint)``; if joint positions are not compared, ``njoint`` is 0.
    """
    names = [channel.name for channel in logs.channels]
    if logs.twin.spec.robot is None or not any(name.startswith("position/") for name in names):
        return np.empty((*logs.measured.shape[:2], 0))
    columns = [names.index(f"position/{joint}") for joint in logs.joints]
    table = logs.twin.table(1, values)
    offset, scale = (logs.twin.column(table, "sensor", name) for name in ("offset", "scale"))
    return logs.units.to_si(logs.measured[..., columns]) * scale + offset


def body_poses(logs: ReplayLogs) -> dict[str, Array]:
    """Return the measured poses of free bodies by name, shape ``(nwindow, nframe, 7)``.

    A pose is a position in m and a quaternion (w, x, y, z).
    """
    found = {}
    for measure, kept in zip(logs.channel_kinds, logs.channel_data, strict=True):
        family, _, rest = measure.channels[0].name.partition("/")
        if family in ("pose", "pose_error"):
            found[rest.rpartition("/")[0]] = kept
    return found


def _body_speed(logs: ReplayLogs, body: str, pose: Array, given: EventThresholds) -> tuple[Array, float]:
    """Return the approximate speed of a body's fastest point and its noise, both in m/s.

    Args:
        logs: Windows of the log.
        body: Name of the body.
        pose: Poses, shape ``(nwindow, nframe, 7)``.
        given: Event thresholds; only the smoothing duration is used.

    Returns:
        Speed, shape ``(nwindow, nframe)``, and the standard deviation of the noise.
    """
    model, hz = logs.twin.model, logs.twin.control_hz
    linear, noise = compute_speeds(pose[..., :3], hz, given.smoothing)
    geoms = subtree_mask(model, model.body(body).id)[model.geom_bodyid]
    radius = float(model.geom_rbound[geoms].max(initial=0.0))
    return np.linalg.norm(linear, axis=-1) + radius * compute_angular_speeds(pose[..., 3:], hz), float(
        np.linalg.norm(noise)
    )


def channel_mask(logs: ReplayLogs, joints: tuple[str, ...], bodies: tuple[str, ...]) -> Mask:
    """Return a mask of the measured channels (log columns) of each joint or body, shape ``(n, nchannel)``.

    The n rows are the joints, then the bodies. Channels of accelerometers and gyroscopes belong to every joint.
    """
    found = np.zeros((len(joints) + len(bodies), len(logs.channels)), dtype=bool)
    for column, channel in enumerate(logs.channels):
        family, _, rest = channel.name.partition("/")
        owner = rest if family in ("position", "velocity") else rest.rpartition("/")[0]
        for row, name in enumerate((*joints, *bodies)):
            found[row, column] = name == owner
        if family in ("acceleration", "angular_velocity"):
            found[: len(joints), column] = True
    return found
