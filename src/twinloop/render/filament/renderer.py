"""Render images with Filament: colours, and depth, geom ids and normals from a second scene with white geoms.

Filament's post-processing adds random noise and smooths edges, so that an image would depend on the images before it.
It is off here, so that images have linear light in eight bits, too few for dark colours. Each image is therefore drawn
twice, the second time under `GAIN` times as much light. This gives pixels darker than 1/16 of white four more bits.

The order in which Filament draws surfaces at the same depth depends on addresses in memory. Every geom is therefore
magnified about the camera by its own factor, see `scene.magnification`. This does not change the image, and the
depths of geoms differ. The depth of a pixel is divided by the factor of its geom.

Normals are the colours of white geoms under light that is linear in the normal, see `lights.Environment`. Eight bits
per colour leave an error of 0.3°. For primitive geoms, `primitives.make_surfaces_exact` computes exact depth and
normals instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
from mujoco import mjrf
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.render.cameras import depth_from_buffer, intrinsics, opencv_pose
from twinloop.render.filament.context import require_driver
from twinloop.render.filament.scene import FilamentScene, magnification, prepare_textures
from twinloop.render.gl import decode_normals
from twinloop.render.light_meshes import simplify_meshes
from twinloop.render.physical import LightExposure
from twinloop.render.primitives import make_surfaces_exact
from twinloop.render.protocol import (
    ChannelArrays,
    Fields,
    Renderer,
    SceneStates,
    check_channels,
    check_size,
    encode_srgb,
    new_channels,
)
from twinloop.render.scene import PosedScene, camera_ids

GAIN = 16
_STEPS = 255 * GAIN  # steps of linear light up to white
_LIGHT = np.linspace(0.0, 1.0, _STEPS + 1, dtype=np.float32)
_DISPLAYED = encode_srgb(_LIGHT)
_LARGEST = 16_384  # pixels; the largest image of llvmpipe and of GPUs
# Limits of the settings: Filament makes no larger shadow maps, and 64 samples take seconds.
_LIMITS = (("shadow_map", 0, 2048), ("samples", 1, 64), ("mesh_tolerance", 0.0, 1.0))


@dataclass(frozen=True, kw_only=True)
class FilamentQuality:
    """Settings of the Filament renderer.

    Attributes:
        ambient_occlusion: whether corners and gaps, which less of the ambient light reaches, are darker.
        shadow_map: side of the shadow map of each lamp in pixels; 0 for no shadows.
        samples: samples per pixel for antialiasing, a square number; 1 for none.
        mesh_tolerance: largest distance in m of a mesh's vertices from the simplified mesh that is drawn instead, if
            the model's meshes have more than 20,000 triangles; 0 to draw all triangles. See `GlQuality`.
    """

    ambient_occlusion: bool = True
    shadow_map: int = 1024
    samples: int = 1
    mesh_tolerance: float = 5e-4

    def __post_init__(self) -> None:
        for name, low, high in _LIMITS:
            value = getattr(self, name)
            if not low <= value <= high:
                raise InputError(
                    f"The quality setting {name} of filament is {value:g}. Choose a value from {low:g} to {high:g}."
                )
        if math.isqrt(self.samples) ** 2 != self.samples:
            raise InputError(
                f"The quality setting samples of filament is {self.samples}. Choose a square number, such as 1, 4 or 9."
            )


class FilamentRenderer(Renderer):
    """Renderer that rasterizes with Filament: physically based materials and lights, soft shadow edges.

    All model fields that `PosedScene` accepts can change. ``light_specular`` has no effect, as highlights are images
    of the lamps, and neither has the radius of lamps (``light_bulbradius``), like in ``gl``.

    Raises:
        MissingDependencyError: If Vulkan or a driver is missing.
        InputError: If a camera is unknown, or the size or a texture is not supported.
    """

    name = "filament"
    channels = ("rgb", "linear", "depth", "geom", "normal")

    def __init__(
        self,
        model: mujoco.MjModel,
        *,
        height: int = 240,
        width: int = 320,
        cameras: Sequence[str] | None = None,
        quality: FilamentQuality | None = None,
    ) -> None:
        self._lit: FilamentScene | None = None
        self._plain: FilamentScene | None = None
        self._closed = False
        check_size(height, width)
        self._quality = quality or FilamentQuality()
        self._side = math.isqrt(self._quality.samples)
        if max(height, width) * self._side > _LARGEST:
            raise InputError(f"An image of {height}×{width} pixels with {self._quality.samples} samples is too large.")
        self.height, self.width = height, width
        self._ids = camera_ids(model, cameras)
        self.cameras = tuple(self._ids)
        self._posed = PosedScene(model)
        prepare_textures(self._posed.model)
        simplify_meshes(self._posed.model, self._quality.mesh_tolerance)
        self._posed.pose(SceneStates(qpos=model.qpos0), 0)
        self._exposure = LightExposure.of(self._posed.model, self._posed.data.light_xpos)
        require_driver()

    def observe(
        self, states: SceneStates, fields: Fields | None = None, *, channels: Sequence[str] = ("rgb",)
    ) -> ChannelArrays:
        """Return the requested channels of every state from every camera; see `Renderer.observe`."""
        check_channels(channels, self.channels, renderer=self.name)
        if self._closed:
            raise InputError("This renderer was closed. Open another.")
        self._posed.check(states)
        self._posed.set_fields(fields, len(states))
        seen = new_channels(self.cameras, channels, len(states), self.height, self.width)
        for i in range(len(states)):
            self._posed.pose(states, i)
            changed = self._posed.pop_changed_data()
            if "tex_data" in changed and self._lit is not None:
                self._lit.upload(self._posed.model)
            elif "tex_type" in changed and self._lit is not None:
                self._lit.choose_sky(self._posed.model)
            for name in self.cameras:
                out = {channel: values[i] for channel, values in seen[name].items()}
                if {"rgb", "linear"} & out.keys():
                    self._draw_light(name, out)
                if {"depth", "geom", "normal"} & out.keys():
                    self._draw_surfaces(name, out)
        return seen

    def _camera(self, name: str) -> mujoco.MjvGLCamera:
        fixed = mujoco.MjvCamera()
        fixed.type, fixed.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED.value, self._ids[name]
        return mujoco.mjv_camera2GLCamera(self._posed.model, self._posed.data, fixed)

    def _draw_light(self, name: str, out: dict[str, NDArray]) -> None:
        """Draw the colours of one camera into the arrays ``rgb`` and ``linear``, if they are requested."""
        model, data, quality = self._posed.model, self._posed.data, self._quality
        if self._lit is None:
            options = {"occlusion": quality.ambient_occlusion, "shadow_map": quality.shadow_map}
            self._lit = FilamentScene(model, exposure=self._exposure, **options)
        self._lit.load(model, data, data.cam_xpos[self._ids[name]])
        size = self.height * self._side, self.width * self._side
        images = []
        for gain in (1, GAIN):
            self._lit.set_gain(gain)
            drawn = self._lit.draw(self._camera(name), size, skybox=True, haze=True, shadows=True)
            images.append(drawn.astype(np.int32))
        coarse, fine = GAIN * images[0], images[1]
        # Semi-transparent geoms in front of surfaces that are clipped under much light do not fit the first image.
        steps = np.where(np.abs(fine - coarse) <= GAIN // 2 + 2, fine, coarse)
        if self._side == 1:
            light, displayed = _LIGHT[steps], _DISPLAYED[steps]
        else:
            parts = steps.reshape(self.height, self._side, self.width, self._side, 3)
            light = (parts.mean(axis=(1, 3)) / _STEPS).astype(np.float32)
            displayed = encode_srgb(light)
        for channel, values in (("linear", light), ("rgb", displayed)):
            if channel in out:
                out[channel][:] = values

    def _draw_surfaces(self, name: str, out: dict[str, NDArray]) -> None:
        """Draw depth, geom ids and normals of one camera into the arrays that are requested."""
        model, data, row = self._posed.model, self._posed.data, self._ids[name]
        if self._plain is None:
            self._plain = FilamentScene(model, exposure=None)
        self._plain.load(model, data, data.cam_xpos[row])
        camera, size = self._camera(name), (self.height, self.width)
        colours = self._plain.draw(camera, size, draw_mode=mjrf.DrawMode.DRAW_MODE_SEGMENTATION_BY_ID)
        ids = colours.astype(np.int32) @ np.array([1, 1 << 8, 1 << 16], dtype=np.int32) - 1
        buffer = self._plain.draw(camera, size, numbers=True, draw_mode=mjrf.DrawMode.DRAW_MODE_DEPTH)[..., 0]
        pose = opencv_pose(data.cam_xpos[row], data.cam_xmat[row])
        if "geom" in out:
            out["geom"][:] = ids
        if "depth" in out:
            out["depth"][:] = depth_from_buffer(buffer, camera) / np.where(ids >= 0, magnification(ids), 1.0)
        if "normal" in out:
            normals = decode_normals(self._plain.draw(camera, size)) @ pose[:3, :3].astype(np.float32)
            out["normal"][:] = np.where(buffer[..., None] > 0.0, normals, 0.0)
        if not camera.orthographic:
            lens = intrinsics(model, name, height=self.height, width=self.width)
            make_surfaces_exact(lens, ids, pose, model, data, out)

    def close(self) -> None:
        """Free both scenes. A second call does nothing."""
        scenes, self._lit, self._plain, self._closed = (self._lit, self._plain), None, None, True
        for scene in scenes:
            if scene is not None:
                scene.close()

    def __del__(self) -> None:
        self.close()
