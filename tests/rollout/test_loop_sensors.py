"""The sheet of a sensor's output at a moment with motion, and the list of devices."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from twinloop.cli.main import main
from twinloop.render import probe_renderer
from twinloop.render.cameras import intrinsics
from twinloop.rollout.camera_captures import ImageMotion
from twinloop.twin import load_twin
from twinloop.twin.devices import device_presets
from twinloop.workflows.twin.sensors import MovingTwin

needs_gl = pytest.mark.skipif(not probe_renderer("gl").available, reason="renderer gl is not available")


def run(capsys, *words):
    code = main([str(word) for word in words])
    said = capsys.readouterr()
    return code, json.loads(said.out.splitlines()[-1]), said.err


def read(path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


@pytest.fixture(scope="module")
def moving():
    return MovingTwin(load_twin("so101_tabletop"))


def test_the_moment_is_one_in_which_much_moves(moving):
    time = moving.find_motion_time("wrist", height=48, width=64)
    motion = ImageMotion(moving.twin.model, "wrist")
    pinhole = intrinsics(moving.twin.model, "wrist", height=48, width=64)
    states = moving.world.poses(time + np.array([-1 / 30, 0.0]))
    assert motion.measure_motion(states, {}, pinhole) > 1.0
    assert moving.world.time[0] == 0.0
    assert time > 0.5


def test_a_twin_without_a_robot_falls():
    moving = MovingTwin(load_twin("cube_toss"))
    assert len(np.unique(moving.states.qpos[:30, 2])) > 5


@needs_gl
@pytest.mark.parametrize(
    ("words", "stages"),
    [
        (["--camera", "wrist"], ["clean", "lens", "shutter", "noise", "mjpeg", "delivered to the robot"]),
        (["--sensor", "front", "--device", "imx477"], ["clean", "noise", "tone", "delivered to the robot"]),
        (["--device", "ideal"], ["clean", "tone", "delivered to the robot"]),
    ],
)
def test_a_sheet_shows_each_stage(capsys, tmp_path, words, stages):
    path = tmp_path / "sheet.png"
    size = ["--size", "64x48", "--output", path, "--json"]
    code, metrics, said = run(capsys, "sensors", "show", "so101_tabletop", *words, *size)
    assert code == 0
    assert "after home: clean, lens" in said.replace("\n", " ")
    for stage in stages:
        assert any(label.startswith(stage) for label in metrics["stages"]), stage
    sheet = read(path)
    assert sheet.shape[1] == 4 * (64 + 6) + 6
    cells = [sheet[6:54, 6 + 70 * k : 70 + 70 * k].astype(float) for k in range(2)]
    assert all(cell.std() > 10.0 for cell in cells)


@needs_gl
def test_a_depth_camera_is_shown_beside_the_true_depth(capsys, tmp_path):
    words = ["--sensor", "front_depth", "--size", "64x48", "--output", tmp_path / "depth.png", "--json"]
    _, metrics, _ = run(capsys, "sensors", "show", "panda_tabletop", *words)
    assert [label.split(",")[0] for label in metrics["stages"]] == ["clean", "true depth", "d435", "error"]
    assert read(tmp_path / "depth.png").shape[1] == 4 * (64 + 6) + 6


def test_every_device_is_listed_with_its_sources(capsys):
    _, metrics, said = run(capsys, "sensors", "list", "--json")
    assert {row["name"] for row in metrics["devices"]} == set(device_presets())
    assert {row["kind"] for row in metrics["devices"]} == {"camera", "depth", "lidar", "imu", "force_torque", "servo"}
    assert "uvc_webcam" in said
    webcam = next(row for row in metrics["devices"] if row["name"] == "uvc_webcam")
    assert webcam["values"]["readout"] == 0.03
    assert webcam["sources"].keys() == webcam["values"].keys()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["so101_tabletop", "--camera", "frnt"],
            "Unknown camera 'frnt' in twin so101_tabletop. Nearest existing: front",
        ),
        (["so101_tabletop", "--device", "uvc_webcm"], "Unknown device 'uvc_webcm'"),
        (["so101_tabletop", "--device", "mid360"], "Only cameras and depth cameras"),
        (["so101_tabletop", "--sensor", "eye"], "Unknown sensor 'eye' in twin so101_tabletop"),
        (["so101_tabletop", "--size", "0x48"], "'0x48' is not an image size"),
        (["cube_toss"], "has no sensor at the camera side. Name a device: --device uvc_webcam"),
    ],
)
def test_wrong_words_are_told(capsys, words, message):
    assert main(["sensors", "show", *words]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
