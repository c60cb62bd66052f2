"""Define the contract of a policy (joints with units, rate, trackers, cameras), and compare two contracts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from twinloop.core.plain import JsonRecord
from twinloop.core.units import JointUnit, UnitMap

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
    """Inputs and outputs of a policy, with LeRobot's names.

    ``state`` and ``action`` are the units of the joint columns of ``observation.state`` and ``action``; a policy that
    reads no joints has no ``state``. ``environment`` names the columns of ``observation.environment_state``, which a
    tracker measures: positions in m in the world frame of the twin, headings as cosine and sine. ``cameras`` maps each
    camera to its image size (height, width) in pixels. ``task`` is the name of the task, empty if any task is accepted.
    """

    robot_type: str
    control_hz: float
    command: Literal["position", "torque"] = "position"
    action: UnitMap
    state: UnitMap | None = None
    environment: tuple[str, ...] = ()
    cameras: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    task: str = ""

    def find_differences(self, offered: Contract) -> list[str]:
        """Return one sentence for each reason why this contract's policy cannot run with the ``offered`` contract."""
        return [
            *self._compare_settings(offered),
            *_compare_joints(ACTION, self.action, offered.action),
            *self._compare_readings(offered),
            *self._compare_cameras(offered),
        ]

    def _compare_settings(self, offered: Contract) -> list[str]:
        found: list[str] = []
        if offered.robot_type != self.robot_type:
            found.append(f"robot: the policy is for {self.robot_type}, this is {offered.robot_type}")
        if not math.isclose(offered.control_hz, self.control_hz, rel_tol=_SAME_RATE):
            found.append(f"rate: the policy acts at {self.control_hz:g} Hz, this runs at {offered.control_hz:g} Hz")
        if offered.command != self.command:
            found.append(f"commands: the policy gives {self.command}s, this takes {offered.command}s")
        if self.task and offered.task and offered.task != self.task:
            found.append(f"task: the policy is for {self.task}, this is {offered.task}")
        return found

    def _compare_readings(self, offered: Contract) -> list[str]:
        found: list[str] = []
        if self.state is not None and offered.state is None:
            found.append(f"{STATE}: the policy reads {', '.join(self.state.names)}, which are not available")
        elif self.state is not None and offered.state is not None:
            found += _compare_joints(STATE, self.state, offered.state)
        missing = [name for name in self.environment if name not in offered.environment]
        if missing:
            there = ", ".join(offered.environment) or "nothing"
            found.append(f"{ENVIRONMENT}: the policy reads {', '.join(missing)}; a tracker here gives {there}")
        return found

    def _compare_cameras(self, offered: Contract) -> list[str]:
        found: list[str] = []
        for name, (height, width) in self.cameras.items():
            there = offered.cameras.get(name)
            if there is None:
                found.append(f"{IMAGES}{name}: no such camera; there is {', '.join(offered.cameras) or 'none'}")
            elif tuple(there) != (height, width):
                found.append(
                    f"{IMAGES}{name}: the policy sees {width}x{height} pixels, this gives {there[1]}x{there[0]}"
                )
        return found

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Contract:
        """Create the object from the dictionary that `to_json` returns."""
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


def _compare_joints(where: str, wanted: UnitMap, offered: UnitMap) -> list[str]:
    """Return the differences of two unit maps: other joints, another order, or other units."""
    if wanted.names != offered.names:
        return [f"{where}: the policy has {', '.join(wanted.names)}, this has {', '.join(offered.names)}"]
    pairs = zip(wanted.joints, offered.joints, strict=True)
    return [
        f"{where} of {mine.joint}: {said}" for mine, theirs in pairs if (said := _describe_difference(mine, theirs))
    ]


def _describe_difference(mine: JointUnit, theirs: JointUnit) -> str:
    if mine.unit != theirs.unit:
        return f"the policy means {mine.unit}, this means {theirs.unit}"
    if mine.scale is None or theirs.scale is None or mine.offset is None or theirs.offset is None:
        return "" if mine == theirs else "the size of one unit in radians is unknown on one of the two sides"
    same_scale = math.isclose(mine.scale, theirs.scale, rel_tol=_SAME_SCALE)
    if same_scale and abs(mine.offset - theirs.offset) <= _SAME_SCALE:
        return ""
    return (
        f"a value v means {mine.offset:.4g} + {mine.scale:.4g} v rad or m to the policy, "
        f"{theirs.offset:.4g} + {theirs.scale:.4g} v here"
    )
