"""Whether a task can be done in a world at all: conditions that a randomization may ask for by name."""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.records import ParamTable
from twinloop.randomize import Constraint
from twinloop.tasks.hand import Hand
from twinloop.twin import Twin

FITS = "object fits between the jaws"
_CLEARANCE = 0.002  # m, both sides together, so that the jaws can come down beside it; our choice, no published figure
_DEPTHS = 9  # heights along the jaws at which their distance is taken


def object_fits(twin: Twin, hand: Hand, name: str) -> Constraint:
    """The object's wider horizontal side is narrower than the open jaws.

    A size that is no parameter of the twin is the model's own.
    """
    extent = _extent(twin, name)
    opening = jaw_opening(twin, hand, float(extent[2]))
    sizes = [f"object/{name}/size/{axis}" for axis in "xy"]

    def holds(table: ParamTable) -> NDArray[np.bool_]:
        sides = [table.get(size, np.full(table.nworld, width)) for size, width in zip(sizes, extent, strict=False)]
        return np.maximum(*sides) <= opening - _CLEARANCE

    return Constraint(name=FITS, names=tuple(size for size in sizes if size in twin.params), holds=holds)


def jaw_opening(twin: Twin, hand: Hand, height: float) -> float:
    """The narrowest distance of the open jaws over ``height`` from their tips, in m; infinite where nothing is met.

    Measured by rays from the tool site's line along the direction of opening, because a hinged jaw stands oblique.
    """
    model, data = twin.model, mujoco.MjData(twin.model)
    data.qpos[:], _ = twin.home()
    data.qpos[hand.joint_qpos] = hand.open
    mujoco.mj_forward(model, data)
    site = data.site(str(twin.robot.tcp))
    frame = site.xmat.reshape(3, 3)
    (approach, forward), (across, outward) = hand.approach, hand.opening
    widths = []
    for depth in np.linspace(hand.tip - height, hand.tip, _DEPTHS):
        origin = site.xpos + depth * forward * frame[:, approach]
        direction = outward * frame[:, across]
        widths.append(sum(_distance(model, data, origin, sign * direction) for sign in (1.0, -1.0)))
    return float(min(widths))


def _distance(
    model: mujoco.MjModel, data: mujoco.MjData, origin: NDArray[np.float64], direction: NDArray[np.float64]
) -> float:
    hit = mujoco.mj_ray(model, data, origin, direction, None, 1, -1, np.zeros(1, dtype=np.int32))
    return hit if hit >= 0 else np.inf


def _extent(twin: Twin, name: str) -> NDArray[np.float64]:
    """Sides of the box around an object's geoms in the object's frame, in m."""
    model, data = twin.model, mujoco.MjData(twin.model)
    mujoco.mj_kinematics(model, data)
    body = model.body(name).id
    low, high = np.full(3, np.inf), np.full(3, -np.inf)
    for geom in np.flatnonzero(model.geom_bodyid == body):
        turn = np.zeros(9)
        mujoco.mju_quat2Mat(turn, model.geom_quat[geom])
        turn = turn.reshape(3, 3)
        centre = model.geom_pos[geom] + turn @ model.geom_aabb[geom, :3]
        half = np.abs(turn) @ model.geom_aabb[geom, 3:]
        low, high = np.minimum(low, centre - half), np.maximum(high, centre + half)
    return high - low
