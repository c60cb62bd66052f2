"""Compute physically consistent mass, centre of mass, inertia and size, also as a deformation of the nominal body.

Inertia is handled through the second moments of mass along the principal axes, S_x = ∫ x² dm and so on, where
I_xx = S_y + S_z. Every set of non-negative second moments is that of some distribution of mass
(Wensing, Kim, Slotine, "Linear matrix inequalities for physically consistent inertial parameter identification",
RA-L 2018). Scaling them keeps the triangle inequality; scaling I_xx, I_yy, I_zz one by one would not.

Let J = ∫ (x, 1)(x, 1)ᵀ dm be the pseudo-inertia, 4 × 4, of the nominal body in its inertial frame: a diagonal matrix
of the second moments and the mass. Points x are moved to A x + t and all mass is scaled by exp(2 α), so that

    J → U J Uᵀ,    U = exp(α) [A t; 0 1],    A = [exp(d1) s12 s13; 0 exp(d2) s23; 0 0 exp(d3)].

These are the log-Cholesky coordinates of Rucker and Wensing ("Smooth Parameterization of Rigid-Body Inertia", RA-L
2022) relative to the nominal body: ten unbounded numbers, all 0 for the nominal body; every possible body has exactly
one set. A and t are in the nominal inertial frame: t moves the centre of mass along the nominal principal axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from twinloop.twin.quantities.kinds import Compute, FitDeclaration, Prior, Quantity, WriteTarget
from twinloop.twin.quantities.rotation import quat_multiply, rotate_vectors, rotation_matrix

_BOX_LIKE = {int(mujoco.mjtGeom.mjGEOM_BOX), int(mujoco.mjtGeom.mjGEOM_ELLIPSOID)}
_SPHERE = int(mujoco.mjtGeom.mjGEOM_SPHERE)
_CYLINDER = int(mujoco.mjtGeom.mjGEOM_CYLINDER)
_CAPSULE = int(mujoco.mjtGeom.mjGEOM_CAPSULE)
_PRIMITIVES = _BOX_LIKE | {_SPHERE, _CYLINDER, _CAPSULE}
_ALIGNED = 1e-6  # tolerance within which an axis of a geom counts as an axis of its body


def second_moments(inertia: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return second moments of mass from principal inertias ``(…, 3)``: S_x = (I_yy + I_zz − I_xx) / 2."""
    return 0.5 * inertia.sum(axis=-1, keepdims=True) - inertia


def scaled_inertia(inertia: NDArray[np.float64], factors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``(n, 3)`` principal inertias: second moments of ``inertia`` ``(3,)`` times ``factors`` ``(n, 3)``."""
    more = (factors - 1.0) * second_moments(inertia)
    return inertia + (np.roll(more, -1, axis=-1) + np.roll(more, -2, axis=-1))


def write_object_body(target: WriteTarget) -> None:
    """Compute a free object's mass, centre of mass, inertia and size; a size factor does not change the mass."""
    model, body = target.model, target.model.body(target.name).id
    scale = target.value("size")[:, None] * target.vector("size")
    axes = _nearest_body_axes(model.body_iquat[body])
    _write_inertial(target, scale, scale[:, axes] ** 2)
    for geom in target.rows("geom_size"):
        along = scale[:, _nearest_body_axes(model.geom_quat[geom])]
        target.write_field("geom_size", [geom], (model.geom_size[geom] * _size_factors(model, geom, along))[:, None])
        target.write_field("geom_pos", [geom], (model.geom_pos[geom] * scale)[:, None])


def write_link_body(target: WriteTarget) -> None:
    """Compute mass, centre of mass and inertia of a robot's link.

    A controller with gravity compensation (``gravcomp``) uses the nominal mass: its force does not change, but acts at
    the link's current centre of mass.
    """
    model, body = target.model, target.model.body(target.name).id
    _write_inertial(target, np.ones((1, 3)), np.ones((1, 3)))
    known = model.body_gravcomp[body] * (model.body_mass[body] / target.value("mass"))
    target.write_field("body_gravcomp", [body], known[:, None])


def _write_inertial(target: WriteTarget, scale: NDArray[np.float64], stretch: NDArray[np.float64]) -> None:
    """Write mass, centre of mass and principal inertias.

    Args:
        scale: factors on lengths along the body's axes, ``(n, 3)``.
        stretch: factors on second moments along the inertial axes, ``(n, 3)``, in addition to the parameters'.
    """
    model, body = target.model, target.model.body(target.name).id
    mass, factors = target.value("mass"), target.vector("inertia") * stretch
    inertia = scaled_inertia(model.body_inertia[body], factors) * (mass / model.body_mass[body])[:, None]
    target.write_field("body_mass", [body], mass[:, None])
    target.write_field("body_ipos", [body], (model.body_ipos[body] * scale + target.vector("com"))[:, None])
    target.write_field("body_inertia", [body], inertia[:, None])


def _nearest_body_axes(quaternion: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return, for each axis of a rotated frame, the index of the nearest body axis, ``(3,)``."""
    return np.abs(rotation_matrix(quaternion)).argmax(axis=0)


def _is_aligned(quaternion: NDArray[np.float64]) -> bool:
    return bool(np.all(np.abs(rotation_matrix(quaternion)).max(axis=0) > 1.0 - _ALIGNED))


def _size_factors(model: mujoco.MjModel, geom: int, along: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return factors ``(n, 3)`` on a geom's three size numbers for scales ``along`` ``(n, 3)`` of its own axes."""
    if int(model.geom_type[geom]) in {_CYLINDER, _CAPSULE}:  # radius, half length
        return along[:, [0, 2, 2]]
    return along


def why_no_size(model: mujoco.MjModel, name: str) -> str:
    """Return why an object cannot be scaled as a whole, or ""."""
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


def why_no_size_along(model: mujoco.MjModel, name: str, *, axis: int) -> str:
    """Return why an object cannot be scaled along one of its axes only, or "".

    Boxes and ellipsoids can be scaled along each of their axes, cylinders only along their length.
    """
    body = model.body(name).id
    geoms = np.flatnonzero(model.geom_bodyid == body)
    if reason := why_no_size(model, name):
        return reason
    if not (_is_aligned(model.body_iquat[body]) and all(_is_aligned(model.geom_quat[geom]) for geom in geoms)):
        return "a shape or the principal axes are not parallel to its axes. Scale it as a whole with size"
    if all(_can_stretch(model, int(geom), axis) for geom in geoms):
        return ""
    return f"not every shape of it can be scaled along {'xyz'[axis]} alone. Scale it as a whole with size"


def _can_stretch(model: mujoco.MjModel, geom: int, axis: int) -> bool:
    kind = int(model.geom_type[geom])
    return kind in _BOX_LIKE or (kind == _CYLINDER and _nearest_body_axes(model.geom_quat[geom])[2] == axis)


def why_no_com(model: mujoco.MjModel, name: str) -> str:
    """Return why a body's centre of mass cannot be changed, or ""."""
    if reason := why_no_mass(model, name):
        return reason
    simple = model.body_simple[model.body(name).id]
    return 'it is compiled as simple. Give the body simple="false" in the model' if simple else ""


def why_no_mass(model: mujoco.MjModel, name: str) -> str:
    """Return why a body has no inertial parameters, or ""."""
    return "" if model.body_mass[model.body(name).id] > 0 else "it has no mass"


Array = NDArray[np.float64]
INERTIAL_FIELDS = ("body_mass", "body_ipos", "body_iquat", "body_inertia")
_STRETCHES = {"d1": (0, 0), "d2": (1, 1), "d3": (2, 2)}
_SHEARS = {"s12": (0, 1), "s13": (0, 2), "s23": (1, 2)}
_SHIFTS = ("t1", "t2", "t3")
_STEM = "log_cholesky"
_MOST_STRETCH = 3.0  # e³ is a factor of 20 on lengths, e⁶ of 400 on the mass: far more than any error of a drawing


@dataclass(frozen=True, kw_only=True)
class BodyInertia:
    """Inertial properties of a body in n worlds.

    ``mass`` ``(n,)`` in kg, ``com`` ``(n, 3)`` in m and ``quat`` ``(n, 4)`` of the inertial frame in the body frame,
    principal ``inertia`` ``(n, 3)`` in kg·m² about the centre of mass.
    """

    mass: Array
    com: Array
    quat: Array
    inertia: Array


def deform_body(nominal: BodyInertia, alpha: Array, stretch: Array, shift: Array) -> BodyInertia:
    """Return the inertial properties of n deformed copies of a nominal body.

    Args:
        nominal: the nominal body, with n = 1.
        alpha: half the logarithm of the factor on the mass, ``(n,)``.
        stretch: the matrices A, ``(n, 3, 3)``.
        shift: the vectors t in m, ``(n, 3)``.
    """
    mass_factor = np.exp(2.0 * alpha)
    moments = second_moments(nominal.inertia[0])
    spread = np.einsum("nij,j,nkj->nik", stretch, moments, stretch)
    sizes, axes = _principal_axes(spread, moments)
    quat = Rotation.from_matrix(axes).as_quat(scalar_first=True)
    principal = (sizes.sum(axis=-1, keepdims=True) - sizes) * mass_factor[:, None]
    return BodyInertia(
        mass=nominal.mass[0] * mass_factor,
        com=nominal.com[0] + rotate_vectors(nominal.quat[0], shift),
        quat=quat_multiply(np.broadcast_to(nominal.quat[0], quat.shape), quat),
        inertia=principal,
    )


def _principal_axes(spread: Array, nominal: Array) -> tuple[Array, Array]:
    """Return second moments ``(n, 3)`` and axes ``(n, 3, 3)`` of covariances, sorted by size as the nominal ones.

    The axes are columns. Each points to the side of its nominal axis, and they form a right-handed frame.
    """
    sizes, axes = np.linalg.eigh(spread)
    order = np.argsort(np.argsort(nominal, kind="stable"), kind="stable")
    sizes, axes = np.maximum(sizes[:, order], 0.0), axes[:, :, order]
    along = np.einsum("nii->ni", axes)
    axes = axes * np.where(along < 0.0, -1.0, 1.0)[:, None, :]
    weakest = np.abs(along).argmin(axis=-1)
    mirrored = np.linalg.det(axes) < 0.0
    axes[mirrored, :, weakest[mirrored]] *= -1.0
    return sizes, axes


def read_body_inertia(model: mujoco.MjModel, name: str) -> BodyInertia:
    """Return the inertial properties of a body in the compiled model, with n = 1."""
    body = model.body(name).id
    return BodyInertia(
        mass=model.body_mass[[body]],
        com=model.body_ipos[[body]],
        quat=model.body_iquat[[body]],
        inertia=model.body_inertia[[body]],
    )


def _write_deformed(target: WriteTarget) -> BodyInertia:
    """Write the inertial fields of an object's body, and return them."""
    body = target.model.body(target.name).id
    alpha = target.value(f"{_STEM}/alpha")
    stretch = np.zeros((len(alpha), 3, 3))
    for name, (row, column) in _STRETCHES.items():
        stretch[:, row, column] = np.exp(target.value(f"{_STEM}/{name}"))
    for name, (row, column) in _SHEARS.items():
        stretch[:, row, column] = target.value(f"{_STEM}/{name}")
    shift = np.stack([target.value(f"{_STEM}/{name}") for name in _SHIFTS], axis=-1)
    found = deform_body(read_body_inertia(target.model, target.name), alpha, stretch, shift)
    target.write_field("body_mass", [body], found.mass[:, None])
    target.write_field("body_ipos", [body], found.com[:, None])
    target.write_field("body_iquat", [body], found.quat[:, None])
    target.write_field("body_inertia", [body], found.inertia[:, None])
    return found


def write_object_log_cholesky(target: WriteTarget) -> None:
    """Compute the inertial fields of a free object."""
    _write_deformed(target)


def write_link_log_cholesky(target: WriteTarget) -> None:
    """Compute the inertial fields of a link; gravity compensation uses the nominal mass, see `write_link_body`."""
    model, body = target.model, target.model.body(target.name).id
    found = _write_deformed(target)
    known = model.body_gravcomp[body] * (model.body_mass[body] / found.mass)
    target.write_field("body_gravcomp", [body], known[:, None])


def _why_no_deformation(model: mujoco.MjModel, name: str) -> str:
    """Return why a body cannot be deformed, or "": it needs second moments above zero along every axis."""
    if reason := why_no_com(model, name):
        return reason
    moments = second_moments(read_body_inertia(model, name).inertia[0])
    return "" if moments.min() > 0.0 else "its nominal inertia has no extent along some axis. Give it one in the model"


def log_cholesky_quantities(family: str, compute: Compute, *, fields: tuple[str, ...]) -> Iterator[Quantity]:
    """Yield the ten quantities of one body, which the function ``compute`` writes together."""

    def quantity(name: str, unit: str, most: float, meaning: str) -> Quantity:
        lacks: Callable[[mujoco.MjModel, str], str] = _why_no_deformation
        return Quantity(
            family=family,
            quantity=f"{_STEM}/{name}",
            unit=unit,
            low=-most,
            high=most,
            default=0.0,
            compute=compute,
            writes=fields,
            lacks=lacks,
            set_const=True,
            meaning=meaning,
            cause="mass & inertia",
            fit=FitDeclaration(prior=Prior(spread=0.02 if unit == "m" else 0.3)),
        )

    yield quantity("alpha", "1", _MOST_STRETCH, "half the logarithm of the factor on the mass; lengths do not change")
    for number, name in enumerate(_STRETCHES):
        axis = ("first", "second", "third")[number]
        yield quantity(
            name, "1", _MOST_STRETCH, f"logarithm of the stretch of all mass along the {axis} nominal principal axis"
        )
    for name in _SHEARS:
        yield quantity(
            name, "1", 10.0, f"shear: mass moves along principal axis {name[1]} by this factor times axis {name[2]}"
        )
    for number, name in enumerate(_SHIFTS):
        axis = ("first", "second", "third")[number]
        yield quantity(name, "m", 1.0, f"shift of the centre of mass along the {axis} nominal principal axis")
