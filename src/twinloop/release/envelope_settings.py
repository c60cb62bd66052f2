"""What the safety envelope is told: shares of what the robot could do, distances, times; read from YAML."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.units import UnitMap
from twinloop.core.yaml_documents import load_yaml
from twinloop.hardware.limits import CLEARANCE, motion_limits
from twinloop.release.envelope_reports import ReportLimits
from twinloop.release.envelope_space import JointLimits
from twinloop.twin import Twin
from twinloop.twin.spec import describe

Share = Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, le=60, allow_inf_nan=False)]
Metres = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Jump = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class EnvelopeSettings(BaseModel):
    """The settings of an envelope; every one has a default that suits a position-controlled arm of smart servos.

    Attributes:
        range_margin: part of each joint's half range that stays unused at either end; 0.02, a calibration by hand
            being off by one to two degrees of 100. The gripper uses all of its range: it closes on things.
        speed: share of each servo's no-load speed; 0.6, above which it has no torque left to follow (see
            `hardware.limits`). Of an arm whose model says no speed, of 2 rad/s.
        acceleration: share of what the servo's torque gives at home; 0.6 likewise.
        clearance_m: kept between links and what is fixed, and between links that are not neighbours, by the commands
            and the stopping path behind them; 0.025, since an arm sags by two degrees under its own weight.
        hand_clearance_m: kept between the hand and what is fixed; 0, because it picks things up there.
        workspace: lowest and highest position of the tool in the world in m, ``{x: [0.1, 0.4], z: [0, 0.3]}``.
        max_relative_target: how far a command may be from where the joint reads to be, in the robot's units, one for
            all or by joint, as LeRobot's setting of that name; none by default.
        watchdog_s: how long the robot waits for a command before it brakes and holds; by default one control period.
        max_age_s: age at which what the robot last said is too old to go on; 0.2, six frames at 30 Hz.
        stop_after_s: how long it may have to hold before the episode is stopped; 2.
        max_failed_commands: how many commands in close succession the robot may fail to take before the episode is
            stopped; 5. Ten that it takes make up for one that it did not, so that one in ten may fail for good.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    range_margin: Annotated[float, Field(ge=0, lt=0.5)] = 0.02
    speed: Share = 0.6
    acceleration: Share = 0.6
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
    def _axes(cls, value: dict[str, tuple[float, float]] | None) -> dict[str, tuple[float, float]] | None:
        for axis, (low, high) in (value or {}).items():
            if axis not in "xyz" or len(axis) != 1:
                raise ValueError(f"a workspace has the axes x, y and z, not {axis!r}")
            if not low < high:
                raise ValueError(f"the workspace's {axis} must be [low, high], given [{low:g}, {high:g}]")
        return value

    @classmethod
    def read(cls, path: Path) -> EnvelopeSettings:
        """The settings in a YAML file.

        Raises:
            InputError: the file is missing, no YAML, or says what is no setting; names the key.
        """
        return cls.of(load_yaml(path) or {}, where=str(path))

    @classmethod
    def of(cls, value: Any, *, where: str) -> EnvelopeSettings:
        """Checked settings from plain values; ``where`` names their origin in messages."""
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise InputError(describe(error, where=where, model=cls)) from error

    def box(self) -> NDArray[np.float64] | None:
        """The workspace as lowest and highest corner, ``(2, 3)``, infinite where unlimited; None where it is."""
        if self.workspace is None:
            return None
        return np.array([self.workspace.get(axis, (-np.inf, np.inf)) for axis in "xyz"]).T

    def joint_limits(self, twin: Twin, hz: float) -> JointLimits:
        """Limits of the commands of a twin's robot at a rate.

        Raises:
            InputError: the robot takes torques, and an envelope of positions says nothing of it.
        """
        if twin.robot.control != "position":
            raise InputError(
                f"{twin.name} is commanded by torques; the envelope limits commands that are positions. There is no "
                "envelope for it here, and nothing is run without one."
            )
        motion = motion_limits(twin, margin=self.range_margin)
        hand = _gripper(twin)
        low, high = twin.joint_ranges.T
        return JointLimits(
            low=np.where(hand, low, motion.low),
            high=np.where(hand, high, motion.high),
            speed=motion.speed * self.speed / EnvelopeSettings.model_fields["speed"].default,
            acceleration=motion.acceleration
            * (self.acceleration / EnvelopeSettings.model_fields["acceleration"].default),
            dt=1.0 / hz,
        )

    def report_limits(self, twin: Twin, units: UnitMap, limits: JointLimits) -> ReportLimits:
        """Return what a twin's joints can do, whatever share of it the commands may use."""
        low, high = twin.joint_ranges.T
        has_range = high > low
        fastest = motion_limits(twin, speed=1.0).speed
        return ReportLimits(
            low=np.where(has_range, low, -np.inf),
            high=np.where(has_range, high, np.inf),
            speed=np.maximum(fastest, limits.speed),
            arm=~_gripper(twin),
            units=units,
            period=limits.dt,
            longest=max(self.max_age_s, limits.dt),
        )

    def jump(self, joints: tuple[str, ...]) -> NDArray[np.float64]:
        """``max_relative_target`` of each joint in the robot's units, infinite where there is none.

        Raises:
            UnknownNameError: it names a joint that the robot lacks.
        """
        given = self.max_relative_target
        if not isinstance(given, Mapping):
            return np.full(len(joints), np.inf if given is None else given)
        for joint in given:
            if joint not in joints:
                raise UnknownNameError("joint", joint, joints, where="max_relative_target")
        return np.array([given.get(joint, np.inf) for joint in joints])


def _gripper(twin: Twin) -> NDArray[np.bool_]:
    grip = twin.robot.gripper
    return np.array([grip is not None and joint == grip.joint for joint in twin.robot.joints])
