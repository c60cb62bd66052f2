"""Load a user's own class by ``path/to/file.py:ClassName``: robots, tasks, rules, checks, encoders, renderers."""

from __future__ import annotations

import hashlib
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from twinloop.core.approval import require_approved, split_mark
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.files import sha256_file

_LONGEST_MESSAGE = 1000  # characters of an error


def load_class(kind: str, reference: str, existing: Iterable[str]) -> type[Any]:
    """Return the class that ``path/to/file.py:ClassName`` names; its file runs once per content.

    Args:
        kind: what is looked up, for messages (``"task"``).
        reference: as the user wrote it, or as data name it (`core.approval.mark`).
        existing: names of the built-in ones, for messages.

    Raises:
        UnknownNameError: no such file, or no such class in it.
        NotApprovedError: data name the file, or it is among data, and its content is not approved.
        InputError: the file cannot be run as Python.
    """
    reference, origin = split_mark(reference)
    path, separator, name = reference.rpartition(":")
    if separator and path.endswith(".py") and not Path(path).is_file():
        raise UnknownNameError(kind, reference, existing, where=f"{path}: there is no such file")
    if not separator or not path.endswith(".py"):
        where = f"the built-in {kind}s; one of your own is written path/to/file.py:ClassName"
        raise UnknownNameError(kind, reference, existing, where=where)
    module = _load(Path(path), origin)
    found = getattr(module, name, None)
    if not isinstance(found, type):
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        raise UnknownNameError(f"{kind} class", name, classes, where=path)
    return found


def resolve_beside(reference: str, folder: Path) -> str:
    """Return a reference whose file, where ``folder`` has it, is an absolute path; a mark stays.

    A name without a file stays as it is.
    """
    path, separator, name = reference.rpartition(":")
    return f"{(folder / path).resolve()}:{name}" if separator and (folder / path).is_file() else reference


def require_reference(reference: str) -> str:
    """Return a reference without its mark, once the content of its file is approved.

    Raises:
        NotApprovedError: it is not.
    """
    plain, origin = split_mark(reference)
    path = Path(plain.rpartition(":")[0])
    if origin and path.is_file():
        require_approved(path, sha256_file(path), origin)
    return plain


def raised(error: BaseException) -> str:
    """What a user's code raised, in one line: type, message, and the line of the file that raised it."""
    # A syntax error says itself where it is.
    frames = (
        list[traceback.FrameSummary]() if isinstance(error, SyntaxError) else traceback.extract_tb(error.__traceback__)
    )
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {_message(error)}{place}"


def _message(error: BaseException) -> str:
    """Return the text of an error in one line of printable characters, shortened; "" where it cannot be had."""
    try:
        text = str(error)[: 2 * _LONGEST_MESSAGE]
    except BaseException:  # noqa: BLE001  # the error of a user's class may fail to say what it is
        return ""
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return line if len(line) <= _LONGEST_MESSAGE else line[: _LONGEST_MESSAGE - 1] + "…"


def _load(path: Path, origin: str) -> ModuleType:
    try:
        source = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from error
    digest = hashlib.sha256(source).hexdigest()
    require_approved(path, digest, origin)
    name = f"twinloop_extension_{digest[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    try:
        exec(compile(source, str(path), "exec"), vars(module))  # noqa: S102 - the bytes that were just approved
    except (Exception, SystemExit) as error:  # whatever the user's file raises, it is the file that is wrong
        del sys.modules[name]
        raise InputError(f"{path} does not run: {raised(error)}") from error
    return module
