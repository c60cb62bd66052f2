"""Rebuild a scenario from a robot's log: joints, objects, height of the table, and commands."""

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
from twinloop.rollout.pinned import PinnedWorld, WorldOrigin, find_departures
from twinloop.sensors.servo import encoder_command, encoder_reading
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.tasks import Task
from twinloop.twin import Twin

TABLE = "geom/table/position/z"
_SURE = 3.0  # standard deviations of the tracker beyond which a height difference is significant; our choice
_FLAT_M = 0.004  # height difference of two objects, 0.5 m from each other, on the steepest default table (0.5 deg)
_ROBOTS = ("tool",)  # names in a log's columns that are not objects to place


def check_placeable_objects(names: Sequence[str], twin: Twin, place: str) -> None:
    """Raise an error if the scene cannot be rebuilt: the twin cannot place an object, or clutter is not in the log.

    Raises:
        InputError: an object or clutter is missing; the message names the place to declare it.
    """
    things = dict.fromkeys(name.removesuffix(".x") for name in names if name.endswith(".x"))
    lost = [thing for thing in things if thing not in _ROBOTS and f"object/{thing}/position/x" not in twin.params]
    if lost:
        raise InputError(
            f"{place} has positions of {', '.join(lost)}, but the twin {twin.name} cannot place "
            f"{'them' if len(lost) > 1 else 'it'}: it declares no object/{lost[0]}/position/x. The rebuilt scene would "
            "be wrong. Declare it in a twin's scene (docs/guides/randomize.md), or leave its columns out of the log."
        )
    if twin.scene is not None and twin.scene.spec.clutter:
        raise InputError(
            f"The twin {twin.name} has random clutter ({', '.join(twin.scene.spec.clutter)}), and {place} has no "
            "positions of it. Give a twin without clutter, with the real objects as scene.objects at their places."
        )


def table_height_offset(
    seen: Mapping[str, tuple[float, float]],
    twin: Twin,
    task: Task,
    params: ParamTable,
    begun: InitialState,
    *,
    place: str,
) -> float | None:
    """Return how much the table is higher than in these parameters, in m; None if no difference is measurable.

    All tracked objects may appear too high together, by the offset of the tracker's frame; this offset does not affect
    their differences.

    Args:
        seen: height of each object and its standard deviation, in m.
        twin: the twin of the scene.
        task: the task, which returns the positions of objects.
        params: parameters of one world.
        begun: initial state of that world.
        place: the log, for messages.

    Raises:
        InputError: the heights do not fit any level table; the message has two of the objects.
    """
    told = _initial_heights(twin, task, params, begun)
    rises = {thing: (z - told[thing], sd) for thing, (z, sd) in seen.items() if thing in told}
    if not rises or TABLE not in twin.params:
        return None
    low, high = min(rises, key=lambda thing: rises[thing][0]), max(rises, key=lambda thing: rises[thing][0])
    apart = rises[high][0] - rises[low][0]
    if apart > _FLAT_M + _SURE * float(np.hypot(rises[high][1], rises[low][1])):
        raise InputError(
            f"{place}: {high} is {1e3 * apart:.1f} mm higher than it would be with {low} on a level table. Either the "
            f"table is tilted, or {high} is on another object or on its edge. Identify the tilt "
            "(geom/table/rotation/x and /y) and give --identified, or use a simulated episode."
        )
    rise = float(np.mean([z for z, _ in rises.values()]))
    return rise if abs(rise) > _SURE * np.hypot(TRACKER_OFFSET_M, max(sd for _, sd in rises.values())) else None


def _initial_heights(twin: Twin, task: Task, params: ParamTable, begun: InitialState) -> dict[str, float]:
    """Return the heights of objects at the beginning of a world, by their names: z, m."""
    commands: NDArray[np.float64] = begun.command[:, None]
    states = rollout(open_backend("reference"), twin, params, begun, commands, 1).states[0, :1]
    told = zip(task.environment_names, task.environment(states)[0].tolist(), strict=True)
    return {name.removesuffix(".z"): value for name, value in told if name.endswith(".z")}


# Hand-eye calibration with a printed board gives the frame of a camera above a table to 1 to 3 mm. This standard
# deviation is the common offset of all tracked objects; our choice, the same as for virtual cells.
TRACKER_OFFSET_M = 0.002
_LONGEST_S = 1.0  # longest time before any motion over which a tracker's noise is averaged; our choice
_MOVED = 5.0  # standard deviations of the noise between frames at which an object counts as moved
_LEAST_NOISE_M = 1e-4  # below any tracker's resolution; for the detection of motion in a log without noise; our choice
_STREAM = "scenario/rebuild"


@dataclass(frozen=True, kw_only=True)
class LoggedEpisode:
    """One episode of a LeRobot folder.

    ``state`` and ``action`` ``(T, n)`` are in ``units``; ``environment`` ``(T, m)`` are measurements of a tracker,
    named by ``environment_names``.
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
    """Initial places of objects as parameters of the twin, with their accuracy.

    ``values`` by parameter; ``spread`` is the standard deviation of each from the tracker's noise, ``frames`` the
    number of averaged frames.
    """

    values: Mapping[str, float]
    spread: Mapping[str, float]
    frames: int

    def with_table_height(self, height: float, spread: float) -> ObjectPlacement:
        """Return the placement on a table of another height, in m."""
        return replace(self, values={**self.values, TABLE: height}, spread={**self.spread, TABLE: spread})


def tracked_heights(log: LoggedEpisode, placed: ObjectPlacement) -> dict[str, tuple[float, float]]:
    """Return the heights of the placed objects before any motion, and their standard deviations, in m."""
    things = {name.split("/")[1] for name in placed.values if name.startswith("object/")}
    found: dict[str, tuple[float, float]] = {}
    for column, name in enumerate(log.environment_names):
        thing, _, axis = name.rpartition(".")
        if axis == "z" and thing in things:
            values = log.environment[:, column]
            found[thing] = (float(values[: placed.frames].mean()), _tracker_noise(values) / np.sqrt(placed.frames))
    return found


def place_objects(log: LoggedEpisode, twin: Twin) -> ObjectPlacement:
    """Return the places of objects before any motion.

    ``NAME.x`` and ``NAME.y`` of a tracker become ``object/NAME/position/x`` and ``/y``, its heading
    ``object/NAME/yaw``, if the twin has these parameters. The noise of a still object is the median of absolute
    differences between frames, divided by √2 and 0.6745. The mean is over the frames before any object moves.

    Raises:
        InputError: the log has no object that the twin can place.
    """
    columns = _tracker_columns(log.environment_names, twin)
    if not columns:
        raise InputError(
            f"{log.origin.place}: observation.environment_state ({', '.join(log.environment_names) or 'no names'}) "
            f"has no object that the twin {twin.name} can place. Name its columns THING.x, THING.y, "
            "THING.heading.cos and THING.heading.sin, and declare object/THING/position/x and so on in the twin."
        )
    seen = {name: _column_values(log.environment, column) for name, column in columns.items()}
    noise = {name: _tracker_noise(values) for name, values in seen.items()}
    frames = min(_count_still_frames(values, noise[name]) for name, values in seen.items())
    frames = max(1, min(frames, round(_LONGEST_S * log.hz)))
    return ObjectPlacement(
        values={name: float(values[:frames].mean()) for name, values in seen.items()},
        spread={name: noise[name] / np.sqrt(frames) for name in seen},
        frames=frames,
    )


def _tracker_columns(names: Sequence[str], twin: Twin) -> dict[str, tuple[int, ...]]:
    """Return the parameters of the twin that a tracker's columns determine, with those columns."""
    rows = {name: i for i, name in enumerate(names)}
    told: dict[str, tuple[int, ...]] = {}
    for name, row in rows.items():
        thing, _, axis = name.rpartition(".")
        if axis in ("x", "y"):
            told[f"object/{thing}/position/{axis}"] = (row,)
        if name.endswith(".heading.cos") and name.replace(".cos", ".sin") in rows:
            told[f"object/{name.removesuffix('.heading.cos')}/yaw"] = (rows[name.replace(".cos", ".sin")], row)
    return {name: found for name, found in told.items() if name in twin.params}


def _column_values(environment: NDArray[np.float64], columns: tuple[int, ...]) -> NDArray[np.float64]:
    values = environment[:, list(columns)].T
    return values[0] if len(columns) == 1 else np.unwrap(np.arctan2(*values))


def _tracker_noise(values: NDArray[np.float64]) -> float:
    if len(values) < 3:
        return _LEAST_NOISE_M
    return max(float(np.median(np.abs(np.diff(values)))) / (0.6745 * np.sqrt(2.0)), _LEAST_NOISE_M)


def _count_still_frames(values: NDArray[np.float64], noise: float) -> int:
    """Return the number of frames before an object leaves its initial place by more than noise."""
    began = np.median(values[:5])
    gone = np.flatnonzero(np.abs(values - began) > _MOVED * noise)
    return int(gone[0]) if len(gone) else len(values)


def scenario_from_log(
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
    """Return the scenario of a logged failure, with draws of the uncertain parameters.

    Joints begin at the first readings, converted by each draw's encoders, at rest, under a command that holds them
    there. Objects are at their tracked places, on a table whose height follows from them. Parameters are the identified
    estimate, or the twin's nominal values. Draws come from the identified distribution, or the twin's default ranges;
    those of places come from the tracker's noise and the offset of its frame.

    Args:
        ndraw: number of draws of the uncertain parameters.
        seed: seed of these draws.

    Raises:
        InputError: the log's rate, joints or places do not fit the twin, or the scene cannot be rebuilt from the log:
            an object that the twin cannot place, clutter, a tilted table.
    """
    _check_log(log, twin)
    check_placeable_objects(log.environment_names, twin, log.origin.place)
    placed = place_objects(log, twin)
    for key, value in placed.values.items():
        twin.find_param(key).check(value, where=f"the log {log.origin.place}")
    known = {} if identified is None else _identified_values(identified, twin)
    params = twin.table(1, {**known, **placed.values})
    readings, commands = log.units.to_si(log.state[0]), log.units.to_si(log.action)
    begun = task.reset(params.with_seeds(SeedPath.of(seed, [0])), run_seed=seed, episodes=[0])
    seen = tracked_heights(log, placed)
    rise = table_height_offset(seen, twin, task, params, begun, place=log.origin.place)
    if rise is not None:
        placed = placed.with_table_height(float(params.row(0).get(TABLE, 0.0)) + rise, TRACKER_OFFSET_M)
        twin.find_param(TABLE).check(placed.values[TABLE], where=f"the log {log.origin.place}")
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
        initial=_hold_at_readings(twin, params, begun, readings),
        run_seed=seed,
        episode=0,
        nstep=len(commands),
        success=False,
        reason=reason,
        commands=commands,
        readings=readings,
        draws=_draw_rows(twin, identified, placed, ndraw, seed) if ndraw else None,
        departs=find_departures(twin, params),
        origin=log.origin,
        meaning=meaning,
        versions=software_versions(),
    )


def _check_log(log: LoggedEpisode, twin: Twin) -> None:
    if list(log.units.names) != list(twin.robot.joints):
        raise InputError(
            f"{log.origin.place} has the joints {', '.join(log.units.names)}, the twin {twin.name} "
            f"{', '.join(twin.robot.joints)}. Give the twin of this robot."
        )
    if twin.model.nu != len(twin.robot.joints):
        raise InputError(
            f"The twin {twin.name} has {twin.model.nu} actuators for {len(twin.robot.joints)} joints, and a log of "
            "joints has no commands of the others. Give a twin whose actuators all belong to the robot."
        )
    if abs(log.hz - twin.control_hz) > 0.01 * twin.control_hz:
        raise InputError(
            f"{log.origin.place} was recorded at {log.hz:g} Hz, but the control rate of the twin {twin.name} is "
            f"{twin.control_hz:g} Hz. Give a twin with control_hz: {log.hz:g}."
        )


def _identified_values(identified: ParamDistribution, twin: Twin) -> dict[str, float]:
    """Return the identified values of the determined parameters."""
    for name in identified.names:
        if name not in twin.params:
            raise UnknownNameError("identified parameter", name, twin.params, where=f"the twin {twin.name}")
    return {
        name: value for name, value in identified.estimate.items() if name not in identified.unidentified_parameters
    }


def _draw_rows(
    twin: Twin, identified: ParamDistribution | None, placed: ObjectPlacement, ndraw: int, seed: int
) -> NDArray[np.float64]:
    """Return rows ``(ndraw, nparam)`` of the uncertain parameters."""
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


def _hold_at_readings(
    twin: Twin, params: ParamTable, begun: InitialState, readings: NDArray[np.float64]
) -> InitialState:
    """Return the initial state of the reset with the arm at its readings, under a command that holds it there.

    A servo that holds an arm up has a position offset from its command; the offset is taken from the reset's command.
    """
    offset, scale = twin.column(params, "sensor", "offset"), twin.column(params, "sensor", "scale")
    qpos = begun.qpos.copy()
    held = begun.command - encoder_reading(qpos[:, twin.joint_qpos], offset, scale)
    qpos[:, twin.joint_qpos] = encoder_command(readings[None], offset, scale)
    return replace(begun, qpos=twin.align_motors(qpos), command=readings[None] + held)
