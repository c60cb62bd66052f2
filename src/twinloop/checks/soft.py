"""Check that soft bodies (MuJoCo flexes) are held together and stable at the twin's physics step."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from itertools import combinations

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.checks.report import CheckOutcome
from twinloop.core.seeds import generator
from twinloop.twin import Twin
from twinloop.twin.quantities.soft import find_flex, list_flexes

_ITERATIONS = 60  # of a power iteration; the fastest frequency is then exact to some percent
_SMALL = 1e-6  # m or rad, displacement from which stiffness is computed


def check_soft_bodies(twin: Twin) -> CheckOutcome:
    """Count faults of soft bodies: steps that are too long, rods without a length, and volumes with a hole."""
    name, model = "soft bodies", twin.model
    flexes = list_flexes(model)
    if not flexes:
        return CheckOutcome.skip(name, "the twin has no soft bodies")
    found = [text for flex in flexes for text in _find_faults(model, flex)]
    found += _find_fast_vibration(twin, flexes)
    detail = " ".join(found) or f"{len(flexes)} of {', '.join(flexes)}"
    return CheckOutcome.judge(name, len(found), 0, "faults", detail=detail)


def _find_faults(model: mujoco.MjModel, name: str) -> Iterator[str]:
    flex = find_flex(model, name)
    if model.flex_dim[flex] == 1 and not model.flex_edgeequality[flex] and not model.flex_edgestiffness[flex]:
        yield (
            f"The rod {name} has no constraint on the length of its {model.flex_edgenum[flex]} edges, so it stretches "
            'without force: Young\'s modulus acts on bending and torsion only. Add <edge equality="true"/> to its flex.'
        )
    if open_faces := _count_open_faces(model, flex):
        yield (
            f"The volume {name} was made of a surface with a hole: {open_faces} of its triangles at the point `origin` "
            "have no neighbour. Close the mesh, or use dim 2 for a shell."
        )


def _count_open_faces(model: mujoco.MjModel, flex: int) -> int:
    """Return the number of triangles without a neighbour at the inner point from which a volume was made.

    MuJoCo connects each triangle of a surface to the point ``origin``. If the surface is closed, all triangles at that
    point are between two tetrahedra. The number is 0 for volumes that were made in another way.
    """
    count, start = int(model.flex_elemnum[flex]), int(model.flex_elemdataadr[flex])
    if model.flex_dim[flex] != 3 or model.flex_interp[flex]:
        return 0
    cells = model.flex_elem[start : start + 4 * count].reshape(count, 4)
    (shared,) = np.nonzero(np.bincount(cells.ravel()) == count)
    inner = model.flex_vert0[model.flex_vertadr[flex] + shared]
    if len(shared) != 1 or not ((inner > 0.0) & (inner < 1.0)).all():
        return 0
    faces = Counter(tuple(face) for cell in np.sort(cells).tolist() for face in combinations(cell, 3))
    return sum(uses == 1 and int(shared[0]) in face for face, uses in faces.items())


def _find_fast_vibration(twin: Twin, flexes: list[str]) -> list[str]:
    """Return a sentence if the twin's step is too long for the fastest vibration under the integrator Euler.

    A vibration of angular frequency ω with Rayleigh damping β is stable under this semi-implicit Euler method with a
    step h if ω² (h² + 2 h β) < 4, because the eigenvalues of its update are then within the unit circle. Measured
    limits of ropes, cloths and blocks are 0 to 16 % above. RK4 and "discrete" are left to `check_stability`.
    """
    model = twin.model
    if model.opt.integrator != mujoco.mjtIntegrator.mjINT_EULER or not (model.nflexstiffness or model.nflexbending):
        return []
    frequency, damping = _fastest_frequency(model), float(model.flex_damping.max())
    longest = float(np.sqrt(damping**2 + 4.0 / max(frequency, 1e-9) ** 2) - damping)
    if twin.dt < longest:
        return []
    text = (
        f"The integrator Euler is unstable for {', '.join(flexes)} with a physics step of {1e3 * twin.dt:.3g} "
        f"ms: a vibration of {frequency / (2.0 * np.pi):.3g} Hz needs less than {1e3 * longest:.2g} ms. Set <option "
        'integrator="discrete"/> in the model, or raise substeps in the twin.'
    )
    return [text]


def _fastest_frequency(model: mujoco.MjModel) -> float:
    """Return the largest angular frequency in rad/s of small motions about the initial pose, without contacts."""
    model = copy.copy(model)
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
    data = mujoco.MjData(model)
    rest = _passive_force(model, data, data.qpos.copy())
    origin, motion = data.qpos.copy(), generator(0, "check/vibration").normal(size=model.nv)
    squared = 0.0
    for _ in range(_ITERATIONS):
        motion /= np.linalg.norm(motion)
        qpos = origin.copy()
        mujoco.mj_integratePos(model, qpos, motion, _SMALL)
        force = (_passive_force(model, data, qpos) - rest)[None] / _SMALL
        mujoco.mj_solveM(model, data, force, force.copy())
        squared, motion = float(np.linalg.norm(force)), force[0]
        if not np.isfinite(squared) or squared == 0.0:
            break
    return float(np.sqrt(squared))


def _passive_force(model: mujoco.MjModel, data: mujoco.MjData, qpos: NDArray[np.float64]) -> NDArray[np.float64]:
    data.qpos[:] = qpos
    mujoco.mj_fwdPosition(model, data)
    mujoco.mj_fwdVelocity(model, data)
    return data.qfrc_passive.copy()
