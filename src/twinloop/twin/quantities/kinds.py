"""Physical effects that several quantities share: their names, in the order in which reports list them.

A quantity names its ``cause`` (of `CAUSES`), its ``term`` (of `TERMS`) and its ``fault`` (of `FAULTS`). One that is in
no list here comes last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Literal, Protocol

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

# What a person calls a cause.
CAUSES = (
    "servo gain",
    "torque limit",
    "delay",
    "command zero",
    "motor & supply",
    "damping",
    "dry friction",
    "gear",
    "springs & stops",
    "mass & inertia",
    "encoder",
    "contact",
    "rotors",
    "air",
    "gravity & mounting",
    "disturbances",
    "scene",
)

# Terms of the physics that can be switched off one by one, and what they mean.
TERMS: Mapping[str, str] = MappingProxyType(
    {
        "command delay": "commands reach the servos late",
        "command jitter and loss": "commands arrive unevenly or not at all",
        "command bias": "servos seek another angle than they were told",
        "control clock": "the loop is slow or unsteady",
        "reading delay": "readings are old when they are used",
        "encoder offset and scale": "joints report another angle than they have",
        "encoder noise and counts": "readings flicker and come in steps",
        "joint friction": "dry friction in the joints",
        "load friction": "friction that grows with a joint's torque",
        "backlash": "play of the gears",
        "joint damping": "damping other than the twin's",
        "rotor inertia": "rotor inertia other than the twin's",
        "servo stiffness": "servo gains other than the twin's",
        "torque limit": "torque limits and supply voltage other than the twin's",
        "supply sag": "the voltage falls under load",
        "motor heat": "windings are or become warm",
        "link masses": "link masses other than the twin's",
        "object mass": "mass, centre of mass and inertia of objects other than the twin's",
        "object friction": "friction of objects other than the twin's",
        "contact softness": "contacts softer or harder than the twin's",
        "object size": "objects larger or smaller than the twin's",
        "object place": "things lie elsewhere than in the twin",
        "approach angle": "objects are turned otherwise than in the twin",
        "table": "the table is higher or tilted",
        "gravity": "the room is tilted or gravity another",
        "air": "wind and drag",
        "pushes": "somebody pushes",
        "camera pose": "cameras stand elsewhere than in the twin",
        "camera chain": "pictures pass through another camera than the twin's",
        "camera delay": "pictures are late or lost",
        "light": "light other than the twin's",
        "surfaces": "colours and textures other than the twin's",
    }
)

# What may be wrong with a robot's drives; the monitor's regressions keep this order.
FAULTS = ("friction", "latency", "gain", "load", "play")


# Who consumes a quantity: the compiled model, or a stage of the simulation, of the readings or of the reset.
Stage = Literal["model", "command", "clock", "drive", "disturbance", "encoder", "reset", "scene", "sensing"]
Rule = Literal["assign", "factor"]
Operation = Literal["absolute", "scale", "add"]

# What several declarations share: a source of ranges, and motions that determine a value.
PUBLISHED = "±10 %, molmospaces and robosuite"
SPEEDS = "constant speeds, slow and fast"
ONSETS = "sudden starts and reversals, at more frames per second"
SPINS = "accelerations in unlike directions"
DeviceKind = Literal["camera", "depth", "lidar", "imu", "force_torque", "servo"]


class WriteTarget(Protocol):
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


Compute = Callable[[WriteTarget], None]


@dataclass(frozen=True, kw_only=True)
class FieldSlot:
    """One MjModel field a quantity is written to: column (None: all), and the factor from SI to the field's unit.

    A place in a field has one quantity that assigns it; quantities with the rule ``factor`` multiply what was assigned.
    """

    field: str
    column: int | None = None
    factor: float = 1.0
    rule: Rule = "assign"


@dataclass(frozen=True, kw_only=True)
class Prior:
    """How far from its nominal value a quantity may plausibly be: one standard deviation.

    ``spread`` is relative to the nominal where ``relative`` (at least ``least``), else in the quantity's unit; for
    parameters with a log transform it is in natural logarithms, which is the same as relative. It scales the solver's
    steps, breaks ties between parameters that the data cannot tell apart, and is what "not determined" is measured
    against.
    """

    spread: float
    relative: bool = False
    least: float = 0.0


@dataclass(frozen=True, kw_only=True)
class MissingPhysics:
    """How a fit tests whether a twin lacks this physics (see `identify.structures`).

    ``structure`` names the hypothesis. A fit begins at ``start``, off the neutral value where slopes may vanish, with
    ``prior``. ``above_speed`` takes the nominal value from the fastest joint speed of the log.
    """

    structure: str
    start: float | None = None
    prior: Prior | None = None
    above_speed: bool = False


@dataclass(frozen=True, kw_only=True)
class FitDeclaration:
    """How a value is identified from logs.

    Attributes:
        prior: without one, half of what the default range spans.
        rank: place among the parameters that are free unless a fit names its own; None: free only where named.
        position_only: it exists only where commands are positions: a torque passes no encoder and no position loop.
        first: it explains most of a servo's lag, and is searched before the others.
        scanned: it is a delay, and a fit tries a row of values before it walks.
        shared: joints with the same nominal value may share one value.
        excitation: the motion that determines it.
        residual: the rule of `gap.unexplained_rules` whose errors it may explain.
        missing: how a fit tests whether its physics is missing.
    """

    prior: Prior | None = None
    rank: int | None = None
    position_only: bool = False
    first: bool = False
    scanned: bool = False
    shared: bool = False
    excitation: str = "motion that depends on it"
    residual: str = ""
    missing: MissingPhysics | None = None


@dataclass(frozen=True, kw_only=True)
class DefaultRange:
    """What the default randomization draws from where a twin's YAML gives no range of its own, and why."""

    low: float
    high: float
    op: Operation = "absolute"
    source: str


@dataclass(frozen=True, kw_only=True)
class Alias:
    """A plain word for parameters under ``randomization:``; several quantities may share one."""

    name: str
    op: Operation = "absolute"
    tied: bool = False
    target: str = "*"


@dataclass(frozen=True, kw_only=True)
class FaultDeclaration:
    """A change that the monitor explains a robot's drift by, so large that it is seen within seconds.

    ``unit`` says what a coefficient of 1 means. ``per_period`` counts ``change`` in control periods, ``at_hand``
    changes the body that carries the tool alone, ``geared`` puts the change into a twin with play in its gears.
    """

    name: str
    op: Literal["scale", "add"]
    change: float
    unit: str
    per_period: bool = False
    at_hand: bool = False
    geared: bool = False


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A kind of parameter: the one declaration that every verb reads.

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

    ``cause`` is what a person calls the physical cause that it is part of, ``term`` the term of the physics that is
    switched off by its ``neutral`` value, None for the nominal one where nothing can be without it (see `TERMS`).
    ``default_range`` is drawn where a twin's YAML gives only the name. ``alias`` is a plain word for it in a YAML.
    """

    family: str
    quantity: str
    member: str = ""
    unit: str
    low: float
    high: float
    slots: tuple[FieldSlot, ...] = ()
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
    choice: bool = False  # its numbers stand for things, and there is nothing between two of them
    history: bool = False  # its effect depends on earlier steps, or on the number of the step
    visual: bool = False
    seen: bool = False
    device: DeviceKind | Literal[""] = ""
    meaning: str = ""
    cause: str = ""
    term: str = ""
    neutral: float | None = None
    default_range: DefaultRange | None = None
    alias: Alias | None = None
    fit: FitDeclaration = FitDeclaration()
    fault: FaultDeclaration | None = None

    @property
    def word(self) -> str:
        """The last part of its path."""
        return self.path().rpartition("/")[2]

    def path(self, name: str = "*") -> str:
        """The parameter's name for one object, or for all."""
        name = self.member or name
        return f"{self.family}/{name}/{self.quantity}" if self.quantity else f"{self.family}/{name}"

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """The model fields that it changes."""
        return tuple(dict.fromkeys([*(slot.field for slot in self.slots), *self.writes]))


def assign(field: str, column: int | None = None, factor: float = 1.0) -> tuple[FieldSlot, ...]:
    """One field that takes the value as it is, times ``factor``."""
    return (FieldSlot(field=field, column=column, factor=factor),)


def reported(
    device: DeviceKind,
    quantity: str,
    unit: str,
    low: float,
    high: float,
    default: float,
    meaning: str,
    *,
    term: str = "",
    neutral: float | None = None,
    fit: FitDeclaration | None = None,
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
        term=term,
        neutral=neutral,
        fit=fit or FitDeclaration(),
    )
