"""Messages for what the operating system refuses: a full disk, a read-only folder, too many open files."""

from __future__ import annotations

import errno
from pathlib import Path

from twinloop.core.errors import DatasetError

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
