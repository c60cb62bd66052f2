"""What a robot should do: reset, success as a predicate on states, and a script that does it.

Importing this package alone loads neither the tasks nor MuJoCo, so that a command can name its default.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twinloop.tasks.protocol import Task
    from twinloop.tasks.registry import open_task, task_names

__all__ = ["DEFAULT_TASK", "DEFAULT_TWIN", "Task", "open_task", "task_names"]

DEFAULT_TASK = "pick_and_place"
"""The task of commands that are given none."""

DEFAULT_TWIN = "so101_tabletop"
"""The twin of commands that are given none, outside a workspace that has one."""

_HOMES = {"Task": "protocol", "open_task": "registry", "task_names": "registry"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
