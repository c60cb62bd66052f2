"""Drive a robot through an excitation plan: slow approach, monitored motion within limits, and rest at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from twinloop.core.errors import InputError
from twinloop.core.records import Episode
from twinloop.hardware.excite import ExcitationPlan
from twinloop.hardware.excite_guard import GuardedRobot, GuardOptions, stop_on_signals
from twinloop.hardware.limits import ClearanceCheck
from twinloop.hardware.protocol import Robot
from twinloop.hardware.record import command_kind, record, record_images
from twinloop.hardware.teleop_motion import interpolate_minimum_jerk

Array = NDArray[np.float64]
OnAbort = Literal["hold", "return"]
TASK = "excitation"
# Share of the speed limit: 0.5 rad/s for the SO-101, slow enough for a person to step back.
_SLOWLY = 1.0 / 6.0
_REST_S = 1.0  # rest at the start before recording, until the arm stops swinging
_PATH = 20  # number of poses to check on the way to the start
_LEAST_FRAMES = 2


@dataclass(frozen=True, kw_only=True)
class ExcitationRecording:
    """Episodes recorded during an excitation.

    Attributes:
        episodes: the recorded episodes; if the excitation was stopped, the last one ends at the stop.
        images: for each episode, the images of each camera at each control step, ``(T, height, width, 3)``.
        reason: why the excitation was stopped, or "".
    """

    episodes: tuple[Episode, ...]
    images: tuple[Mapping[str, NDArray[np.uint8]], ...] = ()
    reason: str = ""

    @property
    def completed(self) -> bool:
        """Whether the excitation reached its end without a stop."""
        return not self.reason


def excite(
    robot: Robot,
    plan: ExcitationPlan,
    *,
    repeat: int | None = None,
    first: int = 0,
    task: str = TASK,
    guard: GuardOptions | None = None,
    on_abort: OnAbort = "hold",
    clearance: ClearanceCheck | None = None,
    progress: Callable[[str], object] = lambda _: None,
) -> ExcitationRecording:
    """Drive a connected robot through an excitation plan, and record one episode per repetition.

    If a condition for a stop is met or the robot fails, the excitation ends. The result then has the data up to the
    stop, and the reason.

    Args:
        robot: connected robot with the plan's joints.
        plan: the excitation plan.
        repeat: number of repetitions; by default the plan's.
        first: number of the first episode.
        task: task text of the episodes.
        guard: conditions for a stop; by default those of `GuardOptions`.
        on_abort: after a stop, hold the present pose or return slowly to the start.
        clearance: check of the path to the start for collisions in the twin; None to skip it.
        progress: function that is called with progress messages.

    Raises:
        InputError: If the robot has other joints or another kind of command, or the path to the start is blocked.
        RobotLostError: If the robot does not answer the first reading.
    """
    require_matching_robot(robot, plan)
    guarded = GuardedRobot(robot, plan, guard or GuardOptions())
    kept: list[tuple[Episode, Mapping[str, NDArray[np.uint8]]]] = []
    with stop_on_signals(guarded):
        for number in range(first, first + (plan.repeat if repeat is None else repeat)):
            _drive_to_start(guarded, plan, clearance)
            if guarded.reason:
                break
            commands = guarded.guarded_commands(plan.commands)
            episode, images = record_images(guarded.robot, commands, plan.hz, index=number, task=task)
            selected = _select_episode(episode, guarded)
            if selected is not None:
                kept.append((selected, {name: frames[: len(selected)] for name, frames in images.items()}))
            progress(f"episode {number}: {guarded.reason or f'{episode.time[-1]:.1f} s, {len(episode)} frames'}")
            if guarded.reason:
                break
        if guarded.reason and not guarded.lost:
            _come_to_rest(guarded, plan, on_abort)
    return ExcitationRecording(
        episodes=tuple(episode for episode, _ in kept),
        images=tuple(images for _, images in kept),
        reason=guarded.reason,
    )


def require_matching_robot(robot: Robot, plan: ExcitationPlan) -> None:
    """Raise an error for a robot with other joints or another kind of command than the plan.

    Raises:
        InputError: If joints or commands differ. The message names those of the robot and of the plan.
    """
    if robot.units.names != plan.joints:
        raise InputError(
            f"This plan was made for the joints {', '.join(plan.joints)}; {robot.origin} has "
            f"{', '.join(robot.units.names)}. Make a plan with this robot's twin."
        )
    if command_kind(robot) != plan.control:
        raise InputError(
            f"This plan commands {plan.control}s; {robot.origin} takes {', '.join(robot.action_features)}."
        )


def approach_commands(plan: ExcitationPlan, start: Array) -> Array:
    """Return slow commands ``(T, n)`` from the robot's position ``start`` to the plan's start, and a rest there.

    Positions and commands are in rad or m, for T control steps and n joints.
    """
    seconds = max(0.5, float(np.max(1.875 * np.abs(plan.home - start) / (_SLOWLY * plan.limits.speed))))
    time = np.arange(round((seconds + _REST_S) * plan.hz)) / plan.hz
    return interpolate_minimum_jerk([0.0, seconds, seconds + 2 * _REST_S], [start, plan.home, plan.home], time)


def _drive_to_start(guarded: GuardedRobot, plan: ExcitationPlan, clearance: ClearanceCheck | None) -> None:
    guarded.get_observation()
    if guarded.reason:
        return
    if plan.control != "position":
        rest = np.tile(plan.home, (round(_REST_S * plan.hz), 1))
        record(guarded.robot, guarded.guarded_commands(rest), plan.hz)
        return
    here = guarded.positions()
    guarded.clear_last_command()
    way = here + np.linspace(0.0, 1.0, _PATH)[1:, None] * (plan.home - here)
    touched = clearance.find_first_contact(way) if clearance is not None else None
    if touched is not None:
        raise InputError(
            f"On the straight path from the robot's pose to the plan's start, {touched[1]} come within the clearance. "
            "Move the robot by hand nearer to its home, and start again."
        )
    record(guarded.robot, guarded.guarded_commands(approach_commands(plan, here)), plan.hz)


def _select_episode(episode: Episode, guarded: GuardedRobot) -> Episode | None:
    """Return the episode to store, or None if it is too short.

    If the excitation was stopped, the episode's task text gives the reason, and the frame at which the robot was lost
    is left out.
    """
    if not guarded.reason:
        return episode
    count = len(episode) - int(guarded.lost)
    if count < _LEAST_FRAMES:
        return None
    part = {name: getattr(episode, name)[:count] for name in ("time", "action", "state")}
    return replace(episode, task=f"{episode.task}, cut short: {guarded.reason}", **part)


def _come_to_rest(guarded: GuardedRobot, plan: ExcitationPlan, on_abort: OnAbort) -> None:
    """Hold the robot's position after a stop, or bring it back to the start slowly if ``on_abort`` is ``return``.

    Otherwise, command zero velocity or torque.
    """
    why, guarded.reason = guarded.reason, ""
    try:
        guarded.get_observation()
        here = guarded.rest_position() if plan.control == "position" else plan.home
        rows = approach_commands(plan, here) if on_abort == "return" and plan.control == "position" else here[None]
        guarded.clear_last_command()
        record(guarded.robot, guarded.guarded_commands(rows), plan.hz)
    finally:
        guarded.reason = why
