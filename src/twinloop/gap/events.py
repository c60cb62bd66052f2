"""What happens in each frame of a recording that simulations tend to get wrong: contact, reversal, saturation.

Events are told from what was measured and commanded, never from the twin's own motion, so that they are the same for
every twin that is compared. A class that a log cannot have (contacts of a replay without them, limits of an actuator
that has none) is not in the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.gap.events_contact import contact_frames, subtree
from twinloop.gap.events_drives import demands, loads, saturated
from twinloop.gap.events_motion import about, breakaways, directions, onsets, reversals, speeds, turning_rates
from twinloop.simulate.channels_bodies import free_joint
from twinloop.simulate.replay import with_conditions
from twinloop.simulate.replay_logs import ReplayLogs

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

MEANINGS: Mapping[str, str] = {
    "contact": "touches something",
    "contact_onset": "has just come into contact",
    "reversal": "turns round",
    "load_reversal": "what its gear carries changes sign",
    "breakaway": "starts from rest",
    "saturation": "the drive is at its limit",
    "effort": "the drive works hardest (a tenth of the frames)",
    "still": "stands still",
    "fast": "moves fastest (a quarter of the moving frames)",
    "near_limit": "is near the end of its range",
}


@dataclass(frozen=True, kw_only=True)
class Thresholds:
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
class Kinematics:
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


def event_masks(
    logs: ReplayLogs, values: Mapping[str, float] | None = None, *, thresholds: Thresholds | None = None
) -> dict[str, Mask]:
    """Frames of every event that the log can have, by name, ``(nwindow, nframe, nchannel)``.

    A joint's channels have the events of that joint, a body's those of the body, and a sensor's those of any joint;
    ``mask.any(axis=-1)`` is the event anywhere. Frames past a window's end, or where nothing was measured, have none.

    Args:
        logs: the windows.
        values: identified parameters, SI, that the twin's nominal ones give way to: encoders, gains, limits.
        thresholds: where events begin.
    """
    given = thresholds or Thresholds()
    seen = kinematics(logs, values, given)
    hz = logs.twin.control_hz
    found = {} if not len(seen.names) else _of_motion(logs, seen, given, hz)
    if seen.limited:
        found["saturation"] = _spread(seen.saturated, seen.drive)
    if seen.drive.any():
        found["effort"] = _spread(_hardest(seen.demand, given.effort), seen.drive)
    contact = _contact(logs, values or {}, given)
    if contact is not None:
        found["contact"] = contact
        found["contact_onset"] = about(onsets(contact), 1, max(1, round(given.impact * hz)))
    known = ~np.isnan(logs.measured)
    return {name: found[name] & known for name in MEANINGS if name in found}


def kinematics(logs: ReplayLogs, values: Mapping[str, float] | None, thresholds: Thresholds) -> Kinematics:
    """Positions, speeds and demands of a log; see `Kinematics`."""
    twin, nframe = logs.twin, logs.measured.shape[1]
    table = with_conditions(logs, twin.table(1, values))
    joints, hz = _joints(logs, values or {}), twin.control_hz
    bodies = _bodies(logs)
    position = np.concatenate([joints, np.full((len(logs), nframe, len(bodies)), np.nan)], axis=-1)
    span = thresholds.smoothing
    speed, noise = speeds(joints, hz, span)
    pairs = [_body_speed(logs, body, pose, thresholds) for body, pose in bodies.items()]
    speed = np.concatenate([speed, *(pair[0][..., None] for pair in pairs)], axis=-1)
    floor = np.concatenate([noise, [pair[1] for pair in pairs]]) * thresholds.sigmas
    usual = np.array([_quantile(np.abs(column), 0.95) for column in np.moveaxis(speed, -1, 0)])
    force, limited = demands(logs, table, joints, speed[..., : joints.shape[-1]])
    full = saturated(logs, table, force, thresholds.limit)
    robot = joints.shape[-1] > 0
    drives = _whose(logs, logs.joints, ()) if robot else np.ones((force.shape[-1], len(logs.channels)), dtype=bool)
    return Kinematics(
        names=(*(logs.joints if robot else ()), *bodies),
        position=position,
        speed=speed,
        threshold=np.maximum(floor, thresholds.creep * usual),
        channel=_whose(logs, logs.joints if robot else (), tuple(bodies)),
        load=loads(logs, joints, speed[..., : joints.shape[-1]], speeds(speed[..., : joints.shape[-1]], hz, span)[0]),
        demand=force,
        saturated=full,
        limited=limited and bool(drives.any()),
        drive=drives,
    )


def _of_motion(logs: ReplayLogs, seen: Kinematics, given: Thresholds, hz: float) -> dict[str, Mask]:
    direction = directions(seen.speed, seen.threshold)
    known = ~np.isnan(seen.speed)
    before, after = max(1, round(given.before * hz)), max(1, round(given.after * hz))
    fast = np.stack([_highest(column, given.fast) for column in np.moveaxis(_moving(seen, direction), -1, 0)], axis=-1)
    found = {"still": _spread((direction == 0) & known, seen.channel), "fast": _spread(fast, seen.channel)}
    count = int((~np.isnan(seen.position).all(axis=(0, 1))).sum())
    if count:
        turns = about(reversals(direction), before, after)
        rest = max(1, round(given.rest * hz))
        starts = about(breakaways(np.where(known, direction, 1), rest) & known, before, after)
        turns[..., count:] = starts[..., count:] = False  # a body's overall speed has no sign
        found |= {"reversal": _spread(turns, seen.channel), "breakaway": _spread(starts, seen.channel)}
        carried = directions(
            seen.load, [given.creep * _quantile(np.abs(c), 0.95) for c in np.moveaxis(seen.load, -1, 0)]
        )
        found["load_reversal"] = _spread(about(reversals(carried), before, after), seen.channel[:count])
        ranges = logs.twin.joint_ranges
        if (ranges[:, 1] > ranges[:, 0]).any():
            near = np.zeros(seen.position.shape, dtype=bool)
            near[..., :count] = _near(seen.position[..., :count], ranges, given.end)
            found["near_limit"] = _spread(near, seen.channel)
    return found


def _moving(seen: Kinematics, direction: NDArray[np.int8]) -> Array:
    return np.where(direction != 0, np.abs(seen.speed), np.nan)


def _near(position: Array, ranges: Array, part: float) -> Mask:
    low, high = ranges.T
    room = part * (high - low)
    return (high > low) & ((position < low + room) | (position > high - room))


def _highest(values: Array, part: float) -> Mask:
    """The largest of ``(nwindow, nframe)``, a part of those that are known."""
    least = _quantile(values, 1.0 - part)
    return np.nan_to_num(values, nan=-np.inf) >= (least if np.isfinite(least) and least > 0 else np.inf)


def _hardest(demand: Array, part: float) -> Mask:
    return np.stack([_highest(np.abs(column), part) for column in np.moveaxis(demand, -1, 0)], axis=-1)


def _quantile(values: Array, level: float) -> float:
    known = values[~np.isnan(values)]
    return float(np.quantile(known, level)) if len(known) else 0.0


def _spread(mask: Mask, channel: Mask) -> Mask:
    """Events of things ``(…, n)`` for their channels ``(n, nchannel)``."""
    return np.asarray(mask.astype(np.float32) @ channel.astype(np.float32) > 0)


def _joints(logs: ReplayLogs, values: Mapping[str, float]) -> Array:
    """True positions of the robot's joints, ``(nwindow, nframe, n)``; n is 0 where the log compares none."""
    names = [channel.name for channel in logs.channels]
    if logs.twin.spec.robot is None or not any(name.startswith("position/") for name in names):
        return np.empty((*logs.measured.shape[:2], 0))
    columns = [names.index(f"position/{joint}") for joint in logs.joints]
    table = logs.twin.table(1, values)
    offset, scale = (logs.twin.column(table, "sensor", name) for name in ("offset", "scale"))
    return logs.units.to_si(logs.measured[..., columns]) * scale + offset


def _bodies(logs: ReplayLogs) -> dict[str, Array]:
    """Measured poses ``(nwindow, nframe, 7)`` of free bodies by name."""
    found = {}
    for measure, kept in zip(logs.measures, logs.kept, strict=True):
        family, _, rest = measure.channels[0].name.partition("/")
        if family in ("pose", "pose_error"):
            found[rest.rpartition("/")[0]] = kept
    return found


def _body_speed(logs: ReplayLogs, body: str, pose: Array, given: Thresholds) -> tuple[Array, float]:
    """Speed of the fastest point of a body, about, in m/s ``(nwindow, nframe)``, and the noise of it."""
    model, hz = logs.twin.model, logs.twin.control_hz
    linear, noise = speeds(pose[..., :3], hz, given.smoothing)
    geoms = subtree(model, model.body(body).id)[model.geom_bodyid]
    radius = float(model.geom_rbound[geoms].max(initial=0.0))
    return np.linalg.norm(linear, axis=-1) + radius * turning_rates(pose[..., 3:], hz), float(np.linalg.norm(noise))


def _whose(logs: ReplayLogs, joints: tuple[str, ...], bodies: tuple[str, ...]) -> Mask:
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


def _contact(logs: ReplayLogs, values: Mapping[str, float], given: Thresholds) -> Mask | None:
    """Contact by channel; None where the replay has none, or the log does not say where things are."""
    model = logs.twin.model
    joints, bodies = _joints(logs, values), _bodies(logs)
    off = int(model.opt.disableflags) & int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
    if off or not (joints.shape[-1] or bodies):
        return None
    qpos = np.repeat(logs.start.rest.qpos[:, None], logs.measured.shape[1], axis=1).copy()
    known = np.ones(model.nbody, dtype=bool)
    for joint in range(model.njnt):
        known &= ~subtree(model, int(model.jnt_bodyid[joint]))
    if joints.shape[-1]:
        qpos[..., logs.twin.joint_qpos] = joints
        qpos = logs.twin.with_motors(qpos)
        for name in logs.joints:
            known |= subtree(model, int(model.joint(name).bodyid[0]))
    for body, pose in bodies.items():
        at = free_joint(model, body)[0]
        qpos[..., at : at + 7] = pose
        known |= subtree(model, model.body(body).id)
    owners = [*(int(model.joint(name).bodyid[0]) for name in logs.joints if joints.shape[-1])]
    owners += [model.body(body).id for body in bodies]
    parts = np.stack([subtree(model, owner) for owner in owners])
    whose = _whose(logs, logs.joints if joints.shape[-1] else (), tuple(bodies))
    return _spread(contact_frames(logs.twin, qpos, parts, known, given.touch), whose)
