"""Define the section ``residual:`` of a twin's YAML file: offsets of the controls that no parameter explains.

`identify.residual` fits it, and `simulate.residual` applies it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from twinloop.core.errors import UnknownNameError

RESIDUAL_TWIN = "twin.yaml"  # in the folder of an identification run: the twin with its residual
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Size = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Width = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class JointResidual(BaseModel):
    """Residual of one joint, in the unit of its command (rad or m, rad/s or m/s, N·m or N).

    Attributes:
        positions: Range of joint positions in the data, in rad or m. Outside this range the offset falls linearly to
            zero within the distance of two neighbouring ``offsets``.
        offsets: Offset at equally spaced positions of this range, linear between them.
        direction: Offset in the direction of motion, in full from a tenth of ``speed``.
        damping: Offset at the velocity ``speed``; proportional to the velocity below it, and constant above it.
        stiffness: Offset at a control error of ``difference``, in the same form.
        speed: Largest speed in the data, in rad/s or m/s.
        difference: Largest control error in the data: control − position for position servos, control − velocity for
            velocity servos, or the control itself for motors with torque commands.
        bound: Largest absolute value of the sum of all these offsets.
        sd: Standard deviation of the disturbance.
        time: Correlation time of the disturbance in s.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    positions: tuple[_Finite, _Finite]
    offsets: list[_Finite] = Field(min_length=2)
    direction: _Finite = 0.0
    damping: _Finite = 0.0
    stiffness: _Finite = 0.0
    speed: _Width
    difference: _Width
    bound: _Size
    sd: _Size = 0.0
    time: _Width = 1.0

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if not self.positions[0] < self.positions[1]:
            raise ValueError(f"positions must be [low, high], given {list(self.positions)}")
        return self


class ResidualSpec(BaseModel):
    """Section ``residual:`` of a twin's YAML file.

    Attributes:
        source: Data and method of the fit.
        joints: Residual of each joint that has one, all with the same number of ``offsets``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    joints: dict[str, JointResidual] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_offsets(self) -> Self:
        if len({len(joint.offsets) for joint in self.joints.values()}) > 1:
            raise ValueError("all joints must have the same number of offsets")
        return self


def check_residual_joints(residual: ResidualSpec | None, joints: Sequence[str], where: str) -> None:
    """Raise `UnknownNameError` if a residual names a joint that is not a joint of the robot.

    Args:
        residual: The residual; None for none.
        joints: Joints of the robot.
        where: Name of the twin or its file, for the message.
    """
    for name in residual.joints if residual else ():
        if name not in joints:
            raise UnknownNameError("joint of the robot", name, joints, where=f"{where}: residual.joints")
