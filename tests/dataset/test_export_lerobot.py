"""Out to LeRobot v2.1 and v3.0 and back: every number equal, every image's packet the same, nothing half written."""

from __future__ import annotations

import json
import shutil
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.dataset_writer import SPEC, SPEC_VIDEO, UNITS, write_all
from twinloop.cli.main import main
from twinloop.core.errors import DatasetError, InputError, UnknownNameError
from twinloop.core.files import sha256_tree
from twinloop.dataset.export.formats import exporter
from twinloop.dataset.export.protocol import ExportOptions
from twinloop.dataset.export.source import SourceV21, open_source
from twinloop.dataset.export.verification import FolderReader, psnr, verify_export
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.logs.formats import load_log
from twinloop.dataset.media.video_copy import Encoding, PacketReader, transcode

LEROBOT, LEGACY = "lerobot", "lerobot-v2"
FRONT = "observation.images.front"


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("ours") / "set", SPEC_VIDEO)


@pytest.fixture(scope="module")
def legacy(ours, tmp_path_factory):
    folder = tmp_path_factory.mktemp("legacy") / "v21"
    exporter(LEGACY).export(ours, folder)
    return folder


@pytest.fixture(scope="module")
def back(legacy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("back") / "v30"
    exporter(LEROBOT).export(legacy, folder)
    return folder


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def packets(path):
    import av

    with av.open(str(path)) as container:
        return [(bytes(p), p.is_keyframe) for p in container.demux(container.streams.video[0]) if p.size]


def test_v21_has_the_layout_that_lerobot_21_reads(ours, legacy):
    source, info = DatasetReader(ours), json.loads((legacy / "meta/info.json").read_text())
    count = len(source)
    assert (info["codebase_version"], info["chunks_size"], info["total_chunks"]) == ("v2.1", 1000, 1)
    assert (info["total_episodes"], info["total_videos"], info["splits"]) == (count, 2 * count, {"train": f"0:{count}"})
    episodes = lines(legacy / "meta/episodes.jsonl")
    assert [row["episode_index"] for row in episodes] == list(range(count))
    assert [row["length"] for row in episodes] == source.lengths.tolist()
    assert lines(legacy / "meta/tasks.jsonl")[0] == {"task_index": 0, "task": "put the cube back"}
    assert not (legacy / "meta/stats.json").exists()
    for index in range(count):
        table = pq.read_table(legacy / f"data/chunk-000/episode_{index:06d}.parquet")
        assert table["episode_index"].unique().to_pylist() == [index]
        assert b'"_type": "Sequence"' in table.schema.metadata[b"huggingface"]
        assert b'"List"' not in table.schema.metadata[b"huggingface"]
        for camera in (FRONT, "observation.images.wrist"):
            assert (legacy / f"videos/chunk-000/{camera}/episode_{index:06d}.mp4").is_file()


def test_there_and_back_every_column_of_every_frame_is_the_same(ours, legacy, back):
    one, other = DatasetReader(ours), DatasetReader(back)
    assert len(other) == len(one)
    for index in range(len(one)):
        assert other.frames_table(index).equals(one.frames_table(index))
        names = [name for name in one.row(index) if name.startswith("provenance/")]
        assert names
        assert {name: other.row(index)[name] for name in names} == {name: one.row(index)[name] for name in names}
        assert other.row(index)["tasks"] == one.row(index)["tasks"]
    assert other.units == UNITS
    assert [e.units for e in load_log(legacy)] == [UNITS] * len(one)
    table = pq.read_table(back / "data/chunk-000/file-000.parquet")
    assert b'"_type": "List"' in table.schema.metadata[b"huggingface"]


def test_statistics_are_those_of_our_writer_to_the_last_digit(ours, back):
    ours_, theirs = (json.loads((folder / "meta/stats.json").read_text()) for folder in (ours, back))
    assert theirs.keys() == ours_.keys()
    for key, row in ours_.items():
        for name, value in row.items():
            if "images" in key and name != "count":  # images: of the written video here, before coding there
                np.testing.assert_allclose(theirs[key][name], value, atol=0.06, err_msg=f"{key} {name}")
            else:
                np.testing.assert_allclose(theirs[key][name], value, rtol=1e-12, atol=1e-12, err_msg=f"{key} {name}")


def test_packets_are_copied_and_never_decoded(ours, legacy, back):
    whole = packets(ours / f"videos/{FRONT}/chunk-000/file-000.mp4")
    length = DatasetReader(ours).lengths
    first = packets(legacy / f"videos/chunk-000/{FRONT}/episode_000000.mp4")
    second = packets(legacy / f"videos/chunk-000/{FRONT}/episode_000001.mp4")
    assert first == whole[: length[0]]
    assert second == whole[length[0] : length[0] + length[1]]
    joined = packets(back / f"videos/{FRONT}/chunk-000/file-000.mp4")
    assert joined[: len(whole)] == whole
    assert len(joined) == length.sum()  # blocks of ours are files, LeRobot's are filled up


def test_frames_at_random_equal_the_source_and_a_wrong_one_is_seen(ours, legacy, back, tmp_path):
    count = len(DatasetReader(ours))
    for folder in (legacy, back):
        found = verify_export(FolderReader(ours), FolderReader(folder), range(count))
        assert found.accepted
        assert found.images_equal
        assert found.frames == 10
        assert {"action", "observation.state", "timestamp", "next.success"} <= set(found.numbers)
    mixed_up = [1, 0, *range(2, count)]
    wrong = verify_export(FolderReader(ours), FolderReader(back), mixed_up)
    assert not wrong.accepted
    assert "its source" in wrong.defects[0]
    reader = DatasetReader(ours)
    table = pq.read_table(back / "data/chunk-000/file-000.parquet")
    values = np.array(table["action"].to_pylist(), dtype=np.float32) + np.float32(1e-3)
    column = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), 3)
    copy = tmp_path / "copy"
    exporter(LEROBOT).export(back, copy)
    pq.write_table(table.set_column(0, table.schema.field(0), column), copy / "data/chunk-000/file-000.parquet")
    moved = verify_export(FolderReader(ours), FolderReader(copy), range(len(reader)))
    assert "action differs by 0.001" in moved.defects[0]


def test_a_selection_is_counted_anew_in_the_order_asked_for(ours, tmp_path):
    done = exporter(LEROBOT).export(ours, tmp_path / "some", ExportOptions(episodes=(5, 1)))
    one, some = DatasetReader(ours), DatasetReader(tmp_path / "some")
    assert done.episodes == (5, 1)
    assert some.lengths.tolist() == one.lengths[[5, 1]].tolist()
    assert some.frames_table(1)["index"].to_pylist()[0] == one.lengths[5]
    np.testing.assert_array_equal(some.array(1, "action"), one.array(1, "action"))
    np.testing.assert_array_equal(some.images(1, "wrist", [3]), one.images(1, "wrist", [3]))
    assert [some.row(i)["tasks"] for i in (0, 1)] == [one.row(i)["tasks"] for i in (5, 1)]


def test_a_clip_without_its_own_key_frame_is_encoded_again_and_said(ours, tmp_path):
    reader = DatasetReader(ours)
    copy = tmp_path / "set"
    exporter(LEROBOT).export(ours, copy)
    video = copy / f"videos/{FRONT}/chunk-000/file-000.mp4"
    long = tmp_path / "long.mp4"
    transcode(video, 0.0, int(reader.lengths.sum()), long, Encoding(codec="h264", gop=1000), Fraction(30))
    long.replace(video)
    done = exporter(LEGACY).export(copy, tmp_path / "v21")
    assert any("do not begin with a key frame" in note and FRONT in note for note in done.notes)
    coding = PacketReader(tmp_path / f"v21/videos/chunk-000/{FRONT}/episode_000003.mp4").coding
    assert (coding.codec, coding.pix_fmt) == ("h264", "yuv420p")
    found = verify_export(FolderReader(copy), FolderReader(tmp_path / "v21"), range(len(reader)))
    assert found.accepted
    assert not found.images_equal
    assert found.psnr_db > 30


def test_columns_that_only_another_program_knows_survive(tmp_path):
    """A v2.1 folder with float64, text, negative numbers and a matrix comes into v3.0 with all of them."""
    folder, length = tmp_path / "foreign", 40
    (folder / "meta").mkdir(parents=True)
    (folder / "data/chunk-000").mkdir(parents=True)
    rng = np.random.default_rng(3)
    features = {
        "action": {"dtype": "float32", "shape": [2], "names": [["left", "right"]]},
        "observation.state": {"dtype": "float32", "shape": [2], "names": None},
        "reward": {"dtype": "float64", "shape": [1], "names": None},
        "offset": {"dtype": "int64", "shape": [1], "names": None},
        "pose": {"dtype": "float32", "shape": [2, 3], "names": None},
        "note": {"dtype": "string", "shape": [1], "names": None},
        **{
            name: {"dtype": "float32" if name == "timestamp" else "int64", "shape": [1], "names": None}
            for name in ("timestamp", "frame_index", "episode_index", "index", "task_index")
        },
    }
    info = {"codebase_version": "v2.1", "robot_type": "x", "fps": 10, "total_episodes": 2, "chunks_size": 1000}
    info |= {"data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet", "video_path": None}
    (folder / "meta/info.json").write_text(json.dumps({**info, "features": features, "their_key": [1, 2]}))
    (folder / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "a"}\n{"task_index": 1, "task": "b"}\n')
    rows = "".join(f'{{"episode_index": {i}, "tasks": ["b"], "length": {length}, "mood": "m{i}"}}\n' for i in (0, 1))
    (folder / "meta/episodes.jsonl").write_text(rows)
    tables = []
    for index in (0, 1):
        pairs = pa.list_(pa.float32())
        table = pa.table(
            {
                "action": pa.array(rng.normal(size=(length, 2)).tolist(), pairs),
                "observation.state": pa.array(rng.normal(size=(length, 2)).tolist(), pairs),
                "reward": rng.normal(size=length),
                "offset": rng.integers(-5, 5, size=length),
                "pose": pa.array(rng.normal(size=(length, 2, 3)).tolist(), pa.list_(pairs)),
                "note": [f"frame {i}" for i in range(length)],
                "timestamp": (np.arange(length) / 10).astype(np.float32),
                "frame_index": np.arange(length),
                "episode_index": np.full(length, index),
                "index": index * length + np.arange(length),
                "task_index": np.full(length, 1),
            }
        )
        pq.write_table(table, folder / f"data/chunk-000/episode_{index:06d}.parquet")
        tables.append(table)
    exporter(LEROBOT).export(folder, tmp_path / "v30")
    reader = DatasetReader(tmp_path / "v30")
    assert [reader.row(i)["mood"] for i in (0, 1)] == ["m0", "m1"]
    assert reader.info["their_key"] == [1, 2]
    both = pa.concat_tables(tables)
    assert pa.concat_tables([reader.frames_table(i) for i in (0, 1)]).equals(both)
    stats = json.loads((tmp_path / "v30/meta/stats.json").read_text())
    for key in ("reward", "offset", "pose", "action"):
        values = np.array(both[key].to_pylist()).reshape(2 * length, *(features[key]["shape"]))
        assert np.shape(stats[key]["mean"]) == tuple(features[key]["shape"])
        np.testing.assert_allclose(stats[key]["std"], values.std(axis=0), rtol=1e-6)
        np.testing.assert_allclose(stats[key]["q10"], np.quantile(values, 0.1, axis=0), rtol=1e-6, atol=1e-7)
    assert "note" not in stats
    exporter(LEGACY).export(tmp_path / "v30", tmp_path / "again")
    again = pq.read_table(tmp_path / "again/data/chunk-000/episode_000001.parquet")
    assert again.equals(tables[1])


def test_part_of_a_v21_folder_is_taken_and_what_is_missing_is_said(legacy, tmp_path):
    part = tmp_path / "part"
    for path in legacy.rglob("*"):
        if path.is_file():
            target = part / path.relative_to(legacy)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    (part / "data/chunk-000/episode_000002.parquet").unlink()
    (part / f"videos/chunk-000/{FRONT}/episode_000004.mp4").unlink()
    source = open_source(part)
    assert isinstance(source, SourceV21)
    done = exporter(LEROBOT).export(part, tmp_path / "v30")
    assert done.notes[0].startswith("1 of 9 episodes have no table, 1 have a table and lack a video")
    assert done.episodes == (0, 1, 3, 5, 6, 7, 8)
    with pytest.raises(InputError, match=r"has no episode 4; it has 0 to 1, 3, 5 to 8"):
        exporter(LEROBOT).export(part, tmp_path / "no", ExportOptions(episodes=(4,)))
    without = ExportOptions(settings={"images": "none"})
    blind = exporter(LEROBOT).export(part, tmp_path / "blind", without)
    assert blind.episodes == (0, 1, 3, 4, 5, 6, 7, 8)
    assert DatasetReader(tmp_path / "blind").cameras == []
    assert ExportOptions(settings={"pictures": "none"}) == without  # the former name
    for path in part.glob("data/*/*"):
        path.unlink()
    with pytest.raises(DatasetError, match=r"describes 9 episodes, but none of them is complete"):
        exporter(LEROBOT).export(part, tmp_path / "no")


def test_what_cannot_be_exported_is_refused_and_leaves_nothing(ours, legacy, tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="exists and is not an empty folder"):
        exporter(LEGACY).export(ours, full)
    with pytest.raises(InputError, match="is inside the dataset"):
        exporter(LEGACY).export(ours, ours / "out")
    with pytest.raises(UnknownNameError, match="format"):
        exporter("lerobot-v1")
    with pytest.raises(UnknownNameError, match="setting"):
        exporter(LEGACY).export(ours, tmp_path / "x", ExportOptions(settings={"crf": "3"}))
    damaged = tmp_path / "damaged"
    exporter(LEGACY).export(ours, damaged)
    video = damaged / f"videos/chunk-000/{FRONT}/episode_000001.mp4"
    video.write_bytes(video.read_bytes()[:2000])
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(DatasetError, match=r"episode_000001\.mp4"):
        exporter(LEROBOT).export(damaged, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_paths_that_leave_a_foreign_folder_are_refused(legacy, tmp_path):
    evil = tmp_path / "evil"
    (evil / "meta").mkdir(parents=True)
    for name in ("episodes.jsonl", "tasks.jsonl"):
        (evil / "meta" / name).write_bytes((legacy / "meta" / name).read_bytes())
    info = json.loads((legacy / "meta/info.json").read_text())
    info["data_path"] = "../../{episode_index}.parquet"
    (evil / "meta/info.json").write_text(json.dumps(info))
    with pytest.raises(DatasetError, match="leaves the dataset's folder"):
        exporter(LEROBOT).export(evil, tmp_path / "out")


@pytest.mark.parametrize("key", ["../../x", "..", "a/b", "a\\b"])
def test_features_named_like_paths_are_refused(ours, legacy, tmp_path, key):
    for source in (ours, legacy):
        evil = tmp_path / f"evil-{source.name}"
        shutil.copytree(source, evil)
        info = json.loads((evil / "meta/info.json").read_text())
        info["features"][key] = info["features"].pop(FRONT)
        (evil / "meta/info.json").write_text(json.dumps(info))
        before = sorted(path.name for path in tmp_path.iterdir())
        with pytest.raises(DatasetError, match="cannot name a feature"):
            exporter(LEROBOT).export(evil, tmp_path / "out")
        assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fps": 0}, "fps is 0"),
        ({"fps": "thirty"}, "fps is 'thirty'"),
        ({"chunks_size": 0}, "chunks_size is 0"),
        ({"video_path": None}, "no video_path"),
        ({"features": [1]}, "no table of features"),
        ({"+": {"far": {"dtype": "float32", "shape": [1], "names": None}}}, "has no column far"),
        ({"+": {"far": {"dtype": "float32", "shape": "x"}}}, "the shape of the feature far is 'x'"),
        ({"+": {"far": {"shape": [1]}}}, "the feature far has no dtype"),
        ({"-": "index"}, "has no feature index"),
        ({"tasks": '{"task_index": 5000000000, "task": "x"}'}, "numbers tasks from 5000000000"),
        ({"tasks": '{"task": "x"}'}, r"tasks\.jsonl is damaged"),
    ],
)
def test_metadata_that_cannot_be_is_named(legacy, tmp_path, change, message):
    evil = tmp_path / "evil"
    shutil.copytree(legacy, evil)
    info = json.loads((evil / "meta/info.json").read_text())
    info["features"].update(change.pop("+", {}))
    info["features"].pop(change.pop("-", ""), None)
    if "tasks" in change:
        (evil / "meta/tasks.jsonl").write_text(change.pop("tasks"))
    (evil / "meta/info.json").write_text(json.dumps({**info, **change}))
    with pytest.raises(DatasetError, match=message):
        exporter(LEROBOT).export(evil, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["evil"]


def test_the_same_export_has_the_same_bytes(legacy, back, tmp_path):
    exporter(LEROBOT).export(legacy, tmp_path / "v30")
    assert sha256_tree(tmp_path / "v30") == sha256_tree(back)


def test_the_command_verifies_and_says_what_it_did(tmp_path, capsys):
    source = write_all(tmp_path / "set", SPEC)
    words = ["export", "lerobot-v2", str(source), "--output", str(tmp_path / "v21"), "--episodes", "0,2-3"]
    assert main([*words, "--verify", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert answer["episodes"] == 3
    assert answer["verification"]["accepted"]
    assert main(["export", "lerobot-v2", str(source), "--json"]) == 2
    assert "with --output" in json.loads(capsys.readouterr().out.splitlines()[-1])["message"]


def test_the_command_verifies_what_came_without_videos(legacy, tmp_path, capsys):
    part = tmp_path / "part"
    shutil.copytree(legacy, part)
    (part / f"videos/chunk-000/{FRONT}/episode_000000.mp4").unlink()
    words = ["export", "lerobot", str(part), "--output", str(tmp_path / "out"), "--set", "pictures=none", "--verify"]
    assert main([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert answer["episodes"] == 9
    assert answer["verification"]["cameras"] == []


def test_psnr_is_that_of_the_textbook():
    one = np.zeros((4, 4, 3), np.uint8)
    other = one.copy()
    other[0, 0, 0] = 255
    assert psnr(one, one) == np.inf
    assert psnr(one, other) == pytest.approx(10 * np.log10(48))
