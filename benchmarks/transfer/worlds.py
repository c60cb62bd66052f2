"""Make the distribution of the worlds of each training condition."""

from __future__ import annotations

from pathlib import Path

from benchmarks.transfer.settings import Worlds
from twinloop.core.distribution import ParamDistribution
from twinloop.core.documents import read_json
from twinloop.randomize import Draw, Plan, default_draws, identified_draws
from twinloop.randomize.distributions import Choice
from twinloop.randomize.plan import AnyDraw
from twinloop.twin import Twin


def training_plans(worlds: Worlds, twin: Twin, identified: Path, seed: int) -> tuple[Plan, Plan | None]:
    """Return the plan of a condition's worlds, and for ``both`` that of the other half.

    Args:
        worlds: see `settings.Condition`.
        twin: the nominal twin.
        identified: file of the robot's identified distribution; only read if the condition needs it.
        seed: run seed of the worlds.
    """

    def plan(draws: list[AnyDraw]) -> Plan:
        return Plan(twin=twin, run_seed=seed, draws=tuple(draws))

    if worlds == "nominal":
        return plan([*_placement_draws(twin)]), None
    if worlds == "ranges":
        return plan([*default_draws(twin)]), None
    distribution = ParamDistribution.from_json(read_json(identified))
    if worlds == "point":
        return plan([*_value_draws(distribution), *_placement_draws(twin)]), None
    around = plan([*identified_draws(twin, distribution)])
    return around, plan([*default_draws(twin)]) if worlds == "both" else None


def _placement_draws(twin: Twin) -> list[Draw]:
    """Return the draws of the poses of objects."""
    return [draw for draw in default_draws(twin) if twin.params[draw.names[0]].quantity.stage == "reset"]


def _value_draws(distribution: ParamDistribution) -> list[Draw]:
    """Return draws that give each determined parameter its identified value."""
    known = (name for name, determined in zip(distribution.names, distribution.determined, strict=True) if determined)
    return [Draw(names=(name,), distribution=Choice(values=(distribution.estimate[name],))) for name in known]
