"""Reconstruct a scenario from a robot's log: joint positions, object positions, height of the table, and commands."""

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
from twinloop.rollout.scenario import Scenario, WorldOrigin, find_non_nominal
from twinloop.sensors.servo import encoder_command, encoder_reading
from twinloop.simulate import InitialState, open_backend, rollout
from twinloop.simulate.channels import TRACKER_OFFSET_M
from twinloop.tasks import Task
from twinloop.twin import Twin

TABLE = "geom/table/position/z"
_SURE = 3.0  # a height difference is significant beyond this number of standard deviations of the tracker; our choice
_FLAT_M = 0.004  # height difference of two objects, 0.5 m from each other, on the steepest default table (0.5 deg)
_ROBOTS = ("tool",)  # names in a log's columns that belong to the robot and are not objects to place


def check_placeable_objects(names: Sequence[str], twin: Twin, where: str) -> None:
    """Raise an error if the scene of a log cannot be reconstructed with a twin.

    Args:
        names: Names of the tracked quantities in the log, for example ``cube.x``.
        twin: The twin.
        where: Folder of the log, for error messages.

    Raises:
        InputError: If the twin cannot place an object of the log, or if the twin has random clutter, whose positions
            are not in the log.
    """
    things = dict.fromkeys(name.removesuffix(".x") for name in names if name.endswith(".x"))
    missing = [thing for thing in things if thing not in _ROBOTS and f"object/{thing}/position/x" not in twin.params]
    if missing:
        raise InputError(
            f"{where} has positions of {', '.join(missing)}, but the twin {twin.name} cannot place "
            f"{'them' if len(missing) > 1 else 'it'}: it declares no object/{missing[0]}/position/x. The reconstructed "
            "scene would be wrong. Declare the object in a twin's scene (docs/guides/randomize.md), or remove its "
            "columns from the log."
        )
    if twin.scene is not None and twin.scene.spec.clutter:
        raise InputError(
            f"The twin {twin.name} has random clutter ({', '.join(twin.scene.spec.clutter)}), and {where} has no "
            "positions of it. Give a twin without clutter, with the real objects as scene.objects at their places."
        )


def table_height_offset(
    measured_heights: Mapping[str, tuple[float, float]],
    twin: Twin,
    task: Task,
    params: ParamTable,
    initial: InitialState,
    *,
    where: str,
) -> float | None:
    """Return how much higher the real table is than in the simulated world, in m.

    It is the mean difference between measured and simulated heights of the objects. An offset of the tracker's frame
    changes all measured heights by the same amount, so only a difference that is larger than such an offset is
    significant.

    Args:
        measured_heights: Measured height of each object and its standard deviation, in m.
        twin: Twin of the scene.
        task: Task, which returns the positions of objects.
        params: Parameter table of the simulated world, one row.
        initial: Initial state of that world.
        where: Folder of the log, for error messages.

    Returns:
        The height difference, or None if it is not significant or the twin has no parameter for it.

    Raises:
        InputError: If no level table explains the heights; the message names two of the objects.
    """
    simulated = _initial_heights(twin, task, params, initial)
    rises = {thing: (z - simulated[thing], sd) for thing, (z, sd) in measured_heights.items() if thing in simulated}
    if not rises or TABLE not in twin.params:
        return None
    low, high = min(rises, key=lambda thing: rises[thing][0]), max(rises, key=lambda thing: rises[thing][0])
    difference = rises[high][0] - rises[low][0]
    if difference > _FLAT_M + _SURE * float(np.hypot(rises[high][1], rises[low][1])):
        raise InputError(
            f"{where}: {high} is {1e3 * difference:.1f} mm higher than it would be with {low} on a level table. Either "
            f"the table is tilted, or {high} is on another object or on its edge. Identify the tilt "
            "(geom/table/rotation/x and /y) and give --identified, or use a simulated episode."
        )
    rise = float(np.mean([z for z, _ in rises.values()]))
    return rise if abs(rise) > _SURE * np.hypot(TRACKER_OFFSET_M, max(sd for _, sd in rises.values())) else None


def _initial_heights(twin: Twin, task: Task, params: ParamTable, initial: InitialState) -> dict[str, float]:
    """Return the initial height z of each object in a simulated world in m, by object name.

    Args:
        twin: Twin of the scene.
        task: Task, which returns the positions of objects.
        params: Parameter table with one row.
        initial: Initial state of the world.
    """
    commands: NDArray[np.float64] = initial.command[:, None]
    states = rollout(open_backend("reference"), twin, params, initial, commands, 1).states[0, :1]
    values = zip(task.environment_names, task.environment(states)[0].tolist(), strict=True)
    return {name.removesuffix(".z"): value for name, value in values if name.endswith(".z")}


_LONGEST_S = 1.0  # longest time before any motion over which a tracker's noise is averaged; our choice
_MOVED = 5.0  # an object counts as moved beyond this number of standard deviations of the noise
_LEAST_NOISE_M = 1e-4  # below any tracker's resolution; for the detection of motion in a log without noise; our choice
_STREAM = "scenario/rebuild"


@dataclass(frozen=True, kw_only=True)
class LoggedEpisode:
    """One recorded episode of a robot, with T frames, n joints and m tracked quantities.

    Attributes:
        state: Measured joint positions in ``units``, shape ``(T, n)``.
        action: Commands in ``units``, shape ``(T, n)``.
        environment: Measurements of an object tracker, shape ``(T, m)``.
        environment_names: Name of each tracked quantity, for example ``cube.x``.
        units: Names, units and unit conversion of the joints.
        hz: Frames per second.
        origin: Folder and episode number of the recording.
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
    """Initial positions of objects, measured by a tracker, as parameters of the twin.

    Attributes:
        values: Value by parameter name, for example ``object/cube/position/x``.
        spread: Standard deviation of each value from the tracker's noise, by parameter name.
        frames: Number of frames over which the values are averaged.
    """

    values: Mapping[str, float]
    spread: Mapping[str, float]
    frames: int

    def with_table_height(self, height: float, spread: float) -> ObjectPlacement:
        """Return a copy with a value for the parameter of the table's height.

        Args:
            height: Value of the table's height parameter in m.
            spread: Standard deviation of this value in m.
        """
        return replace(self, values={**self.values, TABLE: height}, spread={**self.spread, TABLE: spread})


def tracked_heights(log: LoggedEpisode, placed: ObjectPlacement) -> dict[str, tuple[float, float]]:
    """Return the mean height of each placed object before any motion, and its standard deviation, in m.

    Args:
        log: The recorded episode.
        placed: Initial positions of the objects, see `place_objects`.
    """
    things = {name.split("/")[1] for name in placed.values if name.startswith("object/")}
    heights: dict[str, tuple[float, float]] = {}
    for column, name in enumerate(log.environment_names):
        thing, _, axis = name.rpartition(".")
        if axis == "z" and thing in things:
            values = log.environment[:, column]
            heights[thing] = (float(values[: placed.frames].mean()), _tracker_noise(values) / np.sqrt(placed.frames))
    return heights


def place_objects(log: LoggedEpisode, twin: Twin) -> ObjectPlacement:
    """Return the initial positions of the tracked objects, averaged over the frames before any object moves.

    The tracker's columns ``NAME.x`` and ``NAME.y`` become the parameters ``object/NAME/position/x`` and ``/y``, and its
    heading becomes ``object/NAME/yaw``, if the twin has these parameters. The standard deviation of the noise is
    estimated robustly: the median absolute difference between consecutive frames, divided by √2 (difference of two
    noisy values) and by 0.6745 (median absolute value of a standard normal number).

    Args:
        log: The recorded episode.
        twin: Twin with the objects.

    Raises:
        InputError: If the log has no object that the twin can place.
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
    """Return the columns of a table of tracked object poses that determine each twin parameter, by parameter name.

    Args:
        names: Names of the columns.
        twin: Twin with the objects.

    Returns:
        One column index for a position; the column indices of sine and cosine for a rotation.
    """
    rows = {name: i for i, name in enumerate(names)}
    columns: dict[str, tuple[int, ...]] = {}
    for name, row in rows.items():
        thing, _, axis = name.rpartition(".")
        if axis in ("x", "y"):
            columns[f"object/{thing}/position/{axis}"] = (row,)
        if name.endswith(".heading.cos") and name.replace(".cos", ".sin") in rows:
            columns[f"object/{name.removesuffix('.heading.cos')}/yaw"] = (rows[name.replace(".cos", ".sin")], row)
    return {name: indices for name, indices in columns.items() if name in twin.params}


def _column_values(environment: NDArray[np.float64], columns: tuple[int, ...]) -> NDArray[np.float64]:
    values = environment[:, list(columns)].T
    return values[0] if len(columns) == 1 else np.unwrap(np.arctan2(*values))


def _tracker_noise(values: NDArray[np.float64]) -> float:
    if len(values) < 3:
        return _LEAST_NOISE_M
    return max(float(np.median(np.abs(np.diff(values)))) / (0.6745 * np.sqrt(2.0)), _LEAST_NOISE_M)


def _count_still_frames(values: NDArray[np.float64], noise: float) -> int:
    """Return the number of frames before an object moves by significantly more than the noise.

    Args:
        values: Position or rotation of the object in every frame, shape ``(T,)``.
        noise: Standard deviation of the tracker's noise, in the unit of the values.
    """
    initial = np.median(values[:5])
    moved = np.flatnonzero(np.abs(values - initial) > _MOVED * noise)
    return int(moved[0]) if len(moved) else len(values)


def scenario_from_log(
    log: LoggedEpisode,
    twin: Twin,
    task: Task,
    *,
    name: str,
    identified: ParamDistribution | None = None,
    ndraw: int = 64,
    seed: int = 0,
    reason: str = "",
    meaning: str = "",
) -> Scenario:
    """Return the scenario of a logged failure, with random draws of the uncertain parameters.

    Joints start at rest at the first readings, which the encoder parameters of each draw convert to true positions; the
    first command holds them there. Objects start at their tracked positions, on a table whose height is estimated from
    them. Parameters have the identified values, or the twin's nominal values.

    The draws come from the identified distribution, or from the twin's default ranges. Draws of object positions come
    from the tracker's noise and the offset of its frame.

    Args:
        log: The recorded episode.
        twin: Twin of the robot.
        task: Task of the episode.
        name: Name of the scenario.
        identified: Identified distribution of the parameters; None for nominal values and default ranges.
        ndraw: Number of draws of the uncertain parameters.
        seed: Seed of the draws.
        reason: Explanation of the failure, if known.
        meaning: Purpose of the scenario, as text.

    Raises:
        InputError: If the log's rate, joints or positions do not fit the twin, or if the scene cannot be reconstructed
            because of an object that the twin cannot place, clutter, or a tilted table.
    """
    _check_log(log, twin)
    check_placeable_objects(log.environment_names, twin, log.origin.place)
    placed = place_objects(log, twin)
    for key, value in placed.values.items():
        twin.find_param(key).check(value, where=f"the log {log.origin.place}")
    identified_values = {} if identified is None else _identified_values(identified, twin)
    params = twin.table(1, {**identified_values, **placed.values})
    readings = log.units.to_si(log.state[0])
    commands = log.units.of_commands(twin.robot.control).to_si(log.action)
    initial = task.reset(params.with_seeds(SeedPath.of(seed, [0])), run_seed=seed, episodes=[0])
    heights = tracked_heights(log, placed)
    rise = table_height_offset(heights, twin, task, params, initial, where=log.origin.place)
    if rise is not None:
        placed = placed.with_table_height(float(params.row(0).get(TABLE, 0.0)) + rise, TRACKER_OFFSET_M)
        twin.find_param(TABLE).check(placed.values[TABLE], where=f"the log {log.origin.place}")
        params = twin.table(1, {**identified_values, **placed.values})
        initial = task.reset(params.with_seeds(SeedPath.of(seed, [0])), run_seed=seed, episodes=[0])
    return Scenario(
        name=name,
        twin=twin.name,
        twin_hash=twin.hash,
        task=task.name,
        task_version=task.version,
        success_version=task.success_version,
        params=params,
        initial=_hold_at_readings(twin, params, initial, readings),
        run_seed=seed,
        episode=0,
        nstep=len(commands),
        success=False,
        reason=reason,
        commands=commands,
        readings=readings,
        draws=_draw_rows(twin, identified, placed, ndraw, seed) if ndraw else None,
        non_nominal=find_non_nominal(twin, params),
        origin=log.origin,
        meaning=meaning,
        versions=software_versions(),
    )


def _check_log(log: LoggedEpisode, twin: Twin) -> None:
    if list(log.units.names) != list(twin.robot.joints):
        raise InputError(
            f"{log.origin.place} has the joints {', '.join(log.units.names)}, but the twin {twin.name} has "
            f"{', '.join(twin.robot.joints)}. Give the twin of this robot."
        )
    if twin.model.nu != len(twin.robot.joints):
        raise InputError(
            f"The twin {twin.name} has {twin.model.nu} actuators for {len(twin.robot.joints)} joints. The log has "
            "commands of the joints only. Give a twin whose actuators all belong to the robot."
        )
    if abs(log.hz - twin.control_hz) > 0.01 * twin.control_hz:
        raise InputError(
            f"{log.origin.place} was recorded at {log.hz:g} Hz, but the control rate of the twin {twin.name} is "
            f"{twin.control_hz:g} Hz. Give a twin with control_hz: {log.hz:g}."
        )


def _identified_values(identified: ParamDistribution, twin: Twin) -> dict[str, float]:
    """Return the identified values by parameter name, excluding parameters that the data did not determine.

    Raises:
        UnknownNameError: If an identified parameter does not exist in the twin.
    """
    for name in identified.names:
        if name not in twin.params:
            raise UnknownNameError("identified parameter", name, twin.params, where=f"the twin {twin.name}")
    return {
        name: value for name, value in identified.estimate.items() if name not in identified.unidentified_parameters
    }


def _draw_rows(
    twin: Twin, identified: ParamDistribution | None, placed: ObjectPlacement, ndraw: int, seed: int
) -> NDArray[np.float64]:
    """Return random draws of all parameters, in which the uncertain parameters vary, shape ``(ndraw, nparam)``.

    Args:
        twin: Twin of the robot.
        identified: Identified distribution of the parameters; None for the twin's default ranges.
        placed: Initial positions of the objects with their standard deviations.
        ndraw: Number of draws.
        seed: Seed of the draws.
    """
    skip = tuple(placed.values)
    draws = default_draws(twin, skip=skip) if identified is None else identified_draws(twin, identified, skip=skip)
    episodes = np.arange(1, ndraw + 1)
    table = Plan(twin=twin, run_seed=seed, draws=tuple(draws)).draw(episodes.tolist())
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
    twin: Twin, params: ParamTable, initial: InitialState, readings: NDArray[np.float64]
) -> InitialState:
    """Return an initial state with the joints at their encoder readings, and a first command that holds them there.

    A servo that holds an arm against gravity has an offset between position and command. The offset in ``initial`` is
    added to the readings.

    Args:
        twin: Twin of the robot.
        params: Parameter table with one row.
        initial: Initial state of the task.
        readings: First encoder readings in SI units, shape ``(njoint,)``.
    """
    offset, scale = twin.column(params, "sensor", "offset"), twin.column(params, "sensor", "scale")
    qpos = initial.qpos.copy()
    command_offset = initial.command - encoder_reading(qpos[:, twin.joint_qpos], offset, scale)
    qpos[:, twin.joint_qpos] = encoder_command(readings[None], offset, scale)
    return replace(initial, qpos=twin.align_motors(qpos), command=readings[None] + command_offset)
