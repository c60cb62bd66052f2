"""A folder changes whole, whichever way the system can swap it, and comes back after every kind of interruption."""

from __future__ import annotations

import ctypes
import errno
import os

import pytest

from twinloop.core.errors import DatasetError, DatasetLockedError
from twinloop.dataset.storage import snapshot
from twinloop.dataset.storage.snapshot import FolderLock, create_snapshot, recover, replace_bytes


@pytest.fixture(params=["exchange", "two renames"])
def folder(tmp_path, request, monkeypatch):
    """A committed folder, on a system that can exchange two folders and on one that cannot."""
    if request.param == "two renames":
        monkeypatch.setattr(snapshot, "_exchange", lambda *_: False)
    path = tmp_path / "set"
    with create_snapshot(path) as stage:
        replace_bytes(stage / "deep" / "data", b"first")
        replace_bytes(stage / "meta", b"one")
    return path


def content(path):
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def test_a_commit_adds_and_replaces_and_keeps_the_rest(folder):
    inode = (folder / "deep" / "data").stat().st_ino
    with create_snapshot(folder) as stage:
        assert content(stage) == {"deep/data": b"first", "meta": b"one"}
        replace_bytes(stage / "meta", b"two")
        replace_bytes(stage / "deep" / "more", b"second")
        assert content(folder) == {"deep/data": b"first", "meta": b"one"}
    assert content(folder) == {"deep/data": b"first", "deep/more": b"second", "meta": b"two"}
    assert (folder / "deep" / "data").stat().st_ino == inode
    assert [item.name for item in folder.parent.iterdir()] == ["set"]


def test_all_that_is_new_is_on_the_disk_before_the_folder_changes(folder, monkeypatch):
    """A power cut after the swap must find every new file and every folder that names one."""
    synced, before, swap = set[int](), set[int](), snapshot._swap
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.add(os.fstat(handle).st_ino), sync(handle)))
    monkeypatch.setattr(snapshot, "_swap", lambda *paths: (before.update(synced), synced.clear(), swap(*paths)))
    with create_snapshot(folder) as stage:
        replace_bytes(stage / "deep" / "more", b"second")
        replace_bytes(stage / "meta", b"two")
    new = (folder, folder / "deep", folder / "deep" / "more", folder / "meta")
    assert before == {path.stat().st_ino for path in new}
    assert folder.parent.stat().st_ino in synced  # and the swap itself, after it


def test_a_reader_never_finds_the_folder_missing_where_folders_can_be_exchanged(tmp_path, monkeypatch):
    """Checked after each rename of a commit; a direct system call detects support for the exchange."""
    path, one, other = tmp_path / "set", tmp_path / "one", tmp_path / "other"
    for item in (path, one, other):
        item.mkdir()
    call = getattr(ctypes.CDLL(None), "renameat2", None)
    if call is None or call(-100, bytes(one), -100, bytes(other), 2) != 0:
        pytest.skip("this file system exchanges no folders")
    rename, seen = type(path).rename, list[bool]()
    monkeypatch.setattr(type(path), "rename", lambda *paths: (rename(*paths), seen.append(path.exists()))[0])
    with create_snapshot(path) as stage:
        replace_bytes(stage / "meta", b"two")
    assert content(path) == {"meta": b"two"}
    assert all(seen)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupted_commit_changes_nothing(folder, error):
    with pytest.raises(error), create_snapshot(folder) as stage:
        replace_bytes(stage / "meta", b"two")
        raise error
    assert content(folder) == {"deep/data": b"first", "meta": b"one"}
    assert [item.name for item in folder.parent.iterdir()] == ["set"]


@pytest.mark.parametrize("code", ["ENOSPC", "EDQUOT", "EFBIG"])
def test_a_full_disk_is_told_from_other_errors(folder, code):
    number = getattr(errno, code)
    with pytest.raises(DatasetError, match="Earlier commits are unchanged"), create_snapshot(folder):
        raise RuntimeError from OSError(number, os.strerror(number))
    denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    with pytest.raises(DatasetError, match=r"cannot be written \(Permission denied\)"), create_snapshot(folder):
        raise denied
    with pytest.raises(ValueError, match="another"), create_snapshot(folder):
        raise ValueError("another")


def test_a_writer_killed_between_two_renames_is_recovered(tmp_path):
    path = tmp_path / "set"
    old, following = tmp_path / ".set.old", tmp_path / ".set.next"
    for place, text in ((old, "committed"), (following, "half")):
        place.mkdir()
        (place / "meta").write_text(text)
    recover(path)
    assert content(path) == {"meta": b"committed"}
    old.mkdir()
    recover(path)
    assert [item.name for item in tmp_path.iterdir()] == ["set"]


def test_a_file_system_without_hard_links_gets_copies(folder, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with create_snapshot(folder) as stage:
        replace_bytes(stage / "meta", b"two")
    assert content(folder) == {"deep/data": b"first", "meta": b"two"}


def test_a_lock_is_one_at_a_time_and_leaves_nothing(tmp_path):
    path = tmp_path / "set"
    first = FolderLock(path)
    with pytest.raises(DatasetLockedError, match=f"Another writer .process {os.getpid()}. has {path} open"):
        FolderLock(path)
    first.release()
    first.release()
    second = FolderLock(path)
    assert second.held
    assert not first.held
    second.release()
    assert list(tmp_path.iterdir()) == []
