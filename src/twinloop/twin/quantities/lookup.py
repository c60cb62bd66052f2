"""Find the objects of a model that have a quantity, the model fields of the quantity, and its nominal values."""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.twin.quantities.actuators import FAMILY as ROTORS
from twinloop.twin.quantities.actuators import carrier_dofs, rotor_rows
from twinloop.twin.quantities.gains import is_pid
from twinloop.twin.quantities.joints import GEAR, find_motor_joint, is_motor_side
from twinloop.twin.quantities.kinds import Quantity
from twinloop.twin.quantities.sensing import sensor_members
from twinloop.twin.quantities.soft import FAMILY as SOFT
from twinloop.twin.quantities.soft import list_flexes, soft_bodies, soft_rows
from twinloop.twin.quantities.world import scene_members


def find_members(model: mujoco.MjModel, kind: Quantity) -> list[str]:
    """Return the names of the model's objects that may have a quantity, for example its joints or movable bodies.

    A mocap body counts as an object for its position and its yaw only, because it has no mass and no friction.
    """
    if kind.member:
        return [kind.member]
    if kind.device:
        return sensor_members(model, kind.device)
    family, quantity = kind.family, kind.quantity
    if family in {"joint", "sensor"}:
        scalar = {int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE)}
        own = np.flatnonzero(~np.isin(model.jnt_bodyid, soft_bodies(model)))
        chosen = (model.joint(int(i)).name for i in own if int(model.jnt_type[i]) in scalar)
        return [name for name in chosen if name and not is_motor_side(name)]
    if family == SOFT:
        return list_flexes(model)
    if family in {"object", "link", "body", "push"}:
        by_hand = quantity.startswith("position") or quantity == "yaw"
        others = set(range(1, model.nbody)) - set(soft_bodies(model).tolist())
        chosen = (i for i in sorted(others) if _is_body(model, i, family, by_hand=by_hand))
        return [name for i in chosen if (name := model.body(i).name) and not is_motor_side(name)]
    if family == "scene":
        return scene_members(model, quantity)
    count, accessor = {
        "actuator": (model.nactuator, model.actuator),
        "geom": (model.ngeom, model.geom),
        "camera": (model.ncam, model.camera),
        "light": (model.nlight, model.light),
        "material": (model.nmat, model.material),
        "texture": (model.nmat, model.material),
    }[family]
    return [name for i in range(count) if (name := accessor(i).name) and not name.startswith("pool/")]


def _is_body(model: mujoco.MjModel, body: int, family: str, *, by_hand: bool) -> bool:
    """Return whether a body belongs to a family of quantities.

    Families are: ``object`` for bodies with a free joint, ``link`` for bodies that joints move, ``body`` for fixed
    bodies, and ``push`` (external forces) for bodies with mass.

    Args:
        model: Compiled model.
        body: Body id.
        family: ``object``, ``link``, ``body`` or ``push``.
        by_hand: Whether a mocap body, which is moved by hand, counts as an ``object``.
    """
    mocap, mass = bool(model.body_mocapid[body] >= 0), bool(model.body_mass[body] > 0)
    if family == "push":
        return mass and not mocap
    first = model.body_jntadr[body]
    free = bool(first >= 0 and model.jnt_type[first] == mujoco.mjtJoint.mjJNT_FREE)
    if family == "object":
        return by_hand if mocap else free and model.body(body).name not in scene_members(model, "shape")
    still = bool(model.body_weldid[body] == 0)
    return not mocap and (still if family == "body" else not still and not free and mass)


def find_fixed_geoms(model: mujoco.MjModel) -> NDArray[np.intp]:
    """Return the ids of the geoms that are fixed to the world, except those of mocap bodies."""
    body = model.geom_bodyid
    return np.flatnonzero((model.body_weldid[body] == 0) & (model.body_mocapid[model.body_rootid[body]] < 0))


def has_quantity(model: mujoco.MjModel, quantity: Quantity, name: str) -> bool:
    """Return whether an object has a quantity; for example, only a position servo has a gain."""
    return quantity.lacks is None or not quantity.lacks(model, name)


def model_field(model: mujoco.MjModel, field: str) -> NDArray:
    """Return a field of a model by name; names such as ``opt.gravity`` give fields of ``model.opt``."""
    owner, _, name = field.rpartition(".")
    return np.asarray(getattr(model.opt if owner else model, name))


def _find_rotor_rows(model: mujoco.MjModel, _name: str, field: str) -> NDArray[np.intp]:
    return carrier_dofs(model) if field == "dof_damping" else rotor_rows(model)


_OWN_ROWS = {ROTORS: _find_rotor_rows, SOFT: soft_rows}  # families of which one object has several rows of a field


def find_rows(model: mujoco.MjModel, quantity: Quantity, name: str, field: str) -> NDArray[np.intp]:
    """Return the rows of a model field that belong to an object.

    Fields of ``model.opt`` and texture data have one row, 0. The position gain of a PID controller is in its bias only.

    Args:
        model: Compiled model.
        quantity: Declaration of the quantity.
        name: Name of the object.
        field: Name of the field.
    """
    family = quantity.family
    if field.startswith("opt.") or field == "tex_data":
        return np.zeros(1, dtype=np.intp)
    if family in _OWN_ROWS:
        return _OWN_ROWS[family](model, name, field)
    if quantity.quantity in ("kp", "firmware_gain") and field == "actuator_gainprm" and is_pid(model, name):
        return np.zeros(0, dtype=np.intp)  # the field is the integral gain ki
    if field.startswith("dof_"):
        return np.atleast_1d(model.jnt_dofadr[find_motor_joint(model, name)]).astype(np.intp)
    if field.startswith("tendon_") and family == "joint":
        return np.array([model.tendon(GEAR.format(name)).id])
    if field.startswith("qpos_"):
        return np.atleast_1d(model.joint(name).qposadr)
    if field.startswith("geom_") and family in {"object", "link"}:
        return np.flatnonzero(model.geom_bodyid == model.body(name).id)
    if field.startswith("geom_") and family == "texture":
        return np.flatnonzero(model.geom_matid == model.material(name).id)
    if quantity.quantity == "payload":
        name = f"payload/{name}"
    accessor = {
        "joint": model.joint,
        "actuator": model.actuator,
        "object": model.body,
        "link": model.body,
        "body": model.body,
        "geom": model.geom,
        "camera": model.camera,
        "light": model.light,
        "material": model.material,
    }[family]
    return np.array([accessor(name).id])


def nominal_value(model: mujoco.MjModel, quantity: Quantity, name: str) -> float:
    """Return the nominal value of a quantity of one object, in SI units.

    It is the quantity's default, or the value in the compiled model.
    """
    if quantity.default is not None:
        return quantity.default
    if quantity.nominal is not None:
        return float(quantity.nominal(model, name))
    if quantity.stage == "reset":
        body = model.body(name)
        position = model.body_pos[body.id]
        return float(position["xyz".index(quantity.quantity[-1])])
    slot = next((s for s in quantity.slots if s.factor > 0), quantity.slots[0])
    field = model_field(model, slot.field)
    values = (field[None] if slot.field.startswith("opt.") else field)[find_rows(model, quantity, name, slot.field)]
    if slot.column is not None:
        values = values[..., slot.column]
    return float(np.ravel(values)[0]) / slot.factor
