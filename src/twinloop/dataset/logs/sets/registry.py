"""Locate, download and read public sets of real measurements by name.

The folder in ``TWINLOOP_DATA`` is searched first, and its files are used unchecked. Otherwise the files are downloaded
from their public address at a fixed commit and checked against the SHA-256 in ``manifests/NAME.json``, which were
computed from copies of the public files. A file without a known public hash (null) is not verified, only recorded:
`LocatedSet.verified` is then false. `load_set` reads any folder of a set's layout.
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
    """An available set: its folder, the hash of its files, and their origin.

    ``origin`` is ``"TWINLOOP_DATA"`` or the public address. ``verified`` means that every file of the registry exists
    with its SHA-256; false for part of a set, and if the registry has no hash.
    """

    entry: RealSet
    path: Path
    hash: str
    origin: str
    verified: bool

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary, without the local path."""
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
    """Return a set's folder on this machine, downloaded if necessary.

    Raises:
        UnknownNameError: no such set.
        RealDataUnavailableError: it is not in the data folder and cannot be downloaded.
        DatasetError: a downloaded file differs from that of the registry.
    """
    entry = SETS.find(name)
    folder = os.environ.get(DATA_VARIABLE)
    if folder and (path := Path(folder) / entry.folder_name).exists():
        return LocatedSet(
            entry=entry, path=path, hash=sha256_tree(path), origin=DATA_VARIABLE, verified=_matches(entry, path)
        )
    return download(entry)


def download(entry: RealSet) -> LocatedSet:
    """Download a set from its public address to the user's cache; its files are checked on every use.

    Raises:
        RealDataUnavailableError: the address cannot be reached.
        DatasetError: a file has another hash than in the registry, or changed since its first download.
    """
    path, verified = downloads.download(entry)
    return LocatedSet(entry=entry, path=path, hash=sha256_tree(path), origin=entry.address, verified=verified)


def load(name: str) -> tuple[list[Episode], LocatedSet]:
    """Return the episodes of a set, and the set's location.

    Raises:
        TwinloopError: as `fetch` and `load_set`.
    """
    raw, located = load_raw(name)
    return [episode.to_episode() for episode in raw], located


def load_raw(name: str) -> tuple[list[RawEpisode], LocatedSet]:
    """Return the unchecked episodes of a set, and the set's location."""
    located = fetch(name)
    return read_set(name, located.path, label=f"{name} ({located.origin})"), located


def load_set(name: str, folder: Path | str) -> list[Episode]:
    """Return the episodes in any folder with the layout of a set.

    Args:
        name: the set with the same layout.
        folder: corresponds to the set's folder.

    Raises:
        UnknownNameError: no such set.
        InputError: no such folder.
        LogError: it has no recording of this set, or an invalid one.
    """
    return [episode.to_episode() for episode in read_set(name, folder)]


def read_set(name: str, folder: Path | str, *, label: str = "") -> list[RawEpisode]:
    """Return the episodes as `load_set`, unchecked. ``label`` is their recorded origin, by default the set's name."""
    entry, folder = SETS.find(name), Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder. Give one that is laid out like the set {name}.")
    episodes = entry.read(folder)
    if not episodes:
        raise LogError(f"{folder} holds no recordings of the set {name}.")
    return [replace(episode, origin=_origin(episode, folder, label or name)) for episode in episodes]


def _origin(episode: RawEpisode, folder: Path, label: str) -> str:
    """Return the label and the path of the recording within the set, without local folders."""
    inner = episode.origin.removeprefix(str(folder)).strip("/")
    return f"{label}: {inner}" if inner else label


def _matches(entry: RealSet, path: Path) -> bool:
    """Return whether a folder has all files of the registry with the right hashes."""
    return all(
        digest is not None and (path / file).is_file() and sha256_file(path / file) == digest
        for file, (_, digest) in entry.manifest().items()
    )
