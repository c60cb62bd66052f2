"""Check the metadata of a dataset folder, detect whether it grew, moved or was rewritten, and seal its files.

The fingerprint of the episode table is the size and the end of each of its files. A Parquet file ends with its footer,
which has the location and the extremes of every column, so files with other rows have another end. Names of folders
and times of files do not count: a moved or copied folder has the same fingerprint.

A seal is the size and SHA-256 of a file when it was added, so that a changed byte is noticed. Every file is sealed
except hidden ones (``.git``, ``.cache``), links out of the folder, and datasets in subfolders. Files of blocks
(``chunk-000/file-000``) never change; others, such as ``meta/info.json`` and ``README.md``, change as a dataset grows.
Their seals are renewed when the dataset is added again.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from twinloop.catalog.state import WorkspaceState
from twinloop.core.documents import parse_json, read_json, require_regular
from twinloop.core.errors import DatasetError, InputError
from twinloop.core.files import sha256_bytes, sha256_file, sha256_json
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.parquet import open_parquet
from twinloop.dataset.lerobot.validation import require_valid_info

MOST_INFO_BYTES = 64 << 20
_SHOWN = 8  # most datasets that a message lists


def read_checked_info(folder: Path) -> dict[str, Any]:
    """Read ``info.json`` of a LeRobot v3.0 folder and check its values.

    Raises:
        DatasetError: no such folder, another version, or an impossible value; names the key.
    """
    where = folder / layout.INFO
    if not where.is_file():
        inner = _find_datasets(folder)
        if inner:
            named = " ".join(shlex.quote(str(path)) for path in inner[:_SHOWN]) + (" …" if len(inner) > _SHOWN else "")
            raise DatasetError(f"{folder} is not a dataset but has {len(inner)}. Add them: `twinloop add {named}`.")
        raise DatasetError(
            f"{folder} is not a LeRobot v3.0 dataset: {layout.INFO} is missing. Convert a log of another format: "
            f"`twinloop import {folder} --output FOLDER`."
        )
    if where.stat().st_size > MOST_INFO_BYTES:
        raise DatasetError(f"{where} has {where.stat().st_size} bytes, too many for metadata. Export it again.")
    try:
        info = read_json(where)
    except InputError as error:
        raise DatasetError(str(error)) from error
    if not isinstance(info, dict):
        raise DatasetError(f"{where} holds a {type(info).__name__}, not a JSON object. Export it again.")
    version = str(info.get("codebase_version"))
    if not version.startswith("v3."):
        raise DatasetError(
            f"{folder} is LeRobot {version}; the catalog takes v3.0. Convert it: "
            f"`twinloop import {folder} --output FOLDER`."
        )
    require_valid_info(info, folder)
    return info


def _find_datasets(folder: Path) -> list[Path]:
    """Return the datasets in the folder's subfolders, up to two levels deep, as in the Hub's OWNER/NAME."""
    found = [path for depth in ("*", "*/*") for path in folder.glob(f"{depth}/{layout.INFO}")]
    return sorted(path.parents[1] for path in found)


Change = Literal["same", "grown", "changed"]

_END = 1 << 16  # bytes: more than the footer of a block of 64 episodes


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """Digests of ``info.json`` and of each file of the episode table, by its path in the folder."""

    info: str
    files: Mapping[str, str]

    @classmethod
    def of(cls, folder: Path) -> Fingerprint:
        """Return the present fingerprint of a folder.

        Raises:
            DatasetError: it is not a dataset, or it changed during three attempts.
        """
        if (folder / layout.INFO).exists():
            require_regular(folder / layout.INFO)
        for _ in range(3):
            try:
                info = sha256_bytes((folder / layout.INFO).read_bytes())
                found = {path: _hash_size_and_end(folder / path) for path in episode_files(folder)}
                if info == sha256_bytes((folder / layout.INFO).read_bytes()):
                    return cls(info=info, files=found)
            except FileNotFoundError:
                continue
        raise DatasetError(f"{folder} is not a LeRobot dataset, or changes while it is read. Check the path.")

    @property
    def hash(self) -> str:
        """Hash over all digests."""
        return sha256_json([self.info, dict(self.files)])

    def to_text(self) -> str:
        """Return the fingerprint as JSON, for the table ``batches``."""
        return json.dumps({"info": self.info, "files": dict(self.files)})

    @classmethod
    def from_text(cls, text: str) -> Fingerprint:
        """Create the fingerprint from the JSON text that `to_text` returns."""
        value = parse_json(text, where="A stored fingerprint")
        return cls(info=value["info"], files=value["files"])

    def change_since(self, before: Fingerprint) -> Change:
        """Return the change since ``before``: ``same``, ``grown`` (only new files), or ``changed``."""
        if self == before:
            return "same"
        kept = all(self.files.get(path) == digest for path, digest in before.files.items())
        return "grown" if kept and len(self.files) >= len(before.files) else "changed"


def episode_files(folder: Path) -> list[str]:
    """Return the files of a folder's episode table, in order."""
    found = sorted((folder / "meta" / "episodes").glob("chunk-*/file-*.parquet"))
    return [path.relative_to(folder).as_posix() for path in found]


def _hash_size_and_end(path: Path) -> str:
    if path.exists():
        require_regular(path)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - _END))
        return sha256_bytes(str(size).encode(), file.read())


_ROOMS = ("data", "meta", "twinloop", "videos")  # folders in which a link out of the dataset is an error
_BLOCK = re.compile(r"(^|.*/)chunk-[^/]*/file-[^/]*$", re.DOTALL)
_VIDEO_END = 1 << 16  # bytes of a video that earlier versions hashed
_SMALL = 1 << 20  # bytes of a file that is hashed by every `fsck`, not only by a deep one


@dataclass(frozen=True, kw_only=True)
class Seal:
    """A file's size and SHA-256: of the whole file (``whole``) or, for videos in older workspaces, of its end."""

    path: str
    bytes: int
    sha256: str
    whole: bool = True

    @classmethod
    def of(cls, folder: Path, path: str, *, whole: bool = True) -> Seal:
        """Compute the present seal of a file.

        Raises:
            DatasetError: the file is missing or cannot be read.
        """
        file = folder / path
        try:
            size, digest = file.stat().st_size, sha256_file(file) if whole else _hash_end(file)
        except (OSError, InputError) as error:
            raise DatasetError(f"{escape_path(file)} cannot be read ({error}).") from error
        return cls(path=path, bytes=size, sha256=digest, whole=whole)


def is_block_file(path: str) -> bool:
    """Return whether a file belongs to a block; such files never change."""
    return _BLOCK.match(path) is not None


def escape_path(path: Path | str) -> str:
    """Return a path for a message, with line breaks and other control characters escaped."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in str(path))


def list_sealed_files(folder: Path) -> list[str]:
    """Return the paths of the files of a dataset folder that are sealed, sorted.

    Raises:
        DatasetError: a file to seal leads out of the folder, is not a regular file, or has a name that is not text.
    """
    return sorted(_walk_files(folder, folder.resolve(), ""))


def _walk_files(folder: Path, root: Path, below: str) -> Iterator[str]:
    with os.scandir(folder / below) as entries:
        for entry in entries:
            path = f"{below}/{entry.name}" if below else entry.name
            if entry.name.startswith("."):
                continue
            if entry.is_symlink() and not Path(entry.path).resolve().is_relative_to(root):
                if path.partition("/")[0] in _ROOMS:
                    where = escape_path(entry.path)
                    raise DatasetError(f"{where} leaves the dataset's folder. Files outside it are not read.")
            elif entry.is_dir(follow_symlinks=False):
                if not (Path(entry.path) / layout.INFO).is_file():
                    yield from _walk_files(folder, root, path)
            elif not entry.is_dir():
                _require_plain(entry, path)
                yield path


def _require_plain(entry: os.DirEntry[str], path: str) -> None:
    """Refuse a file that is not regular, such as a pipe, because reading it could block forever."""
    where = escape_path(entry.path)
    try:
        path.encode()
        regular = stat.S_ISREG(entry.stat().st_mode)
    except UnicodeEncodeError as error:
        raise DatasetError(f"{where}: the name of this file is not valid text. Rename the file.") from error
    except OSError as error:
        raise DatasetError(f"{where} cannot be read ({error.strerror}). Restore the file or remove it.") from error
    if not regular:
        raise DatasetError(f"{where} is not a regular file. Remove it from the dataset.")


def seal_files(folder: Path, known: Iterable[str] = ()) -> list[Seal]:
    """Compute the present seals of a folder's files, except of block files in ``known``.

    Raises:
        DatasetError: as `list_sealed_files`, or a table has no readable footer because it was cut off.
    """
    skipped = {path for path in known if is_block_file(path)}
    paths = [path for path in list_sealed_files(folder) if path not in skipped]
    for path in paths:
        if is_block_file(path):
            require_footer(folder / path)
    return [Seal.of(folder, path) for path in paths]


def read_seals(state: WorkspaceState, batch: str) -> list[Seal]:
    """Return the seals of a batch's files."""
    rows = state.rows("SELECT path, bytes, sha256, whole FROM seals WHERE batch = ? ORDER BY path", (batch,))
    return [Seal(path=r["path"], bytes=r["bytes"], sha256=r["sha256"], whole=bool(r["whole"])) for r in rows]


def is_sealed(seals: Sequence[Seal]) -> bool:
    """Return whether every file of a batch is sealed; an earlier version sealed only the files of blocks."""
    return any(item.path == layout.INFO for item in seals)


def require_footer(file: Path) -> None:
    """Refuse a Parquet file that is damaged or cut off; other kinds of files are accepted.

    Raises:
        DatasetError: names the file.
    """
    if file.suffix == ".parquet":
        with open_parquet(file):
            pass


def find_file_fault(folder: Path, before: Seal, *, deep: bool) -> str | None:
    """Return how a file differs from its seal, or None; without ``deep``, large files and blocks by size only."""
    file = folder / before.path
    if not file.is_file():
        return "is missing" if not os.path.lexists(file) else "is no regular file any more"
    if not file.resolve().is_relative_to(folder.resolve()):
        return "leaves the dataset's folder now"
    size = file.stat().st_size
    if size != before.bytes:
        return f"has {size} bytes and had {before.bytes} when it was added"
    read = deep or not before.whole or (size <= _SMALL and not is_block_file(before.path))
    try:
        changed = read and Seal.of(folder, before.path, whole=before.whole).sha256 != before.sha256
    except DatasetError as error:
        return f"cannot be read any more ({error})"
    return "has other bytes than when it was added, though as many" if changed else None


def _hash_end(file: Path) -> str:
    with file.open("rb") as handle:
        size = os.fstat(handle.fileno()).st_size
        handle.seek(max(0, size - _VIDEO_END))
        return sha256_bytes(handle.read())
