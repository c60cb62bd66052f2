"""Images of episodes from datasets, folders and arrays, and errors for invalid images."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support.dataset_writer import SPEC_VIDEO, write_all
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.media.image_sources import open_images
from twinloop.dataset.media.images import choose_camera, images_from_arrays, resize_images, sample_images

REAL = Path(os.environ.get("TWINLOOP_DATA", "/nowhere")) / "g1_inspire_lerobot"


def _noise(frames, height=20, width=30, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (frames, height, width, 3), dtype=np.uint8)


def test_a_folder_of_folders_and_one_of_arrays_say_the_same(tmp_path):
    whole = [_noise(5, seed=i) for i in range(3)]
    for i, images in enumerate(whole):
        (tmp_path / "files" / f"ep{i}").mkdir(parents=True)
        (tmp_path / "arrays").mkdir(exist_ok=True)
        for k, image in enumerate(images):
            Image.fromarray(image).save(tmp_path / "files" / f"ep{i}" / f"{k}.png")
        np.save(tmp_path / "arrays" / f"ep{i}.npy", images)
    files, arrays = (list(sample_images(open_images(tmp_path / kind), 3, seed=4)) for kind in ("files", "arrays"))
    memory = list(sample_images(images_from_arrays("memory", whole), 3, seed=4))
    for one, two, three in zip(files, arrays, memory, strict=True):
        assert one.name == two.name
        assert np.array_equal(one.images, two.images)
        assert np.array_equal(one.images, three.images)
    other = list(sample_images(images_from_arrays("memory", whole), 3, seed=5))
    assert any(not np.array_equal(a.images, b.images) for a, b in zip(memory, other, strict=True))


def test_a_size_averages_areas():
    image = np.zeros((1, 4, 4, 3), dtype=np.uint8)
    image[0, :2, :2] = 200
    assert resize_images(image, (2, 2))[0, ..., 0].tolist() == [[200, 0], [0, 0]]
    assert resize_images(image, (1, 1))[0, 0, 0].tolist() == [50, 50, 50]


def test_images_that_are_none_are_named(tmp_path):
    with pytest.raises(InputError, match=r"uint8 of shape \(2, 8, 8, 1\); they must be uint8 sRGB"):
        images_from_arrays("grey", [np.zeros((2, 8, 8, 1), dtype=np.uint8)])
    with pytest.raises(InputError, match="float64 of shape"):
        images_from_arrays("floats", [np.zeros((2, 8, 8, 3))])
    with pytest.raises(InputError, match="is not a folder"):
        open_images(tmp_path / "nowhere")
    with pytest.raises(InputError, match="has 0 images but no episodes"):
        open_images(tmp_path)
    (tmp_path / "ep0").mkdir()
    Image.fromarray(_noise(1)[0]).convert("L").save(tmp_path / "ep0" / "0.png")
    with pytest.raises(InputError, match="mode L, not RGB"):
        list(sample_images(open_images(tmp_path), 1))
    np.save(tmp_path / "ep1.npy", np.zeros((3, 4)))
    with pytest.raises(InputError, match=r"ep1.npy holds an array of shape \(3, 4\)"):
        open_images(tmp_path)


def test_images_of_several_sizes_are_refused_or_scaled():
    mixed = images_from_arrays("mixed", [_noise(2), _noise(2, height=40)])
    with pytest.raises(InputError, match="episode 1 are 30x40, earlier ones 30x20. Give --size"):
        list(sample_images(mixed, 2))
    assert {s.images.shape for s in sample_images(mixed, 2, size=(10, 16))} == {(2, 10, 16, 3)}


def test_a_camera_is_asked_for_where_there_are_several():
    assert choose_camera(None, ["front"], where="d") == "front"
    with pytest.raises(InputError, match="cameras front, wrist. Choose one, as in --camera front"):
        choose_camera(None, ["front", "wrist"], where="d")
    with pytest.raises(UnknownNameError, match="Unknown camera 'frnt'"):
        choose_camera("frnt", ["front", "wrist"], where="d")
    with pytest.raises(InputError, match="no images"):
        choose_camera(None, [], where="d")


@pytest.mark.skipif(not REAL.is_dir(), reason="g1_inspire_lerobot is not in TWINLOOP_DATA")
def test_real_images_of_one_episode_are_read_and_found_too_few():
    found = open_images(REAL)
    assert (found.camera, len(found), found.described) == ("cam_high", 1, 100)
    (sample,) = sample_images(found, 2)
    assert sample.images.shape == (2, 480, 640, 3)
    assert 60 < sample.images.mean() < 180
    with pytest.raises(InputError, match=r"1 episode \(of 100 in its metadata\) from cam_high; .* at least 4"):
        found.require_episodes()


def test_a_dataset_of_ours_is_read_as_its_reader_does(tmp_path):
    reader = DatasetReader(write_all(tmp_path / "set", SPEC_VIDEO))
    found = open_images(tmp_path / "set", reader.cameras[0])
    assert [episode.frames for episode in found.episodes] == reader.lengths.tolist()
    assert np.array_equal(found.episodes[1].read([0, 3]), reader.images(1, reader.cameras[0], [0, 3]))
