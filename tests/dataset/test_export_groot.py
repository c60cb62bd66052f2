"""GR00T's layout: ranges that name every column once, their statistics, files in the paths of its loader."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from support.dataset_writer import SPEC_VIDEO, write_all
from twinloop.core.errors import InputError
from twinloop.dataset.export.formats import exporter
from twinloop.dataset.export.lerobot_parts import body_part, build_modality
from twinloop.dataset.export.protocol import ExportOptions
from twinloop.dataset.export.verification import FolderReader, verify_export
from twinloop.dataset.lerobot.reader import DatasetReader


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("ours") / "set", SPEC_VIDEO)


@pytest.fixture(scope="module")
def groot(ours, tmp_path_factory):
    folder = tmp_path_factory.mktemp("groot") / "out"
    exporter("groot").export(ours, folder)
    return folder


def read(folder, name):
    return json.loads((folder / "meta" / name).read_text())


def feature(*names, dtype="float32"):
    return {"dtype": dtype, "shape": [len(names)], "names": list(names)}


def test_arm_and_gripper_are_spans_as_in_groots_own_examples(groot):
    found = read(groot, "modality.json")
    spans = {"single_arm": {"start": 0, "end": 2}, "gripper": {"start": 2, "end": 3}}
    assert found["action"] == spans
    assert found["state"] == spans
    assert found["video"]["wrist"] == {"original_key": "observation.images.wrist"}
    assert found["annotation"] == {"human.task_description": {"original_key": "task_index"}}


def test_what_the_loader_looks_up_is_there_for_every_episode(ours, groot):
    """Its paths, its names of columns, and a text for every value that the annotation's column has."""
    info, spans = read(groot, "info.json"), read(groot, "modality.json")
    tasks = {
        row["task_index"]: row["task"] for row in map(json.loads, (groot / "meta/tasks.jsonl").read_text().splitlines())
    }
    reader = DatasetReader(ours)
    for row in map(json.loads, (groot / "meta/episodes.jsonl").read_text().splitlines()):
        place = {"episode_chunk": 0, "episode_index": row["episode_index"]}
        table = pq.read_table(groot / info["data_path"].format(**place))
        assert len(table) == row["length"]
        for kind, column in (("state", "observation.state"), ("action", "action")):
            values = np.array(table[column].to_pylist())
            parts = [values[:, span["start"] : span["end"]] for span in spans[kind].values()]
            expected = reader.array(row["episode_index"], column)
            np.testing.assert_array_equal(np.hstack(parts), expected)
        key = spans["annotation"]["human.task_description"]["original_key"]
        assert {tasks[index] for index in table[key].to_pylist()} == set(row["tasks"])
        for video in spans["video"].values():
            assert (groot / info["video_path"].format(video_key=video["original_key"], **place)).is_file()


def test_statistics_are_exact_over_all_frames_and_only_what_groot_reads(ours, groot):
    stats, info = read(groot, "stats.json"), read(groot, "info.json")
    assert set(stats) == {key for key, entry in info["features"].items() if "float" in entry["dtype"]}
    reader = DatasetReader(ours)
    values = np.vstack([reader.array(index, "action") for index in range(len(reader))])
    expected = {"mean": values.mean(0), "std": values.std(0), "min": values.min(0), "max": values.max(0)}
    expected |= {"q01": np.quantile(values, 0.01, axis=0), "q99": np.quantile(values, 0.99, axis=0)}
    assert set(stats["action"]) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(stats["action"][name], value, rtol=1e-9, atol=1e-9)


def test_frames_equal_the_source(ours, groot):
    found = verify_export(FolderReader(ours), FolderReader(groot), range(len(DatasetReader(ours))))
    assert found.accepted
    assert found.images_equal


def test_spans_may_be_one_per_joint_or_the_datasets_own(ours, tmp_path):
    exporter("groot").export(ours, tmp_path / "each", ExportOptions(episodes=(0,), settings={"spans": "each"}))
    assert list(read(tmp_path / "each", "modality.json")["action"]) == ["shoulder_pan", "elbow_flex", "gripper"]
    exporter("groot").export(ours, tmp_path / "own", ExportOptions(episodes=(0,), settings={"spans": "keep"}))
    assert read(tmp_path / "own", "modality.json") == read(ours, "modality.json")
    with pytest.raises(InputError, match="Give one of grouped, each, keep"):
        exporter("groot").export(ours, tmp_path / "no", ExportOptions(settings={"spans": "some"}))
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("joint", "expected"),
    [
        ("shoulder_pan", "single_arm"),
        ("gripper", "gripper"),
        ("kLeftShoulderPitch", "left_arm"),
        ("kRightHandThumbBend", "right_hand"),
        ("left_gripper", "left_gripper"),
        ("waist_yaw", "waist"),
        ("left_knee", "left_leg"),
        ("panda_finger_joint1", "hand"),
    ],
)
def test_parts_of_bodies_by_the_names_of_joints(joint, expected):
    assert body_part(joint) == expected


def test_every_column_is_in_one_span_and_names_never_clash():
    names = ("left_arm.pos", "gripper.pos", "left_elbow.pos", "gripper_b.pos")
    features = {
        "action": feature(*names),
        "observation.state": feature(*names, "tcp_x"),
        "observation.imu": feature("a"),
    }
    found = build_modality(features)
    for kind, width in (("action", 4), ("state", 5)):
        own = [span for span in found[kind].values() if "original_key" not in span]
        assert sorted(i for span in own for i in range(span["start"], span["end"])) == list(range(width))
    assert found["state"]["tcp_x"] == {"start": 4, "end": 5}
    assert found["state"]["imu"] == {"start": 0, "end": 1, "original_key": "observation.imu"}
    assert build_modality({"action": {"dtype": "float32", "shape": [7], "names": None}})["action"] == {
        "joints": {"start": 0, "end": 7}
    }


def test_a_foreign_v3_dataset_gets_a_modality_file(ours, tmp_path):
    exporter("lerobot").export(ours, tmp_path / "foreign")
    (tmp_path / "foreign/meta/modality.json").unlink()
    exporter("lerobot").export(tmp_path / "foreign", tmp_path / "out")
    assert list(read(tmp_path / "out", "modality.json")["action"]) == ["single_arm", "gripper"]


def test_a_dataset_without_a_state_is_refused(ours, tmp_path):
    exporter("lerobot").export(ours, tmp_path / "set")
    info = json.loads((tmp_path / "set/meta/info.json").read_text())
    info["features"]["observation.environment_state"] = info["features"].pop("observation.state")
    (tmp_path / "set/meta/info.json").write_text(json.dumps(info))
    with pytest.raises(InputError, match=r"lacks observation\.state"):
        exporter("groot").export(tmp_path / "set", tmp_path / "out")
