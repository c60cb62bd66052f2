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
        """Return the values of one quantity of this object, nominal if it is not a parameter, ``(n,)``."""
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
    """One MjModel field that a quantity writes: column (None: all), and the factor from SI to the field's unit.

    One quantity assigns an element of a field; quantities with the rule ``factor`` multiply the assigned value.
    """

    field: str
    column: int | None = None
    factor: float = 1.0
    rule: Rule = "assign"


@dataclass(frozen=True, kw_only=True)
class Prior:
    """Plausible deviation of a quantity from its nominal value: one standard deviation.

    ``spread`` is relative to the nominal value if ``relative`` (at least ``least``), otherwise in the quantity's unit.
    For parameters with a log transform it is in natural logarithms, which is the same as relative. It scales the
    solver's steps, decides between parameters that the data cannot separate, and is the reference for "not determined".
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
    """Settings for identifying a quantity from logs.

    Attributes:
        prior: without one, half of the default range's width.
        rank: order among the parameters that are free by default; None: free only if named.
        position_only: it exists only with position commands: torque commands use no encoder and no position loop.
        first: it explains most of a servo's lag, and is searched before the others.
        scanned: it is a delay, and a fit evaluates a grid of values before it optimizes.
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
    """Default randomization range of a quantity, for twins whose YAML has none, with its reason."""

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
    """A change of a quantity with which the monitor explains drift of a robot, large enough to be detected in seconds.

    ``unit`` is the meaning of a coefficient of 1. ``per_period`` counts ``change`` in control periods, ``at_hand``
    changes only the body with the tool, ``geared`` applies the change to a twin with backlash in its gears.
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
    """A kind of parameter, declared once for all commands.

    ``slots`` are written by their rules (``assign``: value · factor; ``factor``: the nominal field times
    value / nominal value). More complex changes are a ``compute`` with the fields it ``writes``: all quantities of an
    object with the same ``compute`` form a group and are computed together; at the nominal values it yields the model's
    fields. Two quantities of a group with the same ``role`` exclude each other.

    ``nominal`` reads the model's value if that is neither ``default`` nor a slot. ``lacks`` returns the reason why an
    object does not have the quantity, or nothing. ``stage`` is the consumer of a quantity that is not a model field.
    ``set_const`` means that constants derived by ``mj_setConst`` change with it. ``visual`` means that only images
    change, ``seen`` that images and motion change. ``member`` is the name that replaces an object of the model
    (``timing/command/jitter``), ``device`` the kind of sensing device that has it. ``meaning`` is the line in the table
    of parameters.

    ``cause`` is the name of the physical cause for people, ``term`` the physics term that its ``neutral`` value
    switches off; None is the nominal value, if there is no value without the effect (see `TERMS`). ``default_range`` is
    used if a twin's YAML gives only the name. ``alias`` is a short name for it in a YAML file.
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
