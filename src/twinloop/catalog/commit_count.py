"""The number of the newest commit and the hash of ``state.sqlite``, in a small file next to it.

SQLite drops the end of its write-ahead log without a word where a byte of it is damaged. The commits in it are then
gone. The first line, written after each commit, holds how many there were, so that `fsck` can tell. The second line
holds the SHA-256 of ``state.sqlite`` after a commit, written when a process closes the file: it covers the bytes of
which SQLite makes no use, too. Where it is of an earlier commit, it says nothing.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from twinloop.core.files import sha256_bytes, sha256_file

_COUNT, _CHECK = 20, 42  # characters of a number, and of the check of a line
_FIRST = _COUNT + 1 + _CHECK + 1  # bytes of the first line


def count_file(state: Path) -> Path:
    """Return the path of the file that belongs to a ``state.sqlite``."""
    return state.with_name(f"{state.name}.commits")


def write_count(state: Path, count: int) -> None:
    """Write the number of a commit; does nothing where the folder cannot be written."""
    _write(state, _line(f"{count:0{_COUNT}d}"), 0)


def write_hash(state: Path, count: int) -> None:
    """Write the hash of ``state.sqlite`` as it is on the disk after a commit; does nothing where that cannot be."""
    with contextlib.suppress(OSError):
        _write(state, _line(f"{count:0{_COUNT}d} {sha256_file(state)}"), _FIRST)


def read_count(state: Path) -> int | None:
    """Return the number of the newest commit; None where the file is missing or damaged."""
    lines = _lines(state)
    return int(lines[0]) if lines else None


def read_hash(state: Path, count: int) -> str | None:
    """Return the SHA-256 that ``state.sqlite`` had after a commit, where it is known."""
    lines = _lines(state)
    number, _, digest = (lines[1] if len(lines) > 1 else "").partition(" ")
    return digest if digest and int(number) == count else None


def _write(state: Path, line: bytes, at: int) -> None:
    with contextlib.suppress(OSError):
        # In place and in one call: a process that is killed leaves the old line or the new one.
        handle = os.open(count_file(state), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
        try:
            if not _lines(state):
                os.ftruncate(handle, 0)  # what is there is damaged
            os.pwrite(handle, line, at)
        finally:
            os.close(handle)


def _line(text: str) -> bytes:
    return f"{text} {sha256_bytes(text.encode())[:_CHECK]}\n".encode()


def _lines(state: Path) -> list[str]:
    """Return the lines without their checks; none where one of them is damaged."""
    file = count_file(state)
    try:
        data = file.read_bytes() if file.is_file() else b""
        texts = [line.rpartition(" ")[0] for line in data.decode("ascii").splitlines()]
    except (OSError, UnicodeDecodeError):
        return []
    return texts if data == b"".join(_line(text) for text in texts) else []
