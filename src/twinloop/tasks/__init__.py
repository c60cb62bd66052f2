"""Define the tasks of robots: initial states, success, and a scripted expert.

Importing this package loads neither the tasks nor MuJoCo.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twinloop.tasks.grasping import GraspFromAbove
    from twinloop.tasks.joint_motion import JointExpert
    from twinloop.tasks.own import OwnTask
    from twinloop.tasks.protocol import Task
    from twinloop.tasks.reaching import BearingFrame, GraspFrame
    from twinloop.tasks.reactive import Rule
    from twinloop.tasks.registry import find_task_name, open_task, task_names
    from twinloop.tasks.waypoints import Waypoint, WaypointExpert, set_height

__all__ = [
    "BearingFrame",
    "GraspFrame",
    "GraspFromAbove",
    "JointExpert",
    "OwnTask",
    "Rule",
    "Task",
    "Waypoint",
    "WaypointExpert",
    "find_task_name",
    "open_task",
    "set_height",
    "task_names",
]

_HOMES = {
    "BearingFrame": "reaching",
    "GraspFrame": "reaching",
    "GraspFromAbove": "grasping",
    "JointExpert": "joint_motion",
    "OwnTask": "own",
    "Rule": "reactive",
    "Task": "protocol",
    "Waypoint": "waypoints",
    "WaypointExpert": "waypoints",
    "find_task_name": "registry",
    "open_task": "registry",
    "set_height": "waypoints",
    "task_names": "registry",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
