"""Create worlds at the limits of the default randomization ranges, and find the parameters that make them diverge.

A corner is a world in which every randomized parameter is at the lower or upper end of its range.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.checks.report import CheckOutcome
from twinloop.core.params import ParamTable
from twinloop.core.seeds import uniforms
from twinloop.simulate import InitialState
from twinloop.tasks.placement import place_clutter
from twinloop.twin import Param, Twin


def find_drawn_params(twin: Twin) -> list[Param]:
    """Return the parameters that the default randomization varies, excluding visual parameters such as colours."""
    return [p for p in twin.params.values() if p.default_range is not None and not p.quantity.visual]


def check_ranges(twin: Twin) -> CheckOutcome:
    """Check that every default range varies its parameter; a factor on a nominal value of 0 does not."""
    wide = [param for param in twin.params.values() if param.default_range and np.ptp(param.default_range) > 0]
    still = [param.name for param in wide if range_end(param, high=False) == range_end(param, high=True)]
    detail = f"{len(wide)} ranges"
    if still:
        detail = (
            f"{', '.join(still[:6])} {'does' if len(still) == 1 else 'do'} not vary: a range of factors has no effect "
            "on a nominal value of 0. Give the range as values (op: absolute)"
        )
    return CheckOutcome.judge("ranges vary", len(still), 0, "parameters", detail=detail)


def command_ranges(model: mujoco.MjModel) -> NDArray[np.float64]:
    """Return the lower and upper command limits of all actuators, shape ``(2, nu)`` for nu actuators.

    An actuator that has no limits gets −1 and 1.
    """
    return np.where(model.actuator_ctrllimited[:, None].astype(bool), model.actuator_ctrlrange, (-1.0, 1.0)).T


def range_end(param: Param, high: bool) -> float:
    """Return the upper or lower end of a parameter's default range, in SI units.

    Args:
        param: Parameter of a twin. Without a default range, the result is its nominal value.
        high: True for the upper end, False for the lower end.
    """
    ends = param.absolute(param.default_range or (param.nominal, param.nominal), param.op)
    return float(max(ends) if high else min(ends))


def corner_values(twin: Twin, chosen: Callable[[Param], bool | None]) -> dict[str, float]:
    """Return the parameter values of one corner, by parameter name, in SI units.

    Args:
        twin: Twin with the parameters.
        chosen: Function that returns for each randomized parameter True (upper end of its range), False (lower end) or
            None (nominal value, omitted from the result).
    """
    picks = ((param, chosen(param)) for param in find_drawn_params(twin))
    return {param.name: range_end(param, high) for param, high in picks if high is not None}


def corner_table(twin: Twin, nworld: int, *, seed: int) -> ParamTable:
    """Return the parameter values of worlds at corners of the default ranges.

    World 0 has all parameters at their lower ends, world 1 at their upper ends. All other worlds have a random end for
    each parameter.

    Args:
        twin: Twin with the parameters.
        nworld: Number of worlds.
        seed: Seed of the random choices.
    """
    params = find_drawn_params(twin)
    high = uniforms(seed, "checks/corners", np.arange(nworld), size=max(len(params), 1)) > 0.5
    high[0] = False
    high[1:2] = True
    columns = {
        param.name: np.where(high[:, i], range_end(param, True), range_end(param, False))
        for i, param in enumerate(params)
    }
    return twin.table(nworld, columns)


def make_initial_state(twin: Twin, params: ParamTable) -> InitialState:
    """Return the initial state of worlds: home pose, objects at their drawn positions, and clutter around them.

    Args:
        twin: Twin to simulate.
        params: Parameter values of the worlds, including object positions.
    """
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
FindDiverged = Callable[[ParamTable], NDArray[np.bool_]]


@dataclass(frozen=True, kw_only=True)
class FailingParameter:
    """A parameter whose value makes a world diverge.

    Attributes:
        param: The parameter.
        value: Value at which the world diverges, in SI units.
        alone: True if the world diverges when all other parameters are nominal; False if it diverges only in
            combination with other parameters.
    """

    param: Param
    value: float
    alone: bool

    def text(self) -> str:
        """Describe the parameter, its failing value and its default range in one phrase."""
        low, high = range_end(self.param, high=False), range_end(self.param, high=True)
        how = "alone" if self.alone else "together with others"
        return f"{self.param.name} = {self.value:g} {self.param.unit} {how} (default range {low:g} to {high:g})"


def find_failing_parameters(twin: Twin, corner: ParamTable, find_diverged: FindDiverged) -> list[FailingParameter]:
    """Return the parameters that make a corner diverge.

    First, each end of each range is tested while all other parameters are nominal. If none of these worlds diverges,
    the result is a minimal set of the corner's values that diverges together. The result is empty if the model diverges
    even with nominal values.

    Args:
        twin: Twin to simulate.
        corner: Parameter values of the corner that diverged, one row.
        find_diverged: Function that simulates worlds under the same conditions as that corner, and returns which
            diverged, shape ``(nworld,)``.
    """
    params = find_drawn_params(twin)
    ends = [(param, range_end(param, high)) for param in params for high in (False, True)]
    alone = twin.table(len(ends), _single_parameter_columns(ends))
    failing = [
        FailingParameter(param=param, value=value, alone=True)
        for (param, value), diverges in zip(ends, find_diverged(alone), strict=True)
        if diverges
    ]
    if failing:
        return failing
    return [
        FailingParameter(param=param, value=float(corner[param.name][0]), alone=False)
        for param in _find_smallest_set(twin, params, corner, find_diverged)
    ]


def _find_smallest_set(twin: Twin, params: list[Param], corner: ParamTable, find_diverged: FindDiverged) -> list[Param]:
    """Return a minimal set of parameters whose corner values make the world diverge.

    The parameters are set to nominal one after the other. A parameter stays nominal if the world still diverges.

    Args:
        twin: Twin to simulate.
        params: All randomized parameters.
        corner: Parameter values of the corner that diverged, one row.
        find_diverged: Function that returns which worlds diverge.
    """
    needed = list(params)
    for param in params:
        fewer = [other for other in needed if other is not param]
        values = {other.name: corner[other.name] for other in fewer}
        if find_diverged(twin.table(1, values))[0]:
            needed = fewer
    return needed


def _single_parameter_columns(ends: list[tuple[Param, float]]) -> dict[str, NDArray[np.float64]]:
    """Return table columns in which world i has the tested value of the i-th parameter.

    All other entries are the nominal values of their parameters.

    Args:
        ends: One parameter and its tested value per world.
    """
    columns: dict[str, NDArray[np.float64]] = {}
    for world, (param, value) in enumerate(ends):
        columns.setdefault(param.name, np.full(len(ends), param.nominal))[world] = value
    return columns
