"""Compute model fields from a parameter table; each field element has one writer."""

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
    """Per-world values of model fields, ``(nworld, *field shape)``; other fields keep the model's values.

    ``set_const`` means that ``mj_setConst`` must run after they are written.
    """

    arrays: Mapping[str, NDArray]
    set_const: bool

    def write_inplace(self, model: mujoco.MjModel, world: int) -> None:
        """Write one world's values into a model, and update derived constants that depend on them."""
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
    """Return the values of every field that differs from the model in some world of ``table``.

    Args:
        visual: compute the fields that affect images, instead of those that affect motion; sizes affect both.
        always: parameters whose fields are written even if no world changes them.
    """
    moved = [
        param
        for param in params
        if (param.quantity.visual or (visual and param.quantity.seen)) is visual
        and param.quantity.fields
        and param.name in table
        and (param.name in always or np.any(table[param.name] != param.nominal))
    ]
    writer = _FieldWriter(model, table)
    for param, slot in _find_slots(moved, "assign"):
        writer.slot(param, slot)
    for compute, group in _group_params(moved):
        compute(_Target(writer, group))
    for param, slot in _find_slots(moved, "factor"):  # factors multiply assigned values
        writer.slot(param, slot)
    return FieldValues(arrays=writer.arrays, set_const=any(param.quantity.set_const for param in moved))


def find_coupled_params(params: Iterable[Param], names: Container[str]) -> list[Param]:
    """Return the named parameters and all others that change the same fields, directly or through a third one."""
    rest = [param for param in params if param.quantity.fields]
    chosen = [param for param in rest if param.name in names]
    fields = {field for param in chosen for field in param.quantity.fields}
    while True:
        near = [param for param in rest if fields & set(param.quantity.fields)]
        fields |= {field for param in near for field in param.quantity.fields}
        if len(near) == len(chosen):
            return near
        chosen = near


def _find_slots(params: Iterable[Param], rule: str) -> Iterable[tuple[Param, FieldSlot]]:
    return ((param, slot) for param in params for slot in param.quantity.slots if slot.rule == rule)


def _group_params(params: Iterable[Param]) -> Iterable[tuple[Compute, list[Param]]]:
    """Yield each compute function with the parameters of one object that it computes together."""
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
    """The object of one parameter group, as `quantities.kinds.WriteTarget`."""

    def __init__(self, writer: _FieldWriter, group: list[Param]) -> None:
        self._writer, self._kind, self.name = writer, group[0].quantity, group[0].target
        self._fields = {field for param in group for field in param.quantity.writes}
        for field in sorted(self._fields):
            writer.field(field)
        moves = np.any([writer.table[param.name] != param.nominal for param in group], axis=0)
        self._worlds = np.flatnonzero(moves)

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
