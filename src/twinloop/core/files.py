"""Write files atomically (completely or not at all), and compute SHA-256 hashes of files and values."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any, BinaryIO

from twinloop.core.documents import open_regular
from twinloop.core.errors import DatasetError, InputError, convert_os_error, is_disk_full
from twinloop.core.plain import to_plain_value


@contextlib.contextmanager
def atomic_open(path: Path) -> Generator[BinaryIO]:
    """Open a temporary binary file that replaces ``path`` when the ``with`` block ends without an error.

    After an error, the earlier file at ``path`` is unchanged. Missing parent folders are created.

    Raises:
        InputError: If the file cannot be created, for example because ``path`` is a folder.
        DatasetError: If the disk is full, or the operating system reports another error while writing.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a file. Name a file in it.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = _new_file(path)
    except OSError as error:
        kind = DatasetError if is_disk_full(error) else InputError
        raise kind(str(convert_os_error(error, path))) from error
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o644)
            name.replace(path)  # while the lock is held: from now on no other process treats the file as a leftover
    except BaseException as error:
        with contextlib.suppress(OSError):
            name.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise convert_os_error(error, path) from error
        raise


def _new_file(path: Path) -> tuple[int, Path]:
    """Create an empty locked temporary file ``.NAME.tmp`` next to ``path``; return its descriptor and path.

    The fixed name ensures that killed processes leave at most one temporary file. A random name is used if another
    process holds the lock, or if ``.NAME.tmp`` is not a regular file that this user can write.
    """
    name = path.with_name(f".{path.name}.tmp")
    with contextlib.suppress(OSError):
        handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            here, there = os.fstat(handle), name.lstat()
            if stat.S_ISREG(here.st_mode) and here.st_ino == there.st_ino and here.st_nlink == 1:
                os.ftruncate(handle, 0)
                return handle, name
        except OSError:
            os.close(handle)
            raise
        os.close(handle)
    handle, other = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    return handle, Path(other)


def write_bytes(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` atomically."""
    with atomic_open(path) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically, as UTF-8."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` to ``path`` atomically, as indented JSON with a final newline; see `dumps`."""
    write_text(path, dumps(value, indent=2) + "\n")


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON text; keys keep their order, and NaN and infinity are allowed.

    Args:
        value: Any value that `core.plain.to_plain_value` can convert.
        indent: Spaces per level; one line by default.
    """
    return json.dumps(value, indent=indent, default=to_plain_value, ensure_ascii=False, allow_nan=True)


def absolute_path(path: str | Path) -> Path:
    """Return an absolute path without ``..``; unlike `pathlib.Path.resolve`, it keeps symbolic links."""
    return Path(os.path.normpath(Path(path).absolute()))


def sha256_bytes(*parts: bytes) -> str:
    """Return the SHA-256 (hexadecimal) of several byte strings in sequence.

    Each byte string is preceded by its length, so that ``(b"ab", b"c")`` and ``(b"a", b"bc")`` have different hashes.
    """
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def sha256_json(value: Any) -> str:
    """Return the SHA-256 (hexadecimal) of a value's JSON text with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=to_plain_value).encode()).hexdigest()


def sha256_file(path: Path) -> str:
    """Return the SHA-256 (hexadecimal) of a file's content."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_tree(root: Path) -> str:
    """Return the SHA-256 (hexadecimal) over the relative paths and contents of all files in a folder.

    For a single file, the result is that of `sha256_file`.
    """
    if root.is_file():
        return sha256_file(root)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return sha256_json([(path.relative_to(root).as_posix(), sha256_file(path)) for path in files])
