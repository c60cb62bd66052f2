"""Define the task to turn an object in the hand until it has the orientation of a goal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.params import ParamTable
from twinloop.core.seeds import uniforms
from twinloop.simulate import InitialState
from twinloop.simulate.protocol import state_columns
from twinloop.tasks.milestones import Milestone, MilestonePhases
from twinloop.tasks.own import OwnTask
from twinloop.tasks.predicates import occurred_before
from twinloop.twin import Twin
from twinloop.twin.quantities.rotation import quat_from_rotation_vector, quat_multiply, rotation_matrix

Array = NDArray[np.float64]

_INVERSE = np.array([1.0, -1.0, -1.0, -1.0])
# First quaternions that bring each face of a cube to the top; with a yaw of 0, 90, 180 or 270 deg these are all 24
# orientations in which a cube occupies the same space.
_HALF = np.sqrt(0.5)
_TOPS = np.array(
    [
        [1, 0, 0, 0],
        [0, 1, 0, 0],
        [_HALF, _HALF, 0, 0],
        [_HALF, -_HALF, 0, 0],
        [_HALF, 0, _HALF, 0],
        [_HALF, 0, -_HALF, 0],
    ]
)


@dataclass(frozen=True, kw_only=True)
class TurnCubeSettings:
    """Settings of the task, in rad, m and s.

    The tolerance, the time of 8 s per goal, and the reward by the change of the angle are those of "Learning Dexterous
    In-Hand Manipulation" (OpenAI, arXiv 1808.00177, section 4.2 and appendix C). All else is our choice.

    Attributes:
        object: name of the object, a cube.
        goal: name of the mocap body whose orientation is the goal; its place is of no importance.
        tolerance: angle between the object and the goal within which the orientation is right.
        hold: time for which it must be right.
        turn: range of the angle by which the goal is turned from the object's first orientation.
        upright: whether goals are turned about the vertical only; else about an axis of any direction.
        reach: distance of the object from its place in the home pose beyond which it counts as dropped.
        duration: length of an episode.
    """

    object: str
    goal: str
    tolerance: float = 0.4
    hold: float = 0.5
    turn: tuple[float, float] = (1.0, 3.14)
    upright: bool = False
    reach: float = 0.12
    duration: float = 8.0


class TurnCube(MilestonePhases, OwnTask):
    """Task to turn a cube in the hand to the orientation of a goal, without dropping it."""

    name = "turn_cube"

    def __init__(self, twin: Twin) -> None:
        """Prepare the task for a twin; see `OwnTask` and `settings.read_settings` for errors."""
        super().__init__(twin)
        self.settings = settings = self.read_settings(TurnCubeSettings)
        self.require_bodies(objects=[settings.object], targets=[settings.goal])
        self.instruction = f"Turn the {settings.object} in the hand to the orientation of the {settings.goal}."
        self._row = self.objects[settings.object].qpos
        self._place = twin.home()[0][self._row : self._row + 3]
        columns = state_columns(twin.model, int(mujoco.mjtState.mjSTATE_MOCAP_QUAT))
        self._goal_row = int(twin.model.body_mocapid[twin.model.body(settings.goal).id])
        self._goal = columns[4 * self._goal_row : 4 * self._goal_row + 4]

    def reset(self, params: ParamTable, *, run_seed: int, episodes: Sequence[int], attempt: int = 0) -> InitialState:
        """Return initial states: the cube above the palm with any face on top, and the goal turned from it."""
        initial = super().reset(params, run_seed=run_seed, episodes=episodes, attempt=attempt)
        chance = uniforms(run_seed, f"{self.name}/reset/turn", episodes, size=5, attempt=attempt)
        qpos, goals, rotation = initial.qpos.copy(), initial.mocap_quat.copy(), slice(self._row + 3, self._row + 7)
        tops = _TOPS[np.minimum((6 * chance[:, 0]).astype(int), 5)]
        quarter = 0.5 * np.pi * np.floor(4 * chance[:, 1])
        faces = quat_multiply(quat_from_rotation_vector(quarter[:, None] * [0.0, 0.0, 1.0]), tops)
        qpos[:, rotation] = quat_multiply(qpos[:, rotation], faces)
        low, high = self.settings.turn
        angle = low + (high - low) * chance[:, 2]
        height = np.sign(chance[:, 3] - 0.5) if self.settings.upright else 2.0 * chance[:, 3] - 1.0
        bearing, level = 2.0 * np.pi * chance[:, 4], np.sqrt(1.0 - height**2)
        axis = np.stack([level * np.cos(bearing), level * np.sin(bearing), height], axis=1)
        turned = quat_multiply(quat_from_rotation_vector(angle[:, None] * axis), qpos[:, rotation])
        goals[:, self._goal_row] = turned
        return replace(initial, qpos=qpos, mocap_quat=goals)

    def success(self, states: Array) -> NDArray[np.bool_]:
        """Return whether the orientation has been right for long enough, and the cube was never dropped."""
        right = (self.angle(states) <= self.settings.tolerance) & ~self.dropped(states)
        return self.kept(right, self.settings.hold)

    def progress(self, states: Array) -> Array:
        """Return how near the orientation is to the goal: 1 for success, less per rad, 0 once the cube is dropped.

        The change from step to step is the reward of the source, scaled to 1; a dropped cube costs all that was gained.
        """
        left = np.maximum(np.nan_to_num(self.angle(states), nan=np.pi) - self.settings.tolerance, 0.0)
        near = np.where(self.dropped(states), 0.0, 0.95 * (1.0 - left / np.pi))
        return np.where(self.success(states), 1.0, near)

    def milestones(self, states: Array) -> list[Milestone]:
        """Return the milestones of one episode, ``(T + 1, nstate)``: cube turned, and turned to the goal."""
        settings, angle = self.settings, self.angle(states)
        first = self._angle_between(self._rotation(states), self._rotation(states)[:1])
        fell = self.dropped(states[None])[0]
        ended = f"{angle[-1]:.2f} rad are left, the least was {np.nanmin(angle):.2f}; {settings.tolerance:g} are enough"
        if fell.any():
            at = int(np.argmax(fell)) / self.twin.control_hz
            failure, ended = "dropped", f"the {settings.object} left the hand at {at:.1f} s; {ended}"
        else:
            failure = "timeout"
        passed = self.success(states[None])[0]
        return [
            Milestone(phase="transport", passed=first > settings.tolerance, failure=failure, reason=ended),
            Milestone(phase="place", passed=passed, failure=failure, reason=ended),
        ]

    @property
    def environment_names(self) -> tuple[str, ...]:
        """Names of the values of `environment`."""
        thing, goal = self.settings.object, self.settings.goal
        columns = [f"{row}{column}" for column in "xy" for row in "xyz"]
        return (
            *(f"{thing}.{axis}" for axis in "xyz"),
            *(f"{thing}.rotation.{part}" for part in columns),
            *(f"{goal}.turn.{part}" for part in columns),
        )

    def environment(self, states: Array) -> Array:
        """Return the tracked values ``(…, 15)`` in recorded states ``(…, nstate)``.

        They are the position of the cube in m, the first two columns of its rotation matrix, and those of the rotation
        that turns it to the goal, in the world frame.
        """
        sound = np.nan_to_num(states, nan=0.0, posinf=0.0, neginf=0.0)
        thing = self._rotation(sound)
        turn = quat_multiply(sound[..., self._goal], thing * _INVERSE)
        matrices = [rotation_matrix(one)[..., :2] for one in (thing, turn)]
        columns = [one.swapaxes(-1, -2).reshape(*sound.shape[:-1], 6) for one in matrices]
        return np.concatenate([self.position(sound, self.settings.object), *columns], axis=-1)

    def angle(self, states: Array) -> Array:
        """Return the angle between the cube's orientation and the goal, ``(…)`` in rad, for states ``(…, nstate)``."""
        return self._angle_between(self._rotation(states), states[..., self._goal])

    def dropped(self, states: Array) -> NDArray[np.bool_]:
        """Return whether the cube has left the hand so far, ``(nworld, time)``."""
        away = np.linalg.norm(self.position(states, self.settings.object) - self._place, axis=-1)
        return occurred_before(~(away <= self.settings.reach))

    def _rotation(self, states: Array) -> Array:
        return self.qpos(states)[..., self._row + 3 : self._row + 7]

    @staticmethod
    def _angle_between(one: Array, other: Array) -> Array:
        return 2.0 * np.arccos(np.minimum(np.abs((one * other).sum(axis=-1)), 1.0))
