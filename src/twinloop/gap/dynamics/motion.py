"""Compute what moves in a recording and what drives it: positions, speeds, reversals, loads, contact."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.signal import savgol_coeffs, savgol_filter

from twinloop.core.params import ParamTable
from twinloop.simulate.open_loop import control_series
from twinloop.simulate.replay import with_conditions
from twinloop.simulate.replay_logs import ReplayLogs
from twinloop.twin import Twin

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


def contact_frames(twin: Twin, qpos: Array, parts: Mask, known: Mask, reach: float) -> Mask:
    """Whether parts of a twin touch anything else, at measured positions.

    Args:
        twin: with contacts.
        qpos: ``(nwindow, nframe, nq)``; frames with NaN are in contact with nothing.
        parts: the bodies that belong together, ``(npart, nbody)``: a contact counts for a part where one of the two
            bodies belongs to it and the other does not.
        known: the bodies whose place was measured, or does not move, ``(nbody,)``; contacts with others do not count.
        reach: distance in m up to which surfaces touch.

    Returns:
        ``(nwindow, nframe, npart)``.
    """
    model = copy.copy(twin.model)
    model.geom_margin[:] = model.body_margin[:] = reach  # the broad phase asks the bodies'
    model.geom_gap[:] = 0.0
    data = mujoco.MjData(model)
    touching = np.zeros((*qpos.shape[:2], len(parts)), dtype=bool)
    for window, frame in np.argwhere(~np.isnan(qpos).any(axis=-1)):
        data.qpos[:] = qpos[window, frame]
        mujoco.mj_kinematics(model, data)
        mujoco.mj_collision(model, data)
        touching[window, frame] = _touching(model, data, parts, known, reach)
    return touching


def _touching(model: mujoco.MjModel, data: mujoco.MjData, parts: Mask, known: Mask, reach: float) -> Mask:
    geoms = data.contact.geom[data.contact.dist <= reach]
    first, second = model.geom_bodyid[geoms[(geoms >= 0).all(axis=1)]].T
    placed = known[first] & known[second]
    between = parts[:, first] != parts[:, second]
    return (between & placed).any(axis=1)


def subtree(model: mujoco.MjModel, body: int) -> Mask:
    """A body and all that hang on it, ``(nbody,)``."""
    below = np.zeros(model.nbody, dtype=bool)
    below[body] = True
    for child in range(body + 1, model.nbody):  # parents come first
        below[child] |= below[model.body_parentid[child]]
    return below


# Standard deviation of third differences of white noise over its own: √(1 + 9 + 9 + 1).
_THIRD = np.sqrt(20.0)
_MAD = 1.4826  # median absolute deviation to standard deviation, of a normal distribution
_ORDER = 2  # parabolas: speeds of accelerated motion are unbiased


def speeds(position: Array, hz: float, span: float) -> tuple[Array, Array]:
    """Speeds by Savitzky and Golay's parabolas over ``span`` s, and the standard deviation of their noise.

    Args:
        position: ``(nwindow, nframe, n)``, NaN where nothing was measured.
        hz: frames per second.
        span: length of the parabolas in s; at least five frames, fewer where a window has fewer.

    Returns:
        Speeds of the same shape per s, NaN within half a span of a gap, and ``(n,)``. The first and last half span of a
        window have the speed beside them.
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
            found[rows, :end] = fitted[:, inner]  # a parabola's end is several times as uncertain as its middle
        else:
            found[rows, :end] = np.gradient(part, 1.0 / hz, axis=1)
    gain = np.linalg.norm(savgol_coeffs(width, _ORDER, deriv=1, delta=1.0 / hz))
    return found, gain * reading_noise(position)


def reading_noise(position: Array) -> Array:
    """Standard deviation of white noise in positions ``(nwindow, nframe, n)``, ``(n,)``, from third differences.

    Their median is hardly moved by motion, which is smooth. It is never below the rounding of the readings, whose step
    is the smallest change: a still encoder repeats the same count and would seem free of noise.
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


def directions(speed: Array, threshold: ArrayLike) -> NDArray[np.int8]:
    """1 and -1 where something moves faster than a threshold ``(n,)``, 0 where it is still or unknown."""
    moving = np.abs(np.nan_to_num(speed)) > np.asarray(threshold)
    return np.where(moving, np.sign(np.nan_to_num(speed)), 0.0).astype(np.int8)


def reversals(direction: NDArray[np.int8]) -> Mask:
    """First frames at which motion goes the other way than it last went, ``(nwindow, nframe, n)``."""
    last = _before(direction)
    return (direction != 0) & (last != 0) & (direction != last)


def breakaways(direction: NDArray[np.int8], rest: int) -> Mask:
    """First frames of motion after at least ``rest`` frames without, ``(nwindow, nframe, n)``."""
    still = np.cumsum(direction == 0, axis=1, dtype=np.int64)
    waited = np.zeros(direction.shape, dtype=bool)
    if direction.shape[1] > rest:
        waited[:, rest] = still[:, rest - 1] == rest
        waited[:, rest + 1 :] = still[:, rest:-1] - still[:, : -rest - 1] == rest
    return waited & (direction != 0)


def onsets(mask: Mask) -> Mask:
    """Frames at which a mask begins to hold; the first frame of a window is no beginning."""
    begun = np.zeros_like(mask)
    begun[:, 1:] = mask[:, 1:] & ~mask[:, :-1]
    return begun


def about(mask: Mask, before: int, after: int) -> Mask:
    """Frames from ``before`` frames before one that is marked until ``after`` frames after it."""
    nframe = mask.shape[1]
    count = np.concatenate([np.zeros_like(mask[:, :1], dtype=np.int64), np.cumsum(mask, axis=1)], axis=1)
    at = np.arange(nframe)
    last, first = np.minimum(at + before + 1, nframe), np.maximum(at - after, 0)
    return count[:, last] > count[:, first]


def turning_rates(quaternion: Array, hz: float) -> Array:
    """Angular speed ``(nwindow, nframe)`` in rad/s of orientations ``(nwindow, nframe, 4)``, wxyz, by differences."""
    dot = np.abs(np.sum(quaternion[:, 1:] * quaternion[:, :-1], axis=-1))
    angle = 2.0 * np.arccos(np.minimum(dot, 1.0)) * hz
    return np.concatenate([angle[:, :1], angle], axis=1)


def _before(direction: NDArray[np.int8]) -> NDArray[np.int8]:
    """The last direction other than 0 before each frame; 0 where there was none."""
    frame = np.where(direction != 0, np.arange(direction.shape[1])[None, :, None], -1)
    newest = np.maximum.accumulate(frame, axis=1)
    newest = np.concatenate([np.full_like(newest[:, :1], -1), newest[:, :-1]], axis=1)
    last = np.take_along_axis(direction, np.maximum(newest, 0), axis=1)
    return np.where(newest >= 0, last, 0).astype(np.int8)


def demands(logs: ReplayLogs, table: ParamTable, position: Array, speed: Array) -> tuple[Array, bool]:
    """Forces that the actuators' law asks for at measured positions, before limits, and whether there are limits.

    Commands arrive as late as the table's delays say. Limits of the supply and of heat are not counted.

    Args:
        logs: the windows.
        table: a row for each window.
        position: of the joints, ``(nwindow, nframe, n)``; n is 0 for a thing without.
        speed: of the same.

    Returns:
        ``(nwindow, nframe, nu)``, NaN where nothing was measured; of a thing without joints the controls themselves.
    """
    model, twin = logs.twin.model, logs.twin
    count = logs.commands.shape[1]
    if not model.nu:
        return np.empty((len(logs), count, 0)), False
    initial = logs.start.states(twin, table, np.zeros((len(logs), logs.nlocal)))
    control = control_series(twin, table, initial, logs.commands)[:, :: twin.substeps]
    limited = bool(model.actuator_forcelimited.any() or model.actuator_ctrllimited.any())
    if not position.shape[-1]:
        return control, limited
    gain = _values(logs, table, "actuator_gainprm")[:, None, :, 0]
    bias = _values(logs, table, "actuator_biasprm")[:, None]
    gear = model.actuator_gear[:, 0]
    force = gain * control + bias[..., 0] + bias[..., 1] * (position * gear)
    return force + bias[..., 2] * np.nan_to_num(speed) * gear, limited


def saturated(logs: ReplayLogs, table: ParamTable, demand: Array, part: float) -> Mask:
    """Where a demand reaches ``part`` of what its actuator can exert, of the same shape."""
    model, full = logs.twin.model, np.zeros(demand.shape, dtype=bool)
    ranges = _values(logs, table, "actuator_forcerange")[:, None]
    for column in range(demand.shape[-1]):
        asked = np.nan_to_num(demand[..., column])
        if model.actuator_forcelimited[column]:
            low, high = ranges[..., column, 0], ranges[..., column, 1]
        elif model.actuator_ctrllimited[column] and model.actuator_biastype[column] == mujoco.mjtBias.mjBIAS_NONE:
            gain = float(model.actuator_gainprm[column, 0]) if logs.joints else 1.0
            low, high = (gain * bound for bound in model.actuator_ctrlrange[column])
        else:
            continue
        full[..., column] = ((high > 0) & (asked >= part * high)) | ((low < 0) & (asked <= part * low))
    return full


def loads(logs: ReplayLogs, position: Array, speed: Array, acceleration: Array) -> Array:
    """Torques that the gears carry to the links, ``(nwindow, nframe, n)``: inertia and weight of what hangs on them.

    By inverse dynamics at measured motion with the twin's nominal masses; rotors, friction and contacts are left out,
    because they act on the motor's side of a gear or are not known. NaN where motion is not known.
    """
    if not position.shape[-1]:
        return np.empty(position.shape)
    twin, model = logs.twin, copy.copy(logs.twin.model)
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT | mujoco.mjtDisableBit.mjDSBL_ACTUATION)
    for field in (model.dof_armature, model.dof_damping, model.dof_frictionloss):
        field[:] = 0.0
    data, found = mujoco.MjData(model), np.full(position.shape, np.nan)
    data.qpos[:] = logs.start.rest.qpos[0]
    known = ~np.isnan(position + speed + acceleration).any(axis=-1)
    for window, frame in np.argwhere(known):
        data.qpos[twin.joint_qpos] = position[window, frame]
        data.qvel[twin.joint_qvel], data.qacc[twin.joint_qvel] = speed[window, frame], acceleration[window, frame]
        mujoco.mj_inverse(model, data)
        found[window, frame] = data.qfrc_inverse[twin.joint_qvel]
    return found


def _values(logs: ReplayLogs, table: ParamTable, field: str) -> Array:
    """A field of the model in every window, ``(nwindow, …)``."""
    own = getattr(logs.twin.model, field)
    return np.asarray(logs.twin.fields(table).arrays.get(field, np.broadcast_to(own, (len(logs), *own.shape))))


@dataclass(frozen=True, kw_only=True)
class EventThresholds:
    """Where an event begins.

    Attributes:
        smoothing: s over which speeds are taken; a servo's strokes last several times as long.
        sigmas: of the speed's noise above which something moves; 4 are exceeded by chance once in 16 000 frames.
        creep: part of the fastest speeds (their 95th percentile) below which something counts as still whatever the
            noise, and of the largest loads below which a gear carries nothing; servos dither and sag by a few per cent.
        before, after: s about a reversal or a start that belong to it. Play is crossed while the motor turns and the
            link waits, before; what comes of it lasts about as long as a servo's loop takes, 0.1 to 0.2 s.
        rest: s without motion that make a standstill.
        touch: m between surfaces that count as touching: motion capture is good to about a millimetre, and the cube of
            the public tosses rests 1.2 mm above its ground.
        impact: s after a first touch that belong to it; rebounds of small bodies settle within some hundredths.
        limit: part of a drive's limit at which it is saturated; the rest is the reading's error.
        effort: part of the frames in which a drive works hardest.
        fast: part of the moving frames that are fast.
        end: part of a joint's range at either end that is near its end: stops, cables and calibration show there.
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
    """What a log says of motion, in SI and the twin's own coordinates.

    ``position`` and ``speed`` ``(nwindow, nframe, n)`` are those of things: the robot's joints, then free bodies by
    their overall speed (their position is NaN). ``threshold`` ``(n,)`` is the speed above which each moves. ``channel``
    ``(n, nchannel)`` says which channels are of which thing. ``load`` ``(nwindow, nframe, njoint)`` is what the gears
    carry (see `loads`), ``demand`` ``(nwindow, nframe, nu)`` what the drives would exert without limits, ``drive``
    ``(nu, nchannel)`` whose channels those are.
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


def kinematics(logs: ReplayLogs, values: Mapping[str, float] | None, thresholds: EventThresholds) -> LoggedKinematics:
    """Positions, speeds and demands of a log; see `LoggedKinematics`."""
    twin, nframe = logs.twin, logs.measured.shape[1]
    table = with_conditions(logs, twin.table(1, values))
    joints, hz, span = joint_positions(logs, values or {}), twin.control_hz, thresholds.smoothing
    bodies = body_poses(logs)
    turning, noise = speeds(joints, hz, span)
    pairs = [_body_speed(logs, body, pose, thresholds) for body, pose in bodies.items()]
    speed = np.concatenate([turning, *(pair[0][..., None] for pair in pairs)], axis=-1)
    floor = np.concatenate([noise, [pair[1] for pair in pairs]]) * thresholds.sigmas
    force, limited = demands(logs, table, joints, turning)
    robot = logs.joints if joints.shape[-1] else ()
    drives = whose(logs, robot, ()) if robot else np.ones((force.shape[-1], len(logs.channels)), dtype=bool)
    return LoggedKinematics(
        names=(*robot, *bodies),
        position=np.concatenate([joints, np.full((len(logs), nframe, len(bodies)), np.nan)], axis=-1),
        speed=speed,
        threshold=np.maximum(floor, thresholds.creep * quantiles(np.abs(speed), 0.95)),
        channel=whose(logs, robot, tuple(bodies)),
        load=loads(logs, joints, turning, speeds(turning, hz, span)[0]),
        demand=force,
        saturated=saturated(logs, table, force, thresholds.limit),
        limited=limited and bool(drives.any()),
        drive=drives,
    )


def quantiles(values: Array, level: float) -> Array:
    """Quantile of what is known of each column of ``(nwindow, nframe, n)``, ``(n,)``; 0 where nothing is."""
    known = (column[~np.isnan(column)] for column in np.moveaxis(values, -1, 0))
    return np.array([np.quantile(column, level) if len(column) else 0.0 for column in known])


def joint_positions(logs: ReplayLogs, values: Mapping[str, float]) -> Array:
    """True positions of the robot's joints, ``(nwindow, nframe, n)``; n is 0 where the log compares none."""
    names = [channel.name for channel in logs.channels]
    if logs.twin.spec.robot is None or not any(name.startswith("position/") for name in names):
        return np.empty((*logs.measured.shape[:2], 0))
    columns = [names.index(f"position/{joint}") for joint in logs.joints]
    table = logs.twin.table(1, values)
    offset, scale = (logs.twin.column(table, "sensor", name) for name in ("offset", "scale"))
    return logs.units.to_si(logs.measured[..., columns]) * scale + offset


def body_poses(logs: ReplayLogs) -> dict[str, Array]:
    """Measured poses ``(nwindow, nframe, 7)`` of free bodies by name."""
    found = {}
    for measure, kept in zip(logs.measures, logs.kept, strict=True):
        family, _, rest = measure.channels[0].name.partition("/")
        if family in ("pose", "pose_error"):
            found[rest.rpartition("/")[0]] = kept
    return found


def _body_speed(logs: ReplayLogs, body: str, pose: Array, given: EventThresholds) -> tuple[Array, float]:
    """Speed of the fastest point of a body, about, in m/s ``(nwindow, nframe)``, and the noise of it."""
    model, hz = logs.twin.model, logs.twin.control_hz
    linear, noise = speeds(pose[..., :3], hz, given.smoothing)
    geoms = subtree(model, model.body(body).id)[model.geom_bodyid]
    radius = float(model.geom_rbound[geoms].max(initial=0.0))
    return np.linalg.norm(linear, axis=-1) + radius * turning_rates(pose[..., 3:], hz), float(np.linalg.norm(noise))


def whose(logs: ReplayLogs, joints: tuple[str, ...], bodies: tuple[str, ...]) -> Mask:
    """Which channels are of which joint or body, ``(n, nchannel)``; a sensor's are of every joint."""
    found = np.zeros((len(joints) + len(bodies), len(logs.channels)), dtype=bool)
    for column, channel in enumerate(logs.channels):
        family, _, rest = channel.name.partition("/")
        owner = rest if family in ("position", "velocity") else rest.rpartition("/")[0]
        for row, name in enumerate((*joints, *bodies)):
            found[row, column] = name == owner
        if family in ("acceleration", "angular_velocity"):
            found[: len(joints), column] = True
    return found
