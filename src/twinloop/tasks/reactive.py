"""Control an arm by rules on the present state: an expert without memory.

A scripted expert with a clock of its own (see `waypoints`) has no command for a state that it has not reached itself.
This expert computes a command from the present state of a world and from the commands that are still on
their way to the motors. It can therefore label every state that a policy visits (Ross, Gordon & Bagnell, "A reduction
of imitation learning and structured prediction to no-regret online learning", AISTATS 2011).

Its rules are those of a teleo-reactive program (Nilsson, "Teleo-reactive programs for agent control", JAIR 1994): the
first rule whose condition holds gives the goal of the tool. Every operation is elementwise over worlds or on one small
matrix per world, so a world's commands depend on that world alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinloop.core.params import ParamTable
from twinloop.simulate import Simulation
from twinloop.simulate.command import command_map
from twinloop.tasks.arm import Arm
from twinloop.tasks.hand import GripperHand
from twinloop.tasks.kinematics import ChainPose
from twinloop.tasks.reaching import ToolFrame, joint_step, tool_error
from twinloop.tasks.waypoints import ToolState, tool_speed
from twinloop.twin import Twin

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

_APPROACH_RATE = 4.0  # 1/s: near its goal the tool moves at this rate times its distance
_TURN_SPEED = 1.5  # rad/s: turning of the hand about its approach
_JOINT_SPEED = 1.6  # rad/s; an envelope allows 2 rad/s for arms whose motors it does not know, and 3.2 for an SO-101
_DRIFT = 0.015  # m: greatest correction of the tool's error at rest
_STROKE_TIME = 0.6  # s for the gripper's command from open to closed; the envelope of an SO-101 allows 0.53 s


@dataclass(frozen=True, kw_only=True)
class PresentState(ToolState):
    """Present state of all worlds, from which the rules choose.

    The shares of the gripper are 0 for closed and 1 for open.

    Attributes:
        velocity: velocity of the tool, ``(nworld, 3)`` in m/s.
        strain: how far the tool is from where the held commands bring it, beyond the servos' usual lag, ``(nworld, 3)``
            in m. Contact causes it, and errors of the known parameters.
        opening: position of the gripper, ``(nworld,)`` as a share.
        opening_speed: its change per second, ``(nworld,)``.
        grip: command that the gripper holds, ``(nworld,)`` as a share.
        grip_rate: its change per second in the last control step, ``(nworld,)``.
    """

    velocity: Array
    strain: Array
    opening: Array
    opening_speed: Array
    grip: Array
    grip_rate: Array


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Goal of the tool in the states in which a condition holds.

    Attributes:
        name: name of the rule.
        when: condition ``(nworld,)`` on the present state.
        position: goal of the tool ``(nworld, 3)`` in m in the world frame. None: the tool keeps its position.
        turn: goal of its additional rotation ``(nworld,)`` in rad, see `ToolFrame`. None: as it is.
        grip: command of the gripper, as a share: a number, ``(nworld,)``, or None for the present one.
        pace: speed relative to the usual one.
    """

    name: str
    when: Callable[[PresentState], Mask]
    position: Callable[[PresentState], Array] | None = None
    turn: Callable[[PresentState], Array] | None = None
    grip: float | None = None
    pace: float = 1.0


class ReactiveExpert:
    """Controller of an arm by rules on the present state.

    As a controller it holds its own commands. `label` gives the command that it would issue in worlds that another
    actor controls.

    Args:
        arm: the arm.
        params: parameters of the worlds.
        rules: the rules, in order; in states without a rule the tool keeps its position.
        frame: orientation of the tool at a position.
        turn_of: function that returns the present additional rotation ``(nworld,)`` in rad of the tool from its
            position and its axes.
        hand: the gripper, or None.
        command: command that the motors hold at the start, ``(nworld, nu)``.
        believed: parameters that the expert believes in: errors of encoders and gains of servos. It reads the joints as
            a policy does, and corrects the tool's error at rest. None: it knows the true joint positions and
            parameters.
    """

    def __init__(
        self,
        arm: Arm,
        params: ParamTable,
        rules: Sequence[Rule],
        *,
        frame: ToolFrame,
        turn_of: Callable[[Array, tuple[Array, Array, Array]], Array],
        hand: GripperHand | None,
        command: Array,
        believed: ParamTable | None = None,
    ) -> None:
        self._arm, self._rules, self._frame, self._turn_of, self._hand = arm, tuple(rules), frame, turn_of, hand
        hz, twin, servo = arm.twin.control_hz, arm.twin, arm.servo
        self._hz, self._speed = hz, tool_speed(arm) / hz
        self._posture = arm.home[arm.chain.qpos]
        known = params if believed is None else believed
        self._sensor = _encoder_map(twin, params, servo.actuators)
        self._offset, self._scale = _encoder_map(twin, known, servo.actuators)
        self._informed, self._stiffness = believed is None, arm.stiffness(known)
        self._lag = float(servo.lag.mean()) / hz
        self._held = self._earlier = np.array(command)

    def __call__(self, simulation: Simulation) -> Array:
        """Return the commands of the next control step, ``(nworld, nu)``."""
        command = self.label(simulation, self._held, self._earlier)
        self._held, self._earlier = command, self._held
        return command

    def label(self, simulation: Simulation, held: Array, earlier: Array) -> Array:
        """Return the commands ``(nworld, nu)`` that the expert issues in the present states.

        Args:
            simulation: the worlds.
            held: the commands that were issued last, ``(nworld, nu)``.
            earlier: the commands before these.
        """
        chain, servo = self._arm.chain, self._arm.servo
        qpos, qvel = (np.nan_to_num(part, posinf=0.0, neginf=0.0) for part in (simulation.qpos, simulation.qvel))
        measured, speed, held_at = qpos[:, chain.qpos], qvel[:, chain.dof], held[:, servo.actuators]
        held_at = self._offset + self._scale * held_at
        if not self._informed:
            offset, scale = self._sensor
            measured = self._offset + self._scale * ((measured - offset) / scale)
        pose = chain.pose(measured)
        reference = self._find_reference(held_at, pose)
        planned = chain.pose(reference)
        velocity = np.matmul(chain.jacobian(pose)[:, :3], speed[..., None])[..., 0]
        now = PresentState(
            qpos=qpos,
            tool=pose.position,
            turn=self._turn_of(pose.position, pose.columns),
            velocity=velocity,
            strain=pose.position + velocity * self._lag - planned.position,
            **self._observe_gripper(qpos, qvel, held, earlier),
        )
        drift = 0.0 * now.tool
        if not self._informed:
            drift = np.clip(now.strain, -_DRIFT, _DRIFT)
        goal, turn, grip, pace = self._choose(now, planned.position + drift)
        way = goal - planned.position - drift
        distance = np.sqrt((way**2).sum(axis=1))
        reached = np.minimum(self._speed * pace, _APPROACH_RATE / self._hz * distance)
        position = planned.position + way * (reached / np.maximum(distance, 1e-9))[:, None]
        facing = self._turn_of(planned.position, planned.columns)
        turned = facing + np.clip(turn - facing, -_TURN_SPEED / self._hz, _TURN_SPEED / self._hz)
        error = tool_error(planned, position, self._frame.tool_axes(position, turned))
        fastest = _JOINT_SPEED / self._hz
        step = joint_step(chain.jacobian(planned), error, self._posture - reference)
        target = np.clip(reference + np.clip(step, -fastest, fastest), chain.limits[:, 0], chain.limits[:, 1])
        target = target + chain.gravity_torques(chain.pose(target)) / self._stiffness
        wanted = (target - self._offset) / self._scale
        wanted = np.clip(wanted, servo.command_low, servo.command_high)
        return self._limit(wanted, grip, held)

    def _find_reference(self, target: Array, pose: ChainPose) -> Array:
        """Return the joint positions ``(nworld, k)`` at which held commands bring the arm to rest."""
        settled = target - self._arm.chain.gravity_torques(pose) / self._stiffness
        return target - self._arm.chain.gravity_torques(self._arm.chain.pose(settled)) / self._stiffness

    def _choose(self, now: PresentState, planned: Array) -> tuple[Array, Array, Array, Array]:
        goal, turn, grip, pace = planned, now.turn, now.grip, np.ones(len(now.tool))
        for rule in reversed(self._rules):
            chosen = rule.when(now)
            if not chosen.any():
                continue
            here = planned if rule.position is None else rule.position(now)
            there = now.turn if rule.turn is None else rule.turn(now)
            goal = np.where(chosen[:, None], here, goal)
            turn = np.where(chosen, there, turn)
            grip = np.where(chosen, now.grip if rule.grip is None else rule.grip, grip)
            pace = np.where(chosen, rule.pace, pace)
        return goal, turn, grip, pace

    def _observe_gripper(self, qpos: Array, qvel: Array, held: Array, earlier: Array) -> dict[str, Array]:
        hand = self._hand
        if hand is None:
            none = np.zeros(len(qpos))
            return {"opening": none, "opening_speed": none, "grip": none, "grip_rate": none}
        stroke = hand.open - hand.closed
        return {
            "opening": (qpos[:, hand.joint_qpos] - hand.closed) / stroke,
            "opening_speed": qvel[:, hand.joint_dof] / stroke,
            "grip": (held[:, hand.actuator] - hand.closed) / stroke,
            "grip_rate": (held - earlier)[:, hand.actuator] * self._hz / stroke,
        }

    def _limit(self, wanted: Array, grip: Array, held: Array) -> Array:
        """Return commands ``(nworld, nu)`` near ``wanted``, with limited speeds."""
        columns, hz = self._arm.servo.actuators, self._hz
        command = np.array(held)
        command[:, columns] += np.clip(wanted - held[:, columns], -_JOINT_SPEED / hz, _JOINT_SPEED / hz)
        if self._hand is not None:
            hand, stroke = self._hand, abs(self._hand.open - self._hand.closed)
            aim = hand.closed + grip * (hand.open - hand.closed)
            step = stroke / (_STROKE_TIME * hz)
            command[:, hand.actuator] += np.clip(aim - held[:, hand.actuator], -step, step)
        return command


def _encoder_map(twin: Twin, params: ParamTable, columns: NDArray[np.intp]) -> tuple[Array, Array]:
    """Return offsets and scales ``(nworld, k)`` that map readings and commands of the arm to joint positions."""
    offset, scale = (part[:, columns] for part in command_map(twin, params))
    return offset, scale
