"""All checks of a twin, in order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from twinloop.checks.convergence import check_convergence
from twinloop.checks.delay import check_delay
from twinloop.checks.energy import check_energy_drift, check_energy_gain
from twinloop.checks.grasp import check_grasp
from twinloop.checks.report import Check, CheckReport
from twinloop.checks.solver import check_solver
from twinloop.checks.stability import check_stability
from twinloop.checks.statics import check_compiles, check_penetration
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.twin import Twin, load_twin

CHECKS: Mapping[str, Callable[[Twin], Check]] = {
    "compiles": check_compiles,
    "solver agrees with dense": check_solver,
    "no initial penetration": check_penetration,
    "grasp holds": check_grasp,
    "realised delay": check_delay,
    "finite at the extremes": check_stability,
    "energy drift": check_energy_drift,
    "no energy from damping": check_energy_gain,
    "half-step convergence": check_convergence,
}


def run_checks(
    twin: Twin | str | Path,
    *,
    only: Collection[str] | None = None,
    progress: Callable[[Check], None] | None = None,
) -> CheckReport:
    """Every check of a twin, or those in ``only``.

    Args:
        twin: a compiled twin, or what `twin.load_twin` takes; one that does not load fails `compiles`, and the
            rest is skipped.
        progress: called after every check.

    Raises:
        UnknownNameError: ``only`` names a check that does not exist, or ``twin`` names nothing. A name that is
            missing inside the twin's own file fails `compiles`.
    """
    for name in only or ():
        if name not in CHECKS:
            raise UnknownNameError("check", name, CHECKS)
    names = [name for name in CHECKS if only is None or name in only]
    loaded = _load(twin)
    checks = []
    for name in names:
        checks.append(_unloaded(name, loaded) if isinstance(loaded, InputError) else CHECKS[name](loaded))
        if progress is not None:
            progress(checks[-1])
    label = loaded.name if isinstance(loaded, Twin) else str(twin)
    return CheckReport(twin=label, checks=tuple(checks))


def _load(twin: Twin | str | Path) -> Twin | InputError:
    if isinstance(twin, Twin):
        return twin
    try:
        return load_twin(twin)
    except UnknownNameError as error:
        if not Path(twin).is_file():
            raise
        return error
    except InputError as error:
        return error


def _unloaded(name: str, error: InputError) -> Check:
    return Check.fail(name, str(error)) if name == "compiles" else Check.skip(name, "the twin does not load")
