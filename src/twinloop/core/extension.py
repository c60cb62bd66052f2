"""Load a user's own class from ``path/to/file.py:ClassName``, and refuse code that the user has not approved.

Users can write their own robots, tasks, label rules, checks, encoders and renderers in Python. Python files and
TorchScript modules are code. Code runs if the user names it on the command line, in Python, or in a file of the user's
own workspace. A dataset, a scenario, a policy, or any other YAML file may come from another person. Therefore
`mark_references` adds a mark with the file's path to every reference to code in it, for example ``robot.py:MyRobot
(named by data/batch/meta)``. Every loader of code calls `require_approved` for a marked reference.

Approvals are SHA-256 digests of whole files. They are stored per user and machine in ``approved.jsonl``. A workspace is
the user's own if `twinloop init` created it on this machine, or if its folder was approved.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import hashlib
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Literal, cast
from urllib.parse import quote, unquote

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.files import dumps, sha256_file, sha256_json

# Formats that run code when they are opened; weights come as safetensors.
PICKLE_SUFFIXES = (".bin", ".ckpt", ".joblib", ".pickle", ".pkl", ".pt", ".pth")
HOME_VARIABLE = "TWINLOOP_HOME"
_FILE = "approved.jsonl"
_REFERENCE = re.compile(r"\.py:[^\W\d]\w*(\?.*)?$|^(torch|torchscript):")
_MARK = re.compile(r" \(named by ([^()]*)\)")
_WORKSPACE = "twinloop.yaml"
# Folders of a workspace whose content may come from other people, and the files that identify a folder of data.
_DATA_FOLDERS = frozenset({"catalog", "data", "policies", "runs", "scenarios"})
_DATA_FILES = ("meta/info.json", "scenario.yaml", "model.safetensors")
How = Literal["command", "init", "use"]
_command_line: tuple[str, ...] = ()


class NotApprovedError(InputError):
    """Error for code that is in a data folder or named in a data file, and that the user has not approved here."""


@dataclass(frozen=True, kw_only=True)
class Approval:
    """The approval of one file's content or of one workspace.

    Attributes:
        sha256: SHA-256 digest of the file; empty for a workspace.
        path: Absolute path of the file or of the workspace's folder.
        time: Time of the approval as ISO 8601 text in UTC.
        how: ``command`` if `twinloop approve` approved it, ``use`` if the user's own command ran the file, ``init`` if
            the workspace was created on this machine.
    """

    sha256: str
    path: str
    time: str
    how: How


def find_settings_folder() -> Path:
    """Return the folder of the user's settings.

    It is ``$TWINLOOP_HOME`` if set, otherwise the subfolder ``twinloop`` of ``$XDG_CONFIG_HOME`` or ``~/.config``.
    """
    if named := os.environ.get(HOME_VARIABLE):
        return Path(named)
    configured = os.environ.get("XDG_CONFIG_HOME")
    return (Path(configured) if configured else Path("~/.config").expanduser()) / "twinloop"


def read_approvals() -> list[Approval]:
    """Return the valid approvals on this machine, oldest first; lines that cannot be read are ignored."""
    try:
        text = (find_settings_folder() / _FILE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, RuntimeError):
        return []
    approvals: dict[str, Approval] = {}
    for line in text.splitlines():
        try:
            row = json.loads(line)
            key = row["sha256"] or row["path"]
            if row.pop("revoked", False):
                approvals.pop(key, None)
            else:
                approvals.setdefault(key, Approval(**row))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue
    return list(approvals.values())


def approve(path: Path, *, how: How = "command") -> Approval:
    """Approve the present content of a file, or a whole workspace.

    The code of an approved file may run even if a dataset or another person's file refers to it. An approved workspace
    counts as the user's own: code that its files outside of data folders name may run.

    Args:
        path: The file, or the folder of the workspace.
        how: Origin of the approval, see `Approval`.

    Raises:
        InputError: If the path is neither a file nor a workspace, or the approval cannot be saved.
    """
    if not path.is_file() and not (path / _WORKSPACE).is_file():
        raise InputError(
            f"{path} is neither a file nor a workspace. Give a Python file, a TorchScript module or a workspace."
        )
    approval = Approval(
        sha256=sha256_file(path) if path.is_file() else "",
        path=str(path.resolve()),
        time=datetime.now(UTC).isoformat("T", "seconds"),
        how=how,
    )
    _append(asdict(approval))
    return approval


def revoke(path: Path) -> list[Approval]:
    """Withdraw the approvals that were given for a path, and for the present content of the file at this path.

    Returns:
        The withdrawn approvals.

    Raises:
        InputError: If the path is not approved.
    """
    digest = sha256_file(path) if path.is_file() else "none"
    chosen = [row for row in read_approvals() if row.sha256 == digest or row.path == str(path.resolve())]
    if not chosen:
        raise InputError(f"{path} is not approved. `twinloop approve` lists the approved files.")
    for row in chosen:
        _append({**asdict(row), "revoked": True})
    return chosen


def _append(row: Mapping[str, Any]) -> None:
    try:
        file = find_settings_folder() / _FILE
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(handle, "ab") as opened:
            opened.write(f"{dumps(row)}\n".encode())  # one write: two processes do not mix their lines
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"Cannot save the approval ({error}). Set {HOME_VARIABLE} to a folder that you can write."
        ) from error


def mark_references(value: Any, origin: Path | str) -> Any:
    """Return a copy of plain data in which every reference to code has a mark with the origin ``origin``.

    References are texts such as ``file.py:ClassName``, ``torch:…`` or ``torchscript:…``; the mark is a suffix ``(named
    by ORIGIN)``. The code of a marked reference runs only if the content of its file is approved. All other values are
    unchanged.

    Args:
        value: Mappings, lists, texts and numbers, as parsed from YAML or JSON.
        origin: File or folder from which the data come, for the error message.
    """
    if isinstance(value, str):
        return _insert_mark(value, str(origin)) if _REFERENCE.search(value) else value
    if isinstance(value, Mapping):
        return {key: mark_references(item, origin) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [mark_references(item, origin) for item in cast("Sequence[Any]", value)]
    return value


def mark_foreign(value: Any, file: Path) -> Any:
    """Mark the references to code in the content of a YAML file, unless the file is in the user's own workspace.

    Args:
        value: Parsed content of the file.
        file: Path of the file.

    Returns:
        The content, with marked references (see `mark_references`) or unchanged.
    """
    return value if _is_in_own_workspace(file) else mark_references(value, file)


def split_mark(reference: str) -> tuple[str, str]:
    """Split a reference to code from its mark; return the reference without mark, and the data file in the mark.

    For example, ``robot.py:MyRobot (named by data/batch/meta)`` gives ``robot.py:MyRobot`` and ``data/batch/meta``. The
    second text is "" if the reference has no mark, and "data" if the mark contains no file.
    """
    origins = _MARK.findall(reference)
    return (_MARK.sub("", reference), unquote(origins[0]) or "data") if origins else (reference, "")


def _insert_mark(reference: str, origin: str) -> str:
    """Add the mark ``(named by ORIGIN)`` to a reference to code, before the options of a robot address.

    The options start at the first question mark, for example ``robot.py:Arm?port=1`` becomes ``robot.py:Arm (named by
    ORIGIN)?port=1``.
    """
    name, mark_of_options, options = reference.partition("?")
    return f"{name} (named by {quote(origin, safe='/ ')}){mark_of_options}{options}"


def record_command_line(words: Sequence[str]) -> None:
    """Store the words of the command line, so that `require_approved` accepts files that the user named there."""
    global _command_line
    _command_line = tuple(words)


def require_approved(path: Path, digest: str, origin: str, *, imported: Sequence[Path] = ()) -> None:
    """Refuse code that a data file names, or that is in a data folder, unless its content is approved.

    Code that the user names, for example on the command line, is approved automatically. Data files may then name it,
    too, as long as its content does not change.

    Args:
        path: Path of the file as written in the reference.
        digest: SHA-256 digest of the content that is about to run.
        origin: Origin of the reference from `split_mark`; empty if the user named the file.
        imported: Files that the code imports, for the message. Each must be approved itself when it is imported.

    Raises:
        NotApprovedError: If the code is not approved. The message has the command that approves it.
    """
    approved = {row.sha256 for row in read_approvals()}
    if digest in approved:
        return
    files = " ".join(map(str, [path, *(file for file in imported if sha256_file(file) not in approved)]))
    if origin or (is_in_data_folder(path) and not any(str(path) in word for word in _command_line)):
        who = f"{origin} names {path}, which" if origin else f"{path} is in a folder of data, and it"
        raise NotApprovedError(
            f"{who} has not been approved on this machine. It was not run. Read it, and if you trust it: twinloop "
            f"approve {files}"
        )
    approve_if_possible(path, how="use")


def approve_if_possible(path: Path, *, how: How) -> None:
    """Approve a file or workspace that the user's own command ran or created; do nothing if this cannot be saved.

    Args:
        path: The file, or the folder of the workspace.
        how: Origin of the approval, see `Approval`.
    """
    with contextlib.suppress(InputError):
        approve(path, how=how)


def is_in_data_folder(path: Path) -> bool:
    """Return whether a path is in a folder whose content may come from other people.

    These are datasets, scenarios and policies, and the folders ``catalog``, ``data``, ``policies``, ``runs`` and
    ``scenarios`` of a workspace.
    """
    path = path.absolute()
    return any(_is_below_data(place) for place in {path, path.resolve()})


def _is_below_data(path: Path) -> bool:
    for parent in path.parents:
        if any((parent / name).exists() for name in _DATA_FILES):
            return True
        if (parent / _WORKSPACE).is_file() and path.relative_to(parent).parts[0] in _DATA_FOLDERS:
            return True
    return False


def _is_in_own_workspace(path: Path) -> bool:
    """Return whether a file is in a workspace that the user created or approved, excluding its data folders."""
    own = {row.path for row in read_approvals() if not row.sha256}
    return any(str(parent) in own for parent in path.resolve().parents) and not is_in_data_folder(path)


_LONGEST_MESSAGE = 1000  # characters of an error


def load_class(kind: str, reference: str, existing: Iterable[str]) -> type[Any]:
    """Return the class with the reference ``path/to/file.py:ClassName``; a file with the same content runs only once.

    The file may import other files of its folder.

    Args:
        kind: Kind of the class, for error messages (``"task"``).
        reference: Reference from the user, or a marked reference from data (see `mark_references`).
        existing: Names of the built-in classes, for error messages.

    Raises:
        UnknownNameError: If the file does not exist or does not define the class.
        NotApprovedError: If data refer to the file or contain it, and its content is not approved.
        InputError: If the file cannot be run as Python.
    """
    reference, origin = split_mark(reference)
    path, separator, name = reference.rpartition(":")
    if separator and path.endswith(".py") and not Path(path).is_file():
        raise UnknownNameError(kind, reference, existing, where=f"{path}: there is no such file")
    if not separator or not path.endswith(".py"):
        where = f"the built-in {kind}s; for your own class write path/to/file.py:ClassName"
        raise UnknownNameError(kind, reference, existing, where=where)
    module = _load_module(Path(path), origin)
    loaded = getattr(module, name, None)
    if not isinstance(loaded, type):
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        raise UnknownNameError(f"{kind} class", name, classes, where=path)
    return loaded


def resolve_reference(reference: str, folder: Path) -> str:
    """Make the file path in a reference absolute if the file exists in ``folder``; text after the path is kept.

    Any other reference or name is returned unchanged.

    Args:
        reference: Reference ``path/to/file.py:ClassName``, also with a mark such as ``(named by data/batch/meta)``, or
            a name.
        folder: Folder to which a relative path refers.
    """
    path, separator, name = reference.rpartition(":")
    return f"{(folder / path).resolve()}:{name}" if separator and (folder / path).is_file() else reference


def require_reference(reference: str) -> str:
    """Check that the file of a marked reference to code is approved, and return the reference without its mark.

    A mark is text that `mark_references` appends to references in data, for example ``robot.py:MyRobot (named by
    data/batch/meta)``.

    Raises:
        NotApprovedError: If the reference has a mark, and the content of the file is not approved.
    """
    plain, origin = split_mark(reference)
    path = Path(plain.rpartition(":")[0])
    if origin and path.is_file():
        require_approved(path, sha256_file(path), origin)
    return plain


def describe_error(error: BaseException) -> str:
    """Describe an error in a user's code in one line: type, message, file and line number."""
    # A syntax error states its own location.
    frames = (
        list[traceback.FrameSummary]() if isinstance(error, SyntaxError) else traceback.extract_tb(error.__traceback__)
    )
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {_format_message(error)}{place}"


def _format_message(error: BaseException) -> str:
    """Return the message of an error as one shortened line of printable characters; "" if ``str(error)`` fails."""
    try:
        text = str(error)[: 2 * _LONGEST_MESSAGE]
    except BaseException:  # noqa: BLE001  # the text of a user's own error class may fail too
        return ""
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return line if len(line) <= _LONGEST_MESSAGE else line[: _LONGEST_MESSAGE - 1] + "…"


def _load_module(path: Path, origin: str) -> ModuleType:
    try:
        source = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from error
    digest = hashlib.sha256(source).hexdigest()
    try:
        imported = list_source_files(path)[1:]
    except InputError:  # running the file gives the better message
        imported = []
    require_approved(path, digest, origin, imported=imported)
    key = sha256_json([digest, *map(sha256_file, imported)]) if imported else digest
    name = f"twinloop_extension_{key[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(path)
    module.__dict__["__builtins__"] = vars(builtins) | {"__import__": _make_import(path.parent, origin)}
    sys.modules[name] = module
    try:
        exec(compile(source, str(path), "exec"), vars(module))  # noqa: S102 - the bytes that were just approved
    except (Exception, SystemExit) as error:  # any error of the user's file is reported as an error in that file
        del sys.modules[name]
        if isinstance(error, NotApprovedError):  # of a neighbour
            raise
        raise InputError(f"{path} does not run: {describe_error(error)}") from error
    return module


def _make_import(folder: Path, origin: str) -> Callable[..., Any]:
    """Return the import function of a user's file, which also finds the files in its folder.

    Their content must be approved like that of the file itself. Files of other folders with the same name are
    other modules. The standard library takes precedence.

    Args:
        folder: Folder of the file.
        origin: Origin of the reference to the file, see `require_approved`.
    """

    def import_module(
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002 - the names of Python's own function
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> Any:
        if level == 1 and not name:  # from . import NAME
            return SimpleNamespace(**{item: import_module(item, level=1) for item in fromlist})
        file = folder / f"{name}.py"
        if level <= 1 and is_neighbour(name, folder):
            return _load_module(file, origin)
        if level == 1:
            raise ImportError(f"there is no {file}", name=name, path=str(file))
        return builtins.__import__(name, globals, locals, fromlist, level)

    return import_module


def is_neighbour(name: str, folder: Path) -> bool:
    """Return whether a module name in a user's file means a file in the same folder."""
    return name not in sys.stdlib_module_names and (folder / f"{name}.py").is_file()


def list_source_files(path: Path) -> list[Path]:
    """Return a user's Python file and the files of its folder that it imports, directly or through each other.

    The files are parsed, not run. The first one is the file itself; the others are sorted.

    Raises:
        InputError: If a file cannot be read as Python.
    """
    found, waiting = set[Path](), [path]
    while waiting:
        file = waiting.pop()
        found.add(file)
        waiting += [other for other in _list_imports(file) if other not in found]
    return [path, *sorted(found - {path})]


def _list_imports(path: Path) -> list[Path]:
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as Python: {error}. Correct the file.") from error
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level <= 1:
            names += [node.module] if node.module else [alias.name for alias in node.names]
    return [path.parent / f"{name}.py" for name in names if is_neighbour(name, path.parent)]
