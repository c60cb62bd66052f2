"""Compute the objects of every world from a parameter table, for a compiled scene."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from functools import cached_property

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.params import ParamTable
from twinloop.twin.scene_build import SceneLayout, SceneSlot, add_geoms
from twinloop.twin.scene_spec import SceneSpec
from twinloop.twin.spec import ParamSpec

# Model fields that define a shape: of its geoms, and of its body.
_GEOM = (
    "geom_type",
    "geom_dataid",
    "geom_size",
    "geom_pos",
    "geom_quat",
    "geom_rbound",
    "geom_aabb",
    "geom_rgba",
    "geom_condim",
)
_BODY = ("body_mass", "body_inertia", "body_ipos", "body_iquat")
_MASKS = ("geom_contype", "geom_conaffinity")


@dataclass(frozen=True, kw_only=True)
class SceneSlots:
    """Object slots of a compiled model, and the choice of their shapes by parameters."""

    layout: SceneLayout
    model: mujoco.MjModel

    @property
    def spec(self) -> SceneSpec:
        """The twin's ``scene:`` section."""
        return self.layout.spec

    @cached_property
    def bodies(self) -> NDArray[np.intp]:
        """Body id of every slot, ``(nslot,)``."""
        return np.array([self.model.body(slot.body).id for slot in self.layout.slots], dtype=np.intp)

    @cached_property
    def qpos(self) -> NDArray[np.intp]:
        """Index in qpos of the first coordinate of every slot, ``(nslot,)``."""
        return self.model.jnt_qposadr[self.model.body_jntadr[self.bodies]].astype(np.intp)

    @cached_property
    def clutter(self) -> list[int]:
        """Indices of the slots that may be empty."""
        return [i for i, slot in enumerate(self.layout.slots) if slot.group]

    @property
    def occluded_objects(self) -> list[str]:
        """Names of the objects that clutter occludes, sorted."""
        return sorted({clutter.occlude.object for clutter in self.spec.clutter.values() if clutter.occlude})

    def occupied_mask(self, table: ParamTable) -> NDArray[np.bool_]:
        """Return the mask of slots that are not empty, ``(nworld, nslot)``."""
        there = np.ones((table.nworld, len(self.layout.slots)), dtype=bool)
        for name, clutter in self.spec.clutter.items():
            count = _integer_values(table, f"scene/{name}/count", clutter.count[1])
            for order, slot in enumerate(self.layout.slots_of_group(name)):
                there[:, slot] = order < count
        return there

    def shape_indices(self, table: ParamTable) -> NDArray[np.int64]:
        """Return the index of each slot's shape in its set, ``(nworld, nslot)``; 0 for an empty slot."""
        columns = [
            _integer_values(table, f"scene/{slot.body}/shape", len(slot.shapes) - 1) for slot in self.layout.slots
        ]
        chosen = np.stack(columns, axis=1) if columns else np.zeros((table.nworld, 0), dtype=np.int64)
        return np.where(self.occupied_mask(table), chosen, 0)

    def shape_attribute(self, table: ParamTable, attribute: str) -> NDArray[np.float64]:
        """Return ``radius`` (bounding, m) or ``extents`` of the shape in each slot, ``(nworld, nslot, …)``."""
        choice = self.shape_indices(table)
        columns = [getattr(rows, attribute)[choice[:, i]] for i, rows in enumerate(self._rows)]
        return np.stack(columns, axis=1)

    def shape_names(self, table: ParamTable, world: int) -> list[str]:
        """Return the names of the shapes in a world."""
        there, choice = self.occupied_mask(table)[world], self.shape_indices(table)[world]
        return [slot.shapes[choice[i]].name for i, slot in enumerate(self.layout.slots) if there[i]]

    def write_inplace(
        self, arrays: dict[str, NDArray], table: ParamTable, *, visual: bool, always: Container[str] = ()
    ) -> bool:
        """Write the objects of every world into ``arrays``, starting from the compiled model's fields.

        Returns:
            True if something was written, False if every world equals the compiled model.
        """
        there, choice = self.occupied_mask(table), self.shape_indices(table)
        written = self.clutter
        names = [f"scene/{self.layout.slots[i].group}/count" for i in written]
        if not there[:, written].any() and not any(name in always for name in names):
            return False
        for field in _GEOM if visual else (*_GEOM, *_MASKS, *_BODY, "body_gravcomp"):
            if field not in arrays:
                arrays[field] = np.repeat(getattr(self.model, field)[None], table.nworld, axis=0)
            for i in written:
                worlds = np.flatnonzero(there[:, i])
                self._rows[i].write_inplace(field, arrays[field], worlds, choice[worlds, i])
        return True

    @cached_property
    def _rows(self) -> list[_Rows]:
        catalogues = {slot.meshes: _compile_catalogue(slot) for slot in self.layout.slots}
        return [_Rows(self.model, slot, catalogues[slot.meshes], self.layout) for slot in self.layout.slots]

    def param_specs(self) -> list[ParamSpec]:
        """Return the declarations of the scene's parameters, with the ranges in its section."""
        specs: list[ParamSpec] = []
        for name, clutter in self.spec.clutter.items():
            low, high = clutter.count
            source = f"scene.clutter.{name} of the twin"
            specs.append(_integer_param(f"scene/{name}/count", low, high, source))
            slots = [self.layout.slots[i] for i in self.layout.slots_of_group(name)]
            specs += [_integer_param(f"scene/{slot.body}/shape", 0, len(slot.shapes) - 1, source) for slot in slots]
        return specs


def _integer_param(name: str, low: int, high: int, source: str) -> ParamSpec:
    return ParamSpec(name=name, low=0.0, high=high + 1.0, range=(float(low), high + 1.0), source=source)


def _integer_values(table: ParamTable, name: str, most: int) -> NDArray[np.int64]:
    values = table.get(name, np.zeros(table.nworld))
    return np.minimum(np.floor(values).astype(np.int64), most)


class _Rows:
    """Rows of a slot in the model fields, and their values for each of its shapes, ``(nshape, …)``."""

    def __init__(self, model: mujoco.MjModel, slot: SceneSlot, catalogue: mujoco.MjModel, layout: SceneLayout) -> None:
        self._body = model.body(slot.body).id
        self._geoms = np.flatnonzero(model.geom_bodyid == self._body)
        self.extents = np.stack([shape.extents for shape in slot.shapes])
        self._values = {field: getattr(catalogue, field)[1:] for field in _BODY}
        owners = [np.flatnonzero(catalogue.geom_bodyid == 1 + i) for i in range(len(slot.shapes))]
        for field in _GEOM:
            self._values[field] = _pad_rows(getattr(catalogue, field), owners, len(self._geoms), _UNUSED[field])
        meshes = np.array([-1, *(model.mesh(catalogue.mesh(i).name).id for i in range(catalogue.nmesh))])
        self._values["geom_dataid"] = meshes[1 + self._values["geom_dataid"]]
        used = self._values["geom_rgba"][..., 3] > 0
        self._values["geom_contype"] = np.where(used, layout.contype, 0)
        self._values["geom_conaffinity"] = np.where(used, layout.conaffinity, 0)
        self._values["body_gravcomp"] = np.zeros(len(slot.shapes))
        reach = np.linalg.norm(self._values["geom_pos"], axis=-1) + self._values["geom_rbound"]
        self.radius = np.where(used, reach, 0.0).max(axis=1)

    def write_inplace(self, field: str, array: NDArray, worlds: NDArray[np.intp], choice: NDArray[np.int64]) -> None:
        """Write the slot's shape of some worlds into a field."""
        if field.startswith("geom_"):
            array[worlds[:, None], self._geoms] = self._values[field][choice]
        else:
            array[worlds, self._body] = self._values[field][choice]


_UNUSED: dict[str, object] = {
    "geom_type": int(mujoco.mjtGeom.mjGEOM_SPHERE),
    "geom_dataid": -1,
    "geom_size": (0.001, 0.0, 0.0),
    "geom_pos": (0.0, 0.0, 0.0),
    "geom_quat": (1.0, 0.0, 0.0, 0.0),
    "geom_rbound": 0.001,
    "geom_aabb": (0.0, 0.0, 0.0, 0.001, 0.001, 0.001),
    "geom_rgba": (0.0, 0.0, 0.0, 0.0),
    "geom_condim": 3,
}


def _pad_rows(values: NDArray, owners: list[NDArray[np.intp]], width: int, unused: object) -> NDArray:
    """Return each shape's geom rows ``(nshape, width, …)``, filled up with rows of an unused geom."""
    rows = np.empty((len(owners), width, *values.shape[1:]), dtype=values.dtype)
    rows[:] = unused
    for row, owner in zip(rows, owners, strict=True):
        row[: len(owner)] = values[owner]
    return rows


def _compile_catalogue(slot: SceneSlot) -> mujoco.MjModel:
    """Return a model in which every shape of a slot is a separate body, to read its geometry and inertia."""
    spec = mujoco.MjSpec()
    for index, shape in enumerate(slot.shapes):
        body = spec.worldbody.add_body()
        body.add_freejoint()
        add_geoms(body, spec, shape, index, slot.meshes)
    return spec.compile()
