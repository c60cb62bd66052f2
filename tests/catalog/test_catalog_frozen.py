"""Dataset versions never change, a list has one hash, and what a policy saw is one query, through parents and bases."""

from __future__ import annotations

import random

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.labelled import child, episode_id, workspace, write_batch
from twinloop.catalog.dataset_versions import compare_versions, hash_episode_list
from twinloop.catalog.episode_lookup import resolve_episodes, select_episodes
from twinloop.catalog.fsck_state import check_dataset_versions
from twinloop.catalog.views import LINEAGE_VIEWS
from twinloop.core.errors import DatasetError, InputError, UnknownNameError
from twinloop.dataset.lerobot.tables import content_hash

ALL = "SELECT episode_id FROM episodes"


@pytest.fixture
def made(tmp_path):
    ws, ids = workspace(tmp_path / "cell")
    with ws:
        yield ws, ids


def one_column(ws, sql, parameters=()):
    return sorted(ws.query(sql, parameters).column(0).to_pylist())


def test_the_same_list_has_the_same_hash_under_any_name_and_order(made):
    ws, ids = made
    first = ws.freeze("good", ALL + " ORDER BY episode_id DESC", note="all of it")
    again = ws.freeze("also_good", ALL)
    assert first.hash == again.hash == hash_episode_list(random.sample(ids, k=6))
    assert first.episode_ids == again.episode_ids == tuple(sorted(ids))
    assert (first.reference, first.note, first.new) == ("good@1", "all of it", True)
    assert len(list((ws.root / "catalog" / "datasets").iterdir())) == 1


@settings(max_examples=30)
@given(st.sets(st.text(alphabet="0123456789abcdef", min_size=1, max_size=6), min_size=1), st.randoms())
def test_a_hash_is_of_the_set_alone(names, rng):
    shuffled = list(names)
    rng.shuffle(shuffled)
    assert hash_episode_list(shuffled) == hash_episode_list(names)
    assert hash_episode_list([*names, "more"]) != hash_episode_list(names)


def test_a_name_gets_new_versions_and_old_ones_stay(made):
    ws, ids = made
    ws.freeze("train", ALL)
    assert not ws.freeze("train", ALL + " WHERE true").new
    second = ws.freeze("train", ALL + " WHERE frames > 37")
    assert (second.reference, len(second)) == ("train@2", 3)
    assert (
        ws.find_dataset_version("train")
        == ws.find_dataset_version("train@2")
        == ws.find_dataset_version(second.hash[:10])
    )
    assert ws.find_dataset_version("train@1").episode_ids == tuple(sorted(ids))
    assert ws.find_dataset_version("train@1").sql == ALL
    found = compare_versions(ws, "train@1", "train@2")
    assert (len(found.only_first), found.only_second, found.both) == (3, (), 3)
    assert ws.query(
        "SELECT name, version, count(*) AS n FROM dataset_episodes GROUP BY ALL ORDER BY 2"
    ).to_pylist() == [
        {"name": "train", "version": 1, "n": 6},
        {"name": "train", "version": 2, "n": 3},
    ]


def test_later_episodes_and_burials_change_no_frozen_list(made, tmp_path):
    ws, ids = made
    before = ws.freeze("train", ALL)
    ws.add(write_batch(tmp_path / "more", [child(9, (ids[0],))]))
    ws.exclude_episodes(ids[:2], "blurry", "ada")
    assert ws.find_dataset_version("train").episode_ids == before.episode_ids
    after = ws.freeze("train", ALL)
    assert after.version == 2
    assert not set(ids[:2]) & set(after.episode_ids)


def test_buried_and_unknown_episodes_enter_no_dataset(made):
    ws, ids = made
    ws.exclude_episodes(ids[:1], "blurry", "ada")
    with pytest.raises(InputError, match=rf"1 of the selected episodes are excluded .* the first {ids[0][:16]}"):
        ws.freeze("train", "SELECT episode_id FROM places")
    with pytest.raises(InputError, match="2 of the selected ids are not episodes of this workspace, the first abc"):
        ws.freeze("train", "SELECT unnest(['abc', 'abd']) AS episode_id")
    with pytest.raises(InputError, match="selects no episode"):
        ws.freeze("train", ALL + " WHERE frames > 1000")
    with pytest.raises(InputError, match="Select a column episode_id"):
        ws.freeze("train", "SELECT frames FROM episodes")
    with pytest.raises(InputError, match="'a b' cannot name a dataset"):
        ws.freeze("a b", ALL)
    with pytest.raises(UnknownNameError, match="'train'. None exist here; `twinloop datasets freeze` adds one"):
        ws.find_dataset_version("train")
    assert ws.query("SELECT * FROM datasets").num_rows == 0


def test_a_burial_between_the_query_and_the_commit_is_seen(made, monkeypatch):
    ws, ids = made
    transaction = ws.state.transaction
    monkeypatch.setattr(
        ws.state,
        "transaction",
        lambda: (monkeypatch.undo(), ws.exclude_episodes(ids[:1], "late", "bob"), transaction())[-1],
    )
    with pytest.raises(InputError, match="are excluded"):
        ws.freeze("train", ALL)
    assert ws.query("SELECT * FROM datasets").num_rows == 0


def test_a_changed_or_missing_list_is_not_believed(made):
    ws, _ = made
    found = ws.freeze("train", ALL)
    path = ws.root / "catalog" / "datasets" / f"{found.hash}.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(DatasetError, match="was changed after it was frozen"):
        ws.find_dataset_version("train")
    path.unlink()
    with pytest.raises(DatasetError, match="is missing; it is the list"):
        ws.find_dataset_version("train")
    ws.freeze("again", ALL)  # the same list is there again
    assert len(ws.find_dataset_version("train")) == 6


def test_a_list_that_no_row_names_is_no_dataset(made, monkeypatch):
    """A kill between writing the list's file and committing the row leaves a file that no reader shows."""
    ws, _ = made
    with monkeypatch.context() as broken:
        broken.setattr(ws.state, "transaction", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            ws.freeze("train", ALL)
    assert ws.query("SELECT * FROM dataset_episodes").num_rows == 0
    assert list(check_dataset_versions(ws.root / "catalog", ws.state)) == []
    assert ws.freeze("train", ALL).reference == "train@1"


def test_fsck_names_what_is_wrong_with_frozen_datasets(made):
    ws, _ = made
    found = ws.freeze("train", ALL)
    ws.record_policy("a" * 64, "act", "train")
    assert list(check_dataset_versions(ws.root / "catalog", ws.state)) == []
    path = ws.root / "catalog" / "datasets" / f"{found.hash}.parquet"
    path.write_bytes(path.read_bytes()[:-1])
    with ws.state.transaction() as connection:
        connection.execute("INSERT INTO policy_datasets VALUES ('p', 'nowhere', 'x')")
        connection.execute("INSERT INTO label_ends VALUES (77, 78)")
    said = [(one.location, one.problem) for one in check_dataset_versions(ws.root / "catalog", ws.state)]
    assert [where for where, _ in said] == ["dataset train@1", "policy p", "state.sqlite"]
    assert "was changed after it was frozen" in said[0][1]
    assert "the first has number 77" in said[2][1]


def test_which_episodes_trained_a_policy_and_which_policies_saw_an_episode(made, tmp_path):
    ws, ids = made
    ws.freeze("real", ALL + " WHERE frames < 38")
    augmented = [child(20, (ids[0],)), child(21, (content_hash(child(20, (ids[0],))),)), child(22, (ids[5], "gone"))]
    names = [content_hash(one) for one in augmented]
    ws.add(write_batch(tmp_path / "augmented", augmented))
    ws.freeze("more", "SELECT episode_id FROM episodes WHERE source = 'augmented'")
    ws.record_policy("a" * 64, "act", "real", run_id="01J", extra={"steps": 1000})
    ws.record_policy("b" * 64, "act-tuned", ["more"], base="a" * 64)
    trained = "SELECT episode_id FROM policy_episodes WHERE policy = ? AND via IS NULL AND base IS NULL"
    assert one_column(ws, trained, ["a" * 64]) == sorted(ids[:3])
    assert one_column(ws, trained, ["b" * 64]) == sorted(names)
    saw = "SELECT DISTINCT name FROM policy_episodes WHERE episode_id = ?"
    assert one_column(ws, saw, [ids[0]]) == ["act", "act-tuned"]
    assert one_column(ws, saw, [ids[5]]) == ["act-tuned"]
    assert one_column(ws, saw, [ids[4]]) == []
    assert one_column(ws, saw, ["gone"]) == ["act-tuned"]  # an ancestor that the workspace never held
    via = "SELECT via FROM policy_episodes WHERE policy = ? AND episode_id = ? AND base IS NULL"
    assert one_column(ws, via, ["b" * 64, ids[0]]) == sorted(names[:2])
    assert ws.query("SELECT extra, run_id FROM policies WHERE name = 'act'").to_pylist() == [
        {"extra": '{"steps": 1000}', "run_id": "01J"}
    ]
    ws.exclude_episodes([names[0]], "no longer", "ada")  # an exclusion does not change a recorded use
    assert one_column(ws, saw, [ids[0]]) == ["act", "act-tuned"]


def test_parents_that_run_in_a_circle_end():
    """No valid episode descends from itself, but a folder from elsewhere may claim it."""
    places = pa.table({"episode_id": ["p", "q", "r"], "parents": [["q"], ["p"], ["q", "gone"]]})
    with duckdb.connect(":memory:") as connection:
        connection.register("places", places)
        rows = connection.execute(LINEAGE_VIEWS["descent"] + " ORDER BY ALL").fetchall()
    assert rows == [("p", "q"), ("q", "p"), ("r", "gone"), ("r", "p"), ("r", "q")]


def test_what_trained_a_policy_does_not_change(made):
    ws, _ = made
    ws.freeze("one", ALL)
    ws.freeze("two", ALL + " WHERE frames < 38")
    ws.record_policy("a" * 64, "act", "one")
    ws.record_policy("a" * 64, "act", "one@1")  # the same again does nothing
    with pytest.raises(InputError, match="is already recorded as act, trained on 1 dataset"):
        ws.record_policy("a" * 64, "act", "two")
    with pytest.raises(UnknownNameError, match="Unknown policy"):
        ws.record_policy("b" * 64, "act", "two", base="c" * 64)
    with pytest.raises(UnknownNameError, match="Unknown dataset version 'three'"):
        ws.record_policy("b" * 64, "act", "three")
    assert ws.query("SELECT count(*) AS n FROM policies")["n"][0].as_py() == 1


def test_episodes_are_named_by_beginnings_places_and_conditions(made):
    ws, ids = made
    assert resolve_episodes(ws, [ids[3][:12], "first:0"]) == [ids[3], ids[0]]
    assert sorted(select_episodes(ws, "frames >= 39")) == sorted(ids[4:])
    assert select_episodes(ws, f"SELECT episode_id FROM places WHERE episode_id = '{ids[2]}'") == [ids[2]]
    with pytest.raises(UnknownNameError, match="Unknown batch 'furst'.*Nearest existing: first"):
        resolve_episodes(ws, ["furst:0"])
    with pytest.raises(InputError, match="Batch first has no episode 6; it has 6, counted from 0"):
        resolve_episodes(ws, ["first:6"])
    with pytest.raises(UnknownNameError, match="Unknown episode 'zzzz'"):
        resolve_episodes(ws, ["zzzz"])
    with pytest.raises(InputError, match="too short to identify an episode"):
        resolve_episodes(ws, ["ab"])
    ws.exclude_episodes([ids[1]], "blurry", "ada")
    with pytest.raises(InputError, match=r"is excluded \(blurry\)"):
        resolve_episodes(ws, [ids[1][:8]])
    assert resolve_episodes(ws, [ids[1][:8]], include_excluded=True) == [ids[1]]
    assert episode_id(1) == ids[1]
