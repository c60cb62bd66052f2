"""Declare the quantities of soft bodies (MuJoCo flexes): Young's modulus, damping and mass of ropes, cloths and blocks.

At a fixed Poisson's ratio every elastic force is proportional to Young's modulus E. MuJoCo compiles E into the fields
``flex_stiffness`` (stretching of surfaces and volumes) and ``flex_bending`` (bending of surfaces, bending and torsion
of rods), and does not store E itself. Another E multiplies these fields by E / E of the model. That equals a model
compiled with the other E up to rounding (tests/twin/test_soft_params.py). The compiler of twins stores the E of each
flex in the model (`twin.compiling`).

Poisson's ratio is not a quantity. The fields are sums of a term with λ and a term with μ, the Lamé parameters, and a
compiled model has only the sum. Use one twin per Poisson's ratio.
"""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.twin.quantities.kinds import (
    PUBLISHED,
    Alias,
    DefaultRange,
    FieldSlot,
    FitDeclaration,
    Prior,
    Quantity,
    field_slots,
)

FAMILY = "soft"
YOUNG = "soft/{}/young"  # custom number of the model with the Young's modulus of a flex in Pa
_TWIST = "{}_twist"  # MuJoCo's name of the joint that twists a rod's last edge; others are followed by their number
# A rod's part of flex_bending: its number of records, then per record the indices of four vertices, two bending
# stiffnesses, two curvatures (or a curvature and a joint), torsional stiffness and width (changelog of MuJoCo 4.0.0).
_RECORD, _STIFFNESSES = 10, (4, 5, 8)


def find_flex(model: mujoco.MjModel, name: str) -> int:
    """Return the id of a flex, or -1 if the model has no flex of that name."""
    return int(mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_FLEX, name))


def list_flexes(model: mujoco.MjModel) -> list[str]:
    """Return the names of the model's flexes, without those that belong to one rigid body."""
    names = (mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_FLEX, i) or "" for i in range(model.nflex))
    return [name for name, rigid in zip(names, model.flex_rigid, strict=True) if name and not rigid]


def soft_bodies(model: mujoco.MjModel, name: str = "") -> NDArray[np.intp]:
    """Return the ids of the bodies that move the vertices, nodes or rod sections of a flex.

    These bodies belong to the flex alone: they have no geom, and unnamed slide joints, or they twist a rod. Bodies to
    which a flex is pinned are left out.

    Args:
        model: Compiled model.
        name: Name of the flex; by default all flexes.
    """
    chosen = [find_flex(model, name)] if name else range(model.nflex)
    return np.array(sorted({b for f in chosen for b in _carriers(model, f) | _twist_bodies(model, f)}), dtype=np.intp)


def _carriers(model: mujoco.MjModel, flex: int) -> set[int]:
    """Return the ids of the bodies that carry a vertex or node of a flex and nothing else."""
    vertices = _slice(model.flex_vertadr, flex, model.nflexvert)
    nodes = slice(model.flex_nodeadr[flex], model.flex_nodeadr[flex] + model.flex_nodenum[flex])
    bodies = {*model.flex_vertbodyid[vertices].tolist(), *model.flex_nodebodyid[nodes].tolist()}
    return {body for body in bodies if body > 0 and _is_own(model, body)}


def _twist_bodies(model: mujoco.MjModel, flex: int) -> set[int]:
    """Return the ids of the bodies that hold the twist angles of a rod's edges; they have inertia, but no weight."""
    if not _is_rod(model, flex):
        return set()
    twisted = _TWIST.format(mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_FLEX, flex))
    joints = (model.joint(i) for i in range(model.njnt) if model.jnt_type[i] == mujoco.mjtJoint.mjJNT_HINGE)
    return {int(joint.bodyid[0]) for joint in joints if joint.name == twisted or _is_numbered(joint.name, twisted)}


def _is_numbered(name: str, stem: str) -> bool:
    return name.startswith(f"{stem}_") and name.removeprefix(f"{stem}_").isdigit()


def _is_own(model: mujoco.MjModel, body: int) -> bool:
    first, count = model.body_jntadr[body], model.body_jntnum[body]
    slides = all(
        model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_SLIDE and not model.joint(joint).name
        for joint in range(first, first + count)
    )
    return bool(count and slides and not model.body_geomnum[body])


def _is_rod(model: mujoco.MjModel, flex: int) -> bool:
    return bool(model.flex_dim[flex] == 1)


def _slice(addresses: NDArray[np.int32], flex: int, size: int) -> slice:
    """Return the part of an array of all flexes that belongs to one flex; empty if its address is -1."""
    start = int(addresses[flex])
    if start < 0:
        return slice(0, 0)
    return slice(start, min((int(other) for other in addresses if other > start), default=int(size)))


def soft_rows(model: mujoco.MjModel, name: str, field: str) -> NDArray[np.intp]:
    """Return the rows of a model field that belong to a soft body.

    Args:
        model: Compiled model.
        name: Name of the flex.
        field: Name of the field.
    """
    flex = find_flex(model, name)
    if field == "body_mass":
        return np.array(sorted(_carriers(model, flex)), dtype=np.intp)
    if field == "body_inertia":
        return soft_bodies(model, name)
    if field not in ("flex_stiffness", "flex_bending"):
        return np.array([flex])
    bending = field == "flex_bending"
    addresses = model.flex_bendingadr if bending else model.flex_stiffnessadr
    rows = np.arange(len(getattr(model, field)))[_slice(addresses, flex, len(getattr(model, field)))]
    if bending and _is_rod(model, flex):
        return rows[1:].reshape(-1, _RECORD)[:, _STIFFNESSES].ravel()
    return rows


def _nominal_young(model: mujoco.MjModel, name: str) -> float:
    return float(model.numeric(YOUNG.format(name)).data[0])


def _nominal_mass(model: mujoco.MjModel, name: str) -> float:
    return float(model.body_mass[soft_rows(model, name, "body_mass")].sum())


def _explain_missing_elasticity(model: mujoco.MjModel, name: str) -> str:
    marked = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_NUMERIC, YOUNG.format(name)) >= 0
    return "" if marked else "it has no Young's modulus. Give its flex <elasticity young=…/> in the model"


def _explain_missing_mass(model: mujoco.MjModel, name: str) -> str:
    return "" if _nominal_mass(model, name) > 0.0 else "all its vertices are pinned to other bodies"


_MODULI = (
    "our choice, a factor of 2 either way. Moduli at 100 % strain of the makers' data sheets: Ecoflex 00-30 69 kPa, "
    "00-50 83 kPa, Dragon Skin 10 0.15 MPa, 30 0.59 MPa; three times the shear moduli of liver 5.4 kPa (Phys. Med. "
    "Biol. 64, 225001) and of a muscle phantom 10 to 12 kPa (J. Biomech. 45, 952); flexible PVC and woven cotton, "
    "1 to 100 MPa, differ more between products than they are known"
)
_PRESS = "slow presses and sudden releases of the soft body"

SOFT: tuple[Quantity, ...] = (
    Quantity(
        family=FAMILY,
        quantity="young",
        unit="Pa",
        low=1.0,
        high=1e12,
        slots=tuple(FieldSlot(field=field, rule="factor") for field in ("flex_stiffness", "flex_bending")),
        nominal=_nominal_young,
        lacks=_explain_missing_elasticity,
        transform="log",
        set_const=True,
        meaning="Young's modulus of stretching, bending and torsion, at the model's Poisson's ratio",
        cause="soft bodies",
        term="soft body stiffness",
        default_range=DefaultRange(low=0.5, high=2.0, op="scale", source=_MODULI),
        alias=Alias(name="soft_young_scale", op="scale"),
        fit=FitDeclaration(prior=Prior(spread=0.7), excitation=_PRESS),
    ),
    Quantity(
        family=FAMILY,
        quantity="damping",
        unit="s",
        low=0.0,
        high=10.0,
        slots=field_slots("flex_damping"),
        lacks=_explain_missing_elasticity,
        set_const=True,
        meaning="Rayleigh damping: damping matrix over stiffness matrix; a motion of angular frequency ω has the loss "
        "factor ω times this. The integrator discrete adds one physics step to it",
        cause="soft bodies",
        term="soft body damping",
        default_range=DefaultRange(
            low=0.001, high=0.03, source="loss factors of silicones of 0.05 to 0.2 at 1 to 10 Hz; our choice"
        ),
        alias=Alias(name="soft_damping"),
        fit=FitDeclaration(prior=Prior(spread=0.7, relative=True, least=1e-3), excitation=_PRESS),
    ),
    Quantity(
        family=FAMILY,
        quantity="mass",
        unit="kg",
        low=1e-6,
        high=1e3,
        slots=tuple(FieldSlot(field=field, rule="factor") for field in ("body_mass", "body_inertia")),
        nominal=_nominal_mass,
        lacks=_explain_missing_mass,
        transform="log",
        set_const=True,
        meaning="total mass of the vertices or nodes that move; pinned ones have none",
        cause="mass & inertia",
        term="object mass",
        default_range=DefaultRange(low=0.9, high=1.1, op="scale", source=PUBLISHED),
        alias=Alias(name="soft_mass_scale", op="scale"),
        fit=FitDeclaration(prior=Prior(spread=0.2), excitation=_PRESS),
    ),
)
