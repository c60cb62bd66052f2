"""The batch ray tracer of ``mujoco_warp``: no system library, on the CPU or a GPU; frames of one world in batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import Any, Self

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, MissingDependencyError
from twinloop.render.protocol import Fields, Frames, Observed, SceneStates, check_channels, check_size
from twinloop.render.scene import PosedScene, camera_ids

REMEDY = "pip install 'twinloop[warp]'"
_POSES = ("geom_xpos", "geom_xmat", "cam_xpos", "cam_xmat", "light_xpos", "light_xdir")


@dataclass(frozen=True, kw_only=True)
class WarpQuality:
    """Shadows cost about a sixth of the speed on a CPU (20.7 against 17.3 frames per second at 640×480).

    ``batch`` frames are traced per launch; it changes memory and speed, not pixels.
    """

    shadows: bool = True
    batch: int = 8


class WarpRenderer:
    """Traces one ray per pixel through a bounding volume hierarchy; the frames of a call are its worlds.

    The first picture of a kind of scene compiles its kernels (5 to 30 s on two cores), which Warp keeps on disk.

    Raises:
        MissingDependencyError: ``mujoco_warp`` is not installed.
        InputError: an unknown camera or an impossible size.
    """

    name = "warp"
    channels = ("rgb",)

    def __init__(
        self,
        model: mujoco.MjModel,
        *,
        height: int = 240,
        width: int = 320,
        cameras: Sequence[str] | None = None,
        quality: WarpQuality | None = None,
    ) -> None:
        check_size(height, width)
        self._mjw = _import_warp()
        self._quality = quality or WarpQuality()
        self.height, self.width = height, width
        self._posed = PosedScene(model)
        _use_first_face(self._posed.model)
        _forget_physics(self._posed.model)
        # Warp numbers the active cameras in the order of the model's, so pictures are read in that order too.
        ids = camera_ids(model, cameras)
        self.cameras = tuple(ids)
        self._ids = sorted(ids.values())
        self._slots = {name: self._ids.index(i) for name, i in ids.items()}
        self._contexts: dict[int, tuple[Any, Any]] = {}

    def render(self, states: SceneStates, fields: Fields | None = None) -> Frames:
        """Colour pictures of every state from every camera; see `Renderer.render`."""
        return {name: seen["rgb"] for name, seen in self.observe(states, fields).items()}

    def observe(
        self, states: SceneStates, fields: Fields | None = None, *, channels: Sequence[str] = ("rgb",)
    ) -> Observed:
        """Channels of every state from every camera; see `Renderer.observe`."""
        check_channels(channels, self.channels, renderer=self.name)
        self._posed.check(states)
        self._posed.set_fields(fields, len(states))
        shape = (len(states), self.height, self.width, 3)
        frames = {name: np.empty(shape, dtype=np.uint8) for name in self.cameras}
        own = {name: value for name, value in (fields or {}).items() if self._posed.changes(name)}
        batch = 1 if own else self._quality.batch
        for start in range(0, len(states), batch):
            rows = slice(start, start + batch)
            if own:
                self._posed.set_fields({**(fields or {}), **{name: value[start] for name, value in own.items()}})
            if self._posed.take_anew():
                self._contexts.clear()  # a context is built for the shapes and pixels that the model has
            device_model = self._put_model()
            self._trace(device_model, states.take(rows), {name: out[rows] for name, out in frames.items()})
        return {name: {"rgb": pictures} for name, pictures in frames.items()}

    def _put_model(self) -> Any:
        try:
            return self._mjw.put_model(self._posed.model)
        except NotImplementedError as error:
            raise InputError(f"mujoco_warp does not take this model: {error} Render it with gl.") from error

    def _trace(self, device_model: Any, states: SceneStates, out: Frames) -> None:
        data, context = self._buffers(len(states))
        for name, values in self._poses(states).items():
            getattr(data, name).assign(values)
        self._mjw.refit_bvh(device_model, data, context)
        self._mjw.render(device_model, data, context)
        packed = context.rgb_data.numpy()
        starts = context.rgb_adr.numpy()
        for name, slot in self._slots.items():
            pixels = packed[:, starts[slot] : starts[slot] + self.height * self.width]
            out[name][:] = _unpack_rgb(pixels).reshape(-1, self.height, self.width, 3)

    def _poses(self, states: SceneStates) -> dict[str, NDArray[np.float32]]:
        data = self._posed.data
        poses = {}
        for name in _POSES:
            shape = getattr(data, name).shape
            shape = (shape[0], 3, 3) if name.endswith("xmat") else shape
            poses[name] = np.empty((len(states), *shape), dtype=np.float32)
        for i in range(len(states)):
            self._posed.pose(states, i)
            for name, values in poses.items():
                values[i] = getattr(data, name).reshape(values.shape[1:])
        return poses

    def _buffers(self, count: int) -> tuple[Any, Any]:
        if count not in self._contexts:
            model = self._posed.model
            context = self._mjw.create_render_context(
                model,
                nworld=count,
                cam_res=(self.width, self.height),
                cam_active=self._ids,
                render_rgb=True,
                render_depth=False,
                render_seg=False,
                use_shadows=self._quality.shadows,
                shadow_light_fraction=0.0,  # shadows as dark as the rasterizer's
                use_precomputed_rays=False,  # the field of view may differ from world to world
                render_skybox=True,
            )
            self._contexts[count] = (self._mjw.make_data(model, nworld=count), context)
        return self._contexts[count]

    def close(self) -> None:
        """Free the batch buffers; a second call does nothing."""
        self._contexts.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _use_first_face(model: mujoco.MjModel) -> None:
    """Show a cube texture's first face on every side: the tracer would squeeze all six onto each."""
    cubes = model.tex_type == mujoco.mjtTexture.mjTEXTURE_CUBE
    model.tex_height[cubes] = model.tex_width[cubes]


def _forget_physics(model: mujoco.MjModel) -> None:
    """Poses come from MuJoCo, so options that ``mujoco_warp`` does not simulate must not keep it from drawing."""
    model.opt.disableflags = model.opt.enableflags = 0
    model.opt.integrator = mujoco.mjtIntegrator.mjINT_EULER.value


def _unpack_rgb(packed: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Red, green, blue of pixels packed as 0xAARRGGBB."""
    return np.stack([packed >> 16 & 0xFF, packed >> 8 & 0xFF, packed & 0xFF], axis=-1).astype(np.uint8)


def _import_warp() -> ModuleType:
    try:
        import warp  # pyright: ignore[reportMissingImports]

        warp.config.log_level = warp.LOG_WARNING  # its greeting would land in the output of every command
        import mujoco_warp  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependencyError(f"The warp renderer needs mujoco_warp ({error}).", remedy=REMEDY) from error
    return mujoco_warp
