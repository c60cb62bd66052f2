"""Rerun recordings: every number and image read back from the file, on the episode's own times."""

from __future__ import annotations

import json

import numpy as np
import pytest

from support.exports import JOINTS, LENGTHS, UNITS, generated_dataset, image_dataset, planted, recorded_dataset, times
from twinloop.core.errors import InputError, MissingDependencyError, UnknownNameError
from twinloop.dataset.export.protocol import ExportOptions
from twinloop.dataset.export.rerun import EXPORTER, export_rerun
from twinloop.dataset.export.streams import GroundTruth, StreamEvent
from twinloop.dataset.export.verification import FolderReader, verify_export
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.workflows.data.export import load_ground_truth

pytest.importorskip("rerun.chunk")


@pytest.fixture(scope="module")
def has_images(tmp_path_factory):
    return image_dataset(tmp_path_factory.mktemp("pictured") / "set")


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    return generated_dataset(tmp_path_factory.mktemp("generated"))


def contents(path):
    """Chunks by entity: columns by name, of static chunks and of others."""
    from rerun.chunk import RrdReader

    found = {}
    for chunk in RrdReader(str(path)).stream():
        batch = chunk.to_record_batch()
        entry = found.setdefault(str(chunk.entity_path), {})
        for name in batch.schema.names:
            column = batch[name]
            entry[name] = column.to_numpy(zero_copy_only=False) if name in ("time", "frame") else column.to_pylist()
    return found


def seconds(column):
    return column.astype("timedelta64[ns]").astype(np.int64) / 1e9


def test_a_recording_holds_every_number_at_its_true_time(has_images, tmp_path):
    truth = GroundTruth(
        events=lambda index: [StreamEvent(time=0.5, text=f"label of {index}", level="warning")], notes=("said",)
    )
    done = export_rerun(has_images, tmp_path / "out", ExportOptions(episodes=(2, 0)), truth=truth)
    assert (done.episodes, done.notes) == ((0, 2), ("said",))
    assert sorted(path.name for path in done.output.iterdir()) == ["episode_000000.rrd", "episode_000002.rrd"]
    for number in (0, 2):
        found, episode = contents(done.output / f"episode_{number:06d}.rrd"), planted(number)
        for side, values in (("commanded", episode.action), ("measured", episode.observation)):
            radians = UNITS.to_si(values.astype(np.float32))
            for column, joint in enumerate(JOINTS):
                entity = found[f"/joints/{joint}/{side}"]
                assert [cell[0] for cell in entity["Scalars:scalars"]] == radians[:, column].tolist()
                assert entity["SeriesLines:names"] == [[f"{joint} {side} (rad)"]]
                assert entity["frame"].tolist() == list(range(LENGTHS[number]))
                np.testing.assert_allclose(seconds(entity["time"]), times(number)[:-1], atol=1e-9)
        words = found["/log"]
        assert [cell[0] for cell in words["TextLog:text"]] == [
            "task: put the cube into the zone",
            f"label of {number}",
            "success after this frame's command",
        ]
        assert [cell[0] for cell in words["TextLog:level"]] == ["INFO", "WARN", "INFO"]
        arrows = found["/world/contacts"]
        forces = [np.array(cell or []).reshape(-1, 3) for cell in arrows["Arrows3D:vectors"]]
        assert [len(force) for force in forces] == [int(frame % 3 == 0) for frame in range(LENGTHS[number])]
        np.testing.assert_allclose(forces[3][0] / 0.005, [0.0, 1.5, 4.0], rtol=1e-6)
        assert "planted_twin tttttttttttt" in found["/about"]["TextDocument:text"][0][0]
        assert "| object/cube/mass |" in found["/about"]["TextDocument:text"][0][0]
        assert "dtype" in json.loads(found["/features"]["TextDocument:text"][0][0])["features"]["action"]


@pytest.mark.parametrize("images", ["video", "jpeg"])
def test_frames_equal_the_source(has_images, tmp_path, images):
    settings = {"images": images}
    done = EXPORTER.export(has_images, tmp_path / "out", ExportOptions(episodes=(1, 2), settings=settings))
    found = verify_export(FolderReader(has_images), EXPORTER.open_reader(done.output), [1, 2])
    assert found.accepted, found
    assert {"action", "observation.state", "observation.imu.tool", "next.success"} <= set(found.numbers)
    assert set(found.cameras) == {"observation.images.front", "observation.images.wrist"}
    assert found.images_equal is (images == "video"), "packets are copied, JPEG is coded again"


def test_the_scene_is_where_the_simulator_had_it(generated, tmp_path):
    reader = DatasetReader(generated)
    truth = load_ground_truth(reader)
    export_rerun(generated, tmp_path / "one.rrd", ExportOptions(episodes=(1,)), truth=truth)
    found, bodies = contents(tmp_path / "one.rrd"), truth.bodies(1)
    assert bodies.names == ("arm", "hand")
    states = reader.states(1)[:-1]
    # By hand: the arm turns about z at the origin, and carries the hand 0.3 m out.
    turn, hand = states[:, 1], found["/world/hand"]
    expected = np.stack([0.3 * np.cos(turn), 0.3 * np.sin(turn), 0 * turn], axis=1)
    placed = np.array([cell[0] for cell in hand["Transform3D:translation"]])
    np.testing.assert_allclose(placed, expected, atol=1e-6)
    half = np.array([cell[0] for cell in found["/world/arm"]["Transform3D:quaternion"]])
    signs = np.sign(half[:, 3:]) * np.sign(np.cos(turn / 2))[:, None]
    np.testing.assert_allclose(signs * half[:, 2:], np.stack([np.sin(turn / 2), np.cos(turn / 2)], axis=1), atol=1e-6)
    np.testing.assert_allclose(found["/world/arm/shape_0"]["Boxes3D:half_sizes"][0], [[0.3, 0.1, 0.05]], rtol=1e-6)
    mesh = found["/world/hand/shape_1"]
    assert (len(mesh["Mesh3D:vertex_positions"][0]), len(mesh["Mesh3D:triangle_indices"][0])) == (4, 4)
    assert found["/joints/turn/commanded"]["SeriesLines:names"] == [["turn commanded (N·m)"]]
    samples = reader.side_rows("readings/feel", 1)
    gyro = found["/signals/angular_velocity\\/feel"]
    assert gyro["Scalars:scalars"] == [row[:3] for row in samples["values"].to_pylist()]
    assert gyro["SeriesLines:names"] == [["x (rad/s)", "y (rad/s)", "z (rad/s)"]]
    np.testing.assert_allclose(seconds(gyro["time"]), samples["time"].to_numpy(), atol=1e-9)


def test_a_recorded_log_keeps_its_own_digits_and_signals(tmp_path):
    done = EXPORTER.export(recorded_dataset(tmp_path / "set"), tmp_path / "log.rrd")
    found = contents(done.output)
    from support.exports import recorded_log

    log = recorded_log()
    measured = [[c[0] for c in found[f"/joints/{joint}/measured"]["Scalars:scalars"]] for joint in JOINTS]
    assert np.array_equal(np.array(measured).T, UNITS.to_si(log.state))
    wrench = found["/signals/wrench\\/tool"]
    assert wrench["Scalars:scalars"] == log.signals["wrench/tool"].values.tolist()
    assert wrench["SeriesLines:names"][0][2] == "fz (N)"
    assert "frame" not in wrench


@pytest.mark.parametrize(
    ("output", "options", "error", "message"),
    [
        ("a.rrd", ExportOptions(), InputError, r"a.rrd is one recording, but 3 episodes.*--episodes 0, or a folder"),
        ("a", ExportOptions(episodes=(3,)), InputError, r"has no episode 3; it has 0 to 2"),
        ("a", ExportOptions(settings={"cameras": "top"}), UnknownNameError, r"Unknown camera 'top'"),
        ("a", ExportOptions(settings={"images": "gif"}), UnknownNameError, r"Unknown image format 'gif'"),
    ],
)
def test_what_cannot_be_exported_says_why_and_leaves_nothing(has_images, tmp_path, output, options, error, message):
    with pytest.raises(error, match=message):
        EXPORTER.export(has_images, tmp_path / output, options)
    assert list(tmp_path.iterdir()) == []


def test_without_rerun_the_command_is_named(has_images, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(MissingDependencyError, match=r"rerun-sdk.*pip install 'twinloop\[rerun\]'"):
        EXPORTER.export(has_images, tmp_path / "out")
