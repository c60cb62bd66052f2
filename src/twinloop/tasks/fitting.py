"""Whether a task can be done in a world at all: conditions that a randomization may ask for by name."""

from __future__ import annotations

import copy

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.params import ParamTable
from twinloop.randomize import Constraint
from twinloop.tasks.hand import Hand
from twinloop.twin import Twin

FITS = "object fits between the jaws"
_CLEARANCE = 0.002  # m, both sides together, so that the jaws can come down beside it; our choice, no published figure
_DEPTHS = 60  # places along the jaws at which their distance is taken
_SOLID = np.array([1, 0, 0, 0, 0, 0], dtype=np.uint8)  # groups that a ray sees
_TALLEST = 3.0  # heights of the nominal object that they reach over


def object_fits(twin: Twin, hand: Hand, name: str, *, tips: float = 0.0) -> Constraint:
    """The object's wider horizontal side is narrower than the open jaws over its height, and no palm is in its way.

    A factor on its size that is no parameter of the twin is 1.

    Args:
        tips: height of the finger tips over what the object stands on, in m.
    """
    extent = _extent(twin, name)
    heights, openings = jaw_openings(twin, hand, _TALLEST * float(extent[2]))
    every, along = f"object/{name}/size", [f"object/{name}/size/{axis}" for axis in "xyz"]

    def holds(table: ParamTable) -> NDArray[np.bool_]:
        ones = np.ones(table.nworld)
        factors = np.stack([table.get(every, ones) * table.get(one, ones) for one in along], axis=-1)
        sides = extent * factors
        place = np.minimum(np.searchsorted(heights, sides[:, 2] - tips), len(heights) - 1)
        return np.maximum(sides[:, 0], sides[:, 1]) <= openings[place] - _CLEARANCE

    names = tuple(factor for factor in (every, *along) if factor in twin.params)
    return Constraint(name=FITS, names=names, holds=holds)


def jaw_openings(twin: Twin, hand: Hand, tallest: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The narrowest distance of the open jaws over heights from their tips, both in m.

    Measured by rays from the tool site's line along the direction of opening, because a hinged jaw stands oblique.
    Infinite where nothing is met, and zero for heights that reach into the palm.
    """
    model, data = _solid(twin.model), mujoco.MjData(twin.model)
    data.qpos[:], _ = twin.home()
    data.qpos[hand.joint_qpos] = hand.open
    mujoco.mj_forward(model, data)
    site = data.site(str(twin.robot.tcp))
    frame = site.xmat.reshape(3, 3)
    (approach, forward), (across, outward) = hand.approach, hand.opening
    direction = outward * frame[:, across]
    heights, widths = np.linspace(0.0, tallest, _DEPTHS), []
    for height in heights:
        origin = site.xpos + (hand.tip - height) * forward * frame[:, approach]
        widths.append(sum(_distance(model, data, origin, sign * direction) for sign in (1.0, -1.0)))
    deep = hand.tip + _distance(model, data, site.xpos, -forward * frame[:, approach])
    return heights, np.where(heights <= deep - _CLEARANCE, np.minimum.accumulate(widths), 0.0)


def _solid(model: mujoco.MjModel) -> mujoco.MjModel:
    """The model with what collides in group 0, and what is only seen in group 1."""
    grouped = copy.copy(model)
    grouped.geom_group[:] = (model.geom_contype == 0) & (model.geom_conaffinity == 0)
    return grouped


def _distance(
    model: mujoco.MjModel, data: mujoco.MjData, origin: NDArray[np.float64], direction: NDArray[np.float64]
) -> float:
    hit = mujoco.mj_ray(model, data, origin, direction, _SOLID, 1, -1, np.zeros(1, dtype=np.int32))
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
