"""Finding a task: a built-in name, or the user's own class as ``path/to/file.py:ClassName``, through one door."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.tasks.protocol import Task
from twinloop.twin import Twin

_BUILTIN = {"pick_and_place": ("twinloop.tasks.pick_and_place", "PickAndPlace")}


def task_names() -> list[str]:
    """Names of the built-in tasks."""
    return sorted(_BUILTIN)


def open_task(name: str, twin: Twin) -> Task:
    """The task of that name on a twin.

    Args:
        name: a built-in name, or ``path/to/file.py:ClassName``; the class is called with the twin.

    Raises:
        UnknownNameError: neither a built-in nor a class in a file.
        InputError: the file does not run as Python, the class is not a task, or the twin does not fit it.
    """
    module, class_name = _find(name)
    task_class = getattr(module, class_name, None)
    if not isinstance(task_class, type):
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        raise UnknownNameError("task class", class_name, classes, where=str(module.__file__))
    task = task_class(twin)
    missing = [part for part in _required() if not hasattr(task, part)]
    if missing:
        raise InputError(f"{name} is not a task: it lacks {', '.join(missing)}. See twinloop.tasks.protocol.Task.")
    return task


def _required() -> list[str]:
    methods = [key for key in vars(Task) if not key.startswith("_")]
    return sorted({*Task.__annotations__, *methods})


def _find(name: str) -> tuple[ModuleType, str]:
    if name in _BUILTIN:
        module, class_name = _BUILTIN[name]
        return importlib.import_module(module), class_name
    path, separator, class_name = name.rpartition(":")
    if not separator or not Path(path).is_file():
        where = "the built-in tasks, and it is no path/to/file.py:ClassName of a file that exists"
        raise UnknownNameError("task", name, task_names(), where=where)
    return _load(Path(path)), class_name


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file. Name one that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's file raises, it is the file that is wrong
        raise InputError(f"{path} does not run: {type(error).__name__}: {error}") from error
    return module
