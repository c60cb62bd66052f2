"""Catalog faults (kill, full disk, lock, damage): committed data stay readable, and the message names the next step."""

from __future__ import annotations

import contextlib
import errno
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sqlite3
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.catalog_workspace import score
from support.dataset_writer import SPEC, commit, planted, write_all
from support.killed import Forks
from twinloop.catalog import Workspace
from twinloop.catalog import state as state_module
from twinloop.catalog.repair import rebuild_state
from twinloop.core.errors import DatasetError, DatasetLockedError, InputError
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.lerobot.tables import content_hash
from twinloop.dataset.lerobot.writer import DatasetWriter

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["twinloop.catalog", "duckdb", "pyarrow.parquet", "pyarrow.compute", "encodings.utf_8_sig"]
)


@pytest.fixture(name="made", scope="module")
def made_once(tmp_path_factory):
    """A workspace with one batch and a score, and a second dataset that is not in the catalog."""
    root = tmp_path_factory.mktemp("made") / "cell"
    with Workspace.create(root) as ws, DatasetWriter.open(root / "data" / "first", SPEC) as writer:
        commit(writer, 0)
        ws.add(root / "data" / "first")
        ws.append("scores", score("e", 0.5), run_id="01")
        with DatasetWriter.open(root / "data" / "second", SPEC) as other:
            other.commit_block(0, [planted(2)])
            other.commit_block(1, [planted(5)])
    return root


@pytest.fixture(name="root")
def workspace(made, tmp_path):
    return shutil.copytree(made, tmp_path / "cell")


def committed(root: Path) -> dict[str, list[str]]:
    """All that a reader sees of it."""
    names = ("episodes", "params", "score_history", "batches", "datasets", "dataset_episodes", "tombstones")
    with Workspace.open(root) as ws:
        return {name: sorted(map(str, ws.query(f"SELECT * FROM {name}").to_pylist())) for name in names}


def without_times(seen: dict[str, list[str]]) -> str:
    with_times = ("batches", "datasets", "tombstones")
    return str({name: len(rows) if name in with_times else rows for name, rows in seen.items()})


@pytest.fixture(name="forks", scope="module")
def fork_server():
    with Forks.open() as forks:
        yield forks


def exit_code(target, *given) -> int:
    """Exit code of a function that runs in a separate process."""
    process = PROCESSES.Process(target=target, args=given)
    process.start()
    process.join()
    assert process.exitcode is not None
    assert process.exitcode in (0, 7, -signal.SIGKILL)
    return process.exitcode


def walk(forks: Forks, made: Path, folder: Path, what: str) -> int:
    """Kill ``what`` at every write point, and then let it end; how many times it was killed."""

    def prepared(name: str) -> Path:
        root = shutil.copytree(made, folder / name)
        if what == "rewrite":
            shutil.rmtree(root / "data" / "first")
            with DatasetWriter.open(root / "data" / "first", SPEC) as writer:
                writer.commit_block(0, [planted(2), planted(3)])
        return root

    before = without_times(committed(prepared("before")))
    finished = prepared("finished")
    assert forks.run(10_000, finished, what) == 0
    after = without_times(committed(finished))
    for step in range(10_000):
        root = prepared(f"step-{step}")
        code = forks.run(step, root, what)
        found = without_times(committed(root))
        assert found in ((after,) if code == 0 else (before, after)), (what, step)
        again = shutil.copytree(root, folder / f"again-{step}")
        rebuild_state(again / "catalog", again / "catalog" / "state.sqlite")
        assert without_times(committed(again)) in (before, after), (what, step)  # a whole commit may count then
        shutil.rmtree(again)
        assert forks.run(10_000, root, what) == 0
        if what != "append":  # appending again appends again
            assert without_times(committed(root)) == after
        shutil.rmtree(root)
        if code == 0:
            return step
    raise AssertionError


def test_an_addition_that_is_killed_happened_or_did_not(forks, root):
    """One of the points that the slow test walks through."""
    before = without_times(committed(root))
    for step in (14,):
        assert forks.run(step, root, "add") == -signal.SIGKILL
        assert without_times(committed(root)) == before
    with Workspace.open(root) as ws:
        assert ws.add(root / "data" / "second").new == 2


@pytest.mark.slow
@pytest.mark.parametrize("what", ["add", "append"])
def test_what_was_never_committed_is_whole_or_absent_when_the_index_is_made_again(forks, made, root, what):
    """Ended with its parts on the disk, run again, and then the index is made again from the parts."""
    before = without_times(committed(root))
    steps = iter(range(30, 0, -1))
    files = set[Path]()
    while len(files) < 2:  # from the end: the last point at which nothing was committed yet
        root = shutil.copytree(made, root.parent / f"try-{next(steps)}")
        present = set((root / "catalog").glob("*/part-*"))
        code = forks.run(int(root.name.removeprefix("try-")), root, what)
        if code and without_times(committed(root)) == before:
            files = set((root / "catalog").glob("*/part-*")) - present
    assert forks.run(10_000, root, what) == 0
    after = without_times(committed(root))
    assert after != before
    rebuild_state(root / "catalog", root / "catalog" / "state.sqlite")
    assert without_times(committed(root)) == after


@pytest.mark.slow
@pytest.mark.parametrize("what", ["add", "append", "freeze", "bury", "compact", "rewrite"])
def test_no_write_point_leaves_half_of_anything(forks, made, tmp_path, what):
    least = {"add": 22, "append": 16, "freeze": 13, "bury": 6, "compact": 40, "rewrite": 26}  # as many as there were
    assert walk(forks, made, tmp_path, what) >= least[what]


@pytest.mark.parametrize("full_at", [0, 1, 2])
def test_a_full_disk_leaves_everything_as_it_was(root, monkeypatch, full_at):
    before, calls = committed(root), iter(range(100))

    def write(rows, where, **settings):
        if next(calls) == full_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(rows, where, **settings)

    real = pq.write_table
    monkeypatch.setattr("twinloop.catalog.parts.pq.write_table", write)
    with Workspace.open(root) as ws:
        if full_at < 2:  # the addition writes two parts
            with pytest.raises(DatasetError, match=r"No space left on the disk.*Free some"):
                ws.add(root / "data" / "second")
            assert committed(root) == before
            assert not [path for path in (root / "catalog").rglob("part-*") if path.name not in listed(ws)]
        assert ws.add(root / "data" / "second").new == 2


def listed(ws: Workspace) -> set[str]:
    return {row["part"] for row in ws.state.rows("SELECT part FROM parts")}


def _add_with_little_room(root: Path, bound: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bound, bound))
    try:
        with Workspace.open(root) as ws:
            ws.add(root / "data" / "second")
    except (DatasetError, InputError):
        os._exit(7)
    os._exit(0)


@pytest.mark.parametrize("bound", [2_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_a_limit_on_the_size_of_files_is_an_error_that_harms_nothing(root, bound):
    before = committed(root)
    assert exit_code(_add_with_little_room, root, bound) == 7
    assert committed(root) == before
    with Workspace.open(root) as ws:
        assert ws.add(root / "data" / "second").new == 2


def _append(root: Path, first: int) -> None:
    with Workspace.open(root) as ws:
        for number in range(first, first + 5):
            ws.append("scores", score("e", 1.0, f"physics/check_{number}"), run_id="02")


def test_two_writers_take_turns_and_nothing_is_lost(root):
    writers = [PROCESSES.Process(target=_append, args=(root, first)) for first in (0, 100)]
    for writer in writers:
        writer.start()
    seen = 0
    with Workspace.open(root) as ws:
        while any(writer.is_alive() for writer in writers):
            count = ws.query("SELECT count(*) AS n FROM score_history")["n"][0].as_py()
            assert count >= seen
            seen = count
        for writer in writers:
            writer.join()
            assert writer.exitcode == 0
        assert ws.query("SELECT count(*) AS n FROM score_history")["n"][0].as_py() == 11


def test_a_writer_that_waits_too_long_is_told(root, monkeypatch):
    monkeypatch.setattr(state_module, "BUSY_S", 0.05)
    holder = sqlite3.connect(root / "catalog" / "state.sqlite", isolation_level=None)
    with contextlib.closing(holder), Workspace.open(root) as ws:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatasetLockedError, match=r"Another process has been writing.*Nothing was changed"):
            ws.append("scores", score("e", 1.0), run_id="02")
        assert ws.query("SELECT count(*) AS n FROM scores")["n"][0].as_py() == 1
        holder.execute("ROLLBACK")
        ws.append("scores", score("e", 1.0), run_id="02")


def test_two_processes_that_add_the_same_folder_add_it_once(root):
    with Workspace.open(root) as one, Workspace.open(root) as other:
        from twinloop.catalog.adding import ConcurrentUpdateError, _AddAttempt

        folder = root / "data" / "second"
        late = _AddAttempt(one.parts, folder, path="data/second", batch=None, source="real", run_id=None)
        assert other.add(folder).new == 2
        with pytest.raises(ConcurrentUpdateError):
            late.commit()
        assert (one.add(folder).new, one.query("SELECT count(*) AS n FROM places")["n"][0].as_py()) == (0, 5)


def _read_only(root: Path) -> None:
    """As somebody who may read only; root may do everything, so another user takes over."""
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    with Workspace.open(root) as ws:
        count = ws.query("SELECT count(*) AS n FROM episodes")["n"][0].as_py()
        assert count == 3, count
        for change in (
            lambda: ws.append("scores", score("e", 1.0), run_id="02"),
            lambda: ws.add(root / "data" / "second"),
            lambda: ws.exclude_episodes(["e"], "why", "who"),
        ):
            with pytest.raises((DatasetError, InputError), match="cannot be written"):
                change()
    os._exit(7)


@pytest.mark.parametrize("wal", [False, True])
def test_a_read_only_workspace_answers_and_refuses_to_be_changed(root, wal):
    if wal:  # committed data may still be in the log file of the database
        with contextlib.closing(sqlite3.connect(root / "catalog" / "state.sqlite")) as connection:
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            connection.execute("UPDATE counters SET value = value + 1")
            connection.commit()
            for name in ("state.sqlite", "state.sqlite-wal"):
                shutil.copy(root / "catalog" / name, root / name)
        for name in ("state.sqlite", "state.sqlite-wal"):
            (root / name).replace(root / "catalog" / name)
    paths = [root, *root.rglob("*")]
    parents = [parent for parent in root.parents if parent.is_relative_to("/tmp") and parent != Path("/tmp")]
    modes = {path: path.stat().st_mode for path in parents}
    for path in parents:
        path.chmod(0o755)
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert exit_code(_read_only, root) == 7
    finally:
        for path in reversed(paths):
            path.chmod(0o755 if path.is_dir() else 0o644)
        for path, mode in modes.items():
            path.chmod(mode)


# Hostile datasets.


def foreign(folder: Path, **changes: object) -> Path:
    """A dataset that another program wrote: no provenance, no side tables; ``changes`` are of its info.json."""
    write_all(folder)
    shutil.rmtree(folder / "twinloop")
    for path in (folder / "meta" / "episodes").glob("*/*.parquet"):
        table = pq.read_table(path)
        keep = [name for name in table.column_names if not name.startswith("provenance/")]
        pq.write_table(table.select(keep), path)
    info = json.loads((folder / layout.INFO).read_text())
    (folder / layout.INFO).write_text(json.dumps({**info, **changes}))
    return folder


@pytest.fixture(name="theirs", scope="module")
def foreign_once(tmp_path_factory):
    return foreign(tmp_path_factory.mktemp("theirs") / "theirs")


def changed(theirs: Path, target: Path, **changes: object) -> Path:
    folder = shutil.copytree(theirs, target)
    info = json.loads((folder / layout.INFO).read_text())
    (folder / layout.INFO).write_text(json.dumps({**info, **changes}))
    return folder


def test_a_foreign_dataset_is_named_by_its_content(theirs, root, tmp_path):
    with Workspace.open(root) as ws:
        added = ws.add(theirs)
        assert (added.episodes, added.new) == (9, 9)
        rows = ws.query("SELECT * FROM episodes WHERE batch = 'theirs' ORDER BY episode_index").to_pylist()
        assert {row["source"] for row in rows} == {"real"}
        assert len({row["episode_id"] for row in rows}) == 9
        assert ws.add(shutil.copytree(theirs, tmp_path / "copy")).new == 0
        sim = ws.add(shutil.copytree(theirs, tmp_path / "sim"), source="sim")
        assert sim.new == 9  # simulated data are another episode
        place = ws.locate(rows[4]["episode_id"])
        assert DatasetReader(place.folder).row(place.index)["length"] == rows[4]["frames"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data_path": "../../secret/{chunk_index}.parquet"}, "leaves the dataset's folder"),
        ({"data_path": "/etc/{chunk_index}"}, "leaves the dataset's folder"),
        ({"data_path": "data/{chunk_index:0999999999d}.parquet"}, "data/.*width"),
        ({"data_path": "data/{chunk_index.__class__}.parquet"}, "path template.*not a plain name"),
        ({"data_path": 7}, "data_path is 7"),
        ({"codebase_version": "v2.1"}, "`twinloop import .* --output"),
        ({"fps": 0}, "fps is 0"),
        ({"fps": "fast"}, "fps is 'fast'"),
        ({"total_episodes": 10**15}, "total_episodes is 1000000000000000"),
        ({"total_frames": -1}, "total_frames is -1"),
        ({"total_episodes": 3}, "info.json has 3 episodes, but its episode table has 9"),
        ({"features": []}, "features"),
        ({"features": {"action": {"dtype": "object", "shape": [3]}}}, "action.*dtype 'object'"),
        ({"features": {"action": {"dtype": "float32", "shape": [10**12]}}}, "action.*shape"),
        ({"features": {"a/../../b": {"dtype": "float32", "shape": [1]}}}, "a/../../b"),
    ],
)
def test_hostile_metadata_are_refused_and_nothing_is_added(theirs, root, tmp_path, changes, message):
    before = committed(root)
    with Workspace.open(root) as ws, pytest.raises(DatasetError, match=message):
        ws.add(changed(theirs, tmp_path / "hostile", **changes))
    assert committed(root) == before


def test_a_folder_of_another_kind_names_the_command_that_takes_it(root, tmp_path):
    (tmp_path / "log.csv").write_text("t,a\n0,1\n")
    (tmp_path / "empty").mkdir()
    with Workspace.open(root) as ws:
        for path in (tmp_path / "log.csv", tmp_path / "empty", tmp_path / "nowhere"):
            with pytest.raises(DatasetError, match="is not a LeRobot v3.0 dataset.*`twinloop import"):
                ws.add(path)


def test_objects_in_place_of_numbers_are_refused(theirs, root, tmp_path):
    folder = shutil.copytree(theirs, tmp_path / "hostile")
    path = folder / "data" / "chunk-000" / "file-000.parquet"
    table = pq.read_table(path)
    pickles = pa.array([b"\x80\x04c__builtin__\neval"] * len(table))
    place = table.column_names.index("action")
    pq.write_table(table.set_column(place, "action", pickles), path)
    with Workspace.open(root) as ws, pytest.raises(DatasetError, match="action.*binary, not numbers"):
        ws.add(folder)


def test_a_link_that_leaves_the_folder_is_refused(theirs, root, tmp_path):
    folder = shutil.copytree(theirs, tmp_path / "hostile")
    path = folder / "data" / "chunk-000" / "file-000.parquet"
    outside = path.rename(tmp_path / "outside.parquet")
    path.symlink_to(outside)
    with Workspace.open(root) as ws, pytest.raises(DatasetError, match="leaves the dataset's folder"):
        ws.add(folder)


def test_sql_in_a_task_and_in_a_name_is_text(root):
    hostile = "cube'); DROP TABLE places; SELECT ('\"; --"
    record = planted(0).provenance
    from dataclasses import replace

    episode = replace(planted(0), provenance=replace(record, task=hostile, params={hostile: 1.0}))
    folder = root / "data" / 'it\'s "a" set; DROP TABLE batches'
    with DatasetWriter.open(folder, SPEC) as writer:
        writer.commit_block(0, [episode])
    with Workspace.open(root) as ws:
        added = ws.add(folder)
        assert added.batch == folder.name
        found = ws.query(
            "SELECT e.task, p.name, f.batch FROM episodes e JOIN params p USING (episode_id)"
            " JOIN frames f USING (episode_id) WHERE e.task = ? LIMIT 1",
            [hostile],
        ).to_pylist()
        assert found == [{"task": hostile, "name": hostile, "batch": folder.name}]
        assert ws.locate(content_hash(episode)).folder == folder
