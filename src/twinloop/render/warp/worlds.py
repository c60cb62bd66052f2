"""Load frames to the device as worlds of ``mujoco_warp``: their poses, and the model fields that the tracer reads."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import mujoco
import numpy as np
import warp as wp  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.render.protocol import SceneStates
from twinloop.render.scene import PosedScene
from twinloop.twin.quantities.lookup import find_fixed_geoms
from twinloop.twin.quantities.rotation import quat_multiply, rotate_vectors

_POSES = ("geom_xpos", "geom_xmat", "cam_xpos", "cam_xmat", "light_xpos", "light_xdir", "flexvert_xpos")
# Model fields that the tracer reads and that may differ between worlds. Positions come with the poses.
_OF_WORLDS = (
    *("geom_dataid", "geom_matid", "geom_size", "geom_rgba", "cam_fovy", "cam_intrinsic"),
    *("light_type", "light_castshadow", "light_active", "light_attenuation", "light_cutoff", "light_exponent"),
    *("light_ambient", "light_diffuse", "light_specular"),
    *("mat_texid", "mat_texuniform", "mat_texrepeat", "mat_emission", "mat_specular", "mat_shininess", "mat_rgba"),
)
_LENS = ("cam_fovy", "cam_intrinsic", "cam_sensorsize")
_CARRIED = ("geom_pos", "geom_quat", "cam_pos", "cam_quat", "light_pos", "light_dir")  # in their bodies' axes
_BODIES = ("body_pos", "body_quat", "body_parentid", "body_mocapid", "jnt_", "qpos0", "cam_mode", "light_mode")
OF_ALL = ("geom_type", "cam_projection", "cam_sensorsize", "flex_rgba", "tex_data", "tex_type")
"""Model fields that have one value for all worlds of a launch."""


_FIXED = mujoco.mjtCamLight.mjCAMLIGHT_FIXED.value


class TracedFrames:
    """Frames that are traced in one launch.

    Attributes:
        model: the model on the device.
        data: the poses on the device.
        count: number of loaded frames.
        capacity: largest number of frames loaded so far, for which memory is allocated.
        lenses: model fields ``cam_fovy``, ``cam_intrinsic`` and ``cam_sensorsize`` by name; one dict per frame, or one
            dict if they are constant.

    Args:
        mjw: the module ``mujoco_warp``.
        posed: the model as compiled, before fields are set.
        size: height and width of the images in pixels.
        moving: whether body poses are computed on the device, in float32. Nevertheless they are computed on the host if
            a model field that changes the kinematics is set, such as ``body_pos``, or if the model has flexes
            (deformable bodies) or cameras or lights in a mode other than ``fixed``.
    """

    def __init__(self, mjw: ModuleType, posed: PosedScene, size: tuple[int, int], *, moving: bool) -> None:
        self._mjw, self._posed, self._size = mjw, posed, size
        carried = (posed.model.cam_mode == _FIXED).all() and (posed.model.light_mode == _FIXED).all()
        self._moving = moving and carried and not posed.model.nflex
        self._still = find_fixed_geoms(posed.model)
        self._loaded: dict[str, NDArray] = {}
        try:
            self.model: Any = mjw.put_model(posed.model)
        except NotImplementedError as error:
            raise InputError(f"mujoco_warp does not support this model: {error} Render it with gl.") from error
        self.data: Any = None
        self.count = self.capacity = 0
        self.lenses: list[dict[str, NDArray]] = []

    def load(self, states: SceneStates, frames: NDArray[np.intp]) -> None:
        """Load frames to the device.

        Args:
            states: poses of all frames.
            frames: indices of the frames to load. Some model fields have one value for all loaded frames, so they must
                be equal in these frames: geom types, camera projection and sensor size, textures, and colours of
                deformable bodies (`OF_ALL`).
        """
        if len(frames) > self.capacity:
            self.capacity = len(frames)
            # No physics is simulated here, so contacts need no memory.
            self.data = self._mjw.make_data(self._posed.model, nworld=self.capacity, nconmax=1, njmax=1)
        self.count = self.data.nworld = len(frames)
        if self._moving and not self._posed.changes_field(_BODIES):
            self._place_on_device(states, frames)
        else:
            self._place_on_host(states, frames)
        for name in _OF_WORLDS:
            self._load_field(name, self._posed.rows(name, frames))
        for name in ("geom_type", "cam_projection", "cam_sensorsize"):
            self._load_field(name, getattr(self._posed.model, name))
        lens = {name: self._posed.rows(name, frames) for name in _LENS}
        count = max(map(len, lens.values()))
        self.lenses = [{name: rows[i % len(rows)] for name, rows in lens.items()} for i in range(count)]

    def _place_on_host(self, states: SceneStates, frames: NDArray[np.intp]) -> None:
        """Compute the poses with MuJoCo, frame by frame, and copy them to the device."""
        poses: dict[str, list[NDArray]] = {name: [] for name in _POSES}
        for frame in frames.tolist():
            self._posed.pose(states, frame)
            for name, values in poses.items():
                values.append(getattr(self._posed.data, name).copy())
        for name, values in poses.items():
            self._assign(name, np.stack(values))

    def _place_on_device(self, states: SceneStates, frames: NDArray[np.intp]) -> None:
        """Compute the poses on the device with ``mujoco_warp``.

        The poses of geoms fixed to the world are computed here, because ``mujoco_warp`` does not compute them.
        """
        self._posed.pose(states, int(frames[0]))
        for name in _CARRIED:
            self._load_field(name, self._posed.rows(name, frames))
        own = {name: getattr(self._posed.data, name) for name in ("geom_xpos", "geom_xmat")}
        whole = {name: np.repeat(pose[None], self.count, axis=0) for name, pose in own.items()}
        self._place_world_geoms_inplace(whole, frames)
        position, quat = self._posed.mocap_poses(states, frames)
        whole |= {"qpos": states.qpos[frames], "mocap_pos": position, "mocap_quat": quat}
        for name, values in whole.items():
            self._assign(name, values)
        self._mjw.kinematics(self.model, self.data)
        self._mjw.com_pos(self.model, self.data)
        self._mjw.camlight(self.model, self.data)

    def _place_world_geoms_inplace(self, poses: dict[str, NDArray[np.float64]], frames: NDArray[np.intp]) -> None:
        """Write the poses of geoms that are fixed to the world.

        Args:
            poses: ``geom_xpos`` ``(nframe, ngeom, 3)`` and ``geom_xmat`` ``(nframe, ngeom, 9)``, changed in place.
            frames: indices of the frames, ``(nframe,)``.
        """
        data, still = self._posed.data, self._still
        bodies = self._posed.model.geom_bodyid[still]
        position = self._posed.rows("geom_pos", frames)[:, still]
        turn = quat_multiply(data.xquat[bodies][None], self._posed.rows("geom_quat", frames)[:, still])
        poses["geom_xpos"][:, still] = data.xpos[bodies] + rotate_vectors(data.xquat[bodies], position)
        axes = [rotate_vectors(turn, np.broadcast_to(axis, (*turn.shape[:-1], 3))) for axis in np.eye(3)]
        poses["geom_xmat"][:, still] = np.stack(axes, axis=-1).reshape(*turn.shape[:-1], 9)

    def _assign(self, name: str, values: NDArray[np.float64]) -> None:
        target = getattr(self.data, name)
        if target.size:
            matrices = values.reshape(*values.shape[:-1], 3, 3) if name.endswith("xmat") else values
            target[: self.count].assign(np.ascontiguousarray(matrices))

    def _load_field(self, name: str, values: NDArray) -> None:
        if name in {"cam_intrinsic", "cam_sensorsize"}:
            values = self._scale_sensors(name, values)
        if name in self._loaded and np.array_equal(self._loaded[name], values):
            return
        self._loaded[name] = values.copy()
        shared = getattr(self.model, name)
        setattr(self.model, name, wp.array(values, dtype=shared.dtype, ndim=shared.ndim))

    def _scale_sensors(self, name: str, values: NDArray) -> NDArray:
        """Convert the camera fields of sensor size and intrinsics from m to pixels.

        MuJoCo's renderer scales the sensor to the image, but the tracer would crop it.

        Args:
            name: ``cam_sensorsize``, or ``cam_intrinsic`` (focal lengths and principal point).
            values: the field as in the model, in m.
        """
        model, (height, width) = self._posed.model, self._size
        sensor = model.cam_sensorsize
        lensed = sensor[:, 1] > 0.0
        pixels = np.divide([width, height], sensor, out=np.ones(sensor.shape), where=lensed[:, None])
        return values * (pixels if name == "cam_sensorsize" else np.tile(pixels, 2))
