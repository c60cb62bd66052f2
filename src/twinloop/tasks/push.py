"""Define the task to push an object to a target position or to a target pose with the closed hand."""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.simulate import InitialState
from twinloop.simulate.protocol import state_columns
from twinloop.tasks.milestones import Milestone, MilestonePhases
from twinloop.tasks.own import OwnTask
from twinloop.tasks.planar_pushing import Pushes
from twinloop.tasks.predicates import in_disc, running_maximum
from twinloop.tasks.push_settings import PushSettings
from twinloop.tasks.push_to_pose import PoseRules
from twinloop.tasks.reaching import BearingFrame, heading, nearest_turn
from twinloop.tasks.reactive import PresentState, Rule
from twinloop.tasks.waypoints import set_height
from twinloop.twin import Twin

Array = NDArray[np.float64]

_REST_S = 0.2  # s for which the object must stay on the target; our choice
# Shares of `behind`: how far the hand may be from its place behind the object when it goes down, how far from the line
# through object and target during a push, and how far a push aims beyond the place of contact.
_ABOVE, _ASIDE, _AHEAD = 0.25, 0.3, 0.8
_FAST, _PUSHING = 1.5, 0.5  # paces
_MOVED = 0.005  # m: an object that has moved so far was touched


class Push(MilestonePhases, OwnTask):
    """Task to push an object to a target pose or position, until it stays there."""

    name = "push"
    success_version = "push.success/2"
    expert_version = "push.expert/2"

    def __init__(self, twin: Twin) -> None:
        """Prepare the task for a twin.

        Raises:
            InputError: If a heading tolerance or a symmetry is not positive. See `OwnTask` and `settings.read_settings`
                for other errors.
        """
        super().__init__(twin)
        self.settings = settings = self.read_settings(PushSettings)
        self.require_bodies(objects=[settings.object], targets=[settings.target])
        self.instruction = f"Push the {settings.object} to the {settings.target}."
        self._mocap_quat = state_columns(twin.model, int(mujoco.mjtState.mjSTATE_MOCAP_QUAT))
        if settings.heading_tolerance is None:
            return
        if settings.heading_tolerance <= 0.0 or settings.symmetry < 1:
            raise InputError(
                f"task.push of the twin {twin.name} has heading_tolerance {settings.heading_tolerance:g} and symmetry "
                f"{settings.symmetry}. Give a tolerance above 0 rad, or leave it out for any heading, and a symmetry "
                "of 1 or more."
            )
        self.instruction = f"Push the {settings.object} to the {settings.target} and align it."

    def success(self, states: Array) -> NDArray[np.bool_]:
        """Return whether the object has been on the target for 0.2 s, for each recorded state.

        With a heading tolerance, the object must have the target's heading, too.
        """
        there = in_disc(*self._pair(states), self.settings.radius)
        if self.settings.heading_tolerance is not None:
            there = there & (np.abs(self.heading_error(states)) <= self.settings.heading_tolerance)
        return self.kept(there, _REST_S)

    def progress(self, states: Array) -> Array:
        """Return the largest share of the object's initial distance from the target that was covered so far.

        With a heading tolerance, it is the mean of this share and that of the initial heading error, at the same time.
        """
        (thing, target), settings = self._pair(states), self.settings
        covered = _covered(np.linalg.norm((thing - target)[..., :2], axis=-1), settings.radius)
        if settings.heading_tolerance is not None:
            covered = 0.5 * (covered + _covered(np.abs(self.heading_error(states)), settings.heading_tolerance))
        return np.where(self.success(states), 1.0, running_maximum(np.nan_to_num(covered)))

    def heading_error(self, states: Array) -> Array:
        """Return the object's heading minus the target's, ``(…)`` in rad in recorded states ``(…, nstate)``.

        The result is the smallest one over the object's equal turns.
        """
        row = self.objects[self.settings.object].qpos
        yaw = heading(self.qpos(states)[..., row + 3 : row + 7])
        return nearest_turn(yaw - self._target_heading(states), self.settings.symmetry)

    @property
    def environment_names(self) -> tuple[str, ...]:
        """Names of the values of `environment`: those of every task, and the target's heading if it counts."""
        if self.settings.heading_tolerance is None:
            return super().environment_names
        return (*super().environment_names, *(f"{self.settings.target}.heading.{part}" for part in ("cos", "sin")))

    def environment(self, states: Array) -> Array:
        """Return the tracked values ``(…, n)`` in recorded states ``(…, nstate)``."""
        if self.settings.heading_tolerance is None:
            return super().environment(states)
        yaw = np.nan_to_num(self._target_heading(states))[..., None]
        return np.concatenate([super().environment(states), np.cos(yaw), np.sin(yaw)], axis=-1)

    def milestones(self, states: Array) -> list[Milestone]:
        """Return the milestones of one episode, ``(T + 1, nstate)``: object touched, and on the target."""
        (thing, target), settings = self._pair(states), self.settings
        way = np.linalg.norm((thing - thing[0])[:, :2], axis=1)
        left = float(np.linalg.norm((thing - target)[-1, :2]))
        ended = f"the object ended {1000 * left:.0f} mm from the target; {1000 * settings.radius:.0f} mm are enough"
        if settings.heading_tolerance is not None:
            turned, allowed = np.degrees(abs(self.heading_error(states[-1]))), np.degrees(settings.heading_tolerance)
            ended += f"; its heading differed by {turned:.0f} degrees; {allowed:.0f} degrees are enough"
        return [
            Milestone(phase="transport", passed=way > _MOVED, failure="never_reached", reason="the object never moved"),
            Milestone(phase="retreat", passed=self.success(states[None])[0], failure="placed_off_target", reason=ended),
        ]

    def rules(self, initial: InitialState) -> list[Rule]:
        """Return the rules: above the place behind the object, down, along the line to the target, then up.

        With a heading tolerance, they are those of `PoseRules`, whose errors they raise.
        """
        settings, frame = self.settings, BearingFrame(self.arm.chain, self.arm.home)
        if settings.heading_tolerance is not None:
            return PoseRules(
                self.arm,
                Pushes.of(self.twin, settings.object),
                settings,
                row=self.objects[settings.object].qpos,
                goal=self.start(initial, settings.target),
                yaw=heading(initial.mocap_quat[:, self._targets[settings.target]]),
            ).rules()
        target, row = self.start(initial, settings.target), self.objects[settings.object].qpos

        def way(now: PresentState) -> Array:
            line = (target - now.body(row)) * [1.0, 1.0, 0.0]
            return line / np.maximum(np.linalg.norm(line, axis=1, keepdims=True), 1e-6)

        def point(now: PresentState, distance: float | Array, height: float) -> Array:
            """Return the tool's position with the fingers at a distance behind the object."""
            there = set_height(now.body(row) - distance * way(now), height)
            axes = frame.tool_axes(there, np.zeros(len(there)))
            offset = sum(part * axis for part, axis in zip(settings.fingers, axes, strict=True))
            return set_height(there - offset, height)

        def pushed(now: PresentState) -> Array:
            left = np.linalg.norm((target - now.body(row))[:, :2], axis=1, keepdims=True)
            return point(now, settings.behind * (1.0 - _AHEAD) - np.minimum(left, settings.behind), settings.low)

        def is_above(now: PresentState) -> NDArray[np.bool_]:
            miss = (point(now, settings.behind, 0.0) - now.tool)[:, :2]
            return np.linalg.norm(miss, axis=1) < _ABOVE * settings.behind

        def is_behind(now: PresentState) -> NDArray[np.bool_]:
            gap = (point(now, 0.0, 0.0) - now.tool) * [1.0, 1.0, 0.0]
            along = (gap * way(now)).sum(axis=1)
            aside = np.linalg.norm(gap - along[:, None] * way(now), axis=1)
            low = now.tool[:, 2] < settings.begin
            return (
                low
                & (aside < _ASIDE * settings.behind)
                & (along > 0.2 * settings.behind)
                & (along < 1.3 * settings.behind)
            )

        def over(now: PresentState) -> Array:
            raised = now.tool[:, 2:] > settings.high - 0.2 * (settings.high - settings.low)
            return np.where(raised, point(now, settings.behind, settings.high), set_height(now.tool, settings.high))

        def is_done(now: PresentState) -> NDArray[np.bool_]:
            return in_disc(now.body(row), target, 0.5 * settings.radius)

        def up(now: PresentState) -> Array:
            return set_height(now.tool, settings.high)

        return [
            Rule(name="done", when=is_done, position=up, grip=0.0),
            Rule(name="push", when=is_behind, position=pushed, grip=0.0, pace=_PUSHING),
            Rule(name="down", when=is_above, position=lambda now: point(now, settings.behind, settings.low), grip=0.0),
            Rule(name="over", when=lambda now: np.ones(len(now.tool), dtype=bool), position=over, grip=0.0, pace=_FAST),
        ]

    def _pair(self, states: Array) -> tuple[Array, Array]:
        return self.position(states, self.settings.object), self.position(states, self.settings.target)

    def _target_heading(self, states: Array) -> Array:
        row = 4 * self._targets[self.settings.target]
        return heading(states[..., self._mocap_quat][..., row : row + 4])


def _covered(error: Array, allowed: float) -> Array:
    """Return the share of the initial error beyond the allowed one that is gone, for errors ``(nworld, time)``."""
    left = error - allowed
    return np.clip(1.0 - left / np.maximum(left[:, :1], allowed), 0.0, 1.0)
