"""Draw the true parameters of a virtual robot from twin and seed; identification does not see them.

`HiddenCell` is such a virtual robot together with its scene, in the form of a twin with true parameter values. With it,
hundreds of episodes of one virtual robot can be simulated in parallel on any backend.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import mujoco
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.core.records import freeze_fields
from twinloop.core.seeds import uniforms
from twinloop.core.yaml_documents import load_yaml
from twinloop.randomize import Plan, default_draws
from twinloop.rollout.observing import TrackerNoise
from twinloop.twin import Twin
from twinloop.twin.spec import GearSpec, ParamSpec
from twinloop.twin.variant import add_twin_gears, declare_params

_PROFILES = Path(__file__).with_name("hidden.yaml")
_DEFAULT = "default"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _ParamRow(_Strict):
    name: str
    op: Literal["scale", "add"]
    group: str = ""
    shared: tuple[float, float] | None = None
    each: tuple[float, float] | None = None
    source: str


class _Range(_Strict):
    range: tuple[float, float]
    source: str


class _Effects(_Strict):
    backlash_rad: _Range
    backlash_m: _Range
    load_friction: _Range
    lateness_s: _Range
    oversleep_s: _Range
    read_noise_counts: _Range
    count_rad: _Range
    count_m: _Range


class _Profile(_Strict):
    params: list[_ParamRow]
    effects: _Effects


@dataclass(frozen=True, kw_only=True)
class HiddenParameters:
    """True parameters of one virtual robot, in SI units; arrays are per joint, ``(n,)``.

    Attributes:
        params: values of the twin's parameters, by name; parameters without a value are nominal.
        backlash: total backlash of each gear, rad or m.
        load_friction: Coulomb friction at the motor per torque that the gear transmits, dimensionless.
        command_jitter_s: largest extra latency of a command, s; the latency of each command is uniform between 0 and
            this value.
        clock_jitter_s: largest delay of the recording clock, s; each delay is uniform between 0 and this value.
        count: resolution of each encoder, rad or m.
        read_noise: standard deviation of a reading before it is rounded to counts, rad or m.
    """

    params: Mapping[str, float]
    backlash: NDArray[np.float64]
    load_friction: NDArray[np.float64]
    command_jitter_s: float
    clock_jitter_s: float
    count: NDArray[np.float64]
    read_noise: NDArray[np.float64]

    def __post_init__(self) -> None:
        freeze_fields(self, "backlash", "load_friction", "count", "read_noise")


def draw_hidden(twin: Twin, seed: int) -> HiddenParameters:
    """Draw the true parameters of the virtual robot number ``seed``, for a robot of the twin's type.

    Ranges and their sources are in ``hidden.yaml``, by name of the twin or type of the robot; others use ``default``.
    """
    profiles = _profiles()
    profile = next(profiles[name] for name in (twin.name, twin.robot.type, _DEFAULT) if name in profiles)
    slides = np.array([twin.model.joint(name).type[0] == mujoco.mjtJoint.mjJNT_SLIDE for name in twin.robot.joints])
    size = len(twin.robot.joints)
    effects = {name: _draw_between(row.range, seed, name, size) for name, row in profile.effects}
    count = np.where(slides, effects["count_m"], effects["count_rad"])
    return HiddenParameters(
        params=_draw_params(profile.params, twin, seed),
        backlash=np.where(slides, effects["backlash_m"], effects["backlash_rad"]),
        load_friction=effects["load_friction"],
        command_jitter_s=float(effects["lateness_s"][0]),
        clock_jitter_s=float(effects["oversleep_s"][0]),
        count=count,
        read_noise=count * effects["read_noise_counts"],
    )


@cache
def _profiles() -> dict[str, _Profile]:
    return {name: _Profile.model_validate(value) for name, value in load_yaml(_PROFILES).items()}


def _draw_between(limits: tuple[float, float], seed: int, stream: str, size: int = 1) -> NDArray[np.float64]:
    low, high = limits
    return low + (high - low) * uniforms(seed, f"virtual/{stream}", [0], size=size)[0]


def _draw_params(rows: list[_ParamRow], twin: Twin, seed: int) -> dict[str, float]:
    values: dict[str, float] = {}
    for row in rows:
        neutral = (1.0, 1.0) if row.op == "scale" else (0.0, 0.0)
        names = [name for name in fnmatch.filter(twin.params, row.name) if _is_robot_param(twin, name)]
        shared = _draw_between(row.shared or neutral, seed, row.group or row.name)[0]
        each = _draw_between(row.each or neutral, seed, f"{row.name}/each", len(names))
        for name, own in zip(names, each, strict=True):
            change = shared * own if row.op == "scale" else shared + own
            values[name] = float(twin.params[name].absolute(change, row.op))
    return values


def _is_robot_param(twin: Twin, name: str) -> bool:
    owner = name.split("/")[1]
    return owner in twin.robot.joints or owner in twin.robot.actuator_names


_CELL = Path(__file__).with_name("cell.yaml")
_ANY_PLAY = 1e-3  # rad or m; placeholder, because the true value is a parameter, see `HiddenCell.table`
# Effects of a virtual robot that a twin need not declare.
_EFFECTS = (
    "joint/*/load_friction",
    "joint/*/backlash",
    "timing/command/jitter",
    "timing/control/jitter",
    "sensor/*/resolution",
    "sensor/*/noise",
)
_PLACED = "reset"  # stage of the object poses, which are drawn for every episode


class _HiddenTracker(_Strict):
    offset_m: _Range
    noise: _Range


class _Change(_Strict):
    name: str
    op: Literal["scale", "add"]
    value: float

    def apply_to(self, before: float) -> float:
        """Return the value of a parameter with the fault; ``before`` is its true value without the fault."""
        return before * self.value if self.op == "scale" else before + self.value


class _Cell(_Strict):
    scene: list[str]
    tracker: _HiddenTracker
    faults: dict[str, list[_Change]]


@dataclass(frozen=True, kw_only=True)
class HiddenCell:
    """One virtual robot and its scene (a robot cell), with their true parameter values.

    Attributes:
        twin: the twin, extended by gears with backlash and by a parameter for every effect that may be hidden.
        seed: number of the individual robot.
        fault: name of its fault, empty for none.
        values: true parameter values by name; parameters without a value are nominal.
        tracker: errors of the tracker that measures positions in the scene.
    """

    twin: Twin
    seed: int
    fault: str
    values: Mapping[str, float]
    tracker: TrackerNoise

    def plan(self, run_seed: int) -> Plan:
        """Return the randomization plan of a run, which varies only the object poses, by the twin's default ranges."""
        draws = [draw for draw in default_draws(self.twin) if self._is_placed(draw.names[0])]
        return Plan(twin=self.twin, run_seed=run_seed, draws=tuple(draws))

    def table(self, params: ParamTable) -> ParamTable:
        """Return a parameter table in which every world has this robot's true parameter values.

        Each row of ``params`` gives the object poses and the seeds of one world. All other values in ``params`` are
        ignored, because a real robot does not change from one episode to the next.

        Args:
            params: drawn by a plan of the nominal twin or of this twin.
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
    """Return the names of the faults that a virtual robot can have."""
    return sorted(_cell().faults)


def make_hidden_cell(
    twin: Twin, seed: int, *, fault: str | None = None, changed: Mapping[str, float] | None = None
) -> HiddenCell:
    """Return the virtual robot number ``seed`` with its scene, as a twin with true values that the user does not see.

    Args:
        twin: nominal twin. If it has gears, they must be rigid; if it has none, gears with backlash are added.
        seed: number of the individual robot, as in `VirtualRobot`; it also determines its scene.
        fault: one of `fault_names`.
        changed: parameter values by name that replace the true values, with or without a fault.

    Raises:
        UnknownNameError: If a fault or a parameter does not exist.
        InputError: If the fault does not apply to this twin, or the twin has elastic gears.
        BoundsError: If a changed value is outside its physical bounds.
    """
    cell, whole = _cell(), _declare_effects(twin)
    values = {**_draw_scene(cell.scene, whole, seed), **_robot_values(draw_hidden(twin, seed), whole)}
    if fault is not None:
        values |= _apply_fault(cell.faults, fault, whole, values)
    for name, value in (changed or {}).items():
        values[whole.find_param(name).name] = float(value)
    whole.table(1, values)  # raises an error for values outside physical bounds
    return HiddenCell(
        twin=whole,
        seed=seed,
        fault=fault or "",
        values=MappingProxyType(values),
        tracker=_draw_tracker(cell.tracker, seed),
    )


@cache
def _cell() -> _Cell:
    return _Cell.model_validate(load_yaml(_CELL))


def require_rigid_gears(twin: Twin) -> None:
    """Raise an error for a twin with elastic gears, which virtual robots do not support.

    Raises:
        InputError: If the twin's gears have a stiffness.
    """
    gears = twin.robot.gears
    if gears is not None and gears.stiffness is not None:
        raise InputError(
            f"A virtual robot needs rigid gears, but {twin.name} has elastic ones. Leave robot.gears.stiffness out."
        )


def _declare_effects(twin: Twin) -> Twin:
    """Return the twin with gears, and with parameters for the physical effects that every virtual robot has.

    These effects are backlash, load friction, jitter of commands and of the control clock, and resolution and noise of
    the encoders.
    """
    require_rigid_gears(twin)
    whole = twin if twin.robot.gears is not None else add_twin_gears(twin, GearSpec(backlash=_ANY_PLAY))
    lacking = [name for name in _EFFECTS if not fnmatch.filter(whole.params, name)]
    specs = [ParamSpec(name=name, source="an effect of virtual robots, see hardware/hidden.yaml") for name in lacking]
    return declare_params(whole, specs) if specs else whole


def _draw_scene(patterns: Sequence[str], twin: Twin, seed: int) -> dict[str, float]:
    """Return random values of the scene's parameters that match ``patterns``, by name.

    Object poses and parameters without a default range are left out.
    """
    values: dict[str, float] = {}
    for name, param in twin.params.items():
        drawn = any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        if drawn and param.default_range is not None and param.quantity.stage != _PLACED:
            values[name] = float(param.absolute(_draw_between(param.default_range, seed, f"cell/{name}")[0], param.op))
    return values


def _robot_values(hidden: HiddenParameters, twin: Twin) -> dict[str, float]:
    """Return the robot's true parameter values by name, excluding effects that the twin does not have as parameters."""
    values = dict(hidden.params)
    for row, joint in enumerate(twin.robot.joints):
        values |= {
            f"joint/{joint}/backlash": float(hidden.backlash[row]),
            f"joint/{joint}/load_friction": float(hidden.load_friction[row]),
            f"sensor/{joint}/resolution": float(hidden.count[row]),
            f"sensor/{joint}/noise": float(hidden.read_noise[row]),
        }
    values |= {"timing/command/jitter": hidden.command_jitter_s, "timing/control/jitter": hidden.clock_jitter_s}
    return {name: value for name, value in values.items() if name in twin.params}


def _apply_fault(
    faults: Mapping[str, Sequence[_Change]], fault: str, twin: Twin, values: Mapping[str, float]
) -> dict[str, float]:
    """Return the parameter values that a fault changes, by name.

    Args:
        faults: changes of parameters by fault name.
        fault: name of the fault.
        twin: twin of the robot.
        values: true values without the fault.
    """
    if fault not in faults:
        raise UnknownNameError("fault", fault, faults, where="faults of virtual robots")
    changed = {
        name: change.apply_to(values.get(name, twin.params[name].nominal))
        for change in faults[fault]
        for name in fnmatch.filter(twin.params, change.name)
    }
    if not changed:
        wanted = ", ".join(change.name for change in faults[fault])
        raise InputError(f"The fault {fault} changes {wanted}, but {twin.name} has no such parameter.")
    return changed


def _draw_tracker(ranges: _HiddenTracker, seed: int) -> TrackerNoise:
    x, y, z = _draw_between(ranges.offset_m.range, seed, "cell/tracker/offset", 3).tolist()
    return TrackerNoise(noise=float(_draw_between(ranges.noise.range, seed, "cell/tracker/noise")[0]), offset=(x, y, z))
