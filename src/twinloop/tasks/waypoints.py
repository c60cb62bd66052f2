"""Control an arm along waypoints of its tool, which is most of a scripted expert.

Between waypoints the tool moves on a straight line with a minimum-jerk profile. Differential inverse kinematics
computes joint positions from the line, and `ServoTracker` computes commands from them. Every operation is elementwise
over worlds or on one small matrix per world, so a world's commands depend on that world alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError
from twinloop.simulate import InitialState, Simulation
from twinloop.simulate.arrays import HOST, ArrayLibrary
from twinloop.tasks.arm import Arm, ServoTracker, column_order
from twinloop.tasks.hand import GripperHand
from twinloop.tasks.reaching import BearingFrame, ToolFrame, joint_step, position_error, tool_error

_ARRIVED = 0.003  # m: a tool closer than this to its reference has arrived
_PACE = 0.8  # mean speed of a path in reaches (horizontal distance of the tool at home from the base) per second
_LEAST_SPEED = 0.05  # m/s, for arms whose tool at home is above the base; our choice
_TURN_SPEED = 1.0  # rad/s: mean speed of turning the hand about its approach
_JOINT_SPEED = 2.5  # rad/s; the STS3215 at 7.4 V turns 5.9 rad/s unloaded, the Panda's joints 2.2 to 2.6 (makers)
_STROKE_TIME = 0.3  # s for the hand's command from open to closed


@dataclass(frozen=True, kw_only=True)
class ToolState:
    """Present state of all worlds when some of them begin a waypoint, from which a waypoint computes its goal.

    It has a row for each world of the batch. In a world that does not begin the waypoint, the computed goal is not
    used, but must not be an error.

    Attributes:
        qpos: measured positions of all joints and free bodies, ``(nworld, nq)`` in rad or m, in MuJoCo's order.
        tool: position of the tool on its path, ``(nworld, 3)`` in m in the world frame.
        turn: additional rotation of the tool about the vertical, ``(nworld,)`` in rad.
    """

    qpos: NDArray[np.float64]
    tool: NDArray[np.float64]
    turn: NDArray[np.float64]

    def body(self, row: int) -> NDArray[np.float64]:
        """Return positions of the free body whose pose begins at index ``row`` of qpos, ``(nworld, 3)`` in m."""
        return self.qpos[:, row : row + 3]


Goal = Callable[[ToolState], NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True)
class Waypoint:
    """Goal of one motion of the tool.

    ``position`` and ``turn`` may be functions. A function is called when a world begins the motion, not in every
    control step, with the present state of all worlds. It returns one row per world: ``(nworld, 3)`` for a position,
    ``(nworld,)`` for a turn. ``lambda now: now.tool + [0, 0, 0.05]`` lifts the tool by 5 cm. A row must depend on the
    state of its own world only.

    Attributes:
        name: name of the phase that ends at the waypoint.
        position: position of the tool, ``(3,)`` or ``(nworld, 3)`` in m in the world frame, or a function that computes
            it from a `ToolState`. None: the tool stays where it is.
        turn: rotation about the vertical in addition to that of the frame, in rad: a number, ``(nworld,)`` or a
            function. None: as before.
        gripper: command of the gripper, or None for the previous one; ``home`` is the command of the home pose.
        seconds: shortest duration of the motion.
        patience: longest wait for the tool to arrive after the motion, in s.
        pace: speed relative to the usual one, in which a motion across the arm's reach takes 1.25 s.
        until: condition ``(nworld,)`` on the present state, before which the motion does not end; None for none. It can
            wait for another arm.
    """

    name: str
    position: ArrayLike | Goal | None = None
    turn: ArrayLike | Goal | None = None
    gripper: Literal["open", "closed", "home"] | None = None
    seconds: float = 0.5
    patience: float = 0.4
    pace: float = 1.0
    until: Callable[[ToolState], NDArray[np.bool_]] | None = None


class WaypointExpert:
    """Scripted controller that moves the tool of an arm from waypoint to waypoint, and holds it at the last one.

    Args:
        arm: the arm.
        initial: initial states of the worlds.
        waypoints: the waypoints in order.
        frame: orientation of the tool at a position; by default that of the home pose, turned with the direction from
            the base to the tool, which arms of five joints can reach, too. None leaves the orientation free.
        hand: the gripper; by default that of the twin. Without one, commands of the gripper are ignored.
        arrays: library of the arrays in `simulation.qpos` and in the returned commands, for example NumPy.

    Attributes:
        driven: indices of the commands that the expert sets; it keeps the others.

    Raises:
        InputError: If there are no waypoints, or the gripper cannot be used; see `GripperHand.of`.
    """

    def __init__(
        self,
        arm: Arm,
        initial: InitialState,
        waypoints: Sequence[Waypoint],
        *,
        frame: ToolFrame | Literal["home"] | None = "home",
        hand: GripperHand | None = None,
        arrays: ArrayLibrary = HOST,
    ) -> None:
        if not waypoints:
            raise InputError("An expert needs one waypoint or more.")
        if hand is None and arm.twin.robot.gripper is not None and any(waypoint.gripper for waypoint in waypoints):
            hand = GripperHand.of(arm.twin)
        self._arm, self._hand, self._waypoints = arm, hand, tuple(waypoints)
        self._frame = BearingFrame(arm.chain, arm.home) if frame == "home" else frame
        self._arrays, self._xp = arrays, arrays.xp
        self._convert_settings()
        self._begin(initial)

    def _convert_settings(self) -> None:
        chain, hz, there = self._arm.chain, self._arm.twin.control_hz, self._arrays.asarray
        self._posture = there(self._arm.home[chain.qpos])
        self._limits, self._joints = there(chain.limits), there(chain.qpos)
        self._speed = tool_speed(self._arm) / hz  # m per control step; below, time is in control steps
        self._turn_step, self._joint_step = _TURN_SPEED / hz, _JOINT_SPEED / hz
        self._least, self._patience, self._pace = (
            there(np.array([getattr(waypoint, name) for waypoint in self._waypoints]) * factor)
            for name, factor in (("seconds", hz), ("patience", hz), ("pace", 1.0))
        )
        self.driven = self._arm.servo.actuators
        if self._hand is not None:
            self._finger_step = abs(self._hand.open - self._hand.closed) / (_STROKE_TIME * hz)
            self._fingers = there(np.array(_finger_commands(self._waypoints, self._hand, self._arm.home_command)))
            self.driven = np.array([*self.driven, self._hand.actuator])

    def _begin(self, initial: InitialState) -> None:
        arm, chain, there, n = self._arm, self._arm.chain, self._arrays.asarray, initial.nworld
        self._command = there(initial.command)
        self._columns = there(column_order(initial.command.shape[1], self.driven))
        self._reference = there(initial.qpos[:, chain.qpos])
        self._planned = chain.pose(self._reference)
        self._tracker = ServoTracker(
            arm.servo,
            command=there(initial.command[:, arm.servo.actuators]),
            reference=self._reference,
            gravity=chain.gravity_torques(self._planned),
            max_step=self._joint_step,
        )
        self._phase = there(np.full(n, -1))
        self._elapsed, self._duration = there(np.zeros(n)), there(np.zeros(n))
        self._start, self._goal = self._planned.position, self._planned.position
        self._turns = there(np.zeros((n, 2)))  # rad, the tool's rotation at the path's start and end

    def __call__(self, simulation: Simulation) -> NDArray[np.float64]:
        """Return the commands of the next control step, ``(nworld, nu)``."""
        xp, chain = self._xp, self._arm.chain
        qpos = xp.where(xp.isfinite(simulation.qpos), simulation.qpos, 0.0)  # a diverged world is marked elsewhere
        measured = qpos[:, self._joints]
        jacobian = chain.jacobian(self._planned)
        miss = xp.matmul(jacobian[:, :3], (measured - self._reference)[..., None])[..., 0]
        self._change_phase(qpos, xp.sqrt(xp.sum(miss * miss, axis=1)))
        self._elapsed = self._elapsed + 1.0
        before = self._reference
        step = self._follow_path(jacobian)
        arm = self._tracker.command(
            reference=before,
            step=step,
            measured=measured,
            target=self._reference,
            gravity=chain.gravity_torques(self._planned),
        )
        finger = [] if self._hand is None else [self._finger_command(self._hand)[:, None]]
        self._command = xp.take(xp.concat([arm, *finger, self._command], axis=1), self._columns, axis=1)
        return self._command

    def _follow_path(self, jacobian: NDArray[np.float64]) -> NDArray[np.float64]:
        """Move the reference (required joint positions) along the path by one control step; return its change.

        The change is ``(nworld, k)`` for k joints. ``jacobian`` ``(nworld, 6, k)`` is the tool's at the reference.
        """
        xp, chain = self._xp, self._arm.chain
        fraction = minimum_jerk(xp.minimum(self._elapsed / self._duration, 1.0))
        position = self._start + fraction[:, None] * (self._goal - self._start)
        turn = self._turns[:, 0] + fraction * (self._turns[:, 1] - self._turns[:, 0])
        if self._frame is None:
            error = position_error(self._planned, position)
        else:
            error = tool_error(self._planned, position, self._frame.tool_axes(position, turn))
        step = joint_step(jacobian, error, self._posture - self._reference)
        wanted = self._reference + xp.clip(step, -self._joint_step, self._joint_step)
        wanted = xp.clip(wanted, self._limits[:, 0], self._limits[:, 1])
        step = wanted - self._reference
        self._reference = wanted
        self._planned = chain.pose(wanted)
        return step

    def _finger_command(self, hand: GripperHand) -> NDArray[np.float64]:
        xp, now = self._xp, self._command[:, hand.actuator]
        aim = xp.take(self._fingers, self._phase)
        return now + xp.clip(aim - now, -self._finger_step, self._finger_step)

    def _change_phase(self, qpos: NDArray[np.float64], miss: NDArray[np.float64]) -> None:
        """Start the next phase, from the current reference, in worlds whose phase has ended.

        Args:
            qpos: positions of the worlds, ``(nworld, nq)``.
            miss: distance of the tool from its reference, ``(nworld,)`` in m.
        """
        xp = self._xp
        late = self._elapsed - self._duration
        done = (late >= 0.0) & ((miss < _ARRIVED) | (late >= xp.take(self._patience, self._phase)))
        done = self._hold_back(done, qpos)
        done = (done & (self._phase < len(self._waypoints) - 1)) | (self._phase < 0)
        if self._arrays.on_host and not xp.any(done):  # on a device this test would wait for the result
            return
        self._phase = xp.where(done, self._phase + 1, self._phase)
        start, turned = self._planned.position, self._turns[:, 1]
        goal, turn = self._phase_goals(ToolState(qpos=qpos, tool=start, turn=turned))
        way = goal - start
        speed = self._speed * xp.take(self._pace, self._phase)
        travel = xp.maximum(xp.sqrt(xp.sum(way * way, axis=1)) / speed, xp.abs(turn - turned) / self._turn_step)
        duration = xp.maximum(xp.round(xp.maximum(xp.take(self._least, self._phase), travel)), 1.0)
        self._elapsed = xp.where(done, 0.0, self._elapsed)
        self._duration = xp.where(done, duration, self._duration)
        self._start = xp.where(done[:, None], start, self._start)
        self._goal = xp.where(done[:, None], goal, self._goal)
        self._turns = xp.where(done[:, None], xp.stack([turned, turn], axis=1), self._turns)

    def _hold_back(self, done: NDArray[np.bool_], qpos: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return ``done`` without the worlds whose waypoint waits for a condition that does not hold yet."""
        for number, waypoint in enumerate(self._waypoints):
            if waypoint.until is not None:
                now = ToolState(qpos=qpos, tool=self._planned.position, turn=self._turns[:, 1])
                done = done & ((self._phase != number) | waypoint.until(now))
        return done

    def _phase_goals(self, now: ToolState) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the tool's position ``(nworld, 3)`` and turn ``(nworld,)`` at the end of each world's phase."""
        goal, turn = now.tool, now.turn
        for number, waypoint in enumerate(self._waypoints):
            chosen = self._phase == number
            if waypoint.position is not None:
                found = self._evaluate(waypoint, "position", now, goal)
                goal = self._xp.where(chosen[:, None], found, goal)
            if waypoint.turn is not None:
                turn = self._xp.where(chosen, self._evaluate(waypoint, "turn", now, turn), turn)
        return goal, turn

    def _evaluate(
        self, waypoint: Waypoint, part: Literal["position", "turn"], now: ToolState, like: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return a waypoint's position or turn in all worlds, in the shape of ``like`` or of one of its rows.

        Raises:
            InputError: If it has another shape, or its function fails with an error of shapes or indices.
        """
        goal, shape = getattr(waypoint, part), tuple(like.shape)
        try:
            found: Any = goal(now) if callable(goal) else goal
            if not callable(goal) or not hasattr(found, "shape"):  # else already an array of the library
                found = self._arrays.asarray(np.asarray(found, dtype=np.float64))
        except (ValueError, IndexError) as error:
            raise InputError(
                f"The {part} of the waypoint {waypoint.name!r} cannot be computed: {error}. Its function gets arrays "
                f"with one row for each of {shape[0]} worlds (now.tool {tuple(now.tool.shape)}, now.turn "
                f"{tuple(now.turn.shape)}, now.qpos {tuple(now.qpos.shape)}), and returns the shape {shape}."
            ) from error
        if tuple(found.shape) not in (shape, shape[1:]):
            raise InputError(
                f"The {part} of the waypoint {waypoint.name!r} has the shape {tuple(found.shape)}, but needs {shape}: "
                f"one row for each of {shape[0]} worlds. Select columns by [:, i], not by [i]."
            )
        return found


def tool_speed(arm: Arm) -> float:
    """Return the usual speed of an arm's tool in m/s, with which a motion across the arm's reach takes 1.25 s."""
    home = arm.chain.pose(arm.home[None, arm.chain.qpos])
    reach = float(np.hypot(*(home.position - home.anchors[:, 0])[0, :2]))
    return max(_PACE * reach, _LEAST_SPEED)


def minimum_jerk(fraction: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the minimum-jerk profile from 0 to 1 (Flash and Hogan, "The coordination of arm movements", 1985)."""
    return fraction * fraction * fraction * (10.0 + fraction * (6.0 * fraction - 15.0))


def set_height(position: NDArray[np.float64], height: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """Return positions ``(nworld, 3)`` with their z replaced by ``height``, a number or ``(nworld,)``, in m."""
    xp = array_namespace(position)
    return xp.stack([position[:, 0], position[:, 1], 0.0 * position[:, 2] + height], axis=1)


def _finger_commands(
    waypoints: Sequence[Waypoint], hand: GripperHand, home_command: NDArray[np.float64]
) -> list[float]:
    """Return the gripper's command at each waypoint; a waypoint without one has that of the previous waypoint."""
    values = {"open": hand.open, "closed": hand.closed, "home": float(home_command[hand.actuator])}
    commands, last = [], values["home"]
    for waypoint in waypoints:
        last = values[waypoint.gripper] if waypoint.gripper else last
        commands.append(last)
    return commands
