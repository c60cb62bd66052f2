"""Compute parameter ranges around a failure, from which training data near the failure are generated."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.rollout.scenario import Scenario
from twinloop.twin import Twin

# Half the width of a box, as a fraction of the parameter's default range; our choice: the box has a quarter of the
# range, so that demonstrations near the failure still differ from each other.
WIDTH = 0.125


@dataclass(frozen=True, kw_only=True)
class TargetBox:
    """Parameter ranges around the values of a scenario.

    Attributes:
        ranges: Lower and upper limit by parameter name.
        fixed: Names of the parameters whose limits are equal, so that they keep the scenario's value.
    """

    ranges: Mapping[str, tuple[float, float]]
    fixed: tuple[str, ...]


def make_target_box(scenario: Scenario, twin: Twin, *, width: float = WIDTH, only: Sequence[str] = ()) -> TargetBox:
    """Return ranges around the values of the parameters in which a scenario differs from its twin's nominal values.

    The range of a parameter extends from the scenario's value by ``width`` times the parameter's default range in both
    directions, within its physical bounds. A parameter without a default range keeps the scenario's value.

    Args:
        scenario: The scenario.
        twin: Twin of the scenario.
        width: Half the width of a range, as a fraction of the default range.
        only: Patterns of parameter names; by default all parameters in which the scenario differs from its twin.

    Raises:
        UnknownNameError: If a pattern matches none of these parameters.
        InputError: If the scenario does not differ from its twin, or if ``width`` is negative.
    """
    if width < 0:
        raise InputError(f"--width {width:g}: give a fraction of each default range, 0 or more.")
    own = scenario.non_nominal_values
    for pattern in only:
        if not fnmatch.filter(own, pattern):
            raise UnknownNameError(
                "parameter",
                pattern,
                own,
                where=f"the parameters in which scenario {scenario.name} differs from its twin",
            )
    chosen = {name: value for name, value in own.items() if not only or any(fnmatch.fnmatchcase(name, p) for p in only)}
    if not chosen:
        raise InputError(
            f"Scenario {scenario.name} has only nominal parameters, so it has no box. Generate with the "
            "twin's default ranges instead: `randomization: default`."
        )
    ranges = {name: _target_range(twin, name, value, width) for name, value in chosen.items()}
    return TargetBox(ranges=ranges, fixed=tuple(name for name, (low, high) in ranges.items() if low == high))


def _target_range(twin: Twin, name: str, value: float, width: float) -> tuple[float, float]:
    param = twin.find_param(name)
    if param.default_range is None:
        return value, value
    low, high = sorted(param.absolute(param.default_range, param.op).tolist())
    half = width * (high - low)
    return max(value - half, param.low), min(value + half, param.high)
