"""A tracker's view of the tool, in logs and in fits: encoders cannot measure their zero offset."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from twinloop.core.errors import LogError, UnknownNameError
from twinloop.hardware import make_hidden_cell, virtual_log
from twinloop.identify import FitConfig, HoldoutSpec, identify
from twinloop.rollout import TrackerNoise
from twinloop.simulate import open_backend
from twinloop.simulate.replay_logs import ReplayOptions, prepare_replay
from twinloop.tasks.kinematics import Chain
from twinloop.twin import load_twin

SHIFT = (0.01, -0.02, 0.03)


@pytest.fixture(scope="module")
def twin():
    return load_twin("so101_tabletop")


@pytest.fixture(scope="module")
def logs():
    return [
        virtual_log(3, twin="so101_tabletop", episodes=1, seconds=3.0, nthread=1, tracker=TrackerNoise(offset=s))
        for s in ((0, 0, 0), SHIFT)
    ]


def test_a_tracker_sees_the_tool_where_the_true_joints_have_it(twin, logs):
    (plain,), (shifted,) = logs
    seen = plain.signals["place/tcp"].values
    np.testing.assert_allclose(shifted.signals["place/tcp"].values - seen, [SHIFT] * len(seen), atol=1e-12)
    chain = Chain(twin.model, "tcp", twin.home()[0])
    told = chain.pose(twin.units.to_si(plain.state)[:, : chain.njoint]).position
    away = np.linalg.norm(told - seen, axis=1)
    offset = np.abs([make_hidden_cell(twin, 3).values[f"sensor/{joint}/offset"] for joint in twin.robot.joints]).max()
    assert 1e-3 < away.mean() < 5 * offset  # encoder estimates of the tool are wrong by their zeros only


def test_noise_is_a_function_of_robot_episode_and_frame(twin):
    tracker = TrackerNoise(noise=0.001)
    both = virtual_log(3, twin="so101_tabletop", episodes=[0, 4], seconds=3.0, nthread=1, tracker=tracker)
    (alone,) = virtual_log(3, twin="so101_tabletop", episodes=[4], seconds=3.0, nthread=1, tracker=tracker)
    np.testing.assert_array_equal(both[1].signals["place/tcp"].values, alone.signals["place/tcp"].values)


def test_the_place_of_a_site_is_compared_from_the_second_frame_on(twin, logs):
    replayed = prepare_replay(twin, logs[0], ReplayOptions(compare=("position", "place/tcp")))
    assert [channel.name for channel in replayed.channels[-3:]] == ["place/tcp/x", "place/tcp/y", "place/tcp/z"]
    assert np.isnan(replayed.measured[:, 0, -3:]).all()
    np.testing.assert_array_equal(replayed.measured[0, 1:, -3:], logs[0][0].signals["place/tcp"].values[1:])


def test_what_is_not_there_is_named(twin, logs):
    with pytest.raises(UnknownNameError, match="site"):
        prepare_replay(twin, logs[0], ReplayOptions(compare=("place/nose",)))
    with pytest.raises(LogError, match="has no signal place/tcp"):
        prepare_replay(twin, [replace(logs[0][0], signals={})], ReplayOptions(compare=("place/tcp",)))


@pytest.mark.slow
def test_a_tracked_tool_tells_the_zeros_of_the_joints(twin):
    """The pitch of the hand, the sum of three zeros, comes back within a degree; joint readings alone leave it open."""
    cell = make_hidden_cell(twin, 100)
    log = virtual_log(100, twin="so101_tabletop", episodes=4, seconds=8.0, nthread=0, tracker=cell.tracker)
    joints = ("shoulder_lift", "elbow_flex", "wrist_flex")
    names = [f"sensor/{joint}/offset" for joint in joints]
    found = identify(
        twin,
        log,
        backend=open_backend("threads"),
        holdout=HoldoutSpec(kind="none"),
        config=FitConfig(iterations=8, polish=0, replay=ReplayOptions(compare=("position", "place/tcp"))),
    ).distribution
    error = sum(found.estimate[name] - cell.values[name] for name in names)
    assert abs(error) < np.deg2rad(1.0)
    determined = dict(zip(found.names, found.determined, strict=True))
    assert all(determined[name] for name in names)
