"""Rigid bodies: mass, centre of mass, inertia and size together, so that they stay those of a real body.

Inertia is handled through the second moments of mass along the principal axes, S_x = ∫ x² dm and so on, where
I_xx = S_y + S_z. Any second moments that are not negative belong to some distribution of mass
(Wensing, Kim, Slotine, "Linear matrix inequalities for physically consistent inertial parameter identification",
RA-L 2018). Scaling them keeps the triangle inequality; scaling I_xx, I_yy, I_zz one by one would not.
"""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.twin.quantities.kinds import Target
from twinloop.twin.quantities.rotation import matrix

_BOX_LIKE = {int(mujoco.mjtGeom.mjGEOM_BOX), int(mujoco.mjtGeom.mjGEOM_ELLIPSOID)}
_SPHERE = int(mujoco.mjtGeom.mjGEOM_SPHERE)
_CYLINDER = int(mujoco.mjtGeom.mjGEOM_CYLINDER)
_CAPSULE = int(mujoco.mjtGeom.mjGEOM_CAPSULE)
_PRIMITIVES = _BOX_LIKE | {_SPHERE, _CYLINDER, _CAPSULE}
_ALIGNED = 1e-6  # an axis of a geom counts as one of its body within this


def second_moments(inertia: NDArray[np.float64]) -> NDArray[np.float64]:
    """Second moments of mass of principal inertias ``(…, 3)``: S_x = (I_yy + I_zz − I_xx) / 2."""
    return 0.5 * inertia.sum(axis=-1, keepdims=True) - inertia


def scaled_inertia(inertia: NDArray[np.float64], factors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Principal inertias ``(n, 3)`` with the second moments of ``inertia`` ``(3,)`` times ``factors`` ``(n, 3)``."""
    more = (factors - 1.0) * second_moments(inertia)
    return inertia + (np.roll(more, -1, axis=-1) + np.roll(more, -2, axis=-1))


def object_body(target: Target) -> None:
    """Mass, centre of mass, inertia and size of a free object; a size changes volume and inertia at constant mass."""
    model, body = target.model, target.model.body(target.name).id
    scale = target.value("size")[:, None] * target.vector("size")
    axes = _body_axes(model.body_iquat[body])
    _write_inertial(target, scale, scale[:, axes] ** 2)
    for geom in target.rows("geom_size"):
        along = scale[:, _body_axes(model.geom_quat[geom])]
        target.put("geom_size", [geom], (model.geom_size[geom] * _size_factors(model, geom, along))[:, None])
        target.put("geom_pos", [geom], (model.geom_pos[geom] * scale)[:, None])


def link_body(target: Target) -> None:
    """Mass, centre of mass and inertia of a robot's link.

    A controller that compensates gravity (``gravcomp``) knows the nominal mass: its force stays what it was, and acts
    at the centre of mass that the link has now.
    """
    model, body = target.model, target.model.body(target.name).id
    _write_inertial(target, np.ones((1, 3)), np.ones((1, 3)))
    known = model.body_gravcomp[body] * (model.body_mass[body] / target.value("mass"))
    target.put("body_gravcomp", [body], known[:, None])


def _write_inertial(target: Target, scale: NDArray[np.float64], stretch: NDArray[np.float64]) -> None:
    """Put mass, centre of mass and principal inertias.

    Args:
        scale: of lengths along the body's axes, ``(n, 3)``.
        stretch: of second moments along the inertial axes, on top of the parameters'.
    """
    model, body = target.model, target.model.body(target.name).id
    mass, factors = target.value("mass"), target.vector("inertia") * stretch
    inertia = scaled_inertia(model.body_inertia[body], factors) * (mass / model.body_mass[body])[:, None]
    target.put("body_mass", [body], mass[:, None])
    target.put("body_ipos", [body], (model.body_ipos[body] * scale + target.vector("com"))[:, None])
    target.put("body_inertia", [body], inertia[:, None])


def _body_axes(quaternion: NDArray[np.float64]) -> NDArray[np.intp]:
    """For each axis of a turned frame the body's axis that it is nearest to."""
    return np.abs(matrix(quaternion)).argmax(axis=0)


def _aligned(quaternion: NDArray[np.float64]) -> bool:
    return bool(np.all(np.abs(matrix(quaternion)).max(axis=0) > 1.0 - _ALIGNED))


def _size_factors(model: mujoco.MjModel, geom: int, along: NDArray[np.float64]) -> NDArray[np.float64]:
    """Factors ``(n, 3)`` of a geom's three size numbers when its own axes are scaled by ``along``."""
    if int(model.geom_type[geom]) in {_CYLINDER, _CAPSULE}:  # radius, half length
        return along[:, [0, 2, 2]]
    return along


def no_size(model: mujoco.MjModel, name: str) -> str:
    """Why an object cannot be scaled as a whole, or nothing."""
    geoms = np.flatnonzero(model.geom_bodyid == model.body(name).id)
    others = [geom for geom in geoms if int(model.geom_type[geom]) not in _PRIMITIVES]
    if others:
        kind = mujoco.mjtGeom(int(model.geom_type[others[0]])).name.removeprefix("mjGEOM_").lower()
        what = model.geom(others[0]).name or f"geom {others[0]}"
        return (
            f"its shape {what} is a {kind}, and size scales boxes, ellipsoids, spheres, cylinders and capsules. "
            "Compile one twin for each size of a mesh"
        )
    return "" if len(geoms) else "it has no shape"


def no_size_along(model: mujoco.MjModel, name: str, *, axis: int) -> str:
    """Why an object cannot be scaled along one of its axes alone, or nothing.

    Boxes and ellipsoids stretch along every axis of theirs, a cylinder along its length.
    """
    body = model.body(name).id
    geoms = np.flatnonzero(model.geom_bodyid == body)
    if reason := no_size(model, name):
        return reason
    if not (_aligned(model.body_iquat[body]) and all(_aligned(model.geom_quat[geom]) for geom in geoms)):
        return "a shape or the principal axes are oblique to its axes. Scale it as a whole with size"
    if all(_stretches(model, int(geom), axis) for geom in geoms):
        return ""
    return f"not every shape of it can be scaled along {'xyz'[axis]} alone. Scale it as a whole with size"


def _stretches(model: mujoco.MjModel, geom: int, axis: int) -> bool:
    kind = int(model.geom_type[geom])
    return kind in _BOX_LIKE or (kind == _CYLINDER and _body_axes(model.geom_quat[geom])[2] == axis)


def no_com(model: mujoco.MjModel, name: str) -> str:
    """Why a body's centre of mass must stay where it is, or nothing."""
    if reason := no_mass(model, name):
        return reason
    simple = model.body_simple[model.body(name).id]
    return 'it is compiled as simple. Give the body simple="false" in the model' if simple else ""


def no_mass(model: mujoco.MjModel, name: str) -> str:
    """Why a body has no inertial parameters, or nothing."""
    return "" if model.body_mass[model.body(name).id] > 0 else "it has no mass of its own"
