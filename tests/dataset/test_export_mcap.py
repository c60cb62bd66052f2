"""MCAP for Foxglove: every number and image read back, every message of its schema, the same bytes again."""

from __future__ import annotations

import base64
import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest

from support.exports import (
    JOINTS,
    LENGTHS,
    UNITS,
    contacts,
    generated_dataset,
    image_dataset,
    planted,
    recorded_dataset,
    recorded_log,
    times,
)
from twinloop.core.errors import InputError, MissingDependencyError, UnknownNameError
from twinloop.core.files import sha256_tree
from twinloop.core.units import unit_map_from_ranges
from twinloop.dataset.export.mcap import EXPORTER, decode_samples, export_mcap
from twinloop.dataset.export.mcap_messages import field_names, to_timestamp
from twinloop.dataset.export.protocol import ExportOptions
from twinloop.dataset.export.streams import GroundTruth, StreamEvent
from twinloop.dataset.export.verification import FolderReader, verify_export
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.logs.conversion import write_log_dataset
from twinloop.workflows.data.export import load_ground_truth

pytest.importorskip("mcap")
GAP = 1.0  # s between episodes of one file


@pytest.fixture(scope="module")
def has_images(tmp_path_factory):
    return image_dataset(tmp_path_factory.mktemp("pictured") / "set")


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    return generated_dataset(tmp_path_factory.mktemp("generated"))


@pytest.fixture(scope="module")
def whole(has_images, tmp_path_factory):
    """All episodes in one file."""
    path = tmp_path_factory.mktemp("whole") / "all.mcap"
    EXPORTER.export(has_images, path)
    return path


def messages(path):
    """By topic: log time in s, schema's name, message."""
    from mcap.reader import make_reader

    found = {}
    with path.open("rb") as file:
        for schema, channel, message in make_reader(file).iter_messages():
            row = (message.log_time, schema.name, json.loads(message.data))
            found.setdefault(channel.topic, []).append(row)
    return found


def check(value, schema, where="message"):
    """Whether a value is of a JSON Schema, as far as the schemas here go."""
    kinds = {
        "object": dict,
        "array": list,
        "string": str,
        "boolean": bool,
        "integer": int,
        "number": (int, float),
        "null": type(None),
    }
    wanted = schema.get("type")
    if wanted is not None:
        names = [wanted] if isinstance(wanted, str) else wanted
        assert any(isinstance(value, kinds[name]) for name in names), f"{where} is {value!r}, no {wanted}"
    if isinstance(value, dict):
        assert set(schema.get("required", ())) <= set(value), f"{where} lacks {set(schema['required']) - set(value)}"
        assert set(value) <= set(schema["properties"]), f"{where}: {set(value) - set(schema['properties'])} unknown"
        for key, item in value.items():
            check(item, schema["properties"][key], f"{where}.{key}")
    if isinstance(value, list):
        for item in value:
            check(item, schema.get("items", {}), f"{where}[]")
    if schema.get("contentEncoding") == "base64":
        base64.b64decode(value, validate=True)
    if "minimum" in schema:
        assert value >= schema["minimum"], where


def test_every_number_stands_at_its_true_time(has_images, whole):
    found, begin = messages(whole), 0.0
    rows = {topic: iter(said) for topic, said in found.items()}
    for number, length in enumerate(LENGTHS):
        episode, true = planted(number), times(number)[:-1]
        radians = {
            "/joints/commanded": UNITS.to_si(episode.action.astype(np.float32)),
            "/joints/measured": UNITS.to_si(episode.observation.astype(np.float32)),
        }
        readings = episode.readings["observation.imu.tool"].astype(np.float32)
        for frame in range(length):
            at = begin + true[frame] - true[0]
            for topic, values in radians.items():
                when, schema, said = next(rows[topic])
                assert schema == "foxglove.JointStates"
                assert when == pytest.approx(at * 1e9, abs=2)
                assert said["timestamp"] == to_timestamp(when)
                assert [(j["name"], j["position"]) for j in said["joints"]] == list(
                    zip(JOINTS, values[frame].tolist(), strict=True)
                )
            _, _, said = next(rows["/dataset/action"])
            assert [said[joint] for joint in JOINTS] == episode.action.astype(np.float32)[frame].tolist()
            _, _, said = next(rows["/dataset/observation.state"])
            assert [said[joint] for joint in JOINTS] == episode.observation.astype(np.float32)[frame].tolist()
            _, _, said = next(rows["/dataset/observation.imu.tool"])
            assert [said["gyro_x"], said["accel_z"]] == readings[frame].tolist()
            _, _, said = next(rows["/dataset/next.success"])
            assert said["success"] == float(episode.next_success[frame])
        begin += true[-1] - true[0] + GAP
    assert all(next(row, None) is None for topic, row in rows.items() if topic.startswith(("/joints", "/dataset")))


def test_contacts_are_numbers_and_arrows(whole):
    found = messages(whole)
    table = contacts(0).to_pylist()
    for frame in range(LENGTHS[0]):
        _, schema, said = found["/contacts"][frame]
        assert schema == "twinloop.Contacts"
        wanted = [row for row in table if row["frame_index"] == frame]
        assert [row["force"] for row in said["contacts"]] == [row["force"] for row in wanted]
        assert [row["body1"] for row in said["contacts"]] == [row["body1"] for row in wanted]
        (entity,) = found["/contacts/arrows"][frame][2]["entities"]
        assert len(entity["arrows"]) == len(wanted)
        for arrow, row in zip(entity["arrows"], wanted, strict=True):
            q = arrow["pose"]["orientation"]
            along = [  # the first column of the rotation: the direction of the arrow, which is along x
                1 - 2 * (q["y"] ** 2 + q["z"] ** 2),
                2 * (q["x"] * q["y"] + q["w"] * q["z"]),
                2 * (q["x"] * q["z"] - q["w"] * q["y"]),
            ]
            length = arrow["shaft_length"] + arrow["head_length"]
            np.testing.assert_allclose(np.array(along) * length, 0.005 * np.array(row["force"]), atol=1e-12)


def test_every_message_is_of_its_schema(has_images, whole, generated, tmp_path):
    from mcap.reader import make_reader

    export_mcap(generated, tmp_path / "scene.mcap", ExportOptions(), truth=load_ground_truth(DatasetReader(generated)))
    EXPORTER.export(has_images, tmp_path / "jpeg.mcap", ExportOptions(settings={"images": "jpeg"}))
    seen = set()
    for path in (whole, tmp_path / "scene.mcap", tmp_path / "jpeg.mcap"):
        with path.open("rb") as file:
            for schema, channel, message in make_reader(file).iter_messages():
                assert (schema.encoding, channel.message_encoding) == ("jsonschema", "json")
                check(json.loads(message.data), json.loads(schema.data), schema.name)
                seen.add(schema.name)
    assert {name for name in seen if name.startswith("foxglove.")} == {
        "foxglove.CompressedImage",
        "foxglove.CompressedVideo",
        "foxglove.FrameTransforms",
        "foxglove.JointStates",
        "foxglove.Log",
        "foxglove.SceneUpdate",
    }
    with whole.open("rb") as file:
        schemas = {schema.name: json.loads(schema.data) for schema in make_reader(file).get_summary().schemas.values()}
    fields = schemas["twinloop.dataset.observation.imu.tool"]["properties"]
    assert fields["accel_z"]["description"] == "accel.z, m/s²"


@pytest.mark.parametrize(("name", "images"), [("set", "video"), ("set", "jpeg"), ("one.mcap", "video")])
def test_frames_equal_the_source(has_images, tmp_path, name, images):
    options = ExportOptions(episodes=(2, 0, 1), settings={"images": images})
    done = EXPORTER.export(has_images, tmp_path / name, options)
    assert done.episodes == ((2, 0, 1) if name == "one.mcap" else (0, 1, 2))
    found = verify_export(FolderReader(has_images), EXPORTER.open_reader(done.output), done.episodes)
    assert found.accepted, found
    assert {"action", "observation.state", "observation.imu.tool", "next.success"} <= set(found.numbers)
    assert set(found.cameras) == {"observation.images.front", "observation.images.wrist"}
    assert found.images_equal is (images == "video"), "packets are copied, JPEG is coded again"


def test_video_is_in_annex_b_with_its_set_up_before_every_key_frame(has_images, whole):
    rows = messages(whole)["/camera/front"]
    data = [base64.b64decode(message["data"]) for _, _, message in rows]
    assert {message["format"] for _, _, message in rows} == {"h264"}
    assert all(part.startswith((b"\0\0\0\1", b"\0\0\1")) for part in data)
    kinds = [[unit[0] & 31 for unit in part.replace(b"\0\0\0\1", b"\0\0\1").split(b"\0\0\1")[1:]] for part in data]
    assert all(7 in units and 8 in units for units in kinds if 5 in units), "each IDR with SPS and PPS"
    starts = np.cumsum([0, *LENGTHS[:-1]])
    assert all(5 in kinds[start] for start in starts), "an episode begins with an IDR"
    last = decode_samples(data[starts[2] :], "h264")
    np.testing.assert_array_equal(np.stack(last), DatasetReader(has_images).images(2, "front"))


def test_the_scene_is_where_the_simulator_had_it(generated, tmp_path):
    reader = DatasetReader(generated)
    truth = load_ground_truth(reader)
    export_mcap(generated, tmp_path / "scene.mcap", ExportOptions(episodes=(0,)), truth=truth)
    found, bodies = messages(tmp_path / "scene.mcap"), truth.bodies(0)
    for frame, (_, _, message) in enumerate(found["/tf"]):
        for place, row in enumerate(message["transforms"]):
            assert (row["parent_frame_id"], row["child_frame_id"]) == ("world", bodies.names[place])
            assert list(row["translation"].values()) == bodies.position[frame, place].tolist()
            wxyz = [row["rotation"][axis] for axis in "wxyz"]
            assert wxyz == bodies.quaternion[frame, place].tolist()
    turn = reader.states(0)[:-1, 1]
    np.testing.assert_allclose(bodies.position[:, 1, :2], 0.3 * np.stack([np.cos(turn), np.sin(turn)], 1), atol=1e-12)
    (scene,) = [message for _, _, message in found["/scene"]]
    shapes = {entity["id"]: entity for entity in scene["entities"]}
    assert shapes["arm"]["cubes"][0]["size"] == {"x": 0.6, "y": 0.2, "z": 0.1}
    assert len(shapes["hand"]["triangles"][0]["indices"]) == 12
    pushed = [[joint["effort"] for joint in message["joints"]] for _, _, message in found["/joints/commanded"]]
    np.testing.assert_allclose(pushed, reader.commands(0), atol=1e-8)  # torques: rounded to float32 in the dataset
    samples = reader.side_rows("readings/feel", 0)
    rows = found["/signals/angular_velocity/feel"]
    assert [[m["x"], m["y"], m["z"]] for _, _, m in rows] == [row[:3] for row in samples["values"].to_pylist()]
    zero = reader.states(0)[0, 0]
    np.testing.assert_allclose([at for at, _, _ in rows], (samples["time"].to_numpy() - zero) * 1e9, atol=2)


def test_words_units_and_provenance_travel_along(has_images, tmp_path):
    from mcap.reader import make_reader

    truth = GroundTruth(events=lambda index: [StreamEvent(time=0.4, text="dropped", level="error")], notes=("said",))
    done = export_mcap(has_images, tmp_path / "a.mcap", ExportOptions(episodes=(1,)), truth=truth)
    assert done.notes == ("said",)
    words = [(message["level"], message["message"]) for _, _, message in messages(done.output)["/log"]]
    assert words == [
        (2, "task: put the cube into the zone"),
        (4, "dropped"),
        (2, "success after this frame's command"),
    ]
    with done.output.open("rb") as file:
        reader = make_reader(file)
        attached = {a.name: json.loads(a.data) for a in reader.iter_attachments()}
        (about,) = [record.metadata for record in reader.iter_metadata()]
    assert attached["unit_map.json"] == UNITS.to_json()
    assert attached["features.json"]["fps"] == 20
    assert about["episode_index"] == "1"
    assert about["name"] == DatasetReader(has_images).episode_ids[1]
    assert json.loads(about["provenance"])["params"] == dict(planted(1).provenance.params)


def test_the_same_bytes_come_again(has_images, tmp_path):
    for name in ("a", "b"):
        EXPORTER.export(has_images, tmp_path / name)
    assert sha256_tree(tmp_path / "a") == sha256_tree(tmp_path / "b")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [f"episode_00000{i}.mcap" for i in range(3)]


def test_a_recorded_log_keeps_its_own_digits_times_and_signals(tmp_path):
    done = EXPORTER.export(recorded_dataset(tmp_path / "set"), tmp_path / "log.mcap")
    found, log = messages(done.output), recorded_log()
    positions = [[joint["position"] for joint in message["joints"]] for _, _, message in found["/joints/measured"]]
    assert np.array_equal(np.array(positions), UNITS.to_si(log.state))
    wrench, rows = log.signals["wrench/tool"], found["/signals/wrench/tool"]
    assert [[message[column] for column in wrench.columns] for _, _, message in rows] == wrench.values.tolist()
    np.testing.assert_allclose([at for at, _, _ in rows], (wrench.time - log.time[0]) * 1e9, atol=2)
    assert found["/joints/measured"][-1][0] == pytest.approx((log.time[-1] - log.time[0]) * 1e9, abs=2)


def test_a_sensor_that_began_before_the_frames_opens_the_file(tmp_path):
    log = recorded_log()
    wrench = replace(log.signals["wrench/tool"], time=log.signals["wrench/tool"].time - 5.0)
    write_log_dataset([replace(log, signals={"wrench/tool": wrench})] * 2, tmp_path / "set")
    done = EXPORTER.export(tmp_path / "set", tmp_path / "log.mcap")
    found = messages(done.output)
    assert found["/signals/wrench/tool"][0][0] == 0
    assert found["/joints/measured"][0][0] == pytest.approx((log.time[0] - wrench.time[0]) * 1e9, abs=2)
    compared = verify_export(FolderReader(tmp_path / "set"), EXPORTER.open_reader(done.output), done.episodes)
    assert compared.accepted, compared


def test_without_known_units_there_are_only_the_datasets_numbers(tmp_path):
    units = unit_map_from_ranges(JOINTS, [[-1, 1]] * 3, ["deg"] * 3, source="x").to_json()
    for joint in units["joints"]:
        joint["scale"] = None
    folder = write_log_dataset([recorded_log(type(UNITS).from_json(units))], tmp_path / "set")
    done = EXPORTER.export(folder, tmp_path / "log.mcap")
    assert done.notes == ("joint units unknown: no joint states in rad, only the dataset's numbers",)
    assert "/joints/measured" not in messages(done.output)
    assert len(messages(done.output)["/dataset/observation.state"]) == 9


def test_what_is_not_finite_is_null_and_names_are_fields(has_images):
    assert field_names(["a.b", "x y", "1", "timestamp"]) == ["a_b", "x_y", "column_1", "column_timestamp"]
    assert field_names(["a.b", "a_b"]) == ["a_b_0", "a_b_1"]
    from twinloop.dataset.export.mcap_messages import encode_message, make_numbers_message

    assert encode_message(make_numbers_message(1_500_000_000, ["a", "b"], [np.nan, 0.1])) == (
        b'{"timestamp":{"sec":1,"nsec":500000000},"a":null,"b":0.1}'
    )


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (ExportOptions(episodes=(0, 7)), InputError, r"has no episode 7; it has 0 to 2"),
        (ExportOptions(settings={"cameras": "top"}), UnknownNameError, r"Unknown camera 'top'.*front"),
        (ExportOptions(settings={"images": "gif"}), UnknownNameError, r"Unknown image format 'gif'"),
    ],
)
@pytest.mark.parametrize("name", ["a.mcap", "folder"])
def test_what_cannot_be_exported_says_why_and_leaves_nothing(has_images, tmp_path, options, error, message, name):
    with pytest.raises(error, match=message):
        EXPORTER.export(has_images, tmp_path / name, options)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_over(has_images, whole, generated, tmp_path):
    before = whole.read_bytes()
    with pytest.raises(InputError, match=r"all.mcap exists. Nothing is written over"):
        EXPORTER.export(has_images, whole)
    assert whole.read_bytes() == before
    with pytest.raises(InputError, match=r"has no cameras, so front cannot be exported"):
        EXPORTER.export(generated, tmp_path / "a.mcap", ExportOptions(settings={"cameras": "front"}))


def test_without_mcap_the_command_is_named(has_images, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mcap.writer", None)
    with pytest.raises(MissingDependencyError, match=r"package mcap.*pip install 'twinloop\[mcap\]'"):
        EXPORTER.export(has_images, tmp_path / "a.mcap")


def test_labels_of_the_workspace_are_words_of_the_log(has_images, tmp_path):
    from rich.console import Console

    from twinloop.catalog import Workspace
    from twinloop.catalog.label_checks import Label
    from twinloop.catalog.labels import write_labels
    from twinloop.workflows.data.export import run_export
    from twinloop.workflows.data.requests import ExportRequest

    copy = shutil.copytree(has_images, tmp_path / "work" / "data" / "set")
    workspace = Workspace.create(tmp_path / "work", name="test")
    workspace.add(copy)
    said = {"episode_id": DatasetReader(copy).episode_ids[1], "source": "hand", "author": "anna"}
    labels = [
        Label(kind="tag", value="wobbly", **said),
        Label(kind="subtask", value="reach", first_frame=2, last_frame=5, **said),
    ]
    write_labels(workspace, labels)
    workspace.close()
    request = ExportRequest(format="mcap", dataset=copy, output=tmp_path / "a.mcap", episodes="1", verify=True)
    metrics, _ = run_export(request, Console(quiet=True))
    assert metrics["verification"]["accepted"]
    assert (metrics["episodes"], metrics["frames"]) == (1, LENGTHS[1])
    rows = messages(tmp_path / "a.mcap")["/log"]
    words = {message["message"]: at for at, _, message in rows}
    assert {"tag: wobbly (hand anna)", "subtask: reach (hand anna, frames 2 to 5)"} <= set(words)
    true = times(1)
    assert words["subtask: reach (hand anna, frames 2 to 5)"] == pytest.approx((true[2] - true[0]) * 1e9, abs=2)
