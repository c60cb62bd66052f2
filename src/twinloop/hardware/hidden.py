"""What is true of a virtual robot and unknown to whoever speaks to it: a function of twin and seed alone."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import mujoco
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from twinloop.core.records import frozen
from twinloop.core.seeds import uniforms
from twinloop.core.yaml_documents import load_yaml
from twinloop.twin import Twin

_PROFILES = Path(__file__).with_name("hidden.yaml")
_DEFAULT = "default"
_ARRAYS = ("backlash", "load_friction", "count", "read_noise")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _ParamRow(_Strict):
    name: str
    op: Literal["scale", "add"]
    group: str = ""
    shared: tuple[float, float] | None = None
    each: tuple[float, float] | None = None
    source: str


class _EffectRow(_Strict):
    range: tuple[float, float]
    source: str


class _Effects(_Strict):
    backlash_rad: _EffectRow
    backlash_m: _EffectRow
    load_friction: _EffectRow
    lateness_s: _EffectRow
    oversleep_s: _EffectRow
    read_noise_counts: _EffectRow
    count_rad: _EffectRow
    count_m: _EffectRow


class _Profile(_Strict):
    params: list[_ParamRow]
    effects: _Effects


@dataclass(frozen=True, kw_only=True)
class Hidden:
    """The truth about one virtual robot, in SI units; arrays are per joint, ``(n,)``.

    Attributes:
        params: values of the twin's parameters, by name; those not named are nominal.
        backlash: play of each gear from one flank to the other, rad or m.
        load_friction: Coulomb friction at the motor per torque that the gear transmits, dimensionless.
        lateness: longest extra age of a command, s; every command's is uniform between 0 and this.
        oversleep: longest lateness of the clock that recorded, s; uniform between 0 and this.
        count: size of one count of each encoder, rad or m.
        read_noise: standard deviation of a reading before it is rounded to counts, rad or m.
    """

    params: Mapping[str, float]
    backlash: NDArray[np.float64]
    load_friction: NDArray[np.float64]
    lateness: float
    oversleep: float
    count: NDArray[np.float64]
    read_noise: NDArray[np.float64]

    def __post_init__(self) -> None:
        for name in _ARRAYS:
            object.__setattr__(self, name, frozen(getattr(self, name)))


def draw_hidden(twin: Twin, seed: int) -> Hidden:
    """The virtual robot number ``seed`` of a twin's kind.

    Ranges and their sources are in ``hidden.yaml``, by the twin's name; twins that are not named there share
    ``default``.
    """
    profiles = _profiles()
    profile = profiles.get(twin.name, profiles[_DEFAULT])
    slides = np.array([twin.model.joint(name).type[0] == mujoco.mjtJoint.mjJNT_SLIDE for name in twin.robot.joints])
    effects = {name: _per_joint(row, twin, seed, name) for name, row in profile.effects}
    count = np.where(slides, effects["count_m"], effects["count_rad"])
    return Hidden(
        params=_params(profile.params, twin, seed),
        backlash=np.where(slides, effects["backlash_m"], effects["backlash_rad"]),
        load_friction=effects["load_friction"],
        lateness=float(effects["lateness_s"][0]),
        oversleep=float(effects["oversleep_s"][0]),
        count=count,
        read_noise=count * effects["read_noise_counts"],
    )


@cache
def _profiles() -> dict[str, _Profile]:
    return {name: _Profile.model_validate(value) for name, value in load_yaml(_PROFILES).items()}


def _between(limits: tuple[float, float], seed: int, stream: str, size: int) -> NDArray[np.float64]:
    low, high = limits
    return low + (high - low) * uniforms(seed, f"virtual/{stream}", [0], size=size)[0]


def _per_joint(row: _EffectRow, twin: Twin, seed: int, name: str) -> NDArray[np.float64]:
    return _between(row.range, seed, name, len(twin.robot.joints))


def _params(rows: list[_ParamRow], twin: Twin, seed: int) -> dict[str, float]:
    values: dict[str, float] = {}
    for row in rows:
        neutral = (1.0, 1.0) if row.op == "scale" else (0.0, 0.0)
        names = [name for name in fnmatch.filter(twin.params, row.name) if _of_robot(twin, name)]
        shared = _between(row.shared or neutral, seed, row.group or row.name, 1)[0]
        each = _between(row.each or neutral, seed, f"{row.name}/each", len(names))
        for name, own in zip(names, each, strict=True):
            change = shared * own if row.op == "scale" else shared + own
            values[name] = float(twin.params[name].absolute(change, row.op))
    return values


def _of_robot(twin: Twin, name: str) -> bool:
    owner = name.split("/")[1]
    return owner in twin.robot.joints or owner in twin.robot.actuator_names
