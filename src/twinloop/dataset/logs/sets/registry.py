"""Locate, download and read public sets of real measurements by name.

The folder in ``TWINLOOP_DATA`` is searched first, and its files are used unchecked. Otherwise the files are
downloaded from their public address at a fixed commit and compared with the SHA-256 hashes in
``manifests/NAME.json``, which were computed from copies of the public files. A file without a known hash (null)
is only recorded, not verified: `LocatedSet.verified` is then false. `load_set` reads any folder with the layout
of a set.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from twinloop.core.errors import InputError, LogError
from twinloop.core.files import sha256_file, sha256_tree
from twinloop.core.records import Episode
from twinloop.dataset.logs.importers.protocol import RawEpisode
from twinloop.dataset.logs.sets import public_sets as downloads
from twinloop.dataset.logs.sets.public_sets import DATA_VARIABLE as DATA_VARIABLE
from twinloop.dataset.logs.sets.public_sets import SETS as SETS
from twinloop.dataset.logs.sets.public_sets import RealDataUnavailableError as RealDataUnavailableError
from twinloop.dataset.logs.sets.public_sets import RealSet as RealSet


@dataclass(frozen=True, kw_only=True)
class LocatedSet:
    """Public set whose files are on this machine.

    Attributes:
        entry: Registry entry of the set.
        path: Folder of the files.
        hash: Hash of all files.
        origin: ``"TWINLOOP_DATA"``, or the public address of the download.
        verified: Whether all files of the set exist with the registry's SHA-256. False for a part of a set, and if
            a file has no hash in the registry.
    """

    entry: RealSet
    path: Path
    hash: str
    origin: str
    verified: bool

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary, excluding the local path."""
        return {
            "name": self.entry.name,
            "hash": self.hash,
            "origin": self.origin,
            "verified": self.verified,
            "repository": self.entry.repository,
            "commit": self.entry.commit,
            "licence": self.entry.licence,
            "citation": self.entry.citation,
        }


def fetch(name: str) -> LocatedSet:
    """Return the location of a public set of real measurements on this machine; download it if necessary.

    Raises:
        UnknownNameError: If there is no such set.
        RealDataUnavailableError: If the set is not in the data folder and cannot be downloaded.
        DatasetError: If a downloaded file differs from the registry's.
    """
    entry = SETS.find(name)
    folder = os.environ.get(DATA_VARIABLE)
    if folder and (path := Path(folder) / entry.folder_name).exists():
        return LocatedSet(
            entry=entry, path=path, hash=sha256_tree(path), origin=DATA_VARIABLE, verified=_matches(entry, path)
        )
    return download(entry)


def download(entry: RealSet) -> LocatedSet:
    """Download a set from its public address to the user's cache folder. The files are verified at every use.

    Raises:
        RealDataUnavailableError: If the address cannot be reached.
        DatasetError: If a file has another hash than in the registry, or changed since its first download.
    """
    path, verified = downloads.download(entry)
    return LocatedSet(entry=entry, path=path, hash=sha256_tree(path), origin=entry.address, verified=verified)


def load(name: str) -> tuple[list[Episode], LocatedSet]:
    """Return the episodes of a public set of real measurements and its location; download it if necessary.

    Raises:
        TwinloopError: If `fetch` or `load_set` raises it.
    """
    raw, located = load_raw(name)
    return [episode.to_episode() for episode in raw], located


def load_raw(name: str) -> tuple[list[RawEpisode], LocatedSet]:
    """Return the unchecked episodes of a public set of real measurements and its location; download it if necessary."""
    located = fetch(name)
    return read_set(name, located.path, label=f"{name} ({located.origin})"), located


def load_set(name: str, folder: Path | str) -> list[Episode]:
    """Return the episodes in a folder whose files have the same layout as a public set of real measurements.

    Args:
        name: Name of the public set.
        folder: Folder to read instead of the set's own folder.

    Raises:
        UnknownNameError: If there is no such set.
        InputError: If there is no such folder.
        LogError: If the folder has no recording of this set, or an invalid one.
    """
    return [episode.to_episode() for episode in read_set(name, folder)]


def read_set(name: str, folder: Path | str, *, label: str = "") -> list[RawEpisode]:
    """Return the unchecked episodes in any folder with the layout of a set.

    Args:
        name: Set with the same layout.
        folder: Folder to read.
        label: Recorded origin of the episodes; by default the name of the set.
    """
    entry, folder = SETS.find(name), Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder. Give one with the layout of the set {name}.")
    episodes = entry.read(folder)
    if not episodes:
        raise LogError(f"{folder} holds no recordings of the set {name}.")
    return [replace(episode, origin=_origin(episode, folder, label or name)) for episode in episodes]


def _origin(episode: RawEpisode, folder: Path, label: str) -> str:
    """Return the origin of an episode: the label and the path of the recording in the set, excluding local folders."""
    inner = episode.origin.removeprefix(str(folder)).strip("/")
    return f"{label}: {inner}" if inner else label


def _matches(entry: RealSet, path: Path) -> bool:
    """Return whether a folder has all files of a set with the registry's hashes."""
    return all(
        digest is not None and (path / file).is_file() and sha256_file(path / file) == digest
        for file, (_, digest) in entry.manifest().items()
    )
