"""Check the metadata of a dataset folder, detect whether it grew, moved or was rewritten, and detect changed files.

The fingerprint of a dataset consists of the hash of ``info.json`` and one hash for each file of its episode table,
computed from the file's size and last bytes. A Parquet file ends with its footer, which has the location, the minimum
and the maximum of every column. Files with different rows therefore differ in their last bytes. Folder names and file
times are not included, so a moved or copied folder has the same fingerprint.

A seal is the recorded size and SHA-256 of a file when it was added, so that a changed byte is detected. Every file is
sealed except hidden files (``.git``, ``.cache``), links out of the folder, and datasets in subfolders. Block files
(``chunk-000/file-000``) never change. All other files, such as ``meta/info.json`` and ``README.md``, change as a
dataset grows. Their seals are renewed when the dataset is added again.
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
_SHOWN = 8  # maximum number of datasets that a message lists


def read_checked_info(folder: Path) -> dict[str, Any]:
    """Read ``meta/info.json`` of a LeRobotDataset v3.0 folder and check its values.

    Raises:
        DatasetError: If the folder does not exist, has another dataset version, or has an impossible value.
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
    """Return the datasets in subfolders up to two levels deep, as in ``OWNER/NAME`` of the Hugging Face Hub."""
    found = [path for depth in ("*", "*/*") for path in folder.glob(f"{depth}/{layout.INFO}")]
    return sorted(path.parents[1] for path in found)


Change = Literal["same", "grown", "changed"]

_END = 1 << 16  # bytes: more than the footer of a block of 64 episodes


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """Fingerprint of a dataset folder, which shows whether its episodes have changed.

    Attributes:
        info: SHA-256 of ``meta/info.json``.
        files: hash of the size and the last bytes of each file of the episode table, by its path in the folder.
    """

    info: str
    files: Mapping[str, str]

    @classmethod
    def of(cls, folder: Path) -> Fingerprint:
        """Compute the present fingerprint of a dataset folder.

        Raises:
            DatasetError: If the folder is not a dataset, or it changed during each of three attempts.
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
        """SHA-256 over all hashes of the fingerprint."""
        return sha256_json([self.info, dict(self.files)])

    def to_text(self) -> str:
        """Return the fingerprint as JSON text, as the table ``batches`` stores it."""
        return json.dumps({"info": self.info, "files": dict(self.files)})

    @classmethod
    def from_text(cls, text: str) -> Fingerprint:
        """Create a fingerprint from the JSON text that `to_text` returns."""
        value = parse_json(text, where="A stored fingerprint")
        return cls(info=value["info"], files=value["files"])

    def change_since(self, before: Fingerprint) -> Change:
        """Compare this fingerprint with an earlier one of the same folder.

        Returns:
            ``same``; ``grown`` if the files of the earlier fingerprint are unchanged and files may have been added; or
            ``changed`` if an earlier file was changed or removed.
        """
        if self == before:
            return "same"
        kept = all(self.files.get(path) == digest for path, digest in before.files.items())
        return "grown" if kept and len(self.files) >= len(before.files) else "changed"


def episode_files(folder: Path) -> list[str]:
    """Return the sorted paths of the files of a dataset's episode table, relative to the dataset's folder."""
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
    """Size and SHA-256 of a file when it was recorded, so that later changes are detected.

    Attributes:
        path: path of the file in its folder.
        bytes: size of the file in bytes.
        sha256: SHA-256 of the whole file, or of its last 64 KiB if ``whole`` is false.
        whole: false only for videos that an earlier version of twinloop recorded.
    """

    path: str
    bytes: int
    sha256: str
    whole: bool = True

    @classmethod
    def of(cls, folder: Path, path: str, *, whole: bool = True) -> Seal:
        """Compute the size and SHA-256 of a file now, to detect later changes of the file.

        Args:
            folder: folder that contains the file.
            path: path of the file in the folder.
            whole: whether the hash covers the whole file; if false, it covers the last 64 KiB.

        Raises:
            DatasetError: If the file is missing or cannot be read.
        """
        file = folder / path
        try:
            size, digest = file.stat().st_size, sha256_file(file) if whole else _hash_end(file)
        except (OSError, InputError) as error:
            raise DatasetError(f"{escape_path(file)} cannot be read ({error}).") from error
        return cls(path=path, bytes=size, sha256=digest, whole=whole)


def is_block_file(path: str) -> bool:
    """Return whether the path is that of a block file (``…/chunk-*/file-*``), which never changes once written."""
    return _BLOCK.match(path) is not None


def escape_path(path: Path | str) -> str:
    """Return a path as text for a message, with line breaks and other control characters escaped."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in str(path))


def list_sealed_files(folder: Path) -> list[str]:
    """Return the sorted paths of the dataset's files whose size and SHA-256 are recorded, relative to the folder.

    Hidden files and datasets in subfolders are not included. A symbolic link out of the folder is an error below
    ``data``, ``meta``, ``twinloop`` and ``videos``; elsewhere it is not included.

    Raises:
        DatasetError: If there is such a link below one of these four folders, or a file is not a regular file or has a
            name that is not valid text.
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
                    raise DatasetError(
                        f"{where} leaves the dataset's folder through a link. Replace the link by a copy."
                    )
            elif entry.is_dir(follow_symlinks=False):
                if not (Path(entry.path) / layout.INFO).is_file():
                    yield from _walk_files(folder, root, path)
            elif not entry.is_dir():
                _require_plain(entry, path)
                yield path


def _require_plain(entry: os.DirEntry[str], path: str) -> None:
    """Raise an error if a file is not a regular file (for example a pipe), because reading it could block forever.

    Raises:
        DatasetError: If the file is not regular, cannot be read, or has a name that is not valid text.
    """
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
    """Compute the present size and SHA-256 of the files of a dataset folder, to detect later changes.

    Args:
        folder: the dataset's folder.
        known: paths that are already recorded. Block files among them (numbered files ``chunk-*/file-*`` with data of
            many frames) are skipped, because they never change.

    Raises:
        DatasetError: If a file has a fault named in `list_sealed_files`, or a Parquet file is cut off.
    """
    skipped = {path for path in known if is_block_file(path)}
    paths = [path for path in list_sealed_files(folder) if path not in skipped]
    for path in paths:
        if is_block_file(path):
            require_footer(folder / path)
    return [Seal.of(folder, path) for path in paths]


def read_seals(state: WorkspaceState, batch: str) -> list[Seal]:
    """Return the recorded size and SHA-256 of each file of a batch (dataset folder in the catalog), sorted by path."""
    rows = state.rows("SELECT path, bytes, sha256, whole FROM seals WHERE batch = ? ORDER BY path", (batch,))
    return [Seal(path=r["path"], bytes=r["bytes"], sha256=r["sha256"], whole=bool(r["whole"])) for r in rows]


def is_sealed(seals: Sequence[Seal]) -> bool:
    """Return whether the recorded ``seals`` cover every file of a batch.

    An earlier version of twinloop recorded block files only. ``meta/info.json`` is not a block file, so all files were
    recorded if it was.
    """
    return any(item.path == layout.INFO for item in seals)


def require_footer(file: Path) -> None:
    """Raise an error if a Parquet file is damaged or cut off; files of other formats are not checked.

    Raises:
        DatasetError: If the Parquet file has no readable footer.
    """
    if file.suffix == ".parquet":
        with open_parquet(file):
            pass


def find_file_fault(folder: Path, before: Seal, *, deep: bool) -> str | None:
    """Compare a file with its recorded size and SHA-256.

    Args:
        folder: folder that contains the file.
        before: the recorded size and SHA-256.
        deep: whether to read every file. If false, block files and files above 1 MiB are compared by size only.

    Returns:
        The difference as the predicate of a sentence about the file, such as "is missing"; None if there is none.
    """
    file = folder / before.path
    if not file.is_file():
        return "is missing" if not os.path.lexists(file) else "is not a regular file any more"
    if not file.resolve().is_relative_to(folder.resolve()):
        return "is now a link out of the dataset's folder"
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
