"""Declare mass, centre of mass and inertia of objects and links, and size, drag and initial pose of objects."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import mujoco
import numpy as np

from twinloop.twin.quantities.kinds import (
    PUBLISHED,
    SPINS,
    Alias,
    Compute,
    DefaultRange,
    FaultDeclaration,
    FitDeclaration,
    Prior,
    Quantity,
    field_slots,
)
from twinloop.twin.quantities.rigid import (
    INERTIAL_FIELDS,
    explain_missing_com,
    explain_missing_mass,
    explain_missing_size,
    explain_missing_size_along,
    log_cholesky_quantities,
    write_link_body,
    write_link_log_cholesky,
    write_object_body,
    write_object_log_cholesky,
)

_SIZE_FIELDS = ("geom_size", "geom_pos", "body_ipos", "body_inertia")
_MASS = "object mass"
_OBJECT: dict[str, dict[str, Any]] = {
    "com": {"term": _MASS, "alias": Alias(name="object_com_offset")},
    "inertia": {
        "term": _MASS,
        "alias": Alias(name="object_inertia_scale", op="scale"),
        "default_range": DefaultRange(low=0.9, high=1.1, source="±10 %, as the mass"),
    },
}
_LAST = 100  # rank of what is fitted after all others
_ELLIPSOID, _BLUNT = 0, 1  # columns of geom_fluid: switch of the ellipsoid model, its blunt drag coefficient


def body_mass(model: mujoco.MjModel, name: str) -> float:
    """Return the mass of one body without its child bodies, in kg."""
    return float(model.body_mass[model.body(name).id])


def inertial_quantities(
    family: str,
    compute: Compute,
    *,
    mass_writes: tuple[str, ...],
    term: str,
    default_range: DefaultRange,
    alias: Alias,
    fault: FaultDeclaration | None = None,
) -> Iterator[Quantity]:
    """Yield the quantities mass, centre of mass and inertia of a family of bodies.

    Args:
        family: ``object`` or ``link``.
        compute: Function that computes the model fields of these quantities together.
        mass_writes: Model fields that the mass changes.
        term: Physics term (physical effect in ablations) of the mass.
        default_range: Default range of the mass.
        alias: Short name of the mass in the ``randomization:`` section.
        fault: Robot fault that the monitor reports if the mass has changed; None for no fault.
    """
    distribution = _OBJECT if family == "object" else {}

    def quantity(
        name: str,
        unit: str,
        low: float,
        high: float,
        *,
        writes: tuple[str, ...],
        meaning: str,
        default: float | None = None,
        nominal: Callable[[mujoco.MjModel, str], float] | None = None,
        lacks: Callable[[mujoco.MjModel, str], str] = explain_missing_mass,
        log: bool = False,
        fit: FitDeclaration,
        **more: Any,
    ) -> Quantity:
        return Quantity(
            family=family,
            quantity=name,
            unit=unit,
            low=low,
            high=high,
            transform="log" if log else "identity",
            default=default,
            nominal=nominal,
            compute=compute,
            writes=writes,
            lacks=lacks,
            set_const=True,
            meaning=meaning,
            cause="mass & inertia",
            fit=fit,
            **more,
        )

    yield quantity(
        "mass",
        "kg",
        1e-4,
        1e3,
        writes=mass_writes,
        nominal=body_mass,
        log=True,
        meaning="mass; the inertia is proportional to it",
        # Link masses come from CAD: 10 % for infill, screws, cables and covers; our choice.
        fit=FitDeclaration(prior=Prior(spread=0.1), rank=_LAST, excitation=SPINS)
        if family == "link"
        else FitDeclaration(prior=Prior(spread=0.2), excitation=SPINS),
        term=term,
        default_range=default_range,
        alias=alias,
        fault=fault,
    )
    for axis in "xyz":
        yield quantity(
            f"com/{axis}",
            "m",
            -1.0,
            1.0,
            writes=("body_ipos",),
            default=0.0,
            lacks=explain_missing_com,
            meaning=f"shift of the centre of mass along the body's {axis} axis; the inertia about it does not change",
            fit=FitDeclaration(prior=Prior(spread=0.02)),
            **distribution.get("com", {}),
        )
    for number, axis in enumerate("xyz"):
        principal = ("first", "second", "third")[number]
        yield quantity(
            f"inertia/{axis}",
            "1",
            0.01,
            100.0,
            writes=("body_inertia",),
            default=1.0,
            log=True,
            meaning=f"factor on the second moment of mass along the {principal} principal axis (I_xx = S_y + S_z), "
            "at constant mass; all factors are physically possible",
            fit=FitDeclaration(prior=Prior(spread=0.3)),
            **distribution.get("inertia", {}),
        )


def _size_quantities() -> Iterator[Quantity]:
    kinds = [("size", explain_missing_size, "all axes")]
    kinds += [
        (f"size/{a}", functools.partial(explain_missing_size_along, axis=i), f"its {a} axis")
        for i, a in enumerate("xyz")
    ]
    for name, lacks, along in kinds:
        yield Quantity(
            family="object",
            quantity=name,
            unit="1",
            low=0.01,
            high=100.0,
            default=1.0,
            transform="log",
            compute=write_object_body,
            writes=_SIZE_FIELDS,
            lacks=lacks,
            set_const=True,
            also_visual=True,
            meaning=f"factor on lengths along {along}: changes shapes, their positions and the inertia, not the mass",
            cause="mass & inertia",
            term="object size" if name == "size" else "",
            alias=Alias(name="object_size_scale", op="scale") if name == "size" else None,
        )


def _find_ellipsoids(model: mujoco.MjModel, name: str) -> np.ndarray:
    geoms = np.flatnonzero(model.geom_bodyid == model.body(name).id)
    return geoms[model.geom_fluid[geoms, _ELLIPSOID] > 0]


def _explain_missing_drag(model: mujoco.MjModel, name: str) -> str:
    if len(_find_ellipsoids(model, name)):
        return ""
    return 'none of its shapes has a drag coefficient. Give one fluidshape="ellipsoid" in the model'


BODIES: tuple[Quantity, ...] = (
    *inertial_quantities(
        "object",
        write_object_body,
        mass_writes=("body_mass", "body_inertia"),
        term=_MASS,
        default_range=DefaultRange(low=0.9, high=1.1, op="scale", source=PUBLISHED),
        alias=Alias(name="object_mass"),
    ),
    *log_cholesky_quantities("object", write_object_log_cholesky, fields=INERTIAL_FIELDS),
    *_size_quantities(),
    Quantity(
        family="object",
        quantity="drag",
        unit="1",
        low=0.0,
        high=10.0,
        slots=field_slots("geom_fluid", _BLUNT),
        nominal=lambda model, name: model.geom_fluid[_find_ellipsoids(model, name)[0], _BLUNT],
        lacks=_explain_missing_drag,
        meaning="drag coefficient C of MuJoCo's ellipsoid model, force C ρ A v²: half of a textbook's C, whose force "
        "is ½ C ρ A v²; has no effect without air density",
        cause="air",
    ),
    *(
        Quantity(
            family="object",
            quantity=f"position/{axis}",
            unit="m",
            low=-1e2,
            high=1e2,
            stage="reset",
            meaning="initial position in an episode",
            cause="scene",
            term="object place",
            alias=Alias(name="object_position_noise", op="add"),
        )
        for axis in "xy"
    ),
    Quantity(
        family="object",
        quantity="yaw",
        unit="rad",
        low=-math.pi,
        high=math.pi,
        default=0.0,
        stage="reset",
        meaning="initial rotation about the vertical in an episode",
        cause="scene",
        term="approach angle",
    ),
)


_EXTRA_MASS = 0.05  # kg at the hand; an SO-101 lifts 0.3 kg
PAYLOAD = "payload/{}"  # the body that holds a link's payload, see `twin.compiling`


def _explain_missing_payload(model: mujoco.MjModel, name: str) -> str:
    body = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, PAYLOAD.format(name))
    return (
        "" if body >= 0 else "it has no site, and a payload is attached at the link's first site. Add one to the model"
    )


LINKS: tuple[Quantity, ...] = (
    *inertial_quantities(
        "link",
        write_link_body,
        mass_writes=("body_mass", "body_inertia", "body_gravcomp"),
        term="link masses",
        default_range=DefaultRange(
            low=0.95, high=1.05, op="scale", source="CAD masses, 5 % either way; our choice, no published range"
        ),
        alias=Alias(name="link_mass_scale", op="scale"),
        fault=FaultDeclaration(name="load", op="add", change=_EXTRA_MASS, unit="times 50 g", at_hand=True),
    ),
    *log_cholesky_quantities("link", write_link_log_cholesky, fields=(*INERTIAL_FIELDS, "body_gravcomp")),
    Quantity(
        family="link",
        quantity="payload",
        unit="kg",
        low=0.0,
        high=100.0,
        slots=field_slots("body_mass"),
        lacks=_explain_missing_payload,
        set_const=True,
        meaning="point mass at the link's first site, such as a tool; no controller compensates for it",
        cause="mass & inertia",
        term="link masses",
        neutral=0.0,
        alias=Alias(name="payload"),
    ),
)
