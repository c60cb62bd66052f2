"""What each file of a dataset was when the catalog was told of it, so that a changed byte is noticed and named.

Files that are never written again once committed are sealed: frames, states, logs, side tables and the episode table
by the SHA-256 of all their bytes; videos by size and the SHA-256 of their end until `fsck --deep` has read them whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from twinloop.core.errors import DatasetError
from twinloop.core.files import sha256_bytes, sha256_file
from twinloop.dataset.parquet import open_parquet

_FOLDERS = ("data", "meta/episodes", "twinloop", "videos")
_END = 1 << 16  # bytes of a video that are read when it is added


@dataclass(frozen=True, kw_only=True)
class Seal:
    """A file's size and SHA-256, of all of it (``whole``) or of its end."""

    path: str
    bytes: int
    sha256: str
    whole: bool

    @classmethod
    def of(cls, folder: Path, path: str, *, whole: bool | None = None) -> Seal:
        """The seal of a file as it is now; videos by their end unless asked."""
        file = folder / path
        complete = not path.startswith("videos/") if whole is None else whole
        return cls(
            path=path,
            bytes=file.stat().st_size,
            sha256=sha256_file(file) if complete else _end(file),
            whole=complete,
        )


def sealed_files(folder: Path) -> list[str]:
    """The files of a dataset folder that are not written again, by their path in it.

    Raises:
        DatasetError: one leads out of the folder.
    """
    root, found = folder.resolve(), list[str]()
    for name in _FOLDERS:
        for path in sorted((folder / name).glob("**/chunk-*/file-*")):
            if not path.resolve().is_relative_to(root):
                raise DatasetError(f"{path} leads out of the dataset's folder. Nothing outside it is read.")
            found.append(path.relative_to(folder).as_posix())
    return found


def seal(folder: Path, known: Iterable[str] = ()) -> list[Seal]:
    """Seals of a folder's files, those left out that are known.

    Raises:
        DatasetError: a table has no readable footer: it was cut off before, and its seal would vouch for it.
    """
    skipped = set(known)
    paths = [path for path in sealed_files(folder) if path not in skipped]
    for path in paths:
        require_footer(folder / path)
    return [Seal.of(folder, path) for path in paths]


def require_footer(file: Path) -> None:
    """Refuse a table that was cut off or is none; files of another kind pass.

    Raises:
        DatasetError: names the file.
    """
    if file.suffix == ".parquet":
        with open_parquet(file):
            pass


def broken(folder: Path, before: Seal, *, deep: bool) -> str | None:
    """What is wrong with a file, or None; without ``deep`` its size and presence only."""
    file = folder / before.path
    if not file.is_file():
        return "is missing"
    size = file.stat().st_size
    if size != before.bytes:
        return f"has {size} bytes and had {before.bytes} when it was added"
    if (deep or not before.whole) and Seal.of(folder, before.path, whole=before.whole).sha256 != before.sha256:
        return "has other bytes than when it was added, though as many"
    return None


def _end(file: Path) -> str:
    with file.open("rb") as handle:
        size = os.fstat(handle.fileno()).st_size
        handle.seek(max(0, size - _END))
        return sha256_bytes(handle.read())
