"""Define the declaration of a quantity, and list causes, physics terms and faults in the order of reports.

A quantity gives its ``cause`` (one of `CAUSES`), its ``term`` (one of `TERMS`) and its ``fault`` (one of `FAULTS`).
Names that are not in these lists come last in reports.
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

# Names of physical causes, for people.
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
        "command bias": "servos move to another angle than commanded",
        "control clock": "the loop is slow or unsteady",
        "reading delay": "readings are old when they are used",
        "encoder offset and scale": "readings of joint angles have an offset or a wrong scale",
        "encoder noise and counts": "readings are noisy and rounded to encoder counts",
        "joint friction": "dry friction in the joints",
        "load friction": "friction that grows with a joint's torque",
        "backlash": "backlash of the gears",
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
        "object place": "objects start at other positions than in the twin",
        "approach angle": "objects start at other angles about the vertical than in the twin",
        "table": "the table is higher or tilted",
        "gravity": "gravity has another direction or strength than in the twin",
        "air": "wind and drag",
        "pushes": "external forces push bodies",
        "camera pose": "camera poses other than the twin's",
        "camera chain": "camera optics, exposure, noise and colours other than the twin's",
        "camera delay": "images are late or lost",
        "light": "light other than the twin's",
        "surfaces": "colours and textures other than the twin's",
    }
)

# Possible faults of a robot's drives, in the order of the monitor's regressions.
FAULTS = ("friction", "latency", "gain", "load", "play")


# Consumer of a quantity: the compiled model, or a stage of the simulation, of the readings or of the reset.
Stage = Literal["model", "command", "clock", "drive", "disturbance", "encoder", "reset", "scene", "sensing"]
Rule = Literal["assign", "factor"]
Operation = Literal["absolute", "scale", "add"]

# Texts used by several declarations: a source of ranges, and motions that determine a value.
PUBLISHED = "±10 %, molmospaces and robosuite"
SPEEDS = "constant speeds, slow and fast"
ONSETS = "sudden starts and reversals, at more frames per second"
SPINS = "accelerations in different directions"
DeviceKind = Literal["camera", "depth", "lidar", "imu", "force_torque", "servo"]


class WriteTarget(Protocol):
    """One object of a model, in the n worlds in which at least one of its parameters is not nominal.

    A computed quantity reads the values of its group, ``(n,)``, and writes model fields. In all other worlds the fields
    keep the compiled model's values, bit for bit.
    """

    @property
    def model(self) -> mujoco.MjModel:
        """The compiled model; read only."""
        ...

    @property
    def name(self) -> str:
        """Name of the object, or the ``member`` of a quantity that belongs to no object of the model."""
        ...

    def value(self, quantity: str) -> NDArray[np.float64]:
        """Return the values of one quantity of this object, nominal if it is not a parameter, ``(n,)``."""
        ...

    def vector(self, stem: str, parts: str = "xyz") -> NDArray[np.float64]:
        """Return the values of ``stem/x``, ``stem/y`` and ``stem/z``, ``(n, 3)``; ``parts`` gives other letters."""
        ...

    def rows(self, field: str) -> NDArray[np.intp]:
        """Return the rows of a model field that belong to this object."""
        ...

    def write_field(self, field: str, rows: ArrayLike, values: NDArray) -> None:
        """Write ``values`` ``(n, len(rows), …)``; the rows of an ``opt.`` field are the elements of its vector.

        A field that no changed parameter affects is not written.
        """
        ...


Compute = Callable[[WriteTarget], None]


@dataclass(frozen=True, kw_only=True)
class FieldSlot:
    """MjModel field that a quantity writes: its column (None for all), and the factor from SI to the field's unit.

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

    ``structure`` is the name of the hypothesis. A fit starts at ``start`` with ``prior``; at the neutral value itself
    the derivatives may be zero. With ``above_speed`` the nominal value is taken from the log's highest joint speed.
    """

    structure: str
    start: float | None = None
    prior: Prior | None = None
    above_speed: bool = False


@dataclass(frozen=True, kw_only=True)
class FitDeclaration:
    """Settings for identifying a quantity from logs.

    Attributes:
        prior: prior of a fit; by default its deviation is half of the default range's width.
        rank: order among the parameters that are free by default; None: free only if the user names it.
        position_only: the quantity needs position commands: torque commands use no encoder and no position loop.
        first: the quantity explains most of a servo's lag, and is searched before the others.
        scanned: the quantity is a delay, and a fit evaluates a grid of values before it optimizes.
        shared: joints with the same nominal value may share one value.
        excitation: motion from which the quantity can be identified.
        residual: the rule of `gap.unexplained_rules` whose errors the quantity may explain.
        missing: how a fit tests whether the twin lacks this physics.
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
    """Short name for parameters under ``randomization:``; several quantities may share one."""

    name: str
    op: Operation = "absolute"
    tied: bool = False
    target: str = "*"


@dataclass(frozen=True, kw_only=True)
class FaultDeclaration:
    """Change of a quantity by which the monitor explains a robot's drift; large enough to be detected in seconds.

    ``unit`` is the meaning of a coefficient of 1. With ``per_period`` the unit of ``change`` is the control period,
    with ``at_hand`` only the body with the tool changes, with ``geared`` the twin has backlash in its gears.
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
    """Kind of parameter: unit, bounds, effect on the model, and settings for fits, reports and the monitor.

    ``slots`` are written by their rules (``assign``: value · factor; ``factor``: the nominal field times
    value / nominal value). More complex changes are a function ``compute`` and the fields that it ``writes``: all
    quantities of an object with the same ``compute`` form a group and are computed together; at the nominal values the
    function returns the model's fields. Two quantities of a group with the same ``role`` exclude each other.

    ``nominal`` reads the model's value if that is neither ``default`` nor in a slot. ``lacks`` returns the reason why
    an object does not have the quantity, or "". ``stage`` is the consumer of a quantity that is not a model field.
    ``set_const`` means that constants derived by ``mj_setConst`` depend on it. ``visual`` means that it changes images
    only, ``seen`` that it changes images and motion. ``member`` replaces the object's name if the quantity belongs to
    no object (``timing/command/jitter``). ``device`` is the kind of sensing device that has it. ``meaning`` is its line
    in the table of parameters.

    ``cause`` is the physical cause in reports. ``term`` is the physics term (see `TERMS`) that the value ``neutral``
    switches off; None stands for the nominal value. ``default_range`` is used if a twin's YAML gives only the name of
    the parameter. ``alias`` is a short name in a YAML file.
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
    given: bool = False  # its nominal value is not in the model but in a servo preset or the twin's YAML
    choice: bool = False  # its values are indices of alternatives, without values between them
    history: bool = False  # its effect depends on earlier steps or on the step's index
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
    def last_name(self) -> str:
        """Last part of the path, for example ``damping``."""
        return self.path().rpartition("/")[2]

    def path(self, name: str = "*") -> str:
        """Return the parameter's name for one object, or by default the pattern for all."""
        name = self.member or name
        return f"{self.family}/{name}/{self.quantity}" if self.quantity else f"{self.family}/{name}"

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """Names of the model fields that the quantity changes."""
        return tuple(dict.fromkeys([*(slot.field for slot in self.slots), *self.writes]))


def field_slots(field: str, column: int | None = None, factor: float = 1.0) -> tuple[FieldSlot, ...]:
    """Return the slots of a quantity that is written into one field, times ``factor``."""
    return (FieldSlot(field=field, column=column, factor=factor),)


def sensor_quantity(
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
    """Return a quantity of a kind of sensing device; the default is the value of an ideal sensor."""
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
