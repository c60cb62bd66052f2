"""Choose the free parameters of a fit to windows of logs, and assemble the problem for the solver and for analyses."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import BoundsError, InputError, UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.identify.config import FitConfig
from twinloop.identify.problem import FitProblem, ParameterBlock
from twinloop.simulate import Backend
from twinloop.simulate.replay import change_physics_rate, replay
from twinloop.simulate.replay_logs import ReplayLogs
from twinloop.stats import best_lag, quantization_step
from twinloop.twin import Param, Twin
from twinloop.twin.quantities import QUANTITIES, FitDeclaration, Prior, Quantity, split_path


@dataclass(frozen=True, kw_only=True)
class FreeParam:
    """One free parameter: prior mean ``centre`` and ``sd``, start value and bounds, all in transformed units.

    ``joint`` is the index of the robot's joint that the parameter belongs to; None if it belongs to no joint or to all.
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
        """Name of the parameter in the twin."""
        return self.param.name

    @property
    def is_logarithmic(self) -> bool:
        """Whether the solver works on the logarithm of the parameter."""
        return self.param.transform == "log"


@dataclass(frozen=True, kw_only=True)
class FitSpace:
    """The free parameters of a fit, and the values of the fixed ones."""

    twin: Twin
    free: tuple[FreeParam, ...]
    fixed: Mapping[str, float]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the free parameters."""
        return tuple(parameter.name for parameter in self.free)

    def column(self, name: str) -> NDArray[np.float64]:
        """Return ``centre``, ``start``, ``sd``, ``low`` or ``high`` of every free parameter, shape ``(p,)``."""
        return np.array([getattr(parameter, name) for parameter in self.free])

    def values(self, points: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Return SI values by name at transformed points ``(…, p)``, clipped to the parameters' bounds."""
        with np.errstate(over="ignore"):  # a limit that data do not determine may be infinite; it is clipped
            return {  # exp(log(bound)) may exceed the bound by rounding
                p.name: np.clip(
                    np.exp(points[..., i]) if p.is_logarithmic else points[..., i], p.param.low, p.param.high
                )
                for i, p in enumerate(self.free)
            }

    def scalar_values(self, point: NDArray[np.float64]) -> dict[str, float]:
        """Return SI values by name at one transformed point ``(p,)``."""
        return {name: float(value) for name, value in self.values(point).items()}

    def table(self, points: NDArray[np.float64]) -> ParamTable:
        """Return the twin's complete parameter table at transformed points ``(nworld, p)``."""
        return self.twin.table(len(points), {**self.fixed, **self.values(points)})

    def joint_columns(self, joint: int) -> NDArray[np.intp]:
        """Return the columns of one joint's parameters."""
        return np.flatnonzero([parameter.joint == joint for parameter in self.free])

    def select_columns(self, chosen: Callable[[FitDeclaration], bool]) -> NDArray[np.intp]:
        """Return the columns of the parameters whose fit declaration satisfies the predicate ``chosen``."""
        return np.flatnonzero([chosen(parameter.param.quantity.fit) for parameter in self.free])


def select_free_parameters(
    twin: Twin,
    config: FitConfig | None = None,
    *,
    start: Mapping[str, float] | None = None,
    known: Mapping[str, float] | None = None,
    conditions: Collection[str] = (),
) -> FitSpace:
    """Return the free parameters of a fit: those in ``config``, or by default the robot's `default_free_quantities`.

    Args:
        twin: the twin to identify.
        config: free and fixed parameters, priors, and start values.
        start: start values in SI units instead of the nominal values; those of ``config`` take precedence.
        known: further fixed values, SI.
        conditions: names of parameters that each episode states; they are not free.

    Raises:
        InputError: no parameter of the twin is free, or a free one has no prior.
        UnknownNameError: a pattern matches none of the twin's parameters.
    """
    config = config or FitConfig()
    start, fixed, only = {**(start or {}), **config.start}, {**(known or {}), **config.fixed}, config.quantities
    chosen = _select_robot_parameters(twin) if config.free is None else _match_parameters(twin, config.free)
    found = [
        _make_free_param(twin.params[name], joint, _choose_prior(twin.params[name], config.priors), start.get(name))
        for name, joint in chosen.items()
        if name not in {*fixed, *conditions} and (only is None or twin.params[name].quantity.last_name in only)
    ]
    if not found:
        kinds = ", ".join(kind.last_name for kind in default_free_quantities())
        raise InputError(f"The twin {twin.name} declares no parameter that a log can identify ({kinds}). Declare one.")
    return FitSpace(twin=twin, free=tuple(found), fixed=fixed)


def default_free_quantities() -> list[Quantity]:
    """Return the quantities that are free by default: those that a log of commands and positions can identify."""
    return sorted((kind for kind in QUANTITIES if kind.fit.rank is not None), key=lambda kind: kind.fit.rank or 0)


def _select_robot_parameters(twin: Twin) -> dict[str, int | None]:
    """Return the robot's parameters of the quantities in `default_free_quantities`, each with its joint's index."""
    chosen = {}
    for joint, (joint_name, actuator) in enumerate(zip(twin.robot.joints, twin.robot.actuator_names, strict=True)):
        for kind in default_free_quantities():
            name = kind.path(actuator if kind.family == "actuator" else joint_name)
            if name in twin.params and (twin.robot.control == "position" or not kind.fit.position_only):
                chosen[name] = joint
    return chosen


def _match_parameters(twin: Twin, patterns: Sequence[str]) -> dict[str, int | None]:
    """Return the parameters that match the patterns, each with its joint's index or None."""
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


def _choose_prior(param: Param, known: Mapping[str, Prior]) -> Prior:
    """Return a parameter's prior.

    It is the first match among the given patterns; else the declared prior; else a factor of e for a positive
    parameter; else half the width of the default range.
    """
    fit = param.quantity.fit
    for pattern, prior in known.items():
        if fnmatch.fnmatchcase(param.name, pattern):
            # A prior for exactly the pattern of a default free quantity never replaced the declared one.
            return fit.prior if fit.prior and fit.rank is not None and pattern == param.quantity.path() else prior
    if fit.prior is not None:
        return fit.prior
    if param.transform == "log":
        return Prior(spread=1.0)
    if param.default_range is not None:
        low, high = param.absolute(param.default_range, param.op)
        return Prior(spread=max(float(high - low) / 2, 1e-9))
    raise InputError(
        f"{param.name} (nominal {param.nominal:g} {param.unit}) has neither a prior nor a default range. Give "
        "it a prior, or a default range in the twin."
    )


def _make_free_param(param: Param, joint: int | None, prior: Prior, start: float | None) -> FreeParam:
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


def narrow_bounds(space: FitSpace, bounds: Bounds, start: Mapping[str, float]) -> tuple[FitSpace, list[str]]:
    """Return the space within ``bounds`` (SI, by pattern), and warnings on bounds that exclude a nominal value.

    Raises:
        UnknownNameError: a pattern matches no free parameter.
        InputError: the lower bound is not below the upper one.
        BoundsError: bounds or a start value outside the twin's own bounds.
    """
    for name, value in start.items():
        space.twin.find_param(name).check(value, where="the fit's start")
    free, said = list(space.free), []
    for pattern, (low, high) in bounds.items():
        columns = [i for i, name in enumerate(space.names) if fnmatch.fnmatchcase(name, pattern)]
        if not columns:
            raise UnknownNameError("free parameter", pattern, space.names, where="the fit's bounds")
        if not low < high:
            raise InputError(f"The bounds of {pattern}, [{low:g}, {high:g}], are not in ascending order. Swap them.")
        for column in columns:
            free[column] = _set_bounds(free[column], low, high)
            said += _warn_excluded_nominal(free[column], low, high)
    return replace(space, free=tuple(free)), said


def _set_bounds(parameter: FreeParam, low: float, high: float) -> FreeParam:
    param = parameter.param
    if low < param.low or high > param.high:
        raise BoundsError(
            f"The bounds of {param.name}, [{low:g}, {high:g}] {param.unit}, exceed the twin's own bounds, "
            f"[{param.low:g}, {param.high:g}]. Narrow them, or widen low and high in the twin."
        )
    if parameter.is_logarithmic:
        low, high = (math.log(value) if value > 0 else -math.inf for value in (low, high))
    return replace(parameter, low=low, high=high, start=min(max(parameter.start, low), high))


def _warn_excluded_nominal(parameter: FreeParam, low: float, high: float) -> list[str]:
    param = parameter.param
    if low <= param.nominal <= high:
        return []
    said = (
        f"The bounds given for {param.name}, [{low:g}, {high:g}] {param.unit}, exclude its nominal value "
        f"{param.nominal:g}: the fit starts at {low if param.nominal < low else high:g}. Widen them if the twin is "
        "right, or correct the twin."
    )
    return [said]


_COUPLED_JOINTS = 2


def fit_space(logs: ReplayLogs, config: FitConfig) -> tuple[FitSpace, dict[str, float]]:
    """Return the free parameters of a fit to ``logs``, and the encoder scales computed from the logs' quantization."""
    scales = _encoder_scales(logs)
    delays, conditions = _estimate_start_delays(logs), config.replay.conditions
    return select_free_parameters(logs.twin, config, start=delays, known=scales, conditions=conditions), scales


def fit_problem(
    backend: Backend,
    logs: ReplayLogs,
    space: FitSpace,
    point: NDArray[np.float64],
    config: FitConfig,
    *,
    width: NDArray[np.float64] | None = None,
) -> FitProblem:
    """Return the problem of fitting ``space`` to ``logs``.

    ``width`` ``(nchannel,)`` is the residual at which the loss changes from square to linear. Without it the width is
    computed from the median residuals at ``point``, which needs one replay.
    """

    def readings(points: NDArray[np.float64], local: NDArray[np.float64]) -> NDArray[np.float64]:
        return replay(backend, logs, space.table(points), local)

    if width is None:
        width = huber_width(
            readings(point[None], np.zeros((1, len(logs), logs.nlocal)))[0] - logs.measured, logs.measured, config
        )
    n = len(logs.channels)
    every = ParameterBlock(columns=np.arange(len(space.free)), channels=np.arange(n))
    apart = (ParameterBlock(columns=space.joint_columns(j), channels=np.array([j])) for j in range(n))
    return FitProblem(
        readings=readings,
        measured=logs.measured,
        blocks=(every,) if _is_coupled(logs, space, config) else tuple(b for b in apart if len(b.columns)),
        centre=space.column("centre"),
        sd=space.column("sd"),
        low=space.column("low"),
        high=space.column("high"),
        width=width,
        local_sd=logs.start.sd,
        clusters=logs.clusters,
    )


def huber_width(residual: NDArray[np.float64], measured: NDArray[np.float64], config: FitConfig) -> NDArray[np.float64]:
    """Return the residual at which the loss becomes linear, from each channel's median residual, ``(nchannel,)``."""
    size = np.nanmedian(np.abs(residual), axis=(0, 1))
    least = 1e-9 + 1e-6 * np.nanmax(np.abs(measured), axis=(0, 1))
    return np.maximum(config.width * size, least)


def _is_coupled(logs: ReplayLogs, space: FitSpace, config: FitConfig) -> bool:
    """Return whether every parameter is fitted to all channels; otherwise each joint's to its own position only."""
    if config.coupled is not None:
        return config.coupled
    apart = len(logs.channels) == len(logs.joints) > _COUPLED_JOINTS
    return not (apart and not logs.nlocal and all(p.joint is not None for p in space.free))


def evenly_spaced_indices(count: int, most: int) -> NDArray[np.intp]:
    """Return the indices of at most ``most`` of ``count`` rows, evenly spread."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(np.intp))


def limit_physics_rate(logs: ReplayLogs, physics_hz: float) -> ReplayLogs:
    """Return the same logs with physics at about ``physics_hz``, or at the twin's own rate if that is lower."""
    return replace(logs, twin=change_physics_rate(logs.twin, physics_hz))


def _encoder_scales(logs: ReplayLogs) -> dict[str, float]:
    """Return ``sensor/J/scale`` of the joints with visible encoder steps, for logs without calibrated units."""
    counts = logs.twin.robot.encoder_counts if logs.joints else None
    if counts is None or logs.calibrated or len(logs.channels) != len(logs.joints):
        return {}
    scales = {}
    for column, unit in enumerate(logs.units.joints):
        name = f"sensor/{unit.joint}/scale"
        values = logs.measured[..., column]
        scale = scale_from_quantum(values[~np.isnan(values)], unit.scale or 1.0, counts)
        param = logs.twin.params.get(name)
        if param is not None and scale is not None and param.low < scale < param.high:
            scales[name] = scale
    return scales


def _estimate_start_delays(logs: ReplayLogs) -> dict[str, float]:
    """Return start values of the delays: each command's best shift minus the nominal servo lag (damping / kp)."""
    twin = logs.twin
    if not logs.joints or twin.robot.control != "position" or len(logs.channels) != len(logs.joints):
        return {}
    lag = best_lag(logs.units.from_si(logs.commands), logs.measured) / twin.control_hz
    nominal = twin.table(1)
    own = twin.column(nominal, "joint", "damping", 0.0) / twin.column(nominal, "actuator", "kp", np.inf)
    delay = np.maximum(lag - own[0], 0.0)
    names = [f"actuator/{actuator}/delay" for actuator in twin.robot.actuator_names]
    return {name: float(value) for name, value in zip(names, delay, strict=True) if name in twin.params}


def scale_from_quantum(values: ArrayLike, radians_per_unit: float, counts_per_turn: int) -> float | None:
    """Return ``sensor/J/scale`` for which one step of the log is one encoder count; None if the readings have no step.

    Args:
        values: the joint's readings in log units.
        radians_per_unit: scale of the nominal unit map.
        counts_per_turn: counts of the encoder per turn of the joint.
    """
    step = quantization_step(values)
    return None if step is None else (2 * math.pi / counts_per_turn) / (step * radians_per_unit)
