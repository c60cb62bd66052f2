"""Compute which objects of a scene exist in every world and their shapes, from a parameter table."""

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
    """The objects of a compiled scene; parameters select how many of them exist in a world and their shapes.

    A slot is a free body of the model that takes the shape of one object, or is empty.

    Attributes:
        layout: Slots and collision settings of the scene.
        model: Compiled model that contains the slots.
    """

    layout: SceneLayout
    model: mujoco.MjModel

    @property
    def spec(self) -> SceneSpec:
        """The ``scene:`` section of the twin's YAML."""
        return self.layout.spec

    @cached_property
    def bodies(self) -> NDArray[np.intp]:
        """Body id of every slot (free body that contains one object or is empty), shape ``(nslot,)``."""
        return np.array([self.model.body(slot.body).id for slot in self.layout.slots], dtype=np.intp)

    @cached_property
    def qpos(self) -> NDArray[np.intp]:
        """Index in ``qpos`` of the first of a slot's seven coordinates, for every slot, shape ``(nslot,)``."""
        return self.model.jnt_qposadr[self.model.body_jntadr[self.bodies]].astype(np.intp)

    @cached_property
    def clutter(self) -> list[int]:
        """Indices in ``layout.slots`` of the slots for random objects (clutter), which may be empty in a world."""
        return [i for i, slot in enumerate(self.layout.slots) if slot.group]

    @property
    def occluded_objects(self) -> list[str]:
        """Names of the objects that the twin's YAML declares as partly hidden by clutter (``occlude``), sorted."""
        return sorted({clutter.occlude.object for clutter in self.spec.clutter.values() if clutter.occlude})

    def occupied_mask(self, table: ParamTable) -> NDArray[np.bool_]:
        """Return which slots contain an object, shape ``(nworld, nslot)``."""
        occupied = np.ones((table.nworld, len(self.layout.slots)), dtype=bool)
        for name, clutter in self.spec.clutter.items():
            count = _integer_values(table, f"scene/{name}/count", clutter.count[1])
            for order, slot in enumerate(self.layout.slots_of_group(name)):
                occupied[:, slot] = order < count
        return occupied

    def shape_indices(self, table: ParamTable) -> NDArray[np.int64]:
        """Return the index of each slot's shape in its list of shapes, ``(nworld, nslot)``; 0 for an empty slot."""
        columns = [
            _integer_values(table, f"scene/{slot.body}/shape", len(slot.shapes) - 1) for slot in self.layout.slots
        ]
        chosen = np.stack(columns, axis=1) if columns else np.zeros((table.nworld, 0), dtype=np.int64)
        return np.where(self.occupied_mask(table), chosen, 0)

    def shape_attribute(self, table: ParamTable, attribute: str) -> NDArray[np.float64]:
        """Return a length of the shape in each slot, in m.

        Args:
            table: Parameter table of the worlds.
            attribute: ``radius`` of the bounding sphere about the body's origin, or ``extents`` of the bounding box.

        Returns:
            The values, shape ``(nworld, nslot)`` for ``radius`` and ``(nworld, nslot, 3)`` for ``extents``.
        """
        choice = self.shape_indices(table)
        columns = [getattr(rows, attribute)[choice[:, i]] for i, rows in enumerate(self._rows)]
        return np.stack(columns, axis=1)

    def shape_names(self, table: ParamTable, world: int) -> list[str]:
        """Return the names of the shapes that exist in one world, in the order of the slots.

        Args:
            table: Parameter table of the worlds.
            world: Index of the world.
        """
        occupied, choice = self.occupied_mask(table)[world], self.shape_indices(table)[world]
        return [slot.shapes[choice[i]].name for i, slot in enumerate(self.layout.slots) if occupied[i]]

    def write_inplace(
        self, arrays: dict[str, NDArray], table: ParamTable, *, visual: bool, always: Container[str] = ()
    ) -> bool:
        """Write the clutter objects of every world into arrays of model fields.

        Args:
            arrays: Arrays by field name, shape ``(nworld, *field shape)``, changed in place. A missing array is added
                with the values of the compiled model.
            table: Parameter table of the worlds.
            visual: If true, write only the fields that images need; otherwise also masses, inertias and collision
                settings.
            always: Names of parameters. If the count of a clutter group is among them, fields are written even if no
                world has a clutter object.

        Returns:
            True if something was written, False if every world equals the compiled model.
        """
        occupied, choice = self.occupied_mask(table), self.shape_indices(table)
        slots = self.clutter
        names = [f"scene/{self.layout.slots[i].group}/count" for i in slots]
        if not occupied[:, slots].any() and not any(name in always for name in names):
            return False
        for field in _GEOM if visual else (*_GEOM, *_MASKS, *_BODY, "body_gravcomp"):
            if field not in arrays:
                arrays[field] = np.repeat(getattr(self.model, field)[None], table.nworld, axis=0)
            for i in slots:
                worlds = np.flatnonzero(occupied[:, i])
                self._rows[i].write_inplace(field, arrays[field], worlds, choice[worlds, i])
        return True

    @cached_property
    def _rows(self) -> list[_Rows]:
        catalogues = {slot.meshes: _compile_catalogue(slot) for slot in self.layout.slots}
        return [_Rows(self.model, slot, catalogues[slot.meshes], self.layout) for slot in self.layout.slots]

    def param_specs(self) -> list[ParamSpec]:
        """Return the declarations of the scene's parameters: object counts and shapes of the clutter groups.

        Their ranges are those of the ``scene:`` section of the twin's YAML.
        """
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
    """Model field values of one scene slot (free body) for each of its possible shapes.

    Args:
        model: Compiled model that contains the slot.
        slot: The slot with its possible shapes.
        catalogue: Compiled model that only has one body for each possible shape, see `_compile_catalogue`.
        layout: Layout of the scene, with the collision settings.
    """

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
        """Write the values of one model field that give the slot its selected object shape, in some worlds.

        Args:
            field: Name of the model field, for example ``geom_size``.
            array: Values of the field, shape ``(nworld, *field shape)``, changed in place.
            worlds: Indices of the worlds, shape ``(k,)``.
            choice: Index of the shape in each of these worlds, shape ``(k,)``.
        """
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
    """Return the values of one geom field for the geoms of each shape, padded to the same number of geoms.

    Args:
        values: Values of one geom field in a model that contains all shapes.
        owners: For each shape, the ids of its geoms in that model.
        width: Number of rows per shape in the result.
        unused: Value of the field for the padding: an invisible geom without collisions.

    Returns:
        The rows, shape ``(nshape, width, …)``.
    """
    rows = np.empty((len(owners), width, *values.shape[1:]), dtype=values.dtype)
    rows[:] = unused
    for row, owner in zip(rows, owners, strict=True):
        row[: len(owner)] = values[owner]
    return rows


def _compile_catalogue(slot: SceneSlot) -> mujoco.MjModel:
    """Return a model in which every possible shape of a scene slot (body with exchangeable shape) is a separate body.

    Geometry and inertia of the shapes are read from this model.
    """
    spec = mujoco.MjSpec()
    for index, shape in enumerate(slot.shapes):
        body = spec.worldbody.add_body()
        body.add_freejoint()
        add_geoms(body, spec, shape, index, slot.meshes)
    return spec.compile()
