"""Files of a commit on the Hub: as its listing names them, where they may lie, and whether what arrived is they."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from twinloop.core.documents import read_bytes
from twinloop.core.errors import DatasetError
from twinloop.core.files import sha256_file


@dataclass(frozen=True, kw_only=True)
class HubFile:
    """A file of a commit: path, size in bytes, and SHA-256 of its content, or the SHA-1 that git names it by."""

    path: str
    size: int
    sha256: str
    blob: str


def listed_file(entry: Any) -> HubFile | None:
    """A file of the Hub's listing; None for a folder."""
    if not hasattr(entry, "blob_id"):
        return None
    large = getattr(entry, "lfs", None)
    return HubFile(
        path=str(entry.path), size=int(entry.size), sha256=str(large.sha256) if large else "", blob=str(entry.blob_id)
    )


def refuse_outside(name: str, repo_id: str) -> None:
    """Refuse a name that leaves the folder or hides in it.

    Raises:
        DatasetError: names it.
    """
    path = PurePosixPath(name)
    first = path.parts[0] if path.parts else ""
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in first or first in ("", ".cache"):
        raise DatasetError(
            f"{repo_id} names the file {name!r}, which leaves the dataset's folder or hides in it. Nothing was "
            "downloaded; tell its owner."
        )


def verify_files(stage: Path, files: Sequence[HubFile], repo_id: str) -> None:
    """Compare what arrived with its size and hash.

    Raises:
        DatasetError: a file is not what the listing says; it is removed, so that the next pull brings it again.
    """
    for file in files:
        path = stage / file.path
        if path.is_symlink() or not path.resolve().is_relative_to(stage.resolve()):
            raise DatasetError(f"{file.path} of {repo_id} is a link out of the folder. Nothing was kept.")
        if path.stat().st_size == file.size and _digest(path, file) == (file.sha256 or file.blob):
            path.chmod(0o644)  # data, nothing to be run
            continue
        path.unlink()
        raise DatasetError(
            f"{file.path} of {repo_id} arrived damaged: its content is not what its hash says. It was removed; pull "
            "again, and only what is missing is downloaded."
        )


def remove_others(stage: Path, names: set[str]) -> None:
    """Remove what an earlier pull of another commit left."""
    for path in sorted(stage.rglob("*"), reverse=True):
        if path.is_file() and path.relative_to(stage).as_posix() not in names:
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _digest(path: Path, file: HubFile) -> str:
    """The hash by which the Hub knows a file: SHA-256 of large ones, git's SHA-1 of others."""
    if file.sha256:
        return sha256_file(path)
    data = read_bytes(path, file.size)
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
