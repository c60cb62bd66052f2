"""Decide which files belong to a dataset, so that `pull` and `fetch` download only these files.

A dataset consists of tables, images, videos and JSON in the folders of LeRobot's layout (v2.1 or v3.0) and of twinloop.
All other files are excluded: programs, pickles, notebooks, hidden files, and file names that another operating system
would interpret as a device or a path.
"""

from __future__ import annotations

import shutil
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from twinloop.core.errors import DatasetError

MOST_FILES = 1_000_000
_TABLES = frozenset({".json", ".jsonl", ".parquet"})
# The suffixes of files, by the folder at the top.
_KINDS = {
    "meta": _TABLES,
    "data": frozenset({".parquet"}),
    "videos": frozenset({".mp4", ".mkv", ".webm", ".mov", ".avi"}),
    "images": frozenset({".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp"}),
    "twinloop": _TABLES,
}
_AT_TOP = frozenset({"README.md", "LICENSE", "LICENSE.md", "LICENSE.txt", "LICENCE", "NOTICE", "CITATION.cff"})
_DEEPEST, _LONGEST_NAME, _LONGEST_PATH = 12, 200, 800  # folders; bytes of a name and of a path
# Names that Windows treats as devices, with any suffix.
_DEVICES = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))})
_FORBIDDEN = frozenset('<>:"|?*\\')


def is_dataset_file(name: str) -> bool:
    """Return whether a path belongs to a dataset, by its folder, name and suffix.

    Args:
        name: Path relative to the dataset's folder, with slashes.
    """
    if name in _AT_TOP:
        return True
    parts = name.split("/")
    suffixes = _KINDS.get(parts[0], frozenset[str]())
    return (
        1 < len(parts) <= _DEEPEST
        and len(name.encode(errors="surrogatepass")) <= _LONGEST_PATH
        and PurePosixPath(name).suffix in suffixes
        and all(_is_plain(part) for part in parts)
    )


def select_dataset_files(names: Iterable[str]) -> set[str]:
    """Return the paths that belong to a dataset, excluding paths that collide on some file systems.

    Some file systems ignore case or the encoding of accented letters. There, the second of two equal names would
    replace the first, so only the first is kept. For the same reason a file with the same name as a folder is excluded.
    """
    taken, folders = dict[str, str](), set[str]()
    # A name in its usual form comes before its variants.
    for name in sorted(
        filter(is_dataset_file, names), key=lambda name: (_normalize_name(name), name != _normalize_name(name), name)
    ):
        taken.setdefault(_normalize_name(name), name)
        folders.update(_parent_folders(_normalize_name(name)))
    return {name for folded, name in taken.items() if folded not in folders}


def require_disk_space(folder: Path, *, files: int, size: int, source: str) -> None:
    """Check the number of files and the free disk space before a download.

    Args:
        folder: Folder of the download; need not exist.
        files: Number of files.
        size: Total size in bytes.
        source: Name of the source for messages.

    Raises:
        DatasetError: If there are more than `MOST_FILES` files, or the disk has too little free space.
    """
    if files > MOST_FILES:
        raise DatasetError(
            f"{source} has more than {MOST_FILES:,} files, too many for a dataset. Choose some with --allow."
        )
    place = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(place).free
    if size > free:
        raise DatasetError(
            f"{source} has {size / 1e9:.1f} GB, but {place} has {free / 1e9:.1f} GB free. Free some space or choose "
            "another folder."
        )


def _is_plain(part: str) -> bool:
    """Return whether the name of a file or folder is valid and has the same meaning on every operating system."""
    return (
        0 < len(part.encode(errors="surrogatepass")) <= _LONGEST_NAME
        and part[0] not in ".~- "
        and part[-1] not in ". "
        and part.isprintable()
        and not _FORBIDDEN & set(part)
        and part.partition(".")[0].rstrip().lower() not in _DEVICES
    )


def _normalize_name(name: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())


def _parent_folders(name: str) -> Iterator[str]:
    parts = name.split("/")
    return ("/".join(parts[:count]) for count in range(1, len(parts)))
