"""Run all checks, or selected checks, of a twin and collect their results."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from twinloop.checks.report import CheckOutcome, CheckReport
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.registry import Registry
from twinloop.twin import Twin, load_twin

CHECKS: Registry[Callable[[Twin], CheckOutcome]] = Registry(
    "check",
    {
        "compiles": "twinloop.checks.grasp:check_compiles",
        "ranges vary": "twinloop.checks.corners:check_ranges",
        "solver agrees with dense": "twinloop.checks.stability:check_solver",
        "soft bodies": "twinloop.checks.soft:check_soft_bodies",
        "no initial penetration": "twinloop.checks.grasp:check_penetration",
        "grasp holds": "twinloop.checks.grasp:check_grasp",
        "realised delay": "twinloop.checks.delay:check_delay",
        "finite at the extremes": "twinloop.checks.stability:check_stability",
        "energy drift": "twinloop.checks.integration:check_energy_drift",
        "no energy from damping": "twinloop.checks.integration:check_energy_gain",
        "half-step convergence": "twinloop.checks.integration:check_convergence",
    },
    group="twinloop.checks",
)


def run_checks(
    twin: Twin | str | Path,
    *,
    only: Collection[str] | None = None,
    progress: Callable[[CheckOutcome], None] | None = None,
) -> CheckReport:
    """Run the checks of a twin in a fixed order.

    Args:
        twin: Compiled twin, or an argument of `twin.load_twin` (a name or a file). A twin that cannot be loaded fails
            the check ``compiles``, and the other checks are skipped.
        only: Names of the checks to run; all checks by default.
        progress: Function called with the outcome of every check when the check ends.

    Raises:
        UnknownNameError: If ``only`` has the name of a check that does not exist, or ``twin`` is the name of a twin
            that does not exist. An unknown name inside the twin's file fails the check ``compiles`` instead.
    """
    chosen = {name: CHECKS[name] for name in CHECKS if only is None or name in only}
    for name in only or ():
        if name not in chosen:
            CHECKS.find(name)
    loaded = _load(twin)
    checks = []
    for name, check in chosen.items():
        checks.append(_make_unloaded_outcome(name, loaded) if isinstance(loaded, InputError) else check(loaded))
        if progress is not None:
            progress(checks[-1])
    label = loaded.name if isinstance(loaded, Twin) else str(twin)
    return CheckReport(twin=label, checks=tuple(checks))


def _load(twin: Twin | str | Path) -> Twin | InputError:
    if isinstance(twin, Twin):
        return twin
    try:
        return load_twin(twin)
    except InputError as error:
        if isinstance(error, UnknownNameError) and not Path(twin).is_file():
            raise
        return error


def _make_unloaded_outcome(name: str, error: InputError) -> CheckOutcome:
    return (
        CheckOutcome.fail(name, str(error)) if name == "compiles" else CheckOutcome.skip(name, "the twin does not load")
    )
