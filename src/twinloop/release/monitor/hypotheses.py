"""What may be wrong with a robot's drives, as parameters of its twin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import filter as matching
from typing import Literal

import numpy as np

from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.twin import Twin
from twinloop.twin.quantities import QUANTITIES, Quantity
from twinloop.twin.quantities.effects import FAULTS
from twinloop.twin.quantities.kinds import Fault
from twinloop.twin.spec import GearSpec
from twinloop.twin.variant import gearing


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """One thing that may be wrong: parameters that match ``pattern`` become value × or + ``change``.

    ``unit`` says what a coefficient of 1 means. ``geared`` puts the change into a twin with play in its gears.
    """

    name: str
    pattern: str
    op: Literal["scale", "add"]
    change: float
    unit: str
    geared: bool = False


def hypotheses(twin: Twin) -> tuple[Hypothesis, ...]:
    """What may be wrong with the drives of a twin, each so large that it is seen within seconds.

    Sizes are our choice: coefficients are multiples of them. What the twin cannot have is left out.
    """
    elastic = twin.robot.gears is not None and twin.robot.gears.stiffness is not None
    playing = twin.robot.control == "position" and not elastic
    kinds = [kind for kind in QUANTITIES if kind.fault]
    every = [_hypothesis(twin, kind, fault) for kind in kinds if (fault := kind.fault)]
    found = [one for one in every if (playing if one.geared else matching(twin.params, one.pattern))]
    return tuple(sorted(found, key=lambda one: FAULTS.index(one.name) if one.name in FAULTS else len(FAULTS)))


def _hypothesis(twin: Twin, kind: Quantity, fault: Fault) -> Hypothesis:
    return Hypothesis(
        name=fault.name,
        pattern=kind.path(_hand(twin) if fault.at_hand else "*"),
        op=fault.op,
        change=fault.change / twin.control_hz if fault.per_period else fault.change,
        unit=fault.unit,
        geared=fault.geared,
    )


def changed(twin: Twin, table: ParamTable, one: Hypothesis) -> tuple[Twin, ParamTable]:
    """The twin with one thing wrong, and its row of parameters, within their physical bounds."""
    if one.geared and twin.robot.gears is None:
        return _with_play(twin, table, one.change)
    values = table.values.copy()
    columns = [table.names.index(name) for name in matching(table.names, one.pattern)]
    if not columns:
        raise InputError(f"The twin {twin.name} has no parameter {one.pattern}, which {one.name} would change.")
    told = values[:, columns] * one.change if one.op == "scale" else values[:, columns] + one.change
    low, high = np.array([(twin.params[table.names[c]].low, twin.params[table.names[c]].high) for c in columns]).T
    values[:, columns] = np.clip(told, low, high)
    return twin, ParamTable(names=table.names, values=values)


def named(given: Sequence[Hypothesis]) -> tuple[str, ...]:
    """Their names, in order."""
    return tuple(one.name for one in given)


def _with_play(twin: Twin, table: ParamTable, play: float) -> tuple[Twin, ParamTable]:
    geared = gearing(twin, GearSpec(backlash=play))
    return geared, ParamTable(names=table.names, values=table.values)


def _hand(twin: Twin) -> str:
    """The body that carries the tool, by the site that the robot names."""
    if twin.robot.tcp is None:
        return ""
    model = twin.model
    return model.body(int(model.site(twin.robot.tcp).bodyid[0])).name
