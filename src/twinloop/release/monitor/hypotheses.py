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
from twinloop.twin.spec import GearSpec
from twinloop.twin.variant import gearing

PLAY = 0.03  # rad or m · 0.1: 1.7 deg, twice what a worn STS3215 is found to have (TheRobotStudio/SO-ARM100#134)
_EXTRA_MASS = 0.05  # kg at the hand; an SO-101 lifts 0.3 kg


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
    period = 1.0 / twin.control_hz
    hand = _hand(twin)
    every = [
        Hypothesis(name="friction", pattern="joint/*/frictionloss", op="scale", change=2.0, unit="times doubled"),
        Hypothesis(name="latency", pattern="actuator/*/delay", op="add", change=period, unit="control periods"),
        Hypothesis(name="gain", pattern="actuator/*/kp", op="scale", change=0.8, unit="fifths lost"),
        Hypothesis(name="load", pattern=f"link/{hand}/mass", op="add", change=_EXTRA_MASS, unit="times 50 g"),
    ]
    found = [one for one in every if matching(twin.params, one.pattern)]
    elastic = twin.robot.gears is not None and twin.robot.gears.stiffness is not None
    if twin.robot.control == "position" and not elastic:
        found.append(
            Hypothesis(
                name="play", pattern="joint/*/backlash", op="add", change=PLAY, unit=f"times {PLAY:g} rad", geared=True
            )
        )
    return tuple(found)


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
