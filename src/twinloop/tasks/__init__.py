"""Define the tasks of robots: initial states, success, and a scripted expert.

Importing this package loads neither the tasks nor MuJoCo, so a command can show its default task quickly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twinloop.tasks.protocol import Task
    from twinloop.tasks.registry import open_task, task_names

__all__ = ["DEFAULT_TASK", "DEFAULT_TWIN", "Task", "open_task", "task_names"]

DEFAULT_TASK = "pick_and_place"
"""Task that commands use if the user names none."""

DEFAULT_TWIN = "so101_tabletop"
"""Twin that commands use if neither the user nor the workspace names one."""

_HOMES = {"Task": "protocol", "open_task": "registry", "task_names": "registry"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
