"""Compute physically consistent mass, centre of mass, inertia and size, also as a deformation of the nominal body.

Inertia is computed with the second moments of mass along the principal axes, S_x = ∫ x² dm and so on, where I_xx = S_y
+ S_z. Every set of non-negative second moments belongs to some distribution of mass (Wensing, Kim, Slotine, "Linear
matrix inequalities for physically consistent inertial parameter identification", RA-L 2018). Scaling them keeps the
triangle inequality; scaling I_xx, I_yy, I_zz one by one would not.

Let J = ∫ (x, 1)(x, 1)ᵀ dm be the pseudo-inertia, 4 × 4, of the nominal body in its inertial frame: a diagonal matrix of
the second moments and the mass. Points x are moved to A x + t, and all mass is scaled by exp(2 α), so that

    J → U J Uᵀ,    U = exp(α) [A t; 0 1],    A = [exp(d1) s12 s13; 0 exp(d2) s23; 0 0 exp(d3)].

These are the log-Cholesky coordinates of Rucker and Wensing ("Smooth Parameterization of Rigid-Body Inertia", RA-L
2022) relative to the nominal body. The ten numbers α, d1 to d3, s12 to s23 and t1 to t3 have no bounds and are all 0
for the nominal body. Every possible body has exactly one set of them, so an optimizer cannot leave the possible bodies.
A and t are in the nominal inertial frame; t moves the centre of mass along the nominal principal axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from twinloop.twin.quantities.kinds import Compute, FitDeclaration, ObjectWriter, Prior, Quantity
from twinloop.twin.quantities.rotation import quat_multiply, rotate_vectors, rotation_matrix

_BOX_LIKE = {int(mujoco.mjtGeom.mjGEOM_BOX), int(mujoco.mjtGeom.mjGEOM_ELLIPSOID)}
_SPHERE = int(mujoco.mjtGeom.mjGEOM_SPHERE)
_CYLINDER = int(mujoco.mjtGeom.mjGEOM_CYLINDER)
_CAPSULE = int(mujoco.mjtGeom.mjGEOM_CAPSULE)
_PRIMITIVES = _BOX_LIKE | {_SPHERE, _CYLINDER, _CAPSULE}
_ALIGNED = 1e-6  # tolerance within which an axis of a geom counts as an axis of its body


def second_moments(inertia: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the second moments of mass ∫ x² dm, ∫ y² dm, ∫ z² dm along the principal axes, shape ``(…, 3)``.

    S_x = (I_yy + I_zz − I_xx) / 2, and so on.

    Args:
        inertia: Principal inertias in kg·m², shape ``(…, 3)``.
    """
    return 0.5 * inertia.sum(axis=-1, keepdims=True) - inertia


def scaled_inertia(inertia: NDArray[np.float64], factors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the principal inertias after scaling the second moments of mass, shape ``(n, 3)``.

    Args:
        inertia: Nominal principal inertias in kg·m², shape ``(3,)``.
        factors: Factors on the second moments in n worlds, shape ``(n, 3)``.
    """
    more = (factors - 1.0) * second_moments(inertia)
    return inertia + (np.roll(more, -1, axis=-1) + np.roll(more, -2, axis=-1))


def write_object_body(target: ObjectWriter) -> None:
    """Write mass, centre of mass, inertia and size of a free object into the model fields.

    A size factor changes the inertia but not the mass.
    """
    model, body = target.model, target.model.body(target.name).id
    scale = target.value("size")[:, None] * target.vector("size")
    axes = _nearest_body_axes(model.body_iquat[body])
    _write_inertial(target, scale, scale[:, axes] ** 2)
    for geom in target.rows("geom_size"):
        along = scale[:, _nearest_body_axes(model.geom_quat[geom])]
        target.write_field("geom_size", [geom], (model.geom_size[geom] * _size_factors(model, geom, along))[:, None])
        target.write_field("geom_pos", [geom], (model.geom_pos[geom] * scale)[:, None])


def write_link_body(target: ObjectWriter) -> None:
    """Write mass, centre of mass and inertia of a robot's link into the model fields.

    A controller with gravity compensation (``gravcomp``) uses the nominal mass. Its force therefore does not change
    with the mass, but it acts at the link's current centre of mass.
    """
    model, body = target.model, target.model.body(target.name).id
    _write_inertial(target, np.ones((1, 3)), np.ones((1, 3)))
    compensation = model.body_gravcomp[body] * (model.body_mass[body] / target.value("mass"))
    target.write_field("body_gravcomp", [body], compensation[:, None])


def _write_inertial(target: ObjectWriter, scale: NDArray[np.float64], stretch: NDArray[np.float64]) -> None:
    """Write mass, centre of mass and principal inertias of an object's body.

    Args:
        target: The object.
        scale: Factors on lengths along the body's axes, shape ``(n, 3)`` for n worlds.
        stretch: Factors on second moments of mass along the principal axes, shape ``(n, 3)``. They are multiplied by
            the object's inertia parameters.
    """
    model, body = target.model, target.model.body(target.name).id
    mass, factors = target.value("mass"), target.vector("inertia") * stretch
    inertia = scaled_inertia(model.body_inertia[body], factors) * (mass / model.body_mass[body])[:, None]
    target.write_field("body_mass", [body], mass[:, None])
    target.write_field("body_ipos", [body], (model.body_ipos[body] * scale + target.vector("com"))[:, None])
    target.write_field("body_inertia", [body], inertia[:, None])


def _nearest_body_axes(quaternion: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the index of the nearest body axis for each axis of a rotated frame, shape ``(3,)``.

    With it, size factors along the body's axes are applied along the axes of this frame: the body's inertial frame or
    the frame of a geom.

    Args:
        quaternion: Orientation of the frame relative to the body, (w, x, y, z).
    """
    return np.abs(rotation_matrix(quaternion)).argmax(axis=0)


def _is_aligned(quaternion: NDArray[np.float64]) -> bool:
    return bool(np.all(np.abs(rotation_matrix(quaternion)).max(axis=0) > 1.0 - _ALIGNED))


def _size_factors(model: mujoco.MjModel, geom: int, along: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the factors on the three ``geom_size`` values of a geom, shape ``(n, 3)`` for n worlds.

    Args:
        model: Compiled model.
        geom: Geom id.
        along: Scale factors along the geom's axes, shape ``(n, 3)``.
    """
    if int(model.geom_type[geom]) in {_CYLINDER, _CAPSULE}:  # radius, half length
        return along[:, [0, 2, 2]]
    return along


def explain_missing_size(model: mujoco.MjModel, name: str) -> str:
    """Return the reason why an object cannot be scaled as a whole, or an empty text."""
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


def explain_missing_size_along(model: mujoco.MjModel, name: str, *, axis: int) -> str:
    """Return the reason why an object cannot be scaled along one of its axes only, or an empty text.

    Boxes and ellipsoids can be scaled along each of their axes, cylinders only along their length.

    Args:
        model: Compiled model.
        name: Name of the object.
        axis: Axis of the body: 0, 1 or 2 for x, y or z.
    """
    body = model.body(name).id
    geoms = np.flatnonzero(model.geom_bodyid == body)
    if reason := explain_missing_size(model, name):
        return reason
    if not (_is_aligned(model.body_iquat[body]) and all(_is_aligned(model.geom_quat[geom]) for geom in geoms)):
        return "a shape or the principal axes are not parallel to its axes. Scale it as a whole with size"
    if all(_can_stretch(model, int(geom), axis) for geom in geoms):
        return ""
    return f"not every shape of it can be scaled along {'xyz'[axis]} alone. Scale it as a whole with size"


def _can_stretch(model: mujoco.MjModel, geom: int, axis: int) -> bool:
    kind = int(model.geom_type[geom])
    return kind in _BOX_LIKE or (kind == _CYLINDER and _nearest_body_axes(model.geom_quat[geom])[2] == axis)


def explain_missing_com(model: mujoco.MjModel, name: str) -> str:
    """Return the reason why a body's centre of mass cannot be changed, or an empty text.

    The body has no mass, or MuJoCo has compiled it as a "simple" body.
    """
    if reason := explain_missing_mass(model, name):
        return reason
    simple = model.body_simple[model.body(name).id]
    return 'it is compiled as simple. Give the body simple="false" in the model' if simple else ""


def explain_missing_mass(model: mujoco.MjModel, name: str) -> str:
    """Return the reason why a body has no inertial parameters (it has no mass), or an empty text."""
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

    Attributes:
        mass: Mass in kg, shape ``(n,)``.
        com: Centre of mass in the body frame in m, shape ``(n, 3)``.
        quat: Orientation of the inertial frame in the body frame, quaternions (w, x, y, z), shape ``(n, 4)``.
        inertia: Principal inertias about the centre of mass in kg·m², shape ``(n, 3)``.
    """

    mass: Array
    com: Array
    quat: Array
    inertia: Array


def deform_body(nominal: BodyInertia, alpha: Array, stretch: Array, shift: Array) -> BodyInertia:
    """Return the inertial properties of n copies of a nominal body in which each point x is moved to A x + t.

    Args:
        nominal: The nominal body, with n = 1.
        alpha: α in the factor exp(2 α) on the mass, shape ``(n,)``.
        stretch: Matrices A of the deformation x → A x + t, shape ``(n, 3, 3)``.
        shift: Vectors t of the deformation in m, shape ``(n, 3)``.
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
    """Return the second moments and the principal axes of covariance matrices of mass.

    Moments have the same order by size as the nominal moments, for example the largest one at the same index. Each axis
    has an angle of at most 90° to its nominal axis, and the axes form a right-handed frame.

    Args:
        spread: Covariance matrices of mass, shape ``(n, 3, 3)``.
        nominal: Nominal second moments, shape ``(3,)``.

    Returns:
        The second moments, shape ``(n, 3)``, and the axes as columns, shape ``(n, 3, 3)``.
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
    """Return the inertial properties of a body in the compiled model, as one world (n = 1)."""
    body = model.body(name).id
    return BodyInertia(
        mass=model.body_mass[[body]],
        com=model.body_ipos[[body]],
        quat=model.body_iquat[[body]],
        inertia=model.body_inertia[[body]],
    )


def _write_deformed(target: ObjectWriter) -> BodyInertia:
    """Write the inertia that the ``log_cholesky`` parameters of an object define, and return it.

    The parameters are log-Cholesky coordinates of the pseudo-inertia (Rucker and Wensing, RA-L 2022). They describe a
    deformation of the nominal body; see the module's docstring.
    """
    body = target.model.body(target.name).id
    alpha = target.value(f"{_STEM}/alpha")
    stretch = np.zeros((len(alpha), 3, 3))
    for name, (row, column) in _STRETCHES.items():
        stretch[:, row, column] = np.exp(target.value(f"{_STEM}/{name}"))
    for name, (row, column) in _SHEARS.items():
        stretch[:, row, column] = target.value(f"{_STEM}/{name}")
    shift = np.stack([target.value(f"{_STEM}/{name}") for name in _SHIFTS], axis=-1)
    deformed = deform_body(read_body_inertia(target.model, target.name), alpha, stretch, shift)
    target.write_field("body_mass", [body], deformed.mass[:, None])
    target.write_field("body_ipos", [body], deformed.com[:, None])
    target.write_field("body_iquat", [body], deformed.quat[:, None])
    target.write_field("body_inertia", [body], deformed.inertia[:, None])
    return deformed


def write_object_log_cholesky(target: ObjectWriter) -> None:
    """Write mass, centre of mass and inertia of a free object, computed from its log-Cholesky parameters."""
    _write_deformed(target)


def write_link_log_cholesky(target: ObjectWriter) -> None:
    """Write mass, centre of mass and inertia of a link, computed from its log-Cholesky parameters.

    Gravity compensation uses the nominal mass, as in `write_link_body`.
    """
    model, body = target.model, target.model.body(target.name).id
    deformed = _write_deformed(target)
    compensation = model.body_gravcomp[body] * (model.body_mass[body] / deformed.mass)
    target.write_field("body_gravcomp", [body], compensation[:, None])


def _explain_missing_deformation(model: mujoco.MjModel, name: str) -> str:
    """Return the reason why a body cannot be deformed, or an empty text.

    A deformable body needs second moments of mass above zero along every axis.
    """
    if reason := explain_missing_com(model, name):
        return reason
    moments = second_moments(read_body_inertia(model, name).inertia[0])
    return "" if moments.min() > 0.0 else "its nominal inertia has no extent along some axis. Give it one in the model"


def log_cholesky_quantities(family: str, compute: Compute, *, fields: tuple[str, ...]) -> Iterator[Quantity]:
    """Yield the ten log-Cholesky quantities of mass, centre of mass and inertia of a family of bodies.

    Args:
        family: ``object`` or ``link``.
        compute: Function that computes the model fields of these quantities together.
        fields: Names of the model fields that ``compute`` writes.
    """

    def quantity(name: str, unit: str, most: float, meaning: str) -> Quantity:
        lacks: Callable[[mujoco.MjModel, str], str] = _explain_missing_deformation
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
