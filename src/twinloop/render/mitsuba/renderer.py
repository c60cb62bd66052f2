"""Render images with Mitsuba: camera poses and lenses, path tracing, and depth, ids and normals at pixel centres.

The module `lights` defines the unit of light and converts MuJoCo's lights; `materials` converts MuJoCo's materials.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, MissingDependencyError
from twinloop.core.imaging import Intrinsics
from twinloop.render.cameras import intrinsics, opencv_pose
from twinloop.render.mitsuba.scene import MitsubaScene
from twinloop.render.mitsuba.textures import look_up_sky
from twinloop.render.mitsuba.variants import AUTO, choose_variant
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

Array = NDArray[np.float64]
_TRUTHS = {"position": 3, "sh_normal": 3, "albedo": 3, "shape_index": 1}


class MitsubaCamera:
    """Mitsuba camera for one image size.

    Light is averaged over each pixel; surface properties are those at the pixel's centre.

    Args:
        mitsuba: the module, with a selected variant.
        height, width: size of the image in pixels.
        near, far: distances of the clipping planes in m.
    """

    def __init__(self, mitsuba: Any, *, height: int, width: int, near: float, far: float) -> None:
        self._mitsuba = mitsuba
        film = {"type": "hdrfilm", "width": width, "height": height, "component_format": "float32"}
        lens = {"type": "perspective", "fov": 45.0, "near_clip": near, "far_clip": far}
        box = {"rfilter": {"type": "box"}}
        self._image = mitsuba.load_dict({**lens, "film": {**film, **box, "pixel_format": "rgba"}})
        middles = {"type": "stratified", "jitter": False, "sample_count": 1}
        self._surfaces = mitsuba.load_dict({**lens, "film": {**film, **box}, "sampler": middles})
        self._truths = mitsuba.load_dict({"type": "aov", "aovs": ",".join(f"{name}:{name}" for name in _TRUTHS)})

    def place(self, world_from_camera: Array, lens: Intrinsics) -> None:
        """Set the pose and the intrinsics of the camera.

        Args:
            world_from_camera: pose ``(4, 4)`` in OpenCV's camera axes.
            lens: pinhole intrinsics in pixels.

        Raises:
            InputError: If the pixels are not square.
        """
        if not math.isclose(lens.fx, lens.fy, rel_tol=1e-6):
            raise InputError(
                f"The mitsuba renderer has square pixels only; this camera's focal lengths are {lens.fx:g} and "
                f"{lens.fy:g} pixels. Use an image with the aspect ratio of its sensor, or render it with gl."
            )
        pose = world_from_camera * [-1.0, -1.0, 1.0, 1.0]  # Mitsuba's axes are x left, y up, z forward
        left, _, right = np.linalg.svd(pose[:3, :3])
        pose[:3, :3] = left @ right  # the nearest rotation: Mitsuba refuses matrices with a scale
        for sensor in (self._image, self._surfaces):
            values = self._mitsuba.traverse(sensor)
            values["to_world"] = self._mitsuba.Transform4f(pose.tolist())
            values["x_fov"] = math.degrees(2.0 * math.atan2(lens.width / 2.0, lens.fx))
            values["principal_point_offset_x"] = lens.cx / lens.width - 0.5
            values["principal_point_offset_y"] = lens.cy / lens.height - 0.5
            values.update()

    def render_light(self, scene: Any, integrator: Any, *, samples: int, seed: int) -> NDArray[np.float32]:
        """Return linear light and coverage (alpha) of an image, ``(height, width, 4)``.

        Args:
            scene: Mitsuba's scene.
            integrator: Mitsuba's integrator, which traces the paths.
            samples: number of paths per pixel.
            seed: seed of the noise.
        """
        seen = self._mitsuba.render(scene, sensor=self._image, integrator=integrator, spp=samples, seed=seed)
        return np.array(seen, dtype=np.float32)

    def render_surfaces(self, scene: Any) -> dict[str, NDArray[np.float32]]:
        """Return properties of the surface at each pixel's centre, ``(height, width, k)`` by name.

        The names are ``position`` (world, in m), ``sh_normal`` (shading normal in world axes), ``albedo`` and
        ``shape_index``.
        """
        seen = np.array(self._mitsuba.render(scene, sensor=self._surfaces, integrator=self._truths, spp=1, seed=0))
        ends = np.cumsum(list(_TRUTHS.values()))
        return dict(zip(_TRUTHS, np.split(seen[..., -ends[-1] :], ends[:-1], axis=-1), strict=True))


REMEDY = "pip install 'twinloop[path]'"
Image = NDArray[np.float32]


def can_denoise() -> bool:
    """Return whether the package ``pyoidn`` (Intel Open Image Denoise) is installed."""
    return find_spec("pyoidn") is not None


def denoise(light: Image, albedo: Image, normal: Image) -> Image:
    """Remove path tracing noise from linear light with Intel Open Image Denoise; all arrays are ``(h, w, 3)``.

    Args:
        light: noisy linear light.
        albedo, normal: surface colours and normals, both free of noise, which guide the denoiser.

    Raises:
        MissingDependencyError: If ``pyoidn`` is not installed.
    """
    try:
        import pyoidn  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependencyError(f"Denoising needs pyoidn ({error}).", remedy=REMEDY) from error
    guides = (np.ascontiguousarray(np.clip(albedo, 0.0, 1.0)), np.ascontiguousarray(normal))
    return pyoidn.denoise(np.ascontiguousarray(light), *guides, hdr=True)


_WAVE = 1 << 23  # paths traced at once, a limit of memory; 64 samples at 640×480 are 19.7 million paths
_ROULETTE = 3  # segments before paths may end by chance: a tenth of the time at the same mean (so101_tabletop)


@dataclass(frozen=True, kw_only=True)
class MitsubaQuality:
    """Settings of the path tracer, which determine noise and time of an image.

    Attributes:
        samples: number of paths per pixel.
        max_depth: largest number of segments of a path; 1 for emitted light only, 2 for direct light.
        denoise: whether to remove the noise of few samples; None for yes if ``pyoidn`` is installed.
        variant: ``scalar``, ``llvm``, ``cuda``, or ``auto`` for the fastest that works on this machine.
        seed: seed of the noise.
    """

    samples: int = 64
    max_depth: int = 6
    denoise: bool | None = None
    variant: str = AUTO
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise InputError(f"An image of {self.samples} samples per pixel is impossible. Use at least 1.")
        if self.max_depth < 1:
            raise InputError(f"Paths of at most {self.max_depth} segments carry no light. Use at least 1, better 6.")


class MitsubaRenderer(Renderer):
    """Renderer that traces paths of light; depth, geom ids and normals are those at the centre of each pixel.

    The same state, fields, seed and variant give the same image; variants differ in their noise. Images have no lens
    distortion and no motion blur. The camera's sensor model adds both to the images.

    Raises:
        MissingDependencyError: If Mitsuba, the variant or the denoiser is missing on this machine.
        UnknownNameError: If a camera or the variant is unknown.
        InputError: If no renderer supports the size, or a quality setting is invalid.
    """

    name = "mitsuba"
    channels = ("rgb", "linear", "depth", "geom", "normal")

    def __init__(
        self,
        model: mujoco.MjModel,
        *,
        height: int = 240,
        width: int = 320,
        cameras: Sequence[str] | None = None,
        quality: MitsubaQuality | None = None,
    ) -> None:
        check_size(height, width)
        self._quality = quality or MitsubaQuality()
        self.height, self.width = height, width
        self._posed = PosedScene(model)
        self._ids = camera_ids(model, cameras)
        self.cameras = tuple(self._ids)
        if self._quality.denoise and not can_denoise():
            raise MissingDependencyError("Denoising needs pyoidn.", remedy=REMEDY)
        self._denoises = can_denoise() if self._quality.denoise is None else self._quality.denoise
        self._variant = choose_variant(self._quality.variant)
        self.variant = self._variant.name
        self._mitsuba: Any = self._variant.load()
        self._posed.pose(SceneStates(qpos=model.qpos0), 0)
        self._scene: MitsubaScene | None = MitsubaScene(self._mitsuba, self._posed.model, self._posed.data)
        near = float(model.vis.map.znear * model.stat.extent)
        options = {"height": height, "width": width, "near": near, "far": self._scene.far}
        self._cameras = {name: MitsubaCamera(self._mitsuba, **options) for name in self.cameras}
        self._integrators: dict[tuple[bool, bool], Any] = {}

    def observe(
        self, states: SceneStates, fields: Fields | None = None, *, channels: Sequence[str] = ("rgb",)
    ) -> ChannelArrays:
        """Return the requested channels of every state from every camera; see `Renderer.observe`."""
        check_channels(channels, self.channels, renderer=self.name)
        if self._scene is None:
            raise InputError("This renderer was closed. Open another.")
        self._variant.load()  # another renderer in this process may have selected another variant
        self._posed.check(states)
        self._posed.set_fields(fields, len(states))
        seen = new_channels(self.cameras, channels, len(states), self.height, self.width)
        for i in range(len(states)):
            self._posed.pose(states, i)
            changed = self._posed.pop_changed_data()
            if "tex_data" in changed:
                self._scene.forget_textures()
            if changed & {"tex_data", "tex_type"}:
                self._scene.load_sky(self._posed.model)
            self._scene.update(self._posed.model, self._posed.data)
            for name in self.cameras:
                self._observe_camera(self._scene, name, {channel: out[i] for channel, out in seen[name].items()})
        return seen

    def _observe_camera(self, scene: MitsubaScene, name: str, out: dict[str, NDArray]) -> None:
        model, data, row = self._posed.model, self._posed.data, self._ids[name]
        camera = self._cameras[name]
        lens = intrinsics(model, name, height=self.height, width=self.width)
        pose = opencv_pose(data.cam_xpos[row], data.cam_xmat[row])
        camera.place(pose, lens)
        rays = lens.unproject(lens.pixel_centres())
        coloured = "rgb" in out or "linear" in out
        surfaces: dict[str, NDArray] = {}
        if {"depth", "geom", "normal"} & set(out) or (coloured and (self._denoises or scene.has_emission)):
            surfaces = camera.render_surfaces(scene.scene)
            surfaces["geom"] = scene.geom_ids(surfaces["shape_index"][..., 0])
        if coloured:
            light = self._light(scene, name, surfaces, rays @ pose[:3, :3].T)
            if "linear" in out:
                out["linear"][:] = light
            if "rgb" in out:
                out["rgb"][:] = encode_srgb(light)
        _write_surfaces(surfaces, pose, rays, out)

    def _light(
        self, scene: MitsubaScene, name: str, surfaces: dict[str, NDArray], rays: NDArray[np.float64]
    ) -> NDArray[np.float32]:
        """Return the path-traced image of a camera over the background, as linear light ``(height, width, 3)``.

        The background is read directly from its texture, so it has no noise.

        Args:
            scene: scene of the current frame.
            name: name of the camera.
            surfaces: result of `MitsubaCamera.render_surfaces`, with geom ids as ``geom``.
            rays: directions of the pixels in world axes, ``(height, width, 3)``.
        """
        image = self._trace(scene, name)
        cover = (surfaces["geom"] >= 0)[..., None] if scene.has_emission else image[..., 3:]
        light = image[..., :3] * (cover if scene.has_emission else 1.0)
        if self._denoises:
            light = denoise(light, surfaces["albedo"], surfaces["sh_normal"])
        light = np.maximum(light, 0.0)
        behind = (cover < 1.0)[..., 0]
        seen = look_up_sky(scene.faces, rays[behind])
        light[behind] = np.where(cover[behind] > 0.0, light[behind], 0.0) + (1.0 - cover[behind]) * seen
        return light

    def _trace(self, scene: MitsubaScene, name: str) -> NDArray[np.float32]:
        """Return linear light and coverage of a camera's image ``(height, width, 4)``.

        The result is the mean of several passes with different seeds, because memory limits the samples of one pass.
        """
        most = max(1, _WAVE // (self.height * self.width))
        parts = [min(most, self._quality.samples - done) for done in range(0, self._quality.samples, most)]
        start = zlib.crc32(name.encode(), zlib.crc32(self._posed.data.qpos.tobytes(), self._quality.seed))
        total = np.zeros((self.height, self.width, 4), dtype=np.float32)
        for k, samples in enumerate(parts):
            seed = zlib.crc32(bytes([k % 256, k // 256]), start)
            passed = self._cameras[name].render_light(scene.scene, self._integrator(scene), samples=samples, seed=seed)
            total += passed * np.float32(samples / self._quality.samples)
        return total

    def _integrator(self, scene: MitsubaScene) -> Any:
        """Return Mitsuba's path integrator.

        A scene with semi-transparent geoms needs the volumetric one (``volpath``).
        """
        kind = scene.has_transparency, scene.has_emission
        if kind not in self._integrators:
            name, depth = "volpath" if scene.has_transparency else "path", self._quality.max_depth
            settings = {"max_depth": depth, "rr_depth": _ROULETTE, "hide_emitters": not scene.has_emission}
            self._integrators[kind] = self._mitsuba.load_dict({"type": name, **settings})
        return self._integrators[kind]

    def close(self) -> None:
        """Free the scene. A second call does nothing."""
        self._scene = None
        self._cameras.clear()


def _write_surfaces(
    surfaces: dict[str, NDArray], pose: NDArray[np.float64], rays: NDArray[np.float64], out: dict[str, NDArray]
) -> None:
    """Write geom ids, depth and normals at the centres of pixels into the requested arrays.

    Args:
        surfaces: result of `MitsubaCamera.render_surfaces`, with geom ids as ``geom``.
        pose: ``world_from_camera`` ``(4, 4)`` in OpenCV's camera axes.
        rays: directions of the pixels in camera axes, ``(height, width, 3)``.
        out: arrays by channel, changed in place.
    """
    if "geom" in out:
        out["geom"][:] = surfaces["geom"]
    if "depth" in out:
        along = (surfaces["position"] - pose[:3, 3]) @ pose[:3, 2]
        out["depth"][:] = np.where(surfaces["geom"] >= 0, along, np.inf)
    if "normal" in out:
        normal = surfaces["sh_normal"] @ pose[:3, :3]
        length = np.linalg.norm(normal, axis=-1, keepdims=True)
        normal /= np.where(length > 0.0, length, 1.0)
        away = np.einsum("hwi,hwi->hw", normal, rays) > 0.0
        normal[away] *= -1.0
        out["normal"][:] = np.where((surfaces["geom"] >= 0)[..., None], normal, 0.0)
