"""Where data around a failure is drawn from: a box around its parameters and places, within what is possible."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.rollout.pinned import PinnedWorld
from twinloop.twin import Twin

# Half the width of a box, of the parameter's default range; our choice: a quarter of the range lies in the box, so that
# a demonstration near the failure is still one of many.
WIDTH = 0.125


@dataclass(frozen=True, kw_only=True)
class TargetBox:
    """Ranges by parameter around a scenario, and parameters that keep the scenario's value because nothing is drawn."""

    ranges: Mapping[str, tuple[float, float]]
    fixed: tuple[str, ...]


def box_around(pinned: PinnedWorld, twin: Twin, *, width: float = WIDTH, only: Sequence[str] = ()) -> TargetBox:
    """The box of a scenario's own parameters.

    A parameter with a default range gets ``width`` of it on either side of the scenario's value, within its physical
    bounds; one without keeps its value.

    Args:
        width: half a box's width, in parts of the default range.
        only: patterns of parameters; all that are the scenario's own by default.

    Raises:
        UnknownNameError: a pattern that none of them matches.
        InputError: the scenario departs from its twin in nothing, or ``width`` is negative.
    """
    if width < 0:
        raise InputError(f"--width {width:g}: give a part of each default range, 0 or more.")
    own = pinned.departures
    for pattern in only:
        if not fnmatch.filter(own, pattern):
            raise UnknownNameError("parameter", pattern, own, where=f"what scenario {pinned.name} departs in")
    chosen = {name: value for name, value in own.items() if not only or any(fnmatch.fnmatchcase(name, p) for p in only)}
    if not chosen:
        raise InputError(
            f"Scenario {pinned.name} is nominal in everything, so there is nothing to draw around. Generate with the "
            "twin's default ranges instead: `randomization: default`."
        )
    ranges = {name: _range(twin, name, value, width) for name, value in chosen.items()}
    return TargetBox(ranges=ranges, fixed=tuple(name for name, (low, high) in ranges.items() if low == high))


def _range(twin: Twin, name: str, value: float, width: float) -> tuple[float, float]:
    param = twin.require(name)
    if param.default_range is None:
        return value, value
    low, high = sorted(param.absolute(param.default_range, param.op).tolist())
    half = width * (high - low)
    return max(value - half, param.low), min(value + half, param.high)
