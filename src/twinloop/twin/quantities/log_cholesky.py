"""The ten inertial parameters of a body as a deformation of the nominal one: every value is a body that could exist.

Let J = ∫ (x, 1)(x, 1)ᵀ dm be the pseudo-inertia, 4 × 4, of the nominal body in its inertial frame: diagonal, second
moments of mass and the mass. Points x of it are moved to A x + t and all mass is scaled by exp(2 α), so that

    J → U J Uᵀ,    U = exp(α) [A t; 0 1],    A = [exp(d1) s12 s13; 0 exp(d2) s23; 0 0 exp(d3)].

These are the log-Cholesky coordinates of Rucker and Wensing ("Smooth Parameterization of Rigid-Body Inertia", RA-L
2022) relative to the nominal body: ten numbers without bounds, 0 for the nominal body, one set for each body that is
possible. A and t are in the nominal inertial frame: t moves the centre of mass along the nominal principal axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from twinloop.twin.quantities.kinds import Compute, Quantity, Target
from twinloop.twin.quantities.rigid import no_com, second_moments
from twinloop.twin.quantities.rotation import quat_multiply, rotate

Array = NDArray[np.float64]
INERTIAL_FIELDS = ("body_mass", "body_ipos", "body_iquat", "body_inertia")
_STRETCHES = {"d1": (0, 0), "d2": (1, 1), "d3": (2, 2)}
_SHEARS = {"s12": (0, 1), "s13": (0, 2), "s23": (1, 2)}
_SHIFTS = ("t1", "t2", "t3")
_STEM = "log_cholesky"
_MOST_STRETCH = 3.0  # e³ is a factor of 20 on lengths, e⁶ of 400 on the mass: far beyond any error of a drawing


@dataclass(frozen=True, kw_only=True)
class Inertial:
    """What a body weighs and how, in every world.

    ``mass`` ``(n,)`` in kg, ``com`` ``(n, 3)`` in m and ``quat`` ``(n, 4)`` of the inertial frame in the body's,
    principal ``inertia`` ``(n, 3)`` in kg·m² about the centre of mass.
    """

    mass: Array
    com: Array
    quat: Array
    inertia: Array


def deformed(nominal: Inertial, alpha: Array, stretch: Array, shift: Array) -> Inertial:
    """Bodies ``(n,)`` that a nominal one (n = 1) becomes.

    Args:
        nominal: the body.
        alpha: half the logarithm of the factor on the mass, ``(n,)``.
        stretch: the matrices A, ``(n, 3, 3)``.
        shift: the vectors t in m, ``(n, 3)``.
    """
    mass_factor = np.exp(2.0 * alpha)
    moments = second_moments(nominal.inertia[0])
    spread = np.einsum("nij,j,nkj->nik", stretch, moments, stretch)
    sizes, axes = _principal(spread, moments)
    quat = Rotation.from_matrix(axes).as_quat(scalar_first=True)
    principal = (sizes.sum(axis=-1, keepdims=True) - sizes) * mass_factor[:, None]
    return Inertial(
        mass=nominal.mass[0] * mass_factor,
        com=nominal.com[0] + rotate(nominal.quat[0], shift),
        quat=quat_multiply(np.broadcast_to(nominal.quat[0], quat.shape), quat),
        inertia=principal,
    )


def _principal(spread: Array, nominal: Array) -> tuple[Array, Array]:
    """Second moments ``(n, 3)`` and axes ``(n, 3, 3)`` of covariances, in the order of size of the nominal ones.

    Columns are turned to the side of the nominal axes, and form a right-handed frame.
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


def body_inertial(model: mujoco.MjModel, name: str) -> Inertial:
    """A body as the model has it."""
    body = model.body(name).id
    return Inertial(
        mass=model.body_mass[[body]],
        com=model.body_ipos[[body]],
        quat=model.body_iquat[[body]],
        inertia=model.body_inertia[[body]],
    )


def _deform(target: Target) -> Inertial:
    """Put the inertial fields of a thing's body."""
    body = target.model.body(target.name).id
    alpha = target.value(f"{_STEM}/alpha")
    stretch = np.zeros((len(alpha), 3, 3))
    for name, (row, column) in _STRETCHES.items():
        stretch[:, row, column] = np.exp(target.value(f"{_STEM}/{name}"))
    for name, (row, column) in _SHEARS.items():
        stretch[:, row, column] = target.value(f"{_STEM}/{name}")
    shift = np.stack([target.value(f"{_STEM}/{name}") for name in _SHIFTS], axis=-1)
    found = deformed(body_inertial(target.model, target.name), alpha, stretch, shift)
    target.put("body_mass", [body], found.mass[:, None])
    target.put("body_ipos", [body], found.com[:, None])
    target.put("body_iquat", [body], found.quat[:, None])
    target.put("body_inertia", [body], found.inertia[:, None])
    return found


def object_log_cholesky(target: Target) -> None:
    """The inertial fields of a free object."""
    _deform(target)


def link_log_cholesky(target: Target) -> None:
    """The inertial fields of a link; what compensates gravity knows the nominal mass, see `rigid.link_body`."""
    model, body = target.model, target.model.body(target.name).id
    found = _deform(target)
    known = model.body_gravcomp[body] * (model.body_mass[body] / found.mass)
    target.put("body_gravcomp", [body], known[:, None])


def _no_deformation(model: mujoco.MjModel, name: str) -> str:
    """Why a body cannot be deformed, or nothing: a body without extent has no second moments to stretch."""
    if reason := no_com(model, name):
        return reason
    moments = second_moments(body_inertial(model, name).inertia[0])
    return "" if moments.min() > 0.0 else "its nominal inertia has no extent along some axis. Give it one in the model"


def log_cholesky(family: str, compute: Compute, *, fields: tuple[str, ...]) -> Iterator[Quantity]:
    """The ten quantities of one body, which one function computes together."""

    def quantity(name: str, unit: str, most: float, meaning: str) -> Quantity:
        lacks: Callable[[mujoco.MjModel, str], str] = _no_deformation
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
        )

    yield quantity("alpha", "1", _MOST_STRETCH, "half the logarithm of the factor on the mass; lengths stay")
    for number, name in enumerate(_STRETCHES):
        axis = ("first", "second", "third")[number]
        yield quantity(
            name, "1", _MOST_STRETCH, f"logarithm of the stretch of all mass along the {axis} nominal principal axis"
        )
    for name in _SHEARS:
        yield quantity(
            name, "1", 10.0, f"shear: mass moves along principal axis {name[1]} by this times its place along {name[2]}"
        )
    for number, name in enumerate(_SHIFTS):
        axis = ("first", "second", "third")[number]
        yield quantity(name, "m", 1.0, f"shift of the centre of mass along the {axis} nominal principal axis")
