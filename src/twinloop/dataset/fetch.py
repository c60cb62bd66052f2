"""From a store into a local folder: a whole commit, checked file by file."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twinloop.core.errors import DatasetError
from twinloop.core.files import sha256_file
from twinloop.dataset import layout
from twinloop.dataset.dataset_files import chosen, require_room
from twinloop.dataset.progress import Progress
from twinloop.dataset.snapshot import locked_snapshot
from twinloop.dataset.store import ATTEMPTS, POINTER, Entry, Store
from twinloop.dataset.target import is_address


def fetch_dataset(address: str, folder: Path) -> dict[str, Any]:
    """Bring a store's newest commit into a local folder, where it equals a local run byte for byte.

    A folder that was fetched before is brought up to date; only what changed is downloaded.

    Raises:
        DatasetError: nothing was committed at the address, the folder holds something else, or what arrives is not
            what the manifest names.
    """
    if not is_address(address):
        raise DatasetError(
            f"{address!r} is no address of a store, such as s3://bucket/prefix. A dataset in a local folder can be "
            "used there, or copied."
        )
    store = Store(address)
    for _ in range(ATTEMPTS):
        commit = store.commit()
        if not commit.number:
            raise DatasetError(
                f"{address} holds no dataset: there is no {POINTER}, or nothing was committed yet. Give the "
                "address that `twinloop generate --output` was given."
            )
        _refuse_others(folder, store.address)
        files = _belonging(commit.files)
        require_room(
            folder.absolute(), files=len(files), size=sum(e.size for e in files.values()), source=store.address
        )
        try:
            with locked_snapshot(folder.absolute()) as stage:
                changed = fetch_files(store, files, stage)
        except FileNotFoundError:  # a running writer has moved on and removed that commit's metadata
            continue
        progress = Progress.load(folder)
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
    raise DatasetError(f"{address} changes faster than it can be fetched. Try again when its writer is done.")


def stored_progress(address: str) -> Progress:
    """What has been committed at an address."""
    store = Store(address)
    commit = store.commit()
    if not commit.number:
        return Progress()
    with tempfile.TemporaryDirectory() as folder:
        fetch_files(store, {layout.PROGRESS: commit.files[layout.PROGRESS]}, Path(folder))
        return Progress.load(Path(folder))


def fetch_files(store: Store, files: Mapping[str, Entry], stage: Path) -> list[str]:
    """Make ``stage`` hold exactly these files; returns those that had to be downloaded."""
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
            raise DatasetError(f"{store.address}/{files[name].key} is damaged: its SHA-256 is not the manifest's.")
        (stage / name).chmod(0o644)  # data, nothing to be run
    return missing


def _belonging(files: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return the files of a manifest that belong to a dataset.

    Raises:
        DatasetError: one lies outside the dataset's folder.
    """
    for name in files:
        _refuse_outside(name)
    names = chosen(files)
    return {name: entry for name, entry in files.items() if name in names}


def _require_sizes(store: Store, files: Mapping[str, Entry]) -> None:
    """Refuse objects of other sizes than the manifest's before they are downloaded."""
    for entry, size in zip(files.values(), store.sizes([entry.key for entry in files.values()]), strict=True):
        if size is not None and size != entry.size:
            raise DatasetError(
                f"{store.address}/{entry.key} is damaged: it has {size} bytes, and the manifest says {entry.size}."
            )


def _differs(path: Path, entry: Entry) -> bool:
    return path.stat().st_size != entry.size or sha256_file(path) != entry.sha256


def _refuse_outside(name: str, stage: Path = Path("/")) -> None:
    leaves = name.startswith("/") or "\\" in name or "\0" in name or ".." in Path(name).parts
    if leaves or not (stage / name).parent.resolve().is_relative_to(stage.resolve()):
        raise DatasetError(
            f"The manifest names {name!r}, which leaves the dataset's folder. Nothing outside is written."
        )


def _refuse_others(folder: Path, address: str) -> None:
    if folder.exists() and any(folder.iterdir()) and not (folder / layout.SPEC).is_file():
        raise DatasetError(f"{folder} holds files that are not a twinloop dataset. Fetch {address} into a new folder.")
