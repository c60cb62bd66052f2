"""The size and SHA-256 of each file of a dataset folder when it was added, so that a changed byte is noticed and named.

Every file is sealed but hidden ones (``.git``, ``.cache``), links that lead out of the folder, and datasets in folders
of their own. Files of blocks (``chunk-000/file-000``) are never written again; the others, as ``meta/info.json`` and
``README.md``, change as a dataset grows. Their seals are renewed when the dataset is added again.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from twinloop.catalog.state import State
from twinloop.core.errors import DatasetError, InputError
from twinloop.core.files import sha256_bytes, sha256_file
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.parquet import open_parquet

_ROOMS = ("data", "meta", "twinloop", "videos")  # folders of which every file counts: none may be a link to outside
_BLOCK = re.compile(r"(^|.*/)chunk-[^/]*/file-[^/]*$", re.DOTALL)
_END = 1 << 16  # bytes of a video that earlier versions hashed
_SMALL = 1 << 20  # bytes of a file that is hashed by every `fsck`, not only by a deep one


@dataclass(frozen=True, kw_only=True)
class Seal:
    """A file's size and SHA-256, of all of it (``whole``) or, of videos in older workspaces, of its end."""

    path: str
    bytes: int
    sha256: str
    whole: bool = True

    @classmethod
    def of(cls, folder: Path, path: str, *, whole: bool = True) -> Seal:
        """Return the seal of a file as it is now.

        Raises:
            DatasetError: the file is gone or cannot be read.
        """
        file = folder / path
        try:
            size, digest = file.stat().st_size, sha256_file(file) if whole else _end(file)
        except (OSError, InputError) as error:
            raise DatasetError(f"{readable(file)} cannot be read ({error}).") from error
        return cls(path=path, bytes=size, sha256=digest, whole=whole)


def of_block(path: str) -> bool:
    """Return whether a file belongs to a block, which is never written again."""
    return _BLOCK.match(path) is not None


def readable(path: Path | str) -> str:
    """Return a path for a message: a line break or another control character in a name is escaped."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in str(path))


def sealed_files(folder: Path) -> list[str]:
    """Return the files of a dataset folder that are sealed, by their path in it, sorted.

    Raises:
        DatasetError: a file that counts leads out of the folder, is no regular file, or has a name that is no text.
    """
    return sorted(_walk(folder, folder.resolve(), ""))


def _walk(folder: Path, root: Path, below: str) -> Iterator[str]:
    with os.scandir(folder / below) as entries:
        for entry in entries:
            path = f"{below}/{entry.name}" if below else entry.name
            if entry.name.startswith("."):
                continue
            if entry.is_symlink() and not Path(entry.path).resolve().is_relative_to(root):
                if path.partition("/")[0] in _ROOMS:
                    where = readable(entry.path)
                    raise DatasetError(f"{where} leaves the dataset's folder. Nothing outside it is read.")
            elif entry.is_dir(follow_symlinks=False):
                if not (Path(entry.path) / layout.INFO).is_file():
                    yield from _walk(folder, root, path)
            elif not entry.is_dir():
                _require_plain(entry, path)
                yield path


def _require_plain(entry: os.DirEntry[str], path: str) -> None:
    """Refuse what is no regular file, such as a pipe: to read it could take forever."""
    where = readable(entry.path)
    try:
        path.encode()
        regular = stat.S_ISREG(entry.stat().st_mode)
    except UnicodeEncodeError as error:
        raise DatasetError(f"{where}: the name of this file is no text. Rename the file.") from error
    except OSError as error:
        raise DatasetError(f"{where} cannot be read ({error.strerror}). Restore the file or remove it.") from error
    if not regular:
        raise DatasetError(f"{where} is no regular file. Remove it from the dataset.")


def seal(folder: Path, known: Iterable[str] = ()) -> list[Seal]:
    """Return the seals of a folder's files as they are now, but for files of blocks that are known.

    Raises:
        DatasetError: see `sealed_files`; or a table has no readable footer: it was cut off before.
    """
    skipped = {path for path in known if of_block(path)}
    paths = [path for path in sealed_files(folder) if path not in skipped]
    for path in paths:
        if of_block(path):
            require_footer(folder / path)
    return [Seal.of(folder, path) for path in paths]


def seals_of(state: State, batch: str) -> list[Seal]:
    """Return the seals of a batch's files."""
    rows = state.rows("SELECT path, bytes, sha256, whole FROM seals WHERE batch = ? ORDER BY path", (batch,))
    return [Seal(path=r["path"], bytes=r["bytes"], sha256=r["sha256"], whole=bool(r["whole"])) for r in rows]


def is_sealed(seals: Sequence[Seal]) -> bool:
    """Return whether every file of a batch is sealed; an earlier version sealed the files of blocks alone."""
    return any(item.path == layout.INFO for item in seals)


def require_footer(file: Path) -> None:
    """Refuse a table that was cut off or is none; files of another kind pass.

    Raises:
        DatasetError: names the file.
    """
    if file.suffix == ".parquet":
        with open_parquet(file):
            pass


def broken(folder: Path, before: Seal, *, deep: bool) -> str | None:
    """Return what is wrong with a file, or None; without ``deep`` large files by size and presence only."""
    file = folder / before.path
    if not file.is_file():
        return "is missing" if not os.path.lexists(file) else "is no regular file any more"
    if not file.resolve().is_relative_to(folder.resolve()):
        return "leaves the dataset's folder now"
    size = file.stat().st_size
    if size != before.bytes:
        return f"has {size} bytes and had {before.bytes} when it was added"
    read = deep or not before.whole or (size <= _SMALL and not of_block(before.path))
    try:
        changed = read and Seal.of(folder, before.path, whole=before.whole).sha256 != before.sha256
    except DatasetError as error:
        return f"cannot be read any more ({error})"
    return "has other bytes than when it was added, though as many" if changed else None


def _end(file: Path) -> str:
    with file.open("rb") as handle:
        size = os.fstat(handle.fileno()).st_size
        handle.seek(max(0, size - _END))
        return sha256_bytes(handle.read())
