"""The study of policies from images, with tiny networks: every kind of policy, look and family of robots once."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from twinloop.core.errors import CheckFailedError, InputError
from twinloop.core.files import write_json

pytest.importorskip("torch")

from benchmarks.transfer import parts, pixel_settings, pixels, realism, run_pixels, strip
from benchmarks.transfer.looks import ImageLook, take_images
from benchmarks.transfer.pixel_settings import LOOKS, Look, PixelSettings
from twinloop.hardware import make_hidden_cell

TINY = {"images": {"channels": [8, 8], "halvings": 1, "per_camera": True}, "width": 16, "depth": 1}
SIZE = {"height": 24, "width": 32}


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(
        pixels, "CONTROL", {"worlds": 4, "rounds": 1, "final_steps": 4, "settings": {"width": 8, "depth": 1}}
    )
    seen = {"cameras": pixel_settings.CAMERAS, **SIZE}
    monkeypatch.setattr(pixels, "LOCALIZER", {**seen, "worlds": 10, "frames": 2, "steps": 4, "settings": TINY})
    monkeypatch.setattr(pixels, "END", {"worlds": 2, "rounds": 2, "steps": 2, "final_steps": 2, "batch": 4})


@pytest.mark.slow
def test_every_policy_is_trained_and_tried_once(tiny, tmp_path):
    settings = PixelSettings(first=0, robots=1, seeds=1, episodes=2, policies=("split", "adapted", "end", "nominal"))
    made = run_pixels.run_bench_pixels(Console(quiet=True), settings, tmp_path, workers=1)
    assert list(made["policies"]) == ["split", "adapted", "end", "nominal"]
    for row in made["policies"].values():
        assert 0 <= row["mean"] <= 1
        assert row["minutes"] > 0
    assert (tmp_path / "adapted" / "hidden-training" / "robot0-seed0" / "report.json").is_file()


def test_a_look_changes_rooms_device_and_the_pose_of_the_camera_and_nothing_of_the_motion():
    look = LOOKS["traced"]
    cell = make_hidden_cell(pixels._with_devices(look), 0)
    plain = cell.table(cell.plan(1).draw(range(3)))
    dressed = pixels.dress(plain, look, 0, range(3))
    changed = {name for name, one, other in zip(plain.names, plain.values.T, dressed.values.T, strict=True)
               if not np.array_equal(one, other)}  # fmt: skip
    poses = {f"camera/front/{part}/{axis}" for part in ("position", "rotation") for axis in "xyz"}
    assert changed == {"place/room", "sensor/front/noise_scale", "sensor/wrist/noise_scale", *poses}
    assert (dressed["place/room"] >= 100_001).all()
    moved = [dressed[f"camera/front/position/{axis}"] - plain[f"camera/front/position/{axis}"] for axis in "xyz"]
    assert 0 < np.linalg.norm(np.array(moved)[:, 0]) <= 0.02
    assert cell.twin.spec.sensors["front"].device == "d435_color"
    training = pixels.dress(plain, LOOKS["training"], 0, range(3))
    assert (training["place/room"] <= 1000).all()
    assert np.array_equal(training["camera/front/position/x"], plain["camera/front/position/x"])


def test_the_nominal_look_varies_the_robot_and_not_its_appearance():
    varied, _ = pixels.open_worlds(False, 3)
    nominal, _ = pixels.open_worlds(True, 3)
    wide, narrow = varied.draw(range(20)), nominal.draw(range(20))
    assert np.ptp(wide["place/room"]) > 0
    assert np.ptp(wide["camera/front/position/x"]) > 0
    for name in ("place/room", "camera/front/position/x", "sensor/front/exposure_time", "light/key/intensity"):
        assert name not in narrow.names or np.ptp(narrow[name]) == 0
    assert np.ptp(narrow["actuator/shoulder_pan/kp"]) > 0
    assert np.ptp(narrow["sensor/front/noise_scale"]) > 0


@pytest.mark.parametrize(
    ("given", "message"),
    [({"look": "oil"}, "--look oil: there are"), ({"policies": ("magic",)}, "--policies magic: there are"),
     ({"family": "drake", "policies": ("adapted",)}, "not recorded")],
)  # fmt: skip
def test_wrong_settings_are_named(given, message):
    with pytest.raises(InputError, match=message):
        PixelSettings(**given)


@pytest.mark.slow
def test_a_film_strip_shows_the_first_success(monkeypatch):
    tried = []

    def run(policy, robot, numbers, look):
        tried.append(numbers[0])
        cell = make_hidden_cell(pixels._twin(), robot)
        task = pixels.open_task(pixels.TASK, cell.twin)
        if len(tried) == 1:
            task.nstep = 3  # too short to succeed
        params = pixels.dress(cell.table(cell.plan(1).draw(numbers)), look, robot, numbers)
        actor = pixels.ExpertActor(task=task)
        return cell.twin, pixels.run_batch(cell.twin, task, params, run_seed=1, episodes=numbers, actor=actor)

    monkeypatch.setattr(strip, "run_on_hidden", run)
    monkeypatch.setattr(strip, "open_policy", lambda path: None)
    monkeypatch.setattr(strip, "_LOOK", Look(label="plain"))
    monkeypatch.setattr(strip, "_SIZE", (48, 64))
    sheet = strip.make_strip("policy", 0)
    assert tried == [0, 1]
    assert sheet.shape[0] > 2 * 48
    assert sheet.shape[1] >= strip._SHOWN * 64
    monkeypatch.setattr(strip, "_TRIALS", 0)
    with pytest.raises(CheckFailedError, match="None of 0 trials"):
        strip.make_strip("policy", 0)


@pytest.mark.slow
def test_images_of_looks_differ():
    plain, rooms = (
        take_images(ImageLook(label="", rooms=rooms), seed=1, episodes=2, steps=[0, 5]) for rooms in (None, (1, 1000))
    )
    assert plain.shape == rooms.shape == (2, 2, 240, 320, 3)
    assert np.abs(plain.astype(int) - rooms).mean() > 10


@pytest.mark.slow
def test_realism_tells_the_plain_twin_from_other_rooms(monkeypatch):
    monkeypatch.setattr(realism, "LOOKS", (ImageLook(label="plain", rooms=None), ImageLook(label="rooms")))
    real = realism.summarize(ImageLook(label="other rooms"), 2, 12)
    table = realism.realism_table(real, "other rooms", episodes=12)
    auc = {row[0]: float(row[1].split()[0]) for row in table.rows}
    assert auc["plain"] > 0.8
    assert auc["rooms"] < auc["plain"] - 0.1


@pytest.mark.parametrize("resumable", [True, False])
def test_an_interrupted_training_is_continued_and_its_time_counts(tmp_path, monkeypatch, resumable):
    monkeypatch.setattr(parts, "_STORED_S", 0.02)
    part = SimpleNamespace(path=tmp_path / "part", done=False, resumable=resumable)

    def interrupted():
        (part.path / "kept").touch()
        while not (part.path / "spent.json").is_file():
            time.sleep(0.005)
        raise KeyboardInterrupt

    part.build = interrupted
    with pytest.raises(KeyboardInterrupt):
        parts.make(part)
    write_json(part.path / "spent.json", {"wall_s": 100.0, "processor_s": 50.0})
    found = list[bool]()
    part.build = lambda: found.append((part.path / "kept").exists())
    took = parts.make(part)
    assert found == [resumable]
    assert (took["wall_s"] > 100.0, took["processor_s"] > 50.0) == (resumable, resumable)
    part.done = True
    assert parts.make(part) == took
