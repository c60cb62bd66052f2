"""What LeRobot has since 0.6, and the features of another dataset: `export lerobot --set …`."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from support.dataset_writer import SPEC_VIDEO, write_all
from twinloop.cli.main import main
from twinloop.core.errors import DatasetError, InputError
from twinloop.dataset.export.formats import exporter
from twinloop.dataset.export.protocol import ExportOptions
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.spec import ENCODER
from twinloop.tasks import open_task
from twinloop.twin import load_twin

LEROBOT = exporter("lerobot")
FRONT = "observation.images.front"
GENERATE = "scene: {twin: so101_tabletop, task: pick_and_place}\n"


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    root = tmp_path_factory.mktemp("generated")
    (root / "generate.yaml").write_text(GENERATE)
    assert main(["generate", str(root / "generate.yaml"), "--episodes", "3", "--output", str(root / "set")]) == 0
    return root / "set"


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("ours") / "set", SPEC_VIDEO)


def info(folder):
    return json.loads((folder / "meta/info.json").read_text())


def options(**settings):
    return ExportOptions(settings=settings)


def test_subtasks_are_the_phases_of_the_stored_states(generated, tmp_path):
    words = ["export", "lerobot", str(generated), "--output", str(tmp_path / "out"), "--set", "language=subtasks"]
    assert main(words) == 0
    reader, task = DatasetReader(generated), open_task("pick_and_place", load_twin("so101_tabletop"))
    written = DatasetReader(tmp_path / "out")
    for episode in range(len(reader)):
        table = written.frames_table(episode)
        begun = [(name, frame) for name, frame in task.phases(reader.states(episode), reader.fps) if frame is not None]
        time = table["timestamp"].to_pylist()
        kept = [(n, f) for (n, f), (_, after) in zip(begun, [*begun[1:], ("", len(time))], strict=True) if after > f]
        assert len(kept) >= 5
        rows = [{"role": "assistant", "content": n, "style": "subtask", "timestamp": time[f]} for n, f in kept]
        empty = {"camera": None, "tool_calls": None}
        assert table["language_persistent"].to_pylist() == [[row | empty for row in rows]] * len(time)
        assert table["language_events"].to_pylist() == [[]] * len(time)
    for key in ("language_persistent", "language_events"):
        assert info(tmp_path / "out")["features"][key] == {"dtype": "language", "shape": [1], "names": None}


def test_a_dataset_with_language_columns_is_exported_checked_and_edited(generated, tmp_path):
    for name, source in (("first", generated), ("second", tmp_path / "first")):
        settings = ["--set", "language=subtasks"] if name == "first" else []
        words = ["export", "lerobot", str(source), "--output", str(tmp_path / name), "--verify", *settings]
        assert main(words) == 0
    first, second = (DatasetReader(tmp_path / name).frames_table(2) for name in ("first", "second"))
    assert first["language_persistent"].to_pylist() == second["language_persistent"].to_pylist()
    assert main(["edit", "delete", str(tmp_path / "first"), "--episodes", "0", "--output", str(tmp_path / "rest")]) == 0
    rest = DatasetReader(tmp_path / "rest").frames_table(1)
    assert rest["language_persistent"].to_pylist() == first["language_persistent"].to_pylist()


def test_what_cannot_be_written_is_refused_with_the_reason(ours, generated, tmp_path):
    with pytest.raises(InputError, match=r"language is 'vqa'. Give subtasks"):
        LEROBOT.export(ours, tmp_path / "out", options(language="vqa"))
    with pytest.raises(InputError, match=r"has no subtasks: twinloop did not generate it"):
        LEROBOT.export(ours, tmp_path / "out", options(language="subtasks"))
    with pytest.raises(DatasetError, match=r"has no annotations"):
        LEROBOT.export(ours, tmp_path / "out", options(depth="front"))
    with pytest.raises(DatasetError, match=r"is not a LeRobot dataset: it has no meta/info.json"):
        LEROBOT.export(ours, tmp_path / "out", options(like=str(tmp_path)))
    assert not (tmp_path / "out").exists()


@pytest.fixture
def model(ours, tmp_path):
    """A recording as by LeRobot: no success, one camera, another name of the robot."""
    folder = tmp_path / "real"
    shutil.copytree(ours, folder)
    described = info(folder)
    for key in ("next.success", "observation.images.wrist"):
        del described["features"][key]
    described["robot_type"] = "so_follower"
    features = dict(reversed(described["features"].items()))
    (folder / "meta/info.json").write_text(json.dumps({**described, "features": features}))
    return folder


def test_an_export_like_another_dataset_has_its_features_and_robot(ours, model, tmp_path):
    LEROBOT.export(ours, tmp_path / "out", options(like=str(model)))
    made, wanted = info(tmp_path / "out"), info(model)
    assert list(made["features"].items()) == list(wanted["features"].items())
    assert made["robot_type"] == "so_follower"
    columns = pq.read_schema(tmp_path / "out/data/chunk-000/file-000.parquet").names
    assert sorted(columns) == sorted(key for key in wanted["features"] if key != FRONT)
    mine, theirs = DatasetReader(ours), DatasetReader(tmp_path / "out")
    np.testing.assert_array_equal(theirs.array(3, "action"), mine.array(3, "action"))
    np.testing.assert_array_equal(theirs.images(3, "front", [7]), mine.images(3, "front", [7]))
    assert theirs.cameras == ["front"]


def test_its_codec_is_that_of_the_other_dataset(ours, model, tmp_path):
    described = info(model)
    described["features"][FRONT]["info"] |= {"video.codec": "av1"}
    (model / "meta/info.json").write_text(json.dumps(described))
    done = LEROBOT.export(ours, tmp_path / "out", options(like=str(model)))
    assert done.notes == (f"{FRONT} was re-encoded as AV1, crf 30, because its packets are h264",)
    assert info(tmp_path / "out")["features"][FRONT]["info"]["video.codec"] == "av1"


def test_each_difference_that_no_export_mends_is_named(ours, model, tmp_path):
    described = info(model)
    described["fps"] = 50
    described["features"]["action"]["names"] = ["a.pos", "b.pos", "c.pos"]
    described["features"][FRONT]["shape"] = [480, 640, 3]
    described["features"]["observation.force"] = {"dtype": "float32", "shape": [6], "names": None}
    (model / "meta/info.json").write_text(json.dumps(described))
    with pytest.raises(InputError) as error:
        LEROBOT.export(ours, tmp_path / "out", options(like=str(model)))
    for part in (
        "30 and 50 frames per second",
        "action: names shoulder_pan.pos, elbow_flex.pos, gripper.pos and a.pos, b.pos, c.pos",
        f"{FRONT}: shape [48, 64, 3] and [480, 640, 3]",
        "observation.force: missing",
    ):
        assert part in str(error.value)


def test_a_video_feature_names_its_encoder_by_lerobots_keys(ours):
    described = info(ours)["features"][FRONT]["info"]
    assert {f"video.{name}": value for name, value in ENCODER.items()}.items() <= described.items()
    assert described["is_depth_map"] is False
    assert "video.is_depth_map" not in described
