"""Render images with MuJoCo's OpenGL rasterizer through EGL, which needs no display.

Surface normals come from a second pass, in which all geoms are white and lit by six lights. Along each axis of the
camera there is one light, and an opposite one with negative brightness, which subtracts. So a vertex with the unit
normal n has the colour (1 + n) / 2. This is linear in n, so colours interpolated between vertices are interpolated
normals. Eight bits per colour leave an error of 0.3°. For primitive geoms, `primitives.make_surfaces_exact` computes
exact normals instead.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, MissingDependencyError
from twinloop.render.cameras import depth_from_buffer, intrinsics, opencv_pose
from twinloop.render.light_meshes import simplify_meshes
from twinloop.render.primitives import make_surfaces_exact
from twinloop.render.protocol import (
    ChannelArrays,
    Fields,
    Renderer,
    SceneStates,
    check_channels,
    check_size,
    decode_srgb,
    new_channels,
)
from twinloop.render.scene import PosedScene, camera_ids


def set_axis_lights(scene: mujoco.MjvScene, world_from_camera: NDArray[np.float64]) -> None:
    """Make all geoms of a scene white and light them along the camera's axes, so that colours are normals.

    The scene is changed in place until the next ``mjv_updateScene``. See `decode_normals`.

    Args:
        scene: MuJoCo's scene.
        world_from_camera: rotation ``(3, 3)``, whose columns are the camera's axes in the world.
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


def decode_normals(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Convert the colours of an image to unit normals ``(…, 3)`` in camera axes.

    The image must have been drawn with the lights of `set_axis_lights`.
    """
    vectors = image.astype(np.float32) / np.float32(127.5) - np.float32(1.0)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


REMEDY = "apt-get install --no-install-recommends libegl1 libgl1 (or your system's EGL and OpenGL libraries)"

_FLAG = mujoco.mjtRndFlag
_SEGMENT, _IDCOLOR = _FLAG.mjRND_SEGMENT.value, _FLAG.mjRND_IDCOLOR.value
_PRETTY = [flag.value for flag in (_FLAG.mjRND_SHADOW, _FLAG.mjRND_REFLECTION, _FLAG.mjRND_SKYBOX, _FLAG.mjRND_HAZE)]
_PLANE = mujoco.mjtGeom.mjGEOM_PLANE.value
_FROM_IDS = {"depth", "geom", "normal"}

# Limits of OpenGL: 16384 is the largest texture of llvmpipe and of GPUs; fewer than 3 slices or 2 stacks enclose
# nothing; a geom takes 0.2 kB.
_LIMITS = (
    ("shadow_map", 0, 16_384),
    ("samples", 0, 64),
    ("shadow_lights", 0, 100),
    ("shadow_reach", 0.01, 1000.0),
    ("slices", 3, 1000),
    ("stacks", 2, 1000),
    ("quads", 1, 100),
    ("max_geoms", 1, 10_000_000),
    ("mesh_tolerance", 0.0, 1.0),
)


_SMALL = 160  # rows of an image


@dataclass(frozen=True, kw_only=True)
class GlQuality:
    """Settings of the OpenGL renderer that have the largest effect on its speed without a GPU.

    Measured with llvmpipe (OpenGL in software) on 2 cores at 640×480: MuJoCo's own ``shadow_map`` 4096 with 4
    ``samples`` gives 9 to 26 frames/s, 512 with 4 gives 74, 512 with 0 (the default here) gives 168. No shadows give
    401.

    Attributes:
        shadow_map: side of the shadow map in pixels; 0 for no shadows.
        samples: samples per pixel for antialiasing; 0 for none.
        reflections: whether materials reflect. A reflecting material draws the scene a second time.
        shadow_lights: number of lights that cast shadows, the first ones of the model.
        shadow_reach: smallest half-width of a directional light's shadow map, in units of the model's extent. At
            MuJoCo's 1.0 the edge of a table is outside the map of a light above it and has dark specks (74 pixels in
            the image of camera ``front`` of the example twin so101_tabletop, none at 1.5).
        slices, stacks: divisions of round primitives around and along their axis. At 20 and 12, instead of MuJoCo's 28
            and 16, a 240×320 image of so101_tabletop takes 6.4 instead of 8.2 ms of processor time, and silhouettes
            still agree between renderers.
        quads: divisions of each side of a box and of a plane. At 2 instead of MuJoCo's 4, a 96×96 image of a random
            room takes 4.3 instead of 5.5 ms, and differs by 3 of 255 at most.
        max_geoms: largest number of geoms in the visualized scene.
        mesh_tolerance: largest distance in m of a mesh's vertices from the simplified mesh that is drawn instead, if
            the model's meshes have more than 20,000 triangles; 0 to draw all triangles. 0.5 mm is less than a pixel of
            an image with 240 rows and a field of view of 45° at distances above 0.15 m.
    """

    shadow_map: int = 512
    samples: int = 0
    reflections: bool = False
    shadow_lights: int = 1
    shadow_reach: float = 1.5
    slices: int = 20
    stacks: int = 12
    quads: int = 2
    max_geoms: int = 10_000
    mesh_tolerance: float = 5e-4

    @classmethod
    def for_height(cls, height: int) -> Self:
        """Return the default settings for images with a number of rows; small images get coarser shadows.

        A 96×96 image of a random room then takes 3.0 instead of 3.9 ms, and differs by 0.7 of 255 on average.
        """
        return cls(shadow_map=256) if height <= _SMALL else cls()

    def __post_init__(self) -> None:
        for name, low, high in _LIMITS:
            value = getattr(self, name)
            if not low <= value <= high:
                raise InputError(
                    f"The quality setting {name} of gl is {value:g}. Choose a value from {low:g} to {high:g}."
                )


def describe_simplified_meshes(model: mujoco.MjModel, quality: GlQuality | None) -> dict[str, Any]:
    """Return how the meshes of a model are simplified, see `simplify_meshes`; the model is not changed."""
    return simplify_meshes(copy.copy(model), (quality or GlQuality()).mesh_tolerance)


class GlRenderer(Renderer):
    """Renderer that rasterizes with MuJoCo's classic renderer in a separate EGL context.

    It works even if ``MUJOCO_GL`` was not set when ``mujoco`` was imported. It never sets that variable, because
    without GL libraries a process that starts with it set cannot import ``mujoco`` at all.

    Raises:
        MissingDependencyError: If EGL or OpenGL is missing, or has no headless device.
        InputError: If a camera is unknown, or no renderer supports the size.
    """

    name = "gl"
    channels = ("rgb", "linear", "depth", "geom", "normal")

    def __init__(
        self,
        model: mujoco.MjModel,
        *,
        height: int = 240,
        width: int = 320,
        cameras: Sequence[str] | None = None,
        quality: GlQuality | None = None,
    ) -> None:
        self._window: Any = None
        self._context: mujoco.MjrContext | None = None
        check_size(height, width)
        quality = quality or GlQuality.for_height(height)
        self.height, self.width = height, width
        self._posed = PosedScene(model)
        self._cameras = {name: _fixed_camera(i) for name, i in camera_ids(model, cameras).items()}
        self.cameras = tuple(self._cameras)
        apply_quality(self._posed.model, quality, height, width)
        simplify_meshes(self._posed.model, quality.mesh_tolerance)
        self._scene = mujoco.MjvScene(self._posed.model, maxgeom=max(quality.max_geoms, model.ngeom))
        self._option = make_visual_options()
        self._pixels = np.empty((height, width, 3), dtype=np.uint8)
        self._rect = mujoco.MjrRect(0, 0, width, height)
        self._window = _egl_context(width, height)
        self._window.make_current()
        context = mujoco.MjrContext(self._posed.model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
        context.readDepthMap = mujoco.mjtDepthMap.mjDEPTH_ZEROFAR.value  # precise at large distances
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, context)
        self._context = context

    def observe(
        self, states: SceneStates, fields: Fields | None = None, *, channels: Sequence[str] = ("rgb",)
    ) -> ChannelArrays:
        """Return the requested channels of every state from every camera; see `Renderer.observe`."""
        check_channels(channels, self.channels, renderer=self.name)
        self._posed.check(states)
        self._posed.set_fields(fields, len(states))
        self._window.make_current()
        seen = new_channels(self.cameras, channels, len(states), self.height, self.width)
        for i in range(len(states)):
            self._posed.pose(states, i)
            self._load_sky(self._posed.pop_changed_data())
            for name in self.cameras:
                self._draw(name, {channel: out[i] for channel, out in seen[name].items()})
        return seen

    def _load_sky(self, changed: set[str]) -> None:
        """Upload changed pixels of the background, and choose it by the changed types of textures."""
        model, context = self._posed.model, self._context
        if "tex_type" in changed and context is not None:
            context.textureType[: model.ntex] = model.tex_type
        if "tex_data" not in changed:
            return
        for sky in np.flatnonzero(model.tex_type == mujoco.mjtTexture.mjTEXTURE_SKYBOX):
            mujoco.mjr_uploadTexture(model, context, int(sky))

    def _draw(self, name: str, out: dict[str, NDArray]) -> None:
        everything = mujoco.mjtCatBit.mjCAT_ALL.value
        posed, camera = self._posed, self._cameras[name]
        mujoco.mjv_updateScene(posed.model, posed.data, self._option, None, camera, everything, self._scene)
        self._hide_back_planes(posed.data.cam_xpos[camera.fixedcamid])
        if "rgb" in out or "linear" in out:
            image = self._draw_image(out.get("rgb"))
            if "linear" in out:
                out["linear"][:] = decode_srgb(image)
        if _FROM_IDS & out.keys():
            self._draw_ids(name, out)

    def _hide_back_planes(self, eye: NDArray[np.float64]) -> None:
        """Hide planes that the camera sees from behind.

        MuJoCo draws such planes semi-transparent in colour images, but opaque in images of ids.

        Args:
            eye: position of the camera in the world, ``(3,)`` in m.
        """
        model, data = self._posed.model, self._posed.data
        planes = np.flatnonzero(model.geom_type == _PLANE)
        up = data.geom_xmat[planes].reshape(-1, 3, 3)[..., 2]
        behind = planes[np.einsum("ni,ni->n", eye - data.geom_xpos[planes], up) < 0.0]
        if not len(behind):
            return
        for thing in self._scene.geoms[: self._scene.ngeom]:
            if thing.objtype == mujoco.mjtObj.mjOBJ_GEOM and thing.objid in behind:
                thing.type = mujoco.mjtGeom.mjGEOM_NONE.value

    def _draw_image(self, out: NDArray[np.uint8] | None = None, depth: NDArray[np.float32] | None = None) -> NDArray:
        """Draw the scene as it is; return its colours ``(height, width, 3)``, first row at the top.

        Args:
            out: array to fill and return; None returns a buffer that the next call overwrites.
            depth: array to fill with the depth buffer, lowest row first, as in OpenGL.
        """
        mujoco.mjr_render(self._rect, self._scene, self._context)
        mujoco.mjr_readPixels(self._pixels, depth, self._rect, self._context)
        if out is None:
            return self._pixels[::-1]
        out[:] = self._pixels[::-1]
        return out

    def _draw_ids(self, name: str, out: dict[str, NDArray]) -> None:
        """Fill the arrays of geom ids, depth and normals of one camera.

        Ids and depth come from one pass in which colours encode geom ids, normals from another pass.

        Args:
            name: name of the camera.
            out: arrays to fill, under the keys ``geom``, ``depth`` and ``normal``; channels with other keys are
                unchanged.
        """
        buffer = np.empty((self.height, self.width), dtype=np.float32)
        with self._set_flags(_SEGMENT, _IDCOLOR):
            ids = _geom_ids(self._draw_image(depth=buffer), self._scene)
        buffer = buffer[::-1]
        if "geom" in out:
            out["geom"][:] = ids
        if "depth" in out:
            out["depth"][:] = depth_from_buffer(buffer, self._scene.camera[0])
        if "normal" in out:
            out["normal"][:] = np.where(buffer[..., None] > 0.0, self._draw_normals(name), 0.0)
        if not self._scene.camera[0].orthographic:
            posed = self._posed
            lens = intrinsics(posed.model, name, height=self.height, width=self.width)
            make_surfaces_exact(lens, ids, self._pose(name), posed.model, posed.data, out)

    def _draw_normals(self, name: str) -> NDArray[np.float32]:
        set_axis_lights(self._scene, self._pose(name)[:3, :3])
        with self._set_flags():
            return decode_normals(self._draw_image())

    def _pose(self, name: str) -> NDArray[np.float64]:
        row, data = self._cameras[name].fixedcamid, self._posed.data
        return opencv_pose(data.cam_xpos[row], data.cam_xmat[row])

    @contextmanager
    def _set_flags(self, *on: int) -> Generator[None]:
        """Disable all visual effects and enable the given flags (``mjtRndFlag``), until the context manager ends."""
        before = self._scene.flags.copy()
        self._scene.flags[_PRETTY] = False
        self._scene.flags[list(on)] = True
        try:
            yield
        finally:
            self._scene.flags[:] = before

    def detach(self) -> None:
        """Release the OpenGL context from this thread, so that another one may use or close the renderer."""
        from mujoco.egl import EGL, EGL_DISPLAY

        EGL.eglMakeCurrent(EGL_DISPLAY, EGL.EGL_NO_SURFACE, EGL.EGL_NO_SURFACE, EGL.EGL_NO_CONTEXT)

    def close(self) -> None:
        """Free the EGL and OpenGL contexts. A second call does nothing."""
        window, self._window = self._window, None
        context, self._context = self._context, None
        if window is None:
            return
        if context is not None:
            with window.as_current():
                context.free()
        window.free()

    def __del__(self) -> None:
        self.close()


def _geom_ids(packed: NDArray[np.uint8], scene: mujoco.MjvScene) -> NDArray[np.int32]:
    """Return the geom ids ``(height, width)`` of an image whose colours encode ids; -1 for pixels that show no geom.

    A colour is the number of the geom in the scene, counted from 1; its red component is the lowest byte.
    """
    table = np.full(scene.ngeom + 1, -1, dtype=np.int32)
    for thing in scene.geoms[: scene.ngeom]:
        if thing.segid >= 0 and thing.objtype == mujoco.mjtObj.mjOBJ_GEOM:
            table[thing.segid + 1] = thing.objid
    number = packed.astype(np.int32) @ np.array([1, 1 << 8, 1 << 16], dtype=np.int32)
    return table[number]


def make_visual_options() -> mujoco.MjvOption:
    """Return MuJoCo's visualization options that hide sites and the lines of rangefinder sensors."""
    option = mujoco.MjvOption()
    option.sitegroup[:] = 0
    option.flags[mujoco.mjtVisFlag.mjVIS_RANGEFINDER.value] = False
    return option


def _fixed_camera(camera_id: int) -> mujoco.MjvCamera:
    camera = mujoco.MjvCamera()
    camera.type, camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED.value, camera_id
    return camera


def apply_quality(model: mujoco.MjModel, quality: GlQuality, height: int, width: int) -> None:
    """Write quality settings into a model in place, before a GL context is created from the model."""
    model.vis.quality.shadowsize = quality.shadow_map
    model.vis.quality.offsamples = quality.samples
    model.vis.quality.numslices, model.vis.quality.numstacks = quality.slices, quality.stacks
    model.vis.quality.numquads = quality.quads
    model.vis.map.shadowclip = max(model.vis.map.shadowclip, quality.shadow_reach)
    model.vis.global_.offheight, model.vis.global_.offwidth = height, width
    if not quality.reflections:
        model.mat_reflectance[:] = 0
    casting = np.flatnonzero(model.light_castshadow)
    model.light_castshadow[casting[quality.shadow_lights :]] = 0


def _egl_context(width: int, height: int) -> Any:
    platform = os.environ.get("PYOPENGL_PLATFORM")
    try:
        from mujoco.egl import GLContext

        return GLContext(width, height)
    except (ImportError, AttributeError, RuntimeError, OSError) as error:
        if platform is None:
            os.environ.pop("PYOPENGL_PLATFORM", None)
        raise MissingDependencyError(f"The gl renderer needs EGL and OpenGL ({error}).", remedy=REMEDY) from error
