"""Rebuild a pinned world from a robot's log: joints, things, the height of the table, and the commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.params import ParamTable, SeedPath
from twinloop.core.seeds import uniforms
from twinloop.core.units import UnitMap
from twinloop.randomize import Plan
from twinloop.randomize.sources import default_draws, identified_draws
from twinloop.rollout.episodes import software_versions
from twinloop.rollout.pinned import PinnedWorld, WorldOrigin, departing
from twinloop.sensors.servo import encoder_command, encoder_reading
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
            "scene would be another. Declare it in a twin's scene (docs/guides/randomize.md), or leave its columns out "
            "of the log."
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
    return rise if abs(rise) > _SURE * np.hypot(TRACKER_OFFSET_M, max(sd for _, sd in rises.values())) else None


def _heights(twin: Twin, task: Task, params: ParamTable, begun: InitialState) -> dict[str, float]:
    """Where the task says that things are at the beginning of a world, by their names: z, m."""
    commands: NDArray[np.float64] = begun.command[:, None]
    states = rollout(open_backend("reference"), twin, params, begun, commands, 1).states[0, :1]
    told = zip(task.environment_names, task.environment(states)[0].tolist(), strict=True)
    return {name.removesuffix(".z"): value for name, value in told if name.endswith(".z")}


# A camera above a table knows its frame against the robot's to 1 to 3 mm (hand-eye calibration by a printed board; our
# choice, the same as for virtual cells): how far, one standard deviation, everything that it sees may lie together.
TRACKER_OFFSET_M = 0.002
_LONGEST_S = 1.0  # of the time before anything moves, over which a tracker's noise is averaged; our choice
_MOVED = 5.0  # standard deviations of the noise between frames: a thing that is this far from where it was has moved
_LEAST_NOISE_M = 1e-4  # below what any tracker resolves; our choice, so that an exact log still tells motion
_STREAM = "scenario/rebuild"


@dataclass(frozen=True, kw_only=True)
class LoggedEpisode:
    """What a LeRobot folder says of one episode.

    ``state`` and ``action`` ``(T, n)`` are in ``units``; ``environment`` ``(T, m)`` is what a tracker saw, named by
    ``environment_names``.
    """

    state: NDArray[np.float64]
    action: NDArray[np.float64]
    environment: NDArray[np.float64]
    environment_names: tuple[str, ...]
    units: UnitMap
    hz: float
    origin: WorldOrigin


@dataclass(frozen=True, kw_only=True)
class ObjectPlacement:
    """Where things stood at the beginning, as parameters of the twin, and how well that is known.

    ``values`` by parameter; ``spread`` is the standard deviation that the tracker's noise leaves in each, and
    ``frames`` over how many frames it was averaged.
    """

    values: Mapping[str, float]
    spread: Mapping[str, float]
    frames: int

    def with_table(self, height: float, spread: float) -> ObjectPlacement:
        """The same on a table of another height, m."""
        return replace(self, values={**self.values, TABLE: height}, spread={**self.spread, TABLE: spread})


def heights(log: LoggedEpisode, placed: ObjectPlacement) -> dict[str, tuple[float, float]]:
    """How high the things that were placed stood before anything moved, and the standard deviation of that, m."""
    things = {name.split("/")[1] for name in placed.values if name.startswith("object/")}
    found: dict[str, tuple[float, float]] = {}
    for column, name in enumerate(log.environment_names):
        thing, _, axis = name.rpartition(".")
        if axis == "z" and thing in things:
            values = log.environment[:, column]
            found[thing] = (float(values[: placed.frames].mean()), _noise(values) / np.sqrt(placed.frames))
    return found


def placement(log: LoggedEpisode, twin: Twin) -> ObjectPlacement:
    """Where things stood before anything moved them.

    ``NAME.x`` and ``NAME.y`` of a tracker become ``object/NAME/position/x`` and ``/y``, its heading
    ``object/NAME/yaw``, where the twin has these parameters. The noise between frames says how far a still thing seems
    to move (the median of absolute differences, over √2 and 0.6745), and the mean is over the frames before any moves.

    Raises:
        InputError: the log says nothing of any thing that the twin can place.
    """
    columns = _columns(log.environment_names, twin)
    if not columns:
        raise InputError(
            f"{log.origin.place}: observation.environment_state ({', '.join(log.environment_names) or 'no names'}) "
            f"tells of nothing that the twin {twin.name} can place. Its columns are named THING.x, THING.y, "
            "THING.heading.cos and THING.heading.sin, and the twin declares object/THING/position/x and so on."
        )
    seen = {name: _series(log.environment, column) for name, column in columns.items()}
    noise = {name: _noise(values) for name, values in seen.items()}
    frames = min(_still(values, noise[name]) for name, values in seen.items())
    frames = max(1, min(frames, round(_LONGEST_S * log.hz)))
    return ObjectPlacement(
        values={name: float(values[:frames].mean()) for name, values in seen.items()},
        spread={name: noise[name] / np.sqrt(frames) for name in seen},
        frames=frames,
    )


def _columns(names: Sequence[str], twin: Twin) -> dict[str, tuple[int, ...]]:
    """Parameters of the twin that a tracker's columns tell, and those columns."""
    rows = {name: i for i, name in enumerate(names)}
    told: dict[str, tuple[int, ...]] = {}
    for name, row in rows.items():
        thing, _, axis = name.rpartition(".")
        if axis in ("x", "y"):
            told[f"object/{thing}/position/{axis}"] = (row,)
        if name.endswith(".heading.cos") and name.replace(".cos", ".sin") in rows:
            told[f"object/{name.removesuffix('.heading.cos')}/yaw"] = (rows[name.replace(".cos", ".sin")], row)
    return {name: found for name, found in told.items() if name in twin.params}


def _series(environment: NDArray[np.float64], columns: tuple[int, ...]) -> NDArray[np.float64]:
    values = environment[:, list(columns)].T
    return values[0] if len(columns) == 1 else np.unwrap(np.arctan2(*values))


def _noise(values: NDArray[np.float64]) -> float:
    if len(values) < 3:
        return _LEAST_NOISE_M
    return max(float(np.median(np.abs(np.diff(values)))) / (0.6745 * np.sqrt(2.0)), _LEAST_NOISE_M)


def _still(values: NDArray[np.float64], noise: float) -> int:
    """Frames before a thing is first farther from where it began than its noise explains."""
    began = np.median(values[:5])
    gone = np.flatnonzero(np.abs(values - began) > _MOVED * noise)
    return int(gone[0]) if len(gone) else len(values)


def pin_log(
    log: LoggedEpisode,
    twin: Twin,
    task: Task,
    *,
    name: str,
    twin_reference: str = "",
    identified: ParamDistribution | None = None,
    ndraw: int = 64,
    seed: int = 0,
    reason: str = "",
    meaning: str = "",
) -> PinnedWorld:
    """The world of a logged failure, with draws of what the log and identification leave open.

    Joints begin where the first readings put them through each draw's encoders, at rest, under a command that holds
    them there; things lie where the tracker saw them, on a table as high as they say. Parameters are the identified
    estimate, or the twin's nominal values; draws come from the identified distribution, or the twin's default ranges,
    and places from the tracker's noise and the offset of its frame.

    Args:
        ndraw: rows drawn of what is uncertain.
        seed: of these draws.

    Raises:
        InputError: the log's rate, joints or places do not fit the twin, or the scene holds what the log does not tell:
            things that the twin cannot place, clutter, a tilted table; names them.
    """
    _check(log, twin)
    refuse_unplaced(log.environment_names, twin, log.origin.place)
    placed = placement(log, twin)
    for key, value in placed.values.items():
        twin.require(key).check(value, where=f"the log {log.origin.place}")
    known = {} if identified is None else _known(identified, twin)
    params = twin.table(1, {**known, **placed.values})
    readings, commands = log.units.to_si(log.state[0]), log.units.to_si(log.action)
    begun = task.reset(params.with_seeds(SeedPath.of(seed, [0])), run_seed=seed, episodes=[0])
    seen = heights(log, placed)
    rise = table_rise(seen, twin, task, params, begun, place=log.origin.place)
    if rise is not None:
        placed = placed.with_table(float(params.row(0).get(TABLE, 0.0)) + rise, TRACKER_OFFSET_M)
        twin.require(TABLE).check(placed.values[TABLE], where=f"the log {log.origin.place}")
        params = twin.table(1, {**known, **placed.values})
        begun = task.reset(params.with_seeds(SeedPath.of(seed, [0])), run_seed=seed, episodes=[0])
    return PinnedWorld(
        name=name,
        twin=twin_reference or twin.name,
        twin_hash=twin.hash,
        task=task.name,
        task_version=task.version,
        success_version=task.success_version,
        params=params,
        initial=_joined(twin, params, begun, readings),
        run_seed=seed,
        episode=0,
        nstep=len(commands),
        success=False,
        reason=reason,
        commands=commands,
        readings=readings,
        draws=_draws(twin, identified, placed, ndraw, seed) if ndraw else None,
        departs=departing(twin, params),
        origin=log.origin,
        meaning=meaning,
        versions=software_versions(),
    )


def _check(log: LoggedEpisode, twin: Twin) -> None:
    if list(log.units.names) != list(twin.robot.joints):
        raise InputError(
            f"{log.origin.place} has the joints {', '.join(log.units.names)}, the twin {twin.name} "
            f"{', '.join(twin.robot.joints)}. Give the twin of this robot."
        )
    if twin.model.nu != len(twin.robot.joints):
        raise InputError(
            f"The twin {twin.name} has {twin.model.nu} actuators for {len(twin.robot.joints)} joints, and a log of "
            "joints does not say what the others were told. Give a twin whose actuators are all the robot's."
        )
    if abs(log.hz - twin.control_hz) > 0.01 * twin.control_hz:
        raise InputError(
            f"{log.origin.place} was recorded at {log.hz:g} Hz, and the twin {twin.name} is commanded at "
            f"{twin.control_hz:g}. Give a twin with control_hz: {log.hz:g}."
        )


def _known(identified: ParamDistribution, twin: Twin) -> dict[str, float]:
    """The identified values of what the data determined."""
    for name in identified.names:
        if name not in twin.params:
            raise UnknownNameError("identified parameter", name, twin.params, where=f"the twin {twin.name}")
    return {name: value for name, value in identified.estimate.items() if name not in identified.undetermined}


def _draws(
    twin: Twin, identified: ParamDistribution | None, placed: ObjectPlacement, ndraw: int, seed: int
) -> NDArray[np.float64]:
    """Rows ``(ndraw, nparam)`` of what is not known exactly."""
    skip = tuple(placed.values)
    drawn = default_draws(twin, skip=skip) if identified is None else identified_draws(twin, identified, skip=skip)
    episodes = np.arange(1, ndraw + 1)
    table = Plan(twin=twin, run_seed=seed, draws=tuple(drawn)).draw(episodes.tolist())
    values = table.values.copy()
    frame = TRACKER_OFFSET_M * ndtri(uniforms(seed, f"{_STREAM}/frame", episodes, size=2))
    for name, value in placed.values.items():
        shift = placed.spread[name] * ndtri(uniforms(seed, f"{_STREAM}/{name}", episodes))[:, 0]
        axis = name.rpartition("/")[2]
        if axis in ("x", "y"):
            shift = shift + frame[:, "xy".index(axis)]
        low, high = twin.params[name].low, twin.params[name].high
        values[:, table.names.index(name)] = np.clip(value + shift, low, high)
    return values


def _joined(twin: Twin, params: ParamTable, begun: InitialState, readings: NDArray[np.float64]) -> InitialState:
    """The reset's beginning with the arm where the readings put it, and told what holds it there.

    A servo that holds an arm up stands off from its command; by how much is read off the reset, whose command does so.
    """
    offset, scale = twin.column(params, "sensor", "offset"), twin.column(params, "sensor", "scale")
    qpos = begun.qpos.copy()
    held = begun.command - encoder_reading(qpos[:, twin.joint_qpos], offset, scale)
    qpos[:, twin.joint_qpos] = encoder_command(readings[None], offset, scale)
    return replace(begun, qpos=twin.with_motors(qpos), command=readings[None] + held)
