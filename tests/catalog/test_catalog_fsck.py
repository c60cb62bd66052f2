"""fsck finds and names planted damage, and repairs it without loss of data where possible."""

from __future__ import annotations

import json
import shutil
import sqlite3

import pyarrow.parquet as pq
import pytest

from support.catalog_workspace import NUMBERS, score
from support.dataset_writer import SPEC, SPEC_VIDEO, commit, planted, write_all
from twinloop.catalog import Workspace
from twinloop.catalog.dataset_folder import Seal, read_seals
from twinloop.catalog.parts import compact, remove_retired
from twinloop.catalog.repair import rebuild_state
from twinloop.cli.main import main
from twinloop.core.errors import DatasetError
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.tables import content_hash
from twinloop.dataset.lerobot.writer import DatasetWriter


@pytest.fixture(name="made", scope="module")
def made_once(tmp_path_factory):
    """A workspace with one batch of nine episodes, a score and a tombstone."""
    root = tmp_path_factory.mktemp("made") / "cell"
    with Workspace.create(root) as ws:
        ws.add(write_all(root / "data" / "planted"))
        ws.append("scores", score(content_hash(planted(0)), 2.0), run_id="01")
        ws.exclude_episodes([content_hash(planted(1))], "bumped", "ada")
    return root


@pytest.fixture(name="root")
def workspace(made, tmp_path):
    """A copy of it: a workspace is plain files, and paths within it are relative."""
    return shutil.copytree(made, tmp_path / "cell")


def fsck(root, capfd, *words: str) -> tuple[int, dict]:
    capfd.readouterr()
    code = main(["fsck", "--workspace", str(root), "--json", *words])
    return code, json.loads(capfd.readouterr().out)


def whole(root) -> dict:
    """What a reader sees, without times and names of parts."""
    with Workspace.open(root) as ws:
        return {
            "episodes": ws.query("SELECT * FROM episodes ORDER BY batch, episode_index").to_pylist(),
            "params": ws.query("SELECT * FROM params ORDER BY ALL").to_pylist(),
            "scores": ws.query("SELECT * FROM scores ORDER BY ALL").to_pylist(),
            "tombstones": ws.query("SELECT * FROM tombstones").to_pylist(),
            "batches": ws.query("SELECT batch, path, episodes, frames FROM batches ORDER BY batch").to_pylist(),
        }


def part_file(root, table: str):
    return next((root / "catalog" / table).glob("part-*.parquet"))


def flip(path, at: int = -300) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def test_a_whole_workspace_has_no_findings(root, capfd):
    assert fsck(root, capfd) == (0, fsck(root, capfd, "--deep")[1] | {"deep": False})
    assert fsck(root, capfd)[1]["findings"] == []


def test_what_is_kept_to_be_faster_is_no_finding(root, capfd):
    """The files in catalog/cache can be computed again: no finding lists them, and they may be truncated."""
    cache = root / "catalog" / "cache" / "neighbours-0"
    cache.mkdir(parents=True)
    (cache / "rows.npy").write_bytes(b"half")
    (cache.parent / "part-ZZZ.parquet").write_bytes(b"half")
    for words in ((), ("--deep",), ("--repair",)):
        assert fsck(root, capfd, *words)[1]["findings"] == []
    assert (cache / "rows.npy").read_bytes() == b"half"


@pytest.mark.parametrize("table", ["episodes", "params", "scores"])
@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_a_damaged_part_is_found_by_name_and_read_again_where_its_dataset_is_there(root, capfd, table, harm):
    before, path = whole(root), part_file(root, table)
    if harm == "flip":
        flip(path, 40)
    elif harm == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    else:
        path.unlink()
    code, metrics = fsck(root, capfd)
    assert code == 1
    found = [finding for finding in metrics["findings"] if finding["kind"] == "part"]
    assert [finding["location"] for finding in found] == [f"catalog/{table}/{path.name}"]
    code, metrics = fsck(root, capfd, "--repair")
    if table == "scores":
        assert code == 1
        assert "make its rows again (scores of run 01)" in found[0]["remedy"]
        return
    assert (code, fsck(root, capfd)[0]) == (0, 0)
    assert whole(root) == before


@pytest.mark.parametrize("harm", ["flip", "cut", "remove", "empty"])
def test_a_damaged_sqlite_file_is_made_again_from_the_parts(root, capfd, harm):
    before, path = whole(root), root / "catalog" / "state.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    if harm == "remove":
        path.unlink()
    elif harm == "empty":
        path.write_bytes(b"")
    else:
        data = bytearray(path.read_bytes())
        data = data[: len(data) // 2] if harm == "cut" else data[:16] + b"\xff" * 84 + data[100:]
        path.write_bytes(data)
    with pytest.raises(DatasetError, match=r"state.sqlite.*(`twinloop fsck|schema 0)"):
        whole(root)
    code, metrics = fsck(root, capfd)
    assert code == 1
    assert "state.sqlite" in metrics["findings"][0]["location"]
    code, _ = fsck(root, capfd, "--repair")
    assert (code, fsck(root, capfd)[0]) == (0, 0)
    after = whole(root)
    # Data in SQLite only are recovered as far as its file can be read; data in parts are recovered completely.
    assert {row["episode_id"] for row in after["episodes"]} >= {row["episode_id"] for row in before["episodes"]}
    for table in ("params", "scores", "batches"):
        assert after[table] == before[table]


def test_an_index_that_lies_is_made_again_and_keeps_the_rest(root, capfd):
    before = whole(root)
    with Workspace.open(root) as ws, ws.state.transaction() as connection:
        connection.execute("DELETE FROM places WHERE episode_index = 3")
    code, metrics = fsck(root, capfd)
    assert (code, [finding["kind"] for finding in metrics["findings"]]) == (1, ["index"])
    assert fsck(root, capfd, "--repair")[0] == 0
    assert whole(root) == before
    with Workspace.open(root) as ws:
        assert ws.locate(content_hash(planted(8))).index == 3


def test_leftovers_of_ended_writers_are_moved_aside(root, capfd):
    before = whole(root)
    shutil.copy(part_file(root, "episodes"), root / "catalog" / "episodes" / "part-ZZZ.parquet")
    (root / "catalog" / "params" / ".part-ZZZ.parquet.x1").write_bytes(b"half")
    assert whole(root) == before
    code, metrics = fsck(root, capfd)
    assert (code, [finding["kind"] for finding in metrics["findings"]]) == (1, ["leftover", "leftover"])
    assert fsck(root, capfd, "--repair")[0] == 0
    assert (root / "catalog" / "swept" / "episodes" / "part-ZZZ.parquet").is_file()
    assert (fsck(root, capfd)[0], whole(root)) == (0, before)


def test_a_dataset_that_moved_within_the_workspace_is_found(root, capfd):
    (root / "data" / "planted").rename(root / "data" / "renamed")
    code, metrics = fsck(root, capfd)
    assert (code, metrics["findings"][0]["batch"]) == (1, "planted")
    assert "is missing" in metrics["findings"][0]["problem"]
    code, metrics = fsck(root, capfd, "--repair")
    assert (code, metrics["findings"][0]["repaired"]) == (0, "Found at data/renamed.")
    with Workspace.open(root) as ws:
        assert ws.locate(content_hash(planted(8))).folder == root / "data" / "renamed"


def test_a_dataset_that_moved_away_is_added_again_and_keeps_its_name(root, tmp_path):
    away = (root / "data" / "planted").rename(tmp_path / "away")
    with Workspace.open(root) as ws:
        added = ws.add(away)
        assert (added.batch, added.new, added.parts) == ("planted", 0, ())
        assert ws.locate(content_hash(planted(8))).folder == away


def test_a_batch_that_grew_is_brought_up_to_date(tmp_path, capfd):
    root = tmp_path / "cell"
    with Workspace.create(root) as ws, DatasetWriter.open(root / "data" / "grows", SPEC) as writer:
        commit(writer, 0)
        ws.add(root / "data" / "grows")
        commit(writer, 1)
        commit(writer, 2)
    code, metrics = fsck(root, capfd)
    assert (code, "are not in the catalog" in metrics["findings"][0]["problem"]) == (1, True)
    assert (fsck(root, capfd, "--repair")[0], fsck(root, capfd)[0]) == (0, 0)
    assert len(whole(root)["episodes"]) == 5


@pytest.mark.parametrize("file", [layout.DATA_PATH, layout.STATES_PATH, layout.PROVENANCE_PATH, layout.EPISODES_PATH])
def test_a_flipped_byte_in_a_dataset_is_found_by_name(root, capfd, file):
    path = root / "data" / "planted" / file.format(chunk_index=0, file_index=2)
    flip(path, 60)
    code, metrics = fsck(root, capfd, "--deep")
    assert code == 1
    assert str(path) in metrics["findings"][0]["problem"]
    path.unlink()
    code, metrics = fsck(root, capfd)
    assert (code, str(path) in metrics["findings"][0]["problem"]) == (1, True)


def test_an_index_that_was_made_again_has_the_seals_of_every_file(root):
    def sealed():
        with Workspace.open(root) as ws:
            return read_seals(ws.state, "planted")

    before = sealed()
    assert len(before) > 4
    rebuild_state(root / "catalog", root / "catalog" / "state.sqlite")
    assert [(seal.path, seal.bytes, seal.sha256) for seal in sealed()] == [(s.path, s.bytes, s.sha256) for s in before]


def test_a_table_that_was_added_broken_is_found_deep(root, capfd):
    folder = root / "data" / "planted"
    path = max(folder.glob("data/*/*.parquet"))
    path.write_bytes(path.read_bytes()[:-30])
    broken = Seal.of(folder, path.relative_to(folder).as_posix())
    with Workspace.open(root) as ws, ws.state.transaction() as connection:
        connection.execute(
            "UPDATE seals SET bytes = ?, sha256 = ? WHERE path = ?", (broken.bytes, broken.sha256, broken.path)
        )
    code, metrics = fsck(root, capfd, "--deep")
    [finding] = metrics["findings"]
    assert (code, finding["kind"]) == (1, "dataset")
    assert f"{path} is truncated or damaged" in finding["problem"]


def test_a_flipped_byte_in_a_video_is_found_once_it_was_read_whole(tmp_path, capfd):
    root = tmp_path / "cell"
    with Workspace.create(root) as ws:
        ws.add(write_all(root / "data" / "seen", SPEC_VIDEO))
    assert fsck(root, capfd, "--deep")[0] == 0
    path = next((root / "data" / "seen" / "videos").glob("**/*.mp4"))
    flip(path, path.stat().st_size // 2)
    code, metrics = fsck(root, capfd, "--deep")
    assert (code, str(path) in metrics["findings"][0]["problem"]) == (1, True)


@pytest.mark.slow
def test_small_parts_become_few_and_nothing_else_changes(root, capfd):
    with Workspace.open(root) as ws:
        for number in range(12):
            folder = root / "data" / f"one-{number:02d}"
            with DatasetWriter.open(folder, SPEC) as writer:
                writer.commit_block(0, [])
                for block in range(1, 5 + number):
                    writer.skip_blocks(block)
                writer.commit_block(4 + number, [planted(4 * (4 + number))])
            ws.add(folder)
            ws.append("scores", score(content_hash(planted(0)), number / 10), run_id=f"{number + 2:02d}")
        before = whole(root)
        joined = compact(ws.parts)
        assert joined == {"episodes": 13, "params": 13, "scores": 13}
        assert [len(ws.parts.list_parts(table)) for table in ("episodes", "params", "scores")] == [1, 1, 1]
        assert whole(root) == before
        assert remove_retired(ws.parts, grace_s=-1) == 39
        # A rewritten batch leaves the part that others share with it.
        shutil.rmtree(root / "data" / "one-03")
        with DatasetWriter.open(root / "data" / "one-03", SPEC) as writer:
            writer.commit_block(0, [planted(2)])
        ws.add(root / "data" / "one-03")
        numbers = ws.query("SELECT number FROM places ORDER BY number")["number"].to_pylist()
        assert numbers == sorted([*NUMBERS, 2, *(4 * (4 + n) for n in range(12) if n != 3)])
    assert fsck(root, capfd)[0] == 0
    (root / "catalog" / "state.sqlite").unlink()
    assert fsck(root, capfd, "--repair")[0] == 0
    assert [row["number"] for row in whole(root)["episodes"]].count(2) == 1
    rows = max(pq.read_table(path).num_rows for path in (root / "catalog" / "params").glob("part-*.parquet"))
    assert rows >= 2 * len(NUMBERS)
