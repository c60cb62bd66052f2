"""Corners of the default randomization: where a twin is most likely to break."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from twinloop.core.params import ParamTable
from twinloop.core.seeds import uniforms
from twinloop.simulate import InitialState
from twinloop.tasks.placement import place_clutter
from twinloop.twin import Param, Twin


def drawn(twin: Twin) -> list[Param]:
    """Parameters that the default randomization draws and that physics feels."""
    return [p for p in twin.params.values() if p.default_range is not None and not p.quantity.visual]


def at(param: Param, high: bool) -> float:
    """One end of a parameter's default range, in SI units."""
    ends = param.absolute(param.default_range or (param.nominal, param.nominal), param.op)
    return float(max(ends) if high else min(ends))


def corner(twin: Twin, chosen: Callable[[Param], bool | None]) -> dict[str, float]:
    """Values with each drawn parameter at its high end, its low end, or (None) left nominal."""
    picks = ((param, chosen(param)) for param in drawn(twin))
    return {param.name: at(param, high) for param, high in picks if high is not None}


def corner_table(twin: Twin, nworld: int, *, seed: int) -> ParamTable:
    """World 0 all-low, world 1 all-high, the rest with every parameter at an end of its range, drawn by coin."""
    params = drawn(twin)
    coins = uniforms(seed, "checks/corners", np.arange(nworld), size=max(len(params), 1)) > 0.5
    coins[0] = False
    coins[1:2] = True
    columns = {param.name: np.where(coins[:, i], at(param, True), at(param, False)) for i, param in enumerate(params)}
    return twin.table(nworld, columns)


def initial_at(twin: Twin, params: ParamTable) -> InitialState:
    """The starting pose, with free and placed objects where the table says, and clutter as it falls around them."""
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
