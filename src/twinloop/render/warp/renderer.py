"""Render with the batch ray tracer of ``mujoco_warp``, on CPU or GPU.

The frames of one call are traced in parallel, each as a world of ``mujoco_warp``.
"""

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
from twinloop.render.protocol import (
    ChannelArrays,
    Fields,
    Renderer,
    SceneStates,
    check_channels,
    check_size,
    new_channels,
)
from twinloop.render.scene import PosedScene, camera_ids
from twinloop.render.splats import Splats

if TYPE_CHECKING:
    from twinloop.render.warp.trace import Tracer
    from twinloop.render.warp.worlds import TracedFrames

REMEDY = "pip install 'twinloop[warp]'"


@dataclass(frozen=True, kw_only=True)
class WarpQuality:
    """Settings of the ray tracer.

    Attributes:
        shadows: whether lights cast shadows. They cost about a sixth of the speed on a CPU (17.3 instead of 20.7
            frames/s at 640×480).
        batch: number of frames traced per launch; 0 for 8 on a CPU and 1024 on a GPU. It changes memory and speed, but
            not the pixels.
        device: Warp's name of the device, such as cuda:1 or cpu; empty for a GPU if there is one.
        moving: where the poses of moving bodies are computed: ``host`` uses MuJoCo as in other renderers; ``device``
            uses float32 (error 2·10⁻⁷ m), unless a field changes bodies or joints. Empty for the device on
            a GPU and the host on a CPU.
    """

    shadows: bool = True
    batch: int = 0
    device: str = ""
    moving: str = ""


class WarpRenderer(Renderer):
    """Renderer that traces one ray per pixel through a bounding volume hierarchy, many frames at once.

    The first image of a kind of scene compiles kernels (5 to 30 s on two cores), which Warp caches on disk.

    Args:
        model: compiled model.
        height, width: size of the images in pixels.
        cameras: names of the cameras; None for all cameras of the model.
        quality: settings of the ray tracer.
        rays: direction of each pixel for some of the cameras, by camera name: unit vectors ``(height, width, 3)`` in
            camera axes (x right, y down, z forward). They define any lens, including fisheye lenses beyond 180°, and
            replace the camera's field of view. Depth is still the distance along the optical axis.
        splats: Gaussian splats, rendered among the bodies; each hides surfaces behind it in proportion to its opacity.
            They neither cast nor receive shadows. Depth is that of the splats if they transmit less than 0.5 % of the
            light; ids and normals are always those of bodies.

    Raises:
        MissingDependencyError: If ``mujoco_warp`` is not installed, or there is no such device.
        UnknownNameError: If a camera, or the value of ``quality.moving``, is unknown.
        InputError: If no renderer supports the size, or rays do not fit the image.
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
            raise UnknownNameError("value of moving", self._quality.moving, ["host", "device"])
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
    ) -> ChannelArrays:
        """Return the requested channels of every state from every camera; see `Renderer.observe`."""
        check_channels(channels, self.channels, renderer=self.name)
        self._posed.check(states)
        seen = new_channels(self.cameras, channels, len(states), self.height, self.width)
        with self._wp.ScopedDevice(self._device):
            worlds, tracers = self._prepare_tracers()
            self._posed.set_fields(fields, len(states))
            for frames in self._batches(len(states)):
                worlds.load(states, frames)
                rebuild = bool(self._posed.pop_changed_data())
                for tracer in tracers:
                    if rebuild:
                        tracer.clear_contexts()  # a context contains the shapes and texture pixels of the model
                    for name, out in tracer.trace(worlds, channels).items():
                        for channel, values in out.items():
                            seen[name][channel][frames] = values
        return seen

    def measure_bare_seconds(self, launches: int, *, channels: Sequence[str] = ("rgb",)) -> float:
        """Measure the time of ray tracing alone, excluding transfers between host and device.

        It traces the frames of the last launch again, so frames must have been rendered before.

        Args:
            launches: number of repetitions.
            channels: channels to trace.

        Returns:
            Total time of all repetitions in s.
        """
        with self._wp.ScopedDevice(self._device):
            worlds, tracers = self._prepare_tracers()
            self._wp.synchronize_device()
            began = time.perf_counter()
            for tracer in tracers * launches:
                tracer.launch(worlds, channels)
            self._wp.synchronize_device()
            return time.perf_counter() - began

    def _batches(self, count: int) -> Iterator[NDArray[np.intp]]:
        """Yield the indices of frames that are traced in one launch, for ``count`` frames."""
        from twinloop.render.warp.worlds import OF_ALL

        size = self._quality.batch or (1024 if self._device.is_cuda else 8)
        for frames in self._posed.group_frames(OF_ALL, count):
            yield from (frames[start : start + size] for start in range(0, len(frames), size))

    def _prepare_tracers(self) -> tuple[TracedFrames, list[Tracer]]:
        """Return the frames on the device and the tracers; create them at the first call."""
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
        """Group the cameras by projection: given ray directions, pinhole, orthographic."""
        flat = self._posed.model.cam_projection == mujoco.mjtProjection.mjPROJ_ORTHOGRAPHIC
        ids = camera_ids(self._posed.model, self.cameras)
        kinds: dict[str, list[str]] = {}
        for name, i in ids.items():
            kinds.setdefault("lensed" if name in self._lensed else "flat" if flat[i] else "pinhole", []).append(name)
        return list(kinds.values())

    def close(self) -> None:
        """Free the memory of the device. A second call does nothing."""
        self._worlds, self._tracers = None, []


def _check_rays(camera: str, rays: ArrayLike, size: tuple[int, int]) -> NDArray[np.float64]:
    directions = np.asarray(rays, dtype=np.float64)
    if directions.shape != (*size, 3):
        raise InputError(f"The rays of camera {camera} have shape {directions.shape}, the image needs {(*size, 3)}.")
    if not np.allclose(np.linalg.norm(directions, axis=-1), 1.0, atol=1e-3):
        raise InputError(
            f"The rays of camera {camera} must be unit vectors, because distances are measured along them."
        )
    return directions


def _use_first_face(model: mujoco.MjModel) -> None:
    """Show the first face of a cube texture on every side of the cube, in place.

    Otherwise the tracer would compress all six faces onto each side.
    """
    cubes = model.tex_type == mujoco.mjtTexture.mjTEXTURE_CUBE
    model.tex_height[cubes] = model.tex_width[cubes]


def _reset_physics_options(model: mujoco.MjModel) -> None:
    """Reset the model's physics options in place, because ``mujoco_warp`` refuses options that it cannot simulate.

    Images do not depend on them: a renderer computes poses, but no physics.
    """
    model.opt.disableflags = model.opt.enableflags = 0
    model.opt.integrator = mujoco.mjtIntegrator.mjINT_EULER.value


def _device(wp: ModuleType, name: str) -> Any:
    try:
        return wp.get_device(name or None)
    except (ValueError, RuntimeError) as error:
        found = ", ".join(device.alias for device in wp.get_devices())
        raise MissingDependencyError(
            f"There is no device {name} for the warp renderer; there are {found}.", remedy="choose one of these devices"
        ) from error


def _import_warp() -> tuple[ModuleType, ModuleType]:
    try:
        import warp  # pyright: ignore[reportMissingImports]

        warp.config.log_level = warp.LOG_WARNING  # otherwise Warp prints a message in every command
        import mujoco_warp  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependencyError(f"The warp renderer needs mujoco_warp ({error}).", remedy=REMEDY) from error
    return mujoco_warp, warp
