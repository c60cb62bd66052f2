"""Define the classes with which quantities are declared, and list physical causes, physics terms and faults.

A quantity is a kind of twin parameter, such as the damping of joints. It gives its ``cause`` in reports (one of
`CAUSES`, such as "servo gain"), its ``term`` (one of `TERMS`: a physical effect that an ablation can switch off, such
as "command delay") and its ``fault`` (one of `FAULTS`: a defect that the monitor can detect, such as "friction").
Reports use the order of these lists; names that are not in the lists come last.
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
    "soft bodies",
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
        "soft body stiffness": "soft bodies softer or stiffer than the twin's",
        "soft body damping": "soft bodies damped more or less than the twin's",
        "object size": "objects larger or smaller than the twin's",
        "object place": "objects start at other positions than in the twin",
        "approach angle": "objects start at other angles about the vertical than in the twin",
        "table": "the table is higher or tilted",
        "gravity": "gravity has another direction or strength than in the twin",
        "air": "wind and drag",
        "pushes": "external forces push bodies",
        "residual": "motion that no parameter of the twin explains",
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


class ObjectWriter(Protocol):
    """Reader of the parameter values, and writer of the model fields, of one object of a model.

    It is the argument of a compute function (`Quantity.compute`), which computes model fields from several parameters.
    It covers the n worlds in which a parameter of the object is not nominal. In all other worlds the fields keep the
    compiled model's values, bit for bit.
    """

    @property
    def model(self) -> mujoco.MjModel:
        """The compiled model, which must not be changed."""
        ...

    @property
    def name(self) -> str:
        """Name of the object: the middle part of the parameter names, for example ``cube`` in ``object/cube/mass``."""
        ...

    def value(self, quantity: str) -> NDArray[np.float64]:
        """Return the values of one quantity of this object, shape ``(n,)`` for n worlds.

        A quantity that is not a parameter of the twin has its nominal value.
        """
        ...

    def vector(self, stem: str, parts: str = "xyz") -> NDArray[np.float64]:
        """Return the values of the quantities ``stem/x``, ``stem/y`` and ``stem/z``, shape ``(n, 3)`` for n worlds.

        Args:
            stem: Common first part of the quantities' names.
            parts: One letter per component, instead of x, y and z.
        """
        ...

    def rows(self, field: str) -> NDArray[np.intp]:
        """Return the rows of a model field that belong to this object."""
        ...

    def write_field(self, field: str, rows: ArrayLike, values: NDArray) -> None:
        """Write values into rows of a model field, for each of the n worlds.

        The call has no effect if no changed parameter affects the field, so a compute function may write all its
        fields.

        Args:
            field: Name of the field in ``mujoco.MjModel``, or ``opt.NAME`` for a field of ``model.opt``.
            rows: Rows of the field; for a vector in ``model.opt``, its elements.
            values: New values, shape ``(n, len(rows), …)``.
        """
        ...


Compute = Callable[[ObjectWriter], None]


@dataclass(frozen=True, kw_only=True)
class FieldSlot:
    """Model field into which a quantity is written.

    Attributes:
        field: Name of the field in ``mujoco.MjModel``, or ``opt.NAME`` for a field of ``model.opt``.
        column: Column of the field; None for all columns.
        factor: Factor from SI units to the field's unit.
        rule: ``assign`` writes the value. ``factor`` multiplies the assigned value by value / nominal value. Each
            element is assigned by one quantity, but any number of quantities may multiply it.
    """

    field: str
    column: int | None = None
    factor: float = 1.0
    rule: Rule = "assign"


@dataclass(frozen=True, kw_only=True)
class Prior:
    """Prior of a quantity: its plausible deviation from the nominal value, as one standard deviation.

    A fit uses it in three ways. It scales the steps of the optimizer. It decides between parameters that the data
    cannot separate. A parameter counts as not determined if the data do not reduce its standard deviation enough.

    Attributes:
        spread: Standard deviation in the quantity's unit, or as a fraction of the nominal value. For a parameter with a
            log transform it is in natural logarithms, which for small values is the same as a fraction.
        relative: Whether ``spread`` is a fraction of the nominal value, or of the typical value for the robot if the
            nominal value is 0 (see `Quantity.typical`).
        least: Smallest standard deviation, in the quantity's unit, if ``relative`` is true.
    """

    spread: float
    relative: bool = False
    least: float = 0.0


@dataclass(frozen=True, kw_only=True)
class MissingPhysics:
    """Settings with which a fit tests whether a twin lacks the effect of a quantity (see `identify.structures`).

    Attributes:
        structure: Name of the physical effect, for example ``backlash``.
        start: Initial value of the fit. It must not be the neutral value (no effect), because derivatives may be zero
            there.
        prior: Prior of the fit; by default that of the quantity.
        above_speed: Whether the nominal value is computed from the highest joint speed in the log. A motor's no-load
            speed needs this, because it must be above every measured speed.
    """

    structure: str
    start: float | None = None
    prior: Prior | None = None
    above_speed: bool = False


@dataclass(frozen=True, kw_only=True)
class FitDeclaration:
    """Settings for identifying a quantity from logs.

    Attributes:
        prior: Prior of a fit; by default its standard deviation is half the width of the default range.
        rank: Order among the parameters that are estimated by default; None if a parameter is estimated only if the
            user names it.
        position_only: Whether the quantity needs position commands. Torque commands use no encoder and no position
            loop.
        first: Whether the fit searches this quantity alone before all others, because it explains most of a servo's
            lag.
        scanned: Whether a fit evaluates a grid of values before it optimizes, as for delays.
        shared: Whether joints with the same nominal value may share one value.
        excitation: Motion from which the quantity can be identified.
        residual: Kind of unexplained error that this quantity may explain: the name of a rule in
            `gap.dynamics.unexplained_rules`, for example ``heat``.
        missing: How a fit tests whether the twin lacks this quantity's physics.
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
    """Default randomization range of a quantity, for parameters whose declaration in the twin's YAML has no range.

    Attributes:
        low: Lower limit.
        high: Upper limit.
        op: Meaning of the limits: ``absolute`` values, factors on the nominal value (``scale``), or values added to the
            nominal value (``add``).
        source: Reason for the range.
    """

    low: float
    high: float
    op: Operation = "absolute"
    source: str


@dataclass(frozen=True, kw_only=True)
class Alias:
    """Short name of a parameter in the ``randomization:`` section of a generation file.

    Several quantities may share one short name.

    Attributes:
        name: The short name.
        op: Meaning of the values: ``absolute``, factors on the nominal value (``scale``), or values added to the
            nominal value (``add``).
        tied: Whether all objects get the same drawn value.
        target: Name of the object to which the short name applies; ``*`` for all objects.
    """

    name: str
    op: Operation = "absolute"
    tied: bool = False
    target: str = "*"


@dataclass(frozen=True, kw_only=True)
class FaultDeclaration:
    """Typical fault of a robot, as a change of one quantity, with which the monitor explains a drift.

    The monitor fits a coefficient to this change: 1 means that the quantity has changed by ``change``.

    The change is large enough to be detected within seconds.

    Attributes:
        name: Name of the fault.
        op: Whether the quantity is multiplied by ``change`` (``scale``) or ``change`` is added to it (``add``).
        change: Size of the change.
        unit: Words after the coefficient in the monitor's reports, for example "control periods".
        per_period: Whether ``change`` is in control periods instead of the quantity's unit.
        at_hand: Whether the fault only affects the body that carries the tool; otherwise it affects all objects.
        geared: Whether the change is made in a twin with backlash in its gears.
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
    """Declaration of one kind of parameter: unit, bounds, effect on the model, and settings for fits and reports.

    Attributes:
        family: First part of the parameter name, for example ``joint``.
        quantity: Last part of the parameter name, for example ``damping``.
        member: Fixed middle part of the parameter name, for example ``command`` in ``timing/command/jitter``; empty if
            the middle part is the name of an object of the model.
        unit: SI unit; "1" if dimensionless.
        low: Lower physical bound.
        high: Upper physical bound.
        slots: Model fields into which the value is written.
        compute: Function that computes model fields, for changes that ``slots`` cannot express. All quantities of an
            object with the same function are computed together. At nominal values it returns the model's fields.
        writes: Names of the model fields that ``compute`` writes.
        role: Name that alternatives share, for example damping ratio and restitution of a contact. An object can have
            only one quantity with the same ``compute`` and role.
        default: Value of a quantity that is not in the model, in worlds that do not vary it.
        nominal: Function that reads the nominal value from the model, if there is neither ``default`` nor a slot.
        typical: Function from the model and a joint's id to a typical value for a joint of this size (see `typical`),
            which gives prior and default range a width where the nominal value is 0.
        lacks: Function that returns the reason why an object does not have the quantity, or an empty text.
        transform: Scale on which fits treat the parameter: linear (``identity``) or logarithmic (``log``).
        stage: Part of the program that uses the value: the compiled model, or a step of simulation, sensing or reset.
        set_const: Whether constants that ``mj_setConst`` derives depend on the quantity.
        nominal_outside_model: Whether the nominal value is in a servo preset or the twin's YAML instead of the model.
        choice: Whether values are indices of alternatives, without values between them.
        history: Whether the effect depends on earlier control steps or on the index of the step.
        visual: Whether the quantity changes only images.
        also_visual: Whether the quantity changes both images and motion.
        device: Type of sensing device that has the quantity; empty for other quantities.
        meaning: Description in the table of parameters.
        cause: Physical cause in reports.
        term: Physical effect (see `TERMS`) to which the quantity belongs. To find the cause of a failure, an ablation
            switches the effect off by setting the quantity to ``neutral``.
        neutral: Value at which the physical effect is absent; None for the nominal value.
        default_range: Range that is used if the declaration in a twin's YAML has no range.
        alias: Short name in the ``randomization:`` section.
        fit: Settings for identification.
        fault: Change by which the monitor explains a drift of a robot.
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
    typical: Callable[[mujoco.MjModel, int], float] | None = None
    lacks: Callable[[mujoco.MjModel, str], str] | None = None
    transform: Literal["identity", "log"] = "identity"
    stage: Stage = "model"
    set_const: bool = False
    nominal_outside_model: bool = (
        False  # its nominal value is not in the model but in a servo preset or the twin's YAML
    )
    choice: bool = False  # its values are indices of alternatives, without values between them
    history: bool = False  # its effect depends on earlier steps or on the step's index
    visual: bool = False
    also_visual: bool = False
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
        """Last part of the parameter name, for example ``damping``."""
        return self.path().rpartition("/")[2]

    def path(self, name: str = "*") -> str:
        """Return the parameter name for one object, by default the pattern that matches all objects."""
        name = self.member or name
        return f"{self.family}/{name}/{self.quantity}" if self.quantity else f"{self.family}/{name}"

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """Names of the model fields that the quantity changes."""
        return tuple(dict.fromkeys([*(slot.field for slot in self.slots), *self.writes]))


def field_slots(field: str, column: int | None = None, factor: float = 1.0) -> tuple[FieldSlot, ...]:
    """Return the slots (model field, column and factor, see `FieldSlot`) of a quantity that is written into one field.

    Args:
        field: Name of the field.
        column: Column of the field; None for all columns.
        factor: Factor from SI units to the field's unit.
    """
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
    """Return the declaration of a quantity of a type of sensing device.

    Args:
        device: Type of sensing device.
        quantity: Name of the quantity.
        unit: Unit of the quantity.
        low: Lower bound.
        high: Upper bound.
        default: Value of an ideal sensor.
        meaning: Description in the table of parameters.
        term: Physical effect that an ablation switches off, one of `TERMS`; empty for none.
        neutral: Value at which the effect is absent; None for the nominal value.
        fit: Settings for identification.
    """
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
