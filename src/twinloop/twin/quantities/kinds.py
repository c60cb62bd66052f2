"""What a kind of parameter is: its path, unit, bounds, and where it is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Who consumes a quantity: the compiled model, or a stage of the simulation, of the readings or of the reset.
Stage = Literal["model", "command", "clock", "drive", "disturbance", "encoder", "reset"]
Rule = Literal["assign", "factor"]


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
    value / nominal value). ``stage`` says who consumes it when it is no model field. ``set_const`` says that
    constants derived by ``mj_setConst`` change with it, ``visual`` that only pictures do. ``member`` is the one thing
    that has it where that is not an object of the model (``timing/command/jitter``).
    """

    family: str
    quantity: str
    member: str = ""
    unit: str
    low: float
    high: float
    slots: tuple[Slot, ...] = ()
    default: float | None = None
    transform: Literal["identity", "log"] = "identity"
    stage: Stage = "model"
    set_const: bool = False
    visual: bool = False

    def path(self, name: str = "*") -> str:
        """The parameter's name for one object, or for all."""
        name = self.member or name
        return f"{self.family}/{name}/{self.quantity}" if self.quantity else f"{self.family}/{name}"


def assign(field: str, column: int | None = None, factor: float = 1.0) -> tuple[Slot, ...]:
    """One field that takes the value as it is, times ``factor``."""
    return (Slot(field=field, column=column, factor=factor),)
