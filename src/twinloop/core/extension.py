"""Load a user's own class by ``path/to/file.py:ClassName``: robots, tasks, rules, checks, encoders, renderers.

Python files and TorchScript modules are code. Code that the user names on the command line, in Python, or in a file of
the user's own workspace runs. A dataset, a scenario, a policy, or any other YAML file may come from another person: a
reference to code in it gets a mark (`mark_references`), and every loader of code calls `require_approved` for a marked
reference. Approvals are SHA-256 digests of whole files, stored per user and machine in ``approved.jsonl``. A workspace
is the user's own if `twinloop init` created it on this machine, or if its folder was approved.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, cast
from urllib.parse import quote, unquote

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.files import dumps, sha256_file

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
    """Code that data refer to, or that came with data, and that the user has not approved on this machine."""


@dataclass(frozen=True, kw_only=True)
class Approval:
    """The approval of one file's content, or of a workspace, which has no ``sha256``.

    ``how`` is ``command`` for `twinloop approve`, ``use`` if the user's own command ran the file, and ``init`` for a
    workspace that was created on this machine.
    """

    sha256: str
    path: str
    time: str
    how: How


def find_settings_folder() -> Path:
    """Return the folder of the user's settings: ``$TWINLOOP_HOME``, or ``twinloop`` in the configuration folder."""
    if named := os.environ.get(HOME_VARIABLE):
        return Path(named)
    configured = os.environ.get("XDG_CONFIG_HOME")
    return (Path(configured) if configured else Path("~/.config").expanduser()) / "twinloop"


def read_approvals() -> list[Approval]:
    """Return the approvals on this machine, oldest first. An unreadable line approves nothing."""
    try:
        text = (find_settings_folder() / _FILE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, RuntimeError):
        return []
    found: dict[str, Approval] = {}
    for line in text.splitlines():
        try:
            row = json.loads(line)
            key = row["sha256"] or row["path"]
            if row.pop("revoked", False):
                found.pop(key, None)
            else:
                found.setdefault(key, Approval(**row))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue
    return list(found.values())


def approve(path: Path, *, how: How = "command") -> Approval:
    """Approve the present content of a file, or a workspace by its folder.

    Raises:
        InputError: the path is neither, or the approval cannot be saved.
    """
    if not path.is_file() and not (path / _WORKSPACE).is_file():
        raise InputError(f"{path} is neither a file nor a workspace. Give a Python file or a TorchScript module.")
    made = Approval(
        sha256=sha256_file(path) if path.is_file() else "",
        path=str(path.resolve()),
        time=datetime.now(UTC).isoformat("T", "seconds"),
        how=how,
    )
    _append(asdict(made))
    return made


def revoke(path: Path) -> list[Approval]:
    """Withdraw the approvals of a path: those of a file's present content, and all that were given under this path.

    Raises:
        InputError: nothing is approved under that path.
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
    """Return a copy of plain data in which every reference to code is marked as named by ``origin``.

    A marked reference runs only if the content of its file is approved. All other values are unchanged.
    """
    if isinstance(value, str):
        return _insert_mark(value, str(origin)) if _REFERENCE.search(value) else value
    if isinstance(value, Mapping):
        return {key: mark_references(item, origin) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [mark_references(item, origin) for item in cast("Sequence[Any]", value)]
    return value


def mark_foreign(value: Any, file: Path) -> Any:
    """Return the content of a YAML file; mark references to code unless the file is in the user's own workspace."""
    return value if _is_in_own_workspace(file) else mark_references(value, file)


def split_mark(reference: str) -> tuple[str, str]:
    """Return a reference without its mark, and the origin in the mark; empty without a mark."""
    found = _MARK.findall(reference)
    return (_MARK.sub("", reference), unquote(found[0]) or "data") if found else (reference, "")


def _insert_mark(reference: str, origin: str) -> str:
    """Insert the mark before the options of a robot, because its address is split at the first question mark."""
    name, mark_of_options, options = reference.partition("?")
    return f"{name} (named by {quote(origin, safe='/ ')}){mark_of_options}{options}"


def record_command_line(words: Sequence[str]) -> None:
    """Record the words of the command line: a file named there is the user's choice, in any folder."""
    global _command_line
    _command_line = tuple(words)


def require_approved(path: Path, digest: str, origin: str) -> None:
    """Refuse code that data refer to, or that is in a folder of data, unless its content is approved.

    Code that the user names is approved by that: data that refer to the same content later may run it.

    Args:
        path: the file, as it was named.
        digest: SHA-256 of the content that is about to run.
        origin: the file or data that refers to it, from `split_mark`; empty for the user.

    Raises:
        NotApprovedError: gives the file, its origin, and the command that approves it.
    """
    if any(row.sha256 == digest for row in read_approvals()):
        return
    if origin or (is_in_data_folder(path) and not any(str(path) in word for word in _command_line)):
        who = f"{origin} names {path}, which" if origin else f"{path} is in a folder of data, and it"
        raise NotApprovedError(
            f"{who} has not been approved on this machine. It was not run. Read it, and if you trust it: twinloop "
            f"approve {path}"
        )
    approve_if_possible(path, how="use")


def approve_if_possible(path: Path, *, how: How) -> None:
    """Approve a file that the user's own command ran or made; if this cannot be saved, it stays unapproved."""
    with contextlib.suppress(InputError):
        approve(path, how=how)


def is_in_data_folder(path: Path) -> bool:
    """Return whether a path is in a dataset, a scenario or a policy, or in a workspace's folder of such data."""
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
    """Return whether a file is in a workspace that the user created or approved, outside its data folders."""
    own = {row.path for row in read_approvals() if not row.sha256}
    return any(str(parent) in own for parent in path.resolve().parents) and not is_in_data_folder(path)


_LONGEST_MESSAGE = 1000  # characters of an error


def load_class(kind: str, reference: str, existing: Iterable[str]) -> type[Any]:
    """Return the class that ``path/to/file.py:ClassName`` names; its file runs once per content.

    Args:
        kind: kind of class, for messages (``"task"``).
        reference: as the user wrote it, or as data refer to it (`mark_references`).
        existing: names of the built-in classes, for messages.

    Raises:
        UnknownNameError: no such file, or no such class in it.
        NotApprovedError: data refer to the file or contain it, and its content is not approved.
        InputError: the file cannot be run as Python.
    """
    reference, origin = split_mark(reference)
    path, separator, name = reference.rpartition(":")
    if separator and path.endswith(".py") and not Path(path).is_file():
        raise UnknownNameError(kind, reference, existing, where=f"{path}: there is no such file")
    if not separator or not path.endswith(".py"):
        where = f"the built-in {kind}s; for your own class write path/to/file.py:ClassName"
        raise UnknownNameError(kind, reference, existing, where=where)
    module = _load_module(Path(path), origin)
    found = getattr(module, name, None)
    if not isinstance(found, type):
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        raise UnknownNameError(f"{kind} class", name, classes, where=path)
    return found


def resolve_reference(reference: str, folder: Path) -> str:
    """Return a reference with the absolute path of its file if the file is in ``folder``; a mark is kept.

    A name without a file is not changed.
    """
    path, separator, name = reference.rpartition(":")
    return f"{(folder / path).resolve()}:{name}" if separator and (folder / path).is_file() else reference


def require_reference(reference: str) -> str:
    """Return a reference without its mark, after checking that the content of its file is approved.

    Raises:
        NotApprovedError: it is not approved.
    """
    plain, origin = split_mark(reference)
    path = Path(plain.rpartition(":")[0])
    if origin and path.is_file():
        require_approved(path, sha256_file(path), origin)
    return plain


def describe_error(error: BaseException) -> str:
    """Describe an error of a user's code in one line: type, message, file and line number."""
    # A syntax error states its own location.
    frames = (
        list[traceback.FrameSummary]() if isinstance(error, SyntaxError) else traceback.extract_tb(error.__traceback__)
    )
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {_format_message(error)}{place}"


def _format_message(error: BaseException) -> str:
    """Return an error's text in one shortened line of printable characters; "" if the text itself fails."""
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
    require_approved(path, digest, origin)
    name = f"twinloop_extension_{digest[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    try:
        exec(compile(source, str(path), "exec"), vars(module))  # noqa: S102 - the bytes that were just approved
    except (Exception, SystemExit) as error:  # any error of the user's file is reported as an error in that file
        del sys.modules[name]
        raise InputError(f"{path} does not run: {describe_error(error)}") from error
    return module
