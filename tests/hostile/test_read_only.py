"""Folders that cannot be written: every command that writes refuses clearly, and every command that reads works."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from _campaign import Campaign, can_mount
from _campaign_jobs import campaign
from _campaign_verbs import VERBS

from support.labelled import workspace
from twinloop.catalog import Workspace
from twinloop.core.errors import DatasetError, InputError
from twinloop.core.files import write_text
from twinloop.dataset.storage.snapshot import FolderLock

READS = {
    "query": "query SELECT~count(*)~AS~n~FROM~episodes",
    "query frames": "query SELECT~count(*)~AS~n~FROM~frames",
    "query params": "query SELECT~count(*)~AS~n~FROM~params",
    "replay": "replay data/first 0",
    "fsck": "fsck",
    "fsck --deep": "fsck --deep",
    "coverage": "coverage data/first",
    "curate of a folder": "curate data/first --checks recording --workers 1",
    "datasets list": "datasets list",
    "datasets show": "datasets show kept",
    "datasets lineage": "datasets lineage kept",
    "label list": "label list",
    "label rules": "label rules",
    "policies list": "policies list",
    "policies show": "policies show champion",
    "policies audit": "policies audit",
    "policies verify": "policies verify",
    "twin show": "twin show double_pendulum",
    "twin check": "twin check double_pendulum",
    "scenario list": "scenario list",
    "scenario show": "scenario show kept",
    "gap power": "gap power --p 0.2 0.9",
    "gap compare": "gap compare trials.csv --a a --b b",
    "gap dynamics": "gap dynamics --twin double_pendulum --data log.csv --no-why",
    "gap data": "gap data --real data/pendulum --twin double_pendulum --clip 0.2 --draws 0",
    "evaluate": "evaluate expert --twin double_pendulum --task swing.py:Swing --episodes 2",
    "gate": "gate gate.yaml --deployment lab",
    "import --check": "import log.csv --check",
    "monitor check": "monitor check --data data/many --monitor usual --twin double_pendulum",
    "evidence": "evidence --failure-rate 0.01",
    "doctor": "doctor",
}
MAY_REFUSE = ("gate", "evaluate")  # they print their findings, and report that they cannot store them in the workspace


def _words(line: str) -> list[str]:
    return [word.replace("~", " ") for word in line.split()]


@pytest.fixture(name="run", scope="module")
def running_campaign() -> Iterator[tuple[Campaign, Path]]:
    """One process with everything loaded, and the folder that all copies are made of."""
    if not can_mount():
        pytest.skip("this container may not mount a folder read-only, and permissions do not bind its user")
    with campaign() as both:
        yield both


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, id=name.replace(" ", "-"), marks=pytest.mark.attack(
            f"`twinloop {name}` in a workspace on a file system that is mounted read-only",
            expected="exit code 2, a message that names the path, no traceback"))
        for name, verb in VERBS.items() if not verb.hub and name != "approve"
    ],
)  # fmt: skip
def test_a_command_that_writes_is_refused(
    name: str, run: tuple[Campaign, Path], observed: Callable[[object], None]
) -> None:
    if VERBS[name].missing:
        pytest.skip(f"{VERBS[name].missing} is not installed")
    runner, world = run
    (found,) = runner.do("_campaign_jobs:on_read_only", world=str(world), lines=[VERBS[name].words], environment={})
    assert found["clear"], found
    assert found["code"] == 2, found
    assert "ead-only" in found["text"] or "cannot be" in found["text"], found
    observed(found["text"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, id=name.replace(" ", "-"), marks=pytest.mark.attack(
        f"reading with `twinloop {name}` on a file system that is mounted read-only",
        expected="it works, or says in one message what it cannot keep")) for name in READS],
)  # fmt: skip
def test_a_command_that_reads_works(name: str, run: tuple[Campaign, Path], observed: Callable[[object], None]) -> None:
    runner, world = run
    (found,) = runner.do("_campaign_jobs:on_read_only", world=str(world), lines=[_words(READS[name])], environment={})
    assert found["clear"], found
    assert found["code"] in ((0, 1, 2) if name in MAY_REFUSE else (0, 1)), found
    observed(f"exit code {found['code']}: {found['text']}")


# In one process, without mounts: the catalog and single files in folders that cannot be written.


class _ReadOnly:
    """Let the operating system refuse to make files, as a read-only file system does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self._open, self._root = os.open, str(root)
        monkeypatch.setattr(os, "open", self)

    def __call__(self, path, flags, mode=0o777, **named):
        if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR) and str(path).startswith(self._root):
            raise OSError(30, os.strerror(30), str(path))
        return self._open(path, flags, mode, **named)


@pytest.mark.attack("a file is written into a folder on a read-only file system",
                    expected="refused by name with the next step, and no temporary file")  # fmt: skip
def test_a_single_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, observed: Callable[[object], None]) -> None:
    with monkeypatch.context() as patch:
        _ReadOnly(patch, tmp_path)
        with pytest.raises(
            InputError, match=r"cannot be written \(Read-only file system.*another file system"
        ) as caught:
            write_text(tmp_path / "labels.csv", "x")
    assert list(tmp_path.iterdir()) == []
    observed(caught.value)


@pytest.mark.attack(
    "a lock is taken in a folder on a read-only file system", expected="refused by name, nothing is left"
)
def test_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, observed: Callable[[object], None]) -> None:
    with monkeypatch.context() as patch:
        _ReadOnly(patch, tmp_path)
        with pytest.raises(DatasetError, match="Read-only file system") as caught:
            FolderLock(tmp_path / "set")
    observed(caught.value)


@pytest.mark.attack("a file system becomes read-only while a dataset is held for writing",
                    expected="letting go of the lock raises nothing, and the next writer gets it")  # fmt: skip
def test_a_lock_that_cannot_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = FolderLock(tmp_path / "set")

    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise OSError(30, os.strerror(30), str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        lock.release()
    assert not lock.held
    FolderLock(tmp_path / "set").release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.attack("a workspace is read from a folder without write permission, as somebody who is not root",
                    expected="queries answer from a copy of the index; a change is refused")  # fmt: skip
def test_a_copy_is_read_where_sqlite_cannot_open_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, observed: Callable[[object], None]
) -> None:
    held, _ = workspace(tmp_path / "cell")
    held.close()
    state = tmp_path / "cell" / "catalog" / "state.sqlite"
    import sqlite3

    from twinloop.catalog import state as module

    opened = module._open_connection

    def refused(path: Path) -> sqlite3.Connection:
        if path == state:
            error = sqlite3.OperationalError("unable to open database file")
            error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
            raise error
        return opened(path)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_open_connection", refused)
        with Workspace.open(tmp_path / "cell") as ws:
            assert ws.query("SELECT count(*) AS n FROM episodes")["n"].to_pylist() == [6]
            with pytest.raises(DatasetError, match="cannot be written") as caught:
                ws.exclude_episodes(ws.query("SELECT min(episode_id) AS n FROM places")["n"].to_pylist(), "why", "who")
    assert stat.S_ISREG(state.stat().st_mode)
    observed(caught.value)


@pytest.mark.attack("SQLite cannot map its shared memory because the disk is full, and the workspace is queried",
                    expected="queries answer from a copy; a change says that there is no space left")  # fmt: skip
def test_queries_answer_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, observed: Callable[[object], None]
) -> None:
    import sqlite3

    from twinloop.catalog import state as module

    held, _ = workspace(tmp_path / "cell")
    held.close()
    state, opened = tmp_path / "cell" / "catalog" / "state.sqlite", module._open_connection

    def full(path: Path) -> sqlite3.Connection:
        if path == state:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error
        return opened(path)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_open_connection", full)
        with Workspace.open(tmp_path / "cell") as ws:
            assert ws.query("SELECT count(*) AS n FROM episodes")["n"].to_pylist() == [6]
            with pytest.raises(DatasetError, match="No space left on the disk") as caught:
                ws.exclude_episodes(ws.query("SELECT min(episode_id) AS n FROM places")["n"].to_pylist(), "why", "who")
    observed(caught.value)
