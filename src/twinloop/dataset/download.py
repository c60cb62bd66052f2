"""Files of a public set from their public address, verified."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from twinloop.core.documents import read_json
from twinloop.core.errors import DatasetError, MissingDependencyError
from twinloop.core.files import sha256_file, write_json
from twinloop.dataset.public_sets import RealSet

DATA_VARIABLE = "TWINLOOP_DATA"
_TIMEOUT_S = 15
_SEEN = "first_download.json"


class RealDataUnavailableError(MissingDependencyError):
    """A public set is neither in the data folder nor can it be downloaded; virtual robots can stand in."""


def download(entry: RealSet) -> tuple[Path, bool]:
    """A set's files from its public address, kept in the user's cache and checked on every use.

    Returns:
        The folder, and whether every file's hash was known and is right.

    Raises:
        RealDataUnavailableError: it cannot be reached.
        DatasetError: a file is not the one that the registry names, or changed since its first download.
    """
    import pooch

    folder = Path(pooch.os_cache("twinloop")) / entry.name / entry.commit
    manifest = entry.manifest()
    downloader: Any = pooch.HTTPDownloader(timeout=_TIMEOUT_S)
    with _quiet_pooch():
        for file, (upstream, digest) in manifest.items():
            target = folder / file
            try:
                pooch.retrieve(
                    entry.address + quote(upstream),
                    known_hash=None if digest is None else f"sha256:{digest}",
                    fname=target.name,
                    path=target.parent,
                    downloader=downloader,
                )
            except OSError as error:  # what requests raises, and a folder that cannot be written
                raise RealDataUnavailableError(
                    f"The real data {entry.name} lies in no folder that {DATA_VARIABLE} names, and cannot be "
                    f"downloaded ({type(error).__name__}).",
                    remedy=f"set {DATA_VARIABLE} to a folder that holds {entry.folder_name}/, or connect to the "
                    "internet",
                ) from error
            except ValueError as error:  # what pooch raises when the hash differs
                raise DatasetError(
                    f"{entry.address}{upstream} is not the file that the registry names: its SHA-256 differs. "
                    "It was not used."
                ) from error
    unpinned = [file for file, (_, digest) in manifest.items() if digest is None]
    if unpinned:
        _remember(folder.parent / f"{entry.commit}.{_SEEN}", folder, unpinned)
    return folder, not unpinned


def _remember(record: Path, folder: Path, files: list[str]) -> None:
    """Keep the hashes of unpinned files from their first download, and refuse them when they have changed since."""
    found = {file: sha256_file(folder / file) for file in files}
    if not record.exists():
        write_json(record, found)
    elif (seen := read_json(record)) != found:
        changed = sorted(file for file in found if seen.get(file) != found[file])
        raise DatasetError(f"{folder}: {', '.join(changed)} changed since the first download. Delete the folder.")


@contextlib.contextmanager
def _quiet_pooch() -> Iterator[None]:
    """Keep pooch's own progress lines off standard error."""
    import pooch

    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
