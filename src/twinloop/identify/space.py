"""What is free in a fit, in the space where the solver walks, and within which bounds."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import BoundsError, InputError, UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.twin import Param, Twin
from twinloop.twin.quantities import QUANTITIES, Fit, Prior, Quantity, split_path


@dataclass(frozen=True, kw_only=True)
class FreeParam:
    """One free parameter: its ``centre`` and ``sd`` beforehand, where the walk starts, its bounds, all transformed.

    ``joint`` is the number of the robot's joint that it belongs to, None where it belongs to none or to all.
    """

    param: Param
    joint: int | None
    centre: float
    start: float
    sd: float
    low: float
    high: float

    @property
    def name(self) -> str:
        """The parameter's name in the twin."""
        return self.param.name

    @property
    def log(self) -> bool:
        """Whether the solver walks in its logarithm."""
        return self.param.transform == "log"


@dataclass(frozen=True, kw_only=True)
class Space:
    """The free parameters of a fit and the values of all others."""

    twin: Twin
    free: tuple[FreeParam, ...]
    fixed: Mapping[str, float]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the free parameters."""
        return tuple(parameter.name for parameter in self.free)

    def column(self, name: str) -> NDArray[np.float64]:
        """``centre``, ``start``, ``sd``, ``low`` or ``high`` of every free parameter, ``(p,)``."""
        return np.array([getattr(parameter, name) for parameter in self.free])

    def values(self, points: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """SI values by name at transformed points ``(…, p)``."""
        with np.errstate(over="ignore"):  # an end of an interval that data leave open may be infinite: it is clipped
            return {  # exp(log(bound)) may round to beyond it
                p.name: np.clip(np.exp(points[..., i]) if p.log else points[..., i], p.param.low, p.param.high)
                for i, p in enumerate(self.free)
            }

    def table(self, points: NDArray[np.float64]) -> ParamTable:
        """The twin's complete table at transformed points ``(nworld, p)``."""
        return self.twin.table(len(points), {**self.fixed, **self.values(points)})

    def block(self, joint: int) -> NDArray[np.intp]:
        """Columns of the parameters of one joint."""
        return np.flatnonzero([parameter.joint == joint for parameter in self.free])

    def columns(self, chosen: Callable[[Fit], bool]) -> NDArray[np.intp]:
        """Columns of the parameters whose declaration has some property."""
        return np.flatnonzero([chosen(parameter.param.quantity.fit) for parameter in self.free])


def free_space(
    twin: Twin,
    *,
    start: Mapping[str, float] | None = None,
    fixed: Sequence[str] = (),
    values: Mapping[str, float] | None = None,
    free: Sequence[str] | None = None,
    only: Sequence[str] | None = None,
    priors: Mapping[str, Prior] | None = None,
) -> Space:
    """The free parameters of a fit: those that are named, or every one of the robot that a log can speak of.

    Args:
        twin: the twin to be identified.
        start: where to start from, SI, in place of the nominal value.
        fixed: parameters that are not free.
        values: values of fixed parameters other than their nominal ones, SI.
        free: patterns of the parameters that are free, with ``*``.
        only: last parts of the names of those that are free (``kp``, ``damping``, …), default all.
        priors: by pattern, before those of the declarations.

    Raises:
        InputError: the twin declares none of them.
        UnknownNameError: a pattern that fits none of the twin's parameters.
    """
    start = start or {}
    chosen = _of_the_robot(twin) if free is None else _named(twin, free)
    found = [
        _free(twin.params[name], joint, _prior(twin.params[name], priors or {}), start.get(name))
        for name, joint in chosen.items()
        if name not in fixed and (only is None or twin.params[name].quantity.word in only)
    ]
    if not found:
        kinds = ", ".join(kind.word for kind in free_kinds())
        raise InputError(f"The twin {twin.name} declares no parameter that a log could tell ({kinds}). Add one.")
    return Space(twin=twin, free=tuple(found), fixed=dict(values or {}))


def free_kinds() -> list[Quantity]:
    """The quantities that are free by default: those that a log of commands and positions can tell."""
    return sorted((kind for kind in QUANTITIES if kind.fit.rank is not None), key=lambda kind: kind.fit.rank or 0)


def _of_the_robot(twin: Twin) -> dict[str, int | None]:
    """The robot's parameters of the `free_kinds`, and the joint of each."""
    chosen = {}
    for joint, (joint_name, actuator) in enumerate(zip(twin.robot.joints, twin.robot.actuator_names, strict=True)):
        for kind in free_kinds():
            name = kind.path(actuator if kind.family == "actuator" else joint_name)
            if name in twin.params and (twin.robot.control == "position" or not kind.fit.position_only):
                chosen[name] = joint
    return chosen


def _named(twin: Twin, patterns: Sequence[str]) -> dict[str, int | None]:
    """The parameters that patterns name, and the joint of those that belong to one."""
    owners: dict[tuple[str, str], int] = {}
    if twin.spec.robot is not None:
        for joint, (name, actuator) in enumerate(zip(twin.robot.joints, twin.robot.actuator_names, strict=True)):
            owners |= {("joint", name): joint, ("sensor", name): joint, ("actuator", actuator): joint}
    chosen = {}
    for pattern in patterns:
        names = fnmatch.filter(twin.params, pattern)
        if not names:
            raise UnknownNameError("parameter", pattern, twin.params, where=f"twin {twin.name}")
        chosen |= {name: owners.get((split_path(name)[0], split_path(name)[1])) for name in names}
    return chosen


def _prior(param: Param, known: Mapping[str, Prior]) -> Prior:
    """The first pattern that fits; else the declaration's, half of a default range, or a factor of e if positive."""
    fit = param.quantity.fit
    for pattern, prior in known.items():
        if fnmatch.fnmatchcase(param.name, pattern):
            # A prior for just the pattern of what is free by default has never replaced its own; results keep to that.
            return fit.prior if fit.prior and fit.rank is not None and pattern == param.quantity.path() else prior
    if fit.prior is not None:
        return fit.prior
    if param.transform == "log":
        return Prior(spread=1.0)
    if param.default_range is not None:
        low, high = param.absolute(param.default_range, param.op)
        return Prior(spread=max(float(high - low) / 2, 1e-9))
    raise InputError(
        f"Nothing says how far {param.name} may be from {param.nominal:g} {param.unit} beforehand. Give it a prior, or "
        "a default range in the twin."
    )


def _free(param: Param, joint: int | None, prior: Prior, start: float | None) -> FreeParam:
    value = float(np.clip(param.nominal if start is None else start, param.low, param.high))
    spread = max(prior.spread * abs(param.nominal) if prior.relative else prior.spread, prior.least)
    if param.transform != "log":
        return FreeParam(
            param=param, joint=joint, centre=param.nominal, start=value, sd=spread, low=param.low, high=param.high
        )
    return FreeParam(
        param=param,
        joint=joint,
        centre=math.log(param.nominal),
        start=math.log(value),
        sd=prior.spread,
        low=math.log(param.low) if param.low > 0 else -math.inf,
        high=math.log(param.high),
    )


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
