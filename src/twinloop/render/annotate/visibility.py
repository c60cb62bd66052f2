"""How much of a thing a picture shows, of what it would show were the thing alone.

The pixels that hide a thing are found with rays: of those in its full outline that show something else, as near as it
or nearer, the ones through which the thing itself would be met.
"""

from __future__ import annotations

import math

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.render.annotate.flow import View
from twinloop.render.annotate.instances import DRAWN_GROUPS, Instance

MOST_RAYS = 4096  # per thing and picture: a fraction then errs by less than a hundredth, in a few ms; our choice
_TOUCHING = 1e-4  # m, and part of the distance: what lies within this lies as near; above single precision's rounding
_ASKED = mujoco.mjNGROUP - 1  # a group of geoms that only rays know


def hidden_pixels(
    model: mujoco.MjModel,
    data: mujoco.MjData,
    view: View,
    instance: NDArray[np.uint16],
    thing: Instance,
    box: NDArray[np.float64],
    farthest: float,
) -> int:
    """How many pixels of a picture show something else before a thing.

    Args:
        model: with the world's fields; its ``geom_group`` is written and restored.
        data: the poses of its geoms.
        instance: the picture's instances ``(H, W)``.
        box: of the thing's outline ``(4,)``, the whole picture where it is nan; see `boxes.Blobs.upright`.
        farthest: how far along the optical axis the thing reaches, in m.

    Returns:
        A count; where more than `MOST_RAYS` pixels are in question, an estimate from a grid of so many at most.
    """
    whole = np.array([0.0, 0.0, view.pinhole.width, view.pinhole.height])
    near = np.clip(np.where(np.isnan(box), whole, box), 0.0, whole[[2, 3, 2, 3]])
    left, top, right, bottom = *np.floor(near[:2]).astype(int).tolist(), *np.ceil(near[2:]).astype(int).tolist()
    depth = view.depth[top:bottom, left:right]
    asked = (instance[top:bottom, left:right] != thing.id) & (depth < farthest)
    step = max(1, math.ceil(math.sqrt(np.count_nonzero(asked) / MOST_RAYS)))
    rows, columns = np.nonzero(asked[::step, ::step])
    if not len(rows):
        return 0
    pixels = np.stack([step * columns + left + 0.5, step * rows + top + 0.5], axis=-1)
    met = _distances(model, data, view, thing, pixels)
    # What lies behind the thing shows where a drawing of flat faces falls short of it, and hides nothing.
    hiding = (met > 0.0) & (met > depth[step * rows, step * columns] * (1.0 - _TOUCHING) - _TOUCHING)
    return step**2 * int(np.count_nonzero(hiding))


def _distances(
    model: mujoco.MjModel, data: mujoco.MjData, view: View, thing: Instance, pixels: NDArray[np.float64]
) -> NDArray[np.float64]:
    """How far along the optical axis rays through pixels meet a thing, -1 where they do not."""
    count = len(pixels)
    rays = view.pinhole.unproject(pixels)
    length = np.linalg.norm(rays, axis=-1)
    directions = np.ascontiguousarray((rays / length[:, None]) @ view.world_from_camera[:3, :3].T).ravel()
    distance, met = np.empty(count), np.empty(count, dtype=np.int32)
    groups = model.geom_group.copy()
    asked = np.zeros(mujoco.mjNGROUP, dtype=np.uint8)
    asked[_ASKED] = 1
    try:
        model.geom_group[:] = 0
        model.geom_group[[geom for geom in thing.geoms if groups[geom] < DRAWN_GROUPS]] = _ASKED
        eye = np.ascontiguousarray(view.world_from_camera[:3, 3])
        mujoco.mj_multiRay(model, data, eye, directions, asked, 1, -1, met, distance, None, count, mujoco.mjMAXVAL)
    finally:
        model.geom_group[:] = groups
    return np.where(distance >= 0.0, distance / length, -1.0)
