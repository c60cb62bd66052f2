"""Define tasks: reset, success as a predicate on states, and a scripted expert.

Importing this package loads neither the tasks nor MuJoCo, so a command can name its default quickly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twinloop.tasks.protocol import Task
    from twinloop.tasks.registry import open_task, task_names

__all__ = ["DEFAULT_TASK", "DEFAULT_TWIN", "Task", "open_task", "task_names"]

DEFAULT_TASK = "pick_and_place"
"""Default task of commands."""

DEFAULT_TWIN = "so101_tabletop"
"""Default twin of commands, unless the workspace has one."""

_HOMES = {"Task": "protocol", "open_task": "registry", "task_names": "registry"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
