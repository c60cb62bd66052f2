"""Prepare MuJoCo model specifications for later parameter changes, and compile them.

Every model that is simulated is compiled here. Solver settings with a known fault in the installed MuJoCo are replaced
by settings that compute correctly.
"""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Iterable

import mujoco

from twinloop.core.engine_faults import ENGINES, SOLVERS, EngineFault, SolverSettings, known_faults
from twinloop.core.errors import InputError
from twinloop.twin.params import split_path
from twinloop.twin.quantities.bodies import PAYLOAD
from twinloop.twin.quantities.soft import YOUNG
from twinloop.twin.spec import ParamSpec


def prepare_spec(mjspec: mujoco.MjSpec, specs: Iterable[ParamSpec]) -> None:
    """Change a model specification in place so that the declared parameters can vary after it is compiled.

    For bodies with a variable centre of mass, ``simple`` is set to false, because MuJoCo refuses another centre of mass
    of a body that it compiled as simple. Links with a payload parameter get a massless body for the payload. The
    Young's modulus of each flex is stored in the model (see `quantities.soft`).

    Args:
        mjspec: Model specification, not yet compiled.
        specs: Declarations of parameters; their names may contain ``*``.
    """
    declared = [split_path(spec.name) for spec in specs]
    moved = ("com/", "log_cholesky/")
    _make_centres_of_mass_variable(mjspec, [target for _, target, quantity in declared if quantity.startswith(moved)])
    _add_payload_bodies(mjspec, [target for _, target, quantity in declared if quantity == "payload"])
    _store_moduli(mjspec)


def _store_moduli(mjspec: mujoco.MjSpec) -> None:
    """Store the Young's modulus of each flex as a custom number, because a compiled model does not contain it."""
    stored = {number.name: number for number in mjspec.numerics}
    for flex in mjspec.flexes:
        name = YOUNG.format(flex.name)
        if name in stored:
            stored[name].data = [flex.young]
        elif flex.young > 0.0:
            mjspec.add_numeric(name=name, size=1, data=[flex.young])


def _make_centres_of_mass_variable(mjspec: mujoco.MjSpec, patterns: list[str]) -> None:
    """Set ``simple`` to false on some bodies, so that MuJoCo accepts other centres of mass later.

    By default MuJoCo compiles a body with its centre of mass at its origin as "simple". It then stores the body's part
    of the mass matrix as a diagonal, and refuses another centre of mass.

    Args:
        mjspec: Model specification, changed in place.
        patterns: Names of bodies; they may contain ``*``.
    """
    for body in _find_bodies(mjspec, patterns):
        body.simple = False


def _add_payload_bodies(mjspec: mujoco.MjSpec, patterns: list[str]) -> None:
    """Add a massless body for a payload at the first site of each matching link.

    The payload has its own body, so that the gravity compensation of the link does not include it.

    Args:
        mjspec: Model specification, changed in place. Links without a site are skipped.
        patterns: Names of links; they may contain ``*``.
    """
    for body in _find_bodies(mjspec, patterns):
        if body.sites:
            site = body.sites[0]
            holder = body.add_body(name=PAYLOAD.format(body.name), pos=site.pos, ipos=[0, 0, 0], explicitinertial=True)
            if site.frame is not None:
                holder.set_frame(site.frame)


def _find_bodies(mjspec: mujoco.MjSpec, patterns: list[str]) -> list[mujoco.MjsBody]:
    named = [body for body in mjspec.bodies if body.name and body.name != "world"]
    return [body for body in named if any(fnmatch.fnmatchcase(body.name, pattern) for pattern in patterns)]


ENGINE, WARP = ENGINES  # names of the Python distributions
# One step of a model with 1,168 degrees of freedom and 2,700 constraint rows takes 22 ms with the dense Jacobian, 5
# times as long as with the sparse Jacobian (measured). A rope of 30 vertices takes 1.3 times as long, a cloth of 12²
# on a box 4.3 times, a block of 5³ 1.7 times (benchmarks/speed/soft.py). The memory (arena) below is then 0.4 GB
# per simulation thread.
MAX_DENSE_DOFS = 1200
# Constraint rows per degree of freedom in a dense model's memory. A cloth tied by its edges needs 6 (measured).
_ROWS_PER_DOF = 12
_MARK = "engine_fault/{}"
# MuJoCo warns that the text of such a model may be wrong. It gives the same model (tests/twin/test_twin_attach.py).
warnings.filterwarnings("ignore", message="Attaching a spec with an empty prefix")
_SOLVERS = {int(getattr(mujoco.mjtSolver, f"mjSOL_{name.upper()}")): name for name in SOLVERS}


def compile_model(mjspec: mujoco.MjSpec) -> mujoco.MjModel:
    """Compile a model specification; replace solver settings that have a known fault in the installed MuJoCo.

    Replaced settings are changed in ``mjspec`` in place and recorded in it. A model without faulty settings is compiled
    unchanged.

    Raises:
        InputError: If the model is too large for the settings that have no fault, or if it has an elastic flex and an
            implicit integrator.
        ValueError: If MuJoCo rejects the specification.
    """
    _refuse_implicit_elasticity(mjspec)
    with (
        warnings.catch_warnings()
    ):  # MuJoCo's text of a model with such attachments gives the same model, see the tests
        warnings.filterwarnings("ignore", message="Attaching a spec with an empty prefix")
        model = mjspec.compile()
    faults = _find_faults(model)
    if not faults:
        return model
    if model.nv > MAX_DENSE_DOFS:
        raise InputError(
            f"The model has {model.nv} degrees of freedom and uses the sparse Newton solver, which is faulty in MuJoCo "
            f"{mujoco.mj_versionString()} ({faults[0].effect}). The dense solver is used instead, but only up to "
            f'{MAX_DENSE_DOFS} degrees of freedom. Set <option solver="CG"/> in the model, or install MuJoCo '
            f"{faults[0].fixed_in}."
        )
    mjspec.option.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
    if model.narena < _dense_arena(model.nv):
        mjspec.memory = _dense_arena(model.nv)
    for fault in faults:
        _record_fault(mjspec, fault)
    return mjspec.compile()


def _refuse_implicit_elasticity(mjspec: mujoco.MjSpec) -> None:
    """Raise an error that names an elastic flex under an integrator with which MuJoCo does not compile it."""
    integrator = {
        int(mujoco.mjtIntegrator.mjINT_IMPLICIT): "implicit",
        int(mujoco.mjtIntegrator.mjINT_IMPLICITFAST): "implicitfast",
    }.get(int(mjspec.option.integrator))
    elastic = next((flex.name for flex in mjspec.flexes if flex.young > 0.0), None)
    if integrator and elastic is not None:
        raise InputError(
            f"The flex {elastic} is elastic, and the integrator {integrator} of MuJoCo does not support elasticity. "
            'Set `integrator: discrete` in the twin\'s YAML, or integrator="discrete" in <option> of the model. Euler '
            "also works, with a physics step well below 1 ms."
        )


def solver_settings(model: mujoco.MjModel, *, engine: str = ENGINE) -> SolverSettings:
    """Return the solver settings of a compiled model, with the names of the known bugs that twinloop avoids by them.

    Args:
        model: Compiled model.
        engine: Name of the physics engine's distribution (``mujoco`` or ``mujoco-warp``), stored in the result.
    """
    sparse = bool(mujoco.mj_isSparse(model))
    faults = () if sparse else known_faults(ENGINE, mujoco.mj_versionString())
    return SolverSettings(
        engine=engine,
        solver=_SOLVERS[int(model.opt.solver)],
        jacobian="sparse" if sparse else "dense",
        dof=model.nv,
        changed_for=tuple(fault.name for fault in faults if _has_fault_record(model, fault)),
    )


def changed_settings_lines(model: mujoco.MjModel) -> list[str]:
    """Return one line for each MuJoCo bug that twinloop avoids by changed solver settings; empty for most models.

    The lines are part of a model's hash, because the change affects the simulation.
    """
    return [f"solver settings changed for {name}" for name in solver_settings(model).changed_for]


def _dense_arena(dofs: int) -> int:
    """Return the memory in bytes that the dense solver needs for a number of degrees of freedom.

    It is MuJoCo's arena: the solver's Hessian matrix, its Cholesky factor, and three copies of the constraint Jacobian.
    """
    return 8 * dofs * (2 * dofs + 3 * _ROWS_PER_DOF * dofs)


def _record_fault(mjspec: mujoco.MjSpec, fault: EngineFault) -> None:
    """Record in a model specification that its solver settings were changed because of a known MuJoCo bug.

    The record is a MuJoCo text element, so copies of the specification and its XML contain it.
    """
    name = _MARK.format(fault.name)
    if all(text.name != name for text in mjspec.texts):
        mjspec.add_text(name=name, data=fault.action)


def _has_fault_record(model: mujoco.MjModel, fault: EngineFault) -> bool:
    return mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_TEXT, _MARK.format(fault.name)) >= 0


def _find_faults(model: mujoco.MjModel) -> list[EngineFault]:
    settings = solver_settings(model)
    return [
        fault
        for fault in known_faults(ENGINE, mujoco.mj_versionString())
        if (fault.solver, fault.jacobian) == (settings.solver, settings.jacobian)
    ]
