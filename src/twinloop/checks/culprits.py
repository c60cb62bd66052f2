"""Which parameter's range breaks a world: the extremes of each alone, else the fewest that do so together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.checks.corners import at, drawn
from twinloop.core.params import ParamTable
from twinloop.twin import Param, Twin

# Tells, for worlds of these parameters, which of them break.
Trial = Callable[[ParamTable], NDArray[np.bool_]]


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """A parameter whose range breaks worlds: at ``value`` with all others nominal, or only together with others."""

    param: Param
    value: float
    alone: bool

    def text(self) -> str:
        """In words, with the range that is to be narrowed."""
        low, high = at(self.param, high=False), at(self.param, high=True)
        how = "alone" if self.alone else "in company"
        return f"{self.param.name} = {self.value:g} {self.param.unit} {how} (default range {low:g} to {high:g})"


def find_culprits(twin: Twin, broken: ParamTable, trial: Trial) -> list[Culprit]:
    """The parameters to blame for a broken corner.

    First every end of every range with all other parameters nominal. Where none of these breaks, the smallest set of
    the broken corner's values that does; empty where the model breaks at nominal values.

    Args:
        broken: the corner that broke, one row.
        trial: runs worlds as they were run when the corner broke.
    """
    params = drawn(twin)
    ends = [(param, at(param, high)) for param in params for high in (False, True)]
    alone = twin.table(len(ends), _one_each(twin, ends))
    culprits = [
        Culprit(param=param, value=value, alone=True)
        for (param, value), breaks in zip(ends, trial(alone), strict=True)
        if breaks
    ]
    if culprits:
        return culprits
    return [
        Culprit(param=param, value=float(broken[param.name][0]), alone=False)
        for param in _smallest(twin, params, broken, trial)
    ]


def _smallest(twin: Twin, params: list[Param], broken: ParamTable, trial: Trial) -> list[Param]:
    """A set of parameters that breaks at its corner values, and would not without any one of them.

    One parameter after the other goes back to nominal, and stays there if the world still breaks.
    """
    kept = list(params)
    for param in params:
        fewer = [other for other in kept if other is not param]
        values = {other.name: broken[other.name] for other in fewer}
        if trial(twin.table(1, values))[0]:
            kept = fewer
    return kept


def _one_each(twin: Twin, ends: list[tuple[Param, float]]) -> dict[str, NDArray[np.float64]]:
    """Columns of a table in which world i has the i-th parameter at its end and all others nominal."""
    columns: dict[str, NDArray[np.float64]] = {}
    for world, (param, value) in enumerate(ends):
        column = columns.setdefault(param.name, np.full(len(ends), twin.params[param.name].nominal))
        column[world] = value
    return columns
