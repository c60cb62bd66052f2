"""Prepare a spec for the parameters that will change, and compile it with settings that MuJoCo computes correctly."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

import mujoco

from twinloop.core.engine_faults import ENGINES, SOLVERS, EngineFault, SolverSettings, known_faults
from twinloop.core.errors import InputError
from twinloop.twin.params import split_path
from twinloop.twin.quantities.bodies import PAYLOAD
from twinloop.twin.spec import ParamSpec


def prepare_spec(mjspec: mujoco.MjSpec, specs: Iterable[ParamSpec]) -> None:
    """Change a model so that the declared parameters can vary: centres of mass and payload bodies."""
    declared = [split_path(spec.name) for spec in specs]
    moved = ("com/", "log_cholesky/")
    _make_centres_of_mass_variable(mjspec, [target for _, target, quantity in declared if quantity.startswith(moved)])
    _add_payload_bodies(mjspec, [target for _, target, quantity in declared if quantity == "payload"])


def _make_centres_of_mass_variable(mjspec: mujoco.MjSpec, patterns: list[str]) -> None:
    """Compile bodies as not simple, so that MuJoCo accepts other centres of mass later.

    A body with its centre of mass at its origin is otherwise compiled as simple: its part of the mass matrix is stored
    as a diagonal, and MuJoCo refuses another centre of mass.
    """
    for body in _find_bodies(mjspec, patterns):
        body.simple = False


def _add_payload_bodies(mjspec: mujoco.MjSpec, patterns: list[str]) -> None:
    """Add a massless body at the first site of each link, for a payload that controllers do not compensate."""
    for body in _find_bodies(mjspec, patterns):
        if body.sites:
            site = body.sites[0]
            holder = body.add_body(name=PAYLOAD.format(body.name), pos=site.pos, ipos=[0, 0, 0], explicitinertial=True)
            if site.frame is not None:
                holder.set_frame(site.frame)


def _find_bodies(mjspec: mujoco.MjSpec, patterns: list[str]) -> list[mujoco.MjsBody]:
    named = [body for body in mjspec.bodies if body.name and body.name != "world"]
    return [body for body in named if any(fnmatch.fnmatchcase(body.name, pattern) for pattern in patterns)]


ENGINE, WARP = ENGINES  # names of distributions
# One step of a model with 1,168 degrees of freedom and 2,700 constraint rows takes 22 ms with the dense Jacobian, 5
# times as long as with the sparse one (measured). The arena below then takes 0.4 GB per simulation thread.
MOST_DENSE_DOFS = 1200
# Constraint rows per degree of freedom in a dense model's memory. A cloth tied by its edges needs 6 (measured).
_ROWS_PER_DOF = 12
_MARK = "engine_fault/{}"
_SOLVERS = {int(getattr(mujoco.mjtSolver, f"mjSOL_{name.upper()}")): name for name in SOLVERS}


def compile_model(mjspec: mujoco.MjSpec) -> mujoco.MjModel:
    """Compile a spec; change its solver settings in place where MuJoCo has a known fault with them.

    Every model that is simulated is compiled here. A model without such settings is compiled unchanged.

    Raises:
        InputError: the model is too large for the settings that have no fault.
        ValueError: MuJoCo refuses the spec.
    """
    model = mjspec.compile()
    faults = _find_faults(model)
    if not faults:
        return model
    if model.nv > MOST_DENSE_DOFS:
        raise InputError(
            f"The model has {model.nv} degrees of freedom and uses the sparse Newton solver, which is faulty in MuJoCo "
            f"{mujoco.mj_versionString()} ({faults[0].effect}). The dense solver serves up to {MOST_DENSE_DOFS}. Set "
            f'<option solver="CG"/> in the model, or install MuJoCo {faults[0].fixed_in}.'
        )
    mjspec.option.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
    if model.narena < _dense_arena(model.nv):
        mjspec.memory = _dense_arena(model.nv)
    for fault in faults:
        _record_fault(mjspec, fault)
    return mjspec.compile()


def solver_settings(model: mujoco.MjModel, *, engine: str = ENGINE) -> SolverSettings:
    """Return the solver settings of a compiled model, with those that were changed because of a known fault."""
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
    """Return the lines that a model's hash must include for changed settings; empty for most models."""
    return [f"solver settings changed for {name}" for name in solver_settings(model).changed_for]


def _dense_arena(dofs: int) -> int:
    """Return the bytes that a dense solver needs: the Hessian and its factor, and three copies of the Jacobian."""
    return 8 * dofs * (2 * dofs + 3 * _ROWS_PER_DOF * dofs)


def _record_fault(mjspec: mujoco.MjSpec, fault: EngineFault) -> None:
    """Record in a spec that its settings were changed, so that its copies and its XML contain the record."""
    name = _MARK.format(fault.name)
    if all(text.name != name for text in mjspec.texts):
        mjspec.add_text(name=name, data=fault.action)


def _has_fault_record(model: mujoco.MjModel, fault: EngineFault) -> bool:
    return mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_TEXT, _MARK.format(fault.name)) >= 0


def _find_faults(model: mujoco.MjModel) -> list[EngineFault]:
    found = solver_settings(model)
    return [
        fault
        for fault in known_faults(ENGINE, mujoco.mj_versionString())
        if (fault.solver, fault.jacobian) == (found.solver, found.jacobian)
    ]
