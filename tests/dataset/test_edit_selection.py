"""Episodes go into a new folder as they are: frames, images, ids, states, and everything that is known of them."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.dataset_logs import planted_log
from support.dataset_writer import CAMERAS, SPEC, SPEC_VIDEO, UNITS, planted, write_all
from support.edit_statistics import check_exact
from support.edits import KEY, foreign, image, stats_of, whole
from twinloop.core.errors import DatasetError, DatasetLockedError, InputError, UnitsError
from twinloop.core.files import sha256_tree
from twinloop.core.records import Episode
from twinloop.dataset.edit.operations import delete, merge, rebalance, retask, select, split
from twinloop.dataset.edit.source import EditSource
from twinloop.dataset.edit.writing import EditSettings, write_selection
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.progress import WriteProgress
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.lerobot.validation import validate
from twinloop.dataset.logs.conversion import write_log_dataset
from twinloop.dataset.spec import INDEX_FEATURES
from twinloop.dataset.storage.snapshot import FolderLock


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("ours") / "video", SPEC_VIDEO)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("ours") / "plain")


def same_episode(one: DatasetReader, i: int, other: DatasetReader, j: int) -> None:
    """Everything that is stored of two episodes, but their places."""
    a, b = (
        reader.frames_table(k).drop_columns(["episode_index", "index", "task_index"])
        for reader, k in ((one, i), (other, j))
    )
    assert a.equals(b)
    assert one.row(i)["tasks"] == other.row(j)["tasks"]
    assert one.episode_ids[i] == other.episode_ids[j]
    assert one.provenance(i) == other.provenance(j)
    if one.has_log(i):
        for name in ("time", "action", "state"):
            np.testing.assert_array_equal(getattr(one.log_episode(i), name), getattr(other.log_episode(j), name))
    else:
        np.testing.assert_array_equal(one.states(i), other.states(j))
        np.testing.assert_array_equal(one.commands(i), other.commands(j))
    for camera in one.cameras:
        np.testing.assert_array_equal(one.images(i, camera), other.images(j, camera))


def test_chosen_episodes_come_in_the_order_given_with_all_that_is_known_of_them(ours, tmp_path):
    before = sha256_tree(ours)
    made = write_selection([(ours, index) for index in (5, 2, 0, 7)], tmp_path / "out")
    old, new = DatasetReader(ours), DatasetReader(tmp_path / "out")
    for i, j in enumerate((5, 2, 0, 7)):
        same_episode(new, i, old, j)
    starts = [new.row(i)["dataset_from_index"] for i in range(4)]
    assert starts == np.cumsum([0, *new.lengths[:-1]]).tolist()
    np.testing.assert_array_equal(whole(tmp_path / "out")["index"][:, 0], np.arange(new.lengths.sum()))
    assert {key: row["copied"] for key, row in made.videos.items()} == {camera.key: 4 for camera in CAMERAS}
    assert sha256_tree(ours) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]


@pytest.mark.slow
def test_whole_files_are_linked_and_copied_where_that_is_asked_for(ours, tmp_path):
    pairs = [(ours, index) for index in range(9)]
    linked, copied = (
        write_selection(pairs, tmp_path / "linked"),
        write_selection(pairs, tmp_path / "copied", link=False),
    )
    assert (
        linked.videos == copied.videos == {camera.key: {"linked": 9, "copied": 0, "encoded": 0} for camera in CAMERAS}
    )
    old, new = (layout.block_path(layout.VIDEO_PATH, k, video_key=CAMERAS[0].key) for k in (2, 1))  # block 1 kept none
    assert (ours / old).stat().st_ino == (tmp_path / "linked" / new).stat().st_ino
    assert (ours / old).stat().st_ino != (tmp_path / "copied" / new).stat().st_ino
    assert (ours / old).read_bytes() == (tmp_path / "copied" / new).read_bytes()
    same_episode(DatasetReader(tmp_path / "copied"), 8, DatasetReader(ours), 8)


def test_a_recorded_log_keeps_its_exact_numbers(tmp_path):
    log = write_log_dataset(planted_log(), tmp_path / "log")
    select(log, tmp_path / "out", "1,0")
    old, new = DatasetReader(log), DatasetReader(tmp_path / "out")
    assert new.has_log(0)
    same_episode(new, 0, old, 1)
    same_episode(new, 1, old, 0)


def test_deleting_is_selecting_the_rest_and_parts_are_written_together(plain, tmp_path):
    delete(plain, tmp_path / "less", "1:8")
    assert DatasetReader(tmp_path / "less").episode_ids == [DatasetReader(plain).episode_ids[i] for i in (0, 8)]
    parts = split(plain, tmp_path / "parts", lists={"train": "0:6", "val": [8, 7]})
    assert [part.episodes for part in parts.values()] == [6, 2]
    assert parts["val"].details == {"from": [8, 7], "left_out": [6]}
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == ["train", "val"]
    same_episode(DatasetReader(tmp_path / "parts" / "val"), 0, DatasetReader(plain), 8)


def test_episodes_are_named_by_their_ids_too(plain, tmp_path):
    names = DatasetReader(plain).episode_ids
    select(plain, tmp_path / "out", [names[4], names[1][:12]])
    assert DatasetReader(tmp_path / "out").episode_ids == [names[4], names[1]]
    with pytest.raises(InputError, match="No episode of .* has an id that begins with 00000000"):
        select(plain, tmp_path / "none", "00000000")


def test_a_new_task_text_makes_children_that_name_parent_and_change(plain, tmp_path):
    retask(plain, tmp_path / "out", task="lift the cube", episodes="0:2")
    old, new = DatasetReader(plain), DatasetReader(tmp_path / "out")
    for index in (0, 1):
        record = new.provenance(index)
        assert record.parents == (old.episode_ids[index],)
        assert record.task == "lift the cube"
        assert new.row(index)["tasks"] == ["lift the cube"]
        assert new.episode_ids[index] == record.content_hash == new.row(index)["provenance/episode_id"]
        assert new.episode_ids[index] != old.episode_ids[index]
        (done,) = record.extra["transforms"]
        assert done["name"] == "retask"
        assert done["parameters"]["texts"] == {old.row(index)["tasks"][0]: "lift the cube"}
        assert len(done["parameters_hash"]) == 64
        np.testing.assert_array_equal(new.states(index), old.states(index))
    assert new.episode_ids[2:] == old.episode_ids[2:]
    retask(tmp_path / "out", tmp_path / "again", rename={"lift the cube": "raise the cube"})
    third = DatasetReader(tmp_path / "again").provenance(1)
    assert third.parents == (new.episode_ids[1],)
    assert len(third.extra["transforms"]) == 2
    texts = {DatasetReader(tmp_path / "again").row(i)["tasks"][0] for i in range(9)}
    assert texts == {"raise the cube", "put the cube back", "put the cube into the zone"}


def test_groups_are_balanced_and_what_is_left_out_is_named(plain, tmp_path):
    made = rebalance([plain], tmp_path / "out", "task", seed=3)
    assert made.details["groups"] == {
        "put the cube back": {"before": 5, "after": 4},
        "put the cube into the zone": {"before": 4, "after": 4},
    }
    ((folder, index),) = made.details["left_out"]
    assert folder == str(plain)
    assert DatasetReader(plain).row(index)["tasks"] == ["put the cube back"]
    more = rebalance([plain], tmp_path / "more", "task", repeat=True)
    assert more.episodes == 10
    assert more.details["repeated"] == 1
    ids = DatasetReader(tmp_path / "more").episode_ids
    assert len(set(ids)) == 10
    child = next(i for i, name in enumerate(ids) if name not in DatasetReader(plain).episode_ids)
    record = DatasetReader(tmp_path / "more").provenance(child)
    assert record.parents[0] in ids
    assert record.extra["transforms"][0]["name"] == "repeat"


def test_folders_of_other_programs_keep_what_they_have(tmp_path):
    one = foreign(tmp_path / "one", [9, 7, 12], codec="libx264", images=True, extra={"shift": [1, 2, 3]})
    two = foreign(tmp_path / "two", [8], first=3, codec="libx264", images=True, extra={"shift": ["night"]})
    made = merge([one, two], tmp_path / "out")
    assert any("shift is left out" in note for note in made.notes)
    assert any("no folder declares the units" in note for note in made.notes)
    new = DatasetReader(tmp_path / "out")
    assert not new.written_by_twinloop
    assert new.lengths.tolist() == [9, 7, 12, 8]
    assert new.info["maker"] == "another program"
    assert new.info["features"][KEY]["info"]["video.codec"] == "h264"
    assert [new.row(i)["operator"] for i in range(4)] == [f"person {i}" for i in range(4)]
    assert [new.row(i)["tasks"] for i in (0, 3)] == [["fold the cloth"], ["open the drawer"]]
    table = new.frames_table(3)
    assert table["observation.note"].to_pylist()[5] == "3/5"
    np.testing.assert_array_equal(new.images(3, "top").shape, (8, 48, 64, 3))
    assert np.abs(new.images(3, "top")[5].astype(int) - image(3, 5)).mean() < 8
    cells = table["observation.images.still"].to_pylist()
    assert cells[5] == DatasetReader(two).frames_table(0)["observation.images.still"].to_pylist()[5]
    assert np.shape(new.frames_table(1)["observation.grid"].to_pylist()) == (7, 2, 3)


@pytest.mark.slow
def test_ours_and_anothers_stand_side_by_side(plain, tmp_path):
    """A folder that lost its side files is another program's; in the result its episodes have frames only."""
    bare = write_all(tmp_path / "bare")
    for name in (layout.SPEC, layout.UNIT_MAP):
        (bare / name).unlink()
    rows = bare / layout.block_path(layout.EPISODES_PATH, 0)
    for path in rows.parent.iterdir():
        table = pq.read_table(path)
        pq.write_table(table.select([n for n in table.column_names if not n.startswith("provenance/")]), path)
    with pytest.raises(
        UnitsError, match=r"bare does not declare the units of its joints; .*plain does \(deg, range_0_100\)\. Are"
    ):
        merge([plain, bare], tmp_path / "out")
    pairs = [(plain, 0), (bare, 1), (bare, 2), (plain, 3)]
    write_selection(pairs, tmp_path / "out", same_units=True)
    new, old = DatasetReader(tmp_path / "out"), DatasetReader(plain)
    assert new.units == old.units
    assert [new.is_appended(i) for i in range(4)] == [False, True, True, False]
    same_episode(new, 0, old, 0)
    same_episode(new, 3, old, 3)
    np.testing.assert_array_equal(new.array(1, "action"), old.array(1, "action"))
    with pytest.raises(DatasetError, match="episode 2 was appended by another program"):
        new.states(2)


@pytest.mark.slow
def test_progress_and_tables_are_those_of_a_writer(plain, tmp_path):
    select(plain, tmp_path / "out", "0:9")
    before, after = WriteProgress.load(plain), WriteProgress.load(tmp_path / "out")
    assert (after.episodes, after.frames, after.tasks) == (before.episodes, before.frames, before.tasks)
    assert DatasetReader(tmp_path / "out").spec.config == {"runs": {"c" * 64: {"seed": 7}}}
    with pytest.raises(DatasetError, match="was started with another"):
        write_all(tmp_path / "out", resume=True)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda a, o: select(a, o, "3,12"), r"has no episode 12. It has 9 episodes, numbered 0 to 8\."),
        (lambda a, o: select(a, o, "4:2"), r"has no episode 4:2. It has 9"),
        (lambda a, o: select(a, o, "first"), r"'first' are not understood at 'first'\. Give numbers"),
        (lambda a, o: select(a, o, ""), r"No episode is left\. An edit writes at least one: select other episodes\."),
        (lambda a, o: select(a, o, "1,2,1"), "Episode 1 of .* is the same as episode 1 of .*: the result would"),
        (lambda a, o: delete(a, o, "0:"), r"No episode is left\."),
        (lambda a, o: merge([], o), r"There is no folder to merge"),
        (lambda a, o: merge([a, a], o), r"is given twice\. Name each folder once\."),
        (lambda a, o: split(a, o, shares={"a": 0.8, "b": 0.4}), r"a=0\.8, b=0\.4 sum to 1\.2, which is more than 1"),
        (lambda a, o: split(a, o, shares={"a": 0.9, "b": 0.01}), r"The part b of .* gets no episode of 9"),
        (lambda a, o: split(a, o, counts={"a": 8, "b": 4}), r"The parts a=8, b=4 need 12 episodes.* has 9\."),
        (lambda a, o: split(a, o, lists={"a": "0:3", "b": "2"}), "Episode 2 of .* is in a and in b"),
        (lambda a, o: split(a, o, shares={"../a": 0.5}), r"A part cannot be named '\.\./a': it becomes a folder"),
        (lambda a, o: split(a, o, shares={"a": 0.5}, by="weather"), "have no property 'weather'"),
        (lambda a, o: split(a, o), r"Give one way to split"),
        (lambda a, o: retask(a, o), r"Give the new task text, or texts to rename"),
        (lambda a, o: retask(a, o, task="  "), r"A task text cannot be empty"),
        (lambda a, o: retask(a, o, rename={"sing": "dance"}), r"the task 'sing'\. Its texts are: 'put"),
        (lambda a, o: rebalance([a], o, "task", shares={"sing": 1.0}), r"the group 'sing'\. The groups are: 'put"),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_written(plain, tmp_path, edit, message):
    with pytest.raises(InputError, match=message):
        edit(plain, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_folders_that_differ_are_refused_with_every_difference(ours, plain, tmp_path):
    with pytest.raises(InputError) as raised:
        merge([plain, foreign(tmp_path / "other", [8])], tmp_path / "out")
    text = str(raised.value)
    assert f"{plain} and {tmp_path / 'other'} cannot become one dataset:" in text
    assert "robot_type: so101_follower and two_joints" in text
    assert "action: shape [3] and [2]" in text
    assert "action: names shoulder_pan.pos, elbow_flex.pos, gripper.pos and pan.pos, lift.pos" in text
    assert "observation.state: dtype float32 and float64" in text
    assert f"next.success: only in {plain}" in text
    assert f"observation.grid: only in {tmp_path / 'other'}" in text
    with pytest.raises(InputError, match=f"{CAMERAS[0].key}: only in {ours}"):
        merge([plain, ours], tmp_path / "out")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A log as `twinloop import` writes it: exact numbers in a side table, no verdicts, no images."""
    episodes = []
    for index in range(2):
        rng = np.random.default_rng(index)
        values = rng.normal(size=(2, 40, 3)).cumsum(axis=1)
        time = np.arange(40) / 30 + rng.uniform(0, 0.02, 40)
        log = Episode(index=index, time=time, action=values[0], state=values[1], units=UNITS, task="wave")
        episodes.append(dataclasses.replace(log, origin="arm 7", robot_type=SPEC.robot_type))
    return write_log_dataset(episodes, tmp_path_factory.mktemp("log") / "real")


@pytest.mark.parametrize("log_first", [True, False])
def test_what_is_common_to_a_log_and_generated_episodes_becomes_one_dataset(ours, recorded, tmp_path, log_first):
    folders = [recorded, ours] if log_first else [ours, recorded]
    with pytest.raises(InputError, match=r"next\.success: only in(.|\n)*--common \(of edit merge and datasets mat"):
        merge(folders, tmp_path / "out")
    made = merge(folders, tmp_path / "out", settings=EditSettings(common_features_only=True))
    left = {key: [str(ours)] for key in ["next.success", *(camera.key for camera in CAMERAS)]}
    assert made.to_json()["features_left_out"] == left
    assert {f"the feature {key} is left out, because it is only in {where[0]}" for key, where in left.items()} <= set(
        made.notes
    )
    check_exact(tmp_path / "out")
    assert stats_of(tmp_path / "out").keys() == whole(tmp_path / "out").keys()
    new = DatasetReader(tmp_path / "out")
    assert not left.keys() & {*new.info["features"], *new.frames_table(0).column_names}
    assert not [name for name in EditSource(tmp_path / "out").columns.names if any(key in name for key in left)]
    assert (new.spec.success, new.spec.cameras, new.units) == (False, (), UNITS)
    start = 0
    for old in map(DatasetReader, folders):
        for i in range(len(old)):
            assert new.episode_ids[start + i] == old.episode_ids[i]
            assert new.provenance(start + i) == old.provenance(i)
            np.testing.assert_array_equal(new.array(start + i, "action"), old.array(i, "action"))
            exact = (lambda reader, k: reader.log_episode(k).time) if old.has_log(i) else DatasetReader.states
            np.testing.assert_array_equal(exact(new, start + i), exact(old, i))
        start += len(old)
    assert json.loads((tmp_path / "out" / "twinloop/edit.json").read_text())["parameters"] == {"common": True}


@pytest.mark.slow
def test_the_validators_accept_what_is_common(ours, recorded, tmp_path):
    write_selection([(recorded, 0), (ours, 1)], tmp_path / "out", common_features_only=True)
    assert all(verdict.failed == 0 for verdict in validate(tmp_path / "out"))


def test_common_brings_no_other_shapes_or_units_together(plain, recorded, tmp_path):
    other = foreign(tmp_path / "other", [8])
    with pytest.raises(InputError) as raised:
        merge([plain, other], tmp_path / "out", settings=EditSettings(common_features_only=True))
    assert "action: shape [3] and [2]" in str(raised.value)
    assert "--common" not in str(raised.value)
    bare = shutil.copytree(recorded, tmp_path / "bare")
    for name in (layout.SPEC, layout.UNIT_MAP):
        (bare / name).unlink()
    with pytest.raises(UnitsError, match=r"bare does not declare the units of its joints; .*Are they the same"):
        merge([plain, bare], tmp_path / "out", settings=EditSettings(common_features_only=True))
    info = json.loads((other / layout.INFO).read_text())
    info["features"] = {key: info["features"][key] for key in INDEX_FEATURES}
    info["robot_type"] = SPEC.robot_type
    (other / layout.INFO).write_text(json.dumps(info))
    with pytest.raises(InputError, match=r".*plain, .*other have no feature in common except .* --common"):
        merge([plain, other], tmp_path / "out", settings=EditSettings(common_features_only=True))
    assert not (tmp_path / "out").exists()


def test_what_is_no_number_or_no_episode_is_named(tmp_path):
    source = foreign(tmp_path / "in", [9, 0, 12])
    with pytest.raises(InputError, match=r"Episode 1 of .*in has no frames\. Leave it out\."):
        select(source, tmp_path / "out", "0:3")
    path = source / layout.block_path(layout.DATA_PATH, 0)
    table = pq.read_table(path)
    action = np.array(table["action"].to_pylist())
    action[11] = np.nan
    at = table.column_names.index("action")
    pq.write_table(
        table.set_column(at, table.schema.field(at), pa.array(action.tolist(), table.schema.field(at).type)), path
    )
    with pytest.raises(DatasetError, match=r"episode 2 of .*in: action is not finite at frame 2\. Its statistics"):
        select(source, tmp_path / "out", "0,2")
    assert select(source, tmp_path / "out", "0").frames == 9


def test_units_that_cannot_be_the_same_are_asked_for(tmp_path):
    one, two = foreign(tmp_path / "one", [40]), foreign(tmp_path / "two", [40], first=1, scale=57.3)
    with pytest.raises(UnitsError, match=r"Neither .*one nor .*two declares the units .* as degrees and radians do\."):
        merge([one, two], tmp_path / "out")
    assert merge([one, two], tmp_path / "out", settings=EditSettings(same_units=True)).episodes == 2


def test_an_episode_that_hardly_moves_is_no_other_unit(tmp_path):
    one, two = foreign(tmp_path / "one", [40]), foreign(tmp_path / "two", [40], first=1, scale=0.01)
    assert merge([one, two], tmp_path / "out").episodes == 2


def test_the_output_is_a_new_folder_outside_of_every_dataset(plain, tmp_path):
    with pytest.raises(DatasetError, match=r"is the folder to edit, and edits are never in place"):
        select(plain, plain, "0")
    with pytest.raises(DatasetError, match=r"is inside the dataset .*plain"):
        select(plain, plain / "part", "0")
    with pytest.raises(DatasetError, match=r"holds the source .*plain\. Choose an output that does not"):
        select(plain, plain.parent, "0")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note.txt").write_text("mine")
    with pytest.raises(DatasetError, match=r"full exists and is not empty\. Edits write new folders"):
        select(plain, tmp_path / "full", "0")
    lock = FolderLock(tmp_path / "held")
    with pytest.raises(DatasetLockedError, match=f"Another writer .process {os.getpid()}. has .*held open"):
        select(plain, tmp_path / "held", "0")
    lock.release()
    assert (tmp_path / "full" / "note.txt").read_text() == "mine"


@pytest.mark.parametrize("template", [layout.DATA_PATH, layout.STATES_PATH, layout.PROVENANCE_PATH])
def test_a_damaged_source_is_named_and_nothing_is_left_behind(tmp_path, template):
    root = write_all(tmp_path / "set")
    path = root / layout.block_path(template, 2)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DatasetError, match=str(path.relative_to(root))):
        select(root, tmp_path / "out", "0:9")
    assert [item.name for item in tmp_path.iterdir()] == ["set"]


KILLED = """
import os, sys
from twinloop.dataset.edit import block, documents
from twinloop.dataset.edit.operations import split
where, source, output = sys.argv[1:]
def die(*_, **__): os.kill(os.getpid(), 9)
if where == "frames":
    real, count = block.BlockWriter.add, [0]
    def add(self, item):
        count[0] += 1
        die() if count[0] == 6 else real(self, item)
    block.BlockWriter.add = add
elif where == "swap":
    from twinloop.dataset.storage import snapshot
    snapshot._swap = die
split(source, output, counts={"a": 4, "b": 3})
"""


@pytest.mark.parametrize("where", [pytest.param("frames", marks=pytest.mark.slow), "swap"])
def test_a_killed_edit_leaves_nothing_that_looks_like_a_dataset(plain, tmp_path, where):
    done = subprocess.run([sys.executable, "-c", KILLED, where, str(plain), str(tmp_path / "out")], check=False)
    assert done.returncode == -9
    assert not (tmp_path / "out").exists()
    assert all(path.name.startswith(".out") for path in tmp_path.iterdir())
    parts = split(plain, tmp_path / "out", counts={"a": 4, "b": 3})
    assert {name: part.episodes for name, part in parts.items()} == {"a": 4, "b": 3}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.slow
def test_the_public_validators_accept_what_edits_write(ours, tmp_path):
    other = write_all(tmp_path / "other", SPEC)
    split(ours, tmp_path / "parts", shares={"train": 0.7, "val": 0.3}, by="task")
    merge([tmp_path / "parts" / "val", tmp_path / "parts" / "train"], tmp_path / "merged")
    retask(other, tmp_path / "retasked", task="lift")
    one = foreign(tmp_path / "one", [90, 70], codec="libx264", odd=False)
    merge([one, foreign(tmp_path / "two", [80], first=2, codec="libx264", odd=False)], tmp_path / "foreign")
    for name in ("parts/train", "parts/val", "merged", "retasked", "foreign"):
        for verdict in validate(tmp_path / name):
            assert verdict.accepted, (name, verdict.failures)


def test_planted_truth_is_what_is_read(plain, tmp_path):
    select(plain, tmp_path / "out", [3])
    assert DatasetReader(tmp_path / "out").numbers.tolist() == [8]
    np.testing.assert_array_equal(DatasetReader(tmp_path / "out").states(0), planted(8).states)
