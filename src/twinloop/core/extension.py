"""A user's own class by ``path/to/file.py:ClassName``: one door for robots, tasks and whatever comes."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.files import sha256_file


def load_class(kind: str, reference: str, existing: Iterable[str]) -> type[Any]:
    """The class that ``path/to/file.py:ClassName`` names; its file is run once per content.

    Args:
        kind: what is looked up, for messages (``"task"``).
        reference: what the user wrote.
        existing: names of the built-in ones, for messages.

    Raises:
        UnknownNameError: no such file, or no such class in it.
        InputError: the file cannot be run as Python.
    """
    path, separator, name = reference.rpartition(":")
    if separator and path.endswith(".py") and not Path(path).is_file():
        raise UnknownNameError(kind, reference, existing, where=f"{path}: there is no such file")
    if not separator or not Path(path).is_file():
        where = f"the built-in {kind}s; one of your own is written path/to/file.py:ClassName"
        raise UnknownNameError(kind, reference, existing, where=where)
    module = _load(Path(path))
    found = getattr(module, name, None)
    if not isinstance(found, type):
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        raise UnknownNameError(f"{kind} class", name, classes, where=path)
    return found


def raised(error: Exception) -> str:
    """What a user's code raised, in one line: type, message, and the line of the file that raised it."""
    # A syntax error says itself where it is.
    frames = (
        list[traceback.FrameSummary]() if isinstance(error, SyntaxError) else traceback.extract_tb(error.__traceback__)
    )
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}{place}"


def _load(path: Path) -> ModuleType:
    name = f"twinloop_extension_{sha256_file(path)[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file. Name one that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's file raises, it is the file that is wrong
        del sys.modules[name]
        raise InputError(f"{path} does not run: {raised(error)}") from error
    return module
