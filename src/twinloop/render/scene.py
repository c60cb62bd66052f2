"""Keep a private copy of a model that takes fields and poses frame by frame, for renderers of MuJoCo structs."""

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
_BUILT_ANEW = frozenset({"tex_data", "geom_dataid"})


def camera_ids(model: mujoco.MjModel, cameras: Sequence[str] | None) -> dict[str, int]:
    """Return the ids of the named cameras, or of all cameras of the model when None.

    Raises:
        UnknownNameError: a camera that the model does not have.
        InputError: no camera at all.
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
    """Disable the compiler's shortcut for geoms whose pose in their body has changed.

    The compiler marks geoms that are aligned with their body, and their own pose is then ignored; ``mj_setConst``
    updates the marks in simulations, but nothing else of it is needed here.
    """
    moved = {"geom_pos", "geom_quat", "body_ipos", "body_iquat"} & set(fields)
    return {"geom_sameframe": np.zeros_like(model.geom_sameframe)} if moved else {}


class PosedScene:
    """A model copy and its data, moved from frame to frame; the given model is never changed."""

    def __init__(self, model: mujoco.MjModel) -> None:
        self.model = copy.copy(model)
        self.data = mujoco.MjData(self.model)
        self._compiled: dict[str, NDArray] = {}
        self._changing: dict[str, NDArray] = {}
        self._anew: set[str] = set()
        # mj_multiRay (MuJoCo 4.0) tests a body, and each of its colliding geoms, only if a ray hits their bounding
        # volume as compiled, and would miss geoms that are only visual or have changed shape. For bodies without a
        # hierarchy of volumes it tests every geom.
        self.model.body_bvhadr[:] = -1
        bodies = np.flatnonzero(model.body_mocapid >= 0)
        self._mocap = bodies[np.argsort(model.body_mocapid[bodies])]

    def set_fields(self, fields: Fields | None, frames: int = 1) -> None:
        """Write the fields that all frames share, and store those of single frames for `pose`.

        Earlier fields return to their compiled values.

        Raises:
            InputError: a field is unknown, is fixed once a renderer is open, or has neither its shape in the model nor
                that shape with a leading axis of ``frames``.
        """
        fields = fields or {}
        self._anew |= _BUILT_ANEW & {*self._compiled, *fields}
        for name, value in self._compiled.items():
            getattr(self.model, name)[...] = value
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
                target[...] = given

    def group_frames(self, names: Sequence[str], frames: int) -> list[NDArray[np.intp]]:
        """Return the frames in groups that have the same values of these fields."""
        rows = [self._changing[name].reshape(frames, -1) for name in names if name in self._changing]
        groups: dict[bytes, list[int]] = {}
        for frame in range(frames):
            groups.setdefault(b"".join(row[frame].tobytes() for row in rows), []).append(frame)
        return [np.array(group) for group in groups.values()]

    def changes_field(self, prefixes: tuple[str, ...]) -> bool:
        """Return whether any field that differs from the compiled model has one of these prefixes."""
        return any(name.startswith(prefixes) for name in self._compiled)

    def rows(self, name: str, frames: NDArray[np.intp]) -> NDArray:
        """Return a field in some frames ``(len(frames), …)``, or ``(1, …)`` if all frames share it."""
        if name in self._changing:
            return self._changing[name][frames]
        return getattr(self.model, name)[None].copy()

    def mocap_poses(
        self, states: SceneStates, frames: NDArray[np.intp]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return positions and quaternions of mocap bodies in some frames, ``(len(frames), nmocap, …)``."""
        places = []
        for given, own in ((states.mocap_pos, self.model.body_pos), (states.mocap_quat, self.model.body_quat)):
            still = np.broadcast_to(own[self._mocap], (len(frames), *own[self._mocap].shape))
            places.append(still if given is None else given[frames])
        return places[0], places[1]

    def pop_changed_data(self) -> set[str]:
        """Return the names of data that renderers build once (pixels, shapes) and that changed since the last call."""
        taken, self._anew = self._anew, set()
        return taken

    def check(self, states: SceneStates) -> None:
        """Refuse states of another model.

        Raises:
            InputError: a width that does not fit; the message has both widths.
        """
        if states.qpos.shape[1] != self.model.nq:
            raise InputError(
                f"The states have {states.qpos.shape[1]} positions per frame, the model has nq = {self.model.nq}. "
                "They belong to another twin."
            )
        for name in ("mocap_pos", "mocap_quat"):
            value = getattr(states, name)
            if value is not None and value.shape[1] != self.model.nmocap:
                raise InputError(f"{name} holds {value.shape[1]} bodies, the model has nmocap = {self.model.nmocap}.")

    def pose(self, states: SceneStates, frame: int) -> None:
        """Write a frame's own fields, and place bodies, geoms, sites, tendons, flexes, cameras and lights."""
        model, data = self.model, self.data
        for name, values in self._changing.items():
            getattr(model, name)[...] = values[frame]
        self._anew |= _BUILT_ANEW & self._changing.keys()
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
        if name.startswith(_FIXED_PREFIXES) and name not in _BUILT_ANEW:
            raise InputError(
                f"Model field {name} is fixed when a renderer is opened. Compile the variants into the model and "
                "choose between them, as with geom_matid and a texture pool."
            )
        return value
