"""Limit each command to safe motions before it is sent to the robot, and record every change of a command.

Every command that is sent keeps all limits, independent of the requested command. The limits are range, speed and
acceleration of each joint, the workspace box of the tool, the clearance to the table and between links, and the largest
distance from the measured joint positions. For every command that is sent, a stopping path that keeps the same limits
has been checked. If no other motion is allowed, the robot brakes along this path. A command that keeps all limits is
sent unchanged, bit for bit.

A command is always compared with the last command that the envelope issued, even if the driver reports another command.
A report from the driver can only stop the robot or prevent it from moving further.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError, LogError, UnitsError
from twinloop.core.joint_limits import (
    CommandWindow,
    JointLimits,
    compute_braking_step,
    compute_stopping_path,
    compute_window,
)
from twinloop.core.records import freeze_fields
from twinloop.core.units import UnitMap, find_joint_columns
from twinloop.release.envelope_reports import FORGIVEN, ReportedState
from twinloop.release.envelope_settings import EnvelopeSettings
from twinloop.release.envelope_space import PoseSpace
from twinloop.twin import Twin

Array = NDArray[np.float64]
Kind = Literal["passed", "limited", "held", "stopped"]
_PARTS = (0.5, 0.25)  # shares of the way from braking to the requested command, tried if the full way is not free
_AT_REST = 1e-9  # rad/s or m/s
_ROUND_OFF = 1e-6  # in the robot's units, in which a reported command was rounded


@dataclass(frozen=True, kw_only=True)
class RobotMotion:
    """State of a running robot as the envelope tracks it, for n joints in SI units.

    Attributes:
        position: last issued command, shape ``(n,)``.
        velocity: change of the last issued command per second, shape ``(n,)``.
        held_s: time in s for which the envelope has had to hold the robot without a usable command.
        stopped: reason why the rest of the episode is stopped, or "".
        reports: readings and sent commands that the robot reported.
    """

    position: Array
    velocity: Array
    held_s: float = 0.0
    stopped: str = ""
    reports: ReportedState = field(default_factory=ReportedState)

    def __post_init__(self) -> None:
        freeze_fields(self, "position", "velocity")

    @property
    def is_at_rest(self) -> bool:
        """True if the issued commands no longer change."""
        return bool(np.all(np.abs(self.velocity) <= _AT_REST))


@dataclass(frozen=True, kw_only=True)
class CommandChange:
    """Change of one joint's command by a limit, in the robot's units.

    Attributes:
        joint: name of the joint.
        rule: limit that changed the command: ``range``, ``speed``, ``acceleration``, ``workspace``, ``clearance``,
            ``jump`` (``max_relative_target``) or ``robot`` (a limit of the robot itself).
        requested: requested command.
        issued: command that is sent instead.
    """

    joint: str
    rule: str
    requested: float
    issued: float


@dataclass(frozen=True, kw_only=True)
class EnvelopeDecision:
    """Decision of the envelope about one command.

    Attributes:
        kind: ``passed`` (the command is sent unchanged), ``limited`` (some joints are changed), ``held`` (there is no
            usable command, so the robot brakes or holds its position) or ``stopped`` (it does so for the rest of the
            episode).
        command: command to send, shape ``(n,)`` for n joints, in the robot's units.
        motion: state from which the next command is judged.
        changes: changed joints, with the limit that changed each of them; empty unless the kind is ``limited``.
        reason: reason as a sentence; may be empty.
    """

    kind: Kind
    command: Array
    motion: RobotMotion
    changes: tuple[CommandChange, ...] = ()
    reason: str = ""


class Envelope:
    """Safety envelope of one robot at one command rate.

    It stores no state: the result of `judge` depends on its arguments only.

    Args:
        twin: twin of the robot, with joint ranges, servo strengths and shapes.
        settings: limits, distances and times; by default those of `EnvelopeSettings`.
        units: units of the robot's readings and commands, for the twin's joints in the twin's order; by default the
            units of the twin.
        hz: commands per second; by default the control rate of the twin.

    Raises:
        InputError: If the robot is commanded by torques, or a workspace box is given for a twin that has no tool.
        UnitsError: If a unit has a scale of 0, or a scale or offset that is not finite.
        LogError: If the joints or their order differ from those of the twin.
    """

    def __init__(
        self,
        twin: Twin,
        settings: EnvelopeSettings | None = None,
        *,
        units: UnitMap | None = None,
        hz: float | None = None,
    ) -> None:
        self.settings = settings or EnvelopeSettings()
        self.units = units or twin.units
        self.limits: JointLimits = self.settings.compute_joint_limits(twin, hz or twin.control_hz)
        find_joint_columns(twin.robot.joints, self.units.names, where="The robot")
        if list(self.units.names) != list(twin.robot.joints):
            raise LogError(
                f"The robot has the joints {', '.join(self.units.names)}; the twin {twin.name} has "
                f"{', '.join(twin.robot.joints)}. Choose a twin with the robot's joints, in its order."
            )
        self.space = PoseSpace(
            twin,
            clearance=self.settings.clearance_m,
            hand_clearance=self.settings.hand_clearance_m,
            box=self.settings.make_box(),
        )
        zero, one = self.units.to_si(np.zeros(len(self.units.names))), self.units.to_si(np.ones(len(self.units.names)))
        self._offset, self._scale = zero, one - zero
        if not (np.isfinite([zero, one]).all() and self._scale.all()):
            raise UnitsError(
                "The robot's units have a scale of 0, or a scale or an offset that is not a number. Check the scales "
                "and offsets of its unit map."
            )
        self._reports = self.settings.compute_report_limits(twin, self.units, self.limits)
        self._jump = self.settings.expand_max_relative_target(self.units.names) * np.abs(self._scale)

    @property
    def watchdog_s(self) -> float:
        """Longest time in s to wait for a command before the robot brakes."""
        return self.settings.watchdog_s or self.limits.dt

    def begin(self, reading: ArrayLike) -> RobotMotion:
        """Return the state of a robot at rest at a reading, after checking that the envelope allows this pose.

        Args:
            reading: joint positions, shape ``(n,)``, in the robot's units.

        Raises:
            InputError: If the reading is not finite, is impossible, or is a pose that the envelope forbids.
        """
        values = np.asarray(reading, dtype=np.float64)
        if not np.isfinite(values).all():
            raise InputError(
                "The robot does not report a position for every joint. Check its connection and try again."
            )
        position = self._to_si(values)
        impossible = self._reports.check_range(position)
        if impossible:
            raise InputError(
                f"The robot reports an impossible position: {impossible}. Check its calibration and its units."
            )
        fault = self.space.find_first_fault(position[None])
        if fault is not None:
            raise InputError(
                f"The robot is in a position that the envelope forbids: {fault[1]}. Move it by hand, or change the "
                "envelope's settings if this position is intended."
            )
        return RobotMotion(position=position, velocity=np.zeros_like(position))

    def judge(
        self,
        motion: RobotMotion,
        requested: ArrayLike | None,
        reading: ArrayLike | None = None,
        *,
        age_s: float = 0.0,
        missing: str = "no command in time",
    ) -> EnvelopeDecision:
        """Decide about a requested command: send it unchanged, limit it, hold, or stop.

        Args:
            motion: state after the previous decision.
            requested: requested command, shape ``(n,)``, in the robot's units; None if no command arrived.
            reading: measured joint positions, shape ``(n,)``, in the robot's units; None skips the limit of the
                distance from them.
            age_s: age of the reading in s.
            missing: reason why no command arrived.
        """
        if motion.stopped:
            return self._brake(motion, motion.stopped)
        if age_s > self.settings.max_age_s:
            return self._stop(
                motion, f"the robot's last answer is {age_s:.2f} s old, {self.settings.max_age_s:g} s allowed"
            )
        if motion.reports.failed:
            return self._hold_or_stop(motion, "the robot did not take the previous command")
        measured = None if reading is None else np.asarray(reading, dtype=np.float64)
        if measured is not None and not np.isfinite(measured).all():
            return self._hold_or_stop(
                motion, f"the reading of {self._name_first_joint(~np.isfinite(measured))} is not a number"
            )
        if requested is None:
            return self._hold_or_stop(motion, missing)
        values = np.asarray(requested, dtype=np.float64)
        if values.shape != motion.position.shape:
            return self._hold_or_stop(motion, f"a command of shape {values.shape} for {len(motion.position)} joints")
        if not np.isfinite(values).all():
            return self._hold_or_stop(
                motion, f"the command of {self._name_first_joint(~np.isfinite(values))} is not a number"
            )
        return self._limit_command(motion, values, measured)

    def add_reading(self, motion: RobotMotion, reading: ArrayLike, time_s: float) -> RobotMotion:
        """Return the state after a reading; it is stopped if the joints cannot have moved as the reading reports.

        Args:
            motion: state after the previous decision.
            reading: joint positions, shape ``(n,)``, in the robot's units. A reading that is not finite changes nothing
                here; `judge` handles it.
            time_s: time of the reading by the robot's clock, in s.
        """
        values = np.asarray(reading, dtype=np.float64)
        if not np.isfinite(values).all():
            return motion
        reports, fault = self._reports.add_reading(motion.reports, self._to_si(values), time_s, motion.position)
        return replace(motion, reports=reports, stopped=motion.stopped or fault)

    def add_accepted_command(self, before: RobotMotion, after: RobotMotion, command: ArrayLike) -> RobotMotion:
        """Return the state after a command that the robot accepted.

        Args:
            before: state from which the command was judged.
            after: state after the decision.
            command: command that the driver reports as sent, shape ``(n,)``, in the robot's units. It must be the
                issued command, or a command that the robot's own limits shortened. Any other command stops the robot.
        """
        values = np.asarray(command, dtype=np.float64)
        reports = replace(
            before.reports,
            failed=False,
            failed_count=max(0.0, before.reports.failed_count - FORGIVEN),
            accepted_command=None,
        )
        reported = self._to_si(values)
        fault = self._reports.check_reported_command(reported, reports, before.position, after.position)
        if not fault and (np.abs(reported - after.position) > _ROUND_OFF * np.abs(self._scale)).any():
            reports = replace(reports, accepted_command=reported)
        return replace(after, reports=reports, stopped=after.stopped or fault)

    def add_failed_command(self, before: RobotMotion, after: RobotMotion, *, why: str) -> RobotMotion:
        """Return the state after a command that the robot rejected or did not acknowledge.

        These two cases cannot be distinguished. The next command therefore brakes as if the failed command had arrived.
        This keeps the limits if it arrived, and differs by at most the stopping distance if it did not.

        Args:
            before: state from which the command was judged.
            after: state after the decision.
            why: error message of the driver.
        """
        reports = replace(before.reports, failed=True, failed_count=before.reports.failed_count + 1.0)
        if reports.accepted_command is None:
            reports = replace(reports, accepted_command=before.position)
        many = reports.failed_count >= self.settings.max_failed_commands
        fault = f"the robot did not take {reports.failed_count:.0f} commands in close succession: {why}" if many else ""
        return replace(after, reports=reports, stopped=after.stopped or fault)

    def get_accepted_command(self, motion: RobotMotion) -> Array:
        """Return the last command that the robot accepted according to its driver, shape ``(n,)``.

        It is in the robot's units (`units`, as for readings and commands).

        Args:
            motion: present motion of the robot.
        """
        position = motion.position if motion.reports.accepted_command is None else motion.reports.accepted_command
        return (position - self._offset) / self._scale

    def _limit_command(self, motion: RobotMotion, values: Array, measured: Array | None) -> EnvelopeDecision:
        """Return the decision about a command: send it, or send another position that keeps every limit.

        The other position is the command after the limits of the request and of the joints. If it would break a limit
        of the workspace or the clearance, it is the nearest allowed one of the positions that `_find_free_target`
        tests.

        Args:
            motion: state after the previous decision, from which the command starts.
            values: requested command, shape ``(n,)``, in the robot's units.
            measured: measured joint positions, shape ``(n,)``, in the robot's units; None if unknown.
        """
        allowed, goal = compute_window(motion.position, motion.velocity, self.limits), self._to_si(values)
        near = (
            goal
            if measured is None
            else np.clip(goal, self._to_si(measured) - self._jump, self._to_si(measured) + self._jump)
        )
        nearer = self._limit_lead(motion, near)
        target = np.clip(nearer, allowed.low, allowed.high)
        target, fault = self._find_free_target(motion, target)
        changed = target != goal
        if not changed.any():
            return EnvelopeDecision(kind="passed", command=values, motion=self._make_motion(motion, target))
        command = np.where(changed, (target - self._offset) / self._scale, values)
        before = np.where(nearer != near, "robot", np.where(near != goal, "jump", ""))
        rules = _choose_rules(before, nearer, target, allowed, fault)
        changes = tuple(
            CommandChange(
                joint=self.units.names[j], rule=str(rules[j]), requested=float(values[j]), issued=float(command[j])
            )
            for j in np.flatnonzero(changed)
        )
        return EnvelopeDecision(
            kind="limited",
            command=command,
            motion=self._make_motion(motion, target),
            changes=changes,
            reason="" if fault is None else fault[1],
        )

    def _limit_lead(self, motion: RobotMotion, goal: Array) -> Array:
        """Limit a request to ``accepted command ± speed limit × period`` if the robot shortened the last command.

        The driver reports the accepted command. The interval is widened to include the last issued command, so that a
        wrong report alone cannot move the robot.

        Args:
            motion: present motion of the robot, with the reports of its driver.
            goal: requested position, shape ``(n,)``, in SI units.
        """
        sent = motion.reports.accepted_command
        if sent is None:
            return goal
        ahead = self.limits.speed * self.limits.dt
        return np.clip(goal, np.minimum(motion.position, sent - ahead), np.maximum(motion.position, sent + ahead))

    def _find_free_target(self, motion: RobotMotion, target: Array) -> tuple[Array, tuple[str, str] | None]:
        """Return the position nearest to a target, among the tested positions, that has no collision or other fault.

        The braking position is the next command if the robot brakes as hard as allowed. The tested positions are the
        target, positions between it and the braking position, and then the braking position with single joints moved to
        the target.

        Args:
            motion: present motion of the robot.
            target: position that keeps the limits of the joints, shape ``(n,)``, in SI units.

        Returns:
            Position ``(n,)``, and the reason why the target is not allowed as name and description of the broken rule;
            None if the target is allowed.
        """
        fault = self._find_fault(motion, target)
        if fault is None:
            return target, None
        safe, _ = compute_braking_step(motion.position, motion.velocity, self.limits)
        for part in _PARTS:
            tried = safe + part * (target - safe)
            if self._find_fault(motion, tried) is None:
                return tried, fault
        for joint in range(len(safe)):  # move along the obstacle, joint by joint
            tried = safe.copy()
            tried[joint] = target[joint]
            if self._find_fault(motion, tried) is None:
                safe = tried
        return safe, fault

    def _find_fault(self, motion: RobotMotion, target: Array) -> tuple[str, str] | None:
        velocity = (target - motion.position) / self.limits.dt
        path = compute_stopping_path(target, velocity, self.limits)
        return self.space.find_first_fault(np.concatenate([target[None], path]))

    def _make_motion(self, motion: RobotMotion, target: Array) -> RobotMotion:
        velocity = (target - motion.position) / self.limits.dt
        return RobotMotion(position=target, velocity=velocity, reports=motion.reports)

    def _hold_or_stop(self, motion: RobotMotion, reason: str) -> EnvelopeDecision:
        """Return the decision to brake or hold; stop for the rest of the episode if holding has lasted too long."""
        held = motion.held_s + self.limits.dt
        if held > self.settings.stop_after_s:
            return self._stop(motion, f"{reason}, for {held:.1f} s")
        return self._brake(replace(motion, held_s=held), reason)

    def _stop(self, motion: RobotMotion, reason: str) -> EnvelopeDecision:
        return self._brake(replace(motion, stopped=reason), reason)

    def _brake(self, motion: RobotMotion, reason: str) -> EnvelopeDecision:
        position, velocity = compute_braking_step(motion.position, motion.velocity, self.limits)
        return EnvelopeDecision(
            kind="stopped" if motion.stopped else "held",
            command=(position - self._offset) / self._scale,
            motion=replace(motion, position=position, velocity=velocity),
            reason=reason,
        )

    def _to_si(self, values: Array) -> Array:
        with np.errstate(over="ignore"):  # an overflowed value is beyond every limit
            return values * self._scale + self._offset

    def _name_first_joint(self, wrong: NDArray[np.bool_]) -> str:
        return self.units.names[int(np.argmax(wrong))]


def _choose_rules(
    before: NDArray[np.str_], near: Array, target: Array, allowed: CommandWindow, fault: tuple[str, str] | None
) -> NDArray[np.str_]:
    """Return the name of the last limit that changed each joint's command, shape ``(n,)``.

    Three limits are applied one after another: limits of the request (distance from the measured position or from a
    command that the robot shortened), limits of the joints (``allowed``), and forbidden poses (``fault``).

    Args:
        before: name of the limit of the request that changed the command, shape ``(n,)``; "" if none did.
        near: position before the limits of the joints, shape ``(n,)``.
        target: final position, after all limits, shape ``(n,)``.
        allowed: interval that the limits of the joints allow.
        fault: rule and description of a forbidden pose; None if the pose was allowed.
    """
    rules = np.where(near > allowed.high, allowed.high_rule, np.where(near < allowed.low, allowed.low_rule, before))
    cut = np.clip(near, allowed.low, allowed.high)
    return rules if fault is None else np.where(target != cut, fault[0], rules)
