"""Ray-trace the images of several cameras with the same projection, all loaded frames in one kernel launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.render.cameras import intrinsics
from twinloop.render.protocol import decode_srgb
from twinloop.render.scene import PosedScene, camera_ids
from twinloop.render.splats import Splats
from twinloop.render.warp.normals import surface_normals
from twinloop.render.warp.worlds import TracedFrames

_COLOUR = {"rgb", "linear"}


class Tracer:
    """Ray tracer for some cameras of a model; it has one ``mujoco_warp`` render context per set of channels.

    Args:
        mjw: the module ``mujoco_warp``.
        posed: the model.
        cameras: names of the cameras.
        rays: direction of each pixel by camera, ``(height, width, 3)`` in camera axes; None for the cameras' own
            lenses.
        size: height and width of the images in pixels.
        shadows: whether lights cast shadows.
        splats: Gaussian splats; None for none.
    """

    def __init__(
        self,
        mjw: ModuleType,
        posed: PosedScene,
        cameras: Sequence[str],
        rays: Mapping[str, NDArray[np.float64]] | None,
        *,
        size: tuple[int, int],
        shadows: bool,
        splats: Splats | None,
    ) -> None:
        self._mjw, self._posed, self._size, self._shadows = mjw, posed, size, shadows
        # mujoco_warp orders the active cameras as in the model, so images are read in that order too.
        self._ids = dict(sorted(camera_ids(posed.model, cameras).items(), key=lambda item: item[1]))
        self._rays = rays and np.concatenate([rays[name].reshape(-1, 3) for name in self._ids]) * [1.0, -1.0, -1.0]
        self._splats = splats
        self._contexts: dict[tuple[bool, ...], Any] = {}
        self._kernel: Any = None
        self._kinds: set[int] = set()

    def clear_contexts(self) -> None:
        """Discard all render contexts, which contain the model's shapes and textures on the device.

        The next call builds them from the model's current state.
        """
        self._contexts.clear()

    def trace(self, worlds: TracedFrames, channels: Sequence[str]) -> dict[str, dict[str, NDArray]]:
        """Return the channels of all loaded frames.

        Args:
            worlds: the frames, ``worlds.count`` in number.
            channels: names in `CHANNELS`: ``rgb``, ``linear``, ``depth``, ``geom``, ``normal``.

        Returns:
            Arrays ``(count, height, width, …)`` by camera name and channel name.
        """
        wanted = set(channels)
        context = self._context(worlds, wanted)
        self._mjw.refit_bvh(worlds.model, worlds.data, context)
        self._mjw.render(worlds.model, worlds.data, context)
        self._kernel = context._megakernel
        seen: dict[str, NDArray] = {}
        if wanted & _COLOUR:
            seen["rgb"] = _unpack_colours(context.rgb_data.numpy()[: worlds.count])
        if "depth" in wanted:
            seen["depth"] = context.depth_data.numpy()[: worlds.count]
            seen["depth"][seen["depth"] == 0.0] = np.inf
        if "geom" in wanted:
            seen["geom"] = _select_geom_ids(context.seg_data.numpy()[: worlds.count])
        if "normal" in wanted:
            seen["normal"] = surface_normals(self._mjw, worlds, context, self._size, self._lenses(worlds))
        if "linear" in wanted:
            seen["linear"] = decode_srgb(seen["rgb"])
        return self._by_camera({channel: seen[channel] for channel in channels})

    def launch(self, worlds: TracedFrames, channels: Sequence[str]) -> None:
        """Trace all loaded frames and leave the results on the device."""
        context = self._context(worlds, set(channels))
        self._mjw.refit_bvh(worlds.model, worlds.data, context)
        self._mjw.render(worlds.model, worlds.data, context)

    def _by_camera(self, seen: Mapping[str, NDArray]) -> dict[str, dict[str, NDArray]]:
        images: dict[str, dict[str, NDArray]] = {name: {} for name in self._ids}
        for channel, values in seen.items():
            shape = (len(values), len(self._ids), *self._size, *values.shape[2:])
            for slot, name in enumerate(self._ids):
                images[name][channel] = values.reshape(shape)[:, slot]
        return images

    def _context(self, worlds: TracedFrames, wanted: set[str]) -> Any:
        model = self._posed.model
        kinds = self._kinds | set(model.geom_type.tolist())
        if kinds != self._kinds:
            self._kinds, self._kernel = kinds, None
            self.clear_contexts()
        key = (bool(wanted & _COLOUR), bool(wanted & {"depth", "normal"}), "geom" in wanted)
        context = self._contexts.get(key)
        if context is None or len(context.group_root) < worlds.count:
            context = self._contexts[key] = self._new_context(worlds.capacity, *key)
        return context

    def _new_context(self, capacity: int, colour: bool, depth: bool, geom: bool) -> Any:
        context = self._mjw.create_render_context(
            self._posed.model,
            nworld=capacity,
            cam_res=(self._size[1], self._size[0]),
            cam_active=list(self._ids.values()),
            render_rgb=colour,
            render_depth=depth,
            render_seg=geom,
            use_shadows=self._shadows,
            shadow_light_fraction=0.0,  # shadows as dark as the rasterizer's
            use_precomputed_rays=self._rays is not None,  # otherwise the field of view differs from world to world
            render_skybox=True,
            **_splat_arrays(self._splats),
        )
        if self._rays is not None:
            context.ray.assign(self._rays)
            context.ray_offset.zero_()
        # The kernel's specialization must be valid for every world, not only for the model as compiled.
        context.geom_ray_types = tuple(sorted(self._kinds))
        context.light_attenuation_is_default, context.has_spot_lights = False, True
        context._megakernel = self._kernel
        return context

    def _lenses(self, worlds: TracedFrames) -> NDArray[np.float64] | None:
        """Return intrinsics (fx, fy, cx, cy) in pixels, ``(nframe, ncamera, 4)``; nframe is 1 if all frames share them.

        None if the cameras are orthographic, or if each pixel has its own direction.
        """
        model, (height, width) = self._posed.model, self._size
        projections = model.cam_projection[list(self._ids.values())]
        if self._rays is not None or (projections != mujoco.mjtProjection.mjPROJ_PERSPECTIVE).any():
            return None
        lenses = [
            [intrinsics(model, name, height=height, width=width, fields=fields) for name in self._ids]
            for fields in worlds.lenses
        ]
        return np.array([[[lens.fx, lens.fy, lens.cx, lens.cy] for lens in row] for row in lenses])


def _splat_arrays(splats: Splats | None) -> dict[str, NDArray[np.float32]]:
    if splats is None or not len(splats):
        return {}
    arrays = {"position": splats.position, "rotation": splats.rotation, "scale": splats.scale, "rgba": splats.rgba}
    return {f"splat_{name}": value.astype(np.float32) for name, value in arrays.items()}


def _select_geom_ids(pairs: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the geom ids from pairs ``(…, 2)`` of id and object type; -1 for objects that are not geoms."""
    return np.where(pairs[..., 1] == int(mujoco.mjtObj.mjOBJ_GEOM), pairs[..., 0], -1)


def _unpack_colours(packed: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Return red, green and blue ``(…, 3)`` of pixels packed as 0xAARRGGBB; blue is the first byte in memory."""
    return packed.astype("<u4", copy=False).view(np.uint8).reshape(*packed.shape, 4)[..., 2::-1]
