"""Repeated rendering: selection of episodes, image sizes, copied data, refusals, and messages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from twinloop.cli.main import main
from twinloop.core.errors import DatasetError, InputError, MissingDependencyError, UnknownNameError
from twinloop.core.files import sha256_file, sha256_tree
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.lerobot.validation import validate
from twinloop.dataset.logs.conversion import write_log_dataset
from twinloop.generate import RenderConfig, generate_states, render_dataset, resolve_config
from twinloop.generate.coverage import dataset_coverage, rendered_documents
from twinloop.generate.render_settings import parse_image_size, select_episodes
from twinloop.hardware import virtual_log

ROOT = Path(__file__).parents[2]
FRAGILE = f"{ROOT / 'tests/support/fragile.py'}:Fragile"
TWIN = """
schema: 1
name: turntable
model: turntable.xml
control_hz: 20
substeps: 2
robot: {type: turntable, joints: [turn, nod], units: [rad, rad], control: torque}
cameras: [front, above]
params:
  - {name: "light/lamp/intensity", low: 0, high: 5, source: test}
"""
MODEL = """
<mujoco>
  <worldbody>
    <light name="lamp" pos="0 0 3" diffuse="0.5 0.5 0.5"/>
    <camera name="front" pos="0 -1 0.3" xyaxes="1 0 0 0 0.3 1"/><camera name="above" pos="0 0 2"/>
    <body><joint name="turn" axis="0 0 1" damping="0.1"/><geom type="box" size="0.3 0.1 0.05"/>
    <body><joint name="nod" axis="0 1 0" damping="0.1"/><geom type="box" size="0.1 0.1 0.05"/></body></body>
  </worldbody>
  <actuator><motor name="turn" joint="turn"/><motor name="nod" joint="nod"/></actuator>
</mujoco>
"""


def config(folder: Path, **more):
    value = {"scene": {"twin": "turntable.yaml", "task": "swing.py:Swing"}, "rollout": {"parallel_envs": 12}, **more}
    return resolve_config(value, where="test", folder=folder, keep="all")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a twin of two cameras and a lamp, and a task of twenty steps."""
    folder = tmp_path_factory.mktemp("again")
    (folder / "turntable.yaml").write_text(TWIN)
    (folder / "turntable.xml").write_text(MODEL)
    shutil.copy(ROOT / "benchmarks" / "speed" / "swing.py", folder)
    return folder


@pytest.fixture(scope="module")
def states(place):
    generate_states(config(place), place / "states")
    return place / "states"


@pytest.fixture(scope="module")
def images(states, place):
    """Both cameras, in two sizes."""
    settings = RenderConfig(renderer=FRAGILE, height=16, width=24, sizes={"above": "32x20"})
    render_dataset(states, place / "images", settings)
    return place / "images"


def again(**more) -> RenderConfig:
    return RenderConfig(**{"renderer": FRAGILE, "height": 16, "width": 24, **more})


def test_cameras_have_sizes_of_their_own(images):
    reader = DatasetReader(images)
    assert reader.images(3, "front").shape == (20, 16, 24, 3)
    assert reader.images(3, "above").shape == (20, 20, 32, 3)
    assert all(verdict.accepted for verdict in validate(images))
    origins = reader.provenance(3).extra["pictures"]
    assert origins["above"]["width"] == 32
    assert origins["above"]["renderer"].startswith(f"{FRAGILE} (mujoco ")
    assert origins["above"]["parent"] == reader.provenance(3).parents[0]


@pytest.mark.slow
def test_a_camera_that_is_not_rendered_again_keeps_its_bytes(images, tmp_path):
    metrics = render_dataset(images, tmp_path / "new", again(cameras=["front"], height=32))
    before, after = DatasetReader(images), DatasetReader(tmp_path / "new")
    assert (metrics["cameras"], metrics["carried"]) == (["front"], ["above"])
    assert after.images(0, "front").shape == (20, 32, 24, 3)
    for number in range(2):
        name = f"videos/observation.images.above/chunk-000/file-{number:03d}.mp4"
        assert sha256_file(images / name) == sha256_file(tmp_path / "new" / name)
    assert after.provenance(5).parents == (before.episode_ids[5],)
    assert after.provenance(5).extra["pictures"]["above"] == before.provenance(5).extra["pictures"]["above"]
    assert all(verdict.accepted for verdict in validate(tmp_path / "new"))


@pytest.mark.parametrize("episodes", [pytest.param("2:11", marks=pytest.mark.slow), "1,4,9"])
def test_frames_of_chosen_episodes_are_carried_over_as_they_are_encoded(images, tmp_path, episodes):
    render_dataset(images, tmp_path / "new", again(cameras=["front"], episodes=episodes))
    before, after = DatasetReader(images), DatasetReader(tmp_path / "new")
    chosen = select_episodes(episodes, 12, where="")
    np.testing.assert_array_equal(after.numbers, before.numbers[chosen])
    for new, old in enumerate(chosen):
        np.testing.assert_array_equal(after.images(new, "above"), before.images(old, "above"))
        rendered = [reader.images(index, "front").astype(int) for reader, index in ((after, new), (before, old))]
        assert np.abs(rendered[0] - rendered[1]).max() < 16, "the same picture, encoded in another file"
        np.testing.assert_array_equal(after.states(new), before.states(old))
    assert all(verdict.accepted for verdict in validate(tmp_path / "new"))


def test_a_camera_is_added_to_a_dataset_that_has_one(states, tmp_path):
    render_dataset(states, tmp_path / "one", again(cameras=["above"]))
    assert DatasetReader(tmp_path / "one").cameras == ["above"]
    render_dataset(tmp_path / "one", tmp_path / "two", again(cameras=["front"]))
    assert DatasetReader(tmp_path / "two").cameras == ["above", "front"]
    render_dataset(states, tmp_path / "both", again())
    for camera in ("above", "front"):
        two, both = (DatasetReader(tmp_path / name).images(7, camera) for name in ("two", "both"))
        np.testing.assert_array_equal(two, both)


def test_where_only_late_episodes_are_chosen_the_blocks_before_are_empty(states, tmp_path):
    render_dataset(states, tmp_path / "late", again(episodes="9:"))
    assert DatasetReader(tmp_path / "late").numbers.tolist() == [9, 10, 11]
    assert sorted(path.name for path in (tmp_path / "late" / "data").rglob("*.parquet")) == ["file-001.parquet"]


def test_the_coverage_is_that_of_the_episodes_that_were_rendered(states, images, tmp_path):
    render_dataset(states, tmp_path / "few", again(episodes=3))
    files = [folder / "twinloop" / "coverage.json" for folder in (states, images, tmp_path / "few")]
    assert files[0].read_bytes() == files[1].read_bytes()
    documents = rendered_documents(states, tmp_path / "few")
    assert json.loads(files[2].read_text()) == documents["twinloop/coverage.json"]
    assert documents["twinloop/coverage.json"] == dataset_coverage(tmp_path / "few")


def test_a_lamp_that_flickers_is_seen_to(place, tmp_path):
    """The images show a visual parameter of scope step, frame by frame."""
    flicker = {"randomization": {"params": {"light/lamp/intensity": {"low": 0.2, "high": 2.0, "scope": "step"}}}}
    generate_states(config(place, **flicker, seed=3), tmp_path / "states")
    render_dataset(tmp_path / "states", tmp_path / "images", again(cameras=["front"], episodes=2))
    reader = DatasetReader(tmp_path / "images")
    for episode in range(2):
        drawn = np.array(reader.provenance(episode).extra["step_params"]["light/lamp/intensity"])
        red = reader.images(episode, "front")[:, 8, 8, 0].astype(float)
        assert np.ptp(drawn) > 1.0
        assert np.corrcoef(drawn[: len(red)], red)[0, 1] > 0.9


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (None, range(12)),
        (3, range(3)),
        ("3", range(3)),
        (99, range(12)),
        ("2:5", range(2, 5)),
        (":2,10:", [0, 1, 10, 11]),
        ("7,3,3", [3, 7]),
        ("3,", [3]),
        ([11, 0], [0, 11]),
    ],
)
def test_episodes_are_chosen_by_number_range_or_list(asked, found):
    assert select_episodes(asked, 12, where="x") == list(found)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (0, "0 episodes of x: at least one"),
        ("5:99", r"Episodes '5:99': x has 12 episodes, numbered 0 to 11"),
        ("12,", "numbered 0 to 11"),
        ("one", "not understood at 'one'"),
        ("5:5", "none of the 12 episodes of x"),
        ("-3", "not understood at '-3'"),
    ],
)
def test_a_wrong_choice_is_told(asked, said):
    with pytest.raises(InputError, match=said):
        select_episodes(asked, 12, where="x")


@pytest.mark.parametrize("text", ["0x480", "640x0", "33x32", "640", "640x480x3", "-2x16", "9000x16", "x"])
def test_a_size_that_is_none_is_told(text):
    with pytest.raises(InputError, match="is not an image size. Give width x height as in 640x480"):
        parse_image_size(text)


def refused(capsys, *words) -> tuple[int, str]:
    code = main(["render", *map(str, words)])
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--camera", "frnt"], "Unknown camera 'frnt' in twin turntable. Nearest existing: front"),
        (["--size", "0x16"], "'0x16' is not an image size"),
        (["--size", "24x16", "frnt=24x16"], "Unknown camera 'frnt' in twin turntable"),
        (["--camera", "above", "--size", "front=24x16"], "Unknown camera 'front' in the sizes of the cameras"),
        (["--renderer", "mitsubishi"], "Unknown renderer 'mitsubishi'"),
        (["--renderer", "none.py:X"], "none.py: there is no such file"),
        (["--quality", "shadows"], "--quality shadows: give KEY=VALUE"),
        (["--quality", "shadow_mpa=4"], "Unknown quality setting 'shadow_mpa'"),
        (["--samples", "0"], "samples: Input should be greater than or equal to 1"),
        (["--subframes", "0"], "subframes: Input should be greater than or equal to 1"),
        (["--sensors", "device", "front=ideal"], "give one word for all cameras, or CAMERA=DEVICE for each"),
        (["--sensors", "front=uvc_webcm"], "Unknown device 'uvc_webcm'"),
        (["--episodes", "3:99"], "has 12 episodes, numbered 0 to 11"),
        (["--workers", "-1"], "--workers -1: give a number of processes"),
    ],
)
def test_each_wrong_word_gets_one_clear_line(states, capsys, tmp_path, words, said):
    if "--renderer" not in words and "shadow_mpa=4" not in words:
        words = ["--renderer", FRAGILE, *words]
    code, text = refused(capsys, states, "--output", tmp_path / "x", *words)
    assert (code, said in text.replace("\n", " ")) == (2, True), text
    assert not (tmp_path / "x").exists()


def test_a_renderer_that_is_not_there_comes_with_the_command_that_adds_it(states, tmp_path, monkeypatch):
    from twinloop.render import catalog as probe

    def missing(name):
        return probe.ProbeResult(name=name, available=False, detail="no libEGL", remedy="apt-get install libegl1")

    monkeypatch.setattr("twinloop.generate.pixels.dataset.probe_renderer", missing)
    with pytest.raises(
        MissingDependencyError, match=r"gl does not work here \(no libEGL\). To add it: apt-get install"
    ):
        render_dataset(states, tmp_path / "x", RenderConfig(renderer="gl"))


def test_states_of_a_twin_that_was_changed_are_refused(place, tmp_path, capsys):
    for name in ("turntable.xml", "swing.py"):
        shutil.copy(place / name, tmp_path)
    (tmp_path / "turntable.yaml").write_text(TWIN)
    generate_states(config(tmp_path), tmp_path / "states")
    (tmp_path / "turntable.yaml").unlink()  # the dataset has its own copy
    (copy,) = (tmp_path / "states" / "twinloop" / "sources").rglob("turntable.yaml")
    copy.write_text(TWIN.replace("high: 5", "high: 4"))
    code, text = refused(capsys, tmp_path / "states", "--renderer", FRAGILE)
    assert code == 2
    assert "its files were changed since, and the states do not fit" in text.replace("\n", " ")


def test_a_dataset_without_states_is_refused(tmp_path, capsys):
    log = write_log_dataset(virtual_log(seed=2, twin="so101_tabletop", episodes=1, seconds=3.0), tmp_path / "log")
    assert "holds no states to render" in refused(capsys, log, "--renderer", FRAGILE)[1]
    assert "is not a LeRobot dataset" in refused(capsys, tmp_path, "--renderer", FRAGILE)[1]


def test_a_run_is_not_resumed_with_other_settings(states, images, tmp_path):
    shutil.copytree(images, tmp_path / "images")
    with pytest.raises(DatasetError, match=r"started with another cameras, config, config_hash \(render.height 32"):
        render_dataset(states, tmp_path / "images", again(height=32, sizes={"above": "32x20"}), resume=True)
    with pytest.raises(DatasetError, match="already holds a dataset of 12 episodes"):
        render_dataset(states, tmp_path / "images", again(sizes={"above": "32x20"}))
    render_dataset(states, tmp_path / "images", again(sizes={"above": "32x20"}), resume=True)
    assert sha256_tree(tmp_path / "images") == sha256_tree(images)


def test_a_texture_that_is_no_image_is_named(place, tmp_path, capsys):
    shutil.copy(place / "swing.py", tmp_path)
    (tmp_path / "wood.png").write_text("not a picture")
    asset = '<asset><texture name="wood" type="2d" file="wood.png"/></asset><worldbody>'
    (tmp_path / "turntable.xml").write_text(MODEL.replace("<worldbody>", asset))
    (tmp_path / "turntable.yaml").write_text(TWIN)
    (tmp_path / "g.yaml").write_text(yaml.safe_dump({"scene": {"twin": "turntable.yaml", "task": "swing.py:Swing"}}))
    assert main(["generate", str(tmp_path / "g.yaml"), "--output", str(tmp_path / "x")]) == 2
    text = capsys.readouterr().err.replace("\n", " ")
    assert "wood" in text
    assert "PNG" in text


@pytest.mark.slow
def test_the_section_of_a_generate_file_takes_the_same_words(place, tmp_path, capsys):
    value = {
        "scene": {"twin": str(place / "turntable.yaml"), "task": f"{place / 'swing.py'}:Swing"},
        "rollout": {"parallel_envs": 3},
        "render": {"renderer": FRAGILE, "sizes": {"front": "24x16"}, "episodes": "1:", "cameras": ["front"]},
    }
    (tmp_path / "g.yaml").write_text(yaml.safe_dump(value))
    words = ["generate", str(tmp_path / "g.yaml"), "--output", str(tmp_path / "s"), "--keep", "all", "--json"]
    assert main([*words, "--workers", "1"]) == 0
    metrics = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (metrics["render"]["episodes"], metrics["render"]["sizes"]) == (2, {"front": "24x16"})
    assert main(["render", str(tmp_path / "s"), "--renderer", FRAGILE, "--workers", "1", "--episodes", "1"]) == 0
    assert (tmp_path / "s-fragile").is_dir()
    with pytest.raises(UnknownNameError, match="Unknown camera 'below'"):
        render_dataset(tmp_path / "s", tmp_path / "y", again(cameras=["below"]))
