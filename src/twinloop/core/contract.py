"""Define the contract of a policy (joints with units, control rate, tracked positions, cameras); compare contracts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from twinloop.core.plain import JsonRecord
from twinloop.core.units import COMMANDED, CommandKind, JointUnit, UnitMap

STATE = "observation.state"
ENVIRONMENT = "observation.environment_state"
IMAGES = "observation.images."
ACTION = "action"
_SAME_SCALE = (
    1e-3  # relative difference of a unit's size: two calibrations of one arm differ by more, round-off by less
)
_SAME_RATE = 0.01  # relative difference of the rate


@dataclass(frozen=True, kw_only=True)
class Contract(JsonRecord):
    """Inputs and outputs of a policy: robot, control rate, joints with units, tracked positions, cameras and task.

    Attributes:
        robot_type: Type of the robot, for example ``so101``.
        control_hz: Control rate in Hz.
        command: Meaning of an action: joint positions, velocities or torques.
        action: Joints and units of the columns of LeRobot's feature ``action``.
        state: Joints and units of the columns of ``observation.state``; None if the policy reads no joint positions.
        environment: Names of the columns of ``observation.environment_state``, which an external tracker measures:
            positions in m in the world frame of the twin, and headings of objects (rotation about the vertical) as
            cosine and sine.
        cameras: Image size (height, width) in pixels by camera name.
        task: Name of the task; empty if any task is accepted.
    """

    robot_type: str
    control_hz: float
    command: CommandKind = "position"
    action: UnitMap
    state: UnitMap | None = None
    environment: tuple[str, ...] = ()
    cameras: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    task: str = ""

    @property
    def command_units(self) -> UnitMap:
        """Units of the commands, which are positions, velocities or torques."""
        return self.action.of_commands(self.command)

    def find_differences(self, offered: Contract, *, reduced: bool = False) -> list[str]:
        """Return one sentence for each reason why a policy with this contract cannot run under another contract.

        Args:
            offered: Contract that the robot, the twin or the dataset provides.
            reduced: Whether larger images are reduced to the policy's size, so that they are no difference.

        Returns:
            The sentences; an empty list if the policy can run.
        """
        return [
            *self._compare_settings(offered),
            *_compare_joints(ACTION, self.action, offered.action),
            *self._compare_readings(offered),
            *self._compare_cameras(offered, reduced),
        ]

    def _compare_settings(self, offered: Contract) -> list[str]:
        differences: list[str] = []
        if offered.robot_type != self.robot_type:
            differences.append(f"robot: the policy is for {self.robot_type}, but {offered.robot_type} is given")
        if not math.isclose(offered.control_hz, self.control_hz, rel_tol=_SAME_RATE):
            differences.append(f"rate: the policy needs {self.control_hz:g} Hz, but {offered.control_hz:g} Hz is given")
        if offered.command != self.command:
            differences.append(
                f"commands: the policy gives {COMMANDED[self.command]}, but {COMMANDED[offered.command]} are required"
            )
        if self.task and offered.task and offered.task != self.task:
            differences.append(f"task: the policy is for {self.task}, but the task is {offered.task}")
        return differences

    def _compare_readings(self, offered: Contract) -> list[str]:
        differences: list[str] = []
        if self.state is not None and offered.state is None:
            differences.append(f"{STATE}: the policy reads {', '.join(self.state.names)}, which are not available")
        elif self.state is not None and offered.state is not None:
            differences += _compare_joints(STATE, self.state, offered.state)
        missing = [name for name in self.environment if name not in offered.environment]
        if missing:
            available = ", ".join(offered.environment) or "nothing"
            differences.append(f"{ENVIRONMENT}: the policy reads {', '.join(missing)}, but a tracker gives {available}")
        return differences

    def _compare_cameras(self, offered: Contract, reduced: bool) -> list[str]:
        differences: list[str] = []
        for name, (height, width) in self.cameras.items():
            size = offered.cameras.get(name)
            if size is None:
                differences.append(f"{IMAGES}{name}: no such camera; existing: {', '.join(offered.cameras) or 'none'}")
            elif tuple(size) != (height, width) and not (reduced and size[0] >= height and size[1] >= width):
                differences.append(
                    f"{IMAGES}{name}: the policy needs {width}x{height} pixels, but {size[1]}x{size[0]} is given"
                )
        return differences

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Contract:
        """Create the contract from the dictionary that `to_json` returns."""
        return cls(
            robot_type=value["robot_type"],
            control_hz=float(value["control_hz"]),
            command=value["command"],
            action=UnitMap.from_json(value["action"]),
            state=None if value["state"] is None else UnitMap.from_json(value["state"]),
            environment=tuple(value["environment"]),
            cameras={name: (int(size[0]), int(size[1])) for name, size in value["cameras"].items()},
            task=value["task"],
        )


def _compare_joints(where: str, required: UnitMap, offered: UnitMap) -> list[str]:
    """Return sentences on the differences of two unit maps: other joints, another joint order, or other units.

    Args:
        where: Name of the compared LeRobot feature, ``action`` or ``observation.state``.
        required: Unit map of the policy.
        offered: Unit map that the robot, the twin or the dataset provides.
    """
    if required.names != offered.names:
        return [f"{where}: the policy has {', '.join(required.names)}, but {', '.join(offered.names)} is given"]
    pairs = zip(required.joints, offered.joints, strict=True)
    return [f"{where} of {own.joint}: {text}" for own, given in pairs if (text := _describe_difference(own, given))]


def _describe_difference(own: JointUnit, given: JointUnit) -> str:
    if own.unit != given.unit:
        return f"the policy uses {own.unit}, but {given.unit} is given"
    if own.scale is None or given.scale is None or own.offset is None or given.offset is None:
        return "" if own == given else "the size of one unit in radians is unknown on one of the two sides"
    same_scale = math.isclose(own.scale, given.scale, rel_tol=_SAME_SCALE)
    if same_scale and abs(own.offset - given.offset) <= _SAME_SCALE:
        return ""
    return (
        f"a value v means {own.offset:.4g} + {own.scale:.4g} v rad or m to the policy, but "
        f"{given.offset:.4g} + {given.scale:.4g} v here"
    )
