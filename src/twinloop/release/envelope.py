"""The safety envelope: what becomes of a command before a robot gets it, with a record of every intervention.

What is sent never leaves the limits, whatever was wanted: each joint's range, speed and acceleration, the tool's box,
the distance to table and links, and the jump from where the joint reads to be. Behind every command that is sent there
is a stopping path that was looked at and keeps the same limits, so that what remains when nothing else is allowed is to
brake along it. A command that keeps all limits is sent as it is, bit for bit.

The position from which a command is judged is always the last command that was issued, whatever the robot's driver says
it sent. What a driver reports is evidence: it can stop the robot, or keep it from going further, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinloop.core.errors import InputError, LogError, UnitsError
from twinloop.core.records import freeze_fields
from twinloop.core.units import UnitMap, require_joints
from twinloop.release.envelope_reports import FORGIVEN, ReportedState
from twinloop.release.envelope_settings import EnvelopeSettings
from twinloop.release.envelope_space import CommandWindow, JointLimits, PoseSpace, braked, stopping_path, window
from twinloop.twin import Twin

Array = NDArray[np.float64]
Kind = Literal["passed", "limited", "held", "stopped"]
_PARTS = (0.5, 0.25)  # of the way from braking to what was wanted, tried where all of it is not free
_AT_REST = 1e-9  # rad/s or m/s
_ROUND_OFF = 1e-6  # of a unit; what a robot says it sent went through its own units


@dataclass(frozen=True, kw_only=True)
class RobotMotion:
    """What an envelope knows of a running robot: the last command and its speed ``(n,)`` in SI, and how it stands.

    ``held_s`` is for how long it has had to hold; ``stopped`` says why the episode is over, or ""; ``reports`` are the
    robot's own.
    """

    position: Array
    velocity: Array
    held_s: float = 0.0
    stopped: str = ""
    reports: ReportedState = field(default_factory=ReportedState)

    def __post_init__(self) -> None:
        freeze_fields(self, "position", "velocity")

    @property
    def at_rest(self) -> bool:
        """Whether the commands no longer change."""
        return bool(np.all(np.abs(self.velocity) <= _AT_REST))


@dataclass(frozen=True, kw_only=True)
class CommandCut:
    """What a rule made of the command of one joint, in the robot's units."""

    joint: str
    rule: str
    wanted: float
    issued: float


@dataclass(frozen=True, kw_only=True)
class EnvelopeDecision:
    """What becomes of one command: the ``command`` ``(n,)`` to send, in the robot's units, and why it is that one.

    ``passed``: as it was wanted. ``limited``: some joints were cut, ``cuts`` says which by which rule. ``held``: it
    brakes or stands, there being no command to follow. ``stopped``: likewise, and for good. ``motion`` is what the
    next command is judged with.
    """

    kind: Kind
    command: Array
    motion: RobotMotion
    cuts: tuple[CommandCut, ...] = ()
    reason: str = ""


class Envelope:
    """The envelope of one robot at one rate; `judge` is a function of its arguments alone.

    Args:
        twin: of the robot; says ranges, strengths and shapes.
        settings: see `EnvelopeSettings`.
        units: of the robot's readings and commands, the twin's by default; the same joints in the same order.
        hz: commands per second, the twin's by default.

    Raises:
        InputError: a robot commanded by torques, or a tool's box for a twin without a tool.
        UnitsError: a unit of size 0, or of none that is a number.
        LogError: other joints than the twin's, or in another order.
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
        self.limits: JointLimits = self.settings.joint_limits(twin, hz or twin.control_hz)
        require_joints(twin.robot.joints, self.units.names, where="The robot")
        if list(self.units.names) != list(twin.robot.joints):
            raise LogError(
                f"The robot has the joints {', '.join(self.units.names)}; the twin {twin.name} has "
                f"{', '.join(twin.robot.joints)}. Choose a twin with the robot's joints, in its order."
            )
        self.space = PoseSpace(
            twin,
            clearance=self.settings.clearance_m,
            hand_clearance=self.settings.hand_clearance_m,
            box=self.settings.box(),
        )
        zero, one = self.units.to_si(np.zeros(len(self.units.names))), self.units.to_si(np.ones(len(self.units.names)))
        self._offset, self._scale = zero, one - zero
        if not (np.isfinite([zero, one]).all() and self._scale.all()):
            raise UnitsError(
                "The robot's units have a scale of 0, or a scale or an offset that is not a number. Look at the scales "
                "and offsets of its unit map."
            )
        self._reports = self.settings.report_limits(twin, self.units, self.limits)
        self._jump = self.settings.jump(self.units.names) * np.abs(self._scale)

    @property
    def watchdog_s(self) -> float:
        """How long a command is waited for."""
        return self.settings.watchdog_s or self.limits.dt

    def begin(self, reading: ArrayLike) -> RobotMotion:
        """What is known of a robot that stands still where it reads to be, ``(n,)`` in its units.

        Raises:
            InputError: it stands where it must not be, or does not say where; says what to do.
        """
        values = np.asarray(reading, dtype=np.float64)
        if not np.isfinite(values).all():
            raise InputError("The robot does not say where all of its joints are. Check its connection, then go on.")
        position = self._si(values)
        impossible = self._reports.outside(position)
        if impossible:
            raise InputError(
                f"The robot cannot be where it reads to be: {impossible}. Check its calibration and its units."
            )
        fault = self.space.first_fault(position[None])
        if fault is not None:
            raise InputError(
                f"The robot stands where it must not be: {fault[1]}. Move it by hand, or change the envelope's "
                "settings if that is meant to be so."
            )
        return RobotMotion(position=position, velocity=np.zeros_like(position))

    def judge(
        self,
        motion: RobotMotion,
        wanted: ArrayLike | None,
        reading: ArrayLike | None = None,
        *,
        age_s: float = 0.0,
        missing: str = "no command in time",
    ) -> EnvelopeDecision:
        """What becomes of a command.

        Args:
            motion: what the ruling before left.
            wanted: ``(n,)`` in the robot's units; None where no command came.
            reading: where the joints read to be, ``(n,)`` in the robot's units.
            age_s: how long ago the robot said that.
            missing: why no command came.
        """
        if motion.stopped:
            return self._held(motion, motion.stopped)
        if age_s > self.settings.max_age_s:
            return self._stopped(
                motion, f"the robot's last word is {age_s:.2f} s old, {self.settings.max_age_s:g} s allowed"
            )
        if motion.reports.failed:
            return self._waiting(motion, "the robot did not take the command before")
        here = None if reading is None else np.asarray(reading, dtype=np.float64)
        if here is not None and not np.isfinite(here).all():
            return self._waiting(motion, f"the reading of {self._first(~np.isfinite(here))} is not a number")
        if wanted is None:
            return self._waiting(motion, missing)
        values = np.asarray(wanted, dtype=np.float64)
        if values.shape != motion.position.shape:
            return self._waiting(motion, f"a command of shape {values.shape} for {len(motion.position)} joints")
        if not np.isfinite(values).all():
            return self._waiting(motion, f"the command of {self._first(~np.isfinite(values))} is not a number")
        return self._allowed(motion, values, here)

    def observed(self, motion: RobotMotion, reading: ArrayLike, taken: float) -> RobotMotion:
        """Return the motion after a reading, stopped where the joints cannot have done what it says.

        Args:
            motion: what the ruling before left.
            reading: ``(n,)`` in the robot's units; what is not finite is left to `judge`.
            taken: when, by the robot's clock in s.
        """
        values = np.asarray(reading, dtype=np.float64)
        if not np.isfinite(values).all():
            return motion
        reports, fault = self._reports.observed(motion.reports, self._si(values), taken, motion.position)
        return replace(motion, reports=reports, stopped=motion.stopped or fault)

    def sent(self, before: RobotMotion, after: RobotMotion, command: ArrayLike) -> RobotMotion:
        """Return the motion after a command that the robot took.

        Args:
            before: the motion that was judged.
            after: the motion that the ruling left.
            command: what the driver says it sent, ``(n,)`` in the robot's units: what it was given, or less because of
                limits of the robot's own. Anything else stops the robot.
        """
        values = np.asarray(command, dtype=np.float64)
        reports = replace(before.reports, failed=False, unsent=max(0.0, before.reports.unsent - FORGIVEN), sent=None)
        said = self._si(values)
        fault = self._reports.misreported(said, reports, before.position, after.position)
        if not fault and (np.abs(said - after.position) > _ROUND_OFF * np.abs(self._scale)).any():
            reports = replace(reports, sent=said)
        return replace(after, reports=reports, stopped=after.stopped or fault)

    def unsent(self, before: RobotMotion, after: RobotMotion, *, why: str) -> RobotMotion:
        """Return the motion after a command that the robot failed to take, or took without an answer.

        Nobody can tell which. The next command therefore brakes from the one that failed: that keeps the limits where
        it arrived, and is no more than the stopping distance away where it did not.

        Args:
            before: the motion that was judged.
            after: the motion that the ruling left.
            why: what the driver raised.
        """
        reports = replace(before.reports, failed=True, unsent=before.reports.unsent + 1.0)
        if reports.sent is None:
            reports = replace(reports, sent=before.position)
        many = reports.unsent >= self.settings.max_failed_commands
        fault = f"the robot did not take {reports.unsent:.0f} commands in close succession: {why}" if many else ""
        return replace(after, reports=reports, stopped=after.stopped or fault)

    def in_force(self, motion: RobotMotion) -> Array:
        """Return the last command ``(n,)`` that the robot took, in its units, as far as it said so."""
        taken = motion.position if motion.reports.sent is None else motion.reports.sent
        return (taken - self._offset) / self._scale

    def _allowed(self, motion: RobotMotion, values: Array, here: Array | None) -> EnvelopeDecision:
        """The command, or the nearest that keeps every limit."""
        allowed, goal = window(motion.position, motion.velocity, self.limits), self._si(values)
        near = goal if here is None else np.clip(goal, self._si(here) - self._jump, self._si(here) + self._jump)
        nearer = self._not_ahead(motion, near)
        target = np.clip(nearer, allowed.low, allowed.high)
        target, fault = self._free(motion, target)
        changed = target != goal
        if not changed.any():
            return EnvelopeDecision(kind="passed", command=values, motion=self._moved(motion, target))
        command = np.where(changed, (target - self._offset) / self._scale, values)
        before = np.where(nearer != near, "robot", np.where(near != goal, "jump", ""))
        rules = _rules(before, nearer, target, allowed, fault)
        cuts = tuple(
            CommandCut(joint=self.units.names[j], rule=str(rules[j]), wanted=float(values[j]), issued=float(command[j]))
            for j in np.flatnonzero(changed)
        )
        return EnvelopeDecision(
            kind="limited",
            command=command,
            motion=self._moved(motion, target),
            cuts=cuts,
            reason="" if fault is None else fault[1],
        )

    def _not_ahead(self, motion: RobotMotion, goal: Array) -> Array:
        """Return the goal, as far as commands may go that the robot's own limits cut: a period ahead of what it sent.

        Never nearer than the last command, so that a driver's word moves nothing.
        """
        sent = motion.reports.sent
        if sent is None:
            return goal
        ahead = self.limits.speed * self.limits.dt
        return np.clip(goal, np.minimum(motion.position, sent - ahead), np.maximum(motion.position, sent + ahead))

    def _free(self, motion: RobotMotion, target: Array) -> tuple[Array, tuple[str, str] | None]:
        """The target, or what comes nearest to it and is free; and what was in the way."""
        fault = self._fault(motion, target)
        if fault is None:
            return target, None
        safe, _ = braked(motion.position, motion.velocity, self.limits)
        for part in _PARTS:
            tried = safe + part * (target - safe)
            if self._fault(motion, tried) is None:
                return tried, fault
        for joint in range(len(safe)):  # along what is in the way, joint by joint
            tried = safe.copy()
            tried[joint] = target[joint]
            if self._fault(motion, tried) is None:
                safe = tried
        return safe, fault

    def _fault(self, motion: RobotMotion, target: Array) -> tuple[str, str] | None:
        velocity = (target - motion.position) / self.limits.dt
        path = stopping_path(target, velocity, self.limits)
        return self.space.first_fault(np.concatenate([target[None], path]))

    def _moved(self, motion: RobotMotion, target: Array) -> RobotMotion:
        velocity = (target - motion.position) / self.limits.dt
        return RobotMotion(position=target, velocity=velocity, reports=motion.reports)

    def _waiting(self, motion: RobotMotion, reason: str) -> EnvelopeDecision:
        """Brake or stand, and stop for good when that has lasted too long."""
        held = motion.held_s + self.limits.dt
        if held > self.settings.stop_after_s:
            return self._stopped(motion, f"{reason}, for {held:.1f} s")
        return self._held(replace(motion, held_s=held), reason)

    def _stopped(self, motion: RobotMotion, reason: str) -> EnvelopeDecision:
        return self._held(replace(motion, stopped=reason), reason)

    def _held(self, motion: RobotMotion, reason: str) -> EnvelopeDecision:
        position, velocity = braked(motion.position, motion.velocity, self.limits)
        return EnvelopeDecision(
            kind="stopped" if motion.stopped else "held",
            command=(position - self._offset) / self._scale,
            motion=replace(motion, position=position, velocity=velocity),
            reason=reason,
        )

    def _si(self, values: Array) -> Array:
        with np.errstate(over="ignore"):  # what overflows is beyond every limit
            return values * self._scale + self._offset

    def _first(self, wrong: NDArray[np.bool_]) -> str:
        return self.units.names[int(np.argmax(wrong))]


def _rules(
    before: NDArray[np.str_], near: Array, target: Array, allowed: CommandWindow, fault: tuple[str, str] | None
) -> NDArray[np.str_]:
    """The rule that decided about each joint, ``(n,)``: the last one that cut it, after those that cut ``before``."""
    rules = np.where(near > allowed.high, allowed.high_rule, np.where(near < allowed.low, allowed.low_rule, before))
    cut = np.clip(near, allowed.low, allowed.high)
    return rules if fault is None else np.where(target != cut, fault[0], rules)
