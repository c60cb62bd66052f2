"""Define the task to drive a wheeled robot to a dock between shelves, without touching anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.params import ParamTable
from twinloop.simulate import InitialState, Simulation
from twinloop.simulate.protocol import state_columns
from twinloop.tasks.arm import mocap_row
from twinloop.tasks.docking import APPROACH, MARGIN, Routes, choose_motion
from twinloop.tasks.milestones import Milestone, MilestonePhases
from twinloop.tasks.own import OwnTask
from twinloop.tasks.predicates import occurred_before, running_maximum, slower_than
from twinloop.tasks.reaching import heading, nearest_turn, rotate_level
from twinloop.twin import Twin

Array = NDArray[np.float64]

# All are our choice: a plug with a funnel of 3 cm, and a robot at rest.
_NEAR, _ALIGNED, _SLOW, _REST_S = 0.03, 0.1, (0.02, 0.1), 0.5  # m, rad, (m/s, rad/s), s


@dataclass(frozen=True, kw_only=True)
class DockSettings:
    """Settings of `Dock` in a twin's ``task.dock`` section.

    Attributes:
        base: name of the robot's free body, whose frame is between the driven wheels with x to the front.
        dock: name of the mocap body at whose pose the base must stop.
        shelves: names of the mocap bodies, each of one box, that the robot must not touch.
        room: half sides of the room around the world's origin in m.
        centre: x of the middle of the robot's outline in its frame, in m.
        radius: radius of the robot's outline in m.
        wheels: names of the joints of the left and the right wheel, for the expert.
        duration: length of an episode in s.
    """

    base: str
    dock: str
    shelves: list[str]
    room: tuple[float, float]
    centre: float
    radius: float
    wheels: tuple[str, str]
    duration: float = 50.0


class Dock(MilestonePhases, OwnTask):
    """Task to drive to the pose of a dock and stop there, without touching shelves or walls."""

    name = "dock"
    instruction = "Drive to the dock without touching anything."
    first_phase = "drive"
    joint_noise = np.pi  # rad: wheels have no home

    def __init__(self, twin: Twin) -> None:
        """Prepare the task for a twin.

        Raises:
            InputError: If a shelf is not a single box. See `OwnTask` and `settings.read_settings` for other errors.
        """
        super().__init__(twin)
        self.settings = settings = self.read_settings(DockSettings)
        self.require_bodies(objects=[settings.base], targets=[settings.dock, *settings.shelves])
        self._base, model = self.objects[settings.base], twin.model
        self._turns = state_columns(model, int(mujoco.mjtState.mjSTATE_MOCAP_QUAT))
        geoms = [np.flatnonzero(model.geom_bodyid == model.body(shelf).id) for shelf in settings.shelves]
        for shelf, found in zip(settings.shelves, geoms, strict=True):
            if len(found) != 1 or model.geom_type[found[0]] != int(mujoco.mjtGeom.mjGEOM_BOX):
                raise InputError(f"task.dock of the twin {twin.name}: the shelf {shelf} must be one box.")
        self.shelf_sizes = np.array([model.geom_size[found[0], :2] for found in geoms]).reshape(-1, 2)

    def expert(self, initial: InitialState) -> DockExpert:
        """Return the scripted expert for worlds that start in ``initial``."""
        return DockExpert(self, initial)

    def memoryless_expert(
        self,
        initial: InitialState,
        params: ParamTable,  # noqa: ARG002
        *,
        believed: ParamTable | None = None,  # noqa: ARG002
    ) -> DockExpert:
        """Return the same expert, which has no memory; see `tasks.protocol.LabellingTask`."""
        return self.expert(initial)

    def success(self, states: Array) -> NDArray[np.bool_]:
        """Return whether the base has been at the dock and at rest for 0.5 s, and the robot has touched nothing so far.

        Tolerances are 3 cm, 0.1 rad, 0.02 m/s and 0.1 rad/s. The robot touches something if its round outline does.
        """
        untouched = ~occurred_before(self.find_clearance(states) <= 0.0)
        return self.kept(self._is_docked(states) & untouched, _REST_S)

    def progress(self, states: Array) -> Array:
        """Return the largest share of the initial distance from the dock that was covered so far; 0 after a touch."""
        distance = np.hypot(*np.moveaxis(self.find_offset(states)[..., :2], -1, 0))
        left = np.maximum(distance - _NEAR, 0.0) / np.maximum(distance[:, :1], 1e-6)
        touched = occurred_before(self.find_clearance(states) <= 0.0)
        share = running_maximum(np.nan_to_num(np.where(touched, 0.0, 0.99 * (1.0 - left))))
        return np.where(self.success(states), 1.0, share)

    @property
    def environment_names(self) -> tuple[str, ...]:
        """Names of the values of `environment`."""
        bodies = (self.settings.base, self.settings.dock, *self.settings.shelves)
        places = [f"{name}.{value}" for name in bodies for value in ("x", "y", "heading.cos", "heading.sin")]
        return (*places, "speed.forward", "speed.turn")

    def environment(self, states: Array) -> Array:
        """Return the tracked values in recorded states ``(…, nstate)``.

        These are positions in m, headings, and the speed forwards in m/s and the turning rate in rad/s.
        """
        sound = np.nan_to_num(states, nan=0.0, posinf=0.0, neginf=0.0)
        poses = [
            self.find_pose(sound, name) for name in (self.settings.base, self.settings.dock, *self.settings.shelves)
        ]
        places = [part for pose in poses for part in (pose[..., :2], np.cos(pose[..., 2:]), np.sin(pose[..., 2:]))]
        return np.concatenate([*places, self._find_speeds(sound)], axis=-1)

    def milestones(self, states: Array) -> Sequence[Milestone]:
        """Return the milestones of one episode: near the dock, and at rest there; see `MilestonePhases`."""
        touched = np.flatnonzero(self.find_clearance(states) <= 0.0)
        offset = self.find_offset(states)
        near = np.hypot(offset[..., 0], offset[..., 1]) <= 10.0 * _NEAR
        failures = {
            "approach": ("never_near", f"came within {np.nanmin(np.hypot(offset[..., 0], offset[..., 1])):.2f} m"),
            "docked": ("not_docked", f"not within {_NEAR:g} m and {_ALIGNED:g} rad of the dock at rest"),
        }
        if len(touched):
            reason = f"touched a shelf or a wall after {touched[0] / self.twin.control_hz:.2f} s"
            failures = dict.fromkeys(failures, ("touched", reason))
        passed = {"approach": near, "docked": self.success(states[None])[0]}
        return [
            Milestone(phase=phase, passed=passed[phase], failure=failure, reason=reason)
            for phase, (failure, reason) in failures.items()
        ]

    def find_clearance(self, states: Array) -> Array:
        """Return the distance of the robot's outline from the nearest shelf or wall, ``(…)`` in m; 0 if it touches."""
        base, settings = self.find_pose(states, self.settings.base), self.settings
        ahead = np.stack([np.cos(base[..., 2]), np.sin(base[..., 2])], axis=-1)
        middle = base[..., :2] + settings.centre * ahead
        walls = (np.array(settings.room) - np.abs(middle)).min(axis=-1)
        gaps = [walls]
        for shelf, half in zip(settings.shelves, self.shelf_sizes, strict=True):
            gaps.append(distance_from_box(middle, self.find_pose(states, shelf), half))
        nearest = np.stack(gaps, axis=-1).min(axis=-1) - settings.radius
        return np.maximum(nearest, 0.0)

    def find_pose(self, states: Array, name: str) -> Array:
        """Return x and y in m and the heading in rad of the base, the dock or a shelf, ``(…, 3)``."""
        if name in self.objects:
            row = self.objects[name].qpos
            turn = self.qpos(states)[..., row + 3 : row + 7]
        else:
            row = self._targets[name]
            turn = states[..., self._turns][..., 4 * row : 4 * row + 4]
        return np.concatenate([self.position(states, name)[..., :2], heading(turn)[..., None]], axis=-1)

    def _is_docked(self, states: Array) -> NDArray[np.bool_]:
        offset = self.find_offset(states)
        near = np.hypot(offset[..., 0], offset[..., 1]) <= _NEAR
        velocity = self.qvel(states)[..., self._base.qvel : self._base.qvel + 6]
        return near & (np.abs(offset[..., 2]) <= _ALIGNED) & slower_than(velocity, *_SLOW)

    def find_offset(self, states: Array) -> Array:
        """Return the pose of the base in the frame of the dock: ahead and to the left in m, and the turn in rad."""
        base, dock = (self.find_pose(states, name) for name in (self.settings.base, self.settings.dock))
        turn = nearest_turn(base[..., 2] - dock[..., 2])
        return np.concatenate([rotate_level(base[..., :2] - dock[..., :2], -dock[..., 2]), turn[..., None]], axis=-1)

    def _find_speeds(self, states: Array) -> Array:
        velocity = self.qvel(states)[..., self._base.qvel : self._base.qvel + 6]
        yaw = self.find_pose(states, self.settings.base)[..., 2]
        return np.stack([rotate_level(velocity[..., :2], -yaw)[..., 0], velocity[..., 5]], axis=-1)


class DockExpert:
    """Scripted controller that drives to the dock; see `docking`.

    Args:
        task: the task.
        initial: initial states of the worlds, of which the places of the dock and of shelves do not change.
    """

    def __init__(self, task: Dock, initial: InitialState) -> None:
        self._task, settings = task, task.settings
        twin, model = task.twin, task.twin.model
        dock = _pose_at_start(task, initial, settings.dock)
        shelves = [_pose_at_start(task, initial, shelf) for shelf in settings.shelves]
        grown = settings.radius + abs(settings.centre) + MARGIN

        def is_blocked(world: int, points: Array) -> NDArray[np.bool_]:
            gaps = [(np.array(settings.room) - np.abs(points)).min(axis=-1)]
            gaps += [
                distance_from_box(points, pose[world], half)
                for pose, half in zip(shelves, task.shelf_sizes, strict=True)
            ]
            return np.min(gaps, axis=0) < grown

        front = np.stack([np.cos(dock[:, 2]), np.sin(dock[:, 2])], axis=-1)
        self._routes = Routes(dock[:, :2] - APPROACH * front, is_blocked, settings.room)
        left, right = (model.joint(name).id for name in settings.wheels)
        bodies = model.jnt_bodyid[[left, right]]
        self._columns = [twin.robot.joints.index(name) for name in settings.wheels]
        self._track = float(model.body_pos[bodies[0], 1] - model.body_pos[bodies[1], 1])
        self._wheel = float(twin.home()[0][task.objects[settings.base].qpos + 2])  # the axis is as high as the wheels
        self._low, self._high = twin.find_command_ranges()

    def __call__(self, simulation: Simulation) -> Array:
        """Return the commands of the next control step, ``(nworld, nu)``."""
        return self.label(simulation)

    def label(self, simulation: Simulation, held: Array | None = None, earlier: Array | None = None) -> Array:  # noqa: ARG002
        """Return the commands ``(nworld, nu)`` in the present states; see `tasks.protocol.StateExpert`."""
        state = np.nan_to_num(simulation.state, posinf=0.0, neginf=0.0)
        base = self._task.find_pose(state, self._task.settings.base)
        speed, turn = choose_motion(self._routes, base, self._task.find_offset(state))
        command = np.zeros((len(state), self._task.twin.model.nu))
        for column, side in zip(self._columns, (-1.0, 1.0), strict=True):
            command[:, column] = (speed + side * 0.5 * self._track * turn) / self._wheel
        return np.clip(command, self._low, self._high)


def _pose_at_start(task: Dock, initial: InitialState, name: str) -> Array:
    row = mocap_row(task.twin, name)
    return np.column_stack([initial.mocap_pos[:, row, :2], heading(initial.mocap_quat[:, row])])


def distance_from_box(points: Array, pose: Array, half: Array) -> Array:
    """Return the distances ``(…)`` in m of points ``(…, 2)`` from a rectangle; 0 within it.

    Args:
        points: positions in m.
        pose: middle of the rectangle in m and its heading in rad, ``(…, 3)``.
        half: its half sides in m, ``(2,)``.
    """
    beyond = np.maximum(np.abs(rotate_level(points - pose[..., :2], -pose[..., 2])) - half, 0.0)
    return np.hypot(beyond[..., 0], beyond[..., 1])
