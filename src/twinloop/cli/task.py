"""Define ``twinloop task``, which writes a class for the user's own task, or checks a task."""

from __future__ import annotations

from twinloop.cli.commands import Command, Group
from twinloop.workflows.task import requests

TASK = Group(
    name="task",
    description="Write a class for your own task, or check a task and its scripted expert.",
    commands=(
        Command(
            "new",
            requests.TaskNewRequest,
            "twinloop.workflows.task.tasks:run_task_new",
            example="twinloop task new my_task.py --twin my_twin.yaml",
        ),
        Command(
            "check",
            requests.TaskCheckRequest,
            "twinloop.workflows.task.tasks:run_task_check",
            example="twinloop task check my_task.py:MyTask --twin my_twin.yaml",
        ),
    ),
)
