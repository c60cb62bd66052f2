"""Depth as video: codes are exact, the coding is LeRobot's formula, and any frame can be decoded alone."""

from __future__ import annotations

import math
from fractions import Fraction

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinloop.core.errors import DatasetError
from twinloop.dataset.media.depth import (
    CODES,
    DepthCoding,
    DepthEncoder,
    count_codes,
    decode_codes,
    depth_feature,
    depth_stats,
    is_depth,
    reencode_codes,
)
from twinloop.dataset.media.video import decode

FPS = Fraction(30)
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, CODES, size=(11, 32, 50), dtype=np.uint16)  # a width whose rows are padded in memory


@pytest.fixture
def video(tmp_path):
    path = tmp_path / "depth.mp4"
    with DepthEncoder(path, height=32, width=50, fps=FPS) as encoder:
        encoder.add(IMAGES[:5])
        encoder.add(IMAGES[5:])
        assert encoder.frames == 11
    return path


def test_every_frame_is_decoded_alone_and_exactly(video):
    for number, image in enumerate(IMAGES):
        np.testing.assert_array_equal(decode_codes(video, [number / 30])[0], image)
    with av.open(str(video)) as container:
        stream = container.streams.video[0]
        keys = [i for i, packet in enumerate(container.demux(stream)) if packet.is_keyframe and packet.size]
    assert {0, 5} <= set(keys)  # where the episodes begin


def test_equal_images_give_equal_bytes(video, tmp_path):
    with DepthEncoder(tmp_path / "again.mp4", height=32, width=50, fps=FPS) as encoder:
        encoder.add(IMAGES[:5])
        encoder.add(IMAGES[5:])
    assert (tmp_path / "again.mp4").read_bytes() == video.read_bytes()


def test_a_video_with_open_groups_and_b_frames_is_read_at_any_frame_and_copied_exactly(tmp_path):
    """LeRobot writes depth with x265's own settings, of which frames depend on the group before."""
    path = tmp_path / "open.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream(
            "libx265", rate=30, options={"g": "2", "x265-params": "lossless=1:log-level=none"}
        )
        stream.width, stream.height, stream.pix_fmt = 50, 32, "gray12le"
        for image in IMAGES:
            frame = av.VideoFrame(50, 32, "gray12le")
            rows = np.zeros((32, frame.planes[0].line_size // 2), dtype="<u2")
            rows[:, :50] = image
            frame.planes[0].update(rows.tobytes())
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    for number, image in enumerate(IMAGES):
        np.testing.assert_array_equal(decode_codes(path, [number / 30])[0], image)
    reencode_codes(path, 3 / 30, 6, tmp_path / "part.mp4", FPS)
    np.testing.assert_array_equal(decode_codes(tmp_path / "part.mp4", [i / 30 for i in range(6)]), IMAGES[3:9])


def test_colour_is_not_taken_for_depth(tmp_path, video):
    with av.open(str(tmp_path / "rgb.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=30)
        stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((32, 48, 3), np.uint8), format="rgb24")))
        container.mux(stream.encode(None))
    with pytest.raises(DatasetError, match=r"yuv420p; depth has 12 bits"):
        decode_codes(tmp_path / "rgb.mp4", [0.0])
    assert decode(video, [0.0]).shape == (1, 32, 50, 3)


@given(metres=st.floats(0.01, 10.0))
def test_the_code_is_that_of_the_published_formula(metres):
    """round(4095 · (ln(d + 3.5) − ln(0.01 + 3.5)) / (ln(10 + 3.5) − ln(0.01 + 3.5))), and its error in m."""
    low, high = math.log(3.51), math.log(13.5)
    code = DepthCoding().encode([metres])[0]
    assert abs(code - 4095 * (math.log(metres + 3.5) - low) / (high - low)) <= 0.5 + 1e-6
    step = (metres + 3.5) * (high - low) / 4095  # of the depth, per code
    assert abs(DepthCoding().decode([code])[0] - metres) <= 0.51 * step + 1e-6


def test_depth_outside_the_range_or_unknown():
    coding = DepthCoding(low=0.5, high=2.5, logarithmic=False)
    assert coding.encode([0.1, 0.5, 1.5, 2.5, 9.0]).tolist() == [0, 0, 2048, 4095, 4095]
    assert coding.encode([np.nan, np.inf, 0.0, -1.0]).tolist() == [0, 0, 0, 0]
    np.testing.assert_allclose(coding.decode([0, 4095]), [0.5, 2.5])


def test_a_feature_holds_its_coding_and_a_wrong_one_is_refused():
    coding = DepthCoding(low=0.2, high=3.0, shift=1.0, logarithmic=False)
    feature = depth_feature(32, 50, 30, coding)
    assert is_depth(feature)
    assert is_depth({"info": {"video.is_depth_map": True}})  # as in earlier versions of LeRobot
    assert not is_depth({"info": {"is_depth_map": False}})
    assert DepthCoding.of(feature, where="here") == coding
    assert DepthCoding.of({"info": {}}, where="here") == DepthCoding()
    for wrong in ({"video.depth_min": 12.0}, {"video.shift": -1.0}, {"video.depth_max": "far"}):
        with pytest.raises(DatasetError, match=r"here: the depth range"):
            DepthCoding.of({"info": wrong}, where="here")


def test_statistics_are_those_of_the_depths_in_mm():
    coding = DepthCoding()
    mm = coding.decode(IMAGES).astype(np.float64).ravel() * 1000
    stats = depth_stats(count_codes(IMAGES), 11, coding)
    assert stats["count"] == [11]
    for name, value in {"min": mm.min(), "max": mm.max(), "mean": mm.mean(), "std": mm.std()}.items():
        np.testing.assert_allclose(stats[name], [[[value]]], rtol=1e-9)
    np.testing.assert_allclose(stats["q50"], [[[np.median(mm)]]], rtol=1e-3)
