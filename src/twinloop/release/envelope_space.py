"""Check poses of an arm, and compute the commands after which the robot can still stop within its limits.

Commands are issued once per control period. The speed of a command is its distance from the previous command divided by
the period. A command is allowed if it is within the range, if its speed and its change of speed are within the limits,
and if the joint can still stop within the range by braking with the highest allowed acceleration. After an allowed
command, another command is therefore always allowed.
"""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.records import freeze_array, freeze_fields
from twinloop.hardware.limits import ProximityPairs
from twinloop.twin import Twin

Array = NDArray[np.float64]
LONGEST_STOP = 32  # poses of a stopping path that are kept; a longer one is thinned evenly, its end included


@dataclass(frozen=True, kw_only=True)
class JointLimits:
    """Limits of the commands of n joints, each of shape ``(n,)`` in SI units.

    Attributes:
        low: lower bound of the position.
        high: upper bound of the position.
        speed: largest speed.
        acceleration: largest acceleration.
        dt: control period in s.
    """

    low: Array
    high: Array
    speed: Array
    acceleration: Array
    dt: float

    def __post_init__(self) -> None:
        freeze_fields(self, "low", "high", "speed", "acceleration")

    @property
    def max_speed_change(self) -> Array:
        """Largest change of speed from one command to the next, shape ``(n,)``."""
        return self.acceleration * self.dt


@dataclass(frozen=True, kw_only=True)
class CommandWindow:
    """Interval of the allowed next commands of n joints, each of shape ``(…, n)``.

    Attributes:
        low: lower bound, in SI units.
        high: upper bound, in SI units.
        low_rule: limit that determines the lower bound: ``range``, ``speed`` or ``acceleration``.
        high_rule: limit that determines the upper bound.
    """

    low: Array
    high: Array
    low_rule: NDArray[np.str_]
    high_rule: NDArray[np.str_]


def compute_window(position: Array, velocity: Array, limits: JointLimits) -> CommandWindow:
    """Return the interval of allowed next commands.

    A joint outside its range, for example after a person moved it, may move towards the range but not away from it.

    Args:
        position: last command, shape ``(…, n)`` for n joints, in SI units.
        velocity: speed of the last command, shape ``(…, n)``.
        limits: limits of range, speed and acceleration of the joints.
    """
    high, high_rule = _compute_window_end(position, velocity, limits.high - position, limits)
    low, low_rule = _compute_window_end(-position, -velocity, position - limits.low, limits)
    high = np.minimum(high, np.maximum(limits.high, position))
    low = np.minimum(np.maximum(-low, np.minimum(limits.low, position)), high)
    return CommandWindow(low=low, high=high, low_rule=low_rule, high_rule=high_rule)


def compute_stoppable_speed(distance: Array, limits: JointLimits) -> Array:
    """Return the highest speed, shape ``(…, n)``, from which a joint still stops within a distance.

    A command at speed v and the following commands, which brake by ``b = acceleration · dt`` each, cover ``dt · (v + (v
    − b) + (v − 2b) + …)``. With m whole steps of braking, that is ``dt · ((m + 1) v − b m (m + 1) / 2)``, and m is the
    largest whole number with ``b m (m + 1) / 2 ≤ distance / dt``.

    Args:
        distance: distance to the end of the range in SI units, shape ``(…, n)``; negative counts as 0.
    """
    per_step = np.maximum(distance, 0.0) / limits.dt
    brake = np.broadcast_to(limits.max_speed_change, per_step.shape)
    bounded = np.isfinite(brake)
    safe = np.where(bounded, brake, 1.0)
    steps = np.where(bounded, np.floor((np.sqrt(1.0 + 8.0 * per_step / safe) - 1.0) / 2.0), 0.0)
    return (per_step + safe * steps * (steps + 1.0) / 2.0) / (steps + 1.0)


def compute_braking_step(position: Array, velocity: Array, limits: JointLimits) -> tuple[Array, Array]:
    """Return the next command and its speed with the hardest allowed braking, shape ``(…, n)`` each.

    Args:
        position: last command, shape ``(…, n)`` for n joints, in SI units.
        velocity: speed of the last command, shape ``(…, n)``.
    """
    slower = np.sign(velocity) * np.maximum(np.abs(velocity) - limits.max_speed_change, 0.0)
    return position + slower * limits.dt, slower


def compute_stopping_path(position: Array, velocity: Array, limits: JointLimits) -> Array:
    """Return the commands with which every joint brakes to rest as hard as allowed, shape ``(T, n)`` for T steps.

    If there are more than `LONGEST_STOP` (32) commands, evenly spaced ones are returned, including the last.

    Args:
        position: last command, shape ``(n,)``, in SI units.
        velocity: speed of the last command, shape ``(n,)``.
    """
    ratio = np.divide(
        np.abs(velocity), limits.max_speed_change, out=np.zeros_like(velocity), where=limits.max_speed_change > 0.0
    )
    count = int(np.ceil(ratio.max(initial=0.0))) - 1
    if count < 1:
        return np.empty((0, len(position)))
    left = np.abs(velocity) - np.arange(1, count + 1)[:, None] * limits.max_speed_change
    path = position + np.cumsum(np.sign(velocity) * np.maximum(left, 0.0), axis=0) * limits.dt
    if count <= LONGEST_STOP:
        return path
    return path[np.linspace(0, count - 1, LONGEST_STOP).round().astype(np.int64)]


def _compute_window_end(
    position: Array, velocity: Array, distance: Array, limits: JointLimits
) -> tuple[Array, NDArray[np.str_]]:
    """Return the upper end of the interval of allowed next commands, and the name of the limit that determines it.

    Args:
        position: last command, shape ``(…, n)``, in SI units.
        velocity: speed of the last command, shape ``(…, n)``.
        distance: distance to the upper end of the range, shape ``(…, n)``.
        limits: limits of speed, acceleration and range of the joints.
    """
    faster = velocity + limits.max_speed_change
    to_range = compute_stoppable_speed(distance, limits)
    speed = np.minimum(np.minimum(faster, limits.speed), to_range)
    rule = np.where(speed == to_range, "range", np.where(speed == limits.speed, "speed", "acceleration"))
    # Outside the limits (by round-off, or because the robot was moved), the joint brakes as hard as allowed.
    return position + np.maximum(speed, velocity - limits.max_speed_change) * limits.dt, rule


class PoseSpace:
    """Checker of joint positions ``(n,)`` in rad or m against the geometry of the twin.

    Only fixed objects are checked. The robot may touch loose objects, and their present positions are unknown. The hand
    may close on itself. It has a separate clearance because it works at the table's surface. Shapes that are closer
    than the clearance at the twin's home pose, such as a base on the table, are allowed.

    Args:
        clearance: smallest distance in m between a link and a fixed object, and between links that are not neighbours.
        hand_clearance: smallest distance in m between the hand and a fixed object; at most ``clearance``.
        box: lowest and highest position of the tool in the world frame, ``(2, 3)`` in m; infinite where unlimited. None
            for no limit.

    Raises:
        InputError: If a box is given for a twin that has no tool site.
    """

    def __init__(
        self, twin: Twin, *, clearance: float = 0.0, hand_clearance: float = 0.0, box: ArrayLike | None = None
    ) -> None:
        if box is not None and twin.robot.tcp is None:
            raise InputError(
                f"The twin {twin.name} has no tool site, so a workspace box cannot be used. Name the site as robot.tcp."
            )
        self._box = None if box is None else freeze_array(box)
        self._tool = -1 if twin.robot.tcp is None else int(twin.model.site(twin.robot.tcp).id)
        self._model, self._joints, self._home = twin.model, twin.joint_qpos, twin.home()[0]
        self._near = ProximityPairs(self._model, _compute_clearances(twin, clearance, hand_clearance))
        self._set_pose(self._home[self._joints])
        self._usual = {(first, second) for first, second, *_ in self._near.find_close_pairs()}

    def compute_tool_position(self, pose: Array) -> Array:
        """Return the position of the tool in the world frame, ``(3,)`` in m.

        Args:
            pose: joint positions, shape ``(n,)``, in rad or m.
        """
        self._set_pose(pose)
        return self._near.data.site_xpos[self._tool].copy()

    def find_first_fault(self, poses: Array) -> tuple[str, str] | None:
        """Return the first fault of a sequence of poses, or None if all poses are allowed.

        Args:
            poses: joint positions of T poses, shape ``(T, n)``, in rad or m.

        Returns:
            Broken rule, ``workspace`` or ``clearance``, and a description for a person.
        """
        for pose in poses:
            self._set_pose(pose)
            fault = self._check_workspace() or self._check_clearance()
            if fault is not None:
                return fault
        return None

    def _set_pose(self, pose: Array) -> None:
        qpos = self._home.copy()
        qpos[self._joints] = pose
        self._near.set_position(qpos)

    def _check_workspace(self) -> tuple[str, str] | None:
        if self._box is None:
            return None
        place = self._near.data.site_xpos[self._tool]
        for axis, name in enumerate("xyz"):
            low, high = self._box[:, axis]
            if not low <= place[axis] <= high:
                return "workspace", f"the tool would be at {name} = {place[axis]:.3f} m, outside {low:g} to {high:g} m"
        return None

    def _check_clearance(self) -> tuple[str, str] | None:
        for first, second, distance, keep in self._near.find_close_pairs():
            if (first, second) not in self._usual:
                names = f"{self._near.name(first)} and {self._near.name(second)}"
                return "clearance", f"{names} would be {1e3 * distance:.1f} mm apart, {1e3 * keep:.1f} mm are kept"
        return None


def _compute_clearances(twin: Twin, clearance: float, at_hand: float) -> Array:
    """Return the smallest allowed distance of each pair of geoms in m, shape ``(ngeom, ngeom)``.

    It is −inf for pairs that may touch.

    Args:
        clearance: distance between a link and a fixed object, and between links, in m.
        at_hand: distance between the hand and a fixed object, in m.
    """
    model, grip = twin.model, twin.robot.gripper
    links = _mask_subtrees(model, [int(model.joint(name).bodyid[0]) for name in twin.robot.joints])
    # The hand consists of the bodies that the gripper's joint moves and of the palm.
    palm = [] if grip is None else [int(model.body_parentid[int(model.joint(grip.joint).bodyid[0])])]
    free = model.jnt_bodyid[model.jnt_type == mujoco.mjtJoint.mjJNT_FREE]
    link, tool, loose = (
        bodies[model.geom_bodyid] for bodies in (links, _mask_subtrees(model, palm), _mask_subtrees(model, free))
    )
    keep = np.full((model.ngeom, model.ngeom), -np.inf)
    pair = (link[:, None] | link) & ~(loose[:, None] | loose)
    keep[pair] = clearance
    keep[pair & ((tool[:, None] & ~link) | (~link[:, None] & tool))] = min(at_hand, clearance)
    keep[tool[:, None] & tool] = -np.inf
    return keep


def _mask_subtrees(model: mujoco.MjModel, roots: ArrayLike) -> NDArray[np.bool_]:
    """Return a mask of the bodies with the ids ``roots`` and all their descendants, shape ``(nbody,)``."""
    found = np.isin(np.arange(model.nbody), np.asarray(roots, dtype=np.int64))
    for body in range(1, model.nbody):  # parents come before their children
        found[body] |= found[model.body_parentid[body]]
    return found
