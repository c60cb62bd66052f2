"""Check the positions and sent commands that a running robot reports against the physical limits of its joints.

The limits of the next command are always computed from the last issued command, never from a report. Reports can only
shorten a motion or stop the robot.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from twinloop.core.units import UnitMap
from twinloop.hardware.driver_answers import (
    COMMAND_SLACK,
    find_misreported_joint,
    find_out_of_range_joint,
    find_unreachable_joint,
    range_length,
)

Array = NDArray[np.float64]
FROZEN_S = 0.5  # servos begin to move within 0.1 s of a command; after a longer stall of the bus, the robot is lost
FROZEN_TRAVEL = 0.05  # share of a joint's range that commands must move while no reading changes at all
FORGIVEN = 0.1  # failed commands that one accepted command compensates: one in ten may fail


@dataclass(frozen=True, kw_only=True)
class ReportedState:
    """Summary of the reports of a robot up to now, for n joints; positions of shape ``(n,)`` are in SI units.

    Readings that do not change although commands change mean that the encoders or the driver are stuck. The attributes
    ``still_…`` serve this test.

    Attributes:
        reading: last measured joint positions; None before the first reading.
        reading_time_s: time of the last reading by the robot's clock, in s.
        still_since: time in s since which all readings are equal.
        still_low: lowest command of each joint since ``still_since``.
        still_high: highest command of each joint since ``still_since``.
        accepted_command: last command that the robot accepted, if it differs from the last issued command; else None.
        failed_count: number of failed commands, reduced by 0.1 for each accepted command.
        failed: whether the last command failed.
    """

    reading: Array | None = None
    reading_time_s: float = 0.0
    still_since: float = 0.0
    still_low: Array | None = None
    still_high: Array | None = None
    accepted_command: Array | None = None
    failed_count: float = 0.0
    failed: bool = False


@dataclass(frozen=True, kw_only=True)
class ReportLimits:
    """Physical limits of a robot's n joints, with which its reports are checked.

    Attributes:
        low: lower bounds of the positions, shape ``(n,)``, in SI units; −inf for an unlimited joint.
        high: upper bounds of the positions, shape ``(n,)``; inf for an unlimited joint.
        speed: highest possible speeds of the joints, shape ``(n,)``; not the limits of the commands.
        arm: mask of the joints of the arm, shape ``(n,)``; False for the gripper, which does not move while it holds an
            object.
        units: units of the robot, for messages.
        period: time between commands in s.
        longest: longest allowed time between two readings in s, after which the envelope always stops the robot.
    """

    low: Array
    high: Array
    speed: Array
    arm: NDArray[np.bool_]
    units: UnitMap
    period: float
    longest: float

    @property
    def span(self) -> Array:
        """Length of each joint's range, 2π for an unlimited joint."""
        return range_length(self.low, self.high)

    def check_range(self, reading: Array) -> str:
        """Return the reason why no pose of the joints can give a reading, or "".

        Args:
            reading: joint positions, shape ``(n,)``, in SI units.
        """
        j = find_out_of_range_joint(reading, self.low, self.high)
        if j is None:
            return ""
        low, high = sorted((self._to_robot_unit(j, self.low), self._to_robot_unit(j, self.high)))
        value = self._to_robot_unit(j, reading)
        return f"{self.units.names[j]} reads {value:.4g}, and its range is {low:.4g} to {high:.4g}"

    def add_reading(
        self, reports: ReportedState, reading: Array, time_s: float, command: Array
    ) -> tuple[ReportedState, str]:
        """Return the summary of the robot's reports after a new reading, and the reason why it must stop, or "".

        The summary contains the last reading, and how far commands have moved since readings stopped changing.

        The robot must stop if a joint is outside its range, has moved faster than possible, or does not move although
        it is commanded to.

        Args:
            reports: summary of the reports up to now.
            reading: joint positions, finite, shape ``(n,)``, in SI units.
            time_s: time of the reading by the robot's clock, in s.
            command: last issued command, shape ``(n,)``, in SI units.
        """
        before = reports.reading
        if before is None or reports.still_low is None or reports.still_high is None:
            start = replace(reports, still_since=time_s, still_low=command, still_high=command)
            return replace(start, reading=reading, reading_time_s=time_s), self.check_range(reading)
        fault = self.check_range(reading) or self._check_jump(before, reading, time_s - reports.reading_time_s)
        if (reading != before).any():
            return replace(
                reports,
                reading=reading,
                reading_time_s=time_s,
                still_since=time_s,
                still_low=command,
                still_high=command,
            ), fault
        low, high = np.minimum(reports.still_low, command), np.maximum(reports.still_high, command)
        still = replace(reports, reading_time_s=time_s, still_low=low, still_high=high)
        return still, fault or self._check_frozen(still)

    def check_reported_command(self, reported: Array, reports: ReportedState, before: Array, issued: Array) -> str:
        """Return the reason why the robot cannot have sent the command that it reports, or "".

        A robot's own limits may shorten a command. For each joint, the reported command must therefore be in the range
        that the previous command, the issued command and the last reading span. The tolerance is 2 % of the joint's
        range.

        Args:
            reported: command that the driver reports as sent, shape ``(n,)``, in SI units.
            reports: reports up to now.
            before: previous command, shape ``(n,)``.
            issued: issued command, shape ``(n,)``.
        """
        known = [before, issued] if reports.reading is None else [before, issued, reports.reading]
        j = find_misreported_joint(reported, known, COMMAND_SLACK * self.span)
        if j is None:
            return ""
        return (
            f"the driver reports that it sent {self._to_robot_unit(j, reported):.4g} to {self.units.names[j]}; the "
            "command was "
            f"{self._to_robot_unit(j, issued):.4g}"
        )

    def _check_jump(self, before: Array, reading: Array, elapsed: float) -> str:
        # The time of a reading within its call is unknown: the time between two readings is uncertain by one period.
        seconds = min(max(elapsed, self.period), self.longest) + self.period
        j = find_unreachable_joint(reading, before, speed=self.speed, seconds=seconds, length=self.span)
        if j is None:
            return ""
        return (
            f"the reading of {self.units.names[j]} jumped from {self._to_robot_unit(j, before):.4g} to "
            f"{self._to_robot_unit(j, reading):.4g} within {elapsed:.2f} s, which the joint cannot do"
        )

    def _check_frozen(self, reports: ReportedState) -> str:
        assert reports.still_low is not None and reports.still_high is not None  # noqa: S101, PT018 - `add_reading` sets both
        if reports.reading_time_s - reports.still_since <= FROZEN_S:
            return ""
        moved = reports.still_high - reports.still_low
        wrong = self.arm & (moved > FROZEN_TRAVEL * self.span)
        if not wrong.any():
            return ""
        return (
            f"no reading has changed for {reports.reading_time_s - reports.still_since:.2f} s, while "
            f"{self.units.names[int(np.argmax(wrong))]} was commanded to move"
        )

    def _to_robot_unit(self, joint: int, positions: Array) -> float:
        """Return the position of a joint in the robot's units."""
        unit = self.units.joints[joint]
        assert unit.scale is not None and unit.offset is not None  # noqa: S101, PT018 - an envelope has units
        return float((positions[joint] - unit.offset) / unit.scale)
