"""Define the error classes of twinloop, and convert operating-system errors to them.

Every message gives the invalid input, the valid choices, and the next step.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable
from pathlib import Path

from twinloop.core.redaction import redact_text


class TwinloopError(Exception):
    """Base class of all errors that twinloop raises on purpose.

    Credentials are removed from its message, because texts from libraries, such as URLs, may contain them.

    Attributes:
        exit_code: Exit code of the command line after this error: 1 if a check failed, 2 for invalid input, 3 if a
            package or program is missing.
    """

    exit_code = 2

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(redact_text(one) if isinstance(one, str) else one for one in arguments))

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickling, so that an error in a worker process reaches the parent process with its message."""
        return _rebuild_error, (type(self), self.args, self.__dict__)


class InputError(TwinloopError):
    """Error for invalid user input, such as a file, a name, a value or a unit."""


_SIMILAR = 0.6  # the share of equal characters from which difflib's documentation takes texts as close


def nearest_names(name: str, existing: Iterable[str], *, most: int = 3) -> list[str]:
    """Return the existing names most similar to a name, or to which it is similar as an abbreviation; nearest first.

    Args:
        name: The unknown name.
        existing: Names that exist.
        most: Largest number of names to return.
    """
    found, least = list[tuple[float, float, str]](), _SIMILAR if len(name) > 3 else 0.5  # one of two letters
    for one in existing:
        whole, start = (difflib.SequenceMatcher(None, name, text).ratio() for text in (one, one[: len(name)]))
        if max(whole, start) >= least or (name and name in one):
            found.append((-max(whole, start), -whole, one))
    return [one for _, _, one in sorted(found)[:most]]


class UnknownNameError(InputError):
    """Error for a name that does not exist; the message lists the most similar existing names.

    Args:
        kind: Kind of the name, in the singular (``"parameter"``).
        name: The unknown name.
        existing: Names that exist.
        where: File, key or object in which the name was looked up, for the message.
        add: Command that adds such a name, for the message if none exists.
    """

    def __init__(self, kind: str, name: str, existing: Iterable[str], *, where: str = "", add: str = "") -> None:
        names = sorted(existing)
        near = nearest_names(name, names)
        place = f" in {where}" if where else ""
        if near:
            hint = "Nearest existing: " + ", ".join(near) + "."
        elif names:
            hint = "Existing: " + ", ".join(names[:12]) + (", …" if len(names) > 12 else "") + "."
        else:
            hint = f"None exist here; `{add}` adds one." if add else "None exist here."
        super().__init__(f"Unknown {kind} {name!r}{place}. {hint}")
        self.name, self.near = name, near


class BoundsError(InputError):
    """Error for a value or a range outside the physical bounds of a parameter."""


class UnitsError(InputError):
    """Error for a quantity whose unit is missing or does not fit; the message asks for a valid unit."""


class LogError(InputError):
    """Error for a robot log that cannot be used: it is empty, has NaN, decreasing time or a missing joint."""


class DatasetError(InputError):
    """Error for a dataset folder or an output file that cannot be read or written."""


class DatasetLockedError(DatasetError):
    """Error for a dataset folder to which another process is writing."""


class CheckFailedError(TwinloopError):
    """Error for a gate or a check that failed although its input is valid; the exit code is 1."""

    exit_code = 1


class MissingDependencyError(TwinloopError):
    """Error for a package or program that is not installed; the exit code is 3.

    Args:
        what: Sentence that states what is missing; also an attribute of the error.
        remedy: Command that installs it; also an attribute of the error.
    """

    exit_code = 3

    def __init__(self, what: str, *, remedy: str) -> None:
        super().__init__(f"{what} To add it: {remedy}")
        self.what, self.remedy = what, remedy


def _rebuild_error(kind: type[TwinloopError], arguments: tuple[object, ...], state: dict[str, object]) -> TwinloopError:
    error = kind.__new__(kind)
    error.args, error.__dict__ = arguments, state
    return error


_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_WRITING = "Choose another output folder, or make this one writable."
_READING = "Check the path, its permissions, and that no other program changes it."
_FILES = "Raise the limit of open files (`ulimit -n 4096`), then run the same command again."
_NEXT_STEPS = {
    errno.EROFS: "Choose an output on another file system, or mount this one for writing.",
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.ENAMETOOLONG: "Choose another output folder, or a shorter name.",
    errno.EIO: "The disk or the network drive has a fault: see the system's log, and work on another disk.",
    errno.ENOTDIR: "Choose another output folder, or move the file that is in its path.",
    errno.EISDIR: "Choose another output: a folder has that name.",
    errno.ENOMEM: "Free memory, or run with fewer --workers.",
    errno.EAGAIN: "The limit of processes or threads is reached. End others, or run with fewer --workers.",
    errno.ESTALE: "The network drive was mounted again. Open its folder again, then run the same command again.",
}


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether an error or one of its causes means a full disk, an exhausted quota or a file size limit."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            return True
        error = error.__cause__ or error.__context__
    return False


def make_disk_full_error(path: Path | str) -> DatasetError:
    """Return the error to raise if the disk became full while the file or folder ``path`` was written."""
    return DatasetError(
        f"No space left on the disk (or a file size limit reached) while writing {path}. Earlier commits are "
        "unchanged. Free some space, then continue the run that made it, or run it again into another folder."
    )


def convert_os_error(error: BaseException, path: Path | str | None = None, *, what: str = "written") -> DatasetError:
    """Convert an operating-system error to a `DatasetError` with the reason and the next step, for the caller to raise.

    Args:
        error: The `OSError`, or another error that a full disk caused.
        path: Output path that the user gave; by default the path in the error.
        what: The failed action as a participle for the message: ``"written"`` or ``"read"``.
    """
    number, reason, name = _split_os_error(error)
    place = path if path is not None else name or "A file"
    if is_disk_full(error):
        return make_disk_full_error(place)
    at = f" at {name}" if name and name != str(place) else ""
    step = _NEXT_STEPS.get(number, _WRITING if what == "written" else _READING)
    return DatasetError(f"{place} cannot be {what} ({reason}{at}). {step}")


def _split_os_error(error: BaseException) -> tuple[int, str, str]:
    """Return the errno number, the reason and the file name of an error.

    The number is 0 and the file name is empty if the error is not an `OSError`.
    """
    if not isinstance(error, OSError):
        return 0, str(error), ""
    name = error.filename if isinstance(error.filename, str | Path) else ""
    return error.errno or 0, error.strerror or str(error), str(name)
