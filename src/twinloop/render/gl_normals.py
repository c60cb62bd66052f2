"""Normals as colours: a second drawing of the rasterizer, under lights along the camera's axes.

Six lights, one along each axis of the camera and one against it that takes light away, give every vertex the colour
(1 + n) / 2. That is linear in the normal n, so what is interpolated between vertices is n itself. Eight bits leave
0.3° of error; `primitives.hits` replaces it where the geom is a primitive.
"""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import NDArray


def light_along_axes(scene: mujoco.MjvScene, world_from_camera: NDArray[np.float64]) -> None:
    """Make everything in a scene white and lit along the camera's axes, the columns of a rotation ``(3, 3)``.

    ``mjv_updateScene`` puts all of it back.
    """
    scene.nlight = 6
    for i, light in enumerate(scene.lights[: scene.nlight]):
        axis, sign = i // 2, 1.0 - 2.0 * (i % 2)
        light.type, light.headlight, light.castshadow = mujoco.mjtLightType.mjLIGHT_DIRECTIONAL.value, 0, 0
        light.pos[:], light.dir[:] = 0.0, -sign * world_from_camera[:, axis]
        light.attenuation[:], light.cutoff, light.exponent = (1.0, 0.0, 0.0), 180.0, 0.0
        light.ambient[:], light.diffuse[:], light.specular[:] = 0.0, 0.0, 0.0
        light.diffuse[axis] = 0.5 * sign
    scene.lights[0].ambient[:] = 0.5
    for thing in scene.geoms[: scene.ngeom]:
        thing.rgba[:] = 1.0
        thing.matid, thing.texcoord = -1, 0
        thing.emission = thing.specular = thing.shininess = thing.reflectance = 0.0


def normals_of_colours(picture: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Unit vectors ``(…, 3)`` in camera axes of what `light_along_axes` coloured."""
    vectors = picture.astype(np.float32) / np.float32(127.5) - np.float32(1.0)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
