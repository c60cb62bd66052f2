"""What compression leaves of images."""

import dataclasses

import numpy as np
import pytest

from support.cameras import scene
from twinloop.sensors.camera import CameraModel, CameraPipeline, develop
from twinloop.sensors.camera.codec import encode_decode_jpeg, encode_decode_yuyv

CLEAN = develop(scene(96, 128, count=1), CameraModel(), time=[0.0], numbers=[0])[0]


def block_edges(image):
    """Steps across the edges of blocks of 8 pixels against those elsewhere, without the clean image."""
    added = image.astype(float).mean(axis=-1) - CLEAN.astype(float).mean(axis=-1)
    steps = np.abs(np.diff(added, axis=1)).mean(axis=0)
    return steps[7::8].mean() / np.delete(steps, np.s_[7::8]).mean()


def rms(image):
    return float(np.sqrt(np.mean((image.astype(float) - CLEAN) ** 2)))


def test_the_grid_of_jpeg_is_seen_at_eight_pixels():
    assert block_edges(encode_decode_jpeg(CLEAN, quality=15)) > 1.8
    noise = np.clip(CLEAN + np.random.default_rng(0).normal(0, 8, CLEAN.shape), 0, 255).astype(np.uint8)
    assert block_edges(noise) == pytest.approx(1.0, abs=0.1)


def test_less_quality_is_more_error():
    errors = [rms(encode_decode_jpeg(CLEAN, quality=quality)) for quality in (95, 70, 30, 5)]
    assert errors == sorted(errors)
    assert errors[0] < 4.0


def test_colours_of_jpeg_are_half_as_many_across_only():
    """4:2:2: stripes of colour one pixel wide are lost across, and stay down."""
    stripes = np.zeros((32, 32, 3), dtype=np.uint8) + 128
    stripes[:, ::2, 0] += 60
    stripes[:, 1::2, 2] += 60
    across, down = (encode_decode_jpeg(p, quality=98).astype(int) for p in (stripes, stripes.transpose(1, 0, 2).copy()))
    assert (across[..., 0] - across[..., 2]).std() < 25
    assert (down[..., 0] - down[..., 2]).std() > 50


def test_yuyv_shares_colour_between_two_pixels_and_keeps_luma():
    seen = encode_decode_yuyv(CLEAN).astype(float)
    luma = np.array([0.299, 0.587, 0.114])
    inside = np.all((CLEAN > 10) & (CLEAN < 245), axis=-1) & np.all((seen > 2) & (seen < 253), axis=-1)
    assert np.abs((seen - CLEAN) @ luma)[inside].max() < 2.5
    colour = (seen - (seen @ luma)[..., None])[..., 0]
    pairs = inside[:, ::2] & inside[:, 1::2]
    assert np.abs(colour[:, ::2] - colour[:, 1::2])[pairs].max() < 2.5
    grey = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, axis=-1)
    assert np.abs(encode_decode_yuyv(grey).astype(int) - grey).max() <= 1


def test_a_image_of_odd_width_goes_through_yuyv():
    odd = CLEAN[:, :31]
    assert np.abs(encode_decode_yuyv(odd)[:, -1].astype(int) - odd[:, -1]).max() <= 3


@pytest.mark.parametrize("width", [31, 128])
def test_yuyv_in_machine_code_is_the_same(width):
    pytest.importorskip("numba")
    assert np.array_equal(encode_decode_yuyv(CLEAN[:, :width], fast=True), encode_decode_yuyv(CLEAN[:, :width]))


def test_h264_leans_on_the_images_before_and_goes_on_from_image_to_image():
    moving = np.stack([np.roll(scene(64, 96)[0], 3 * i, axis=1) for i in range(5)])
    time, numbers = np.arange(5) / 30.0, np.arange(5)
    errors = []
    for crf in (18.0, 30.0, 45.0):
        model = CameraModel(codec="h264", video_crf=crf)
        whole = develop(moving, model, time=time, numbers=numbers)
        camera = CameraPipeline(model)
        parts = [camera.develop(moving[i : i + 1], time=time[i : i + 1], numbers=numbers[i : i + 1]) for i in range(5)]
        assert np.array_equal(np.concatenate(parts), whole)
        alone = develop(moving[4:], model, time=time[4:], numbers=numbers[4:])
        assert not np.array_equal(alone[0], whole[4])
        clean = develop(moving, CameraModel(), time=time, numbers=numbers)
        errors.append(np.sqrt(np.mean((whole.astype(float) - clean) ** 2)))
    assert errors == sorted(errors)
    assert errors[0] < 8.0


def test_the_chain_ends_with_its_codec():
    model = CameraModel(codec="mjpeg", jpeg_quality=40.0)
    seen = develop(scene(96, 128), model, time=[0.0], numbers=[0])[0]
    assert np.array_equal(seen, encode_decode_jpeg(CLEAN, quality=40))
    other = dataclasses.replace(model, codec="yuyv")
    assert np.array_equal(develop(scene(96, 128), other, time=[0.0], numbers=[0])[0], encode_decode_yuyv(CLEAN))
