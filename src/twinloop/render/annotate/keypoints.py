"""Points that are followed through pictures: the model's named sites, and the corners of things' boxes."""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.render.annotate.flow import SAME_M, SAME_PART, View
from twinloop.render.annotate.instances import DRAWN_GROUPS, InstanceTable

Array = NDArray[np.float64]
_CORNERED = ("object", "target", "distractor")


@dataclass(frozen=True, kw_only=True)
class KeypointRows:
    """Keypoints in one picture, ``k`` rows.

    ``world`` and ``camera`` ``(k, 3)`` in m, ``pixel`` ``(k, 2)``, nan behind the camera; whether a point is inside the
    picture's edges, and whether it is with nothing nearer there.
    """

    name: tuple[str, ...]
    instance: NDArray[np.intp]
    world: Array
    camera: Array
    pixel: Array
    inside: NDArray[np.bool_]
    visible: NDArray[np.bool_]


class Keypoints:
    """Which points of a model are followed: sites by name, and ``NAME/corner_0`` to ``7`` of objects' boxes."""

    def __init__(self, model: mujoco.MjModel, things: InstanceTable) -> None:
        named = [(i, model.site(i).name) for i in range(model.nsite) if model.site(i).name]
        self._sites = np.array([i for i, _ in named], dtype=np.intp)
        cornered = [item for item in things.instances if item.class_name in _CORNERED]
        self._cornered = np.array([item.id for item in cornered], dtype=np.intp)
        self._names = [name for _, name in named]
        self._names += [f"{item.name}/corner_{i}" for item in cornered for i in range(8)]
        self._instance = np.concatenate([model.site_bodyid[self._sites], np.repeat(self._cornered, 8)]).astype(np.intp)

    def see(self, view: View, model: mujoco.MjModel, data: mujoco.MjData, corners: Array) -> KeypointRows:
        """Where the points that there are lie in a picture.

        Args:
            model: with the world's fields.
            data: the poses of sites and geoms.
            corners: of all things' boxes by number in the world, ``(1 + n, 8, 3)``, nan where a thing is not there.
        """
        world = np.concatenate([data.site_xpos[self._sites], corners[self._cornered].reshape(-1, 3)])
        there = np.flatnonzero(np.isfinite(world).all(axis=1))
        world = world[there]
        camera = (world - view.world_from_camera[:3, 3]) @ view.world_from_camera[:3, :3]
        pixel = view.pinhole.project(camera)
        size = np.array([view.pinhole.width, view.pinhole.height])
        inside = np.asarray(((pixel >= 0.0) & (pixel < size)).all(axis=1))
        return KeypointRows(
            name=tuple(self._names[i] for i in there),
            instance=self._instance[there],
            world=world,
            camera=camera,
            pixel=pixel,
            inside=inside,
            visible=inside & _reached(model, data, view.world_from_camera[:3, 3], world),
        )


def _reached(model: mujoco.MjModel, data: mujoco.MjData, eye: Array, points: Array) -> NDArray[np.bool_]:
    """Whether nothing that is drawn lies between an eye and points ``(n, 3)``; what a point itself lies on does not."""
    count, ways = len(points), points - eye
    length = np.linalg.norm(ways, axis=1)
    met, distance = np.empty(count, dtype=np.int32), np.empty(count)
    drawn = (np.arange(mujoco.mjNGROUP) < DRAWN_GROUPS).astype(np.uint8)
    rays = (ways / length[:, None]).ravel()
    mujoco.mj_multiRay(model, data, eye, rays, drawn, True, -1, met, distance, None, count, mujoco.mjMAXVAL)
    return (distance < 0.0) | (distance > length * (1.0 - SAME_PART) - SAME_M)
