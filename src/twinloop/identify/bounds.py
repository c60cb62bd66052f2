"""Narrower bounds of free parameters than the twin's own, and a start that lies within all of them."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping
from dataclasses import replace

from twinloop.core.errors import BoundsError, InputError, UnknownNameError
from twinloop.identify.space import FreeParam, Space

Bounds = Mapping[str, tuple[float, float]]


def narrowed(space: Space, bounds: Bounds, start: Mapping[str, float]) -> tuple[Space, list[str]]:
    """The space within ``bounds`` by pattern, SI; and what must be said of those that exclude the nominal value.

    Raises:
        UnknownNameError: a pattern that fits no free parameter.
        InputError: bounds of which the lower one is not the lower.
        BoundsError: bounds or a start beyond the twin's own bounds.
    """
    for name, value in start.items():
        space.twin.require(name).check(value, where="the fit's start")
    free, said = list(space.free), []
    for pattern, (low, high) in bounds.items():
        columns = [i for i, name in enumerate(space.names) if fnmatch.fnmatchcase(name, pattern)]
        if not columns:
            raise UnknownNameError("free parameter", pattern, space.names, where="the fit's bounds")
        if not low < high:
            raise InputError(f"The bounds of {pattern}, [{low:g}, {high:g}], leave nothing between them. Swap them.")
        for column in columns:
            free[column] = _within(free[column], low, high)
            said += _excluded(free[column], low, high)
    return replace(space, free=tuple(free)), said


def _within(parameter: FreeParam, low: float, high: float) -> FreeParam:
    param = parameter.param
    if low < param.low or high > param.high:
        raise BoundsError(
            f"The bounds of {param.name}, [{low:g}, {high:g}] {param.unit}, reach beyond the twin's own, "
            f"[{param.low:g}, {param.high:g}]. Narrow them, or widen low and high in the twin."
        )
    low, high = (_transformed(parameter, value) for value in (low, high))
    return replace(parameter, low=low, high=high, start=min(max(parameter.start, low), high))


def _transformed(parameter: FreeParam, value: float) -> float:
    if not parameter.log:
        return value
    return math.log(value) if value > 0 else -math.inf


def _excluded(parameter: FreeParam, low: float, high: float) -> list[str]:
    param = parameter.param
    if low <= param.nominal <= high:
        return []
    near = low if param.nominal < low else high
    said = (
        f"The bounds given for {param.name}, [{low:g}, {high:g}] {param.unit}, exclude its nominal value "
        f"{param.nominal:g}: the fit starts at {near:g}. Widen them if the twin is right, or correct the twin."
    )
    return [said]
