"""A virtual robot where it works: everything hidden about it and its scene as a twin with parameters.

The same truth as `VirtualRobot` of that seed, in the engine's own terms, so that hundreds of episodes of one virtual
robot run side by side on any backend.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from pydantic import BaseModel, ConfigDict

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.core.seeds import uniforms
from twinloop.core.yaml_documents import load_yaml
from twinloop.hardware.hidden import Hidden, draw_hidden
from twinloop.randomize import Plan, default_draws
from twinloop.rollout.observing import Tracker
from twinloop.twin import Twin
from twinloop.twin.spec import GearSpec, ParamSpec
from twinloop.twin.variant import declaring, gearing

_CELL = Path(__file__).with_name("cell.yaml")
_ANY_PLAY = 1e-3  # rad or m; the truth is a parameter, see `HiddenCell.table`
# What a virtual robot does and a twin need not declare.
_EFFECTS = (
    "joint/*/load_friction",
    "joint/*/backlash",
    "timing/command/jitter",
    "timing/control/jitter",
    "sensor/*/resolution",
    "sensor/*/noise",
)
_PLACED = "reset"  # stage of what says where things lie, which every episode draws anew


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Range(_Strict):
    range: tuple[float, float]
    source: str


class _Tracker(_Strict):
    offset_m: _Range
    noise: _Range


class _Change(_Strict):
    name: str
    op: Literal["scale", "add"]
    value: float

    def of(self, before: float) -> float:
        """The value with the fault."""
        return before * self.value if self.op == "scale" else before + self.value


class _Cell(_Strict):
    scene: list[str]
    tracker: _Tracker
    faults: dict[str, list[_Change]]


@dataclass(frozen=True, kw_only=True)
class HiddenCell:
    """One virtual robot in its scene.

    Attributes:
        twin: the robot's kind with gears, and with every hidden parameter declared.
        seed: which robot.
        fault: what is wrong with it, empty for nothing.
        values: what is true of it by parameter; those not named are nominal.
        tracker: how the tracker of its scene errs.
    """

    twin: Twin
    seed: int
    fault: str
    values: Mapping[str, float]
    tracker: Tracker

    def plan(self, run_seed: int) -> Plan:
        """Where things lie in the episodes of a run: the twin's default ranges of places, and nothing else."""
        draws = [draw for draw in default_draws(self.twin) if self._is_placed(draw.names[0])]
        return Plan(twin=self.twin, run_seed=run_seed, draws=tuple(draws))

    def table(self, params: ParamTable) -> ParamTable:
        """Worlds of this robot, one for each row of ``params``, which says where things lie and seeds the chance.

        Whatever else a row says is passed over: a real robot does not change from one episode to the next.

        Args:
            params: drawn by a plan over the nominal twin or this one.
        """
        placed = {
            name: params[name]
            for name in self.twin.params
            if self._is_placed(name) and name in params and name not in self.values
        }
        return replace(self.twin.table(params.nworld, {**self.values, **placed}), seeds=params.seeds)

    def _is_placed(self, name: str) -> bool:
        return self.twin.params[name].quantity.stage == _PLACED


def fault_names() -> list[str]:
    """Faults that a cell may be given."""
    return sorted(_cell().faults)


def hidden_cell(
    twin: Twin, seed: int, *, fault: str | None = None, changed: Mapping[str, float] | None = None
) -> HiddenCell:
    """The virtual robot number ``seed`` of a twin's kind, in the twin's scene.

    Args:
        twin: nominal, without gears or with rigid ones.
        seed: which robot, as of `VirtualRobot`; decides its scene too.
        fault: one of `fault_names`.
        changed: values of single parameters instead of the truth, with or without a fault.

    Raises:
        UnknownNameError: a fault or a parameter that does not exist.
        InputError: a fault that nothing in this twin can have.
        BoundsError: a changed value beyond its physical bounds.
    """
    cell, whole = _cell(), _complete(twin)
    values = {**_scene(cell.scene, whole, seed), **_robot(draw_hidden(twin, seed), whole)}
    if fault is not None:
        values |= _faulty(cell.faults, fault, whole, values)
    for name, value in (changed or {}).items():
        values[whole.require(name).name] = float(value)
    whole.table(1, values)  # refuses what lies beyond physical bounds
    return HiddenCell(
        twin=whole,
        seed=seed,
        fault=fault or "",
        values=MappingProxyType(values),
        tracker=_tracker(cell.tracker, seed),
    )


@cache
def _cell() -> _Cell:
    return _Cell.model_validate(load_yaml(_CELL))


def _complete(twin: Twin) -> Twin:
    """The twin with gears, and with every effect of a virtual robot among its parameters."""
    gears = twin.robot.gears
    if gears is not None and gears.stiffness is not None:
        raise InputError(
            f"A virtual robot has rigid gears, {twin.name} has elastic ones. Leave robot.gears.stiffness out."
        )
    whole = twin if gears is not None else gearing(twin, GearSpec(backlash=_ANY_PLAY))
    lacking = [name for name in _EFFECTS if not fnmatch.filter(whole.params, name)]
    specs = [ParamSpec(name=name, source="an effect of virtual robots, see hardware/hidden.yaml") for name in lacking]
    return declaring(whole, specs) if specs else whole


def _between(limits: tuple[float, float], seed: int, stream: str, size: int = 1) -> list[float]:
    low, high = limits
    return (low + (high - low) * uniforms(seed, f"virtual/cell/{stream}", [0], size=size)[0]).tolist()


def _scene(patterns: Sequence[str], twin: Twin, seed: int) -> dict[str, float]:
    """What is drawn for the scene; parameters without a default range, or of where things lie, are left out."""
    values: dict[str, float] = {}
    for name, param in twin.params.items():
        drawn = any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        if drawn and param.default_range is not None and param.quantity.stage != _PLACED:
            values[name] = float(param.absolute(_between(param.default_range, seed, name)[0], param.op))
    return values


def _robot(hidden: Hidden, twin: Twin) -> dict[str, float]:
    """The truth about the robot as parameters; a joint that an effect does not exist for goes without."""
    values = dict(hidden.params)
    for row, joint in enumerate(twin.robot.joints):
        values |= {
            f"joint/{joint}/backlash": float(hidden.backlash[row]),
            f"joint/{joint}/load_friction": float(hidden.load_friction[row]),
            f"sensor/{joint}/resolution": float(hidden.count[row]),
            f"sensor/{joint}/noise": float(hidden.read_noise[row]),
        }
    values |= {"timing/command/jitter": hidden.lateness, "timing/control/jitter": hidden.oversleep}
    return {name: value for name, value in values.items() if name in twin.params}


def _faulty(
    faults: Mapping[str, Sequence[_Change]], fault: str, twin: Twin, values: Mapping[str, float]
) -> dict[str, float]:
    """Values that a fault changes."""
    if fault not in faults:
        raise UnknownNameError("fault", fault, faults, where="faults of virtual robots")
    changed = {
        name: change.of(values.get(name, twin.params[name].nominal))
        for change in faults[fault]
        for name in fnmatch.filter(twin.params, change.name)
    }
    if not changed:
        wanted = ", ".join(change.name for change in faults[fault])
        raise InputError(f"The fault {fault} changes {wanted}, and {twin.name} has no such parameter.")
    return changed


def _tracker(ranges: _Tracker, seed: int) -> Tracker:
    x, y, z = _between(ranges.offset_m.range, seed, "tracker/offset", 3)
    return Tracker(noise=_between(ranges.noise.range, seed, "tracker/noise")[0], offset=(x, y, z))
