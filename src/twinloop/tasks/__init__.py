"""Define the tasks of robots: initial states, success, and a scripted expert.

Importing this package loads neither the tasks nor MuJoCo, so a command can show its default task quickly.
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
    from twinloop.tasks.registry import open_task, task_names
    from twinloop.tasks.waypoints import Waypoint, WaypointExpert, set_height

__all__ = [
    "DEFAULT_TASK",
    "DEFAULT_TWIN",
    "BearingFrame",
    "GraspFrame",
    "GraspFromAbove",
    "JointExpert",
    "OwnTask",
    "Task",
    "Waypoint",
    "WaypointExpert",
    "open_task",
    "set_height",
    "task_names",
]

DEFAULT_TASK = "pick_and_place"
"""Task that commands use if the user names none."""

DEFAULT_TWIN = "so101_tabletop"
"""Twin that commands use if neither the user nor the workspace names one."""

_HOMES = {
    "BearingFrame": "reaching",
    "GraspFrame": "reaching",
    "GraspFromAbove": "grasping",
    "JointExpert": "joint_motion",
    "OwnTask": "own",
    "Task": "protocol",
    "Waypoint": "waypoints",
    "WaypointExpert": "waypoints",
    "open_task": "registry",
    "set_height": "waypoints",
    "task_names": "registry",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
