"""Load a user's own class by ``path/to/file.py:ClassName``: robots, tasks, rules, checks, encoders, renderers.

Python files and TorchScript modules are code. The user names code on the command line, in Python, or in a file of the
user's own workspace; that code runs. A dataset, a scenario, a policy, or any other YAML file may have come from
somebody else: a reference in it carries a mark (`mark`), which every loader of code removes and answers with
`require_approved`. Approvals are SHA-256 digests of whole files, kept per user and machine in ``approved.jsonl``. A
workspace is the user's own where `twinloop init` made it on this machine, or where its folder was approved.
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
# Folders of a workspace whose content may come from elsewhere, and the file by which a folder of data is recognized.
_DATA_FOLDERS = frozenset({"catalog", "data", "policies", "runs", "scenarios"})
_DATA_FILES = ("meta/info.json", "scenario.yaml", "model.safetensors")
How = Literal["command", "init", "use"]
_command_line: tuple[str, ...] = ()


class NotApprovedError(InputError):
    """Code that data name, or that came with data, and that the user has not approved on this machine."""


@dataclass(frozen=True, kw_only=True)
class Approval:
    """The approval of one file's content, or of a workspace, which has no ``sha256``.

    ``how`` is ``command`` for `twinloop approve`, ``use`` where the user's own command ran the file, and ``init`` for a
    workspace that was made on this machine.
    """

    sha256: str
    path: str
    time: str
    how: How


def home() -> Path:
    """Return the folder of the user's settings: ``$TWINLOOP_HOME``, or ``twinloop`` in the folder for configuration."""
    if named := os.environ.get(HOME_VARIABLE):
        return Path(named)
    configured = os.environ.get("XDG_CONFIG_HOME")
    return (Path(configured) if configured else Path("~/.config").expanduser()) / "twinloop"


def approvals() -> list[Approval]:
    """Return the approvals on this machine, oldest first. A line that cannot be read approves nothing."""
    try:
        text = (home() / _FILE).read_text(encoding="utf-8")
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
        InputError: it is neither, or the approval cannot be saved.
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
    """Withdraw the approvals of a path: of a file's present content, and of all that was approved under its path.

    Raises:
        InputError: nothing of that path is approved.
    """
    digest = sha256_file(path) if path.is_file() else "none"
    chosen = [row for row in approvals() if row.sha256 == digest or row.path == str(path.resolve())]
    if not chosen:
        raise InputError(f"{path} is not approved. `twinloop approve` lists the approved files.")
    for row in chosen:
        _append({**asdict(row), "revoked": True})
    return chosen


def _append(row: Mapping[str, Any]) -> None:
    try:
        file = home() / _FILE
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(handle, "ab") as opened:
            opened.write(f"{dumps(row)}\n".encode())  # one write: two processes do not mix their lines
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"Cannot save the approval ({error}). Name a folder of your own in {HOME_VARIABLE}."
        ) from error


def mark(value: Any, origin: Path | str) -> Any:
    """Return plain data with every reference to code marked as named by ``origin``; the data are not changed.

    A marked reference runs only where the content of its file is approved. All other values stay as they are.
    """
    if isinstance(value, str):
        return _marked(value, str(origin)) if _REFERENCE.search(value) else value
    if isinstance(value, Mapping):
        return {key: mark(item, origin) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [mark(item, origin) for item in cast("Sequence[Any]", value)]
    return value


def mark_foreign(value: Any, file: Path) -> Any:
    """Return the content of a YAML file, its references to code marked unless the user's own workspace has the file."""
    return value if _in_own_workspace(file) else mark(value, file)


def split_mark(reference: str) -> tuple[str, str]:
    """Return a reference without its mark, and what named it; empty where it has no mark."""
    found = _MARK.findall(reference)
    return (_MARK.sub("", reference), unquote(found[0]) or "data") if found else (reference, "")


def _marked(reference: str, origin: str) -> str:
    """Insert the mark before the options of a robot, whose address is cut at its first question mark."""
    name, mark_of_options, options = reference.partition("?")
    return f"{name} (named by {quote(origin, safe='/ ')}){mark_of_options}{options}"


def name_on_command_line(words: Sequence[str]) -> None:
    """Record the words of the command line: a file named there is the user's choice, wherever it is."""
    global _command_line
    _command_line = tuple(words)


def require_approved(path: Path, digest: str, origin: str) -> None:
    """Refuse code that data name, or that is in a folder of data, unless its content is approved.

    Code that the user names is approved by that: data which name the same content later may run it.

    Args:
        path: the file, as it was named.
        digest: SHA-256 of the content that is about to run.
        origin: what named it, from `split_mark`; empty for the user.

    Raises:
        NotApprovedError: names the file, what named it, and the command that approves it.
    """
    if any(row.sha256 == digest for row in approvals()):
        return
    if origin or (in_data(path) and not any(str(path) in word for word in _command_line)):
        who = f"{origin} names {path}, which" if origin else f"{path} is in a folder of data, and it"
        raise NotApprovedError(
            f"{who} has not been approved on this machine. It was not run. Read it, and if you trust it: twinloop "
            f"approve {path}"
        )
    approve_if_possible(path, how="use")


def approve_if_possible(path: Path, *, how: How) -> None:
    """Approve what the user's own command ran or made; where it cannot be saved, data that name it stay refused."""
    with contextlib.suppress(InputError):
        approve(path, how=how)


def in_data(path: Path) -> bool:
    """Return whether a path is in a dataset, a scenario or a policy, or in a workspace's folder of such data."""
    path = path.absolute()
    return any(_holds_data(place) for place in {path, path.resolve()})


def _holds_data(path: Path) -> bool:
    for parent in path.parents:
        if any((parent / name).exists() for name in _DATA_FILES):
            return True
        if (parent / _WORKSPACE).is_file() and path.relative_to(parent).parts[0] in _DATA_FOLDERS:
            return True
    return False


def _in_own_workspace(path: Path) -> bool:
    """Return whether a file is in a workspace that the user made or approved, and not in its data."""
    own = {row.path for row in approvals() if not row.sha256}
    return any(str(parent) in own for parent in path.resolve().parents) and not in_data(path)


_LONGEST_MESSAGE = 1000  # characters of an error


def load_class(kind: str, reference: str, existing: Iterable[str]) -> type[Any]:
    """Return the class that ``path/to/file.py:ClassName`` names; its file runs once per content.

    Args:
        kind: what is looked up, for messages (``"task"``).
        reference: as the user wrote it, or as data name it (`mark`).
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
