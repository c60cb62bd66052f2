"""Pose a private copy of a MuJoCo model frame by frame, for renderers and ray casters.

A frame may have model fields that differ from the compiled model. The caller's model is never changed.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.render.protocol import Fields, SceneStates

# Uploaded or built once when a renderer is opened: writing them later has no effect. Renderers upload again the
# fields that `PosedScene.pop_changed_data` returns.
_FIXED_PREFIXES = ("tex_", "mesh_", "hfield_", "skin_", "vis", "opt", "stat", "name")
_LOADED_ONCE = frozenset({"tex_data", "tex_type", "geom_dataid"})


def camera_ids(model: mujoco.MjModel, cameras: Sequence[str] | None) -> dict[str, int]:
    """Return the ids of the named cameras by name; if ``cameras`` is None, of all cameras of the model.

    Raises:
        UnknownNameError: If the model has no camera of that name.
        InputError: If no camera is named, or the model has none.
    """
    existing = {model.camera(i).name: i for i in range(model.ncam)}
    wanted = list(existing) if cameras is None else list(cameras)
    if not wanted:
        raise InputError("There is no camera to render from. Name one, or add a <camera> to the model.")
    for name in wanted:
        if name not in existing:
            raise UnknownNameError("camera", name, existing, where="the model")
    return {name: existing[name] for name in wanted}


def _disable_alignment(model: mujoco.MjModel, fields: Fields) -> Fields:
    """Return ``geom_sameframe`` as zeros, so that MuJoCo uses changed poses of geoms; empty if no such pose changed.

    The compiler marks geoms that are aligned with their body in ``geom_sameframe``, and MuJoCo then ignores the geom's
    pose in the body. In simulations ``mj_setConst`` updates these marks, but its other results are not needed here.
    """
    moved = {"geom_pos", "geom_quat", "body_ipos", "body_iquat"} & set(fields)
    return {"geom_sameframe": np.zeros_like(model.geom_sameframe)} if moved else {}


class PosedScene:
    """Copy of a model with its ``MjData``, which can be set to one frame after another.

    The given model is never changed.

    Attributes:
        model: the copy, with the fields of the current frame.
        data: the poses of the current frame.
    """

    def __init__(self, model: mujoco.MjModel) -> None:
        self.model = copy.copy(model)
        self.data = mujoco.MjData(self.model)
        self._compiled: dict[str, NDArray] = {}
        self._changing: dict[str, NDArray] = {}
        self._changed_data: set[str] = set()
        # mj_multiRay (MuJoCo 4.0) tests a body, and each of its colliding geoms, only if a ray hits their bounding
        # volume as compiled, and would miss geoms that are only visual or have changed shape. For bodies without a
        # hierarchy of volumes it tests every geom.
        self.model.body_bvhadr[:] = -1
        bodies = np.flatnonzero(model.body_mocapid >= 0)
        self._mocap = bodies[np.argsort(model.body_mocapid[bodies])]

    def set_fields(self, fields: Fields | None, frames: int = 1) -> None:
        """Write the model fields that all frames share, and store the fields of single frames for `pose`.

        The fields of an earlier call return to their compiled values.

        Args:
            fields: model fields by MuJoCo's name; None for the compiled model.
            frames: number of frames, which is the length of the leading axis of a field with one value per frame.

        Raises:
            InputError: If a field is unknown, is fixed once a renderer is open, or has neither its shape in the model
                nor that shape with a leading axis of length ``frames``.
        """
        fields = fields or {}
        for name, value in self._compiled.items():
            self._write(name, value)
        self._compiled, self._changing = {}, {}
        for name, value in {**_disable_alignment(self.model, fields), **fields}.items():
            target, given = self._field(name), np.asarray(value)
            if given.shape not in (target.shape, (frames, *target.shape)):
                raise InputError(
                    f"Model field {name} has shape {target.shape}, the value given has {given.shape}. "
                    f"A renderer takes one for all frames, or one for each of the {frames} frames."
                )
            self._compiled[name] = target.copy()
            if given.ndim > target.ndim:
                self._changing[name] = given
            else:
                self._write(name, given)

    def _write(self, name: str, values: NDArray) -> None:
        target = getattr(self.model, name)
        if name in _LOADED_ONCE and not np.array_equal(target, values):
            self._changed_data.add(name)
        target[...] = values

    def group_frames(self, names: Sequence[str], frames: int) -> list[NDArray[np.intp]]:
        """Group the frames that have equal values of the named fields; return one array of frame indices per group."""
        rows = [self._changing[name].reshape(frames, -1) for name in names if name in self._changing]
        groups: dict[bytes, list[int]] = {}
        for frame in range(frames):
            groups.setdefault(b"".join(row[frame].tobytes() for row in rows), []).append(frame)
        return [np.array(group) for group in groups.values()]

    def changes_field(self, prefixes: tuple[str, ...]) -> bool:
        """Return whether a field that `set_fields` wrote has a name that starts with one of these prefixes."""
        return any(name.startswith(prefixes) for name in self._compiled)

    def rows(self, name: str, frames: NDArray[np.intp]) -> NDArray:
        """Return a field's values in the given frames, ``(len(frames), …)``, or ``(1, …)`` if all frames share it."""
        if name in self._changing:
            return self._changing[name][frames]
        return getattr(self.model, name)[None].copy()

    def mocap_poses(
        self, states: SceneStates, frames: NDArray[np.intp]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the poses of the mocap bodies in the given frames.

        A pose that the states do not contain is that of the model.

        Args:
            states: poses of all frames.
            frames: indices of the frames.

        Returns:
            Positions in m ``(len(frames), nmocap, 3)`` and quaternions wxyz ``(len(frames), nmocap, 4)``.
        """
        poses = []
        for given, own in ((states.mocap_pos, self.model.body_pos), (states.mocap_quat, self.model.body_quat)):
            still = np.broadcast_to(own[self._mocap], (len(frames), *own[self._mocap].shape))
            poses.append(still if given is None else given[frames])
        return poses[0], poses[1]

    def pop_changed_data(self) -> set[str]:
        """Return the names of changed fields that renderers load only once, and forget them.

        These fields are texture pixels (``tex_data``), types of textures (``tex_type``; the first skybox is shown), and
        the meshes of geoms (``geom_dataid``). A renderer must load a field again if this method returns its name.
        """
        names, self._changed_data = self._changed_data, set()
        return names

    def check(self, states: SceneStates) -> None:
        """Check that states belong to this model.

        Raises:
            InputError: If the number of positions or of mocap bodies differs from the model's. The message has both
                numbers.
        """
        if states.qpos.shape[1] != self.model.nq:
            raise InputError(
                f"The states have {states.qpos.shape[1]} positions per frame, the model has nq = {self.model.nq}. "
                "They belong to another twin."
            )
        for name in ("mocap_pos", "mocap_quat"):
            value = getattr(states, name)
            if value is not None and value.shape[1] != self.model.nmocap:
                raise InputError(
                    f"{name} has {value.shape[1]} bodies, the model has nmocap = {self.model.nmocap}. "
                    "The states belong to another twin."
                )

    def pose(self, states: SceneStates, frame: int) -> None:
        """Set the copied model and its data to one frame.

        Write the frame's own fields, then compute the poses of bodies, geoms, sites, tendons, flexes, cameras and
        lights.
        """
        model, data = self.model, self.data
        for name, values in self._changing.items():
            self._write(name, values[frame])
        data.qpos[:] = states.qpos[frame]
        data.mocap_pos[:] = model.body_pos[self._mocap] if states.mocap_pos is None else states.mocap_pos[frame]
        data.mocap_quat[:] = model.body_quat[self._mocap] if states.mocap_quat is None else states.mocap_quat[frame]
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_camlight(model, data)
        mujoco.mj_flex(model, data)
        mujoco.mj_tendon(model, data)

    def _field(self, name: str) -> NDArray:
        value = getattr(self.model, name, None)
        if not isinstance(value, np.ndarray):
            arrays = [field for field in dir(self.model) if isinstance(getattr(self.model, field), np.ndarray)]
            raise UnknownNameError("model field", name, arrays)
        if name.startswith(_FIXED_PREFIXES) and name not in _LOADED_ONCE:
            raise InputError(
                f"Model field {name} is fixed when a renderer is opened. Compile the variants into the model and "
                "choose between them, as with geom_matid and a texture pool."
            )
        return value
