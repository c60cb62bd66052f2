"""Write a dataset to a local folder or to an object store in complete commits, and fetch a dataset from a store.

Every fetched file is verified by its SHA-256.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from twinloop.core.errors import DatasetError, DatasetLockedError
from twinloop.core.files import dumps, sha256_file
from twinloop.core.profile import span
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.progress import WriteProgress, start_progress
from twinloop.dataset.spec import DatasetSpec
from twinloop.dataset.storage.dataset_files import require_disk_space, select_dataset_files
from twinloop.dataset.storage.snapshot import (
    FolderLock,
    create_locked_snapshot,
    create_snapshot,
    recover,
    wrap_write_errors,
)
from twinloop.dataset.storage.store import ATTEMPTS, POINTER, ObjectStore, StoreCommit, StoredFile, is_block_file


def fetch_dataset(address: str, folder: Path) -> dict[str, Any]:
    """Download the newest commit of a dataset in a store to a local folder.

    The folder then equals the folder of a local run byte for byte. A folder that was fetched before is updated; only
    changed files are downloaded.

    Args:
        address: Address in a store, such as ``s3://bucket/prefix``.
        folder: An absent or empty folder, or a twinloop dataset to update.

    Returns:
        JSON-compatible summary of the download.

    Raises:
        DatasetError: If nothing was committed at the address, the folder has other files, or a downloaded file differs
            from the manifest.
    """
    if not is_address(address):
        raise DatasetError(
            f"{address!r} is not an address of a store, such as s3://bucket/prefix. A dataset in a local folder can "
            "be used directly, or copied."
        )
    store = ObjectStore(address)
    for _ in range(ATTEMPTS):
        commit = store.newest_commit()
        if not commit.number:
            raise DatasetError(
                f"{address} holds no dataset: there is no {POINTER}, or nothing was committed yet. Give the "
                "address that was the --output of `twinloop generate`."
            )
        _refuse_others(folder, store.address)
        files = _select_manifest_files(commit.files)
        require_disk_space(
            folder.absolute(), files=len(files), size=sum(e.size for e in files.values()), source=store.address
        )
        try:
            with create_locked_snapshot(folder.absolute()) as stage:
                changed = fetch_files(store, files, stage)
        except FileNotFoundError:  # a running writer has made newer commits and removed this one's metadata
            continue
        progress = WriteProgress.load(folder)
        return {
            "schema": 1,
            "verb": "fetch",
            "address": store.address,
            "output": str(folder),
            "commit": commit.number,
            "files": len(files),
            "left_out": sorted(commit.files.keys() - files.keys()),
            "downloaded": len(changed),
            "episodes": progress.episodes,
            "frames": progress.frames,
        }
    raise DatasetError(f"{address} changes faster than it can be fetched. Try again after its writer has finished.")


def read_stored_progress(address: str) -> WriteProgress:
    """Return the progress of the dataset that is committed at a store's address; empty if nothing was committed."""
    store = ObjectStore(address)
    commit = store.newest_commit()
    if not commit.number:
        return WriteProgress()
    with tempfile.TemporaryDirectory() as folder:
        fetch_files(store, {layout.PROGRESS: commit.files[layout.PROGRESS]}, Path(folder))
        return WriteProgress.load(Path(folder))


def fetch_files(store: ObjectStore, files: Mapping[str, StoredFile], stage: Path) -> list[str]:
    """Make the folder ``stage`` contain exactly the given files: download missing files, delete all other files.

    Args:
        store: Store with the objects.
        files: Files by their path in the folder.
        stage: Local folder.

    Returns:
        Paths of the downloaded files.

    Raises:
        DatasetError: If a downloaded file has another size or SHA-256.
    """
    for path in [path for path in stage.rglob("*") if path.is_file()]:
        name = path.relative_to(stage).as_posix()
        if name not in files or _differs(path, files[name]):
            path.unlink()
    missing = [name for name in files if not (stage / name).exists()]
    for name in missing:
        _refuse_outside(name, stage)
    _require_sizes(store, {name: files[name] for name in missing})
    store.download({files[name].key: stage / name for name in missing})
    for name in missing:
        if _differs(stage / name, files[name]):
            raise DatasetError(f"{store.address}/{files[name].key} is damaged: its SHA-256 differs from the manifest.")
        (stage / name).chmod(0o644)  # data, not executable
    return missing


def _select_manifest_files(files: Mapping[str, StoredFile]) -> dict[str, StoredFile]:
    """Return the files of a commit that belong to a dataset.

    Raises:
        DatasetError: If a path is outside the dataset's folder.
    """
    for name in files:
        _refuse_outside(name)
    names = select_dataset_files(files)
    return {name: entry for name, entry in files.items() if name in names}


def _require_sizes(store: ObjectStore, files: Mapping[str, StoredFile]) -> None:
    """Check that objects in the store have the sizes in the manifest, before they are downloaded.

    Raises:
        DatasetError: If a size differs.
    """
    for entry, size in zip(files.values(), store.sizes([entry.key for entry in files.values()]), strict=True):
        if size is not None and size != entry.size:
            raise DatasetError(
                f"{store.address}/{entry.key} is damaged: it has {size} bytes, but the manifest has {entry.size}."
            )


def _differs(path: Path, entry: StoredFile) -> bool:
    return path.stat().st_size != entry.size or sha256_file(path) != entry.sha256


def _refuse_outside(name: str, stage: Path = Path("/")) -> None:
    leaves = name.startswith("/") or "\\" in name or "\0" in name or ".." in Path(name).parts
    if leaves or not (stage / name).parent.resolve().is_relative_to(stage.resolve()):
        raise DatasetError(
            f"The manifest names {name!r}, which leaves the dataset's folder. No file was written outside it."
        )


def _refuse_others(folder: Path, address: str) -> None:
    if folder.exists() and any(folder.iterdir()) and not (folder / layout.SPEC).is_file():
        raise DatasetError(f"{folder} has files but is not a twinloop dataset. Fetch {address} into a new folder.")


# Uploaded files that a writer keeps locally because it reads them again: frames for the quantiles, metadata, logs.
_KEPT = ("data/", "meta/", "twinloop/log/")


class StoreTarget:
    """An address in an object store, as the output of a dataset writer.

    ``path`` is a temporary folder with the files that the writer reads again. A store has no locks. Two writers are
    detected when one of them finds that the other has changed the pointer to the newest commit.

    Args:
        address: Address in a store, such as ``s3://bucket/prefix``.

    Raises:
        DatasetError: If the address is incomplete or invalid.
        MissingDependencyError: If a library for the store is not installed.
        UnknownNameError: If the kind of store is unknown.
    """

    def __init__(self, address: str) -> None:
        self._store, self._commit = ObjectStore(address), StoreCommit()
        self.name = self._store.address
        self._scratch = tempfile.TemporaryDirectory(prefix="twinloop-store-", ignore_cleanup_errors=True)
        self.path, self.held = Path(self._scratch.name) / "dataset", True

    def begin(self, spec: DatasetSpec, *, resume: bool) -> WriteProgress:
        """Download the committed files that the writer reads again, and return the stored progress.

        Raises:
            DatasetError: If the address has other objects, or the dataset cannot be continued.
        """
        commit = self._store.newest_commit()
        strangers = (
            self._store.top_level_names() - {"dataset", "commits", "log", POINTER} if not commit.number else set()
        )
        if strangers:
            raise DatasetError(
                f"{self.name} holds objects that are not a twinloop dataset ({', '.join(sorted(strangers)[:3])}). "
                "Choose an empty or new address."
            )
        if commit.number:
            wanted = {path: entry for path, entry in commit.files.items() if not is_block_file(path) or _is_kept(path)}
            if not resume:
                wanted = {path: entry for path, entry in wanted.items() if not is_block_file(path)}
            with create_snapshot(self.path) as stage:
                fetch_files(self._store, wanted, stage)
        self._commit = commit
        return start_progress(self.path, spec, resume=resume, name=self.name)

    @contextlib.contextmanager
    def snapshot(self, *, final: bool = False) -> Iterator[Path]:
        """Return a context manager that yields the folder of the next commit, and uploads it when the block ends.

        The new files are uploaded first, then the manifest, and last the pointer (the file that names the newest
        commit).

        Args:
            final: True for the last commit; the metadata is then also uploaded next to the data files.
        """
        with create_snapshot(self.path) as stage:
            yield stage
            with span("upload"):
                self._commit = self._upload(stage, final=final)
            for path in self._commit.block_files():
                if not _is_kept(path):
                    (stage / path).unlink(missing_ok=True)

    def release(self) -> None:
        """Remove the temporary folder; the target can no longer be written."""
        self.held = False
        self._scratch.cleanup()

    def _upload(self, stage: Path, *, final: bool) -> StoreCommit:
        number = self._commit.number + 1
        known, folder = self._commit.block_files(), f"commits/{number:06d}"
        paths = sorted(path.relative_to(stage).as_posix() for path in stage.rglob("*") if path.is_file())
        new = {
            path: f"dataset/{path}" if is_block_file(path) else f"{folder}/{path}"
            for path in paths
            if path not in known
        }
        self._store.upload({key: stage / path for path, key in new.items()})
        files = {**known, **{path: _make_entry(stage / path, key) for path, key in new.items()}}
        if final:
            self._publish(stage, [path for path in new if not is_block_file(path)])
        return self._move_pointer(number, files)

    def _publish(self, stage: Path, metadata: Sequence[str]) -> None:
        """Upload the metadata to ``dataset/``, next to the data files, with ``meta/info.json`` last."""
        rest = [path for path in metadata if path != layout.INFO]
        for group in (rest, [layout.INFO]):
            self._store.upload({f"dataset/{path}": stage / path for path in group})

    def _move_pointer(self, number: int, files: Mapping[str, StoredFile]) -> StoreCommit:
        """Make a commit the newest one: write its manifest, then the pointer; then remove an old commit.

        The removed commit is the one before the previous commit.

        Args:
            number: Number of the commit.
            files: All files of the dataset at this commit, by path in the dataset.

        Raises:
            DatasetLockedError: If another writer has committed in the meantime.
        """
        key = f"commits/{number:06d}/manifest.json"
        listed = {path: vars(entry) for path, entry in sorted(files.items())}
        manifest = dumps({"schema": layout.SCHEMA, "files": listed}).encode()
        self._store.write(key, manifest)
        if (self._store.read(POINTER) or b"") != self._commit.pointer:
            raise DatasetLockedError(
                f"Another writer has committed to {self.name}. Wait for it to end, stop it, or choose another address."
            )
        pointer = dumps(
            {"schema": layout.SCHEMA, "commit": number, "manifest": key, "sha256": hashlib.sha256(manifest).hexdigest()}
        ).encode()
        self._store.write(POINTER, pointer)
        self._store.remove(f"commits/{number - 2:06d}")
        return StoreCommit(number=number, files=files, pointer=pointer)


def _make_entry(path: Path, key: str) -> StoredFile:
    return StoredFile(key=key, size=path.stat().st_size, sha256=sha256_file(path))


def _is_kept(path: str) -> bool:
    return path.startswith(_KEPT)


_LOCAL = ("file://", "local://")


class DatasetTarget(Protocol):
    """Output of one dataset writer: a local folder or an address in a store. Readers see only complete commits.

    Attributes:
        name: Name of the output in messages.
        path: Local folder with the committed files that the writer needs.
    """

    name: str
    path: Path

    @property
    def held(self) -> bool:
        """True until `release` is called; the writer can then no longer write."""
        ...

    def begin(self, spec: DatasetSpec, *, resume: bool) -> WriteProgress:
        """Check that earlier commits can be continued, and return their progress.

        Args:
            spec: Specification of the dataset to write.
            resume: True to continue a dataset that already exists.
        """
        ...

    def snapshot(self, *, final: bool = False) -> AbstractContextManager[Path]:
        """Return a context manager that yields a copy of the dataset's folder for the files of the next commit.

        The caller writes these files to it. The commit becomes visible to readers if the ``with`` block succeeds.

        Args:
            final: True for the last commit.
        """
        ...

    def release(self) -> None:
        """Release the target for other writers; further calls have no effect."""
        ...


class FolderTarget:
    """A local folder as the output of a dataset writer; ``path`` is the folder itself.

    Raises:
        DatasetLockedError: If another writer has the folder open.
        DatasetError: If no folder can be written there, or it is inside another dataset.
    """

    def __init__(self, path: Path) -> None:
        for above in path.resolve().parents:
            if (above / layout.INFO).is_file():
                raise DatasetError(
                    f"{path} is inside the dataset {above}, and would be read as a part of it. Choose a folder "
                    "outside of it."
                )
        self.path, self.name = path, str(path)
        self._lock = FolderLock(path)

    @property
    def held(self) -> bool:
        """Whether the lock of the folder is still held."""
        return self._lock.held

    def begin(self, spec: DatasetSpec, *, resume: bool) -> WriteProgress:
        """Restore the folder after a killed writer, check the specification, and return the stored progress."""
        with wrap_write_errors(self.path):
            recover(self.path)
            return start_progress(self.path, spec, resume=resume)

    @contextmanager
    def snapshot(self, *, final: bool = False) -> Iterator[Path]:
        """Yield a copy of the folder for the files of the next commit; it replaces the folder if the block succeeds.

        If the block fails, the folder stays unchanged and the copy is removed.

        Args:
            final: True for the last commit; it has no effect here.
        """
        del final
        with create_snapshot(self.path) as stage:
            yield stage

    def release(self) -> None:
        """Release the lock of the folder."""
        self._lock.release()


def is_address(output: Path | str) -> bool:
    """Return whether an output is an address in a store (``s3://bucket/prefix``) and not a local folder."""
    return "://" in str(output) and not str(output).startswith(_LOCAL)


def local_path(output: Path | str) -> Path:
    """Return the local folder of a path or of a ``file://`` or ``local://`` address."""
    text = str(output)
    for prefix in _LOCAL:
        text = text.removeprefix(prefix)
    return Path(text)


def read_committed_progress(output: Path | str) -> WriteProgress:
    """Return the progress committed to a folder or an address in a store; empty if nothing was committed."""
    if is_address(output):
        return read_stored_progress(str(output))
    folder = local_path(output)
    return WriteProgress.load(folder) if (folder / layout.PROGRESS).is_file() else WriteProgress()


def open_target(output: Path | str) -> DatasetTarget:
    """Open a folder or an address in a store for writing, and hold it until `release`.

    Raises:
        DatasetError: If it cannot be written, see `FolderTarget` and `StoreTarget`.
        MissingDependencyError: If the store needs a library that is not installed.
    """
    if is_address(output):
        return StoreTarget(str(output))
    return FolderTarget(local_path(output).absolute())
