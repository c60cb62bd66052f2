"""Compute MuJoCo model fields of many worlds from a parameter table.

Every element of a field is set by at most one parameter, or by one group of parameters that are computed together.
Parameters that are factors may multiply it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.params import ParamTable
from twinloop.twin.params import Param
from twinloop.twin.quantities import FieldSlot, find_quantities, find_rows, model_field, nominal_value
from twinloop.twin.quantities.kinds import Compute


@dataclass(frozen=True, kw_only=True)
class FieldValues:
    """Values of model fields in every world; fields that are not included keep the model's values.

    Attributes:
        arrays: Values by field name, shape ``(nworld, *field shape)``. The names are those of ``mujoco.MjModel``, or
            ``opt.NAME`` for a field of ``model.opt``.
        set_const: Whether ``mj_setConst`` must run after the fields are written, because derived constants depend on
            them.
    """

    arrays: Mapping[str, NDArray]
    set_const: bool

    def write_inplace(self, model: mujoco.MjModel, world: int) -> None:
        """Write the values of one world into a model, and update the derived constants that depend on them.

        Args:
            model: Compiled model, changed in place.
            world: Index of the world in the arrays.
        """
        for field, values in self.arrays.items():
            owner, _, name = field.rpartition(".")
            if owner:  # "opt.gravity": vectors are written in place, numbers are assigned
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
    """Return the values of every model field that a parameter changes in some world of a table.

    Args:
        model: Compiled model with the nominal values.
        params: Parameters of the twin.
        table: Parameter values of the worlds.
        visual: If true, compute the fields that affect images instead of those that affect motion. Sizes of objects are
            in both.
        always: Names of parameters whose fields are included even if no world changes them, for example because earlier
            worlds of a reused model have changed them.
    """
    changed = [
        param
        for param in params
        if (param.quantity.visual or (visual and param.quantity.also_visual)) is visual
        and param.quantity.fields
        and param.name in table
        and (param.name in always or np.any(table[param.name] != param.nominal))
    ]
    writer = _FieldWriter(model, table)
    for param, slot in _find_slots(changed, "assign"):
        writer.slot(param, slot)
    for compute, group in _group_params(changed):
        compute(_Target(writer, group))
    for param, slot in _find_slots(changed, "factor"):  # factors multiply assigned values
        writer.slot(param, slot)
    return FieldValues(arrays=writer.arrays, set_const=any(param.quantity.set_const for param in changed))


def find_coupled_params(params: Iterable[Param], names: Container[str]) -> list[Param]:
    """Return the parameters that must be computed together with the named parameters, because they share a model field.

    These are the named parameters, all parameters that change one of the same fields, and so on. Parameters that change
    no model field are omitted.

    Args:
        params: Parameters of the twin.
        names: Names of the parameters to start from.
    """
    candidates = [param for param in params if param.quantity.fields]
    chosen = [param for param in candidates if param.name in names]
    fields = {field for param in chosen for field in param.quantity.fields}
    while True:
        coupled = [param for param in candidates if fields & set(param.quantity.fields)]
        fields |= {field for param in coupled for field in param.quantity.fields}
        if len(coupled) == len(chosen):
            return coupled
        chosen = coupled


def _find_slots(params: Iterable[Param], rule: str) -> Iterable[tuple[Param, FieldSlot]]:
    return ((param, slot) for param in params for slot in param.quantity.slots if slot.rule == rule)


def _group_params(params: Iterable[Param]) -> Iterable[tuple[Compute, list[Param]]]:
    """Yield each compute function with the parameters that it computes together, which belong to one object."""
    groups: dict[tuple[Compute, str, str], list[Param]] = {}
    for param in params:
        if param.quantity.compute:
            groups.setdefault((param.quantity.compute, param.quantity.family, param.target), []).append(param)
    return ((compute, group) for (compute, _, _), group in groups.items())


class _FieldWriter:
    def __init__(self, model: mujoco.MjModel, table: ParamTable) -> None:
        self.model, self.table = model, table
        self.arrays: dict[str, NDArray] = {}

    def field(self, name: str) -> NDArray:
        if name not in self.arrays:
            self.arrays[name] = np.repeat(model_field(self.model, name)[None], self.table.nworld, axis=0)
        return self.arrays[name]

    def slot(self, param: Param, slot: FieldSlot) -> None:
        index = find_rows(self.model, param.quantity, param.target, slot.field)
        values = self.table[param.name]
        field = self.field(slot.field)
        if slot.field.startswith("opt."):
            field = field[:, None]  # options have no rows
        place = (slice(None), index) if slot.column is None else (slice(None), index, slot.column)
        shape = (len(values),) + (1,) * (field.ndim - len(place) + 1)
        if slot.rule == "factor":
            field[place] *= (values / param.nominal).reshape(shape)
        else:
            field[place] = (values * slot.factor).reshape(shape)


class _Target:
    """Argument of `Quantity.compute`: gives the parameter values of one object and takes its computed model fields.

    It has the interface `quantities.kinds.ObjectWriter`.

    Args:
        writer: Writer with the model, the parameter table and the computed fields.
        group: Parameters of the object that share a compute function.
    """

    def __init__(self, writer: _FieldWriter, group: list[Param]) -> None:
        self._writer, self._kind, self.name = writer, group[0].quantity, group[0].target
        self._fields = {field for param in group for field in param.quantity.writes}
        for field in sorted(self._fields):
            writer.field(field)
        changed = np.any([writer.table[param.name] != param.nominal for param in group], axis=0)
        self._worlds = np.flatnonzero(changed)

    @property
    def model(self) -> mujoco.MjModel:
        return self._writer.model

    def value(self, quantity: str) -> NDArray[np.float64]:
        kind = next(kind for kind in find_quantities(self._kind.family, quantity) if kind.member == self._kind.member)
        name, table = kind.path(self.name), self._writer.table
        if name in table:
            return table[name][self._worlds]
        return np.full(len(self._worlds), nominal_value(self.model, kind, self.name))

    def vector(self, stem: str, parts: str = "xyz") -> NDArray[np.float64]:
        return np.stack([self.value(f"{stem}/{part}") for part in parts], axis=-1)

    def rows(self, field: str) -> NDArray[np.intp]:
        return find_rows(self.model, self._kind, self.name, field)

    def write_field(self, field: str, rows: ArrayLike, values: NDArray) -> None:
        if field in self._fields:
            self._writer.field(field)[self._worlds[:, None], np.asarray(rows)] = values
