"""What can be a parameter: for each kind of path its unit, bounds, and the one place in the model it is written to.

A path reads like ``joint/shoulder_lift/damping``: a family (``joint``), an object's name, a quantity. The table
below is the only mapping from paths to MuJoCo fields.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import mujoco
import numpy as np

Stage = Literal["model", "command", "encoder", "reset"]
Rule = Literal["assign", "factor"]


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One MjModel field a quantity is written to: column (None: all), and the factor from SI to the field's unit."""

    field: str
    column: int | None = None
    factor: float = 1.0
    rule: Rule = "assign"


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A kind of parameter.

    ``slots`` are written by the rule of each (``assign``: value · factor; ``factor``: the nominal field times
    value / nominal value). ``stage`` says who consumes it when it is no model field. ``set_const`` says that
    constants derived by ``mj_setConst`` change with it, ``visual`` that only pictures do.
    """

    family: str
    quantity: str
    unit: str
    low: float
    high: float
    slots: tuple[Slot, ...] = ()
    default: float | None = None
    transform: Literal["identity", "log"] = "identity"
    stage: Stage = "model"
    set_const: bool = False
    visual: bool = False

    def path(self, name: str) -> str:
        """The parameter's name for one object."""
        return f"{self.family}/{name}/{self.quantity}" if self.quantity else f"{self.family}/{name}"


_INF = math.inf
_FRICTION = ("slide", "torsion", "roll")


def _assign(field: str, column: int | None = None, factor: float = 1.0) -> tuple[Slot, ...]:
    return (Slot(field=field, column=column, factor=factor),)


def _camera_offsets() -> Iterator[Quantity]:
    for axis in "xyz":
        yield Quantity(
            family="camera", quantity=f"position/{axis}", unit="m", low=-1.0, high=1.0, default=0.0, visual=True
        )
        yield Quantity(
            family="camera",
            quantity=f"rotation/{axis}",
            unit="rad",
            low=-math.pi,
            high=math.pi,
            default=0.0,
            visual=True,
        )


def _friction(family: str) -> Iterator[Quantity]:
    for column, kind in enumerate(_FRICTION):
        yield Quantity(
            family=family,
            quantity=f"friction/{kind}",
            unit="1" if kind == "slide" else "m",
            low=0.0,
            high=5.0,
            slots=_assign("geom_friction", column),
        )


QUANTITIES: tuple[Quantity, ...] = (
    Quantity(family="joint", quantity="damping", unit="N·m·s/rad", low=0.0, high=1e3, slots=_assign("dof_damping")),
    Quantity(family="joint", quantity="frictionloss", unit="N·m", low=0.0, high=1e3, slots=_assign("dof_frictionloss")),
    Quantity(
        family="joint",
        quantity="armature",
        unit="kg·m²",
        low=0.0,
        high=1e2,
        slots=_assign("dof_armature"),
        set_const=True,
    ),
    Quantity(family="joint", quantity="stiffness", unit="N·m/rad", low=0.0, high=1e4, slots=_assign("jnt_stiffness")),
    Quantity(
        family="actuator",
        quantity="kp",
        unit="N·m/rad",
        low=1e-6,
        high=1e5,
        transform="log",
        slots=(Slot(field="actuator_gainprm", column=0), Slot(field="actuator_biasprm", column=1, factor=-1.0)),
    ),
    Quantity(
        family="actuator",
        quantity="torque_limit",
        unit="N·m",
        low=1e-6,
        high=1e4,
        transform="log",
        slots=(Slot(field="actuator_forcerange", column=0, factor=-1.0), Slot(field="actuator_forcerange", column=1)),
    ),
    Quantity(family="actuator", quantity="delay", unit="s", low=0.0, high=1.0, default=0.0, stage="command"),
    Quantity(family="actuator", quantity="bias", unit="rad", low=-0.5, high=0.5, default=0.0, stage="command"),
    Quantity(family="sensor", quantity="offset", unit="rad", low=-math.pi, high=math.pi, default=0.0, stage="encoder"),
    Quantity(family="sensor", quantity="scale", unit="1", low=0.5, high=2.0, default=1.0, stage="encoder"),
    Quantity(
        family="object",
        quantity="mass",
        unit="kg",
        low=1e-4,
        high=1e3,
        transform="log",
        slots=(Slot(field="body_mass", rule="factor"), Slot(field="body_inertia", rule="factor")),
        set_const=True,
    ),
    *_friction("object"),
    *_friction("geom"),
    Quantity(family="object", quantity="position/x", unit="m", low=-1e2, high=1e2, stage="reset"),
    Quantity(family="object", quantity="position/y", unit="m", low=-1e2, high=1e2, stage="reset"),
    Quantity(family="object", quantity="yaw", unit="rad", low=-math.pi, high=math.pi, default=0.0, stage="reset"),
    Quantity(
        family="camera",
        quantity="fovy",
        unit="rad",
        low=0.02,
        high=3.0,
        slots=_assign("cam_fovy", factor=180.0 / math.pi),
        visual=True,
    ),
    *_camera_offsets(),
    Quantity(
        family="light",
        quantity="intensity",
        unit="1",
        low=0.0,
        high=100.0,
        default=1.0,
        slots=tuple(Slot(field=f"light_{part}", rule="factor") for part in ("ambient", "diffuse", "specular")),
        visual=True,
    ),
    *(
        Quantity(
            family="material",
            quantity=f"color/{channel}",
            unit="1",
            low=0.0,
            high=1.0,
            slots=_assign("mat_rgba", column),
            visual=True,
        )
        for column, channel in enumerate("rgb")
    ),
    Quantity(family="texture", quantity="", unit="1", low=0.0, high=1e6, default=0.0, visual=True),
)

BY_KIND = {(quantity.family, quantity.quantity): quantity for quantity in QUANTITIES}


def members(model: mujoco.MjModel, family: str, quantity: str = "") -> list[str]:
    """Names of a family's objects in a model: hinge and slide joints, actuators, movable bodies, and so on.

    A body moved by hand (mocap) has a position but no mass and no friction.
    """
    if family in {"joint", "sensor"}:
        scalar = {int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE)}
        return [
            model.joint(i).name for i in range(model.njnt) if int(model.jnt_type[i]) in scalar and model.joint(i).name
        ]
    if family == "object":
        return [
            model.body(i).name
            for i in range(1, model.nbody)
            if _movable(model, i, by_hand=quantity.startswith("position")) and model.body(i).name
        ]
    count, accessor = {
        "actuator": (model.nu, model.actuator),
        "geom": (model.ngeom, model.geom),
        "camera": (model.ncam, model.camera),
        "light": (model.nlight, model.light),
        "material": (model.nmat, model.material),
        "texture": (model.nmat, model.material),
    }[family]
    return [name for i in range(count) if (name := accessor(i).name) and not name.startswith("pool/")]


def _movable(model: mujoco.MjModel, body: int, *, by_hand: bool) -> bool:
    """Whether a body floats freely or, where that counts, is placed by hand (mocap)."""
    if model.body_mocapid[body] >= 0:
        return by_hand
    first = model.body_jntadr[body]
    return bool(first >= 0 and model.jnt_type[first] == mujoco.mjtJoint.mjJNT_FREE)


def has_quantity(model: mujoco.MjModel, quantity: Quantity, name: str) -> bool:
    """Whether an object has the quantity: only a position servo has a gain, only a limited actuator a torque limit.

    A position servo is MuJoCo's fixed gain kp with the affine bias −kp · position; its limit is the same both ways.
    """
    if quantity.family != "actuator" or quantity.quantity not in {"kp", "torque_limit"}:
        return True
    index = model.actuator(name).id
    if quantity.quantity == "torque_limit":
        low, high = model.actuator_forcerange[index]
        return bool(model.actuator_forcelimited[index] and high > 0 and low == -high)
    gain, bias = model.actuator_gainprm[index, 0], model.actuator_biasprm[index, :2]
    affine = int(model.actuator_biastype[index]) == mujoco.mjtBias.mjBIAS_AFFINE
    fixed = int(model.actuator_gaintype[index]) == mujoco.mjtGain.mjGAIN_FIXED
    return bool(fixed and affine and gain > 0 and bias[0] == 0 and bias[1] == -gain)


def rows(model: mujoco.MjModel, quantity: Quantity, name: str, field: str) -> np.ndarray:
    """Rows of ``field`` that belong to the named object."""
    if field.startswith("dof_"):
        return np.atleast_1d(model.joint(name).dofadr)
    if field.startswith("geom_") and quantity.family == "object":
        return np.flatnonzero(model.geom_bodyid == model.body(name).id)
    accessor = {
        "joint": model.joint,
        "actuator": model.actuator,
        "object": model.body,
        "geom": model.geom,
        "camera": model.camera,
        "light": model.light,
        "material": model.material,
    }[quantity.family]
    return np.array([accessor(name).id])


def nominal_value(model: mujoco.MjModel, quantity: Quantity, name: str) -> float:
    """The value that the model as compiled gives to this quantity, in SI."""
    if quantity.default is not None:
        return quantity.default
    if quantity.stage == "reset":
        body = model.body(name)
        position = model.body_pos[body.id]
        return float(position["xyz".index(quantity.quantity[-1])])
    slot = next((s for s in quantity.slots if s.factor > 0), quantity.slots[0])
    values = getattr(model, slot.field)[rows(model, quantity, name, slot.field)]
    if slot.column is not None:
        values = values[..., slot.column]
    return float(np.ravel(values)[0]) / slot.factor
