"""Find a task by its built-in name, or as the user's class ``path/to/file.py:ClassName``."""

from __future__ import annotations

from collections.abc import Callable

from twinloop.core.errors import InputError, TwinloopError
from twinloop.core.extension import describe_error
from twinloop.core.registry import Registry
from twinloop.tasks.protocol import Task
from twinloop.twin import Twin

TASKS: Registry[Callable[[Twin], Task]] = Registry(
    "task",
    {
        "dock": "twinloop.tasks.dock:Dock",
        "drag_cloth": "twinloop.tasks.drag_cloth:DragCloth",
        "hand_over": "twinloop.tasks.hand_over:HandOver",
        "insert_peg": "twinloop.tasks.insert_peg:InsertPeg",
        "open_drawer": "twinloop.tasks.open_drawer:OpenDrawer",
        "pick_and_place": "twinloop.tasks.pick_and_place:PickAndPlace",
        "pour_granules": "twinloop.tasks.pour_granules:PourGranules",
        "press": "twinloop.tasks.press:Press",
        "push": "twinloop.tasks.push:Push",
        "route_cable": "twinloop.tasks.route_cable:RouteCable",
        "stack": "twinloop.tasks.stack:Stack",
        "turn_cube": "twinloop.tasks.turn_cube:TurnCube",
        "reach_moving": "twinloop.tasks.reach_moving:ReachMoving",
        "walk": "twinloop.tasks.walk:Walk",
    },
    group="twinloop.tasks",
    files=True,
)


def task_names() -> list[str]:
    """Return the names of the built-in tasks and of tasks that installed packages provide."""
    return sorted(TASKS)


def find_task_name(name: str, twin: Twin) -> str:
    """Return a task's name, or the only task that the twin's YAML has a section for if the name is empty.

    Raises:
        InputError: If the name is empty, and the YAML has settings of no or of several tasks.
    """
    if name:
        return name
    if len(twin.spec.task) != 1:
        kept = ", ".join(twin.spec.task) or "no task"
        raise InputError(
            f"No task is named, and the YAML of {twin.name} has settings of {kept}. Name the task: {', '.join(TASKS)}, "
            "or FILE.py:CLASS."
        )
    return next(iter(twin.spec.task))


def open_task(name: str, twin: Twin) -> Task:
    """Create a task for a twin by name.

    Args:
        name: name of a built-in task or of an installed package's task, or a class ``path/to/file.py:ClassName``.
        twin: the twin.

    Raises:
        UnknownNameError: If the task does not exist.
        InputError: If the file does not run as Python, the class is not a task or cannot be created, or the twin does
            not fit it.
    """
    found = TASKS[name]
    try:
        task = found(twin)
    except TwinloopError:
        raise
    except Exception as error:  # any exception of the user's class is an error of that class
        raise InputError(f"{name} could not be created for the twin {twin.name}: {describe_error(error)}.") from error
    missing = [part for part in _required_members() if not hasattr(task, part)]
    if missing:
        raise InputError(f"{name} is not a task: it lacks {', '.join(missing)}. See twinloop.tasks.protocol.Task.")
    return task


def _required_members() -> list[str]:
    methods = [key for key in vars(Task) if not key.startswith("_")]
    return sorted({*Task.__annotations__, *methods})
