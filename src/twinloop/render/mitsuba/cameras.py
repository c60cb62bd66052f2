"""Mitsuba's cameras: poses, lenses, and what they see of surfaces at the middles of pixels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.imaging import Intrinsics

Array = NDArray[np.float64]
_TRUTHS = {"position": 3, "sh_normal": 3, "albedo": 3, "shape_index": 1}


class Camera:
    """One camera of a size; pictures are averaged over each pixel, surfaces are seen through its middle."""

    def __init__(self, mitsuba: Any, *, height: int, width: int, near: float, far: float) -> None:
        self._mitsuba = mitsuba
        film = {"type": "hdrfilm", "width": width, "height": height, "component_format": "float32"}
        lens = {"type": "perspective", "fov": 45.0, "near_clip": near, "far_clip": far}
        box = {"rfilter": {"type": "box"}}
        self._picture = mitsuba.load_dict({**lens, "film": {**film, **box, "pixel_format": "rgba"}})
        middles = {"type": "stratified", "jitter": False, "sample_count": 1}
        self._surfaces = mitsuba.load_dict({**lens, "film": {**film, **box}, "sampler": middles})
        self._truths = mitsuba.load_dict({"type": "aov", "aovs": ",".join(f"{name}:{name}" for name in _TRUTHS)})

    def place(self, world_from_camera: Array, lens: Intrinsics) -> None:
        """Put it somewhere, ``(4, 4)`` in OpenCV's axes.

        Raises:
            InputError: its pixels are not square.
        """
        if not math.isclose(lens.fx, lens.fy, rel_tol=1e-6):
            raise InputError(
                f"The mitsuba renderer has square pixels only; this camera's focal lengths are {lens.fx:g} and "
                f"{lens.fy:g} pixels. Ask for a picture with the aspect ratio of its sensor, or render it with gl."
            )
        pose = world_from_camera * [-1.0, -1.0, 1.0, 1.0]  # Mitsuba's axes are x left, y up, z forward
        left, _, right = np.linalg.svd(pose[:3, :3])
        pose[:3, :3] = left @ right  # a quaternion of another length than 1 scales, which Mitsuba refuses
        for sensor in (self._picture, self._surfaces):
            values = self._mitsuba.traverse(sensor)
            values["to_world"] = self._mitsuba.Transform4f(pose.tolist())
            values["x_fov"] = math.degrees(2.0 * math.atan2(lens.width / 2.0, lens.fx))
            values["principal_point_offset_x"] = lens.cx / lens.width - 0.5
            values["principal_point_offset_y"] = lens.cy / lens.height - 0.5
            values.update()

    def picture(self, scene: Any, integrator: Any, *, samples: int, seed: int) -> NDArray[np.float32]:
        """Linear light and coverage, ``(height, width, 4)``."""
        seen = self._mitsuba.render(scene, sensor=self._picture, integrator=integrator, spp=samples, seed=seed)
        return np.array(seen, dtype=np.float32)

    def surfaces(self, scene: Any) -> dict[str, NDArray[np.float32]]:
        """``position``, ``sh_normal`` (both of the world), ``albedo`` and ``shape_index``, ``(height, width, k)``."""
        seen = np.array(self._mitsuba.render(scene, sensor=self._surfaces, integrator=self._truths, spp=1, seed=0))
        ends = np.cumsum(list(_TRUTHS.values()))
        return dict(zip(_TRUTHS, np.split(seen[..., -ends[-1] :], ends[:-1], axis=-1), strict=True))
