"""Define ``twinloop tasks``, which lists tasks, writes a class for the user's own task, or checks a task."""

from __future__ import annotations

from twinloop.cli.commands import Command, Group
from twinloop.workflows.task import requests

TASKS = Group(
    name="tasks",
    description="List the tasks of the library, write a class for your own, or check a task and its scripted expert.",
    commands=(
        Command(
            "list",
            requests.TaskListRequest,
            "twinloop.workflows.task.library:run_tasks_list",
            example="twinloop tasks list --image tasks.png",
        ),
        Command(
            "new",
            requests.TaskNewRequest,
            "twinloop.workflows.task.tasks:run_task_new",
            example="twinloop tasks new my_task.py --twin my_twin.yaml",
        ),
        Command(
            "check",
            requests.TaskCheckRequest,
            "twinloop.workflows.task.tasks:run_task_check",
            example="twinloop tasks check my_task.py:MyTask --twin my_twin.yaml",
        ),
    ),
)
