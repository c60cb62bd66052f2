"""Find where an arm may be, and which commands a joint can be given without breaking a limit later.

Commands come once per control period; a command's speed is its distance from the one before over the period. A command
is allowed if it lies in the range, if its speed and the change of its speed are within limits, and if the joint can
still come to rest within the range from there, braking as hard as the acceleration allows. What is allowed at one step
therefore leaves something allowed at the next, without end.
"""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.records import freeze_fields, frozen
from twinloop.hardware.limits import ProximityPairs
from twinloop.twin import Twin

Array = NDArray[np.float64]
LONGEST_STOP = 32  # poses of a stopping path that are kept; a longer one is thinned evenly, its end included


@dataclass(frozen=True, kw_only=True)
class JointLimits:
    """Range, speed and acceleration of commands, ``(n,)`` each in SI units, and the control period ``dt`` in s."""

    low: Array
    high: Array
    speed: Array
    acceleration: Array
    dt: float

    def __post_init__(self) -> None:
        freeze_fields(self, "low", "high", "speed", "acceleration")

    @property
    def brake(self) -> Array:
        """How much the speed may change from one command to the next, ``(n,)``."""
        return self.acceleration * self.dt


@dataclass(frozen=True, kw_only=True)
class CommandWindow:
    """The commands ``(…, n)`` from ``low`` to ``high`` that are allowed next, and which limit each end comes from."""

    low: Array
    high: Array
    low_rule: NDArray[np.str_]
    high_rule: NDArray[np.str_]


def window(position: Array, velocity: Array, limits: JointLimits) -> CommandWindow:
    """What may be commanded next, given the last command and its speed, ``(…, n)`` each.

    A joint that stands outside its range, because a person put it there, may move further in and not further out.
    """
    high, high_rule = _end(position, velocity, limits.high - position, limits)
    low, low_rule = _end(-position, -velocity, position - limits.low, limits)
    high = np.minimum(high, np.maximum(limits.high, position))
    low = np.minimum(np.maximum(-low, np.minimum(limits.low, position)), high)
    return CommandWindow(low=low, high=high, low_rule=low_rule, high_rule=high_rule)


def fastest_towards(distance: Array, limits: JointLimits) -> Array:
    """The highest speed now, ``(…, n)``, from which a joint still comes to rest within ``distance`` (0 or more).

    A command at speed v and those that brake by ``b = acceleration · dt`` each cover
    ``dt · (v + (v − b) + (v − 2b) + …)``. With m whole steps of braking, that is
    ``dt · ((m + 1) v − b m (m + 1) / 2)``, and m is the largest whole number with ``b m (m + 1) / 2 ≤ distance / dt``.
    """
    per_step = np.maximum(distance, 0.0) / limits.dt
    brake = np.broadcast_to(limits.brake, per_step.shape)
    bounded = np.isfinite(brake)
    safe = np.where(bounded, brake, 1.0)
    steps = np.where(bounded, np.floor((np.sqrt(1.0 + 8.0 * per_step / safe) - 1.0) / 2.0), 0.0)
    return (per_step + safe * steps * (steps + 1.0) / 2.0) / (steps + 1.0)


def braked(position: Array, velocity: Array, limits: JointLimits) -> tuple[Array, Array]:
    """The next command and its speed when braking as hard as allowed, ``(…, n)`` each."""
    slower = np.sign(velocity) * np.maximum(np.abs(velocity) - limits.brake, 0.0)
    return position + slower * limits.dt, slower


def stopping_path(position: Array, velocity: Array, limits: JointLimits) -> Array:
    """Commands ``(T, n)`` that bring one robot to rest from a command ``(n,)`` and its speed; without that command.

    Every joint brakes as hard as it may. At most `LONGEST_STOP` of them, the last one included.
    """
    ratio = np.divide(np.abs(velocity), limits.brake, out=np.zeros_like(velocity), where=limits.brake > 0.0)
    count = int(np.ceil(ratio.max(initial=0.0))) - 1
    if count < 1:
        return np.empty((0, len(position)))
    left = np.abs(velocity) - np.arange(1, count + 1)[:, None] * limits.brake
    path = position + np.cumsum(np.sign(velocity) * np.maximum(left, 0.0), axis=0) * limits.dt
    if count <= LONGEST_STOP:
        return path
    return path[np.linspace(0, count - 1, LONGEST_STOP).round().astype(np.int64)]


def _end(position: Array, velocity: Array, distance: Array, limits: JointLimits) -> tuple[Array, NDArray[np.str_]]:
    """The furthest allowed command upwards and the limit that says so."""
    faster = velocity + limits.brake
    to_range = fastest_towards(distance, limits)
    speed = np.minimum(np.minimum(faster, limits.speed), to_range)
    rule = np.where(speed == to_range, "range", np.where(speed == limits.speed, "speed", "acceleration"))
    # Beyond what was allowed (by round-off, or because the robot was moved), braking comes as hard as it may.
    return position + np.maximum(speed, velocity - limits.brake) * limits.dt, rule


class PoseSpace:
    """What the twin says of poses ``(n,)`` of the robot's joints, rad or m.

    Only what is fixed counts: things that lie loose are what the robot is there to touch, and nobody knows where they
    are now. The hand may close on itself, and keeps a distance of its own, because it works at the table's surface.
    What is closer at the twin's home than asked for (a base that stands on the table) is as it should be.

    Args:
        twin: of the robot.
        clearance: m between any link and what is fixed, and between links that are not neighbours.
        hand_clearance: m between the hand and what is fixed; at most ``clearance``.
        box: lowest and highest position of the tool in the world, ``(2, 3)`` m; infinite where unlimited.

    Raises:
        InputError: a box for a twin whose spec names no tool site.
    """

    def __init__(
        self, twin: Twin, *, clearance: float = 0.0, hand_clearance: float = 0.0, box: ArrayLike | None = None
    ) -> None:
        if box is not None and twin.robot.tcp is None:
            raise InputError(
                f"The twin {twin.name} names no tool (robot.tcp), so a workspace box says nothing. Name the site."
            )
        self._box = None if box is None else frozen(box)
        self._tool = -1 if twin.robot.tcp is None else int(twin.model.site(twin.robot.tcp).id)
        self._model, self._joints, self._home = twin.model, twin.joint_qpos, twin.home()[0]
        self._near = ProximityPairs(self._model, _kept_distances(twin, clearance, hand_clearance))
        self._place(self._home[self._joints])
        self._usual = {(first, second) for first, second, *_ in self._near.close()}

    def tool(self, pose: Array) -> Array:
        """Position of the tool in the world, ``(3,)`` m."""
        self._place(pose)
        return self._near.data.site_xpos[self._tool].copy()

    def first_fault(self, poses: Array) -> tuple[str, str] | None:
        """The rule that the first wrong pose among ``(T, n)`` breaks, and a sentence's part on how; None if none."""
        for pose in poses:
            self._place(pose)
            fault = self._outside() or self._touching()
            if fault is not None:
                return fault
        return None

    def _place(self, pose: Array) -> None:
        qpos = self._home.copy()
        qpos[self._joints] = pose
        self._near.place(qpos)

    def _outside(self) -> tuple[str, str] | None:
        if self._box is None:
            return None
        place = self._near.data.site_xpos[self._tool]
        for axis, name in enumerate("xyz"):
            low, high = self._box[:, axis]
            if not low <= place[axis] <= high:
                return "workspace", f"the tool would be at {name} = {place[axis]:.3f} m, outside {low:g} to {high:g} m"
        return None

    def _touching(self) -> tuple[str, str] | None:
        for first, second, distance, keep in self._near.close():
            if (first, second) not in self._usual:
                names = f"{self._near.name(first)} and {self._near.name(second)}"
                return "clearance", f"{names} would be {1e3 * distance:.1f} mm apart, {1e3 * keep:.1f} mm are kept"
        return None


def _kept_distances(twin: Twin, clearance: float, at_hand: float) -> Array:
    """The distance that each pair of shapes keeps, ``(ngeom, ngeom)``; −inf for pairs that may meet."""
    model, grip = twin.model, twin.robot.gripper
    links = _carried(model, [int(model.joint(name).bodyid[0]) for name in twin.robot.joints])
    # The hand is what the gripper's joint moves, and what it moves against.
    palm = [] if grip is None else [int(model.body_parentid[int(model.joint(grip.joint).bodyid[0])])]
    free = model.jnt_bodyid[model.jnt_type == mujoco.mjtJoint.mjJNT_FREE]
    link, tool, loose = (bodies[model.geom_bodyid] for bodies in (links, _carried(model, palm), _carried(model, free)))
    keep = np.full((model.ngeom, model.ngeom), -np.inf)
    pair = (link[:, None] | link) & ~(loose[:, None] | loose)
    keep[pair] = clearance
    keep[pair & ((tool[:, None] & ~link) | (~link[:, None] & tool))] = min(at_hand, clearance)
    keep[tool[:, None] & tool] = -np.inf
    return keep


def _carried(model: mujoco.MjModel, roots: ArrayLike) -> NDArray[np.bool_]:
    """The bodies that are one of these or hang on one, ``(nbody,)``."""
    found = np.isin(np.arange(model.nbody), np.asarray(roots, dtype=np.int64))
    for body in range(1, model.nbody):  # parents come before their children
        found[body] |= found[model.body_parentid[body]]
    return found
