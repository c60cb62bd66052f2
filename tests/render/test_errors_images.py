"""Errors in requested images are refused by name, before any rendering and without data loss."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from benchmarks.error_rates.renderers import run_bench_renderers
from twinloop.core.errors import DatasetError, InputError, MissingDependencyError, TwinloopError, UnknownNameError
from twinloop.core.files import sha256_tree
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.generate import RenderConfig, generate_states, render_dataset, resolve_config
from twinloop.render import open_renderer
from twinloop.render.catalog import renderer_entry
from twinloop.sensors.camera.model import CameraModel
from twinloop.sensors.camera.pipeline import develop
from twinloop.twin import load_twin
from twinloop.workflows.generate.render import build_render_settings
from twinloop.workflows.generate.requests import RenderRequest
from twinloop.workflows.twin.requests import SensorsShowRequest
from twinloop.workflows.twin.sensors import show_sensor

ASKED = RenderRequest(dataset=Path("states"), size=("64x48",), subframes=4)
NOWHERE = Console(file=io.StringIO())
PREAMBLE = "import numpy as np\nfrom twinloop.render.protocol import new_channels\n"
TIRED = (
    PREAMBLE
    + """
class Tired:
    name, channels, seconds, calls = "tired", ("rgb",), 0.001, 0

    def __init__(self, model, *, height=240, width=320, cameras=None, quality=None):
        self.cameras, self.height, self.width = tuple(cameras or [model.camera(0).name]), height, width

    def observe(self, states, fields=None, *, channels=("rgb",)):
        Tired.calls += 1
        if Tired.calls > 1:
            raise RuntimeError("the lamp burnt out")
        seen = new_channels(self.cameras, channels, len(states), self.height, self.width)
        for out in seen.values():
            out["rgb"][:] = np.random.default_rng(0).integers(0, 255, out["rgb"].shape)
        return seen

    def render(self, states, fields=None):
        return {name: seen["rgb"] for name, seen in self.observe(states, fields).items()}

    def close(self): ...

    def __enter__(self):
        return self

    def __exit__(self, *what): ...
"""
)


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    folder = tmp_path_factory.mktemp("states") / "states"
    value = {"scene": {"robot": "so101", "task": "pick_and_place"}, "rollout": {"parallel_envs": 1}}
    generate_states(resolve_config(value, where="test", folder=folder, keep="all"), folder)
    return folder


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"size": ("640",)}, "'640' is not an image size. Give width x height as in 640x480"),
        ({"size": ("0x0",)}, "'0x0' is not an image size"),
        ({"size": ("64x48", "32x32")}, "--size 64x48 32x32 sets the same name twice. Keep one."),
        ({"size": ("front=64x48", "front=32x32")}, "--size front=64x48 front=32x32 sets the same name twice"),
        ({"sensors": ("clean", "device")}, "--sensors clean device sets the same name twice"),
        ({"sensors": ("clean", "front=ideal")}, "give one word for all cameras, or CAMERA=DEVICE for each"),
        ({"quality": ("shadow_map",)}, "--quality shadow_map: give KEY=VALUE"),
        ({"samples": 0}, r"samples: Input should be greater than or equal to 1 \(given: 0\)"),
    ],
)
def test_words_that_cannot_be_meant_are_refused(words, message):
    with pytest.raises(InputError, match=message):
        build_render_settings(dataclasses.replace(ASKED, **words))


@pytest.mark.parametrize(
    ("renderer", "quality", "message"),
    [
        ("gl", {"shadow_map": -3}, "The quality setting shadow_map of gl is -3. Choose a value from 0 to 16384"),
        ("gl", {"shadow_map": 999_999}, "The quality setting shadow_map of gl is 999999"),
        ("gl", {"samples": 1000}, "The quality setting samples of gl is 1000. Choose a value from 0 to 64"),
        ("gl", {"shadow_reach": float("nan")}, "The quality setting shadow_reach of gl is nan"),
        ("gl", {"shadow_map": "big"}, "The quality setting shadow_map is 'big'. Give a value like 512"),
        ("gl", {"shadow": 1}, "Unknown quality setting 'shadow' .*Nearest existing: shadow_map"),
    ],
)
def test_a_quality_that_cannot_be_is_refused_before_anything_is_drawn(renderer, quality, message):
    with pytest.raises(InputError, match=message):
        renderer_entry(renderer).make_settings(quality)


def test_yes_or_no_is_not_taken_from_a_word():
    with pytest.raises(InputError, match="denoise is 'maybe'. Give true or false, or leave it out"):
        renderer_entry("mitsuba").make_settings({"denoise": "maybe"})


@pytest.mark.parametrize(
    ("text", "name", "error", "message"),
    [
        ("x = 3", ":X", UnknownNameError, "Unknown renderer class 'X' in .*mine.py. None exist here."),
        ("x = 3", "", UnknownNameError, "for your own class write path/to/file.py:ClassName"),
        ("def f(:", ":X", InputError, r"mine.py does not run: SyntaxError: invalid syntax \(mine.py, line 1\)$"),
        ("raise RuntimeError('kaput')", ":X", InputError, r"does not run: RuntimeError: kaput \(.*mine.py:1\)$"),
    ],
)
def test_a_renderer_file_that_holds_none_says_so(tmp_path, text, name, error, message):
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(error, match=message):
        open_renderer(f"{file}{name}", load_twin("cube_toss").model)


def test_a_renderer_that_cannot_be_opened_is_said_not_to_work(states, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("class X:\n    def __init__(self, model, **kw):\n        raise RuntimeError('not ready')")
    with pytest.raises(MissingDependencyError, match=r"does not work here \(RuntimeError: not ready\)"):
        render_dataset(states, tmp_path / "x", RenderConfig(renderer=f"{file}:X"))


def test_what_a_renderer_of_ones_own_raises_is_named_with_its_line(states, tmp_path):
    file = tmp_path / "tired.py"
    file.write_text(TIRED)
    settings = RenderConfig(cameras=["front"], height=48, width=64, renderer=f"{file}:Tired")
    before = sha256_tree(states)
    with pytest.raises(
        TwinloopError, match=r"tired.py:Tired failed: RuntimeError: the lamp burnt out \(.*tired.py:\d+\)"
    ):
        render_dataset(states, tmp_path / "x", settings)
    assert sha256_tree(states) == before


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nothing", "nothing is not a LeRobot dataset: there is no such folder. Check the path."),
        ("file", "file is not a LeRobot dataset: it is a file. Give the folder that holds meta/"),
        (".", "info.json is missing. Give the folder that `twinloop generate`"),
    ],
)
def test_what_is_no_dataset_says_what_it_is(tmp_path, place, message):
    (tmp_path / "file").write_text("hello")
    with pytest.raises(DatasetError, match=message):
        DatasetReader(tmp_path / place)


@pytest.mark.parametrize("place", ["inside", "twinloop/inside"])
def test_no_dataset_is_written_into_another_one(states, place):
    before = sha256_tree(states)
    with pytest.raises(
        DatasetError, match=r"is inside the dataset .*states, and would be read .* Choose a folder outside"
    ):
        render_dataset(states, states / place, RenderConfig(height=48, width=64))
    assert sha256_tree(states) == before


def test_a_sensor_is_shown_from_its_own_camera_alone(tmp_path):
    with pytest.raises(InputError, match="--camera front and --sensor wrist: a sensor has its own camera. Name one of"):
        show_sensor(SensorsShowRequest(twin="so101_tabletop", camera="front", sensor="wrist", size="64x48"), NOWHERE)


def test_renderers_are_compared_on_a_state_and_written_where_there_is_a_place(tmp_path):
    with pytest.raises(InputError, match="--frames 0: give at least 1 state per twin"):
        run_bench_renderers(NOWHERE, frames=0)
    for page in (tmp_path, tmp_path / "none.md"):
        with pytest.raises(InputError, match="has no place for the tables. Put these two lines into it: <!--"):
            run_bench_renderers(NOWHERE, page=page)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("mosaic", ["none", "bggr"])
def test_light_that_is_no_number_is_refused(wrong, mosaic):
    light = np.full((1, 48, 64, 3), 0.5, np.float32)
    light[0, 3, 5, 1] = wrong
    with pytest.raises(InputError, match="Light that is nan or infinite cannot be developed. Give finite numbers"):
        develop(light, CameraModel(mosaic=mosaic), time=[0.0], numbers=[0])
