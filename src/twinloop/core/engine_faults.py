"""Known faults of the physics engine: versions, the solver settings that a fault needs, effect, and source.

This table is the only one. The compiler of twins, ``twin check``, ``twin show``, ``doctor`` and the catalog's view
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

    ``versions`` are the released versions that have it. It needs both ``solver`` and ``jacobian``, as
    ``SolverSettings`` has them. ``action`` is what twinloop does about it.
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
    """The settings of a constraint solver in a compiled model, as an episode's provenance records them.

    ``engine``, ``solver`` and ``jacobian`` are of the names above, never ``auto``. ``dof`` counts degrees of freedom.
    ``changed_for`` names the faults that twinloop changed the model's own settings for.
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
