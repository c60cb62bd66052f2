"""Declare the quantities of contacts: friction, stiffness, damping, restitution and impedance."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import BoundsError
from twinloop.twin.quantities.kinds import (
    PUBLISHED,
    Alias,
    DefaultRange,
    FitDeclaration,
    MissingPhysics,
    ObjectWriter,
    Prior,
    Quantity,
    field_slots,
)
from twinloop.twin.quantities.soft import FAMILY as SOFT
from twinloop.twin.quantities.soft import find_flex

_FRICTION = (
    ("slide", "1", "coefficient of sliding friction"),
    ("torsion", "m", "torsional friction: torque about the normal per newton; acts with condim 4 or 6"),
    ("roll", "m", "rolling friction: torque against rolling per newton; acts with condim 6"),
)
# MuJoCo's solimp (Modeling chapter, "Solver parameters"); MuJoCo limits its impedances to 0.0001 to 0.9999.
_IMPEDANCE = (
    ("d0", "1", 1e-4, 0.9999, "impedance at depth 0: 1 is a hard constraint, smaller values let contacts creep"),
    ("dwidth", "1", 1e-4, 0.9999, "impedance at the depth contact/impedance/width and beyond"),
    ("width", "m", 1e-6, 0.1, "depth over which the impedance goes from d0 to dwidth"),
)
_MOVED = ("object", SOFT)  # families whose objects a robot moves
# Damping ratios with restitution 0.997 and 2.5e-5: bounds of the search and of the parameter.
_LEAST_DAMPING, _MOST_DAMPING = 1e-3, 100.0


def restitution(damping_ratio: ArrayLike) -> NDArray[np.float64]:
    """Return the coefficient of restitution of a contact that is a linear spring and damper without adhesion.

    With the damping ratio ζ it is e = exp(−2 ζ arccos ζ / √(1 − ζ²)); above critical damping (ζ > 1), arccosh ζ and
    √(ζ² − 1) take the place of arccos ζ and √(1 − ζ²) (Schwager, Pöschel, "Coefficient of restitution and
    linear-dashpot model revisited", Granular Matter 2007).
    """
    zeta = np.asarray(damping_ratio, dtype=np.float64)
    root = np.sqrt(np.abs(1.0 - zeta**2))
    angle = np.where(zeta < 1.0, np.arccos(np.minimum(zeta, 1.0)), np.arccosh(np.maximum(zeta, 1.0)))
    return np.exp(-2.0 * zeta * np.divide(angle, root, out=np.ones_like(root), where=root > 1e-6))


def damping_ratio(restitution_: ArrayLike) -> NDArray[np.float64]:
    """Return the damping ratio of a contact with a given coefficient of restitution.

    This is the inverse of `restitution`, by bisection.
    """
    wanted = np.asarray(restitution_, dtype=np.float64)
    low, high = np.full(wanted.shape, np.log(_LEAST_DAMPING)), np.full(wanted.shape, np.log(_MOST_DAMPING))
    for _ in range(60):
        middle = 0.5 * (low + high)
        bouncy = restitution(np.exp(middle)) > wanted
        low, high = np.where(bouncy, middle, low), np.where(bouncy, high, middle)
    return np.exp(0.5 * (low + high))


def _solref_spring(solref: NDArray[np.float64]) -> tuple[float, float]:
    """Return contact stiffness in 1/s² and damping ratio, for both formats of MuJoCo's ``solref``."""
    first, second = solref
    if first > 0:
        return 1.0 / (first * second) ** 2, float(second)
    return float(-first), float(-second / (2.0 * np.sqrt(max(-first, 1e-12))))


def write_contact(target: ObjectWriter) -> None:
    """Write contact stiffness k and damping ratio ζ of a rigid object as MuJoCo's ``solref``, which is (1 / (ζ √k), ζ).

    At constant impedance d (MuJoCo's ``solimp``), the contact is a spring with stiffness k in 1/s² and damping ratio ζ.
    At rest its deflection is a₀ (1 − d) / k, where a₀ is the acceleration without contact.

    The first number of ``solref`` is the time constant τ. A contact in MuJoCo (Modeling chapter, "Solver parameters")
    obeys a + d (b v + k_r r) = (1 − d) a₀. Here a is the acceleration, r the penetration depth, and v the speed of r.
    The coefficients are b = 2 / (d_w τ) and k_r = d / (d_w² τ² ζ²). d_w is the impedance at large depth, the second
    number of ``solimp``. At constant impedance d = d_w, so that k = 1 / (τ ζ)².

    MuJoCo silently raises τ to at least two physics steps. A τ below this limit is an error, unless the τ of the
    compiled model is below it, too.

    Raises:
        BoundsError: If τ is below two physics steps, and the τ of the compiled model is not.
    """
    _write_spring(target, "geom_solref")


def write_soft_contact(target: ObjectWriter) -> None:
    """Write contact stiffness and damping ratio of a soft body, as `write_contact` does for a rigid object."""
    _write_spring(target, "flex_solref")


def _write_spring(target: ObjectWriter, field: str) -> None:
    rows = target.rows(field)
    stiffness, ratio = target.value("contact/stiffness"), target.value("contact/damping_ratio")
    bounce = target.value("contact/restitution")
    springs = [_solref_spring(solref) for solref in getattr(target.model, field)[rows]]
    nominal = restitution(springs[0][1])
    bouncing = bounce != nominal
    if bouncing.any():
        ratio = np.where(bouncing, damping_ratio(bounce), ratio)
    constant = 1.0 / (ratio * np.sqrt(stiffness))
    _check_time_constant(target, springs, constant, stiffness, ratio)
    values = np.stack([constant, ratio], axis=-1)[:, None]
    target.write_field(field, rows, np.repeat(values, len(rows), axis=1))


def _check_time_constant(
    target: ObjectWriter,
    springs: list[tuple[float, float]],
    constant: NDArray[np.float64],
    stiffness: NDArray[np.float64],
    ratio: NDArray[np.float64],
) -> None:
    least = 2.0 * target.model.opt.timestep
    own = [1.0 / (zeta * np.sqrt(k)) for k, zeta in springs]
    free = target.model.opt.disableflags & int(mujoco.mjtDisableBit.mjDSBL_REFSAFE) or min(own) < least
    fast = np.flatnonzero(constant < least * (1.0 - 1e-9))
    if len(fast) and not free:
        world = fast[0]
        raise BoundsError(
            f"The contact of {target.name} with stiffness {stiffness[world]:g} 1/s² and damping ratio {ratio[world]:g} "
            f"has the time constant {constant[world]:.3g} s, and the physics step of {target.model.opt.timestep:.3g} s "
            f"allows no less than {least:.3g} s. Lower the stiffness or the damping, or raise substeps in the twin."
        )


def _find_shapes(model: mujoco.MjModel, name: str, family: str) -> list[int]:
    """Return the ids of the shapes of an object: geoms, or the flex of a soft body."""
    if family == SOFT:
        return [find_flex(model, name)]
    if family == "geom":
        return [model.geom(name).id]
    return np.flatnonzero(model.geom_bodyid == model.body(name).id).tolist()


def _shape_field(field: str, family: str) -> str:
    """Return the name of a contact field, for example ``solref``, of an object's shapes in the model."""
    return f"flex_{field}" if family == SOFT else f"geom_{field}"


def _first_spring(model: mujoco.MjModel, name: str, family: str) -> tuple[float, float]:
    return _solref_spring(getattr(model, _shape_field("solref", family))[_find_shapes(model, name, family)[0]])


def _explain_missing_contact(model: mujoco.MjModel, name: str, *, family: str) -> str:
    if not _find_shapes(model, name, family):
        return "it has no shape"
    stiffness, ratio = _first_spring(model, name, family)
    return "" if stiffness > 0 and ratio > 0 else "its solref has no stiffness or no damping. Give both in the model"


def _nominal_spring(model: mujoco.MjModel, name: str, *, family: str, number: int) -> float:
    return _first_spring(model, name, family)[number]


def _nominal_restitution(model: mujoco.MjModel, name: str, *, family: str) -> float:
    return float(restitution(_nominal_spring(model, name, family=family, number=1)))


def _contact_quantities(family: str) -> Iterator[Quantity]:
    free = family in _MOVED  # objects that a robot moves; the table and the floor keep the model's values
    missing = MissingPhysics(structure="contact_softness") if free else None

    for name, unit, low, high, role, nominal, alias, fit, meaning in (
        (
            "stiffness",
            "1/s²",
            1.0,
            1e8,
            "stiffness",
            functools.partial(_nominal_spring, family=family, number=0),
            Alias(name="contact_stiffness_scale", op="scale"),
            FitDeclaration(prior=Prior(spread=2.0), missing=missing),
            "force per depth and per kg of effective mass: N/m for a body of 1 kg on a fixed one",
        ),
        (
            "damping_ratio",
            "1",
            _LEAST_DAMPING,
            _MOST_DAMPING,
            "damping",
            functools.partial(_nominal_spring, family=family, number=1),
            Alias(name="contact_damping_ratio"),
            FitDeclaration(prior=Prior(spread=0.5, relative=True, least=0.1), missing=missing),
            "1: critical; below 1 objects bounce, see contact/restitution",
        ),
        (
            "restitution",
            "1",
            1e-3,
            0.995,
            "damping",
            functools.partial(_nominal_restitution, family=family),
            Alias(name="restitution"),
            FitDeclaration(),
            "speed after a bounce / speed before; sets the damping ratio, so declare one of the two",
        ),
    ):
        yield Quantity(
            family=family,
            quantity=f"contact/{name}",
            unit=unit,
            low=low,
            high=high,
            transform="identity" if name == "restitution" else "log",
            compute=write_soft_contact if family == SOFT else write_contact,
            writes=(_shape_field("solref", family),),
            role=role,
            nominal=nominal,
            lacks=functools.partial(_explain_missing_contact, family=family),
            meaning=meaning,
            cause="contact",
            term="contact softness" if free else "",
            alias=alias if family == "object" else None,
            fit=fit,
        )


def _friction_quantities(family: str) -> Iterator[Quantity]:
    for column, (kind, unit, meaning) in enumerate(_FRICTION):
        sliding = family in _MOVED and column == 0
        yield Quantity(
            family=family,
            quantity=f"friction/{kind}",
            unit=unit,
            low=0.0,
            high=5.0,
            slots=field_slots(_shape_field("friction", family), column),
            meaning=meaning,
            cause="contact",
            term="object friction" if family in _MOVED else "",
            default_range=DefaultRange(low=0.9, high=1.1, op="scale", source=PUBLISHED) if sliding else None,
            alias=Alias(name="friction_coefficient" if family == "object" else "soft_friction") if sliding else None,
            # Sliding friction of plastic, wood and metal runs from 0.1 to 0.6: a factor of e about the middle.
            fit=FitDeclaration(prior=Prior(spread=0.7, relative=True, least=1e-4), residual="contact"),
        )


def _impedance_quantities(family: str) -> Iterator[Quantity]:
    for column, (number, unit, low, high, meaning) in enumerate(_IMPEDANCE):
        yield Quantity(
            family=family,
            quantity=f"contact/impedance/{number}",
            unit=unit,
            low=low,
            high=high,
            slots=field_slots(_shape_field("solimp", family), column),
            lacks=functools.partial(_explain_missing_shape, family=family),
            meaning=meaning,
            cause="contact",
            term="contact softness" if family in _MOVED else "",
        )


def _explain_missing_shape(model: mujoco.MjModel, name: str, *, family: str) -> str:
    return "" if _find_shapes(model, name, family) else "it has no shape"


CONTACT: tuple[Quantity, ...] = (
    *_friction_quantities("object"),
    *_friction_quantities("geom"),
    *_friction_quantities(SOFT),
    *_contact_quantities("object"),
    *_contact_quantities("geom"),
    *_contact_quantities(SOFT),
    *_impedance_quantities("object"),
    *_impedance_quantities("geom"),
    *_impedance_quantities(SOFT),
)
