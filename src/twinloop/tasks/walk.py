"""Define the task to walk with a commanded velocity, on level ground and slopes, under pushes.

The command is the pose of the twin's mocap body ``command``: its position is the velocity in m/s, forwards and to the
left, and its heading is the turning rate in rad/s. The body therefore marks where the robot should be after one
second. A slope is a tilted gravity in front of level ground.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.params import ParamTable
from twinloop.simulate import InitialState
from twinloop.simulate.protocol import state_columns
from twinloop.tasks.milestones import Milestone, MilestonePhases
from twinloop.tasks.own import OwnTask
from twinloop.tasks.predicates import count_streak, occurred_before, running_maximum
from twinloop.tasks.reaching import heading, rotate_level
from twinloop.tasks.trot import Legs, TrotController
from twinloop.twin import Twin
from twinloop.twin.quantities.rotation import rotation_matrix

Array = NDArray[np.float64]

# All are our choice. The velocity is the mean of one second, about two strides. No command of the library's twins is
# slower than 0.4 m/s, so that a robot that stands still is wrong by twice the tolerance.
_MEAN_S, _HOLD_S = 1.0, 2.0
_SPEED, _RATE = 0.2, 0.3  # m/s, rad/s
_LOW, _TILTED = 0.5, 0.5  # a trunk that is lower than this share of its home height, or with this cosine of tilt, fell


@dataclass(frozen=True, kw_only=True)
class WalkSettings:
    """Settings of `Walk` in a twin's ``task.walk`` section.

    Attributes:
        trunk: name of the robot's free body.
        feet: names of the sites at the feet, for the expert: front right, front left, rear right, rear left.
        command: name of the mocap body whose pose is the command.
        duration: length of an episode in s.
    """

    trunk: str
    feet: list[str]
    command: str
    duration: float = 8.0


class Walk(MilestonePhases, OwnTask):
    """Task to walk with a commanded velocity and turning rate for two seconds, without a fall."""

    name = "walk"
    instruction = "Walk with the commanded velocity."
    first_phase = "start"

    def __init__(self, twin: Twin) -> None:
        """Prepare the task for a twin; see `OwnTask` and `settings.read_settings` for errors."""
        super().__init__(twin)
        self.settings = self.read_settings(WalkSettings)
        self.require_bodies(objects=[self.settings.trunk], targets=[self.settings.command])
        self._trunk = self.objects[self.settings.trunk]
        row, kinds = self._targets[self.settings.command], mujoco.mjtState
        self._turn = state_columns(twin.model, int(kinds.mjSTATE_MOCAP_QUAT))[4 * row : 4 * row + 4]
        self._time = state_columns(twin.model, int(kinds.mjSTATE_TIME))

    def expert(self, initial: InitialState) -> TrotController:  # noqa: ARG002 - it depends on the present state alone
        """Return the scripted expert, which trots.

        Raises:
            InputError: If the twin has other legs; see `trot.Legs.of`.
        """
        legs = Legs.of(self.twin, self.settings.trunk, self.settings.feet)
        base = self._trunk.qpos, self._trunk.qvel
        return TrotController(self.twin, legs, command=self._find_command, clock=int(self._time[0]), base=base)

    def memoryless_expert(
        self,
        initial: InitialState,
        params: ParamTable,  # noqa: ARG002
        *,
        believed: ParamTable | None = None,  # noqa: ARG002
    ) -> TrotController:
        """Return the same expert, which has no memory; see `tasks.protocol.LabellingTask`."""
        return self.expert(initial)

    def success(self, states: Array) -> NDArray[np.bool_]:
        """Return whether the mean velocity of each of the last two seconds was as commanded, and the robot never fell.

        The tolerances are 0.2 m/s and 0.3 rad/s.
        """
        return self.kept(self._is_on_speed(states), _HOLD_S)

    def progress(self, states: Array) -> Array:
        """Return the largest share of the two seconds for which the velocity was as commanded without a break."""
        streak = count_streak(self._is_on_speed(states))
        share = running_maximum(streak / (_HOLD_S * self.twin.control_hz + 1.0))
        return np.where(self.success(states), 1.0, share)

    @property
    def environment_names(self) -> tuple[str, ...]:
        """Names of the values of `environment`."""
        return (
            *(f"command.{value}" for value in ("forward", "left", "turn")),
            *(f"velocity.{value}" for value in ("forward", "left", "up")),
            *(f"rate.{axis}" for axis in "xyz"),
            *(f"up.{axis}" for axis in "xyz"),
            "height",
            *(f"clock.{part}" for part in ("cos", "sin")),
        )

    def environment(self, states: Array) -> Array:
        """Return the tracked values in recorded states ``(…, nstate)``.

        These are the command and the velocity in m/s and rad/s, the turning rates about the trunk's axes in rad/s, the
        vertical in the trunk's frame, the height of the trunk in m, and a clock of one turn per second.
        """
        sound = np.nan_to_num(states, nan=0.0, posinf=0.0, neginf=0.0)
        clock = 2.0 * np.pi * sound[..., self._time]
        motion = [self._find_command(sound), *self._find_motion(sound), self._find_up(sound)]
        return np.concatenate([*motion, self._find_height(sound)[..., None], np.cos(clock), np.sin(clock)], axis=-1)

    def milestones(self, states: Array) -> Sequence[Milestone]:
        """Return the milestones of one episode: on speed, and held; see `MilestonePhases`."""
        fallen = np.flatnonzero(self._is_fallen(states))
        failure, reason = "off_speed", f"never kept the commanded velocity for {_HOLD_S:g} s"
        if len(fallen):
            failure, reason = "fell", f"fell after {fallen[0] / self.twin.control_hz:.2f} s"
        conditions = {"walk": self._is_on_speed(states[None])[0], "keep": self.success(states[None])[0]}
        return [
            Milestone(phase=phase, passed=passed, failure=failure, reason=reason)
            for phase, passed in conditions.items()
        ]

    def _is_on_speed(self, states: Array) -> NDArray[np.bool_]:
        linear, rates = self._find_motion(states)
        up = self._find_up(states)
        turning = (rates * up).sum(axis=-1, keepdims=True)
        error = self._mean(np.concatenate([linear[..., :2], turning], axis=-1)) - self._find_command(states)
        near = (np.hypot(error[..., 0], error[..., 1]) <= _SPEED) & (np.abs(error[..., 2]) <= _RATE)
        sound = np.isfinite(states).all(axis=-1)
        return near & sound & ~occurred_before(self._is_fallen(states))

    def _mean(self, values: Array) -> Array:
        """Return the means of values ``(nworld, time, n)`` over the last second; NaN before."""
        count = round(_MEAN_S * self.twin.control_hz)
        total = np.cumsum(np.nan_to_num(values), axis=1)
        mean = np.full_like(total, np.nan)
        mean[:, count:] = (total[:, count:] - total[:, :-count]) / count
        return mean

    def _is_fallen(self, states: Array) -> NDArray[np.bool_]:
        return (self._find_height(states) < _LOW * self._trunk.rest_height) | (self._find_up(states)[..., 2] < _TILTED)

    def _find_command(self, states: Array) -> Array:
        """Return the commanded velocities forwards and to the left in m/s and turning rates in rad/s, ``(…, 3)``."""
        marker = self.position(states, self.settings.command)
        return np.concatenate([marker[..., :2], heading(states[..., self._turn])[..., None]], axis=-1)

    def _find_height(self, states: Array) -> Array:
        return self.qpos(states)[..., self._trunk.qpos + 2]

    def _find_up(self, states: Array) -> Array:
        """Return the world's vertical in the trunk's frame, ``(…, 3)``."""
        return rotation_matrix(self._find_orientation(states))[..., 2, :]

    def _find_orientation(self, states: Array) -> Array:
        return self.qpos(states)[..., self._trunk.qpos + 3 : self._trunk.qpos + 7]

    def _find_motion(self, states: Array) -> tuple[Array, Array]:
        """Return the velocity forwards, to the left and up in m/s, and the trunk's rates about its axes in rad/s."""
        qvel = self.qvel(states)[..., self._trunk.qvel : self._trunk.qvel + 6]
        level = rotate_level(qvel[..., :2], -heading(self._find_orientation(states)))
        return np.concatenate([level, qvel[..., 2:3]], axis=-1), qvel[..., 3:]
