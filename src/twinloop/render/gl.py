"""Render with MuJoCo's rasterizer over EGL, with normals from a second pass under lights along the camera's axes.

Six lights, one along each axis of the camera and one opposite with negative light, give every vertex the colour
(1 + n) / 2. That is linear in the normal n, so interpolation between vertices is that of n itself. Eight bits leave an
error of 0.3°; `primitives.intersect_primitives` replaces it for primitive geoms.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, MissingDependencyError
from twinloop.core.imaging import Intrinsics
from twinloop.render.cameras import intrinsics, opencv_pose
from twinloop.render.primitives import PRIMITIVES, ROUND, intersect_primitives
from twinloop.render.protocol import (
    Fields,
    Observed,
    Renderer,
    SceneStates,
    check_channels,
    check_size,
    decode_srgb,
    new_channels,
)
from twinloop.render.scene import PosedScene, camera_ids


def set_axis_lights(scene: mujoco.MjvScene, world_from_camera: NDArray[np.float64]) -> None:
    """Make everything in a scene white and lit along the camera's axes, the columns of a rotation ``(3, 3)``.

    ``mjv_updateScene`` undoes all of it.
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


def decode_normals(picture: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return unit vectors ``(…, 3)`` in camera axes from the colours of `set_axis_lights`."""
    vectors = picture.astype(np.float32) / np.float32(127.5) - np.float32(1.0)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


REMEDY = "apt-get install --no-install-recommends libegl1 libgl1 (or your system's EGL and OpenGL libraries)"

_FLAG = mujoco.mjtRndFlag
_SEGMENT, _IDCOLOR = _FLAG.mjRND_SEGMENT.value, _FLAG.mjRND_IDCOLOR.value
_PRETTY = [flag.value for flag in (_FLAG.mjRND_SHADOW, _FLAG.mjRND_REFLECTION, _FLAG.mjRND_SKYBOX, _FLAG.mjRND_HAZE)]
_PLANE, _BOX = mujoco.mjtGeom.mjGEOM_PLANE.value, mujoco.mjtGeom.mjGEOM_BOX.value
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
    ("max_geoms", 1, 10_000_000),
)


@dataclass(frozen=True, kw_only=True)
class GlQuality:
    """Settings with the largest cost in software rasterization.

    Frames per second at 640×480 with llvmpipe on 2 cores, shadow map size / samples per pixel: MuJoCo's own
    4096/4 9–26, 512/4 74, 512/0 168, no shadows 401; a reflecting material draws the scene a second time.

    ``shadow_reach`` is the smallest half-width of a directional light's shadow map, in units of the model's extent. At
    MuJoCo's 1.0 a table's edge is outside the map of a light above it, and has dark specks (so101_tabletop: 74 pixels
    in its front image, none at 1.5).

    ``slices`` and ``stacks`` divide round primitives: at 20 and 12 instead of MuJoCo's 28 and 16 a 240×320 image of
    so101_tabletop takes 6.4 instead of 8.2 ms of processor time, and silhouettes still agree across renderers.
    """

    shadow_map: int = 512
    samples: int = 0
    reflections: bool = False
    shadow_lights: int = 1
    shadow_reach: float = 1.5
    slices: int = 20
    stacks: int = 12
    max_geoms: int = 10_000

    def __post_init__(self) -> None:
        for name, low, high in _LIMITS:
            value = getattr(self, name)
            if not low <= value <= high:
                raise InputError(f"{name} = {value:g} in the quality of gl. Choose one from {low:g} to {high:g}.")


class GlRenderer(Renderer):
    """Renderer that rasterizes with MuJoCo's classic renderer in a separate EGL context.

    It works although ``mujoco`` was imported without ``MUJOCO_GL``, and never sets that variable: without GL libraries,
    a process that starts with it set cannot import ``mujoco`` at all.

    Raises:
        MissingDependencyError: EGL or OpenGL is missing, or has no headless device.
        InputError: an unknown camera or an impossible size.
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
        quality = quality or GlQuality()
        self.height, self.width = height, width
        self._posed = PosedScene(model)
        self._cameras = {name: _fixed_camera(i) for name, i in camera_ids(model, cameras).items()}
        self.cameras = tuple(self._cameras)
        apply_quality(self._posed.model, quality, height, width)
        self._scene = mujoco.MjvScene(self._posed.model, maxgeom=max(quality.max_geoms, model.ngeom))
        self._option = _make_visual_options()
        self._pixels = np.empty((height, width, 3), dtype=np.uint8)
        self._rect = mujoco.MjrRect(0, 0, width, height)
        self._window = _egl_context(width, height)
        self._window.make_current()
        context = mujoco.MjrContext(self._posed.model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
        context.readDepthMap = mujoco.mjtDepthMap.mjDEPTH_ZEROFAR.value  # precise also far away
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, context)
        self._context = context

    def observe(
        self, states: SceneStates, fields: Fields | None = None, *, channels: Sequence[str] = ("rgb",)
    ) -> Observed:
        """Return the channels of every state from every camera, see `Renderer.observe`."""
        check_channels(channels, self.channels, renderer=self.name)
        self._posed.check(states)
        self._posed.set_fields(fields, len(states))
        self._window.make_current()
        seen = new_channels(self.cameras, channels, len(states), self.height, self.width)
        for i in range(len(states)):
            self._posed.pose(states, i)
            if "tex_data" in self._posed.pop_changed_data():
                self._upload_sky()
            for name in self.cameras:
                self._draw(name, {channel: out[i] for channel, out in seen[name].items()})
        return seen

    def _upload_sky(self) -> None:
        model = self._posed.model
        for sky in np.flatnonzero(model.tex_type == mujoco.mjtTexture.mjTEXTURE_SKYBOX):
            mujoco.mjr_uploadTexture(model, self._context, int(sky))

    def _draw(self, name: str, out: dict[str, NDArray]) -> None:
        everything = mujoco.mjtCatBit.mjCAT_ALL.value
        posed, camera = self._posed, self._cameras[name]
        mujoco.mjv_updateScene(posed.model, posed.data, self._option, None, camera, everything, self._scene)
        self._hide_back_planes(posed.data.cam_xpos[camera.fixedcamid])
        if "rgb" in out or "linear" in out:
            picture = self._draw_image(out.get("rgb"))
            if "linear" in out:
                out["linear"][:] = decode_srgb(picture)
        if _FROM_IDS & out.keys():
            self._draw_ids(name, out)

    def _hide_back_planes(self, eye: NDArray[np.float64]) -> None:
        """Hide planes seen from behind, which MuJoCo draws semi-transparent in images, but opaque in ids."""
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
        """Draw the scene as it is; the lowest row of ``depth`` comes first, as in OpenGL."""
        mujoco.mjr_render(self._rect, self._scene, self._context)
        mujoco.mjr_readPixels(self._pixels, depth, self._rect, self._context)
        if out is None:
            return self._pixels[::-1]
        out[:] = self._pixels[::-1]
        return out

    def _draw_ids(self, name: str, out: dict[str, NDArray]) -> None:
        """Draw ids and depth in one pass in which colours are numbers, and normals in another."""
        buffer = np.empty((self.height, self.width), dtype=np.float32)
        with self._set_flags(_SEGMENT, _IDCOLOR):
            ids = _geom_ids(self._draw_image(depth=buffer), self._scene)
        buffer = buffer[::-1]
        if "geom" in out:
            out["geom"][:] = ids
        if "depth" in out:
            out["depth"][:] = _convert_to_metres(buffer, self._scene.camera[0])
        if "normal" in out:
            out["normal"][:] = np.where(buffer[..., None] > 0.0, self._draw_normals(name), 0.0)
        if not self._scene.camera[0].orthographic:
            self._make_exact(name, ids, out)

    def _draw_normals(self, name: str) -> NDArray[np.float32]:
        set_axis_lights(self._scene, self._pose(name)[:3, :3])
        with self._set_flags():
            return decode_normals(self._draw_image())

    def _make_exact(self, name: str, ids: NDArray[np.int32], out: dict[str, NDArray]) -> None:
        """Replace depth and normals of primitives, drawn with flat faces, by their exact values."""
        if not {"depth", "normal"} & out.keys():
            return
        kinds = PRIMITIVES if "normal" in out else ROUND
        posed = self._posed
        rays = _pixel_rays(intrinsics(posed.model, name, height=self.height, width=self.width))
        distance, normal = intersect_primitives(kinds, ids.ravel(), rays, self._pose(name), posed.model, posed.data)
        if "depth" in out:
            flat = (posed.model.geom_type == _PLANE) | (posed.model.geom_type == _BOX)  # exact as drawn
            distance[flat[ids.ravel()]] = np.nan
            _replace(out["depth"], distance)
        if "normal" in out:
            _replace(out["normal"], normal)

    def _pose(self, name: str) -> NDArray[np.float64]:
        row, data = self._cameras[name].fixedcamid, self._posed.data
        return opencv_pose(data.cam_xpos[row], data.cam_xmat[row])

    @contextmanager
    def _set_flags(self, *on: int) -> Generator[None]:
        """Disable all visual effects, and enable these flags instead."""
        before = self._scene.flags.copy()
        self._scene.flags[_PRETTY] = False
        self._scene.flags[list(on)] = True
        try:
            yield
        finally:
            self._scene.flags[:] = before

    def close(self) -> None:
        """Free the contexts; a second call does nothing."""
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
    """Return the geom ids of an image whose colours number the scene's geoms from 1, red the lowest byte."""
    table = np.full(scene.ngeom + 1, -1, dtype=np.int32)
    for thing in scene.geoms[: scene.ngeom]:
        if thing.segid >= 0 and thing.objtype == mujoco.mjtObj.mjOBJ_GEOM:
            table[thing.segid + 1] = thing.objid
    number = packed.astype(np.int32) @ np.array([1, 1 << 8, 1 << 16], dtype=np.int32)
    return table[number]


def _convert_to_metres(buffer: NDArray[np.float32], camera: mujoco.MjvGLCamera) -> NDArray[np.float64]:
    """Return distances in m along the optical axis of a depth buffer: 1 at the near plane, 0 for no surface."""
    near, far, from_far = camera.frustum_near, camera.frustum_far, buffer.astype(np.float64)
    metres = far - from_far * (far - near) if camera.orthographic else near * far / (near + from_far * (far - near))
    return np.where(from_far > 0.0, metres, np.inf)


def _make_visual_options() -> mujoco.MjvOption:
    """Return the options of visible elements: no sites, and no lines of sensors."""
    option = mujoco.MjvOption()
    option.sitegroup[:] = 0
    option.flags[mujoco.mjtVisFlag.mjVIS_RANGEFINDER.value] = False
    return option


def _replace(picture: NDArray[np.float32], exact: NDArray[np.float64]) -> None:
    """Replace pixels of an image by exact values, except nan values."""
    exact = exact.reshape(picture.shape)
    np.copyto(picture, exact, where=~np.isnan(exact), casting="same_kind")


@functools.lru_cache(maxsize=8)
def _pixel_rays(pinhole: Intrinsics) -> NDArray[np.float64]:
    """Return the points ``(height * width, 3)`` at the centres of pixels, 1 m along the optical axis."""
    return pinhole.unproject(pinhole.pixel_centres()).reshape(-1, 3)


def _fixed_camera(camera_id: int) -> mujoco.MjvCamera:
    camera = mujoco.MjvCamera()
    camera.type, camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED.value, camera_id
    return camera


def apply_quality(model: mujoco.MjModel, quality: GlQuality, height: int, width: int) -> None:
    """Write settings into a model from which a context will be created."""
    model.vis.quality.shadowsize = quality.shadow_map
    model.vis.quality.offsamples = quality.samples
    model.vis.quality.numslices, model.vis.quality.numstacks = quality.slices, quality.stacks
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
