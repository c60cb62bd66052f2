"""Select the free parameters of a fit, and build its least-squares problem from windows of logs.

A window is a part of an episode. The twin starts in the initial state of the window and is simulated with the recorded
commands. The `FitSpace` holds the free parameters with prior, start value and bounds. The `FitProblem` is used by the
solver and by analyses of the solution.
"""

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
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayLogs
from twinloop.stats import best_lag, quantization_step
from twinloop.twin import Param, Twin
from twinloop.twin.quantities import QUANTITIES, FitDeclaration, Prior, Quantity, find_members, split_path


@dataclass(frozen=True, kw_only=True)
class FreeParam:
    """Free parameter of a fit, with prior, start value and bounds in solver coordinates.

    Solver coordinates are natural logarithms if `is_logarithmic`, otherwise SI units.

    Attributes:
        param: The parameter of the twin.
        joint: Index of the robot's joint that the parameter belongs to; None if it belongs to no joint or to all
            joints.
        centre: Mean of the prior.
        start: Start value of the fit.
        sd: Standard deviation of the prior.
        low: Lower bound.
        high: Upper bound.
        shared: Whether the parameter belongs to several joints and is fitted only in the last stage.
        prior_source: Where the prior comes from: ``fit file``, ``quantity`` or ``default range``.
    """

    param: Param
    joint: int | None
    centre: float
    start: float
    sd: float
    low: float
    high: float
    shared: bool = False
    prior_source: str = ""

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
    """Free parameters of a fit, and values of its fixed parameters in SI units.

    Points of the space are in solver coordinates: natural logarithms of parameters with a log transform, otherwise SI.
    Shapes use p for the number of free parameters.
    """

    twin: Twin
    free: tuple[FreeParam, ...]
    fixed: Mapping[str, float]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the free parameters."""
        return tuple(parameter.name for parameter in self.free)

    def column(self, name: str) -> NDArray[np.float64]:
        """Return one field of every free parameter, shape ``(p,)``.

        Args:
            name: ``centre``, ``start``, ``sd``, ``low`` or ``high``; see `FreeParam`.
        """
        return np.array([getattr(parameter, name) for parameter in self.free])

    def values(self, points: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Convert points ``(…, p)`` in solver coordinates (ln or SI) to SI values ``(…,)`` by parameter name.

        Values outside a parameter's bounds are clipped to them.
        """
        with np.errstate(over="ignore"):  # undetermined limits may be infinite; they are clipped
            return {  # exp(log(bound)) may exceed the bound by rounding
                p.name: np.clip(
                    np.exp(points[..., i]) if p.is_logarithmic else points[..., i], p.param.low, p.param.high
                )
                for i, p in enumerate(self.free)
            }

    def scalar_values(self, point: NDArray[np.float64]) -> dict[str, float]:
        """Convert one point ``(p,)`` in solver coordinates (ln or SI) to SI values by parameter name."""
        return {name: float(value) for name, value in self.values(point).items()}

    def table(self, points: NDArray[np.float64]) -> ParamTable:
        """Return the twin's complete parameter table, one world per point.

        Args:
            points: Points in solver coordinates (ln or SI), ``(nworld, p)``.
        """
        return self.twin.table(len(points), {**self.fixed, **self.values(points)})

    def take(self, columns: NDArray[np.intp]) -> FitSpace:
        """Return the space of the free parameters with the given indices; the others keep their nominal values."""
        return replace(self, free=tuple(self.free[i] for i in columns))

    def joint_columns(self, joint: int) -> NDArray[np.intp]:
        """Return the column indices of the free parameters that belong to the joint with index ``joint``."""
        return np.flatnonzero([parameter.joint == joint for parameter in self.free])

    def select_columns(self, chosen: Callable[[FitDeclaration], bool]) -> NDArray[np.intp]:
        """Return the column indices of the free parameters whose quantity satisfies a condition.

        Args:
            chosen: Condition on the settings that the quantity of a parameter declares for fits.
        """
        return np.flatnonzero([chosen(parameter.param.quantity.fit) for parameter in self.free])


def select_free_parameters(
    twin: Twin,
    config: FitConfig | None = None,
    *,
    start: Mapping[str, float] | None = None,
    known: Mapping[str, float] | None = None,
    conditions: Collection[str] = (),
) -> FitSpace:
    """Select the free parameters of a fit.

    These are the parameters that match ``config.free``, or by default the robot's `default_free_quantities`.

    Args:
        twin: The twin to identify.
        config: Free and fixed parameters, priors, and start values.
        start: Start values in SI units that replace the nominal values; start values in ``config`` take precedence.
        known: Values of further fixed parameters, SI.
        conditions: Names of parameters whose values each episode records, for example the mass of a payload; they are
            not free.

    Raises:
        InputError: If no parameter of the twin is free, or a free parameter has no prior.
        UnknownNameError: If a pattern matches none of the twin's parameters.
    """
    config = config or FitConfig()
    start, fixed, only = {**(start or {}), **config.start}, {**(known or {}), **config.fixed}, config.quantities
    chosen = _select_robot_parameters(twin) if config.free is None else _match_parameters(twin, config.free)
    free_parameters = []
    for name, joint in chosen.items():
        param = twin.params[name]
        if name in {*fixed, *conditions} or (only is not None and param.quantity.last_name not in only):
            continue
        prior, source = _choose_prior(param, config.priors)
        free = _make_free_param(param, joint, prior, start.get(name))
        free_parameters.append(replace(free, shared=config.free is None and joint is None, prior_source=source))
    if not free_parameters:
        kinds = ", ".join(kind.last_name for kind in default_free_quantities())
        raise InputError(f"The twin {twin.name} declares no parameter that a log can identify ({kinds}). Declare one.")
    return FitSpace(twin=twin, free=tuple(free_parameters), fixed=fixed)


def default_free_quantities() -> list[Quantity]:
    """Return the quantities that are free in a fit by default, in the declared order (`FitDeclaration.rank`).

    A log of commands and positions can identify these quantities.
    """
    return sorted((kind for kind in QUANTITIES if kind.fit.rank is not None), key=lambda kind: kind.fit.rank or 0)


def _select_robot_parameters(twin: Twin) -> dict[str, int | None]:
    """Return every robot parameter that is free in a fit by default, as its name with the index of its joint.

    The index counts the robot's joints from 0; it is None for the mass of a link, which several joints carry.
    """
    chosen: dict[str, int | None] = {}
    for joint, (joint_name, actuator) in enumerate(zip(twin.robot.joints, twin.robot.actuator_names, strict=True)):
        for kind in default_free_quantities():
            name = kind.path(actuator if kind.family == "actuator" else joint_name)
            if (
                kind.family != "link"
                and name in twin.params
                and (twin.robot.control == "position" or not kind.fit.position_only)
            ):
                chosen[name] = joint
    for kind in default_free_quantities():
        links = find_members(twin.model, kind) if kind.family == "link" else []
        chosen |= {name: None for link in links if (name := kind.path(link)) in twin.params}
    return chosen


def _match_parameters(twin: Twin, patterns: Sequence[str]) -> dict[str, int | None]:
    """Return the parameters that match the patterns, as names with the index of their joint.

    The index is None for a parameter that does not belong to a joint.
    """
    owners: dict[tuple[str, str], int] = {}
    if twin.spec.robot is not None:
        for joint, (name, actuator) in enumerate(zip(twin.robot.joints, twin.robot.actuator_names, strict=True)):
            owners |= {("joint", name): joint, ("sensor", name): joint, ("actuator", actuator): joint}
    chosen = {}
    for pattern in patterns:
        names = _match_names("parameter", pattern, tuple(twin.params), where=f"twin {twin.name}")
        chosen |= {name: owners.get((split_path(name)[0], split_path(name)[1])) for name in names}
    return chosen


def _choose_prior(param: Param, known: Mapping[str, Prior]) -> tuple[Prior, str]:
    """Return the prior of a parameter and its source, see `FreeParam.prior_source`.

    The first prior in ``known`` whose pattern matches the name is used. If no pattern matches, it is the prior that the
    quantity declares. Without a declared prior, the standard deviation is a factor of e for a parameter with a log
    transform, and otherwise half the width of the default range.
    """
    fit = param.quantity.fit
    for pattern, prior in known.items():
        if fnmatch.fnmatchcase(param.name, pattern):
            return prior, "fit file"
    if fit.prior is not None:
        return fit.prior, "quantity"
    if param.transform == "log":
        return Prior(spread=1.0), "quantity"
    if param.default_range is not None:
        low, high = param.absolute(param.default_range, param.op)
        return Prior(spread=max(float(high - low) / 2, 1e-9)), "default range"
    raise InputError(
        f"{param.name} (nominal {param.nominal:g} {param.unit}) has neither a prior nor a default range. Give "
        "it a prior, or a default range in the twin."
    )


# A nominal value below this part of the typical value is no scale for a prior; our choice.
_LEAST_SIZE = 0.1


def _make_free_param(param: Param, joint: int | None, prior: Prior, start: float | None) -> FreeParam:
    value = float(np.clip(param.nominal if start is None else start, param.low, param.high))
    if param.transform != "log":
        size = max(abs(param.nominal), _LEAST_SIZE * param.typical) if param.nominal else param.typical
        spread = max(prior.spread * (size if prior.relative else param.spread_factor), prior.least)
        if spread <= 0:
            raise InputError(
                f"The prior of {param.name} has no width: its spread is a fraction of the nominal value, which is 0. "
                f"Give the spread in {param.unit}, or a smallest one with `least`."
            )
        return FreeParam(
            param=param, joint=joint, centre=param.nominal, start=value, sd=spread, low=param.low, high=param.high
        )
    centre = param.nominal or param.typical or max(param.low, math.sqrt(param.high * max(param.low, 1e-9)))
    return FreeParam(
        param=param,
        joint=joint,
        centre=math.log(centre),
        start=math.log(value or centre),
        sd=prior.spread,
        low=math.log(param.low) if param.low > 0 else -math.inf,
        high=math.log(param.high),
    )


Bounds = Mapping[str, tuple[float, float]]


def narrow_bounds(space: FitSpace, bounds: Bounds, start: Mapping[str, float]) -> tuple[FitSpace, list[str]]:
    """Restrict the free parameters to narrower bounds.

    Args:
        space: The free parameters.
        bounds: Lower and upper bound by name pattern, SI.
        start: Start values by name, SI; they are only checked against the twin's bounds.

    Returns:
        The restricted space, and a warning for each parameter whose nominal value is outside the new bounds.

    Raises:
        UnknownNameError: If a pattern matches no free parameter.
        InputError: If a lower bound is not below the upper bound.
        BoundsError: If bounds or a start value are outside the twin's own bounds.
    """
    for name, value in start.items():
        space.twin.find_param(name).check(value, where="the fit's start")
    free, warnings = list(space.free), []
    for pattern, (low, high) in bounds.items():
        found = _match_names("free parameter", pattern, space.names, where="the fit's bounds")
        if not low < high:
            raise InputError(f"The bounds of {pattern}, [{low:g}, {high:g}], are not in ascending order. Swap them.")
        for column in map(space.names.index, found):
            free[column] = _set_bounds(free[column], low, high)
            warnings += _warn_excluded_nominal(free[column], low, high)
    return replace(space, free=tuple(free)), warnings


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
    warning = (
        f"The bounds given for {param.name}, [{low:g}, {high:g}] {param.unit}, exclude its nominal value "
        f"{param.nominal:g}: the fit starts at {low if param.nominal < low else high:g}. Widen them if the twin is "
        "right, or correct the twin."
    )
    return [warning]


_COUPLED_JOINTS = 2


def fit_space(logs: ReplayLogs, config: FitConfig) -> tuple[FitSpace, dict[str, float]]:
    """Return the free parameters of a fit to ``logs``, and the joints' encoder scales by parameter name.

    The encoder scales (log unit to rad) are computed from the quantization step of the readings, and are fixed in the
    fit. Where the log states the size of its unit, the scale keeps its nominal value, unless the configuration names
    it as free or gives it a prior.
    """
    scales = _encoder_scales(logs)
    delays, conditions = _estimate_start_delays(logs), tuple(logs.conditions)
    nominals = {
        name: logs.twin.params[name].nominal for name in stated_scales(logs, config) if name in logs.twin.params
    }
    known = {**nominals, **scales}
    return select_free_parameters(logs.twin, config, start=delays, known=known, conditions=conditions), scales


def fit_problem(
    backend: Backend,
    logs: ReplayLogs,
    space: FitSpace,
    point: NDArray[np.float64],
    config: FitConfig,
    *,
    width: NDArray[np.float64] | None = None,
) -> FitProblem:
    """Return the least-squares problem of fitting the parameters in ``space`` to ``logs``.

    Args:
        backend: The backend that simulates the replays.
        logs: The windows of the logs.
        space: The free parameters.
        point: Solver coordinates ``(p,)`` at which the Huber widths are computed.
        config: Configuration of the fit.
        width: Huber widths ``(nchannel,)``: the residual at which the loss changes from square to linear. By default
            they are computed from the median residuals at ``point``, which needs one replay.

    Raises:
        BoundsError: If ``width`` is None and the twin cannot have the parameters at ``point``. Other points with
            impossible parameters have infinite residuals.
    """

    def readings(points: NDArray[np.float64], local: NDArray[np.float64]) -> NDArray[np.float64]:
        try:
            return replay(backend, logs, space.table(points), local)
        except BoundsError:  # values that are within their own limits, but impossible together: as if diverged
            if len(points) == 1:
                return np.full((1, *logs.measured.shape), np.nan)
            half = len(points) // 2
            return np.concatenate([readings(points[:half], local[:half]), readings(points[half:], local[half:])])

    if width is None:
        start = replay(backend, logs, space.table(point[None]), np.zeros((1, len(logs), logs.nlocal)))
        width = huber_width(start[0] - logs.measured, logs, config)
    n = len(logs.channels)
    full_block = ParameterBlock(columns=np.arange(len(space.free)), channels=np.arange(n))
    joint_blocks = (ParameterBlock(columns=space.joint_columns(j), channels=np.array([j])) for j in range(n))
    return FitProblem(
        readings=readings,
        measured=logs.measured,
        blocks=(full_block,) if _is_coupled(logs, space, config) else tuple(b for b in joint_blocks if len(b.columns)),
        centre=space.column("centre"),
        sd=space.column("sd"),
        low=space.column("low"),
        high=space.column("high"),
        width=width,
        local_sd=logs.start.sd,
        clusters=logs.episode_index,
        logarithmic=np.array([parameter.is_logarithmic for parameter in space.free], dtype=np.bool_),
    )


def huber_width(residual: NDArray[np.float64], logs: ReplayLogs, config: FitConfig) -> NDArray[np.float64]:
    """Return the Huber width of each channel, shape ``(nchannel,)``, in the channel's unit.

    It is the residual at which the loss changes from square to linear: ``config.width`` times the channel's median
    absolute residual, which is at least the accuracy in ``config.accuracy``.

    Args:
        residual: Residuals ``(nwindow, nframe, nchannel)``; NaN marks missing measurements.
        logs: The windows with the measured readings, which set a lower limit for the width.
        config: Configuration of the fit.
    """
    size, measured = np.nanmedian(np.abs(residual), axis=(0, 1)), logs.measured
    least = 1e-9 + 1e-6 * np.nanmax(np.abs(measured), axis=(0, 1))
    names = [channel.name for channel in logs.channels]
    for pattern, accuracy in config.accuracy.items():
        found = _match_names("compared channel", pattern, names, where="the fit's accuracy")
        least[[names.index(name) for name in found]] = accuracy
    # A joint at rest has a residual of exactly 0 if its readings are rounded; in motion rounding is uniform noise.
    columns = np.moveaxis(measured, -1, 0)
    rounding = [(quantization_step(values[~np.isnan(values)]) or 0.0) / math.sqrt(12.0) for values in columns]
    return config.width * np.maximum(np.maximum(size, least), rounding)


def _match_names(kind: str, pattern: str, names: Sequence[str], where: str) -> list[str]:
    """Return the names that match a pattern with ``*``; raise an `UnknownNameError` if there is none."""
    found = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
    if not found:
        raise UnknownNameError(kind, pattern, names, where=where)
    return found


def _is_coupled(logs: ReplayLogs, space: FitSpace, config: FitConfig) -> bool:
    """Return whether every parameter is fitted to all channels.

    If not, the parameters of each joint are fitted to the position of that joint only. The configuration decides if its
    ``coupled`` is not None. By default, the result is False if there are more than two joints, each with one channel,
    every free parameter belongs to a joint, and the fit does not correct the initial states of the windows; else True.
    """
    if config.coupled is not None:
        return config.coupled
    one_channel_per_joint = len(logs.channels) == len(logs.joints) > _COUPLED_JOINTS
    return not (one_channel_per_joint and not logs.nlocal and all(p.joint is not None for p in space.free))


def evenly_spaced_indices(count: int, most: int) -> NDArray[np.intp]:
    """Return indices of at most ``most`` rows, evenly spaced among ``count`` rows."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(np.intp))


_LEAST_WINDOWS, _MAIN_SECONDS = 4, 40.0  # of the main iterations, which need no precision; our choice


def choose_main_windows(logs: ReplayLogs, config: FitConfig) -> NDArray[np.intp]:
    """Return the indices of the windows of the main iterations: as configured, but not far more than they need."""
    seconds = float(np.median(logs.lengths)) / logs.twin.control_hz
    count = max(_LEAST_WINDOWS, min(config.walk, math.ceil(_MAIN_SECONDS / seconds)))
    return evenly_spaced_indices(len(logs), count)


def _encoder_scales(logs: ReplayLogs) -> dict[str, float]:
    """Return the value of ``sensor/JOINT/scale``, by name, for joints whose readings show the encoder's quantization.

    This parameter is the true change of a joint's position per change of its reading, without unit. The value is
    computed from the quantization step. Joints for which the log states the size of its unit are left out. The result
    is empty if the robot has no encoder.
    """
    counts = logs.twin.robot.encoder_counts if logs.joints else None
    if counts is None or len(logs.channels) != len(logs.joints):
        return {}
    scales = {}
    for column, (unit, stated) in enumerate(zip(logs.units.joints, logs.stated_units, strict=True)):
        if stated:
            continue
        name = f"sensor/{unit.joint}/scale"
        values = logs.measured[..., column]
        scale = scale_from_quantization(values[~np.isnan(values)], unit.scale or 1.0, counts)
        param = logs.twin.params.get(name)
        if param is not None and scale is not None and param.low < scale < param.high:
            scales[name] = scale
    return scales


def stated_scales(logs: ReplayLogs, config: FitConfig) -> set[str]:
    """Return the names of the encoder scales that a fit does not estimate, because the log states its units' sizes."""
    if config.free is not None:
        return set()
    stated = zip(logs.units.names, logs.stated_units, strict=True)
    names = {f"sensor/{joint}/scale" for joint, known in stated if known}
    return names - {name for pattern in config.priors for name in fnmatch.filter(names, pattern)}


def _estimate_start_delays(logs: ReplayLogs) -> dict[str, float]:
    """Return start values of the actuator delays by parameter name, in seconds.

    A delay is the shift between command and reading that fits best, minus the nominal servo lag, (damping + kd) / kp.
    """
    twin = logs.twin
    if not logs.joints or twin.robot.control != "position" or len(logs.channels) != len(logs.joints):
        return {}
    lag = best_lag(logs.units.from_si(logs.commands), logs.measured) / twin.control_hz
    delay = np.maximum(lag - servo_lag(twin, twin.table(1))[0], 0.0)
    names = [f"actuator/{actuator}/delay" for actuator in twin.robot.actuator_names]
    return {name: float(value) for name, value in zip(names, delay, strict=True) if name in twin.params}


def servo_lag(twin: Twin, params: ParamTable) -> NDArray[np.float64]:
    """Return the lag of position servos behind a steady motion, (damping + kd) / kp, in s, ``(nworld, n)``.

    The delay of the command adds to it.
    """
    viscous = twin.column(params, "joint", "damping", 0.0) + twin.column(params, "actuator", "kd", 0.0)
    return viscous / twin.column(params, "actuator", "kp", np.inf)


def scale_from_quantization(values: ArrayLike, radians_per_unit: float, counts_per_turn: int) -> float | None:
    """Return the ``sensor/JOINT/scale`` with which one quantization step of the readings equals one encoder count.

    Args:
        values: The joint's readings in log units.
        radians_per_unit: Radians per log unit in the nominal unit map.
        counts_per_turn: Counts of the encoder per turn of the joint.

    Returns:
        The value of this parameter, or None if the readings show no quantization.
    """
    step = quantization_step(values)
    return None if step is None else (2 * math.pi / counts_per_turn) / (step * radians_per_unit)
