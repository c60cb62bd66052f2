"""The cache for quick opening agrees with the parts, or is not used."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pytest

from support.catalog_workspace import score
from support.dataset_writer import KEPT, write_all
from twinloop.catalog import Workspace, view_tables
from twinloop.catalog.label_checks import Label
from twinloop.cli.main import main

SQL = 'SELECT * FROM scores ORDER BY episode_id, "check"'
NAMES = ("episodes", "places", "score_history", "scores", "label_history", "labels")
NUMBERS = [number for numbers in KEPT.values() for number in numbers]


@pytest.fixture(name="made", scope="module")
def made_once(tmp_path_factory):
    """A workspace of nine episodes, scored and labelled, without anything shown."""
    root = tmp_path_factory.mktemp("made") / "cell"
    with Workspace.create(root) as ws:
        ws.add(write_all(root / "data" / "planted"))
        names = ws.query("SELECT episode_id FROM episodes")["episode_id"].to_pylist()
        for name in names:
            ws.append("scores", score(name, 0.5), run_id="01")
        ws.append("scores", score(names[0], 2.0), run_id="02")
        ws.label(Label(episode_id=name, kind="tag", value="keep", source="hand", author="ada") for name in names[:5])
    return root


@pytest.fixture(name="root")
def workspace(made, tmp_path, monkeypatch):
    monkeypatch.setattr(view_tables, "MIN_CACHED_ROWS", 1)
    return shutil.copytree(made, tmp_path / "cell")


def seen(root) -> dict[str, list[str]]:
    with Workspace.open(root) as ws:
        return {name: sorted(map(str, ws.query(f"SELECT * FROM {name}").to_pylist())) for name in NAMES}


def test_what_is_kept_says_what_the_parts_say(root, monkeypatch):
    first = seen(root)
    assert len(first["episodes"]) == len(NUMBERS)
    names = {path.name.rsplit("-", 1)[0] for path in (root / "catalog" / view_tables.FOLDER).iterdir()}
    assert names == {"episodes", "scores", "label_history", "made-episodes", "made-scores"}
    read, real = [], view_tables.read_part
    listed = lambda parts, table, name: read.append(name) or real(parts, table, name)  # noqa: E731
    monkeypatch.setattr(view_tables, "read_part", listed)
    assert (seen(root), read) == (first, [])
    with Workspace.open(root) as ws:
        ws.append("scores", score("e", 1.0), run_id="03")
        assert len(ws.query(SQL)) == len(NUMBERS) + 1
        [part] = ws.parts.list_parts("scores")[-1:]
        assert read == [part.part]  # only what came since
        ws.exclude_episodes(ws.query("SELECT min(episode_id) AS n FROM episodes")["n"].to_pylist(), "why", "who")
    assert len(seen(root)["episodes"]) == len(NUMBERS) - 1
    with_kept = seen(root)
    shutil.rmtree(root / "catalog" / view_tables.FOLDER)
    assert seen(root) == with_kept


@pytest.mark.parametrize("harm", ["cut", "garbage", "columns", "offsets"])
def test_a_kept_file_that_is_not_whole_is_not_used(root, harm):
    first = seen(root)
    for path in (root / "catalog" / view_tables.FOLDER).iterdir():
        data = bytearray(path.read_bytes())
        if harm == "cut":
            path.write_bytes(data[: len(data) // 2])
        elif harm == "garbage":
            path.write_bytes(b"ARROW1\0\0" + bytes(200))
        elif harm == "columns":
            other = pa.table({"a": [1]}).replace_schema_metadata({b"twinloop": b'{"schema": 1, "key": []}'})
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, other.schema) as writer:
                writer.write_table(other)
        else:  # the ends of the ids, one of them far outside
            start = data.index((64).to_bytes(4, "little") + (128).to_bytes(4, "little"))
            data[start : start + 4] = (2**30).to_bytes(4, "little")
            path.write_bytes(data)
    assert seen(root) == first


def test_labels_of_another_history_are_not_taken_for_these(root):
    before = shutil.copy(root / "catalog" / "state.sqlite", root / "state.sqlite")
    with Workspace.open(root) as ws:
        name = ws.query("SELECT min(episode_id) AS n FROM episodes")["n"][0].as_py()
        ws.label([Label(episode_id=name, kind="tag", value="late", source="hand", author="ada")])
    assert "late" in str(seen(root)["labels"])
    for suffix in ("", "-wal", "-shm"):
        (root / "catalog" / f"state.sqlite{suffix}").unlink(missing_ok=True)
    shutil.copy(before, root / "catalog" / "state.sqlite")
    assert "late" not in str(seen(root)["labels"])
    with Workspace.open(root) as ws:  # as many as were kept, and the last is another
        ws.label([Label(episode_id=name, kind="tag", value="other", source="hand", author="bob")])
    assert "late" not in str(seen(root)["labels"])
    assert "other" in str(seen(root)["labels"])


def test_fsck_names_a_kept_file_that_was_harmed_and_removes_it(root, capfd):
    first = seen(root)
    path = next((root / "catalog" / view_tables.FOLDER).glob("scores-*"))
    data = bytearray(path.read_bytes())
    data[-2000] ^= 1
    path.write_bytes(data)
    assert main(["fsck", "--workspace", str(root)]) == 1
    assert "a cache file, differs" in " ".join(capfd.readouterr().out.split())
    assert main(["fsck", "--workspace", str(root), "--repair"]) == 0
    assert not path.exists()
    assert seen(root) == first
