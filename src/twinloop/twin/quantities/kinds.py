"""What a kind of parameter is: its path, unit, bounds, and where it is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

# Who consumes a quantity: the compiled model, or a stage of the simulation, of the readings or of the reset.
Stage = Literal["model", "command", "clock", "drive", "disturbance", "encoder", "reset", "scene", "sensing"]
Rule = Literal["assign", "factor"]
DeviceKind = Literal["camera", "depth", "lidar", "imu", "force_torque", "servo"]


class Target(Protocol):
    """One thing of a model, in those worlds where some parameter of it is not nominal.

    A computed quantity reads the values of its group there, ``(n,)`` over those worlds, and puts model fields. Every
    other world keeps the model's own bits.
    """

    @property
    def model(self) -> mujoco.MjModel:
        """The compiled model, not to be written to."""
        ...

    @property
    def name(self) -> str:
        """The thing's name, or the member of a quantity that no object of the model has."""
        ...

    def value(self, quantity: str) -> NDArray[np.float64]:
        """Values of one quantity of this thing, nominal where it is not a parameter, ``(n,)``."""
        ...

    def vector(self, stem: str, parts: str = "xyz") -> NDArray[np.float64]:
        """Values of ``stem/x``, ``stem/y``, ``stem/z``, ``(n, 3)``, or of other parts with names of one letter."""
        ...

    def rows(self, field: str) -> NDArray[np.intp]:
        """Rows of a model field that belong to this thing."""
        ...

    def put(self, field: str, rows: ArrayLike, values: NDArray) -> None:
        """Write ``values`` ``(n, len(rows), …)``; the rows of an ``opt.`` field are the numbers of its vector.

        Nothing is written to a field that none of the moved parameters changes.
        """
        ...


Compute = Callable[[Target], None]


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One MjModel field a quantity is written to: column (None: all), and the factor from SI to the field's unit.

    A place in a field has one quantity that assigns it; quantities with the rule ``factor`` multiply what was assigned.
    """

    field: str
    column: int | None = None
    factor: float = 1.0
    rule: Rule = "assign"


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A kind of parameter.

    ``slots`` are written by the rule of each (``assign``: value · factor; ``factor``: the nominal field times
    value / nominal value). What no slot can say is a ``compute`` with the fields it ``writes``: all quantities of a
    thing that share it are one group, computed together, and at the nominal values it yields the model's own. Two
    quantities of a group that play the same ``role`` exclude each other.

    ``nominal`` reads the model's value where that is neither ``default`` nor a slot. ``lacks`` says why a thing does
    not have the quantity, or nothing. ``stage`` says who consumes it when it is no model field. ``set_const`` says
    that constants derived by ``mj_setConst`` change with it. ``visual`` says that only pictures change, ``seen`` that
    pictures do as well as motion. ``member`` is the one thing that has it where that is not an object of the model
    (``timing/command/jitter``), ``device`` the kind of sensing device that has it where one does.
    ``meaning`` is the line in the table of parameters.
    """

    family: str
    quantity: str
    member: str = ""
    unit: str
    low: float
    high: float
    slots: tuple[Slot, ...] = ()
    compute: Compute | None = None
    writes: tuple[str, ...] = ()
    role: str = ""
    default: float | None = None
    nominal: Callable[[mujoco.MjModel, str], float] | None = None
    lacks: Callable[[mujoco.MjModel, str], str] | None = None
    transform: Literal["identity", "log"] = "identity"
    stage: Stage = "model"
    set_const: bool = False
    given: bool = False  # no model holds its nominal value: a servo preset or the twin's YAML gives it
    visual: bool = False
    seen: bool = False
    device: DeviceKind | Literal[""] = ""
    meaning: str = ""

    def path(self, name: str = "*") -> str:
        """The parameter's name for one object, or for all."""
        name = self.member or name
        return f"{self.family}/{name}/{self.quantity}" if self.quantity else f"{self.family}/{name}"

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """The model fields that it changes."""
        return tuple(dict.fromkeys([*(slot.field for slot in self.slots), *self.writes]))


def assign(field: str, column: int | None = None, factor: float = 1.0) -> tuple[Slot, ...]:
    """One field that takes the value as it is, times ``factor``."""
    return (Slot(field=field, column=column, factor=factor),)


def reported(
    device: DeviceKind, quantity: str, unit: str, low: float, high: float, default: float, meaning: str
) -> Quantity:
    """What a sensing device of some kind makes of the truth; the default is an ideal one's."""
    return Quantity(
        family="sensor",
        device=device,
        quantity=quantity,
        unit=unit,
        low=low,
        high=high,
        default=default,
        stage="sensing",
        meaning=meaning,
    )
