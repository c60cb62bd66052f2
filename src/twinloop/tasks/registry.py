"""Finding a task: a built-in name, or the user's own class as ``path/to/file.py:ClassName``, through one door."""

from __future__ import annotations

from collections.abc import Callable

from twinloop.core.errors import InputError, TwinloopError
from twinloop.core.extension import raised
from twinloop.core.registry import Registry
from twinloop.tasks.protocol import Task
from twinloop.twin import Twin

TASKS: Registry[Callable[[Twin], Task]] = Registry(
    "task",
    {
        "pick_and_place": "twinloop.tasks.pick_and_place:PickAndPlace",
        "reach_moving": "twinloop.tasks.reach_moving:ReachMoving",
    },
    group="twinloop.tasks",
    files=True,
)


def task_names() -> list[str]:
    """Return the names of the built-in tasks and of those of installed packages."""
    return sorted(TASKS)


def open_task(name: str, twin: Twin) -> Task:
    """The task of that name on a twin.

    Args:
        name: a built-in name, one of an installed package, or ``path/to/file.py:ClassName``; called with the twin.

    Raises:
        UnknownNameError: neither a built-in nor a class in a file.
        InputError: the file does not run as Python, the class is not a task or cannot be made, or the twin does not
            fit it.
    """
    found = TASKS[name]
    try:
        task = found(twin)
    except TwinloopError:
        raise
    except Exception as error:  # whatever the user's class raises, it is the class that is wrong
        raise InputError(f"{name} could not be made on the twin {twin.name}: {raised(error)}.") from error
    missing = [part for part in _required() if not hasattr(task, part)]
    if missing:
        raise InputError(f"{name} is not a task: it lacks {', '.join(missing)}. See twinloop.tasks.protocol.Task.")
    return task


def _required() -> list[str]:
    methods = [key for key in vars(Task) if not key.startswith("_")]
    return sorted({*Task.__annotations__, *methods})
