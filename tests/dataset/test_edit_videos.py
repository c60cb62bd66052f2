"""Videos are linked or copied packet by packet, encoded again only if necessary, and never silently broken."""

from __future__ import annotations

import os
from fractions import Fraction

import numpy as np
import pytest

from support.dataset_writer import CAMERAS, SPEC_VIDEO, images, write_all
from support.edits import KEY, foreign, image
from twinloop.core.errors import DatasetError, InputError, UnknownNameError
from twinloop.dataset.edit.operations import delete, merge, reencode, select
from twinloop.dataset.edit.source import EditSource
from twinloop.dataset.edit.videos import PixelEdits
from twinloop.dataset.edit.writing import EditSettings
from twinloop.dataset.lerobot import layout
from twinloop.dataset.lerobot.reader import DatasetReader
from twinloop.dataset.media.video_copy import Encoding, PacketReader, transcode

# Mean absolute differences in 8-bit steps between a planted image and its coding are 3.6 to 5.9 here; the image a
# frame before or after, or one of another episode, is 35 or more away.
CODED = 8.0


def error(root, index: int, number: int, frame: int) -> float:
    """How far an image of the result is from the planted one."""
    return float(
        np.abs(DatasetReader(root).images(index, "top", [frame])[0].astype(float) - image(number, frame)).mean()
    )


def check_images(root, numbers: list[int]) -> None:
    """First and last image of every episode are the planted ones, nearer than their neighbours."""
    lengths = DatasetReader(root).lengths.tolist()
    for index, number in enumerate(numbers):
        for frame in (0, lengths[index] - 1):
            assert error(root, index, number, frame) < CODED, (index, frame)
        row = DatasetReader(root).row(index)
        length = row[f"videos/{KEY}/to_timestamp"] - row[f"videos/{KEY}/from_timestamp"]
        assert length == pytest.approx(lengths[index] / 30)


@pytest.mark.parametrize(("codec", "gop"), [("libx264", 2), ("libx264", 12), ("libsvtav1", 2)])
def test_packets_of_any_codec_are_copied_bit_for_bit(tmp_path, codec, gop):
    """Frames that are coded with reference to later ones too: they come in another order than they are shown."""
    source = foreign(tmp_path / "in", [14, 9, 20, 11], codec=codec, gop=gop)
    made = select(source, tmp_path / "out", "3,1,2")
    assert made.videos[KEY] == {"linked": 0, "copied": 3, "encoded": 0}
    for i, j in enumerate((3, 1, 2)):
        np.testing.assert_array_equal(
            DatasetReader(tmp_path / "out").images(i, "top"), DatasetReader(source).images(j, "top")
        )
    check_images(tmp_path / "out", [3, 1, 2])
    info = DatasetReader(tmp_path / "out").info["features"][KEY]["info"]
    assert info["video.codec"] == {"libx264": "h264", "libsvtav1": "av1"}[codec]


def test_episodes_without_a_key_frame_of_their_own_are_encoded_anew_and_named(tmp_path):
    source = foreign(tmp_path / "in", [14, 9, 20], codec="libx264", gop=100, force=False)
    made = select(source, tmp_path / "out", "2,1")
    assert made.videos[KEY] == {"linked": 0, "copied": 0, "encoded": 2}
    assert any("2 episodes of observation.images.top were re-encoded" in note for note in made.notes)
    check_images(tmp_path / "out", [2, 1])
    source = foreign(tmp_path / "again", [14, 9, 20], codec="libx264", gop=100, force=False)
    assert select(source, tmp_path / "all", "0:3").videos[KEY]["linked"] == 3


def test_several_codecs_are_refused_with_the_remedy_or_become_one(tmp_path):
    one = foreign(tmp_path / "one", [14, 9], codec="libx264")
    two = foreign(tmp_path / "two", [12, 8], first=2, codec="libsvtav1")
    with pytest.raises(InputError) as raised:
        merge([one, two], tmp_path / "out")
    text = str(raised.value)
    assert f"{KEY} has several codecs, but a dataset has one:" in text
    for folder, codec in ((one, "h264"), (two, "av1")):
        assert f"{folder / layout.block_path(layout.VIDEO_PATH, 0, video_key=KEY)}: {codec} yuv420p" in text
    assert "such as --codec h264; the others are then re-encoded" in text
    made = merge([one, two], tmp_path / "out", settings=EditSettings(pixels=PixelEdits(encoding=Encoding(codec="av1"))))
    assert made.videos[KEY] == {"linked": 2, "copied": 0, "encoded": 2}
    check_images(tmp_path / "out", [0, 1, 2, 3])
    coded = {PacketReader(path).coding.codec for path in (tmp_path / "out" / "videos" / KEY).rglob("*.mp4")}
    assert coded == {"av1"}


@pytest.mark.skipif(not hasattr(os, "sched_getscheduler"), reason="threads are scheduled so on Linux")
def test_encoding_leaves_the_thread_its_scheduling(tmp_path):
    """SVT-AV1 sets real-time scheduling for its caller if permitted, which starves other processes on the machine."""
    (video,) = (foreign(tmp_path / "in", [9], codec="libx264") / "videos" / KEY).rglob("*.mp4")
    before = os.sched_getscheduler(0)
    transcode(video, 0.0, 9, tmp_path / "out.mp4", Encoding(codec="av1"), Fraction(30))
    assert os.sched_getscheduler(0) == before


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1"])
def test_encoding_anew_makes_children_with_the_images_that_were_there(tmp_path, codec):
    source = foreign(tmp_path / "in", [14, 9], codec="libx264")
    reencode(source, tmp_path / "out", Encoding(codec=codec, gop=5))
    check_images(tmp_path / "out", [0, 1])
    reader = DatasetReader(tmp_path / "out")
    assert reader.info["features"][KEY]["info"]["video.codec"] == codec
    assert "video.g" not in reader.info["features"][KEY]["info"]
    rows = EditSource(tmp_path / "out").rows([0, 1]).to_pylist()
    assert all(f'"codec": "{codec}", "gop": 5' in row["provenance/transforms"] for row in rows)
    path = tmp_path / "out" / layout.block_path(layout.VIDEO_PATH, 0, video_key=KEY)
    for start, length in ((0, 14), (14, 9)):
        assert PacketReader(path).cut(start / 30, length, Fraction(30)) is not None


@pytest.mark.slow
def test_our_images_in_another_size_say_so_everywhere(tmp_path):
    ours = write_all(tmp_path / "in", SPEC_VIDEO)
    reencode(ours, tmp_path / "out", Encoding(codec="h264", crf=10, height=32, width=32))
    old, new = DatasetReader(ours), DatasetReader(tmp_path / "out")
    assert {(camera.height, camera.width) for camera in new.spec.cameras} == {(32, 32)}
    assert new.info["features"][CAMERAS[0].key]["shape"] == [32, 32, 3]
    assert new.images(0, "front").shape == (35, 32, 32, 3)
    assert [new.provenance(i).parents for i in range(9)] == [(name,) for name in old.episode_ids]
    done = new.provenance(0).extra["transforms"][0]
    assert done["name"] == "reencode"
    assert done["parameters"]["features"] == [camera.key for camera in CAMERAS]
    mean = images(0, 35)["front"].mean(axis=(0, 1, 2)) / 255
    row = EditSource(tmp_path / "out").rows([0]).to_pylist()[0]
    np.testing.assert_allclose(np.ravel(row[f"stats/{CAMERAS[0].key}/mean"]), mean, atol=0.02)


def test_a_damaged_or_short_video_is_named(tmp_path):
    source = foreign(tmp_path / "in", [14, 9], codec="libx264")
    path = source / layout.block_path(layout.VIDEO_PATH, 0, video_key=KEY)
    short = foreign(tmp_path / "short", [14, 4], codec="libx264") / layout.block_path(
        layout.VIDEO_PATH, 0, video_key=KEY
    )
    path.write_bytes(short.read_bytes())
    with pytest.raises(DatasetError, match=r"file-000\.mp4 has 18 frames; episode 1 of .* ends at frame 23 there"):
        select(source, tmp_path / "out", "0:2")
    with pytest.raises(DatasetError, match=r"file-000\.mp4 has no frame at 0\.6000 s, frame 4 of an episode of 9"):
        delete(source, tmp_path / "out", "0")
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(DatasetError, match=r"file-000\.mp4 cannot be read as a video"):
        select(source, tmp_path / "out", "0")
    path.unlink()
    with pytest.raises(DatasetError, match=r"file-000\.mp4 cannot be read as a video: .* does not exist"):
        select(source, tmp_path / "out", "0")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["in", "short"]


def test_h264_is_encoded_without_the_stage_whose_bytes_vary(tmp_path):
    """The encoder writes its settings into the video."""
    encoding = EditSettings(pixels=PixelEdits(encoding=Encoding(codec="h264"), reencode_all=True))
    merge([foreign(tmp_path / "in", [9], codec="libx264")], tmp_path / "out", settings=encoding)
    (video,) = (tmp_path / "out/videos" / KEY).rglob("*.mp4")
    assert b"mbtree=0" in video.read_bytes()


def test_a_file_behind_a_link_is_shared_itself(tmp_path):
    """As in the Hub's cache, where files are links to others."""
    source = foreign(tmp_path / "in", [14, 9], codec="libx264")
    path = source / layout.block_path(layout.VIDEO_PATH, 0, video_key=KEY)
    kept = path.rename(source / "blob")
    path.symlink_to(kept)
    select(source, tmp_path / "out", "0:2")
    made = tmp_path / "out" / layout.block_path(layout.VIDEO_PATH, 0, video_key=KEY)
    assert not made.is_symlink()
    assert made.stat().st_ino == kept.stat().st_ino


def test_settings_that_no_encoder_has_are_refused(tmp_path):
    with pytest.raises(UnknownNameError, match="Unknown codec 'vp9'. Existing: av1, h264, hevc."):
        Encoding(codec="vp9")
    with pytest.raises(InputError, match="A key frame every 0 frames is impossible"):
        Encoding(codec="h264", gop=0)
    with pytest.raises(InputError, match="crf. 70 is out of range"):
        Encoding(codec="h264", crf=70)
    with pytest.raises(InputError, match="yuv420p video needs even sides"):
        Encoding(codec="h264", height=33, width=64)
    with pytest.raises(InputError, match="has no videos to encode. Its features: action"):
        reencode(foreign(tmp_path / "in", [9]), tmp_path / "out", Encoding(codec="h264"))
