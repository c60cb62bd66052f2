"""List the known faults of the physics engines: affected versions, solver settings, effect, countermeasure and source.

This is the only such list in twinloop. The twin compiler, ``twin check``, ``twin show``, ``doctor`` and the catalog's
view ``engine_faults`` read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twinloop.core.plain import JsonRecord

# The values that a record of a solver can have.
ENGINES = ("mujoco", "mujoco-warp")
SOLVERS = ("Newton", "CG", "PGS")
JACOBIANS = ("dense", "sparse")


@dataclass(frozen=True, kw_only=True)
class EngineFault:
    """A fault of a physics engine that makes it compute wrong motion.

    Attributes:
        name: Short identifier of the fault.
        engine: ``mujoco`` or ``mujoco-warp``.
        versions: Released versions with the fault.
        fixed_in: First version in which the fault is corrected.
        solver: Solver with which the fault occurs: ``Newton``, ``CG`` or ``PGS``.
        jacobian: Constraint Jacobian with which the fault occurs: ``dense`` or ``sparse``. The fault occurs only if
            both ``solver`` and ``jacobian`` match.
        effect: Description of the wrong result.
        action: Description of the change that twinloop makes to avoid the fault.
        source: Publication of the fault, such as a changelog or an issue.
    """

    name: str
    engine: str
    versions: tuple[str, ...]
    fixed_in: str
    solver: str
    jacobian: str
    effect: str
    action: str
    source: str


@dataclass(frozen=True, kw_only=True)
class SolverSettings(JsonRecord):
    """Constraint-solver settings of a compiled model, as stored in the provenance of an episode.

    Attributes:
        engine: ``mujoco`` or ``mujoco-warp``.
        solver: ``Newton``, ``CG`` or ``PGS``.
        jacobian: ``dense`` or ``sparse``, never ``auto``.
        dof: Number of degrees of freedom of the model.
        changed_for: Names of the engine faults (known bugs, see `EngineFault`) for which twinloop replaced the model's
            own settings.
    """

    engine: str
    solver: str
    jacobian: str
    dof: int
    changed_for: tuple[str, ...] = ()


SPARSE_NEWTON = EngineFault(
    name="sparse-newton",
    engine="mujoco",
    versions=("4.0.0",),
    fixed_in="4.0.1",
    solver="Newton",
    jacobian="sparse",
    effect="the Newton solver factors a wrong Hessian and returns wrong accelerations in states with contacts",
    action="models that would use the sparse Jacobian are compiled with the dense one",
    source="MuJoCo's changelog of 4.0.1, bug fix 3; https://github.com/google-deepmind/mujoco/issues/3767",
)

ENGINE_FAULTS: Sequence[EngineFault] = (SPARSE_NEWTON,)


def known_faults(engine: str, version: str) -> tuple[EngineFault, ...]:
    """Return the known faults in one released version of a physics engine.

    Args:
        engine: ``mujoco`` or ``mujoco-warp``.
        version: Version number, for example ``4.0.0``.
    """
    return tuple(fault for fault in ENGINE_FAULTS if fault.engine == engine and version in fault.versions)
