"""From a store into a local folder: a whole commit, checked file by file."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twinloop.core.errors import DatasetError
from twinloop.core.files import sha256_file
from twinloop.dataset import layout
from twinloop.dataset.progress import Progress
from twinloop.dataset.snapshot import next_snapshot
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
        _refuse_others(folder, address)
        try:
            with next_snapshot(folder.absolute()) as stage:
                changed = fetch_files(store, commit.files, stage)
        except FileNotFoundError:  # a running writer has moved on and removed that commit's metadata
            continue
        progress = Progress.load(folder)
        return {
            "schema": 1,
            "verb": "fetch",
            "address": store.address,
            "output": str(folder),
            "commit": commit.number,
            "files": len(commit.files),
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
        _refuse_outside(name)
    store.download({files[name].key: stage / name for name in missing})
    for name in missing:
        if _differs(stage / name, files[name]):
            raise DatasetError(f"{store.address}/{files[name].key} is damaged: its SHA-256 is not the manifest's.")
    return missing


def _differs(path: Path, entry: Entry) -> bool:
    return path.stat().st_size != entry.size or sha256_file(path) != entry.sha256


def _refuse_outside(name: str) -> None:
    if name.startswith("/") or ".." in Path(name).parts:
        raise DatasetError(
            f"The manifest names {name!r}, which leaves the dataset's folder. Nothing outside is written."
        )


def _refuse_others(folder: Path, address: str) -> None:
    if folder.exists() and any(folder.iterdir()) and not (folder / layout.SPEC).is_file():
        raise DatasetError(f"{folder} holds files that are not a twinloop dataset. Fetch {address} into a new folder.")
