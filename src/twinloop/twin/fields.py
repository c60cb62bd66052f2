"""From a parameter table to model fields: a pure function of the whole table, one writer per place."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.records import ParamTable
from twinloop.twin.params import Param
from twinloop.twin.quantities import Slot, rows
from twinloop.twin.textures import pool_indices


@dataclass(frozen=True, kw_only=True)
class FieldValues:
    """Per-world values of model fields, ``(nworld, *field shape)``; fields not named keep the model's values.

    ``set_const`` says that ``mj_setConst`` must run after they are written.
    """

    arrays: Mapping[str, NDArray]
    set_const: bool

    def write_inplace(self, model: mujoco.MjModel, world: int) -> None:
        """Write one world's values into a model, and its derived constants when they depend on them."""
        for field, values in self.arrays.items():
            owner, _, name = field.rpartition(".")
            if owner:  # "opt.gravity": vectors are written into, numbers are set
                nominal = getattr(model.opt, name)
                setattr(model.opt, name, values[world] if isinstance(nominal, np.ndarray) else values[world].item())
            else:
                getattr(model, name)[...] = values[world]
        if self.set_const:
            mujoco.mj_setConst(model, mujoco.MjData(model))


def field_values(
    model: mujoco.MjModel,
    params: Iterable[Param],
    table: ParamTable,
    *,
    visual: bool = False,
    always: Container[str] = (),
) -> FieldValues:
    """Values of every field that some world of ``table`` moves away from the model's own.

    Args:
        visual: write the quantities that only pictures show, instead of the physical ones.
        always: parameters whose fields are written even where no world moves them.
    """
    moved = [
        param
        for param in params
        if param.quantity.visual is visual
        and (param.quantity.slots or visual)
        and param.name in table
        and (param.name in always or np.any(table[param.name] != param.nominal))
    ]
    writer = _Writer(model, table)
    for rule in ("assign", "factor"):  # factors go on top of what was assigned
        for param in moved:
            for slot in param.quantity.slots:
                if slot.rule == rule:
                    writer.slot(param, slot)
    if visual:
        writer.cameras(moved)
        writer.textures(moved)
    return FieldValues(arrays=writer.arrays, set_const=any(param.quantity.set_const for param in moved))


class _Writer:
    def __init__(self, model: mujoco.MjModel, table: ParamTable) -> None:
        self.model, self.table = model, table
        self.arrays: dict[str, NDArray] = {}

    def field(self, name: str) -> NDArray:
        if name not in self.arrays:
            owner, _, field = name.rpartition(".")
            nominal = np.asarray(getattr(self.model.opt if owner else self.model, field))
            self.arrays[name] = np.repeat(nominal[None], self.table.nworld, axis=0)
        return self.arrays[name]

    def slot(self, param: Param, slot: Slot) -> None:
        index = rows(self.model, param.quantity, param.target, slot.field)
        values = self.table[param.name]
        field = self.field(slot.field)
        target = field[:, index] if slot.column is None else field[:, index, slot.column]
        shape = (len(values),) + (1,) * (target.ndim - 1)
        if slot.rule == "factor":
            target = target * (values / param.nominal).reshape(shape)
        else:
            target = np.broadcast_to((values * slot.factor).reshape(shape), target.shape)
        if slot.column is None:
            field[:, index] = target
        else:
            field[:, index, slot.column] = target

    def cameras(self, moved: Iterable[Param]) -> None:
        """Offsets of position and orientation in the camera's own frame (x right, y up, looking along −z)."""
        for camera in {param.target for param in moved if param.name.startswith("camera/")}:
            index = self.model.camera(camera).id
            shift, turn = self._vector(camera, "position"), self._vector(camera, "rotation")
            position, quaternion = self.model.cam_pos[index], self.model.cam_quat[index]
            for world in range(self.table.nworld):
                moved_by, turned_by, combined = np.empty(3), np.empty(4), np.empty(4)
                mujoco.mju_rotVecQuat(moved_by, shift[world], quaternion)
                angle = float(np.linalg.norm(turn[world]))
                axis = turn[world] / angle if angle > 0 else np.array([1.0, 0.0, 0.0])
                mujoco.mju_axisAngle2Quat(turned_by, axis, angle)
                mujoco.mju_mulQuat(combined, quaternion, turned_by)
                self.field("cam_pos")[world, index] = position + moved_by
                self.field("cam_quat")[world, index] = combined

    def _vector(self, camera: str, kind: str) -> NDArray[np.float64]:
        names = [f"camera/{camera}/{kind}/{axis}" for axis in "xyz"]
        zero = np.zeros(self.table.nworld)
        return np.stack([self.table.get(name, zero) for name in names], axis=-1)

    def textures(self, moved: Iterable[Param]) -> None:
        """Index 0 keeps the material; index i > 0 shows the i-th of the pool (see `twin.textures`)."""
        pool = pool_indices(self.model)
        for param in (p for p in moved if p.quantity.family == "texture"):
            material = self.model.material(param.target).id
            geoms = np.flatnonzero(self.model.geom_matid == material)
            choice = self.table[param.name].astype(int)
            for index in np.flatnonzero((choice > 0) & (len(pool) > 0)):
                self.field("geom_matid")[index, geoms] = pool[(choice[index] - 1) % len(pool)]
