"""Which objects of a model have a quantity, where it stands there, and what the model says it is."""

from __future__ import annotations

import mujoco
import numpy as np

from twinloop.twin.quantities.kinds import Quantity


def members(model: mujoco.MjModel, kind: Quantity) -> list[str]:
    """Names of the objects in a model that may have a quantity: scalar joints, actuators, movable bodies, and so on.

    A body moved by hand (mocap) has a position but no mass and no friction.
    """
    if kind.member:
        return [kind.member]
    family, quantity = kind.family, kind.quantity
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
    if family == "push":
        massive = (i for i in range(1, model.nbody) if model.body_mass[i] > 0 and model.body_mocapid[i] < 0)
        return [name for i in massive if (name := model.body(i).name)]
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
