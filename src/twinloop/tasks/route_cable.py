"""Define the task to lay a cable into a clip by the plug at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import UnknownNameError
from twinloop.core.params import ParamTable
from twinloop.simulate import InitialState
from twinloop.tasks.arm import mocap_row
from twinloop.tasks.handling import GraspSettings, HandlingTask
from twinloop.tasks.milestones import Milestone
from twinloop.tasks.predicates import running_maximum
from twinloop.tasks.reaching import GraspFrame, heading
from twinloop.tasks.soft import SoftVertices, move_bodies
from twinloop.tasks.waypoints import ToolState, Waypoint, WaypointExpert, set_height
from twinloop.twin import Twin

Array = NDArray[np.float64]

_LOW = 0.6  # share of the posts' height below which the cable is between the posts, not on them
_SLACK = 0.004  # m: how much nearer than on a taut cable the expert carries the plug, so that it sags little
_SHARES = (1 / 3, 2 / 3, 1.0)  # of its way around the outlet, on which the cable stays almost taut
_HOVER = 0.06  # m: height of the tool above the grasp on the way to the plug


@dataclass(frozen=True, kw_only=True)
class CableSettings(GraspSettings):
    """Settings of the task; our choice, no published values.

    Attributes:
        cable: name of the soft body, a rod.
        outlet: name of the mocap body at the cable's first vertex.
        clip: name of the mocap body of the clip.
        posts: names of the clip's left and right post as seen from the outlet, upright cylinders.
    """

    cable: str
    outlet: str
    clip: str
    posts: tuple[str, str]


class RouteCable(HandlingTask):
    """Task to lay a cable into a clip, and to let its plug go behind the clip."""

    name = "route_cable"
    instruction = "Lay the cable into the clip."

    def __init__(self, twin: Twin) -> None:
        """Prepare the task for a twin.

        Raises:
            UnknownNameError: If the twin has no such post or mocap body. See `OwnTask`, `settings.read_settings` and
                `SoftVertices.of` for others.
        """
        super().__init__(twin)
        self.settings = settings = self.read_settings(CableSettings)
        model, home = twin.model, InitialState.home(twin, 1)
        geoms = [model.geom(i).name for i in range(model.ngeom)]
        for post in settings.posts:
            if post not in geoms:
                raise UnknownNameError("geom", post, geoms, where=f"the twin {twin.name}, task.{self.name}")
        self._outlet, _ = (mocap_row(twin, name) for name in (settings.outlet, settings.clip))
        self._vertices = SoftVertices.of(twin, settings.cable)
        self._origin = home.mocap_pos[0, self._outlet]
        self._plug = self.objects[settings.object]
        pose = home.qpos[:, self._plug.qpos : self._plug.qpos + 7].copy()
        pose[:, :3] -= self._origin
        self._pose = pose
        left, right = (model.geom(post) for post in settings.posts)
        line = right.pos - left.pos
        self._gap = float(np.linalg.norm(line[:2])) - left.size[0] - right.size[0]
        self._top = float(left.pos[2] + left.size[1])  # m above the clip's origin
        self._across = line[:2] / np.linalg.norm(line[:2])
        self._along = np.array([-self._across[1], self._across[0]])

    def reset(self, params: ParamTable, *, run_seed: int, episodes: Sequence[int], attempt: int = 0) -> InitialState:
        """Return initial states; see `OwnTask`. The cable is straight, and begins at its outlet."""
        initial = super().reset(params, run_seed=run_seed, episodes=episodes, attempt=attempt)
        initial = self._vertices.place(initial, self._origin, self._outlet)
        return move_bodies(initial, np.array([self._plug.qpos]), self._pose, self._outlet)

    def success(self, states: Array) -> NDArray[np.bool_]:
        """Return whether the cable is in the clip, and its plug at rest behind it and let go, for each state."""
        return self._is_laid(states) & self.left_alone(states, self.settings.object)

    def progress(self, states: Array) -> Array:
        """Return the largest share of the plug's way around the clip that was covered so far; 1 is success."""
        outlet = self.position(states, self.settings.outlet)
        plug, clip = (self.position(states, name) - outlet for name in (self.settings.object, self.settings.clip))
        angle = np.abs(_angle_between(plug, clip))
        covered = running_maximum(1.0 - angle / np.maximum(angle[:, :1], 1e-3))
        return np.where(self.success(states), 1.0, 0.9 * np.nan_to_num(covered))

    def milestones(self, states: Array) -> list[Milestone]:
        """Return the milestones of one episode, ``(T + 1, nstate)``; see `HandlingTask.handling_milestones`."""
        return self.handling_milestones(states, self._is_laid(states))

    @property
    def environment_names(self) -> tuple[str, ...]:
        """Names of the values of `environment`: those of every task, and the cable's first, middle and last vertex."""
        cable, points = self.settings.cable, ("first", "middle", "last")
        return (*super().environment_names, *(f"{cable}.{one}.{axis}" for one in points for axis in "xyz"))

    def environment(self, states: Array) -> Array:
        """Return the tracked values ``(…, n)`` in recorded states ``(…, nstate)``."""
        count = len(self._vertices.rest)
        points = self._points(states)[..., [0, count // 2, count - 1], :].reshape(*states.shape[:-1], -1)
        return np.nan_to_num(np.concatenate([super().environment(states), points], axis=-1))

    def expert(self, initial: InitialState) -> WaypointExpert:
        """Return the scripted expert for worlds that start in ``initial``."""
        settings = self.settings
        outlet, clip = (self.start(initial, name) for name in (settings.outlet, settings.clip))
        plug = initial.qpos[:, self._plug.qpos : self._plug.qpos + 3] - outlet
        began, swing = np.arctan2(plug[:, 1], plug[:, 0]), _angle_between(plug, clip - outlet)
        length = float(np.linalg.norm(self._pose[0, :2]))  # from outlet to plug, taut
        rest = initial.qpos[:, self._plug.qpos + 2]
        rise = rest - self._plug.rest_height
        grasp, lift = (rise + height for height in (settings.grasp_height, settings.lift_height))
        hover = grasp + _HOVER
        heights = (settings.grasp_height, settings.lift_height)
        frame = GraspFrame(self.arm.chain, self.hand, self.arm.home, heights=heights)

        def over(height: Array) -> Callable[[ToolState], Array]:
            return lambda now: set_height(now.body(self._plug.qpos), height)

        def hanging(share: float, height: Array) -> Array:
            """Return the tool's position at a height where the cable is almost taut, turned by a share of its way."""
            angle, rise = began + share * swing, height - grasp
            reach = np.sqrt((length - _SLACK) ** 2 - rise**2)
            return np.stack([reach * np.cos(angle), reach * np.sin(angle), rise + grasp], axis=1) + outlet * [
                1.0,
                1.0,
                0.0,
            ]

        def turn(now: ToolState) -> Array:
            row = self._plug.qpos
            yaw = heading(now.qpos[:, row + 3 : row + 7])  # the plug's x axis is across the cable
            return frame.alignment_turn(now.body(row), yaw, np.pi)

        across = began + swing - 0.5 * np.pi  # of the plug, when the cable is in the clip
        carried = [
            Waypoint(
                name="carry",
                position=hanging(share, lift),
                turn=frame.alignment_turn(hanging(share, lift), across + (share - 1.0) * swing, np.pi),
                seconds=0.5,
                pace=0.6,
            )
            for share in _SHARES
        ]
        waypoints = [
            Waypoint(name="approach", position=over(hover), turn=turn, gripper="open", seconds=0.6, patience=0.7),
            Waypoint(name="descend", position=over(grasp), seconds=0.6),
            Waypoint(name="close", gripper="closed", seconds=0.5, patience=0.0),
            Waypoint(name="lift", position=hanging(0.0, lift), seconds=0.6, patience=0.1),
            *carried,
            Waypoint(name="lower", position=hanging(1.0, grasp), pace=0.5, patience=0.8),
            Waypoint(name="open", gripper="open", seconds=0.4, patience=0.0),
            Waypoint(name="retreat", position=lambda now: set_height(now.tool, hover), patience=0.0),
            Waypoint(name="home", position=self.arm.home_position, gripper="home", seconds=0.8, patience=np.inf),
        ]
        return WaypointExpert(self.arm, initial, waypoints, frame=frame, hand=self.hand)

    def _points(self, states: Array) -> Array:
        return self._vertices.positions(self.qpos(states))

    def _is_laid(self, states: Array) -> NDArray[np.bool_]:
        """Return whether the cable crosses the line between the posts, low, and the plug is behind it."""
        clip = self.position(states, self.settings.clip)
        offset = self._points(states) - clip[..., None, :]
        ahead, aside, height = offset[..., :2] @ self._along, offset[..., :2] @ self._across, offset[..., 2]
        before, after = ahead[..., :-1], ahead[..., 1:]
        share = np.clip(-before / np.where(after == before, 1.0, after - before), 0.0, 1.0)
        aside, height = (value[..., :-1] + share * np.diff(value, axis=-1) for value in (aside, height))
        inside = (np.abs(aside) < 0.5 * self._gap) & (height < _LOW * self._top)
        crosses = ((before < 0.0) & (after >= 0.0) & inside).any(axis=-1)
        plug = (self.position(states, self.settings.object) - clip)[..., :2] @ self._along
        return crosses & (plug > 0.0)


def _angle_between(one: Array, other: Array) -> Array:
    """Return the horizontal angles ``(…)`` in rad between vectors ``(…, 3)``."""
    cross = one[..., 0] * other[..., 1] - one[..., 1] * other[..., 0]
    return np.arctan2(cross, (one * other)[..., :2].sum(axis=-1))
