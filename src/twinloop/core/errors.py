"""The error tree: every message names the wrong thing, what exists, and the next step."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable
from pathlib import Path

from twinloop.core.redaction import redacted


class TwinloopError(Exception):
    """Base of every error raised on purpose; ``exit_code`` is what the command line returns.

    Its message holds no credentials: they are removed from texts that libraries and addresses bring in.
    """

    exit_code = 2

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(redacted(one) if isinstance(one, str) else one for one in arguments))

    def __reduce__(self) -> tuple[object, ...]:
        """Cross a process border as the message it became."""
        return _again, (type(self), self.args, self.__dict__)


class InputError(TwinloopError):
    """What the user gave is wrong: a file, a name, a value, a unit."""


class UnknownNameError(InputError):
    """A name that does not exist; the message lists the nearest existing ones.

    Args:
        kind: what was looked up, in the singular (``"parameter"``).
        name: the name that was asked for.
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
    """A value or a range lies outside the physical bounds of its parameter."""


class UnitsError(InputError):
    """A quantity without a unit, or with one that does not fit; the message asks the question to answer."""


class LogError(InputError):
    """A robot log that cannot be used as it is: empty, NaN, time going backwards, a missing joint."""


class DatasetError(InputError):
    """A dataset folder that cannot be read or written as it is."""


class DatasetLockedError(DatasetError):
    """Another process writes to the same folder."""


class CheckFailedError(TwinloopError):
    """A gate or a check said no; the input was fine."""

    exit_code = 1


class MissingDependencyError(TwinloopError):
    """The environment lacks something; ``remedy`` is the command that provides it."""

    exit_code = 3

    def __init__(self, what: str, *, remedy: str) -> None:
        super().__init__(f"{what} To add it: {remedy}")
        self.remedy = remedy


def _again(kind: type[TwinloopError], arguments: tuple[object, ...], state: dict[str, object]) -> TwinloopError:
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
    errno.EISDIR: "Choose another output: that name is a folder's.",
    errno.ENOMEM: "Free memory, or run with fewer --workers.",
    errno.EAGAIN: "The limit of processes or threads is reached. End others, or run with fewer --workers.",
    errno.ESTALE: "The network drive was mounted anew. Open its folder again, then run the same command again.",
}


def is_full(error: BaseException | None) -> bool:
    """Return whether an error, or its cause, is an exhausted disk, quota or file size limit."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            return True
        error = error.__cause__ or error.__context__
    return False


def full(path: Path | str) -> DatasetError:
    """Return the error for a disk that filled up while ``path`` was written."""
    return DatasetError(
        f"No space left on the disk (or a file size limit reached) while writing {path}. What was committed before is "
        "unharmed. Free some space, then continue the run that made it, or run it again into another folder."
    )


def refused(error: BaseException, path: Path | str | None = None, *, what: str = "written") -> DatasetError:
    """Return the error to raise instead of one of the operating system.

    Args:
        error: the system's error; also any other error with a full disk among its causes.
        path: the output that the user named; by default the file that the system names.
        what: the attempted action, as a participle.
    """
    number, reason, name = _parts(error)
    place = path if path is not None else name or "A file"
    if is_full(error):
        return full(place)
    at = f" at {name}" if name and name != str(place) else ""
    step = _NEXT_STEPS.get(number, _WRITING if what == "written" else _READING)
    return DatasetError(f"{place} cannot be {what} ({reason}{at}). {step}")


def _parts(error: BaseException) -> tuple[int, str, str]:
    """Return an error's number, reason and file; zero and empty texts where it has none."""
    if not isinstance(error, OSError):
        return 0, str(error), ""
    name = error.filename if isinstance(error.filename, str | Path) else ""
    return error.errno or 0, error.strerror or str(error), str(name)
