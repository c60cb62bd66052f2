"""A pinned world on another version of its twin: what is its own stays, the rest is the twin's."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable, SeedPath
from twinloop.rollout.pinned import PinnedWorld, departing
from twinloop.tasks import Task
from twinloop.twin import Twin


@dataclass(frozen=True, kw_only=True)
class Rebased:
    """A world on another version of its twin, and ``moved``: parameters whose nominal values differ, (old, new)."""

    world: PinnedWorld
    moved: dict[str, tuple[float, float]]
    gone: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def text(self) -> str:
        """What differs, in one sentence."""
        parts = [f"{name} {old:g} → {value:g}" for name, (old, value) in list(self.moved.items())[:8]]
        parts += [f"no {name} any more" for name in self.gone[:4]] + [f"{name} is new" for name in self.new[:4]]
        more = len(self.moved) + len(self.gone) + len(self.new) - len(parts)
        said = ", ".join(parts) + (f", and {more} more" if more else "")
        return said or "no nominal value differs; the model itself does"


def rebase(pinned: PinnedWorld, twin: Twin, task: Task) -> Rebased:
    """The same world on another version of its twin.

    Parameters in which the world departed from nominal keep their values, all others take the twin's. Joints begin
    where they did; what lies in the scene, and the command before the first, are where the task's reset puts them now.

    Raises:
        InputError: the twin lacks parameters that are the world's own, its bounds refuse their values, or its states
            are laid out otherwise; names all of them.
    """
    kept = [*pinned.departs, *(name for name in _drawn(pinned) if name not in pinned.departs)]
    lost = [f"it has no parameter {name} (pinned at {pinned.departures.get(name, np.nan):g})" for name in kept]
    lost = [text for text, name in zip(lost, kept, strict=True) if name not in twin.params]
    lost += _outside(pinned, twin, [name for name in kept if name in twin.params]) + _layout(pinned, twin)
    if lost:
        raise InputError(
            f"Scenario {pinned.name} cannot be moved from {pinned.twin} {pinned.twin_hash[:12]} to {twin.name} "
            f"{twin.hash[:12]}: {'; '.join(lost)}. Pin the failure again on this twin, or keep the old version."
        )
    table = twin.table(1, pinned.departures).with_steps(pinned.params.steps)
    old = pinned.params.row(0)
    shared = [name for name in twin.params if name in old and name not in pinned.departs]
    moved = {name: (old[name], twin.params[name].nominal) for name in shared if old[name] != twin.params[name].nominal}
    world = replace(
        pinned,
        params=table,
        departs=departing(twin, table),
        draws=None if pinned.draws is None else _draws(pinned, pinned.draws, table),
        twin_hash=twin.hash,
        task_version=task.version,
        initial=pinned.initial,
    )
    return Rebased(
        world=_placed(world, twin, task),
        moved=moved,
        gone=tuple(name for name in old if name not in twin.params),
        new=tuple(name for name in twin.params if name not in old),
    )


def _drawn(pinned: PinnedWorld) -> list[str]:
    """Parameters that the draws move."""
    if pinned.draws is None:
        return []
    moves = (pinned.draws != pinned.params.values).any(axis=0)
    return [name for name, drawn in zip(pinned.params.names, moves, strict=True) if drawn]


def _outside(pinned: PinnedWorld, twin: Twin, names: list[str]) -> list[str]:
    row = pinned.params.row(0)
    params = [(twin.params[name], row[name]) for name in names]
    return [
        f"{param.name} = {value:g} {param.unit} is outside its bounds [{param.low:g}, {param.high:g}] now"
        for param, value in params
        if not param.low <= value <= param.high
    ]


def _layout(pinned: PinnedWorld, twin: Twin) -> list[str]:
    model, initial = twin.model, pinned.initial
    sizes = {
        "positions": (initial.qpos.shape[1], model.nq),
        "velocities": (initial.qvel.shape[1], model.nv),
        "actuators": (initial.command.shape[1], model.nu),
        "bodies moved by hand": (initial.mocap_pos.shape[1], model.nmocap),
    }
    return [f"it has {new} {what}, the world {old}" for what, (old, new) in sizes.items() if old != new]


def _draws(pinned: PinnedWorld, draws: NDArray[np.float64], table: ParamTable) -> NDArray[np.float64]:
    """The drawn rows in the new table's columns; what was not drawn is as in the world."""
    rows = np.tile(table.values, (len(draws), 1))
    for name in _drawn(pinned):
        rows[:, table.names.index(name)] = draws[:, pinned.params.names.index(name)]
    return rows


def _placed(world: PinnedWorld, twin: Twin, task: Task) -> PinnedWorld:
    own = world.params.with_seeds(SeedPath.of(world.run_seed, [world.episode], world.attempt))
    reset = task.reset(own, run_seed=world.run_seed, episodes=[world.episode], attempt=world.attempt)
    qpos = reset.qpos.copy()
    qpos[:, twin.joint_qpos] = world.initial.qpos[:, twin.joint_qpos]
    command = reset.command if world.readings is None else world.initial.command
    initial = replace(reset, qpos=twin.with_motors(qpos), qvel=world.initial.qvel, command=command)
    return replace(world, initial=replace(initial, earlier=world.initial.earlier))
