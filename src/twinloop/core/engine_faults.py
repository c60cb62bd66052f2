"""List the known faults of the physics engine: versions, required solver settings, effect, and source.

It is the only such list. The compiler of twins, ``twin check``, ``twin show``, ``doctor`` and the catalog's view
``engine_faults`` read it.
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
    """A fault that makes an engine compute wrong motion.

    ``versions`` are the affected released versions. The fault occurs only with both ``solver`` and ``jacobian``, as in
    ``SolverSettings``. ``action`` is twinloop's measure against it.
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
    """Constraint-solver settings of a compiled model, as an episode's provenance records them.

    ``engine``, ``solver`` and ``jacobian`` are names from the lists above, never ``auto``. ``dof`` is the number of
    degrees of freedom. ``changed_for`` names the faults for which twinloop changed the model's own settings.
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
    """Return the known faults of one version of an engine."""
    return tuple(fault for fault in ENGINE_FAULTS if fault.engine == engine and version in fault.versions)
