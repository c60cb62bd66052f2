"""Find the frames of a recording with events that simulations often get wrong: contact, reversal, saturation.

Events are determined from measurements and commands, never from the twin's motion, so that they are the same for all
compared twins. An event class is left out if it is impossible in a log: contact if the replay has no contacts, and
saturation if the actuator has no limits.
"""

from __future__ import annotations

from collections.abc import Mapping

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.gap.dynamics.motion import (
    EventThresholds,
    LoggedKinematics,
    body_poses,
    channel_mask,
    compute_directions,
    compute_kinematics,
    compute_quantiles,
    contact_frames,
    find_breakaways,
    find_onsets,
    find_reversals,
    joint_positions,
    subtree_mask,
    widen_mask,
)
from twinloop.simulate.channels import free_joint
from twinloop.simulate.replay_logs import ReplayLogs

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

# Each text completes the phrase "where …".
MEANINGS: Mapping[str, str] = {
    "contact": "it touches something",
    "contact_onset": "its contact has just begun",
    "reversal": "it reverses its direction",
    "load_reversal": "the load on its gear changes sign",
    "breakaway": "it starts from rest",
    "saturation": "the drive is at its limit",
    "effort": "the drive works hardest (a tenth of the frames)",
    "still": "it does not move",
    "fast": "it moves fastest (a quarter of the moving frames)",
    "near_limit": "it is near the end of its range",
}


def event_masks(
    logs: ReplayLogs, values: Mapping[str, float] | None = None, *, thresholds: EventThresholds | None = None
) -> dict[str, Mask]:
    """Return a mask of the frames of every event that is possible in the log, by name of the event.

    The masks have the shape ``(nwindow, nframe, nchannel)``. The channels of a joint have the events of that joint, the
    channels of a body the events of the body, and the channels of a sensor the events of any joint.
    ``mask.any(axis=-1)`` is the event in any channel. Frames after the end of a window or without a measurement have no
    events.

    Args:
        logs: Windows of the log.
        values: Identified parameters in SI units (encoders, gains, limits), which replace the nominal ones.
        thresholds: Thresholds that define the events.
    """
    given = thresholds or EventThresholds()
    seen = compute_kinematics(logs, values, given)
    hz = logs.twin.control_hz
    found = {} if not len(seen.names) else _find_motion_events(logs, seen, given, hz)
    if seen.limited:
        found["saturation"] = _assign_to_channels(seen.saturated, seen.drive)
    if seen.drive.any():
        found["effort"] = _assign_to_channels(_find_highest(np.abs(seen.demand), given.effort), seen.drive)
    contact = _find_contacts(logs, values or {}, given)
    if contact is not None:
        found["contact"] = contact
        found["contact_onset"] = widen_mask(find_onsets(contact), 1, max(1, round(given.impact * hz)))
    known = ~np.isnan(logs.measured)
    return {name: found[name] & known for name in MEANINGS if name in found}


def _find_motion_events(logs: ReplayLogs, seen: LoggedKinematics, given: EventThresholds, hz: float) -> dict[str, Mask]:
    direction = compute_directions(seen.speed, seen.threshold)
    known = ~np.isnan(seen.speed)
    before, after = max(1, round(given.before * hz)), max(1, round(given.after * hz))
    fast = _find_highest(np.where(direction != 0, np.abs(seen.speed), np.nan), given.fast)
    found = {
        "still": _assign_to_channels((direction == 0) & known, seen.channel),
        "fast": _assign_to_channels(fast, seen.channel),
    }
    count = int((~np.isnan(seen.position).all(axis=(0, 1))).sum())
    if count:
        turns = widen_mask(find_reversals(direction), before, after)
        rest = max(1, round(given.rest * hz))
        starts = widen_mask(find_breakaways(np.where(known, direction, 1), rest) & known, before, after)
        turns[..., count:] = starts[..., count:] = False  # the speed of a free body has no sign
        found |= {
            "reversal": _assign_to_channels(turns, seen.channel),
            "breakaway": _assign_to_channels(starts, seen.channel),
        }
        carried = compute_directions(seen.load, given.creep * compute_quantiles(np.abs(seen.load), 0.95))
        found["load_reversal"] = _assign_to_channels(
            widen_mask(find_reversals(carried), before, after), seen.channel[:count]
        )
        ranges = logs.twin.joint_ranges
        if (ranges[:, 1] > ranges[:, 0]).any():
            near = np.zeros(seen.position.shape, dtype=bool)
            near[..., :count] = _find_near_limits(seen.position[..., :count], ranges, given.end)
            found["near_limit"] = _assign_to_channels(near, seen.channel)
    return found


def _find_near_limits(position: Array, ranges: Array, part: float) -> Mask:
    low, high = ranges.T
    room = part * (high - low)
    return (high > low) & ((position < low + room) | (position > high - room))


def _find_highest(values: Array, part: float) -> Mask:
    """Return a mask of the highest values of each of n columns, over all windows and frames.

    NaN and values of 0 or less are never marked.

    Args:
        values: Values, shape ``(nwindow, nframe, n)``; NaN if unknown.
        part: Fraction to mark of the values that are not NaN in each column.
    """
    least = compute_quantiles(values, 1.0 - part)
    return np.nan_to_num(values, nan=-np.inf) >= np.where(np.isfinite(least) & (least > 0), least, np.inf)


def _assign_to_channels(mask: Mask, channel: Mask) -> Mask:
    """Return the frames with an event (such as contact) of every channel, from those of n joints, bodies or actuators.

    A channel has an event if any of its joints, bodies or actuators has one.

    Args:
        mask: Frames with an event of each joint, body or actuator, shape ``(…, n)``.
        channel: Mask of the channels of each joint, body or actuator, shape ``(n, nchannel)``.
    """
    return np.asarray(mask.astype(np.float32) @ channel.astype(np.float32) > 0)


def _find_contacts(logs: ReplayLogs, values: Mapping[str, float], given: EventThresholds) -> Mask | None:
    """Return a mask of the frames in contact for each channel, shape ``(nwindow, nframe, nchannel)``.

    Returns None if the replay has no contacts or the log has no positions.

    Args:
        logs: Windows of the log.
        values: Identified parameters in SI units, which include the encoders' offset and scale.
        given: Event thresholds; only the distance that counts as touching is used.
    """
    model = logs.twin.model
    joints, bodies = joint_positions(logs, values), body_poses(logs)
    off = int(model.opt.disableflags) & int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
    if off or not (joints.shape[-1] or bodies):
        return None
    robot = logs.joints if joints.shape[-1] else ()
    qpos = np.repeat(logs.start.initial.qpos[:, None], logs.measured.shape[1], axis=1)
    if robot:
        qpos[..., logs.twin.joint_qpos] = joints
        qpos = logs.twin.align_motors(qpos)
    for body, pose in bodies.items():
        at = free_joint(model, body)[0]
        qpos[..., at : at + 7] = pose
    owners = [*(int(model.joint(name).bodyid[0]) for name in robot), *(model.body(body).id for body in bodies)]
    parts = np.stack([subtree_mask(model, owner) for owner in owners])
    movable = np.any([subtree_mask(model, int(body)) for body in model.jnt_bodyid], axis=0)
    known = ~movable | parts.any(axis=0)
    channel = channel_mask(logs, robot, tuple(bodies))
    return _assign_to_channels(contact_frames(logs.twin, qpos, parts, known, given.touch), channel)
