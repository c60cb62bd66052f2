"""Side tables: committed tables read back with their episode, whole, lazily and with the same bytes."""

from __future__ import annotations

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from support.annot_side_tables import NAME, rows, write
from support.dataset_writer import KEPT, SPEC, planted
from twinloop.core.errors import DatasetError, InputError, UnknownNameError
from twinloop.core.files import sha256_tree
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.lerobot.writer import DatasetWriter


def test_rows_come_back_by_episode_and_over_all(tmp_path):
    reader = write(tmp_path / "d")
    assert reader.side_tables == [NAME]
    numbers = [number for block in KEPT.values() for number in block]
    for index, number in enumerate(numbers):
        found = reader.side_rows(NAME, index)
        assert set(found["episode_index"].to_pylist()) == {index}
        assert found.drop_columns(["episode_index"]).equals(rows(number))
    assert reader.side_rows(NAME, 2, ["frame_index"]).column_names == ["frame_index"]
    whole = reader.side_table(NAME)
    chosen = whole.to_table(filter=pc.field("frame_index") == 3, columns=["episode_index", "number"])
    assert chosen["number"].to_pylist() == numbers
    assert chosen["episode_index"].to_pylist() == list(range(len(numbers)))
    assert (tmp_path / "d" / "a.json").read_text() == "{}\n"
    assert f"- `twinloop/{NAME}/`\n" in (tmp_path / "d" / "README.md").read_text()


@pytest.mark.parametrize("kind", ["iterator", "file"])
def test_bytes_do_not_depend_on_how_rows_arrive(tmp_path, kind):
    write(tmp_path / "a", "table")
    write(tmp_path / "b", kind)
    assert sha256_tree(tmp_path / "a") == sha256_tree(tmp_path / "b")


def test_a_run_that_resumes_ends_with_the_same_bytes(tmp_path):
    write(tmp_path / "whole")
    with DatasetWriter.open(tmp_path / "cut", SPEC) as writer:
        writer.commit_block(
            0, [planted(n) for n in KEPT[0]], tables={NAME: map(rows, KEPT[0])}, documents={"a.json": {}}
        )
    with DatasetWriter.open(tmp_path / "cut", SPEC, resume=True) as writer:
        for block in (1, 2, 3):
            writer.commit_block(block, [planted(n) for n in KEPT[block]], tables={NAME: map(rows, KEPT[block])})
        writer.finish()
    assert sha256_tree(tmp_path / "whole") == sha256_tree(tmp_path / "cut")


def test_a_table_that_does_not_fit_changes_nothing(tmp_path):
    with DatasetWriter.open(tmp_path / "d", SPEC) as writer:
        commit = lambda block, tables: writer.commit_block(  # noqa: E731
            block, [planted(n) for n in KEPT[block]], tables=tables
        )
        with pytest.raises(InputError, match="cannot name a side table"):
            commit(0, {"../frames": map(rows, KEPT[0])})
        with pytest.raises(InputError, match="does not begin with invalid, log, provenance, states"):
            commit(0, {"states": map(rows, KEPT[0])})
        with pytest.raises(InputError, match="rows of episode number 7 where the block has"):
            commit(0, {NAME: rows(7)})
        with pytest.raises(InputError, match="Sort the rows by number"):
            commit(0, {NAME: map(rows, (3, 0))})
        with pytest.raises(InputError, match="needs a column number"):
            commit(0, {NAME: rows(0).drop_columns(["number"])})
        assert not (tmp_path / "d" / "twinloop").exists()
        commit(0, {NAME: map(rows, KEPT[0])})
        writer.commit_block(1, [])
        with pytest.raises(DatasetError, match="Block 2 comes with the side tables none; earlier blocks have annot"):
            commit(2, {})
        with pytest.raises(DatasetError, match="Give the table the same columns in every block"):
            commit(2, {NAME: (rows(n).drop_columns(["blob"]) for n in KEPT[2])})
        assert writer.next_block == 2


def test_a_dataset_without_side_tables_is_as_before(tmp_path):
    with DatasetWriter.open(tmp_path / "d", SPEC) as writer:
        writer.commit_block(0, [planted(n) for n in KEPT[0]])
        with pytest.raises(DatasetError, match="earlier blocks have none"):
            writer.commit_block(1, [planted(4)], tables={NAME: rows(4)})
    assert "tables" not in (tmp_path / "d" / "twinloop" / "progress.json").read_text()
    assert DatasetReader(tmp_path / "d").side_tables == []
    assert "Further tables" not in (tmp_path / "d" / "README.md").read_text()


def test_reading_refuses_what_is_not_there_newer_or_outside(tmp_path):
    reader = write(tmp_path / "d")
    with pytest.raises(UnknownNameError, match="annotations/frames"):
        reader.side_table("annotations/frame")
    with pytest.raises(UnknownNameError, match="column 'blobs'"):
        reader.side_rows(NAME, 0, ["blobs"])
    path = tmp_path / "d" / "twinloop" / NAME / "chunk-000" / "file-000.parquet"
    table = pq.read_table(path)
    newer = table.replace_schema_metadata({"twinloop": '{"schema": 99}'})
    path.unlink()
    pq.write_table(newer, path)
    with pytest.raises(DatasetError, match="has schema 99; this version reads up to 1"):
        reader.side_rows(NAME, 0)
    path.unlink()
    pq.write_table(table, tmp_path / "outside.parquet")
    path.symlink_to(tmp_path / "outside.parquet")
    for read in (lambda: reader.side_table(NAME), lambda: reader.side_rows(NAME, 0)):
        with pytest.raises(DatasetError, match="is a link to a file outside the dataset's folder"):
            read()
