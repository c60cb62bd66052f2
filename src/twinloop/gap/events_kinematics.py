"""What moves in a recording and what drives it: positions, speeds, loads and demands, by joint and by free body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.gap.events_contact import subtree
from twinloop.gap.events_drives import demands, loads, saturated
from twinloop.gap.events_motion import speeds, turning_rates
from twinloop.simulate.replay import with_conditions
from twinloop.simulate.replay_logs import ReplayLogs

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


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


def kinematics(logs: ReplayLogs, values: Mapping[str, float] | None, thresholds: Thresholds) -> Kinematics:
    """Positions, speeds and demands of a log; see `Kinematics`."""
    twin, nframe = logs.twin, logs.measured.shape[1]
    table = with_conditions(logs, twin.table(1, values))
    joints, hz = joint_positions(logs, values or {}), twin.control_hz
    bodies = body_poses(logs)
    position = np.concatenate([joints, np.full((len(logs), nframe, len(bodies)), np.nan)], axis=-1)
    span = thresholds.smoothing
    speed, noise = speeds(joints, hz, span)
    pairs = [_body_speed(logs, body, pose, thresholds) for body, pose in bodies.items()]
    speed = np.concatenate([speed, *(pair[0][..., None] for pair in pairs)], axis=-1)
    floor = np.concatenate([noise, [pair[1] for pair in pairs]]) * thresholds.sigmas
    usual = np.array([quantile(np.abs(column), 0.95) for column in np.moveaxis(speed, -1, 0)])
    force, limited = demands(logs, table, joints, speed[..., : joints.shape[-1]])
    full = saturated(logs, table, force, thresholds.limit)
    robot = joints.shape[-1] > 0
    drives = whose(logs, logs.joints, ()) if robot else np.ones((force.shape[-1], len(logs.channels)), dtype=bool)
    return Kinematics(
        names=(*(logs.joints if robot else ()), *bodies),
        position=position,
        speed=speed,
        threshold=np.maximum(floor, thresholds.creep * usual),
        channel=whose(logs, logs.joints if robot else (), tuple(bodies)),
        load=loads(logs, joints, speed[..., : joints.shape[-1]], speeds(speed[..., : joints.shape[-1]], hz, span)[0]),
        demand=force,
        saturated=full,
        limited=limited and bool(drives.any()),
        drive=drives,
    )


def quantile(values: Array, level: float) -> float:
    """Of what is known; 0 where nothing is."""
    known = values[~np.isnan(values)]
    return float(np.quantile(known, level)) if len(known) else 0.0


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


def _body_speed(logs: ReplayLogs, body: str, pose: Array, given: Thresholds) -> tuple[Array, float]:
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
