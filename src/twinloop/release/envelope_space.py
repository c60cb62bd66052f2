"""Check poses of an arm: workspace of the tool, and clearance to the table and between links."""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.core.records import freeze_array
from twinloop.hardware.limits import ProximityPairs
from twinloop.twin import Twin

Array = NDArray[np.float64]


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
    model = twin.model
    links = _mask_subtrees(model, [int(model.joint(name).bodyid[0]) for name in twin.robot.joints])
    free = model.jnt_bodyid[model.jnt_type == mujoco.mjtJoint.mjJNT_FREE]
    hand = _mask_subtrees(model, _find_hand(twin))
    link, tool, loose = (bodies[model.geom_bodyid] for bodies in (links, hand, _mask_subtrees(model, free)))
    keep = np.full((model.ngeom, model.ngeom), -np.inf)
    pair = (link[:, None] | link) & ~(loose[:, None] | loose)
    keep[pair] = clearance
    keep[pair & ((tool[:, None] & ~link) | (~link[:, None] & tool))] = min(at_hand, clearance)
    keep[tool[:, None] & tool] = -np.inf
    return keep


def _find_hand(twin: Twin) -> list[int]:
    """Return the id of the body from which the hand begins: the palm of a gripper, else the body of the tool site."""
    model, robot = twin.model, twin.robot
    if robot.gripper is not None:
        return [int(model.body_parentid[int(model.joint(robot.gripper.joint).bodyid[0])])]
    return [] if robot.tcp is None else [int(model.site(robot.tcp).bodyid[0])]


def _mask_subtrees(model: mujoco.MjModel, roots: ArrayLike) -> NDArray[np.bool_]:
    """Return a mask of the bodies with the ids ``roots`` and all their descendants, shape ``(nbody,)``."""
    found = np.isin(np.arange(model.nbody), np.asarray(roots, dtype=np.int64))
    for body in range(1, model.nbody):  # parents come before their children
        found[body] |= found[model.body_parentid[body]]
    return found
