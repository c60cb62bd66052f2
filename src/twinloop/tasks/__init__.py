"""What a robot should do: reset, success as a predicate on states, and a script that does it."""

from twinloop.tasks.protocol import Task
from twinloop.tasks.registry import open_task, task_names

__all__ = ["Task", "open_task", "task_names"]
