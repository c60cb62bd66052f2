"""Plan motions with which any robot is recorded: reaching, picking, random poses, or commands from a file.

A motion has the form of an excitation plan, so that `excite` drives the robot within the same limits.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.documents import MAX_LINES_BYTES, read_text
from twinloop.core.errors import InputError
from twinloop.core.seeds import generator
from twinloop.core.units import COMMANDED
from twinloop.hardware.excite import ExcitationPlan
from twinloop.hardware.limits import ClearanceCheck, MotionLimits, motion_limits
from twinloop.hardware.teleop_motion import interpolate_minimum_jerk, teleop_commands
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.tasks.arm import Arm
from twinloop.tasks.grasping import GraspFromAbove
from twinloop.tasks.ground import FreeBody, Ground
from twinloop.tasks.hand import GripperHand
from twinloop.tasks.inverse_kinematics import solve_reach
from twinloop.tasks.waypoints import Waypoint, WaypointExpert
from twinloop.twin import Twin

Array = NDArray[np.float64]
MOTIONS = ("reach", "pick", "random")
_PEAK = 1.875  # peak over mean speed of a minimum-jerk move
_SPEED_SHARE = 0.5  # of the speed limits; our choice
_BOX = 0.5  # half side of the box of goals around the tool at home, in reaches; our choice
_PAUSE_S = 0.3
_POINTS, _TRIES = 10, 60
_LIFT_M, _ASIDE_M, _PICK_S = 0.08, 0.05, 8.0  # height and distance of the moved object, and duration of `pick`


def plan_motion(
    twin: Twin,
    motion: str,
    *,
    seconds: float = 10.0,
    seed: int = 0,
    episode: int = 0,
    objects: Mapping[str, Array] | None = None,
) -> ExcitationPlan:
    """Return a motion at the twin's control rate, with limits from the twin.

    Args:
        twin: twin of the robot.
        motion: ``reach`` (the tool moves to random places), ``pick`` (it picks up the twin's first object and puts it
            down aside), ``random`` (reaching, adjusting and grasping in joint space, see `teleop_commands`), or a CSV
            file with the columns ``time`` and one per joint, in the robot's units.
        seconds: duration of ``reach`` and ``random``; the other motions have their own duration.
        seed: run seed.
        episode: number of the episode; each has another motion, except from a file.
        objects: measured x, y, z in m and heading in rad of objects, ``(4,)`` each, by name; by default those of the
            twin's home pose.

    Raises:
        InputError: If there is no such motion or file, the twin has no tool, gripper or object for the motion, or
            the motion exceeds a limit.
    """
    if motion not in MOTIONS and not Path(motion).is_file():
        raise InputError(f"There is no motion and no file {motion!r}. Give {', '.join(MOTIONS)} or a CSV file.")
    limits, random = motion_limits(twin), generator(seed, f"record/{motion}", episode)
    if motion == "random":
        commands = teleop_commands(twin, seed=seed, episodes=[episode], seconds=seconds)[0]
        commands = twin.command_units.to_si(commands)
        commands = np.clip(commands, limits.low, limits.high)  # an encoder's step beyond them
    elif motion == "reach":
        commands = _follow_knots(twin, limits, _draw_reaches(twin, limits, random, seconds))
    elif motion == "pick":
        commands = np.clip(_simulate_pick(twin, random, objects or {}), limits.low, limits.high)
    else:
        commands = _read_commands(Path(motion), twin)
    slowed = _slow_down(commands, limits, twin)
    made = {"motion": motion, "seed": seed, "episode": episode, "slowed": len(slowed) / len(commands)}
    return _make_plan(twin, made, slowed, limits, objects or {})


def _require_positions(twin: Twin, motion: str) -> Arm:
    if (kind := twin.robot.control) != "position":
        raise InputError(
            f"The motion {motion} needs position commands, and {twin.name} takes {COMMANDED[kind]}. Use random."
        )
    return Arm(twin)


def _draw_reaches(twin: Twin, limits: MotionLimits, random: np.random.Generator, seconds: float) -> list[Array]:
    """Return poses of the robot's joints, beginning and ending at home, with free straight paths between them."""
    arm, clearance = _require_positions(twin, "reach"), ClearanceCheck(twin)
    chain, home = arm.chain, twin.home()[0][twin.joint_qpos]
    columns = [list(twin.joint_qpos).index(row) for row in chain.qpos]
    pose = chain.pose(arm.home[None, chain.qpos])
    reach = float(np.hypot(*(pose.position - pose.anchors[:, 0])[0, :2])) or float(arm.home_position[2])
    poses = [home]
    while _duration(poses, limits) + _duration([poses[-1], home], limits) < seconds:
        points = arm.home_position + _BOX * reach * random.uniform(-1.0, 1.0, (_TRIES, 3))
        start = np.clip(poses[-1][columns], *chain.limits.T)
        found = solve_reach(chain, start, points)
        goals = np.tile(home, (_TRIES, 1))
        goals[:, columns] = found.q
        within = ((goals >= limits.low) & (goals <= limits.high)).all(axis=1) & found.reached(2e-3)
        free = next((goal for goal in goals[within] if _is_free(clearance, poses[-1], goal, home)), None)
        if free is None:
            break
        poses.append(free)
    if len(poses) == 1:
        raise InputError(f"{twin.name} reaches no place near its tool at home without contact. Use --motion random.")
    return [*poses, home]


def _is_free(clearance: ClearanceCheck, start: Array, goal: Array, home: Array) -> bool:
    parts = np.linspace(1.0, 0.0, _POINTS)[:, None]
    ways = np.concatenate([start + parts * (goal - start), home + parts * (goal - home)])
    return all(clearance.is_free(pose) for pose in ways)


def _simulate_pick(twin: Twin, random: np.random.Generator, objects: Mapping[str, Array]) -> Array:
    """Return the commands with which an expert picks up the twin's first object in the nominal twin, ``(T, n)``.

    It puts the object down at a random side, 5 cm away.
    """
    arm, hand = _require_positions(twin, "pick"), GripperHand.of(twin)
    if not twin.spec.objects:
        raise InputError(f"{twin.name} names no object to pick up. Add `objects:` to its YAML, or use --motion reach.")
    thing, initial = FreeBody.of(twin, twin.spec.objects[0]), _place_objects(twin, objects)
    place, angle = initial.qpos[0, thing.qpos : thing.qpos + 3], random.uniform(-np.pi, np.pi)
    surface = Ground.of(twin, twin.table(1))
    table = surface.surface.height(place[None, :2]) if surface else np.zeros(1)
    grasp = GraspFromAbove(
        arm,
        hand,
        thing,
        initial,
        target=place + _ASIDE_M * np.array([np.cos(angle), np.sin(angle), 0.0]),
        grasp_height=0.0,
        lift_height=_LIFT_M,
        ground=(table, np.zeros((1, 2))),
    )
    home = Waypoint(name="home", position=arm.home_position, turn=0.0, gripper="home")
    expert = WaypointExpert(arm, initial, [*grasp.pick(), *grasp.place(), home], frame=grasp.frame, hand=hand)
    steps = round(_PICK_S * twin.control_hz)
    made = rollout(open_backend("threads", nthread=1), twin, twin.table(1), initial, expert, steps)
    return np.concatenate([initial.command, made.commands[0]])


def _place_objects(twin: Twin, objects: Mapping[str, Array]) -> InitialState:
    """Return the home state of one world, with objects at measured places and headings."""
    initial = InitialState.home(twin, 1)
    qpos = initial.qpos.copy()
    for name in set(twin.spec.objects) & set(objects):
        row, (x, y, z, heading) = FreeBody.of(twin, name).qpos, objects[name]
        qpos[0, row : row + 7] = x, y, z, np.cos(heading / 2), 0.0, 0.0, np.sin(heading / 2)
    return replace(initial, qpos=qpos)


def _move_time(start: Array, goal: Array, limits: MotionLimits) -> float:
    return max(_PAUSE_S, _PEAK * float(np.max(np.abs(goal - start) / (_SPEED_SHARE * limits.speed))))


def _duration(poses: Sequence[Array], limits: MotionLimits) -> float:
    return sum(_move_time(*pair, limits) + _PAUSE_S for pair in itertools.pairwise(poses))


def _follow_knots(twin: Twin, limits: MotionLimits, poses: Sequence[Array]) -> Array:
    """Return commands ``(T, n)`` on minimum-jerk paths from pose to pose, with a pause at each."""
    knots, stops = [0.0], [poses[0]]
    for pose in poses[1:]:
        arrival = knots[-1] + _move_time(stops[-1], pose, limits)
        knots += [arrival, arrival + _PAUSE_S]
        stops += [pose, pose]
    time = np.arange(1 + round(knots[-1] * twin.control_hz)) / twin.control_hz
    return np.clip(interpolate_minimum_jerk(knots, stops, time), limits.low, limits.high)


def _read_commands(path: Path, twin: Twin) -> Array:
    """Return commands ``(T, n)`` in SI units at the twin's rate from a CSV file; see `plan_motion`."""
    rows = [row for row in csv.reader(io.StringIO(read_text(path, MAX_LINES_BYTES))) if row]
    header, joints = [name.strip() for name in rows[0]] if rows else [], twin.units.names
    missing = [name for name in ("time", *joints) if name not in header]
    if missing or len(rows) < 3:
        raise InputError(
            f"{path} lacks {', '.join(missing) or 'rows'}. Give a CSV file with the columns time (s), "
            f"{', '.join(joints)} (in {', '.join(unit.unit for unit in twin.units.joints)}), and two rows or more."
        )
    try:
        values = np.array([[float(row[header.index(name)]) for name in ("time", *joints)] for row in rows[1:]])
    except (ValueError, IndexError) as error:
        raise InputError(f"{path}: a value is not a number: {error}. Correct the row.") from error
    if not np.isfinite(values).all() or (np.diff(values[:, 0]) <= 0).any():
        raise InputError(f"{path}: values must be finite, and time must increase from row to row.")
    time = values[0, 0] + np.arange(1 + int((values[-1, 0] - values[0, 0]) * twin.control_hz)) / twin.control_hz
    commands = np.stack([np.interp(time, values[:, 0], column) for column in values[:, 1:].T], axis=1)
    return twin.command_units.to_si(commands)


def _slow_down(commands: Array, limits: MotionLimits, twin: Twin) -> Array:
    """Return commands that are slower in time by a common factor, so that they keep the speed limits."""
    if twin.robot.control != "position":
        return np.clip(commands, limits.low, limits.high)
    fastest = float(np.max(np.abs(np.diff(commands, axis=0)) * twin.control_hz / limits.speed, initial=0.0))
    count = max(len(commands), 2 + int(np.ceil((len(commands) - 1) * fastest)))
    at = np.linspace(0, len(commands) - 1, count) if fastest > 1.0 else np.arange(len(commands))
    steps = np.arange(len(commands))
    return np.stack([np.interp(at, steps, column) for column in commands.T], axis=1)


def _make_plan(
    twin: Twin, made: Mapping[str, Any], commands: Array, limits: MotionLimits, objects: Mapping[str, Array]
) -> ExcitationPlan:
    control = twin.robot.control
    plan = ExcitationPlan(
        twin=twin.name,
        twin_hash=twin.hash,
        joints=twin.units.names,
        control=control,
        hz=twin.control_hz,
        commands=commands,
        home=commands[0] if control == "position" else np.zeros(commands.shape[1]),
        limits=limits,
        tracking_error=_tracking_error(twin, commands, objects)
        if control == "position"
        else np.zeros(commands.shape[1]),
        provenance=made,
    )
    plan.require_within_limits(f"The motion {made['motion']}")
    return plan


def _tracking_error(twin: Twin, commands: Array, objects: Mapping[str, Array]) -> Array:
    """Return the largest distance of each joint from its command in the nominal twin, ``(n,)`` in rad or m."""
    backend, initial = open_backend("threads", nthread=1), _place_objects(twin, objects)
    made = rollout(backend, twin, twin.table(1), initial, commands[None], len(commands))
    return np.abs(made.qpos[0, 1:][:, twin.joint_qpos] - commands).max(axis=0)
