"""What heights of things in a robot's log say of the table they stand on, and scenes of which it tells too little."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.tasks import Task
from twinloop.twin import Twin

TABLE = "geom/table/position/z"
_SURE = 3.0  # standard deviations of the tracker beyond which a height is not its own error; our choice
_FLAT_M = 0.004  # two things on the default range's steepest table (0.5 deg), half a metre apart, differ by no more
_ROBOTS = ("tool",)  # what the columns of a log tell of that nobody has to place


def refuse_unplaced(names: Sequence[str], twin: Twin, place: str) -> None:
    """Refuse a scene of which something would be lost: things that the twin cannot place, clutter that no log tells of.

    Raises:
        InputError: names what is missing, and where it would be said.
    """
    things = dict.fromkeys(name.removesuffix(".x") for name in names if name.endswith(".x"))
    lost = [thing for thing in things if thing not in _ROBOTS and f"object/{thing}/position/x" not in twin.params]
    if lost:
        raise InputError(
            f"{place} tells where {', '.join(lost)} lay, and the twin {twin.name} cannot place "
            f"{'them' if len(lost) > 1 else 'it'}: it declares no object/{lost[0]}/position/x. Rebuilt without, the "
            "scene would be another. Declare it in a twin's scene (docs/scenes.md), or leave its columns out of the "
            "log."
        )
    if twin.scene is not None and twin.scene.spec.clutter:
        raise InputError(
            f"The twin {twin.name} strews clutter ({', '.join(twin.scene.spec.clutter)}), and {place} does not say "
            "which things lay where. Give a twin without clutter, with what lay there as scene.objects at its place."
        )


def table_rise(
    seen: Mapping[str, tuple[float, float]],
    twin: Twin,
    task: Task,
    params: ParamTable,
    begun: InitialState,
    *,
    tracker_offset: float,
    place: str,
) -> float | None:
    """By how much the table is higher than in these parameters; None where it is as there, as far as one can see.

    All things that a tracker sees may lie too high together, by the offset of its frame; what they differ in is no
    matter of that.

    Args:
        seen: height of each thing and the standard deviation of it, in m.
        twin: of the scene.
        task: which says where things are.
        params: one world.
        begun: where things stand in it.
        tracker_offset: standard deviation of the height of the tracker's frame, m.
        place: the log, for messages.

    Raises:
        InputError: things are not as high as any level table puts them; names both.
    """
    told = _heights(twin, task, params, begun)
    rises = {thing: (z - told[thing], sd) for thing, (z, sd) in seen.items() if thing in told}
    if not rises or TABLE not in twin.params:
        return None
    low, high = min(rises, key=lambda thing: rises[thing][0]), max(rises, key=lambda thing: rises[thing][0])
    apart = rises[high][0] - rises[low][0]
    if apart > _FLAT_M + _SURE * float(np.hypot(rises[high][1], rises[low][1])):
        raise InputError(
            f"{place}: {high} lies {1e3 * apart:.1f} mm higher than {low} would have it on a level table. The table is "
            f"tilted, or {high} stands on something or on its edge, and the log does not say which. Identify the tilt "
            "(geom/table/rotation/x and /y) and give --identified, or pin a simulated episode."
        )
    rise = float(np.mean([z for z, _ in rises.values()]))
    return rise if abs(rise) > _SURE * np.hypot(tracker_offset, max(sd for _, sd in rises.values())) else None


def _heights(twin: Twin, task: Task, params: ParamTable, begun: InitialState) -> dict[str, float]:
    """Where the task says that things are at the beginning of a world, by their names: z, m."""
    commands: NDArray[np.float64] = begun.command[:, None]
    states = rollout(open_backend("reference"), twin, params, begun, commands, 1).states[0, :1]
    row = task.environment(states)[0]
    names = task.environment_names
    return {name.removesuffix(".z"): float(row[i]) for i, name in enumerate(names) if name.endswith(".z")}
