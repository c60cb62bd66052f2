"""Parse the options of a ``randomization:`` section other than ranges: design, constraints, adaptive ranges.

::

    randomization:
      default: true                     # the twin's ranges, for all parameters not named below
      physics: {object_mass_g: [20, 100]}
      design: sobol                     # independent, latin_hypercube, {kind: stratified, ...}, {kind: grid, ...}
      constraints: ["object/cube/position/x < 0.3"]
      adaptive: {names: ["object/cube/friction/slide"], every: 256}
      boxes: [{episodes: 20, params: {object/cube/mass: [0.02, 0.04]}}]    # see randomize.boxes
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.randomize.adaptive import AdaptiveDraw
from twinloop.randomize.constraints import Constraint, parse_constraint
from twinloop.twin import Twin
from twinloop.twin.params import Param
from twinloop.twin.spec import describe_errors

OPTIONS = ("default", "identified", "kappa", "design", "constraints", "adaptive", "boxes")


class AdaptiveOptions(BaseModel):
    """Options of adaptive ranges: the ``adaptive:`` mapping of a ``randomization:`` section.

    A boundary is the lower or upper end of a parameter's range. To evaluate it, episodes set one parameter to it, and
    successes of the policy are counted.

    The defaults are our choice. The thresholds of the paper (OpenAI et al., arXiv 1910.07113, 2019) count rotations of
    a block and do not fit a success rate. Half of the episodes evaluate a boundary; 32 episodes separate a rate of 0.9
    from 0.6 (95 % intervals 0.76 to 0.97 and 0.42 to 0.74).

    Attributes:
        names: Names or patterns of the parameters.
        every: Number of episodes per round.
        boundary_probability: Probability that an episode evaluates a boundary.
        buffer: Number of evaluations of a boundary after which it is decided whether it moves.
        thresholds: Success rate below which the range is narrowed, and success rate from which it is widened.
        step: Distance by which a boundary moves at once: a fraction of the width of the twin's range, or a distance in
            SI units by name or pattern.
        start: Initial range: the nominal value, the twin's default range, or a range in SI units by name or pattern.
        limits: Outermost range by name or pattern, SI; by default the physical bounds.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    names: list[str] = Field(min_length=1)
    every: int = Field(default=256, ge=1)
    boundary_probability: float = Field(default=0.5, gt=0, le=1)
    buffer: int = Field(default=32, ge=1)
    thresholds: tuple[float, float] = (0.6, 0.9)
    step: float | dict[str, float] = 0.1
    start: Literal["nominal", "default"] | dict[str, tuple[float, float]] = "nominal"
    limits: dict[str, tuple[float, float]] = {}


def adaptive_options(value: Any, *, where: str) -> AdaptiveOptions:
    """Validate the ``adaptive:`` mapping of a ``randomization:`` section.

    Args:
        value: The YAML value.
        where: Name of the file, for error messages.

    Raises:
        InputError: If a key or value is wrong.
    """
    place = f"{where}: randomization.adaptive"
    try:
        options = AdaptiveOptions.model_validate(value)
    except ValidationError as error:
        raise InputError(describe_errors(error, where=place, model=AdaptiveOptions)) from error
    low, high = options.thresholds
    if not 0 <= low <= high <= 1:
        raise InputError(
            f"{place}.thresholds: two success rates from 0 to 1 are expected, the one to narrow below and the one to "
            f"widen from; given [{low:g}, {high:g}]."
        )
    return options


def parse_adaptive(value: Any, twin: Twin, *, where: str) -> AdaptiveDraw:
    """Parse the ``adaptive:`` mapping into a draw of adaptive ranges.

    Args:
        value: The YAML value.
        twin: The twin whose parameters are drawn.
        where: Name of the file, for error messages.

    Raises:
        UnknownNameError: If a pattern in ``names`` matches no parameter, or if a pattern in ``step``, ``start`` or
            ``limits`` matches no adaptive parameter.
        InputError: If a key or value is wrong.
        BoundsError: If a limit or an initial range is outside the physical bounds.
    """
    options, place = adaptive_options(value, where=where), f"{where}: randomization.adaptive"
    params = _find_params(twin, options.names, place)
    names = [param.name for param in params]
    for key in ("step", "start", "limits"):
        given = getattr(options, key)
        for pattern in given if isinstance(given, dict) else ():
            if not fnmatch.filter(names, pattern):
                raise UnknownNameError("adaptive parameter", pattern, names, where=f"{place}.{key}")
    chosen = [param.name for param in params if param.quantity.choice]
    if chosen:
        raise InputError(f"{place}.names: {chosen[0]} is chosen from a list, so it has no boundary to move. Remove it.")
    limits = [_find_pair(options.limits, param, (param.low, param.high), f"{place}.limits") for param in params]
    start = [_initial_range(options, param, place) for param in params]
    for param, (low, high), (first, last) in zip(params, limits, start, strict=True):
        for key, (lower, upper) in (("limits", (low, high)), ("start", (first, last))):
            if lower > upper or (key == "limits" and lower == upper):
                raise InputError(
                    f"{place}.{key}: {param.name} has [{lower:g}, {upper:g}] {param.unit}, which is no "
                    "range to move in. Write [low, high]."
                )
        if not (math.isfinite(low) and math.isfinite(high) and low <= first <= last <= high):
            raise InputError(
                f"{place}: {param.name} starts at [{first:g}, {last:g}] {param.unit}, which must be within its limits "
                f"[{low:g}, {high:g}] {param.unit}."
            )
    return AdaptiveDraw(
        names=tuple(names),
        start=tuple(start),
        limits=tuple(limits),
        anchors=tuple(min(max(param.nominal, low), high) for param, (low, high) in zip(params, start, strict=True)),
        step=tuple(_step_size(options, param, pair, place) for param, pair in zip(params, limits, strict=True)),
        every=options.every,
        boundary_probability=options.boundary_probability,
        buffer=options.buffer,
        thresholds=options.thresholds,
        source=place,
    )


def parse_constraints(value: Any, twin: Twin, *, named: Mapping[str, Constraint], where: str) -> tuple[Constraint, ...]:
    """Parse the ``constraints:`` list of a ``randomization:`` section; see `constraints.parse_constraint`.

    Args:
        value: The YAML value.
        twin: The twin whose parameters are constrained.
        named: Constraints of the task by name.
        where: Name of the file, for error messages.

    Raises:
        InputError: If the value is not a list, or an entry is not a comparison.
        UnknownNameError: If a parameter, function or named constraint does not exist.
    """
    place = f"{where}: randomization.constraints"
    if not isinstance(value, list):
        raise InputError(
            f'{place}: a list of comparisons is expected; given {value!r:.60}. Write ["object/cube/mass > 0.02"].'
        )
    return tuple(
        parse_constraint(text, twin.params, named=named, where=f"{place}[{i}]") for i, text in enumerate(value)
    )


def _find_params(twin: Twin, patterns: list[str], place: str) -> list[Param]:
    for pattern in patterns:
        if not fnmatch.filter(twin.params, pattern):
            raise UnknownNameError("parameter", pattern, twin.params, where=f"{place}.names")
    return [p for p in twin.params.values() if any(fnmatch.fnmatchcase(p.name, pattern) for pattern in patterns)]


def _initial_range(options: AdaptiveOptions, param: Param, place: str) -> tuple[float, float]:
    if options.start == "nominal":
        return param.nominal, param.nominal
    if options.start == "default":
        return _default_range(param) or (param.nominal, param.nominal)
    return _find_pair(options.start, param, (param.nominal, param.nominal), f"{place}.start")


def _default_range(param: Param) -> tuple[float, float] | None:
    if param.default_range is None:
        return None
    low, high = param.absolute(param.default_range, param.op)
    return float(low), float(high)


def _find_pair(
    given: Mapping[str, tuple[float, float]], param: Param, otherwise: tuple[float, float], place: str
) -> tuple[float, float]:
    pair = next((given[pattern] for pattern in given if fnmatch.fnmatchcase(param.name, pattern)), otherwise)
    param.check(pair, where=place)
    return pair


def _step_size(options: AdaptiveOptions, param: Param, limits: tuple[float, float], place: str) -> float:
    """Return the step of a parameter's boundaries in SI units.

    It is the given distance, or a fraction of the width of the twin's default range. If the twin has no default range,
    it is a fraction of the width of ``limits``.
    """
    if isinstance(options.step, dict):
        step = next((value for key, value in options.step.items() if fnmatch.fnmatchcase(param.name, key)), 0.0)
    else:
        low, high = _default_range(param) or limits
        step = options.step * (high - low)
    if not 0 < step < math.inf:
        raise InputError(
            f"{place}.step: {param.name} needs a positive step; write one number, a fraction of the twin's range, or "
            f"a step in {param.unit} for each parameter."
        )
    return step
