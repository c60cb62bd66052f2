"""Pass two: render states into a separate dataset, with the same pixels from every process."""

from __future__ import annotations

import numpy as np
import pytest

from twinloop.core.errors import UnknownNameError
from twinloop.core.files import sha256_tree
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.lerobot.validation import validate
from twinloop.generate import RenderConfig, generate_states, render_dataset, replay_episode, resolve_config
from twinloop.render import probe_renderer
from twinloop.workflows.demo.demo import write_images

pytestmark = pytest.mark.skipif(not probe_renderer("gl").available, reason="renderer gl is not available")
SMALL = RenderConfig(cameras=["front", "wrist"], height=64, width=96, episodes=9)


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    folder = tmp_path_factory.mktemp("states") / "states"
    value = {
        "scene": {"robot": "so101", "task": "pick_and_place"},
        "randomization": {"visual": {"texture_pool": 12, "lighting_intensity": [0.3, 1.8]}},
        "rollout": {"parallel_envs": 12},
    }
    generate_states(resolve_config(value, where="test", folder=folder), folder)
    return folder


@pytest.fixture(scope="module")
def images(states, tmp_path_factory):
    folder = tmp_path_factory.mktemp("images") / "images"
    render_dataset(states, folder, SMALL, workers=1)
    return folder


@pytest.mark.slow
def test_two_processes_render_the_same_bytes_as_one(states, images, tmp_path):
    render_dataset(states, tmp_path / "images", SMALL, workers=2)
    assert sha256_tree(tmp_path / "images") == sha256_tree(images)


def test_episodes_keep_their_states_numbers_and_parents(states, images):
    source, rendered = DatasetReader(states), DatasetReader(images)
    assert len(rendered) == 9
    np.testing.assert_array_equal(rendered.numbers, source.numbers[:9])
    for episode in range(9):
        parent, child = source.provenance(episode), rendered.provenance(episode)
        assert child.parents == (parent.content_hash,)
        assert child.versions["renderer"].startswith("gl")
        np.testing.assert_array_equal(rendered.states(episode), source.states(episode))
        np.testing.assert_array_equal(rendered.array(episode, "action"), source.array(episode, "action"))
    assert replay_episode(images, 4).equal


def test_the_drawn_light_and_texture_are_what_the_images_show(states, images):
    """Between two episodes the table differs in texture, and a brighter light gives a brighter image."""
    reader = DatasetReader(images)
    light, brightness = [], []
    for episode in range(9):
        light.append(reader.provenance(episode).params["light/key/intensity"])
        brightness.append(reader.images(episode, "wrist", [0]).mean())
    textures = {reader.provenance(episode).params["texture/table"] for episode in range(9)}
    assert len(textures) > 3
    assert np.std(brightness) > 5
    first_images = [reader.images(episode, "front", [0])[0].astype(int) for episode in (0, 1)]
    assert np.abs(first_images[0] - first_images[1]).mean() > 5


def test_both_validators_accept_it(images):
    for verdict in validate(images):
        assert verdict.accepted, verdict


def test_a_contact_sheet_and_a_video_are_written(images, tmp_path):
    from PIL import Image

    sheet = write_images(images, tmp_path)
    assert np.asarray(Image.open(sheet)).std() > 20
    assert (tmp_path / "episodes.mp4").stat().st_size > 1000


def test_an_unknown_camera_answers_with_the_nearest(states, tmp_path):
    with pytest.raises(UnknownNameError, match=r"Unknown camera 'frnt'.*Nearest existing: front"):
        render_dataset(states, tmp_path / "x", RenderConfig(cameras=["frnt"]))
    assert not (tmp_path / "x").exists()
