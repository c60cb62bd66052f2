"""Files that appear whole or not at all, and the hashes that name them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from twinloop.core.errors import DatasetError, InputError

_NO_SPACE = 28


@contextlib.contextmanager
def atomic_open(path: Path) -> Generator[BinaryIO]:
    """A binary file that replaces ``path`` when the block ends well, and leaves it untouched otherwise.

    Raises:
        DatasetError: the disk is full; what was there before is still there.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder, and a file was to be written. Name a file in it.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}). Choose another place.") from error
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno == _NO_SPACE:
            raise DatasetError(f"No space left on the disk while writing {path}. Free some and run again.") from error
        raise


def write_bytes(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` atomically."""
    with atomic_open(path) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically, as UTF-8."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` to ``path`` atomically, as indented JSON with a final newline."""
    write_text(path, dumps(value, indent=2) + "\n")


def read_json(path: Path) -> Any:
    """The JSON value in ``path``.

    Raises:
        InputError: the file is missing or is not JSON.
    """
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{path} does not exist.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid JSON ({error}).") from error


def dumps(value: Any, *, indent: int | None = None) -> str:
    """JSON text with numpy values as numbers, paths as text and sorted keys left as given."""
    return json.dumps(value, indent=indent, default=_plain, ensure_ascii=False, allow_nan=True)


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray | np.generic):
        return cast("object", value.tolist())
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def sha256_bytes(*parts: bytes) -> str:
    """SHA-256 of the concatenated parts, each preceded by its length so that borders count."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def sha256_json(value: Any) -> str:
    """SHA-256 of the canonical JSON form of ``value`` (keys sorted)."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=_plain).encode()).hexdigest()


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_tree(root: Path) -> str:
    """SHA-256 over the relative names and contents of all files under ``root`` (or of one file)."""
    if root.is_file():
        return sha256_file(root)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return sha256_json([(path.relative_to(root).as_posix(), sha256_file(path)) for path in files])
