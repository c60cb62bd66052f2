"""Create the parameters of a twin from their declarations, and check parameter values against their bounds."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NoReturn

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import BoundsError, InputError, UnknownNameError
from twinloop.twin.places import ROOM
from twinloop.twin.quantities import (
    QUANTITIES,
    Quantity,
    find_members,
    find_quantities,
    find_rows,
    has_quantity,
    nominal_value,
    split_path,
)
from twinloop.twin.quantities.typical import distance_per_angle, joint_of
from twinloop.twin.quantities.world import RESIDUAL_ACTION, RESIDUAL_DISTURBANCE
from twinloop.twin.residual_spec import ResidualSpec
from twinloop.twin.spec import ParamSpec, TwinSpec

_JOINT_FAMILIES = ("joint", "sensor", "actuator")
_UP_TO = 2.0  # default range of a quantity whose nominal value is 0, in typical values; our choice


@dataclass(frozen=True, kw_only=True)
class Param:
    """A named physical parameter of one twin, in SI units.

    Attributes:
        name: Full name, for example ``joint/elbow_flex/frictionloss``.
        unit: SI unit; "1" if the parameter is dimensionless.
        nominal: Value in the twin's files.
        low: Lower physical bound.
        high: Upper physical bound.
        transform: Scale on which fits and draws treat the parameter: linear (``identity``) or logarithmic (``log``).
        scope: How often a randomization draws a new value: per run, per episode or per control step.
        quantity: Declaration of the kind of parameter.
        target: Name of the model's object, for example ``elbow_flex``.
        typical: Typical value for the size of its joint, see `Quantity.typical`; 0 if the quantity has none.
        spread_factor: Factor on a prior's spread in rad: 1, or for a slide see `typical.distance_per_angle`.
        default_range: Lower and upper limit of the default randomization, as ``op`` defines; None if there is no
            default.
        op: Meaning of ``default_range``: ``absolute`` values, factors on the nominal value (``scale``), or values added
            to the nominal value (``add``).
        source: Reason for the range.
    """

    name: str
    unit: str
    nominal: float
    low: float
    high: float
    transform: Literal["identity", "log"]
    scope: Literal["run", "episode", "step"]
    quantity: Quantity
    target: str
    typical: float
    spread_factor: float
    default_range: tuple[float, float] | None
    op: Literal["absolute", "scale", "add"]
    source: str

    def absolute(self, values: ArrayLike, op: str) -> NDArray[np.float64]:
        """Convert values that are relative to the nominal value to absolute values.

        Args:
            values: Values of any shape.
            op: Meaning of the values: ``absolute``, factors on the nominal value (``scale``), or values added to the
                nominal value (``add``).
        """
        values = np.asarray(values, dtype=np.float64)
        return {"absolute": values, "scale": values * self.nominal, "add": values + self.nominal}[op]

    def check(self, values: ArrayLike, *, where: str = "") -> None:
        """Raise an error for values that are not finite or outside the physical bounds.

        Args:
            values: Absolute values in SI units, of any shape.
            where: Origin of the values, for the error message.

        Raises:
            BoundsError: If a value is invalid; the message names the parameter, the value, the bounds and the unit.
        """
        values = np.asarray(values, dtype=np.float64)
        wrong = ~(np.isfinite(values) & (values >= self.low) & (values <= self.high))
        if wrong.any():
            place, unit = f" in {where}" if where else "", "" if self.unit == "1" else f" {self.unit}"
            raise BoundsError(
                f"{self.name} = {values[wrong].flat[0]:g}{unit}{place} is outside its physical bounds "
                f"[{self.low:g}, {self.high:g}]{unit}. Choose values inside, or widen the bounds in the twin."
            )


def expand_params(
    model: mujoco.MjModel, specs: Iterable[ParamSpec], *, where: str, nominals: Mapping[str, float] | None = None
) -> dict[str, Param]:
    """Return the parameters of a model by name, from declarations whose names may contain ``*``.

    A name with ``*`` is expanded over the objects in the model's order, and skips objects that lack the quantity (see
    `quantities.has_quantity`). A later declaration replaces an earlier one of the same parameter.

    Args:
        model: Compiled model.
        specs: Declarations of parameters.
        where: Name of the twin or its file, for error messages.
        nominals: Nominal values that are not in the model, by parameter name (see `servos.preset_nominals`).

    Raises:
        UnknownNameError: If a quantity or an object does not exist.
        InputError: If an object lacks the quantity, or if two parameters would write the same model field.
        BoundsError: If a nominal value or range is outside the bounds, or if the bounds are impossible.
    """
    declared: dict[str, tuple[Quantity, str, ParamSpec]] = {}
    given = nominals or {}
    for spec in specs:
        family, target, quantity_name = split_path(spec.name)
        kinds = find_quantities(family, quantity_name)
        if not kinds:
            raise UnknownNameError("parameter", spec.name, [q.path() for q in QUANTITIES], where=where)
        chosen = [
            (kind, name)
            for kind in kinds
            for name in fnmatch.filter(find_members(model, kind), target)
            if has_quantity(model, kind, name)
            and (not kind.nominal_outside_model or spec.nominal is not None or kind.path(name) in given)
        ]
        if not chosen and "*" not in target:
            _raise_missing_quantity(model, kinds, target, where=f"{where} ({spec.name})")
        declared |= {kind.path(name): (kind, name, spec) for kind, name in chosen}
    params: dict[str, Param] = {}
    for kind, name, spec in declared.values():
        _check_nominal(model, kind, name, spec, where)
        _check_bounds(kind, name, spec, where)
        param = _make_param(model, kind, name, spec, given)
        param.check(param.nominal, where=f"{where} (nominal)")
        if param.default_range is not None:
            param.check(param.absolute(param.default_range, param.op), where=f"{where} (range)")
        params[param.name] = param
    _check_single_writer(model, params.values(), where)
    return params


def declared_params(
    spec: TwinSpec, *, scene: Iterable[ParamSpec] = (), sensors: Iterable[ParamSpec] = ()
) -> list[ParamSpec]:
    """Return the declarations of all parameters of a twin; a later one replaces an earlier one of the same parameter.

    Args:
        spec: Content of the twin's YAML.
        scene: Declarations of the objects of its scene.
        sensors: Declarations of its sensing devices.
    """
    rooms = [ParamSpec(name=ROOM, source="drawn only where `rooms` asks for it")] if spec.cameras else []
    return [*scene, *sensors, *residual_params(spec.residual), *rooms, *spec.params]


def residual_params(residual: ResidualSpec | None) -> list[ParamSpec]:
    """Return the declarations of the amplitudes of a residual, which a randomization draws from 0 to 1."""
    if residual is None:
        return []
    source = f"from none to all of it, so that no policy depends on it: {residual.source}"
    names = (RESIDUAL_ACTION, RESIDUAL_DISTURBANCE)
    return [ParamSpec(name=name, range=(0.0, 1.0), source=source) for name in names]


def _raise_missing_quantity(model: mujoco.MjModel, kinds: list[Quantity], target: str, *, where: str) -> NoReturn:
    names = [name for kind in kinds for name in find_members(model, kind)]
    if target not in names:
        raise UnknownNameError(kinds[0].family, target, names, where=where)
    reasons = [reason for kind in kinds if kind.lacks and (reason := kind.lacks(model, target))]
    why = "; ".join(reasons) or (
        "the model lacks its nominal value. Name a servo preset (robot.servo), robot.gears, or give a nominal"
    )
    raise InputError(f"{where}: {target} lacks that quantity: {why}. Change the twin, or remove the line.")


def _check_nominal(model: mujoco.MjModel, quantity: Quantity, name: str, spec: ParamSpec, where: str) -> None:
    """Raise `InputError` for a nominal value in the YAML that differs from the model, because it is not simulated.

    Args:
        model: Compiled model.
        quantity: Declaration of the kind of parameter.
        name: Name of the model's object.
        spec: Declaration of the parameter in the YAML.
        where: Name of the twin or its file, for error messages.
    """
    if spec.nominal is None or quantity.nominal_outside_model or not quantity.fields:
        return
    own = nominal_value(model, quantity, name)
    if not np.isclose(spec.nominal, own, rtol=1e-9, atol=0.0):
        raise InputError(
            f"{where}: {quantity.path(name)} has the nominal {spec.nominal:g} {quantity.unit} here and {own:g} in the "
            "model. Change the model (or robot.servo), or leave `nominal` out and give a range."
        )


def _check_bounds(quantity: Quantity, name: str, spec: ParamSpec, where: str) -> None:
    """Raise an error for impossible bounds, such as those of a negative mass or of a probability above 1.

    Args:
        quantity: Declaration of the kind of parameter.
        name: Name of the model's object.
        spec: Declaration of the parameter in the YAML, with its bounds.
        where: Name of the twin or its file, for error messages.
    """
    low = quantity.low if spec.low is None else spec.low
    high = quantity.high if spec.high is None else spec.high
    negative = quantity.low >= 0 > low
    beyond_one = quantity.unit == "1" and quantity.high == 1 < high
    if negative or beyond_one:
        raise BoundsError(
            f"{where}: {quantity.path(name)} has the bounds [{low:g}, {high:g}]. Values outside "
            f"[{quantity.low:g}, {quantity.high:g}] {quantity.unit} are physically impossible. Narrow the bounds."
        )


def _make_param(
    model: mujoco.MjModel, quantity: Quantity, name: str, spec: ParamSpec, given: Mapping[str, float]
) -> Param:
    nominal = spec.nominal if spec.nominal is not None else given.get(quantity.path(name))
    if nominal is None:
        nominal = nominal_value(model, quantity, name)
    joint = joint_of(model, quantity.family, name) if quantity.family in _JOINT_FAMILIES else -1
    typical = float(quantity.typical(model, joint)) if quantity.typical and joint >= 0 else 0.0
    default_range, op, source = spec.range, spec.op, spec.source
    usual = quantity.default_range
    if usual and op == usual.op == "scale" and default_range == (usual.low, usual.high) and not nominal and typical:
        default_range, op = (0.0, _UP_TO * typical), "absolute"
        source = (
            f"the nominal value is 0: up to {_UP_TO:g} times a typical value for the joint's torque limit and inertia"
        )
    return Param(
        name=quantity.path(name),
        unit=quantity.unit,
        nominal=nominal,
        low=quantity.low if spec.low is None else spec.low,
        high=quantity.high if spec.high is None else spec.high,
        transform=spec.transform or quantity.transform,
        scope=spec.scope,
        quantity=quantity,
        target=name,
        typical=typical,
        spread_factor=distance_per_angle(model, joint) if joint >= 0 and quantity.unit == "rad" else 1.0,
        default_range=default_range,
        op=op,
        source=source,
    )


def _check_single_writer(model: mujoco.MjModel, params: Iterable[Param], where: str) -> None:
    """Raise an error if two parameters assign the same model field, for example friction of an object and of its geom.

    Parameters that multiply a field are allowed in any number. Parameters of an object with the same compute function
    may change the same field, because the function combines them. An error is raised only if two of them have the same
    `Quantity.role`, that is, are alternatives.
    """
    writers: dict[tuple[str, int], dict[int | None, tuple[object, str]]] = {}
    roles: dict[tuple[object, str], str] = {}
    for param in params:
        other = roles.setdefault((_writer_key(param), param.quantity.role), param.name) if param.quantity.role else None
        if other and other != param.name:
            raise InputError(f"{where}: {other} and {param.name} set the same property. Keep one.")
        for field, row, column in _assigned_elements(model, param):
            columns = writers.setdefault((field, row), {})
            for other_column, (writer, name) in columns.items():
                if writer != _writer_key(param) and (column is None or other_column in (None, column)):
                    raise InputError(f"{where}: {name} and {param.name} both set {field}[{row}]. Keep one.")
            columns[column] = (_writer_key(param), param.name)


def _writer_key(param: Param) -> object:
    """Return a key that is equal for parameters of one object whose quantities have the same function ``compute``.

    Such a function computes model fields from all these parameters together, so they may change the same field (see
    `_check_single_writer`). Without a function, the key is the parameter's name.
    """
    compute = param.quantity.compute
    return (compute, param.quantity.family, param.target) if compute else param.name


def _assigned_elements(model: mujoco.MjModel, param: Param) -> Iterator[tuple[str, int, int | None]]:
    """Yield field name, row and column of every model field element that a parameter assigns.

    A column of None means all columns of the row.
    """
    assigned = [(slot.field, slot.column) for slot in param.quantity.slots if slot.rule == "assign"]
    for field, column in [*assigned, *((field, None) for field in param.quantity.writes)]:
        for row in find_rows(model, param.quantity, param.target, field):
            yield field, int(row), column
