"""A whole ``randomization:`` section as a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError
from twinloop.randomize.boxes import parse_boxes
from twinloop.randomize.combinations import AnyDraw
from twinloop.randomize.config import parse_randomization
from twinloop.randomize.constraints import Constraint
from twinloop.randomize.designs import INDEPENDENT, make_design
from twinloop.randomize.draws import Draw
from twinloop.randomize.options import OPTIONS, parse_adaptive, parse_constraints
from twinloop.randomize.plan import Plan
from twinloop.randomize.sources import default_draws, identified_draws
from twinloop.twin import Twin


def no_constraints() -> Mapping[str, Constraint]:
    """What a caller offers that has no constraints with names."""
    return {}


def section_plan(
    section: Any,
    twin: Twin,
    *,
    run_seed: int,
    episodes: int,
    where: str,
    identified: ParamDistribution | None = None,
    kappa: float | None = None,
    named: Callable[[], Mapping[str, Constraint]] = no_constraints,
) -> Plan:
    """The plan of a ``randomization:`` section.

    Args:
        section: ``"default"``, or a mapping of ranges and `options.OPTIONS`.
        episodes: attempts of the run.
        identified: the distribution that ``identified:`` names, read already.
        kappa: see `identified_draws`.
        named: the constraints that can be asked for by name; called when constraints are given.

    Raises:
        TwinloopError: what is wrong, with ``where`` and the key.
    """
    given = {"default": True} if section == "default" else dict(section)
    options = {key: given.pop(key) for key in OPTIONS if key in given}
    if "kappa" in options and identified is None:
        raise InputError(f"{where}: randomization.kappa widens an identified distribution. Add identified: RUN.")
    parsed, pool = parse_randomization(given, twin, where=where)
    draws: list[AnyDraw] = list(parsed)
    if "boxes" in options:
        boxes = parse_boxes(options["boxes"], twin, where=where)
        draws = [boxes, *_without(parsed, boxes.names)]
    if "adaptive" in options:
        draws.append(parse_adaptive(options["adaptive"], twin, where=where))
    taken = [name for draw in draws for name in draw.names]
    if identified is not None:
        draws += identified_draws(twin, identified, kappa=kappa, skip=taken)
    elif _asked(options.get("default", False), where):
        draws += default_draws(twin, skip=taken)
    place = f"{where}: randomization.design"
    design = make_design(options["design"], episodes=episodes, where=place) if "design" in options else INDEPENDENT
    constraints = ()
    if "constraints" in options:
        constraints = parse_constraints(options["constraints"], twin, named=named(), where=where)
    return Plan(
        twin=twin,
        run_seed=run_seed,
        draws=tuple(draws),
        texture_pool=pool,
        design=design,
        constraints=constraints,
    )


def _without(draws: Sequence[Draw], names: Sequence[str]) -> list[Draw]:
    """The draws without the parameters that boxes name, which come from there.

    Raises:
        InputError: one of them is tied to others, which would go on without it.
    """
    kept = []
    for draw in draws:
        left = tuple(name for name in draw.names if name not in names)
        if left != draw.names and draw.tied and left:
            gone = next(name for name in draw.names if name in names)
            raise InputError(
                f"{draw.source}: {gone} is tied to {left[0]} and cannot be drawn in boxes alone. Untie them."
            )
        if left:
            kept.append(replace(draw, names=left))
    return kept


def _asked(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{where}: randomization.default is true or false; given {value!r}.")
    return value
