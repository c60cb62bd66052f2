"""Find the corners of the default ranges at which a twin diverges, and the parameter that causes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.params import ParamTable
from twinloop.core.seeds import uniforms
from twinloop.simulate import InitialState
from twinloop.tasks.placement import place_clutter
from twinloop.twin import Param, Twin


def find_drawn_params(twin: Twin) -> list[Param]:
    """Return the parameters that the default randomization draws and that affect physics."""
    return [p for p in twin.params.values() if p.default_range is not None and not p.quantity.visual]


def command_ranges(model: mujoco.MjModel) -> NDArray[np.float64]:
    """Return the lowest and highest command of each actuator, ``(2, nu)``; −1 and 1 without limits."""
    return np.where(model.actuator_ctrllimited[:, None].astype(bool), model.actuator_ctrlrange, (-1.0, 1.0)).T


def range_end(param: Param, high: bool) -> float:
    """Return one end of a parameter's default range, in SI units."""
    ends = param.absolute(param.default_range or (param.nominal, param.nominal), param.op)
    return float(max(ends) if high else min(ends))


def corner_values(twin: Twin, chosen: Callable[[Param], bool | None]) -> dict[str, float]:
    """Return the values with each drawn parameter at its high end, its low end, or (None) left nominal."""
    picks = ((param, chosen(param)) for param in find_drawn_params(twin))
    return {param.name: range_end(param, high) for param, high in picks if high is not None}


def corner_table(twin: Twin, nworld: int, *, seed: int) -> ParamTable:
    """Return worlds at corners: 0 all low, 1 all high, the others with a random end of each range."""
    params = find_drawn_params(twin)
    coins = uniforms(seed, "checks/corners", np.arange(nworld), size=max(len(params), 1)) > 0.5
    coins[0] = False
    coins[1:2] = True
    columns = {
        param.name: np.where(coins[:, i], range_end(param, True), range_end(param, False))
        for i, param in enumerate(params)
    }
    return twin.table(nworld, columns)


def make_initial_state(twin: Twin, params: ParamTable) -> InitialState:
    """Return the starting pose with objects placed by the table and clutter dropped around them."""
    start = InitialState.home(twin, params.nworld)
    qpos, mocap = start.qpos.copy(), start.mocap_pos.copy()
    for param in twin.params.values():
        if param.quantity.stage == "reset":
            _place(twin, param, params[param.name], qpos, mocap)
    placed = dataclasses.replace(start, qpos=qpos, mocap_pos=mocap)
    return place_clutter(twin, params, placed, run_seed=0, episodes=range(params.nworld))


def _place(
    twin: Twin, param: Param, values: NDArray[np.float64], qpos: NDArray[np.float64], mocap: NDArray[np.float64]
) -> None:
    body = twin.model.body(param.target)
    kind = param.quantity.quantity
    if body.mocapid[0] >= 0:
        if kind != "yaw":
            mocap[:, body.mocapid[0], "xyz".index(kind[-1])] = values
        return
    address = int(twin.model.jnt_qposadr[body.jntadr[0]])
    if kind == "yaw":
        qpos[:, address + 3 : address + 7] = 0.0
        qpos[:, address + 3], qpos[:, address + 6] = np.cos(values / 2), np.sin(values / 2)
    else:
        qpos[:, address + "xyz".index(kind[-1])] = values


# Returns a mask of the worlds of these parameters that diverge.
Trial = Callable[[ParamTable], NDArray[np.bool_]]


@dataclass(frozen=True, kw_only=True)
class FailingParameter:
    """Parameter whose range makes worlds diverge: at ``value`` with all others nominal, or together with others."""

    param: Param
    value: float
    alone: bool

    def text(self) -> str:
        """Describe the parameter and its range in words."""
        low, high = range_end(self.param, high=False), range_end(self.param, high=True)
        how = "alone" if self.alone else "together with others"
        return f"{self.param.name} = {self.value:g} {self.param.unit} {how} (default range {low:g} to {high:g})"


def find_culprits(twin: Twin, broken: ParamTable, trial: Trial) -> list[FailingParameter]:
    """Return the parameters that cause the divergence of a corner.

    First, every end of every range is tested with all other parameters nominal. If none of them diverges, the result is
    a smallest set of the corner's values that does. It is empty if the model diverges at nominal values.

    Args:
        broken: the diverged corner, one row.
        trial: runs worlds under the same conditions as that corner.
    """
    params = find_drawn_params(twin)
    ends = [(param, range_end(param, high)) for param in params for high in (False, True)]
    alone = twin.table(len(ends), _single_parameter_columns(ends))
    culprits = [
        FailingParameter(param=param, value=value, alone=True)
        for (param, value), breaks in zip(ends, trial(alone), strict=True)
        if breaks
    ]
    if culprits:
        return culprits
    return [
        FailingParameter(param=param, value=float(broken[param.name][0]), alone=False)
        for param in _find_smallest_set(twin, params, broken, trial)
    ]


def _find_smallest_set(twin: Twin, params: list[Param], broken: ParamTable, trial: Trial) -> list[Param]:
    """Return a set of parameters that diverges at its corner values, and does not without any one of them.

    The parameters are set to nominal one after the other; each stays nominal if the world still diverges.
    """
    kept = list(params)
    for param in params:
        fewer = [other for other in kept if other is not param]
        values = {other.name: broken[other.name] for other in fewer}
        if trial(twin.table(1, values))[0]:
            kept = fewer
    return kept


def _single_parameter_columns(ends: list[tuple[Param, float]]) -> dict[str, NDArray[np.float64]]:
    """Return table columns in which world i has the i-th parameter at its end and all others nominal."""
    columns: dict[str, NDArray[np.float64]] = {}
    for world, (param, value) in enumerate(ends):
        columns.setdefault(param.name, np.full(len(ends), param.nominal))[world] = value
    return columns
