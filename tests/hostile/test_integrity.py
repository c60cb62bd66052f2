"""One changed bit in any file of a workspace is named by fsck, or the page on the catalog names the exception."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import multiprocessing
import os
import random
import re
import shutil
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from _damaged import TEXT, curate, data_file, flip, fsck, raw_state, rewritten, video_file, write_cell, write_videos
from hypothesis import given, settings
from hypothesis import strategies as st

from support.dataset_writer import SPEC, commit, planted
from support.releases import policy_folder, registry_of
from twinloop.catalog import Workspace
from twinloop.catalog import view_tables as kept_tables
from twinloop.catalog.dataset_folder import Seal, find_file_fault
from twinloop.catalog.label_checks import Label
from twinloop.catalog.state import WorkspaceState
from twinloop.catalog.state_digests import compute_digests, count_file, find_changed_tables, read_count
from twinloop.cli.main import main
from twinloop.core.errors import DatasetError, InputError
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.writer import DatasetWriter
from twinloop.workflows.run.record_command import record_command

DOCS = Path(__file__).parents[2] / "docs" / "guides" / "catalog.md"
NAMED = "fsck --deep names the file, exit code 1"
STATE = "catalog/state.sqlite"


@pytest.fixture(name="made", scope="module")
def made_once(tmp_path_factory):
    """A workspace with something of every kind: dataset, labels, frozen list, scores, policy, scenario, runs."""
    root = write_cell(tmp_path_factory.mktemp("made") / "cell")
    with Workspace.open(root) as ws:
        registry_of(ws).add(policy_folder(root.parent / "trained", 1), name="pick", policy=f"{1:064x}")
    assert main(["curate", "--workspace", str(root), "--checks", "recording/spikes", "--output",
                 str(root / "runs" / "curate" / "one")]) == 0  # fmt: skip
    scenario = root / "scenarios" / "dropped"
    scenario.mkdir(parents=True)
    (scenario / "scenario.yaml").write_text("name: dropped\n")
    (scenario / "arrays.npz").write_bytes(os.urandom(400))
    moment = datetime.now(UTC)
    record_command("makes", ["scenario", "from-failure"], {"output": str(scenario)}, 0, started=moment, ended=moment)
    assert fsck(root)[0] == 0
    return root


@pytest.fixture(name="root")
def copy(made, tmp_path):
    return copied(made, tmp_path / "cell")


def copied(made: Path, target: Path) -> Path:
    shutil.copytree(made, target)
    for folder in (target / "policies").rglob("*"):
        folder.chmod(0o755 if folder.is_dir() else 0o644)
    return target


def unsealed() -> list[str]:
    """Return the patterns that the page on the catalog lists as exceptions."""
    table = DOCS.read_text().partition("<!-- unsealed -->")[2].partition("<!-- /unsealed -->")[0]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    return [pattern for cell in cells for pattern in re.findall(r"`([^`]+)`", cell)]


def is_exception(name: str) -> bool:
    return any(
        fnmatch.fnmatchcase(name, pattern.replace("**", "*")) and _depth(name, pattern) for pattern in unsealed()
    )


def _depth(name: str, pattern: str) -> bool:
    """``*`` is within one folder, as people read it."""
    return "**" in pattern or name.count("/") == pattern.count("/")


def files(root: Path) -> dict[str, Path]:
    return {path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*")) if path.is_file()}


def kind(name: str) -> str:
    """Return what files of one kind have in common."""
    return re.sub(r"[0-9A-Z]{26}|[0-9a-f]{64}|\d+", "#", name)


def named(root: Path, path: Path, *, deep: bool = True) -> str:
    """Return the finding that names a file; fail where none does."""
    code, _, metrics = fsck(root, deep=deep)
    name = path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
    texts = [finding["problem"] for finding in metrics["findings"]]
    found = [text for text in texts if name in text] or [text for text in texts if path.name in text]
    assert code == 1, (name, code, texts)
    assert found, (name, texts)
    return found[0]


# One bit, in every kind of file and in every file.


@pytest.mark.attack("one bit flipped in one file of every kind, all at once", expected="fsck --deep names each of them")
def test_a_flipped_bit_in_every_kind_of_file_is_named(root, observed):
    chosen = {kind(name): (name, path) for name, path in files(root).items()}
    rng, flipped = random.Random(0), []
    for name, path in chosen.values():
        if not is_exception(name) and not name.startswith(STATE) and path.stat().st_size:
            flip(path, rng.randrange(path.stat().st_size), rng.randrange(8))
            flipped.append(name)
    code, _, metrics = fsck(root)
    texts = json.dumps([finding["problem"] for finding in metrics["findings"]])
    observed(f"{len(flipped)} files, {len(metrics['findings'])} findings")
    assert code == 1
    assert len(flipped) >= 25
    assert [name for name in flipped if name not in texts and Path(name).name not in texts] == []


@pytest.mark.slow
@pytest.mark.attack("one bit flipped in each file of a workspace, at 3 places (state.sqlite: 100), one at a time",
                    expected="fsck --deep names the file, or the docs list it")  # fmt: skip
def test_a_flipped_bit_in_any_file_is_named(root, observed):
    rng = random.Random(1)
    tried = missed = excused = 0
    where = list[str]()
    for name, path in files(root).items():
        data = path.read_bytes()
        for _ in range((100 if name == STATE else 3) if data else 0):
            at, bit = rng.randrange(len(data)), rng.randrange(8)
            flip(path, at, bit)
            tried += 1
            code, text, _ = fsck(root)
            if code == 0 or path.name not in text:
                excused += is_exception(name)
                missed += not is_exception(name)
                where.append(f"{name}, byte {at}, bit {bit}; exit code {code}")
            for suffix in ("-wal", "-shm"):
                Path(f"{root / STATE}{suffix}").unlink(missing_ok=True)
            path.write_bytes(data)
    observed(f"{tried} bits tried, {missed} not named, {excused} in files that the docs list")
    assert missed == 0, where
    assert excused <= 3 * sum(is_exception(name) for name in files(root))
    assert fsck(root)[0] == 0


def test_the_exceptions_are_few_and_each_is_of_a_file_that_there_may_be():
    assert 5 <= len(unsealed()) <= 16
    for name in ("data/first/meta/info.json", "data/first/README.md", "runs/gap/one/result.json", STATE,
                 "catalog/episodes/part-1.parquet", "policies/pick/1/model.safetensors", "scenarios/one/arrays.npz",
                 "catalog/state.sqlite.commits", "policies/audit-head.json"):  # fmt: skip
        assert not is_exception(name), name


META = [layout.UNIT_MAP, layout.SPEC, layout.STATS, layout.TASKS, layout.PROGRESS, layout.INFO, layout.RESULT,
        layout.MODALITY, layout.CARD]  # fmt: skip


@pytest.mark.parametrize("deep", [pytest.param(True, marks=pytest.mark.slow), pytest.param(False, id="shallow")])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.attack(f"one bit flipped in {name}", expected="fsck names the file"))
             for name in META],
)  # fmt: skip
def test_a_flipped_bit_in_metadata_is_named_by_every_fsck(plain, observed, name, deep):
    path = plain / "data" / "first" / name
    flip(path, path.stat().st_size // 2, 0)
    observed(named(plain, path, deep=deep))


@pytest.fixture(name="plain_made", scope="module")
def plain_once(tmp_path_factory):
    """A workspace with one small dataset without videos."""
    root = tmp_path_factory.mktemp("plain") / "cell"
    with Workspace.create(root) as ws:
        with DatasetWriter.open(root / "data" / "first", SPEC) as writer:
            for block in (0, 1, 2):
                commit(writer, block)
            writer.finish({"yield": 0.5})
        ws.add(root / "data" / "first")
        ids = ws.query("SELECT episode_id FROM episodes ORDER BY episode_index")["episode_id"].to_pylist()
        ws.label([Label(episode_id=name, kind="language", value=TEXT, source="hand", author="ada") for name in ids])
    return root


@pytest.fixture(name="plain")
def plain_copy(plain_made, tmp_path):
    return copied(plain_made, tmp_path / "cell")


# Files of a dataset, otherwise changed.


def swapped(path: Path) -> None:
    """Swap a file with another one of its folder's dataset."""
    other = path.with_name("file-002.parquet")
    data, content = path.read_bytes(), other.read_bytes()
    path.write_bytes(content)
    other.write_bytes(data)


def linked(path: Path) -> None:
    target = path.rename(path.parents[4] / f"outside-{path.name}")
    path.symlink_to(target)


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def foldered(path: Path) -> None:
    path.unlink()
    path.mkdir()


def same_times(path: Path) -> None:
    about = path.stat()
    flip(path, path.stat().st_size // 3)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))


HARMS = {
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "emptied": lambda path: path.write_bytes(b""),
    "deleted": lambda path: path.unlink(),
    "swapped with another block's": swapped,
    "replaced by a link to the same content outside": linked,
    "replaced by a pipe": piped,
    "replaced by a folder": foldered,
    "changed with its times kept": same_times,
    "renamed in upper case": lambda path: path.rename(path.with_name(path.name.upper())),
    "longer by a byte": lambda path: path.write_bytes(path.read_bytes() + b"\n"),
}
TARGETS = {"a data file": "data/chunk-000/file-000.parquet", "stats.json": layout.STATS,
           "states": "twinloop/states/chunk-000/file-000.parquet",
           "the episode table": "meta/episodes/chunk-000/file-000.parquet"}  # fmt: skip
QUICK = ("emptied", "replaced by a pipe")  # of these every target is tried fast
CASES = [
    pytest.param(harm, target, id=f"{target}-{harm}",
                 marks=[pytest.mark.attack(f"{target} {harm}", expected=NAMED),
                        *[pytest.mark.slow] * (target != "a data file" and harm not in QUICK)])
    for harm in HARMS for target in TARGETS if not (harm.startswith("swapped") and target == "stats.json")
]  # fmt: skip


@pytest.mark.parametrize(("harm", "target"), CASES)
def test_a_file_that_is_not_what_it_was_is_named(plain, observed, harm, target):
    path = plain / "data" / "first" / TARGETS[target]
    HARMS[harm](path)
    observed(named(plain, path))


@pytest.mark.attack("info.json replaced by a pipe", expected="fsck says that the dataset is gone, and does not wait")
def test_a_pipe_in_place_of_the_metadata_is_named(plain, observed):
    path = plain / "data" / "first" / layout.INFO
    piped(path)
    observed(named(plain, path.parents[1]))


@pytest.mark.parametrize("name", [
    pytest.param("data/chunk-000/file-000.parquet", marks=pytest.mark.attack(
        "a dataset with a pipe in place of a data file is added", expected="refused at once")),
    pytest.param("meta/episodes/chunk-000/file-000.parquet", marks=pytest.mark.attack(
        "a dataset with a pipe in place of its episode table is added", expected="refused at once")),
    pytest.param("notes.txt", marks=pytest.mark.attack(
        "a dataset with a pipe among its files is added", expected="refused at once")),
])  # fmt: skip
def test_a_dataset_with_a_pipe_is_refused(tmp_path, plain_made, observed, name):
    folder = shutil.copytree(plain_made / "data" / "first", tmp_path / "sent")
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with Workspace.create(tmp_path / "cell") as ws, pytest.raises(InputError, match="pipe|no regular file") as refused:
        ws.add(folder)
    observed(refused.value)


@pytest.mark.parametrize(("name", "shown"), [
    pytest.param("extra.txt", "extra.txt", marks=pytest.mark.attack("a file added to a dataset", expected=NAMED)),
    pytest.param("data/chunk-000/file-009.parquet", "file-009.parquet",
                 marks=pytest.mark.attack("a data file added to a dataset", expected=NAMED)),
    pytest.param("twinloop/x\n0 findings.\nNo fault was found.", "x\\n0 findings.\\nNo fault",
                 marks=pytest.mark.attack("a file whose name holds line breaks and says that all is whole",
                                          expected="the name in one line, exit code 1")),
    pytest.param("twinloop/\x1b[2J", "\\x1b[2J",
                 marks=pytest.mark.attack("a file whose name clears the screen", expected="its name written out")),
])  # fmt: skip
def test_a_file_that_came_is_named(plain, observed, name, shown):
    (plain / "data" / "first" / name).write_bytes(b"x")
    code, text, _ = fsck(plain)
    observed(text.splitlines()[0])
    assert code == 1
    assert shown in text
    assert "No fault was found." not in text.splitlines()


@pytest.mark.attack("a dataset with a file name that is no text is added", expected="refused: rename the file")
def test_a_name_that_is_no_text_is_refused(plain, tmp_path, observed):
    folder = shutil.copytree(plain / "data" / "first", tmp_path / "sent")
    Path(os.fsdecode(os.fsencode(folder) + b"/twinloop/\xff.json")).write_bytes(b"{}")
    with Workspace.open(plain) as ws, pytest.raises(DatasetError, match="not valid text. Rename") as refused:
        ws.add(folder)
    observed(refused.value)


@pytest.mark.attack("the rows of two episodes swapped in the episode table", expected=NAMED)
def test_swapped_rows_of_the_episode_table_are_named(plain, observed):
    path = plain / "data" / "first" / TARGETS["the episode table"]
    rewritten(path, lambda table: table.take([1, 0, 2]))
    observed(named(plain, path.parents[3]))


@pytest.mark.attack("another dataset of the same shape in place of one", expected="fsck says that it was written anew")
def test_another_dataset_in_its_place_is_named(plain, observed):
    folder = plain / "data" / "first"
    shutil.rmtree(folder)
    with DatasetWriter.open(folder, SPEC) as writer:
        writer.commit_block(0, [planted(0), planted(2)])
        writer.finish({})
    finding = named(plain, folder)
    observed(finding)
    assert "rewritten" in finding


@pytest.mark.attack("the scale of a joint doubled in unit_map.json, valid JSON of the same length", expected=NAMED)
def test_a_changed_unit_is_named_and_repair_does_not_accept_it(plain, observed):
    path = plain / "data" / "first" / layout.UNIT_MAP
    text = path.read_text()
    digit = re.search(r'"scale": \d\.(\d)', text)
    path.write_text(text[: digit.start(1)] + str((int(digit[1]) + 1) % 10) + text[digit.end(1) :])
    json.loads(path.read_text())
    observed(named(plain, path))
    assert fsck(plain, mend=True)[0] == 1
    assert fsck(plain)[0] == 1


# An intended change is no finding.


def test_a_dataset_that_grew_is_known_with_its_new_metadata_once_it_is_added(tmp_path):
    root, folder = tmp_path / "cell", tmp_path / "cell" / "data" / "grows"
    with Workspace.create(root) as ws, DatasetWriter.open(folder, SPEC) as writer:
        commit(writer, 0)
        ws.add(folder)
        assert fsck(root)[0] == 0
        commit(writer, 1)
        commit(writer, 2)
        code, text, metrics = fsck(root)
        assert (code, len(metrics["findings"])) == (1, 1)  # that it grew, and not each file that changed with it
        assert "are not in the catalog" in text
        added = ws.add(folder)
        assert layout.INFO in added.resealed
        assert fsck(root)[0] == 0


def test_a_change_that_was_meant_is_accepted_by_adding_again_and_said(plain):
    folder = plain / "data" / "first"
    (folder / layout.CARD).write_text("# Mine\n")
    (folder / "notes.txt").write_text("first day\n")
    assert fsck(plain)[0] == 1
    with Workspace.open(plain) as ws:
        added = ws.add(folder)
        assert (added.resealed, added.new, added.parts) == ((layout.CARD,), 0, ())
        assert ws.add(folder).resealed == ()
    assert fsck(plain)[0] == 0
    (folder / "notes.txt").unlink()
    assert fsck(plain)[0] == 1
    with Workspace.open(plain) as ws:
        ws.add(folder)
    assert fsck(plain)[0] == 0


def test_a_card_that_twinloop_writes_is_known(plain):
    assert main(["export", "card", str(plain / "data" / "first")]) == 0
    assert fsck(plain)[0] == 0


@pytest.mark.attack("a changed data file, and the dataset is added again", expected="it stays a finding")
def test_adding_again_does_not_accept_a_changed_block(plain, observed):
    path = data_file(plain / "data" / "first")
    flip(path, 60)
    with Workspace.open(plain) as ws:
        ws.add(plain / "data" / "first")
    observed(named(plain, path))


def test_a_run_that_was_changed_on_purpose_is_accepted_by_name(root):
    path = root / "runs" / "curate" / "one" / "result.json"
    path.write_text("{}\n")
    assert "when its run was recorded" in named(root, path)
    with contextlib.chdir(root):
        assert main(["fsck", "--accept", "runs/curate/one/result.json"]) == 0
    assert fsck(root)[0] == 0
    assert main(["fsck", "--workspace", str(root), "--accept", "twinloop.yaml"]) == 2


def test_a_run_whose_folder_was_removed_whole_is_a_note(root):
    shutil.rmtree(root / "runs" / "curate")
    code, text, metrics = fsck(root)
    assert (code, len(metrics["notes"])) == (0, 1)
    assert "runs/curate/one, which a run wrote, is missing" in text


@pytest.mark.attack("a file deleted from the folder of a recorded run", expected=NAMED)
def test_a_file_that_a_run_lost_is_named(root, observed):
    path = root / "runs" / "curate" / "one" / "result.json"
    path.unlink()
    observed(named(root, path))


# Workspaces of earlier versions.


def made_older(root: Path) -> None:
    """Make a workspace one of version 2: without digests, files of runs, unknown outcomes, and seals but of blocks."""
    with contextlib.closing(raw_state(root)) as connection, connection:
        for table in ("row_digests", "run_files"):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("ALTER TABLE release_episodes DROP COLUMN unknown")
        connection.execute("DELETE FROM seals WHERE path NOT GLOB '*chunk-*/file-*'")
        connection.execute("PRAGMA user_version = 2")
    count_file(root / STATE).unlink()


def test_an_older_workspace_opens_and_is_sealed_by_the_next_deep_fsck_which_says_so(plain):
    made_older(plain)
    code, _, metrics = fsck(plain, deep=False)
    assert (code, metrics["notes"]) == (0, [])
    code, text, metrics = fsck(plain)
    assert code == 0
    assert "files of batch first were sealed now" in text
    assert fsck(plain)[2]["notes"] == []
    path = plain / "data" / "first" / layout.STATS
    flip(path, 30)
    named(plain, path)


def test_an_older_workspace_is_sealed_by_the_next_add(plain):
    made_older(plain)
    with Workspace.open(plain) as ws:
        assert ws.add(plain / "data" / "first").first_sealed >= 8
        assert ws.add(plain / "data" / "first").first_sealed == 0
    path = plain / "data" / "first" / layout.UNIT_MAP
    flip(path, 30)
    named(plain, path)


@pytest.mark.attack("a workspace of an earlier version that cannot be written", expected="it opens and answers")
def test_an_older_workspace_that_cannot_be_written_opens(plain, observed, monkeypatch):
    made_older(plain)

    def refused(connection, sql, *given):
        if sql.startswith("BEGIN IMMEDIATE"):
            error = sqlite3.OperationalError("attempt to write a readonly database")
            error.sqlite_errorcode = sqlite3.SQLITE_READONLY
            raise error
        return sqlite3.Connection.execute(connection, sql, *given)

    kind = type("ReadOnly", (sqlite3.Connection,), {"execute": refused})
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *given, **named: connect(*given, **{"factory": kind, **named}))
    with Workspace.open(plain) as ws:
        count = len(ws.query("SELECT * FROM episodes"))
    observed(f"{count} episodes")
    assert count == 5


@pytest.mark.attack("a row changed by another program before the schema of state.sqlite is migrated", expected=NAMED)
def test_a_migration_does_not_accept_a_changed_row(plain, observed, monkeypatch):
    from twinloop.catalog import state_schema

    with contextlib.closing(raw_state(plain)) as connection, connection:
        connection.execute("UPDATE label_history SET value = 'the hand opens' WHERE seq = 2")
    now = state_schema.VERSION
    monkeypatch.setattr(state_schema, "VERSION", now + 1)
    monkeypatch.setattr(state_schema, "STEPS", {now: ("ALTER TABLE tombstones ADD COLUMN mood TEXT",)})
    finding = named(plain, plain / STATE)
    observed(finding)
    assert "rows of label_history differ" in finding


# state.sqlite.

CHANGES = {
    "runs": "UPDATE runs SET result = '{}'",
    "batches": "UPDATE batches SET fps = fps + 1",
    "parts": "UPDATE parts SET committed = '2020'",
    "tombstones": "UPDATE tombstones SET reason = 'bumpee'",
    "datasets": "UPDATE datasets SET note = 'x'",
    "label_history": "UPDATE label_history SET author = 'bob' WHERE seq = 3",
    "label_ends": "INSERT INTO label_ends VALUES (1, 2)",
    "policies": "INSERT INTO policies VALUES ('p', 'n', NULL, NULL, '2020', NULL)",
    "policy_versions": "INSERT INTO policy_versions SELECT name, 7, hash, policy, record, added, added_by "
    "FROM policy_versions",
    "release_audit": "DROP TRIGGER release_audit_update",
    "places": "UPDATE places SET episode_index = 90 WHERE episode_index = 0",
    "drawn": "DELETE FROM drawn",
    "seals": "UPDATE seals SET bytes = bytes + 1",
    "retired": "INSERT INTO retired VALUES ('x', 1)",
    "counters": "UPDATE counters SET value = value + 1",
    "run_files": "DELETE FROM run_files",
    "row_digests": "DELETE FROM row_digests WHERE name = 'runs'",
}


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(
            table,
            marks=[
                pytest.mark.attack(f"rows of {table} changed with the sqlite3 program", expected=NAMED),
                *[pytest.mark.slow] * (table not in ("label_history", "tombstones", "release_audit", "seals")),
            ],
        )
        for table in CHANGES
    ],
)
def test_a_row_that_something_else_changed_is_named(root, observed, table):
    with contextlib.closing(raw_state(root)) as connection, connection:
        connection.execute(CHANGES[table])
    _, _, metrics = fsck(root)
    wanted = {"release_audit": "sqlite_master", "row_digests": "runs"}.get(table, table)
    found = [finding["problem"] for finding in metrics["findings"] if finding["kind"] == "rows"]
    observed(found[0] if found else "nothing")
    assert f"rows of {wanted} differ" in " ".join(found)


@pytest.mark.attack("one bit flipped in the text of a label in state.sqlite", expected="fsck names label_history")
def test_a_flipped_bit_in_a_label_is_named(plain, observed):
    path = plain / STATE
    data = path.read_bytes()
    for at in [found.start() for found in re.finditer(TEXT.encode(), data)]:
        flip(path, at + 4, 0)
    code, text, _ = fsck(plain)
    observed(text.splitlines()[0])
    assert code == 1
    assert "rows of label_history differ from the committed ones" in text
    with Workspace.open(plain) as ws:  # changed data are read unchanged until the finding is resolved
        assert len(ws.query("SELECT value FROM labels")) == 5


@pytest.mark.attack("a bit that makes the text of a label no UTF-8, then fsck --repair",
                    expected="named, and no other label is lost")  # fmt: skip
def test_a_text_that_is_no_text_loses_no_other_rows(plain, observed):
    path = plain / STATE
    at = path.read_bytes().index(TEXT.encode())
    flip(path, at, 7)
    code, text, _ = fsck(plain)
    observed(text.splitlines()[0])
    assert code == 1
    assert "label_history" in text
    assert fsck(plain, mend=True)[0] == 0
    assert fsck(plain)[0] == 0
    with Workspace.open(plain) as ws:
        values = ws.query("SELECT value FROM labels")["value"].to_pylist()
    assert sorted(values)[:4] == [TEXT] * 4
    assert len(values) == 5


@pytest.mark.attack("state.sqlite replaced by an older copy", expected="fsck says how many commits are missing")
def test_an_older_copy_is_named(plain, observed):
    older = (plain / STATE).read_bytes()
    with Workspace.open(plain) as ws:
        ws.exclude_episodes(["e"], "bumped", "ada")
        ws.exclude_episodes(["f"], "bumped", "ada")
    (plain / STATE).write_bytes(older)
    finding = named(plain, plain / STATE)
    observed(finding)
    assert "lacks its last 2 commits" in finding
    assert fsck(plain, mend=True)[0] == 0
    assert fsck(plain)[0] == 0


@pytest.mark.attack("a bit flipped in the write-ahead log of a process that was killed",
                    expected="fsck says that commits are missing")  # fmt: skip
def test_a_damaged_write_ahead_log_is_named(plain, tmp_path, observed):
    with Workspace.open(plain) as ws:
        ws.exclude_episodes(["e"], "bumped", "ada")
        ws.exclude_episodes(["f"], "bumped", "ada")
        killed = copied(plain, tmp_path / "killed")
    log = killed / f"{STATE}-wal"
    assert log.stat().st_size > 0
    intact = copied(killed, tmp_path / "intact")
    assert fsck(intact)[0] == 0
    flip(log, log.stat().st_size - 100)
    finding = named(killed, killed / STATE)
    observed(finding)
    assert "lacks its last 1 commits" in finding


@pytest.mark.attack("the write-ahead log of a killed process deleted", expected="fsck names the missing commits")
def test_a_deleted_write_ahead_log_is_named(plain, tmp_path, observed):
    with Workspace.open(plain) as ws:
        ws.exclude_episodes(["e"], "bumped", "ada")
        killed = copied(plain, tmp_path / "killed")
    Path(f"{killed / STATE}-wal").unlink()
    observed(named(killed, killed / STATE))


@pytest.mark.parametrize("harm", [
    pytest.param(lambda path: path.unlink(), id="gone",
                 marks=pytest.mark.attack("the file that counts commits deleted", expected=NAMED)),
    pytest.param(lambda path: flip(path, 18), id="lower",
                 marks=pytest.mark.attack("the number of the newest commit changed", expected=NAMED)),
    pytest.param(lambda path: flip(path, 70), id="hash",
                 marks=pytest.mark.attack("the noted hash of state.sqlite changed", expected=NAMED)),
    pytest.param(lambda path: path.write_bytes(b"\xff" * 200), id="noise",
                 marks=pytest.mark.attack("noise in the file that counts commits", expected=NAMED)),
    pytest.param(lambda path: (path.unlink(), os.mkfifo(path)), id="pipe",
                 marks=pytest.mark.attack("a pipe in place of the file that counts commits", expected=NAMED)),
])  # fmt: skip
def test_the_file_that_counts_commits_is_checked_and_repaired(plain, observed, harm):
    path = count_file(plain / STATE)
    harm(path)
    observed(named(plain, path))
    if path.is_fifo():
        return
    assert fsck(plain, mend=True)[0] == 0
    assert fsck(plain)[0] == 0


@pytest.mark.attack("bytes of state.sqlite flipped that SQLite makes no use of", expected=NAMED)
def test_a_byte_without_use_is_named_and_repaired(plain, observed):
    path = plain / STATE
    dump = dumped(path)
    flip(path, unused(path))
    assert dumped(path) == dump
    finding = named(plain, path)
    observed(finding)
    assert "All of its rows are intact" in finding
    assert fsck(plain, mend=True)[0] == 0
    assert fsck(plain)[0] == 0


def dumped(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


def unused(path: Path) -> int:
    """Return a byte in the gap between the cells and the pointers of a page."""
    data = path.read_bytes()
    size = int.from_bytes(data[16:18], "big")
    for page in range(1, len(data) // size):
        head = data[page * size : page * size + 8]
        count, content = int.from_bytes(head[3:5], "big"), int.from_bytes(head[5:7], "big")
        if head[0] in (10, 13) and content - (8 + 2 * count) > 100:
            return page * size + content - 50
    raise AssertionError


@pytest.mark.attack("the noted head of the audit log set to its beginning", expected=NAMED)
def test_a_noted_head_of_zero_is_no_beginning(root, observed):
    path = root / "policies" / "audit-head.json"
    value = json.loads(path.read_text())
    assert value["seq"] > 0
    path.write_text(json.dumps({**value, "seq": 0}))
    code, text, _ = fsck(root)
    observed(text.splitlines()[0])
    assert code == 1


def _commit_often(root: Path, name: str) -> None:
    for number in range(15):
        with Workspace.open(root) as ws:
            ws.exclude_episodes([f"{name}-{number}"], "bumped", name)


@pytest.mark.slow
def test_processes_that_commit_at_the_same_time_leave_no_finding(plain):
    context = multiprocessing.get_context("forkserver")
    writers = [context.Process(target=_commit_often, args=(plain, name)) for name in ("a", "b")]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert fsck(plain, deep=False)[0] == 0
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert fsck(plain)[0] == 0
    with WorkspaceState(plain / STATE).snapshot() as connection:
        assert connection.execute("SELECT count(*) FROM tombstones").fetchone()[0] == 30


def test_what_is_rolled_back_leaves_no_trace_in_the_digests(plain):
    with Workspace.open(plain) as ws:
        with pytest.raises(ZeroDivisionError), ws.state.transaction() as connection:
            connection.execute("DELETE FROM label_history")
            raise ZeroDivisionError
        ws.exclude_episodes(["e"], "bumped", "ada")
        with ws.state.snapshot() as connection:
            assert find_changed_tables(connection) == []
        assert read_count(ws.state.path) == ws.state.counter("state")


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "drop", "all"]), st.sampled_from("abcd"), TEXTS,
              st.one_of(st.none(), TEXTS, st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.binary())),
    max_size=12,
)  # fmt: skip


@given(steps=STEPS)
@settings(max_examples=20, deadline=None)
def test_the_digests_are_those_of_the_rows_whatever_transactions_did(tmp_path_factory, steps):
    """Inserting, replacing, changing and deleting rows of any content and type."""
    state = WorkspaceState.create(tmp_path_factory.mktemp("law") / "state.sqlite")
    try:
        for what, name, text, value in steps:
            with state.transaction() as connection:
                if what == "put":
                    row = (name, text, value if value is not None else "", "now")
                    connection.execute("INSERT OR REPLACE INTO tombstones VALUES (?, ?, ?, ?)", row)
                elif what == "drop":
                    connection.execute("DELETE FROM tombstones WHERE episode_id = ?", (name,))
                else:
                    connection.execute("UPDATE tombstones SET reason = ?", (text,))
        with state.snapshot() as connection:
            assert find_changed_tables(connection) == []
            stored = compute_digests(connection)
        if any(what == "put" for what, *_ in steps[-1:]):
            with contextlib.closing(sqlite3.connect(state.path)) as other, other:
                other.execute("UPDATE tombstones SET said_at = 'then'")
                assert compute_digests(other) != stored
    finally:
        state.close()


# Other files of the catalog.


@pytest.mark.parametrize("pattern", [
    pytest.param("catalog/episodes/part-*", marks=pytest.mark.attack("a bit flipped in a part", expected=NAMED)),
    pytest.param("catalog/datasets/*", marks=pytest.mark.attack("a bit flipped in a frozen list", expected=NAMED)),
    pytest.param("policies/pick/1/model.safetensors",
                 marks=pytest.mark.attack("a bit flipped in a registered policy", expected=NAMED)),
    pytest.param("scenarios/dropped/arrays.npz",
                 marks=pytest.mark.attack("a bit flipped in a scenario", expected=NAMED)),
])  # fmt: skip
def test_a_file_of_another_kind_is_named(root, observed, pattern):
    path = next(iter(sorted(root.glob(pattern))))
    flip(path, path.stat().st_size // 2)
    observed(named(root, path))


@pytest.mark.attack("a bit flipped in a file that makes opening quick", expected=NAMED)
def test_a_kept_table_is_named(plain, observed, monkeypatch):
    monkeypatch.setattr(kept_tables, "MIN_CACHED_ROWS", 1)
    with Workspace.open(plain) as ws:
        ws.query("SELECT * FROM episodes")
    path = next((plain / "catalog" / ".kept").glob("*.arrow"))
    flip(path, path.stat().st_size // 2)
    observed(named(plain, path))


@pytest.mark.attack("a bit flipped in the middle of a video right after it was added", expected=NAMED)
def test_a_video_is_sealed_when_it_is_added(tmp_path, observed):
    root = tmp_path / "cell"
    with Workspace.create(root) as ws:
        ws.add(write_videos(root / "data" / "first"))
        assert {row["whole"] for row in ws.state.rows("SELECT whole FROM seals")} == {1}  # not by its end alone
    path = video_file(root / "data" / "first")
    flip(path, path.stat().st_size // 2, 0)
    observed(named(root, path))
    assert curate(root, only=["recording/clock_jump"])["verdicts"]["bad"] == 0  # it can still be decoded


@pytest.mark.parametrize(("at", "named"), [(0, False), (-1, True)], ids=["beginning", "end"])
def test_a_video_that_was_sealed_by_its_end_alone(tmp_path, at, named):
    """As earlier versions did: `fsck` compares that end without --deep, and cannot see the rest."""
    video = tmp_path / "videos" / "chunk-000" / "file-000.mp4"
    video.parent.mkdir(parents=True)
    video.write_bytes(bytes(2 << 20))
    seal = Seal.of(tmp_path, "videos/chunk-000/file-000.mp4", whole=False)
    assert find_file_fault(tmp_path, seal, deep=False) is None
    flip(video, at)
    assert (find_file_fault(tmp_path, seal, deep=False) is not None) is named


def test_parts_hold_what_was_read_and_not_what_the_dataset_is_now(plain):
    """The catalog holds copies: a changed dataset changes no answer before it is added again."""
    with Workspace.open(plain) as ws:
        before = ws.query("SELECT * FROM episodes ORDER BY episode_id")
    path = plain / "data" / "first" / layout.UNIT_MAP
    path.write_text("{}")
    with Workspace.open(plain) as ws:
        assert ws.query("SELECT * FROM episodes ORDER BY episode_id").equals(before)
    assert isinstance(pq.read_table(data_file(plain / "data" / "first")), pa.Table)
