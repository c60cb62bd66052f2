"""Define the error classes; every message names the invalid input, the existing choices, and the next step."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable
from pathlib import Path

from twinloop.core.redaction import redact_text


class TwinloopError(Exception):
    """Base class of all intentional errors; ``exit_code`` is the exit code of the command line.

    Credentials are removed from its message, because libraries and addresses may contain them.
    """

    exit_code = 2

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(redact_text(one) if isinstance(one, str) else one for one in arguments))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the error with its final message, for another process."""
        return _rebuild_error, (type(self), self.args, self.__dict__)


class InputError(TwinloopError):
    """The user's input is invalid: a file, a name, a value, a unit."""


class UnknownNameError(InputError):
    """A name that does not exist; the message lists the nearest existing ones.

    Args:
        kind: kind of the name, in the singular (``"parameter"``).
        name: the unknown name.
        existing: the names that exist.
        where: the file, key or object in which it was looked up.
    """

    def __init__(self, kind: str, name: str, existing: Iterable[str], *, where: str = "") -> None:
        names = sorted(existing)
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
        place = f" in {where}" if where else ""
        if near:
            hint = "Nearest existing: " + ", ".join(near) + "."
        elif names:
            hint = "Existing: " + ", ".join(names[:12]) + (", …" if len(names) > 12 else "") + "."
        else:
            hint = "None exist here."
        super().__init__(f"Unknown {kind} {name!r}{place}. {hint}")
        self.name, self.near = name, near


class BoundsError(InputError):
    """A value or a range is outside the physical bounds of its parameter."""


class UnitsError(InputError):
    """A quantity without a unit, or with a unit that does not fit; the message requests a valid unit."""


class LogError(InputError):
    """A robot log that cannot be used: empty, NaN, time that decreases, a missing joint."""


class DatasetError(InputError):
    """A dataset folder that cannot be read or written."""


class DatasetLockedError(DatasetError):
    """Another process writes to the same folder."""


class CheckFailedError(TwinloopError):
    """A gate or a check failed on valid input."""

    exit_code = 1


class MissingDependencyError(TwinloopError):
    """A package or program is not installed; ``remedy`` is the command that installs it."""

    exit_code = 3

    def __init__(self, what: str, *, remedy: str) -> None:
        super().__init__(f"{what} To add it: {remedy}")
        self.remedy = remedy


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
    """Return whether an error, or its cause, is a full disk, an exhausted quota or a file size limit."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            return True
        error = error.__cause__ or error.__context__
    return False


def make_disk_full_error(path: Path | str) -> DatasetError:
    """Return the error for a disk that became full while ``path`` was written."""
    return DatasetError(
        f"No space left on the disk (or a file size limit reached) while writing {path}. Earlier commits are "
        "unchanged. Free some space, then continue the run that made it, or run it again into another folder."
    )


def convert_os_error(error: BaseException, path: Path | str | None = None, *, what: str = "written") -> DatasetError:
    """Return the error to raise in place of an operating-system error.

    Args:
        error: the system's error, or any other error with a full disk among its causes.
        path: the output that the user named; by default the file in the system's error.
        what: the attempted action, as a participle.
    """
    number, reason, name = _split_os_error(error)
    place = path if path is not None else name or "A file"
    if is_disk_full(error):
        return make_disk_full_error(place)
    at = f" at {name}" if name and name != str(place) else ""
    step = _NEXT_STEPS.get(number, _WRITING if what == "written" else _READING)
    return DatasetError(f"{place} cannot be {what} ({reason}{at}). {step}")


def _split_os_error(error: BaseException) -> tuple[int, str, str]:
    """Return an error's number, reason and file; zero and empty texts if it has none."""
    if not isinstance(error, OSError):
        return 0, str(error), ""
    name = error.filename if isinstance(error.filename, str | Path) else ""
    return error.errno or 0, error.strerror or str(error), str(name)
