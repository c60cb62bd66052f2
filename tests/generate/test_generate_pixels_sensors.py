"""The second pass through sensors: images per camera, side tables, the same bytes from every process."""

from __future__ import annotations

import io
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from twinloop.core.documents import read_json
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.files import sha256_tree
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.lerobot.validation import validate
from twinloop.generate import RenderConfig, generate_states, render_dataset, resolve_config
from twinloop.render import probe_renderer

pytestmark = pytest.mark.skipif(not probe_renderer("gl").available, reason="renderer gl is not available")
ROOT = Path(__file__).parents[2]
TWIN = """
schema: 1
name: turntable
model: turntable.xml
control_hz: 20
substeps: 4
robot: {type: turntable, joints: [turn, nod], units: [rad, rad], control: torque}
cameras: [front, above]
sensors:
  eye: {device: uvc_wide, camera: front}
  depth: {device: d435, camera: above, settings: {width: 64, height: 48}}
  scan: {device: rplidar_a1, site: mast}
params:
  - {name: "sensor/eye/latency", low: 0, high: 1, nominal: 0.1, range: [0.05, 0.15], source: test}
"""
MODEL = """
<mujoco>
  <option gravity="0 0 0"/>
  <worldbody>
    <light name="lamp" pos="0 0 3" diffuse="0.7 0.7 0.7"/>
    <geom name="floor" type="plane" size="3 3 1" pos="0 0 -0.4" rgba="0.4 0.5 0.4 1"/>
    <camera name="front" pos="0 -1 0.3" xyaxes="1 0 0 0 0.3 1"/><camera name="above" pos="0 0 2"/>
    <site name="mast" pos="0 -0.8 0"/>
    <body name="arm"><joint name="turn" axis="0 0 1" damping="0.01"/>
      <geom name="arm" type="box" size="0.3 0.1 0.05" rgba="0.9 0.3 0.1 1"/>
    <body name="hand" pos="0.3 0 0"><joint name="nod" axis="0 1 0" damping="0.01"/>
      <geom name="hand" type="box" size="0.1 0.1 0.05" rgba="0.1 0.3 0.9 1"/></body></body>
  </worldbody>
  <actuator><motor name="turn" joint="turn"/><motor name="nod" joint="nod"/></actuator>
</mujoco>
"""
SIZE = {"renderer": "gl", "height": 48, "width": 64, "episodes": 2}


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sensed")
    (folder / "turntable.yaml").write_text(TWIN)
    (folder / "turntable.xml").write_text(MODEL)
    shutil.copy(ROOT / "benchmarks" / "speed" / "swing.py", folder)
    value = {
        "scene": {"twin": "turntable.yaml", "task": "swing.py:Swing"},
        "randomization": "default",
        "rollout": {"parallel_envs": 3},
    }
    generate_states(resolve_config(value, where="test", folder=folder, keep="all"), folder / "states")
    return folder / "states"


@pytest.fixture(scope="module")
def device(states, tmp_path_factory):
    """All outputs of the twin's sensors, together with the true values."""
    folder = tmp_path_factory.mktemp("device") / "images"
    settings = RenderConfig(**SIZE, sensors="device", annotations=["instance", "boxes", "contacts"])
    return folder, settings, render_dataset(states, folder, settings)


def test_the_twins_sensors_are_who_sees(device):
    folder, _, metrics = device
    reader = DatasetReader(folder)
    assert metrics["sensors"] == {"front": "eye"}
    assert reader.images(0, "front").shape == (20, 48, 64, 3)
    assert all(verdict.accepted for verdict in validate(folder))
    front, above = (reader.provenance(0).extra["pictures"][camera] for camera in ("front", "above"))
    assert (front["device"], front["sensor"], front["lens"]) == ("uvc_wide", "eye", "pinhole")
    assert front["distortion"][0] < -0.2
    assert front["intrinsics"]["width"] == 64
    assert "device" not in above


def test_images_are_as_old_as_the_episode_drew(states, device, tmp_path):
    """A delayed image resembles the clean image at its capture time more than the one at its own timestamp."""
    settings = RenderConfig(**SIZE, cameras=["front"], sensors={"front": "ideal"})
    render_dataset(states, tmp_path / "clean", settings)
    clean, late = (DatasetReader(folder) for folder in (tmp_path / "clean", device[0]))
    for episode in range(2):
        latency = late.provenance(episode).params["sensor/eye/latency"]
        assert 0.05 < latency < 0.15
        shown, truth = (reader.images(episode, "front").astype(float)[:, 8:40, 8:56, 2] for reader in (late, clean))
        shown, truth = (x - x.mean(axis=(1, 2), keepdims=True) for x in (shown, truth))
        alike = [np.mean([np.sum(shown[t] * truth[t - k]) for t in range(10, 20)]) for k in range(6)]
        assert abs(int(np.argmax(alike)) - latency * 20) <= 1.5


def test_an_ideal_device_changes_nothing(states, tmp_path):
    for name, sensors in (("clean", "clean"), ("ideal", "ideal")):
        render_dataset(states, tmp_path / name, RenderConfig(**SIZE, sensors=sensors))
    for camera in ("front", "above"):
        clean, ideal = (DatasetReader(tmp_path / name).images(1, camera) for name in ("clean", "ideal"))
        np.testing.assert_array_equal(clean, ideal)


@pytest.mark.slow
def test_two_processes_make_the_same_bytes(states, device, tmp_path):
    folder, settings, _ = device
    render_dataset(states, tmp_path / "images", settings, workers=2)
    assert sha256_tree(tmp_path / "images") == sha256_tree(folder)


def test_readings_and_truth_lie_beside_the_images(device):
    folder, _, metrics = device
    assert metrics["tables"] == [
        "annotations/cameras",
        "annotations/contacts",
        "annotations/forces",
        "annotations/frames",
        "annotations/objects",
        "sensors/depth",
        "sensors/scan",
    ]
    reader = DatasetReader(folder)
    cameras = reader.side_table("annotations/cameras").to_table().to_pylist()
    counts = Counter((row["episode_index"], row["camera"]) for row in cameras)
    assert counts == {(episode, camera): 20 for episode in (0, 1) for camera in ("front", "above")}
    depth = reader.side_table("sensors/depth").to_table().to_pylist()
    assert len(depth) == 40
    metres = np.asarray(Image.open(io.BytesIO(depth[5]["depth"]))) * depth[5]["unit"]
    assert metres.shape == (48, 64)
    assert np.median(metres[metres > 0]) == pytest.approx(2.4, abs=0.1), "the floor below the camera"
    scan = reader.side_table("sensors/scan").to_table()
    assert np.ptp(np.clip(scan["range"].to_numpy(), 0.1, 12.0) - scan["range"].to_numpy()) == 0.0
    assert set(scan["episode_index"].to_pylist()) == {0, 1}
    assert set(read_json(folder / "twinloop" / "annotations.json")["tables"]) >= {"annotations/objects"}


def test_the_truth_of_a_late_image_is_that_of_when_it_was_taken(states, device, tmp_path):
    """Boxes of the moving hand follow the image, not the clock on the wall."""
    settings = RenderConfig(**SIZE, cameras=["front"], annotations=["boxes"])
    render_dataset(states, tmp_path / "now", settings)

    def columns(folder):
        table = DatasetReader(folder).side_table("annotations/objects").to_table().to_pylist()
        wanted = {"name": "hand", "camera": "front", "episode_index": 0}
        rows = [row for row in table if wanted.items() <= row.items()]
        return np.array([row["world_position"][0] for row in sorted(rows, key=lambda row: row["frame_index"])])

    now, late = columns(tmp_path / "now"), columns(device[0])
    latency = DatasetReader(device[0]).provenance(0).params["sensor/eye/latency"]
    steps = np.arange(20.0)
    errors = [np.abs(late[8:] - np.interp(steps[8:] - 20.0 * lag, steps, now)).max() for lag in (latency, 0.0)]
    assert errors[0] < 0.6 * errors[1] or errors[1] < 1e-3


@pytest.mark.parametrize(
    ("sensors", "kind", "said"),
    [
        ({"frnt": "device"}, UnknownNameError, "Unknown camera 'frnt'.*Nearest existing: front"),
        ({"above": "device"}, InputError, "has no camera sensor for above"),
        ({"front": "d435"}, InputError, "d435 is of the kind depth, not camera"),
        ("uvc_webcm", UnknownNameError, "Unknown device 'uvc_webcm'.*Nearest existing: uvc_webcam"),
    ],
)
def test_wrong_sensors_are_told_before_anything_is_rendered(states, tmp_path, sensors, kind, said):
    with pytest.raises(kind, match=said):
        render_dataset(states, tmp_path / "x", RenderConfig(**SIZE, sensors=sensors))
    assert not (tmp_path / "x").exists()


def test_wrong_annotations_are_told_before_anything_is_rendered(states, tmp_path):
    with pytest.raises(UnknownNameError, match="Unknown annotation 'box'. Nearest existing: boxes"):
        render_dataset(states, tmp_path / "x", RenderConfig(**SIZE, annotations=["box"]))
    fragile = f"{ROOT / 'tests/support/fragile.py'}:Fragile"
    with pytest.raises(UnknownNameError, match="Unknown channel 'depth' in the renderer"):
        render_dataset(states, tmp_path / "x", RenderConfig(**{**SIZE, "renderer": fragile}, annotations=["normals"]))
    assert not (tmp_path / "x").exists()
