"""Render with the batch ray tracer of ``mujoco_warp``, on CPU or GPU; the frames of a call are its worlds."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError, MissingDependencyError, UnknownNameError
from twinloop.render.protocol import Fields, Observed, Renderer, SceneStates, check_channels, check_size, new_channels
from twinloop.render.scene import PosedScene, camera_ids
from twinloop.render.splats import Splats

if TYPE_CHECKING:
    from twinloop.render.warp.trace import Tracer
    from twinloop.render.warp.worlds import TracedFrames

REMEDY = "pip install 'twinloop[warp]'"


@dataclass(frozen=True, kw_only=True)
class WarpQuality:
    """Settings of the tracer; shadows cost about a sixth of the speed on a CPU (20.7 against 17.3 frames/s at 640×480).

    ``batch`` frames are traced per launch (0: 8 on a CPU, 1024 on a GPU); it changes memory and speed, not pixels.
    ``device`` is Warp's device name, such as cuda:1 or cpu; empty for a GPU if there is one. ``moving`` selects where
    body poses are computed: on the ``device`` in float32 (error 2·10⁻⁷ m), unless a field changes their joints, or on
    the ``host`` as in other renderers; empty for the device on a GPU and the host on a CPU.
    """

    shadows: bool = True
    batch: int = 0
    device: str = ""
    moving: str = ""


class WarpRenderer(Renderer):
    """Renderer that traces one ray per pixel through a bounding volume hierarchy; frames of a call are its worlds.

    The first image of a kind of scene compiles its kernels (5 to 30 s on two cores), which Warp caches on disk.

    Args:
        rays: for some of the cameras, the direction of each pixel: unit vectors ``(height, width, 3)`` in camera axes x
            right, y down, z forward. So images can have any lens, also fisheyes beyond 180°; the camera's field of view
            is ignored. Depth is still the distance along the optical axis.
        splats: rendered among the bodies, each occluding by its opacity. They neither cast nor receive shadows. Depth
            is theirs if they transmit less than 0.5 % of the light; ids and normals are those of bodies.

    Raises:
        MissingDependencyError: ``mujoco_warp`` is not installed, or there is no such device.
        InputError: an unknown camera, an impossible size, or rays that do not fit the image.
    """

    name = "warp"
    channels = ("rgb", "linear", "depth", "geom", "normal")

    def __init__(
        self,
        model: mujoco.MjModel,
        *,
        height: int = 240,
        width: int = 320,
        cameras: Sequence[str] | None = None,
        quality: WarpQuality | None = None,
        rays: Mapping[str, ArrayLike] | None = None,
        splats: Splats | None = None,
    ) -> None:
        check_size(height, width)
        self._mjw, self._wp = _import_warp()
        self._quality = quality or WarpQuality()
        if self._quality.moving not in {"", "host", "device"}:
            raise UnknownNameError("place to move bodies", self._quality.moving, ["host", "device"])
        self._device = _device(self._wp, self._quality.device)
        self.height, self.width = height, width
        self._posed = PosedScene(model)
        _use_first_face(self._posed.model)
        _reset_physics_options(self._posed.model)
        ids = camera_ids(model, cameras)
        self.cameras = tuple(ids)
        given = {name: _check_rays(name, value, (height, width)) for name, value in (rays or {}).items()}
        for name in given:
            if name not in ids:
                raise UnknownNameError("camera", name, ids, where="the renderer, for its rays")
        self._lensed = {name: directions for name, directions in given.items() if directions is not None}
        self._splats = splats
        self._worlds: TracedFrames | None = None
        self._tracers: list[Tracer] = []

    def observe(
        self, states: SceneStates, fields: Fields | None = None, *, channels: Sequence[str] = ("rgb",)
    ) -> Observed:
        """Return the channels of every state from every camera, see `Renderer.observe`."""
        check_channels(channels, self.channels, renderer=self.name)
        self._posed.check(states)
        seen = new_channels(self.cameras, channels, len(states), self.height, self.width)
        with self._wp.ScopedDevice(self._device):
            worlds, tracers = self._prepare_tracers()
            self._posed.set_fields(fields, len(states))
            for frames in self._batches(len(states)):
                worlds.load(states, frames)
                anew = bool(self._posed.pop_changed_data())
                for tracer in tracers:
                    if anew:
                        tracer.clear_contexts()  # a context is built for the shapes and pixels that the model has
                    for name, out in tracer.trace(worlds, channels).items():
                        for channel, values in out.items():
                            seen[name][channel][frames] = values
        return seen

    def measure_bare_seconds(self, launches: int, *, channels: Sequence[str] = ("rgb",)) -> float:
        """Return the seconds of ``launches`` launches alone, over the frames traced last, which stay on the device."""
        with self._wp.ScopedDevice(self._device):
            worlds, tracers = self._prepare_tracers()
            self._wp.synchronize_device()
            began = time.perf_counter()
            for tracer in tracers * launches:
                tracer.launch(worlds, channels)
            self._wp.synchronize_device()
            return time.perf_counter() - began

    def _batches(self, count: int) -> Iterator[NDArray[np.intp]]:
        """Yield the frames that are traced together."""
        from twinloop.render.warp.worlds import OF_ALL

        size = self._quality.batch or (1024 if self._device.is_cuda else 8)
        for frames in self._posed.group_frames(OF_ALL, count):
            yield from (frames[start : start + size] for start in range(0, len(frames), size))

    def _prepare_tracers(self) -> tuple[TracedFrames, list[Tracer]]:
        """Return the data on the device, created with the first image."""
        from twinloop.render.warp.trace import Tracer
        from twinloop.render.warp.worlds import TracedFrames

        if self._worlds is None:
            self._posed.set_fields(None)
            size = (self.height, self.width)
            moving = (self._quality.moving or ("device" if self._device.is_cuda else "host")) == "device"
            self._worlds = TracedFrames(self._mjw, self._posed, size, moving=moving)
            options = {"size": size, "shadows": self._quality.shadows, "splats": self._splats}
            for names in self._group_cameras():
                rays = self._lensed if names[0] in self._lensed else None
                self._tracers.append(Tracer(self._mjw, self._posed, names, rays, **options))
        return self._worlds, self._tracers

    def _group_cameras(self) -> list[list[str]]:
        """Return the cameras by kind: with their own rays, pinholes, and orthographic ones."""
        flat = self._posed.model.cam_projection == mujoco.mjtProjection.mjPROJ_ORTHOGRAPHIC
        ids = camera_ids(self._posed.model, self.cameras)
        kinds: dict[str, list[str]] = {}
        for name, i in ids.items():
            kinds.setdefault("lensed" if name in self._lensed else "flat" if flat[i] else "pinhole", []).append(name)
        return list(kinds.values())

    def close(self) -> None:
        """Free the device's memory; a second call does nothing."""
        self._worlds, self._tracers = None, []


def _check_rays(camera: str, rays: ArrayLike, size: tuple[int, int]) -> NDArray[np.float64]:
    directions = np.asarray(rays, dtype=np.float64)
    if directions.shape != (*size, 3):
        raise InputError(f"The rays of camera {camera} have shape {directions.shape}, the image needs {(*size, 3)}.")
    if not np.allclose(np.linalg.norm(directions, axis=-1), 1.0, atol=1e-3):
        raise InputError(f"The rays of camera {camera} must be unit vectors: a distance is measured along them.")
    return directions


def _use_first_face(model: mujoco.MjModel) -> None:
    """Show a cube texture's first face on every side: the tracer would compress all six onto each."""
    cubes = model.tex_type == mujoco.mjtTexture.mjTEXTURE_CUBE
    model.tex_height[cubes] = model.tex_width[cubes]


def _reset_physics_options(model: mujoco.MjModel) -> None:
    """Reset physics options: poses come from MuJoCo, and ``mujoco_warp`` refuses options that it cannot simulate."""
    model.opt.disableflags = model.opt.enableflags = 0
    model.opt.integrator = mujoco.mjtIntegrator.mjINT_EULER.value


def _device(wp: ModuleType, name: str) -> Any:
    try:
        return wp.get_device(name or None)
    except (ValueError, RuntimeError) as error:
        found = ", ".join(device.alias for device in wp.get_devices())
        raise MissingDependencyError(
            f"There is no device {name} for the warp renderer; there are {found}.", remedy="name one of these"
        ) from error


def _import_warp() -> tuple[ModuleType, ModuleType]:
    try:
        import warp  # pyright: ignore[reportMissingImports]

        warp.config.log_level = warp.LOG_WARNING  # its greeting would appear in the output of every command
        import mujoco_warp  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependencyError(f"The warp renderer needs mujoco_warp ({error}).", remedy=REMEDY) from error
    return mujoco_warp, warp
