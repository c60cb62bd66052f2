"""Folders of policies that are copied in once and never change: whole or absent, read-only, checked by hash."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from twinloop.catalog.fsck_state import different
from twinloop.catalog.parts import sync, ulid
from twinloop.core.errors import DatasetError, InputError
from twinloop.core.extension import PICKLE_SUFFIXES
from twinloop.core.files import sha256_file, sha256_json
from twinloop.dataset.storage.snapshot import locked

STAGED = ".adding-"


def files_of(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file in a folder, by its path in it.

    Raises:
        InputError: the folder is missing or empty, a link leads out of it, or a file is a pickle; names it.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder. Give the folder of a saved policy: config.json, model.safetensors.")
    root, found = folder.resolve(), dict[str, str]()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not path.resolve().is_relative_to(root):
            raise InputError(f"{path} leads out of the policy's folder. Put the file itself there.")
        if path.suffix in PICKLE_SUFFIXES:
            raise InputError(f"{path} may run code when it is opened. Save weights as safetensors and remove it.")
        if path.is_file():
            found[name] = sha256_file(path)
    if not found:
        raise InputError(f"{folder} is empty. Give the folder of a saved policy: config.json, model.safetensors.")
    return found


def hash_of(files: Mapping[str, str]) -> str:
    """The hash of a folder from those of its files, as `core.files.sha256_tree` makes it."""
    return sha256_json(sorted(files.items()))


@contextlib.contextmanager
def staged(folder: Path, home: Path, files: Mapping[str, str]) -> Iterator[Path]:
    """Copy a folder into one beside its final place, every byte on the disk, read-only; for the block to `place` it.

    A copy that was not placed is removed when the block ends.

    Args:
        folder: what is copied.
        home: the folder in which the copy will stand.
        files: what `files_of` found; the copy must be the same.

    Raises:
        DatasetError: the disk is full, or the folder changed while it was copied; nothing is left behind.
    """
    copy = home / f"{STAGED}{ulid()}"
    with locked(copy):
        try:
            _copy(folder, copy, files)
            yield copy
        finally:
            _discard(copy)


def _copy(folder: Path, copy: Path, files: Mapping[str, str]) -> None:
    try:
        for name in files:
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, target)
            _flush(target)
        _require_same(folder, copy, files)
        _protect(copy)
    except OSError as error:
        raise DatasetError(
            f"{copy.parent} cannot take a copy of {folder} ({error.strerror}). Nothing was added."
        ) from error


def sweep(home: Path) -> None:
    """Remove the copies and locks that ended processes left in a folder: those of a running one are held."""
    copies = {path.name for path in home.glob(f"{STAGED}*")}
    copies |= {path.name[1 : -len(".lock")] for path in home.glob(f".{STAGED}*.lock")}
    for name in copies:
        with contextlib.suppress(DatasetError), locked(home / name):
            _discard(home / name)


def place(copy: Path, target: Path) -> None:
    """Give a copy its name; it is there after this, whatever ends this process."""
    copy.replace(target)
    sync(target.parent)


def _discard(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")] if folder.is_dir() else []:
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(folder, ignore_errors=True)


def _require_same(folder: Path, staged: Path, files: Mapping[str, str]) -> None:
    changed = different(staged, files)
    if changed:
        raise DatasetError(f"{folder} changed while it was copied: {changed}. Wait until it is written; add it again.")


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _protect(folder: Path) -> None:
    """Read-only, files first, and flushed."""
    below = sorted(folder.rglob("*"), reverse=True)
    for path in below:
        path.chmod(0o555 if path.is_dir() else 0o444)
    for path in [*[path for path in below if path.is_dir()], folder]:
        sync(path)
    folder.chmod(0o555)
