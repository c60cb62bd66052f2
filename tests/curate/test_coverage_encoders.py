"""Embeddings of clips: independent of the other clips in a batch, named by hash, built-in or from the user."""

from __future__ import annotations

import numpy as np
import pytest

from twinloop.core.errors import InputError, UnknownNameError
from twinloop.encoders.clips import FRAMES, ClipBatch, ConvolutionEncoder, open_clip_encoder, space_hash
from twinloop.encoders.trajectory import ClipArrays, clip_features, trajectory_features

BUILT_IN = ("trajectory", "waypoints", "convolutions")


def clips(count: int = 6, nframe: int = 40) -> ClipArrays:
    chance = np.random.default_rng(0)
    position = np.cumsum(chance.normal(scale=0.03, size=(count, nframe, 3)), axis=1)
    return ClipArrays(
        position=position,
        action=position + 0.02,
        clusters=np.arange(count),
        rate_hz=20.0,
        channels=("pan", "lift", "gripper"),
        units=("rad", "rad", "rad"),
        command="position",
    )


def batch(motion: ClipArrays, images=None) -> ClipBatch:
    n, nframe = motion.position.shape[:2]
    first = np.arange(n, dtype=np.int64) * nframe
    return ClipBatch(motion=motion, first=first, last=first + nframe - 1, images=images)


def alone(motion: ClipArrays, number: int) -> ClipArrays:
    part = slice(number, number + 1)
    parts = {"position": motion.position[part], "action": motion.action[part], "clusters": motion.clusters[part]}
    return ClipArrays(**(vars(motion) | parts))


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_clip_gives_the_same_numbers_alone_and_among_others(name):
    encoder, motion = open_clip_encoder(name), clips()
    together = encoder.encode(batch(motion))
    np.testing.assert_allclose(encoder.encode(batch(alone(motion, 3)))[0], together[3], rtol=1e-12, atol=1e-12)
    assert np.isfinite(together).all()


def test_features_of_a_clip_are_those_that_two_sets_are_compared_by():
    motion = clips()
    both, rows, _ = trajectory_features(motion, motion)
    features, mine = clip_features(motion)
    by_name = {feature.name: column for feature, column in zip(both, rows.T, strict=True)}
    told = {feature.name: column for feature, column in zip(features, mine.T, strict=True)}
    assert {"pan/position_mean", "lift/jerk_rms", "gripper/tracking_rms"} <= set(told)
    for name in set(told) & set(by_name):
        np.testing.assert_array_equal(told[name], by_name[name])


def test_waypoints_are_where_the_joints_are():
    motion = clips(1, 40)
    row = open_clip_encoder("waypoints").encode(batch(motion))[0]
    np.testing.assert_allclose(row[:3], motion.position[0, :5].mean(axis=0))
    np.testing.assert_allclose(row[21:24], motion.position[0, -5:].mean(axis=0))


def test_convolutions_tell_a_jump_and_depend_on_their_seed():
    motion = clips()
    still = ClipArrays(**(vars(motion) | {"position": np.zeros_like(motion.position)}))
    jump = np.zeros_like(motion.position)
    jump[:, 20:, 0] = 1.0
    jumped = ClipArrays(**(vars(motion) | {"position": jump}))
    encoder = ConvolutionEncoder()
    assert np.abs(encoder.encode(batch(jumped)) - encoder.encode(batch(still))).max() > 1.0
    other = ConvolutionEncoder(seed=1)
    assert other.hash != encoder.hash
    assert not np.array_equal(other.encode(batch(motion)), encoder.encode(batch(motion)))


def test_images_of_a_clip_are_looked_at_evenly_and_only_once():
    asked: list[list[int]] = []

    def images(frames):
        asked.append(list(frames))
        return np.repeat(np.array(frames, dtype=np.uint8)[:, None, None, None], 3, axis=3) + np.zeros(
            (1, 64, 64, 1), dtype=np.uint8
        )

    rows = open_clip_encoder("classical").encode(batch(clips(2), images))
    assert rows.shape == (2, 512)
    assert asked == [[0, 13, 26, 39, 40, 53, 66, 79]]
    assert len(asked[0]) == 2 * FRAMES


def test_images_that_are_not_there_are_missed_in_words():
    with pytest.raises(InputError, match="needs images, but an episode has none. Use --embedding trajectory"):
        open_clip_encoder("classical").encode(batch(clips(2)))


def test_the_space_is_named_by_encoder_and_clips():
    one, other = open_clip_encoder("waypoints"), open_clip_encoder("trajectory")
    settings = {"clip_s": 2.0, "channels": ["pan"]}
    names = {space_hash(one, settings), space_hash(other, settings), space_hash(one, settings | {"clip_s": 1.0})}
    assert len(names) == 3


OWN = """
import numpy as np
class Reach:
    name, hash, needs = "reach", "reach-1", "motion"
    def encode(self, clips):
        return np.ptp(clips.motion.position, axis=1)
class Short(Reach):
    def encode(self, clips):
        return np.zeros((1, 2))
class Former(Reach):
    needs = "pictures"
class Bare:
    name = "bare"
"""


def test_a_class_of_ones_own_is_an_encoder(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    encoder, motion = open_clip_encoder(f"{tmp_path}/own.py:Reach"), clips()
    np.testing.assert_array_equal(encoder.encode(batch(motion)), np.ptp(motion.position, axis=1))
    assert open_clip_encoder(f"{tmp_path}/own.py:Former").needs == "images"
    with pytest.raises(InputError, match=r"gives \(1, 2\) for 6 clips; expected \(6, d\), all finite"):
        open_clip_encoder(f"{tmp_path}/own.py:Short").encode(batch(motion))
    with pytest.raises(InputError, match=r"Bare lacks hash, needs, encode. An encoder of clips has name, hash"):
        open_clip_encoder(f"{tmp_path}/own.py:Bare")
    with pytest.raises(UnknownNameError, match="waypoint"):
        open_clip_encoder("waypoint")
