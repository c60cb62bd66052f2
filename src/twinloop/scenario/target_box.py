"""Compute ranges for data around a failure: a box around its parameters and places, within physical bounds."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.rollout.pinned import PinnedWorld
from twinloop.twin import Twin

# Half the width of a box, as a fraction of the parameter's default range; our choice: the box has a quarter of the
# range, so that demonstrations near the failure still differ from each other.
WIDTH = 0.125


@dataclass(frozen=True, kw_only=True)
class TargetBox:
    """Ranges by parameter around a scenario, and the ``fixed`` parameters, which keep the scenario's value."""

    ranges: Mapping[str, tuple[float, float]]
    fixed: tuple[str, ...]


def make_target_box(pinned: PinnedWorld, twin: Twin, *, width: float = WIDTH, only: Sequence[str] = ()) -> TargetBox:
    """Return the box around the parameters in which a scenario differs from its twin.

    A parameter with a default range gets ``width`` of it on either side of the scenario's value, within its physical
    bounds; one without a default range keeps its value.

    Args:
        width: half a box's width, as a fraction of the default range.
        only: patterns of parameters; all in which the scenario differs by default.

    Raises:
        UnknownNameError: a pattern matches none of them.
        InputError: the scenario does not differ from its twin, or ``width`` is negative.
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
            f"Scenario {pinned.name} has only nominal parameters, so it has no box. Generate with the "
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
