"""Images: decoded once, the same as the dataset's, and a policy that sees them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from support.edits import foreign
from twinloop.core.contract import ACTION, IMAGES
from twinloop.core.errors import DatasetError
from twinloop.dataset.lerobot import layout
from twinloop.dataset.media.image_sources import open_images
from twinloop.train.config import SourceConfig, TrainConfig
from twinloop.train.data import load_frames
from twinloop.train.samples import ImageCache, open_caches
from twinloop.train.sources import open_sources


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return foreign(tmp_path_factory.mktemp("data") / "theirs", [5, 7, 6, 5, 6], images=True)


def test_images_of_any_frames_are_the_datasets_and_each_is_decoded_once(folder, monkeypatch):
    data = load_frames(open_sources([SourceConfig(data=str(folder))]))
    assert dict(data.contract.cameras) == {"still": (48, 64)}
    cache = open_caches(data)["still"]
    decoded = []
    decode = cache._decode
    monkeypatch.setattr(cache, "_decode", lambda episode: (decoded.append(episode), decode(episode)))
    expected = [episode.read(range(episode.frames)) for episode in open_images(folder, "still").episodes]
    whole = np.concatenate(expected)
    frames = np.array([[0, 4], [6, 5], [17, 17]])
    np.testing.assert_array_equal(cache.read(frames), whole[frames])
    assert decoded == [0, 1, 2]
    cache.fill()
    np.testing.assert_array_equal(cache.read(np.arange(data.frames)), whole)
    assert decoded == [0, 1, 2, 3, 4]


def test_images_of_another_size_than_the_metadata_say_are_refused(folder):
    data = load_frames(open_sources([SourceConfig(data=str(folder))]))
    with pytest.raises(
        DatasetError, match=r"observation.images.still of episode 1 of .* has shape \(7, 48, 64, 3\), but should"
    ):
        ImageCache(data, "still", (32, 64)).read(np.array([6]))


def test_sizes_that_differ_between_folders_are_refused(folder, tmp_path):
    from twinloop.core.errors import InputError

    other = foreign(tmp_path / "other", [5, 5], images=True)
    info = json.loads((other / layout.INFO).read_text())
    info["features"][IMAGES + "still"]["shape"] = [24, 32, 3]
    (other / layout.INFO).write_text(json.dumps(info))
    with pytest.raises(InputError, match=r"images.still has several sizes: 64x48 in .*, 32x24 in"):
        load_frames(open_sources([SourceConfig(data=str(folder)), SourceConfig(data=str(other))]))


def test_a_policy_is_trained_on_images(folder, tmp_path):
    pytest.importorskip("torch")
    from twinloop.train.run import train

    settings = {"width": 8, "depth": 1, "chunk_size": 2, "n_action_steps": 1, "images": {"channels": [4, 4]}}
    said = {"sources": [{"data": str(folder)}], "steps": 4, "batch": 4, "evaluations": 2, "settings": settings}
    policy = train(TrainConfig.of(said), tmp_path / "out").policy
    assert dict(policy.contract.cameras) == {"still": (48, 64)}
    assert ACTION not in policy.observation_keys
