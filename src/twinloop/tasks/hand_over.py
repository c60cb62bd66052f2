"""Define the task to hand a bar from one arm of a robot to its other one, and to put it on a target there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.simulate import InitialState, Simulation
from twinloop.tasks.arm import Arm
from twinloop.tasks.hand import GripperHand
from twinloop.tasks.handling import LIFTED, REST_S, REST_SPEED, REST_SPIN
from twinloop.tasks.milestones import Milestone, MilestonePhases
from twinloop.tasks.own import OwnTask
from twinloop.tasks.predicates import in_disc, occurred_before, running_maximum, slower_than
from twinloop.tasks.reaching import GraspFrame, heading
from twinloop.tasks.waypoints import ToolState, Waypoint, WaypointExpert, set_height
from twinloop.twin import Twin

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

_LOOSE, _FIRM = 0.8, 0.6  # shares of the opening above which a hand has let the bar go, and below which it holds it
_AT_MEETING = 0.02  # m from the meeting place within which the other arm comes for the bar
_HOVER = 0.08  # m above a grasp
_DROP = 0.002  # m: the bar is let go at this height above the table


@dataclass(frozen=True, kw_only=True)
class HandOverSettings:
    """Settings of the task, in m and s; our choice, no published values.

    Attributes:
        object: name of the bar, whose length is along its x axis.
        target: name of the target's mocap body, on the side of the receiver.
        giver: name of the hand in ``robot.hands`` that picks the bar up; "" for the robot's main hand.
        receiver: name of the hand that takes it.
        meeting: place of the bar's centre when it is handed over.
        grip: distance of each hand from the bar's centre, along its length.
        radius: largest distance of the bar's centre from the target.
        duration: length of an episode.
    """

    object: str
    target: str
    giver: str
    receiver: str
    meeting: tuple[float, float, float]
    grip: float
    radius: float = 0.03
    duration: float = 14.0


@dataclass(frozen=True, kw_only=True)
class _Side:
    """One arm with its hand; ``away`` is +1 if the arm takes the bar's end at larger x in the meeting place."""

    arm: Arm
    hand: GripperHand
    away: float

    @classmethod
    def of(cls, twin: Twin, name: str, meeting: Array) -> _Side:
        arm = Arm(twin, name)
        base = arm.chain.pose(arm.home[None, arm.chain.qpos]).anchors[0, 0]
        return cls(arm=arm, hand=GripperHand.of(twin, name), away=float(np.sign(base[0] - meeting[0])) or 1.0)

    def gap(self, qpos: Array, place: Array) -> Array:
        """Return the distance of the tool from a place ``(…, 3)``, ``(…)`` in m."""
        return np.linalg.norm(self.arm.chain.tool_position(qpos) - place, axis=-1)


class HandOver(MilestonePhases, OwnTask):
    """Task to hand a bar from one arm to the other, which puts it on a target and lets it go."""

    name = "hand_over"

    def __init__(self, twin: Twin) -> None:
        """Prepare the task for a twin; see `OwnTask`, `Arm` and `settings.read_settings` for errors."""
        super().__init__(twin)
        self.settings = self.read_settings(HandOverSettings)
        self.require_bodies(objects=[self.settings.object], targets=[self.settings.target])
        self._meeting = np.array(self.settings.meeting)
        self._giver, self._receiver = (
            _Side.of(twin, name, self._meeting) for name in (self.settings.giver, self.settings.receiver)
        )
        self._bar = self.objects[self.settings.object]
        self.instruction = f"Hand the {self.settings.object} over and put it on the {self.settings.target}."

    def success(self, states: Array) -> Mask:
        """Return whether the bar rests on the target, after each arm held it alone in the air, for each state."""
        settings = self.settings
        bar = self.position(states, settings.object)
        there = in_disc(bar, self.position(states, settings.target), settings.radius)
        low = np.abs(bar[..., 2] - self._bar.rest_height) < LIFTED / 2
        still = slower_than(self.qvel(states)[..., self._bar.qvel : self._bar.qvel + 6], REST_SPEED, REST_SPIN)
        free = self._receiver.hand.opening_share(self.qpos(states)) > _LOOSE
        placed = self.kept(there & low & still & free, REST_S)
        given, taken = self._held_alone(states)
        return placed & occurred_before(taken & occurred_before(given))

    def progress(self, states: Array) -> Array:
        """Return the share of the milestones so far: held by the giver, held by the receiver, near the target."""
        given, taken = (occurred_before(held) for held in self._held_alone(states))
        bar, target = (self.position(states, name) for name in (self.settings.object, self.settings.target))
        away = np.linalg.norm((bar - target)[..., :2], axis=-1)
        near = running_maximum(1.0 - away / np.maximum(away[:, :1], self.settings.radius))
        share = (given + (given & taken) + np.nan_to_num(near)) / 3.0
        return np.where(self.success(states), 1.0, 0.95 * running_maximum(share))

    def milestones(self, states: Array) -> list[Milestone]:
        """Return the milestones of one episode, ``(T + 1, nstate)``: lifted, taken over, and put on the target."""
        given, taken = self._held_alone(states)
        bar, target = (self.position(states, name) for name in (self.settings.object, self.settings.target))
        left = 1000 * float(np.linalg.norm((bar - target)[-1, :2]))
        return [
            Milestone(phase="lift", passed=given, failure="grasp_missed", reason="the first arm never lifted the bar"),
            Milestone(
                phase="transport", passed=taken, failure="dropped", reason="the other arm never held the bar alone"
            ),
            Milestone(
                phase="retreat",
                passed=self.success(states[None])[0],
                failure="placed_off_target",
                reason=f"the bar ended {left:.0f} mm from the target; {1000 * self.settings.radius:.0f} mm are enough",
            ),
        ]

    def expert(self, initial: InitialState) -> _TwoArms:
        """Return the scripted expert for worlds that start in ``initial``: each arm waits for the other one."""
        return _TwoArms(self._give(initial), self._take(initial))

    def _give(self, initial: InitialState) -> WaypointExpert:
        side, other, settings = self._giver, self._receiver, self.settings
        frame = GraspFrame(side.arm.chain, side.hand, side.arm.home)
        row, n = self._bar.qpos, initial.nworld
        yaw = heading(initial.qpos[:, row + 3 : row + 7])
        along = np.stack([np.cos(yaw), np.sin(yaw), 0.0 * yaw], axis=1)
        end = initial.qpos[:, row : row + 3] + side.away * settings.grip * along
        above = set_height(end, end[:, 2] + _HOVER)
        meet = np.tile(self._meeting + np.array([side.away * settings.grip, 0.0, 0.0]), (n, 1))
        turn = frame.alignment_turn(end, yaw + np.pi / 2, np.pi)  # the jaws are on both sides of the bar
        across = frame.alignment_turn(meet, np.full(n, np.pi / 2), np.pi)

        def is_taken(now: ToolState) -> Mask:
            return (other.hand.opening_share(now.qpos) < _FIRM) & (
                other.gap(now.qpos, now.body(row)) < 1.5 * settings.grip
            )

        return self._follow(side, frame, initial, [
            Waypoint(name="approach", position=above, turn=turn, gripper="open", patience=0.7),
            Waypoint(name="descend", position=end, patience=0.8),
            Waypoint(name="close", gripper="closed", seconds=0.6, patience=0.0),
            Waypoint(name="lift", position=lambda now: set_height(now.tool, float(self._meeting[2])), patience=0.2),
            Waypoint(name="bring", position=meet, turn=across, patience=0.6),
            Waypoint(name="give", until=is_taken),
            Waypoint(name="hold", seconds=0.5),
            Waypoint(name="open", gripper="open", seconds=0.4, patience=0.0),
            Waypoint(name="retreat", position=lambda now: set_height(now.tool, now.tool[:, 2] + _HOVER)),
            Waypoint(name="home", position=side.arm.home_position, gripper="open", patience=np.inf),
        ])  # fmt: skip

    def _take(self, initial: InitialState) -> WaypointExpert:
        side, other, settings = self._receiver, self._giver, self.settings
        frame = GraspFrame(side.arm.chain, side.hand, side.arm.home)
        row, n = self._bar.qpos, initial.nworld
        target = self.start(initial, settings.target)
        end = self._meeting + np.array([side.away * settings.grip, 0.0, 0.0])
        above = end + np.array([0.0, 0.0, _HOVER])
        across = frame.alignment_turn(np.tile(end, (n, 1)), np.full(n, np.pi / 2), np.pi)

        def is_there(now: ToolState) -> Mask:
            return np.linalg.norm(now.body(row) - self._meeting, axis=1) < _AT_MEETING

        def grasp(now: ToolState) -> Array:
            return now.body(row) + np.array([side.away * settings.grip, 0.0, 0.0])

        def over(now: ToolState) -> Array:
            return set_height(now.tool + target - now.body(row), float(self._meeting[2]))

        def put(now: ToolState) -> Array:
            rise = now.body(row)[:, 2] - target[:, 2] - self._bar.rest_height - _DROP
            return set_height(now.tool + target - now.body(row), now.tool[:, 2] - rise)

        return self._follow(side, frame, initial, [
            Waypoint(name="wait", position=above, turn=across, gripper="open", until=is_there),
            Waypoint(name="settle", seconds=0.4),
            Waypoint(name="descend", position=grasp, patience=0.8),
            Waypoint(name="close", gripper="closed", seconds=0.8, patience=0.0),
            Waypoint(name="take", until=lambda now: other.hand.opening_share(now.qpos) > _LOOSE),
            Waypoint(name="settle", seconds=0.3),
            Waypoint(name="carry", position=over, patience=0.6),
            Waypoint(name="lower", position=put, pace=0.5, patience=0.8),
            Waypoint(name="open", gripper="open", seconds=0.4, patience=0.0),
            Waypoint(name="retreat", position=lambda now: set_height(now.tool, now.tool[:, 2] + _HOVER)),
            Waypoint(name="home", position=side.arm.home_position, gripper="open", patience=np.inf),
        ])  # fmt: skip

    def _follow(
        self, side: _Side, frame: GraspFrame, initial: InitialState, waypoints: list[Waypoint]
    ) -> WaypointExpert:
        return WaypointExpert(side.arm, initial, waypoints, frame=frame, hand=side.hand)

    def _held_alone(self, states: Array) -> tuple[Mask, Mask]:
        """Return whether the bar is in the air in the giver's hand alone, and in the receiver's, ``(…)`` each."""
        qpos = np.nan_to_num(self.qpos(states))
        bar = self.position(states, self.settings.object)
        high = bar[..., 2] - self._bar.rest_height >= LIFTED
        holds = [
            high & (side.hand.opening_share(qpos) < _FIRM) & (side.gap(qpos, bar) < 1.5 * self.settings.grip)
            for side in (self._giver, self._receiver)
        ]
        return holds[0] & ~holds[1], holds[1] & ~holds[0]


class _TwoArms:
    """Controller that merges the commands of two arms."""

    def __init__(self, giver: WaypointExpert, receiver: WaypointExpert) -> None:
        self._giver, self._receiver = giver, receiver

    def __call__(self, simulation: Simulation) -> Array:
        """Return the commands of the next control step, ``(nworld, nu)``."""
        command, other = self._giver(simulation), self._receiver(simulation)
        columns = self._receiver.driven
        command = command.copy()
        command[:, columns] = other[:, columns]
        return command
