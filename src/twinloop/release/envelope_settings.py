"""Read the settings of the safety envelope from YAML: shares of the robot's abilities, distances and times."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.joint_limits import JointLimits
from twinloop.core.units import COMMANDED, UnitMap
from twinloop.core.yaml_documents import load_yaml
from twinloop.hardware.limits import (
    ACCELERATION_SHARE,
    CLEARANCE,
    COMMAND_MARGIN,
    SPEED_SHARE,
    command_limits,
    gripper_mask,
    motion_limits,
)
from twinloop.release.envelope_reports import ReportLimits
from twinloop.twin import Twin
from twinloop.twin.spec import describe_errors

Share = Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, le=60, allow_inf_nan=False)]
Metres = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Jump = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class EnvelopeSettings(BaseModel):
    """Settings of an envelope (limits of every command); the defaults suit a position-controlled arm with smart servos.

    Attributes:
        range_margin: share of each joint's half range that is not used, at either end. The default is 0.02, because a
            manual calibration is wrong by one to two degrees in a half range of 100 degrees. The gripper uses its full
            range, to close on objects.
        speed: largest speed as a share of each servo's no-load speed. The default is 0.6, because the servo has too
            little torque left above it (see `hardware.limits`). If the model has no such speed, 2 rad/s replaces the
            no-load speed.
        acceleration: largest acceleration as a share of the acceleration that the servo's torque gives at the home
            pose. The default is 0.6, for the same reason.
        clearance_m: smallest distance between links and fixed objects, and between links that are not neighbours, for
            commands and their stopping paths. The default is 0.025, because an arm sags by two degrees under its
            weight.
        hand_clearance_m: smallest distance between the hand (a gripper, or the body of the tool site) and fixed
            objects. The default is 0, because the hand works at the table.
        workspace: lowest and highest position of the tool in the world frame in m, ``{x: [0.1, 0.4], z: [0, 0.3]}``;
            unlimited by default.
        max_relative_target: largest distance of a command from the measured joint position, in the robot's units, as
            one value or one per joint, like LeRobot's setting of this name; unlimited by default.
        watchdog_s: time to wait for a command before the robot brakes and holds; by default one control period.
        max_age_s: age of the robot's last answer above which the envelope stops the robot. The default is six frames at
            30 Hz.
        stop_after_s: time for which the robot may have to hold before the episode is stopped.
        max_failed_commands: number of commands in close succession that the robot may fail to accept before the episode
            is stopped. Ten accepted commands compensate for one failed command, so that one failure in ten is
            tolerated.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    range_margin: Annotated[float, Field(ge=0, lt=0.5)] = COMMAND_MARGIN
    speed: Share = SPEED_SHARE
    acceleration: Share = ACCELERATION_SHARE
    clearance_m: Metres = CLEARANCE
    hand_clearance_m: Metres = 0.0
    workspace: dict[str, tuple[float, float]] | None = None
    max_relative_target: Jump | dict[str, Jump] | None = None
    watchdog_s: Seconds | None = None
    max_age_s: Seconds = 0.2
    stop_after_s: Seconds = 2.0
    max_failed_commands: Annotated[int, Field(ge=1, le=100)] = 5

    @field_validator("workspace")
    @classmethod
    def _check_axes(cls, value: dict[str, tuple[float, float]] | None) -> dict[str, tuple[float, float]] | None:
        for axis, (low, high) in (value or {}).items():
            if axis not in "xyz" or len(axis) != 1:
                raise ValueError(f"a workspace has the axes x, y and z, not {axis!r}")
            if not low < high:
                raise ValueError(f"the workspace's {axis} must be [low, high], given [{low:g}, {high:g}]")
        return value

    @classmethod
    def read(cls, path: Path) -> EnvelopeSettings:
        """Read the settings from a YAML file.

        Raises:
            InputError: If the file is missing, is not YAML, or has an invalid setting.
        """
        return cls.of(load_yaml(path) or {}, where=str(path))

    @classmethod
    def of(cls, value: Any, *, where: str) -> EnvelopeSettings:
        """Return checked settings from plain values; ``where`` is the name of their source for error messages.

        Raises:
            InputError: If a setting is invalid.
        """
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise InputError(describe_errors(error, where=where, model=cls)) from error

    def make_box(self) -> NDArray[np.float64] | None:
        """Return the lowest and highest corner of the tool's workspace in the world frame in m, shape ``(2, 3)``.

        An axis without a limit is infinite. The result is None if no workspace is set.
        """
        if self.workspace is None:
            return None
        return np.array([self.workspace.get(axis, (-np.inf, np.inf)) for axis in "xyz"]).T

    def compute_joint_limits(self, twin: Twin, hz: float) -> JointLimits:
        """Return the limits of commands for the robot of a twin.

        Args:
            hz: commands per second.

        Raises:
            InputError: If the robot takes velocities or torques, because the envelope limits positions only.
        """
        if twin.robot.control != "position":
            raise InputError(
                f"{twin.name} is commanded by {COMMANDED[twin.robot.control]}, but the envelope limits position "
                "commands only. Robots are not run without an envelope; use a twin and a robot with position control."
            )
        return command_limits(twin, hz, margin=self.range_margin, speed=self.speed, acceleration=self.acceleration)

    def compute_report_limits(self, twin: Twin, units: UnitMap, limits: JointLimits) -> ReportLimits:
        """Return the physical limits of a twin's joints, with which the robot's reported joint readings are checked.

        Args:
            units: units of the robot, for messages.
            limits: limits of the commands; a physical speed limit is at least that of the commands.
        """
        low, high = twin.joint_ranges.T
        has_range = high > low
        fastest = motion_limits(twin, speed=1.0).speed
        return ReportLimits(
            low=np.where(has_range, low, -np.inf),
            high=np.where(has_range, high, np.inf),
            speed=np.maximum(fastest, limits.speed),
            arm=~gripper_mask(twin),
            units=units,
            period=limits.dt,
            longest=max(self.max_age_s, limits.dt),
        )

    def expand_max_relative_target(self, joints: tuple[str, ...]) -> NDArray[np.float64]:
        """Return ``max_relative_target`` of each joint in the robot's units, shape ``(njoint,)``.

        It is infinite for a joint without this setting.

        Raises:
            UnknownNameError: If the setting names a joint that the robot does not have.
        """
        given = self.max_relative_target
        if not isinstance(given, Mapping):
            return np.full(len(joints), np.inf if given is None else given)
        for joint in given:
            if joint not in joints:
                raise UnknownNameError("joint", joint, joints, where="max_relative_target")
        return np.array([given.get(joint, np.inf) for joint in joints])
