"""Read and write datasets in object stores such as S3, through fsspec.

Objects under the address of a dataset:

- ``dataset/``: data files of committed blocks, each written once; at the end of the run also the metadata,
``meta/info.json`` last. A finished run is then a LeRobotDataset folder that any tool can copy.
- ``commits/NNNNNN/``: the metadata of one commit, and ``manifest.json``, which lists every file of the dataset at that
commit with its size and SHA-256.
- ``current.json``: the pointer to the newest complete commit, written last.

A reader follows the pointer, so it sees a complete commit or none. Files that a killed run uploaded without moving the
pointer are uploaded again with the same bytes. The commit before the newest is kept for readers that still use it.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from twinloop.core.documents import MAX_LINES_BYTES, parse_json
from twinloop.core.errors import DatasetError, MissingDependencyError, UnknownNameError
from twinloop.core.files import dumps
from twinloop.core.redaction import note_secrets, redact_text, redact_values
from twinloop.dataset.lerobot import layout

Result = TypeVar("Result")

INSTALL = 'pip install "twinloop[s3]"'
POINTER = "current.json"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MOST_BYTES = MAX_LINES_BYTES  # of a pointer or a manifest, which are read into memory
ATTEMPTS = 3  # commits that may be superseded while one is read; our choice


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """One file of a commit in an object store.

    Attributes:
        key: Key of the object, relative to the address of the dataset.
        size: Size in bytes.
        sha256: SHA-256 of the content, 64 hexadecimal digits.
    """

    key: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class StoreCommit:
    """The newest complete commit of a dataset in an object store.

    Attributes:
        number: Number of the commit; 0 if nothing was committed yet.
        files: Files by their path in the dataset.
        pointer: Content of the pointer object, to detect that another writer has changed it.
    """

    number: int = 0
    files: Mapping[str, StoredFile] = field(default_factory=dict[str, StoredFile])
    pointer: bytes = b""

    def block_files(self) -> dict[str, StoredFile]:
        """Return the files of committed blocks (groups of episodes), by path in the dataset.

        Later commits use these files unchanged.
        """
        return {path: entry for path, entry in self.files.items() if is_block_file(path)}


class ObjectStore:
    """The objects under one address in an object store.

    Its attribute ``address`` is the address for messages, with credentials removed.

    Args:
        address: Address with protocol, such as ``s3://bucket/prefix``.

    Raises:
        DatasetError: If the address is incomplete or invalid.
        MissingDependencyError: If fsspec or the library for that protocol is not installed.
        UnknownNameError: If fsspec does not know the protocol.
    """

    def __init__(self, address: str) -> None:
        if not address.partition("://")[2].strip("/"):
            raise DatasetError(
                f"{address!r} is not an address in a store. Write an address such as s3://bucket/prefix."
            )
        note_secrets([address])  # errors of its library may repeat credentials
        self.address = redact_text(address.rstrip("/"))
        self._files, self._root = _open_filesystem(address.rstrip("/"))

    def read(self, key: str, *, most: int = _MOST_BYTES) -> bytes | None:
        """Return the content of an object; None if the object does not exist.

        Args:
            key: Key of the object, relative to the address.
            most: Largest size in bytes that is read.

        Raises:
            DatasetError: If the object is larger, or the store cannot be read.
        """
        with contextlib.suppress(FileNotFoundError):
            self._require_size(key, most)
            return self._run_action(
                "read", lambda: bytes(self._files.cat_file(self._full_path(key))), absent=FileNotFoundError
            )
        return None

    def sizes(self, keys: Sequence[str]) -> list[int | None]:
        """Return the sizes of objects in bytes; None for a size that the store does not report.

        Raises:
            FileNotFoundError: If an object no longer exists.
        """
        there = [self._full_path(key) for key in keys]
        return (
            self._run_action("read", lambda: list(self._files.sizes(there)), absent=FileNotFoundError) if there else []
        )

    def write(self, key: str, data: bytes) -> None:
        """Write an object with the given content; an existing object is replaced."""
        self._run_action("written", lambda: self._files.pipe_file(self._full_path(key), data))

    def upload(self, files: Mapping[str, Path]) -> None:
        """Upload local files, given by the key of their object."""
        if files:
            there = [self._full_path(key) for key in files]
            self._run_action("written", lambda: self._files.put([str(path) for path in files.values()], there))

    def download(self, files: Mapping[str, Path]) -> None:
        """Download objects to local files, given by the key of the object.

        Raises:
            FileNotFoundError: If an object no longer exists.
        """
        if files:
            for path in files.values():
                path.parent.mkdir(parents=True, exist_ok=True)
            there, here = [self._full_path(key) for key in files], [str(path) for path in files.values()]
            self._run_action("read", lambda: self._files.get(there, here), absent=FileNotFoundError)

    def remove(self, folder: str) -> None:
        """Remove all objects whose key starts with ``folder/``, if any."""
        with contextlib.suppress(FileNotFoundError):
            self._run_action(
                "written", lambda: self._files.rm(self._full_path(folder), recursive=True), absent=FileNotFoundError
            )

    def top_level_names(self) -> set[str]:
        """Return the names directly under the address: the first part of every key."""
        with contextlib.suppress(FileNotFoundError):
            found = self._run_action("read", lambda: self._files.ls(self._root, detail=False), absent=FileNotFoundError)
            return {str(name).rstrip("/").rpartition("/")[2] for name in found}
        return set()

    def newest_commit(self) -> StoreCommit:
        """Return the newest complete commit; its number is 0 if there is none.

        Raises:
            DatasetError: If the pointer or the manifest is damaged.
        """
        key = ""
        for _ in range(ATTEMPTS):
            pointer = self.read(POINTER)
            if pointer is None:
                return StoreCommit()
            with layout.wrap_parse_errors(f"{self.address}/{POINTER}"):
                value = parse_json(pointer, where=f"{self.address}/{POINTER}")
                layout.require_keys(value, ("commit", "manifest", "sha256"), where=f"{self.address}/{POINTER}")
                number, key = int(value["commit"]), _check_key(value["manifest"], "commits")
            manifest = self.read(key)
            if manifest is not None:  # else the writer has made a newer commit and removed it
                return self._read_manifest(number, key, manifest, value["sha256"], pointer)
        raise DatasetError(f"{self.address}/{POINTER} names {key}, which does not exist. Upload the dataset again.")

    def _read_manifest(self, number: int, key: str, data: bytes, sha256: str, pointer: bytes) -> StoreCommit:
        if hashlib.sha256(data).hexdigest() != sha256:
            raise DatasetError(f"{self.address}/{key} is not the manifest that {POINTER} names. Upload it again.")
        with layout.wrap_parse_errors(f"{self.address}/{key}"):
            listed = parse_json(data, where=f"{self.address}/{key}")["files"]
            files = {path: _check_entry(StoredFile(**entry)) for path, entry in listed.items()}
        return StoreCommit(number=number, files=files, pointer=pointer)

    def _require_size(self, key: str, most: int) -> None:
        [size] = self.sizes([key])
        if size is not None and size > most:
            raise DatasetError(
                f"{self.address}/{key} has {size} bytes; at most {most} are read. It is not a file of a dataset."
            )

    def _full_path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _run_action(self, verb: str, action: Callable[[], Result], *, absent: type[Exception] | None = None) -> Result:
        """Call ``action``; convert every error of the store's library to a `DatasetError`.

        Args:
            verb: Participle for the message, ``read`` or ``written``.
            action: Function that uses the store.
            absent: Class of the error for a missing object, which is raised unchanged; None if it is converted, too.
        """
        try:
            return action()
        except Exception as error:  # every store's library raises other error classes
            if absent is not None and isinstance(error, absent):
                raise
            reason = " ".join(redact_text(str(error)).split()) or type(error).__name__
            raise DatasetError(
                f"{self.address} cannot be {verb} ({type(error).__name__}: {reason:.200}). Check that the bucket "
                "exists, the credentials, the address of the service and the network. Earlier commits are unchanged."
            ) from error


def write_log(address: str, entry: Mapping[str, Any]) -> None:
    """Store the durations and rates of a finished run as a new object under ``log/``, named after the present time.

    They are separate from the dataset, because they differ between runs with otherwise identical results.

    Args:
        address: Address of the dataset.
        entry: Name of the command, time of its end, durations and rates; JSON-compatible. Credentials are removed.
    """
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    ObjectStore(address).write(f"log/{moment}.json", dumps(redact_values(dict(entry))).encode())


def is_block_file(path: str) -> bool:
    """Return whether a path in a dataset is a file of a block (group of episodes committed together).

    Such files are written once and never changed.
    """
    return "/chunk-" in path


def _check_entry(entry: StoredFile) -> StoredFile:
    """Check the values of a manifest entry, and return the entry.

    Raises:
        ValueError: If the key is outside the store's folders, or the size or the hash is invalid.
    """
    _check_key(entry.key, "dataset", "commits")
    if type(entry.size) is not int or entry.size < 0:
        raise ValueError(f"the size {entry.size!r} is not a number of bytes")
    if not isinstance(entry.sha256, str) or not _SHA256.fullmatch(entry.sha256):
        raise ValueError(f"{entry.sha256!r} is not a SHA-256")
    return entry


def _check_key(key: Any, *folders: str) -> str:
    """Check that an object's key is in one of the given folders of the store, and return the key.

    Raises:
        ValueError: If it is not.
    """
    parts = str(key).split("/")
    if len(parts) < 2 or parts[0] not in folders or {"", ".", ".."} & set(parts) or not str(key).isprintable():
        raise ValueError(f"the key {key!r} is not one of {' or '.join(folders)}/")
    return str(key)


def _open_filesystem(address: str) -> tuple[Any, str]:
    """Return the fsspec filesystem of an address, and the path of the address in it."""
    protocol = address.partition("://")[0]
    try:
        import fsspec
    except ImportError as error:
        raise MissingDependencyError(f"{address} needs fsspec, which is not installed.", remedy=INSTALL) from error
    try:
        files, root = fsspec.core.url_to_fs(address, use_listings_cache=False)
    except ImportError as error:
        remedy = INSTALL if protocol in ("s3", "s3a") else f"pip install the library that fsspec names: {error}"
        raise MissingDependencyError(f"{address} needs a library that is not installed.", remedy=remedy) from error
    except ValueError as error:
        known = fsspec.available_protocols()
        if protocol in known:
            raise DatasetError(f"{address} is not a valid address for fsspec ({error}).") from error
        raise UnknownNameError("kind of store", protocol, known, where=f"{address!r}") from error
    return files, str(root).rstrip("/")
