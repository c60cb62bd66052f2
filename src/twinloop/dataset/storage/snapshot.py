"""Replace the contents of a folder atomically: readers see the folder before or after a commit, never in between.

A commit builds a new version (snapshot) of the folder from hard links in ``.NAME.next``, next to the folder, and then
exchanges the two. If the writer is killed, the folder is unchanged and ``.NAME.next`` remains; the next writer removes
it. One writer at a time holds the lock file ``.NAME.lock``.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import glob
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from twinloop.core.errors import DatasetError, DatasetLockedError, convert_os_error, is_disk_full

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2  # linux/fs.h
_NO_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM}
_NO_LINKS = {errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP, errno.EMLINK}


class FolderLock:
    """Exclusive right to write one folder: an advisory lock on a file next to the folder.

    The file contains the id of the process that holds the lock. The lock ends with its process, so a killed writer
    never blocks the next one.

    Args:
        folder: Folder to lock; need not exist.
        purpose: Kind of lock. Locks of different purposes on one folder do not exclude each other.

    Raises:
        DatasetLockedError: If another process holds the lock; the message gives its id.
        DatasetError: If no folder can be written there, or the disk is full.
    """

    def __init__(self, folder: Path, purpose: str = "") -> None:
        self.path = folder.parent / f".{folder.name}.{purpose}{'.' if purpose else ''}lock"
        with wrap_write_errors(folder):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = self._acquire(folder)

    @property
    def held(self) -> bool:
        """Whether the lock is still held."""
        return self._handle >= 0

    def release(self) -> None:
        """Release the lock; further calls have no effect."""
        if self.held:
            with contextlib.suppress(OSError):  # a remaining file is harmless: the lock belongs to the handle
                self.path.unlink(missing_ok=True)
            os.close(self._handle)
            self._handle = -1

    def _acquire(self, folder: Path) -> int:
        while True:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(handle, 64).decode(errors="replace").strip() or "unknown"
                os.close(handle)
                raise DatasetLockedError(
                    f"Another writer (process {holder}) has {folder} open. Wait for it to end, stop it, or choose "
                    "another output folder."
                ) from None
            if self._is_current_file(handle):
                with contextlib.suppress(OSError):  # full disk: the lock works without the process number in its file
                    os.ftruncate(handle, 0)
                    os.pwrite(handle, str(os.getpid()).encode(), 0)
                return handle
            os.close(handle)

    def _is_current_file(self, handle: int) -> bool:
        """Return whether the locked file is still the file at the path; a releasing writer may have deleted it."""
        try:
            return os.fstat(handle).st_ino == self.path.stat().st_ino
        except FileNotFoundError:
            return False


@contextlib.contextmanager
def hold_folder_lock(folder: Path, purpose: str = "") -> Iterator[None]:
    """Hold a `FolderLock` during the ``with`` block; raise an error at once if the lock is held already.

    Args:
        folder: Folder to lock; need not exist.
        purpose: Kind of lock. Locks of different purposes on one folder do not exclude each other.

    Raises:
        DatasetLockedError: If the lock is held already.
        DatasetError: If no folder can be written there, or the disk is full.
    """
    lock = FolderLock(folder, purpose)
    try:
        yield
    finally:
        lock.release()


def forget_locks(folder: Path) -> None:
    """Remove all lock files of a folder, which are next to it; keep those of locks that are still held."""
    for file in folder.parent.glob(f".{glob.escape(folder.name)}.*lock"):
        with contextlib.suppress(DatasetError):
            FolderLock(folder, file.name.removeprefix(f".{folder.name}.").removesuffix("lock").rstrip(".")).release()


def recover(folder: Path) -> None:
    """Restore a folder to its last commit after a writer was killed; the caller must hold the folder's lock."""
    old = _sibling_folder(folder, "old")
    if old.exists() and not folder.exists():
        old.rename(folder)
    for leftover in (old, _sibling_folder(folder, "next")):
        if leftover.exists():
            shutil.rmtree(leftover)


@contextlib.contextmanager
def create_snapshot(folder: Path) -> Iterator[Path]:
    """Yield a copy of ``folder`` (made of hard links) that replaces ``folder`` if the ``with`` block succeeds.

    Inside the block, only write new files. To change an existing file, delete it first (`replace_bytes`), because a
    write in place would also change the committed version. The caller must hold the folder's lock, see
    `create_locked_snapshot`. A ``FileNotFoundError`` in the block is passed on unchanged.

    Raises:
        DatasetError: If the disk is full, or the operating system refuses otherwise; ``folder`` is then unchanged.
    """
    stage = _sibling_folder(folder, "next")
    with wrap_write_errors(folder):
        stage.mkdir(parents=True)
    try:
        shared: set[int] = set()
        if folder.exists():
            shared = _link_tree(str(folder), str(stage))
        yield stage
        _sync_tree(str(stage), shared)
        _swap(stage, folder)
    except BaseException as error:
        shutil.rmtree(stage, ignore_errors=True)
        if is_disk_full(error) or (isinstance(error, OSError) and not isinstance(error, FileNotFoundError)):
            raise convert_os_error(error, folder) from error
        raise


@contextlib.contextmanager
def create_locked_snapshot(folder: Path) -> Iterator[Path]:
    """Hold the folder's lock, remove the remains of a killed writer, and yield the folder of `create_snapshot`.

    Raises:
        DatasetLockedError: If another writer has the folder open.
        DatasetError: If the disk is full or refuses a write, see `create_snapshot`.
    """
    with hold_folder_lock(folder):
        with wrap_write_errors(folder):
            recover(folder)
        with create_snapshot(folder) as stage:
            yield stage


@contextlib.contextmanager
def wrap_write_errors(path: Path) -> Iterator[None]:
    """Convert errors of the operating system while writing to a message with ``path`` and the next step.

    Raises:
        DatasetError: If the ``with`` block raises an ``OSError``; a full disk has its own message.
    """
    try:
        yield
    except OSError as error:
        raise convert_os_error(error, path) from error


def replace_bytes(path: Path, data: bytes) -> None:
    """Write a file in a snapshot, which is not yet committed.

    An existing file is deleted first, because its hard link in the committed folder would be changed too.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def _sibling_folder(folder: Path, suffix: str) -> Path:
    return folder.parent / f".{folder.name}.{suffix}"


# A commit links and inspects every file, so these two use one system call per file and plain strings.


def _link_tree(source: str, target: str) -> set[int]:
    """Hard-link all files under ``source`` into ``target``; return the inode numbers of the shared files."""
    shared: set[int] = set()
    with os.scandir(source) as entries:
        for entry in entries:
            there = f"{target}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                os.mkdir(there)  # noqa: PTH102 - see above
                shared |= _link_tree(entry.path, there)
            elif link_or_copy(entry.path, there):
                shared.add(entry.inode())
    return shared


def link_or_copy(source: str | Path, target: str | Path, *, link: bool = True) -> bool:
    """Hard-link a file, or copy it if links are not possible or ``link`` is false; return whether it was linked."""
    try:
        if link:
            os.link(source, target, follow_symlinks=False)
            return True
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    shutil.copy2(source, target, follow_symlinks=False)
    return False


def _sync_tree(directory: str, shared: set[int]) -> None:
    """Flush all new files and all directories of a folder to disk.

    Args:
        directory: The folder.
        shared: Inode numbers of files that are already on disk.
    """
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _sync_tree(entry.path, shared)
            elif entry.inode() not in shared and not entry.is_symlink():
                _sync(entry.path)
    _sync(directory)


def _sync(path: str | Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _swap(stage: Path, folder: Path) -> None:
    """Replace ``folder`` by ``stage``, and delete the old contents."""
    if not folder.exists():
        stage.rename(folder)
    elif _exchange(stage, folder):
        _sync(folder.parent)
        shutil.rmtree(stage)
    else:
        old = _sibling_folder(folder, "old")
        folder.rename(old)
        try:
            stage.rename(folder)
        except OSError:
            old.rename(folder)
            raise
        _sync(folder.parent)
        shutil.rmtree(old)
    _sync(folder.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders atomically; return False if the operating system does not support it."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(other))
