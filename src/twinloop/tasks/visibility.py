"""How much of an object a camera sees, by rays: no picture is drawn for it."""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.simulate import InitialState
from twinloop.simulate.threads import make_batch
from twinloop.twin import Twin

_RAYS = 24  # rays across the object's bounding circle: about 450 in it
_ALONE = 5  # a geom group of its own, for the object as if nothing else were there


def camera_position(twin: Twin, params: ParamTable, camera: str) -> NDArray[np.float64]:
    """Where a camera of the world stands in every world, ``(nworld, 3)``.

    Raises:
        UnknownNameError: no camera has that name.
        InputError: it is carried by a body.
    """
    model = twin.model
    names = [model.camera(i).name for i in range(model.ncam)]
    if camera not in names:
        raise UnknownNameError("camera", camera, names, where=f"the twin {twin.name}")
    index = model.camera(camera).id
    if model.cam_bodyid[index]:
        body = model.body(int(model.cam_bodyid[index])).name
        raise InputError(
            f"The camera {camera} is carried by {body}; occlusion is asked for of cameras that stand still."
        )
    fields = twin.fields(params, visual=True).arrays
    return fields["cam_pos"][:, index] if "cam_pos" in fields else np.tile(model.cam_pos[index], (params.nworld, 1))


def visible_fraction(
    twin: Twin, params: ParamTable, initial: InitialState, *, camera: str, body: str
) -> NDArray[np.float64]:
    """The part of an object's outline that a camera would show unhidden, ``(nworld,)``; outlines beyond the frame too.

    Rays from the camera through a grid over the object's bounding circle: those that meet the object first, over
    those that would meet it if it were alone.
    """
    model = twin.model
    index = model.body(body).id
    geoms = np.flatnonzero(model.geom_bodyid == index)
    batch = make_batch(twin, params, initial, 1)
    groups = batch.expand("geom_group")
    groups[:] = 0
    groups[:, geoms] = _ALONE
    row = int(model.jnt_qposadr[model.body_jntadr[index]])
    eye, centre = camera_position(twin, params, camera), initial.qpos[:, row : row + 3]
    radius = _radius(batch.expand("geom_size")[:, geoms], model, geoms)
    directions = _cone(centre - eye, radius)
    origins = np.repeat(eye[:, None], directions.shape[1], axis=1)
    alone = np.zeros(mujoco.mjNGROUP, dtype=np.uint8)
    alone[_ALONE] = 1
    _, own = batch.ray(origins, directions, geomgroup=alone)
    _, first = batch.ray(origins, directions)
    meets = own >= 0
    return (meets & np.isin(first, geoms)).sum(axis=1) / np.maximum(meets.sum(axis=1), 1)


def _radius(sizes: NDArray[np.float64], model: mujoco.MjModel, geoms: NDArray[np.intp]) -> NDArray[np.float64]:
    """A bounding radius of some geoms in every world, generous for what a world has made larger."""
    grown = (sizes / np.where(model.geom_size[geoms] > 0, model.geom_size[geoms], np.inf)).max(axis=(1, 2))
    reach = np.linalg.norm(model.geom_pos[geoms], axis=1) + model.geom_rbound[geoms]
    return reach.max() * np.maximum(grown, 1.0)


def _cone(axis: NDArray[np.float64], radius: NDArray[np.float64]) -> NDArray[np.float64]:
    """Directions ``(nworld, nray, 3)`` through a disc of some radius across the end of ``axis``."""
    forward = axis / np.sqrt((axis**2).sum(axis=1, keepdims=True))
    right = np.cross(forward, [0.0, 0.0, 1.0])
    length = np.sqrt((right**2).sum(axis=1, keepdims=True))
    right = np.where(length > 1e-6, right / np.maximum(length, 1e-6), [1.0, 0.0, 0.0])
    up = np.cross(right, forward)
    line = (np.arange(_RAYS) + 0.5) * 2.0 / _RAYS - 1.0
    x, y = (grid[line[:, None] ** 2 + line**2 <= 1.0] for grid in np.meshgrid(line, line, indexing="ij"))
    across = x[:, None] * right[:, None] + y[:, None] * up[:, None]
    rays = axis[:, None] + radius[:, None, None] * across
    return rays / np.sqrt((rays**2).sum(axis=-1, keepdims=True))
