"""Repeats are found, their spread is the floor, and a perfect twin's gap ratio is 1."""

from dataclasses import replace

import numpy as np
import pytest

from support.gap_logs import arm_log, arm_twin
from twinloop.core.errors import InputError
from twinloop.gap import measure_gap
from twinloop.gap.dynamics.noise_floor import RepeatPairs, find_repeats, floor_resampling, sum_pairs
from twinloop.simulate import open_backend
from twinloop.simulate.replay_logs import ReplayOptions, prepare_replay

SIGMA = 0.004
SCRIPTS = (0, 0, 1, 0, 1, 2, 0, 1, 0, 1)


@pytest.fixture(scope="module")
def backend():
    return open_backend("threads", nthread=1)


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    return arm_twin(tmp_path_factory.mktemp("arm"))


@pytest.fixture(scope="module")
def repeats(twin, backend):
    return arm_log(twin, backend, {}, count=10, noise=SIGMA, scripts=SCRIPTS)


def test_equal_commands_make_repeats_and_other_rules_group_as_they_say(repeats):
    assert find_repeats(repeats)[0] == ((0, 1, 3, 6, 8), (2, 4, 7, 9))
    heavier = [replace(e, conditions={"mass": float(e.index > 3)}) for e in repeats]
    assert find_repeats(heavier)[0] == ((0, 1, 3), (4, 7, 9), (6, 8))
    assert find_repeats(repeats, "none")[0] == ()
    assert find_repeats(repeats, "task")[0] == (tuple(range(10)),)
    assert find_repeats(repeats, "0-2,5/7,9")[0] == ((0, 1, 2, 5), (7, 9))
    with pytest.raises(InputError, match=r"--repeats twice: give auto, task, none, or episode numbers"):
        find_repeats(repeats, "twice")
    with pytest.raises(InputError, match=r"episode 12 is not among the measured episodes, which are 0, 1, 2"):
        find_repeats(repeats, "0,12")
    with pytest.raises(InputError, match="a group needs two different episodes"):
        find_repeats(repeats, "3")


def test_the_floor_is_the_planted_noise_and_a_right_twin_has_ratio_one(twin, backend, repeats):
    report = measure_gap(twin, repeats, backend=backend)
    floor = report.floor
    assert floor.floor.estimate == pytest.approx([SIGMA, SIGMA], rel=0.05)
    assert floor.ratios["nominal"].covers(1.0).all()
    assert floor.overall["nominal"].covers(1.0)
    assert report.rmse["nominal"].estimate == pytest.approx([SIGMA, SIGMA], rel=0.05)
    assert floor.curve.estimate.shape == (len(report.edges) - 1, 2)
    assert "noise floor of 9 repeats of 2 motions" in report.text()
    names = [metric.name for metric in report.headline()]
    assert {"skill", "gap_ratio", "gap_ratio/elbow", "rmse/shoulder", "delay/elbow", "nrmse"} <= set(names)


def test_a_wrong_twin_has_a_ratio_above_one_in_its_joint(twin, backend):
    log = arm_log(twin, backend, {"joint/elbow/damping": 0.3}, count=10, noise=SIGMA, scripts=SCRIPTS)
    wrong = measure_gap(twin, log, backend=backend, params={"joint/elbow/damping": 0.3})
    ratios = wrong.floor.ratios
    assert ratios["nominal"].low[1] > 2.0
    assert ratios["identified"].covers(1.0).all()


def test_pairs_are_the_plain_differences_of_windows(twin, repeats):
    logs = prepare_replay(twin, [repeats[0], repeats[3]], ReplayOptions(window=0.5, start="measured"))
    ((a, b, squared, count),) = sum_pairs(logs, (0, 3), np.array([0.0, np.inf]))
    mine, other = logs.select_episodes([0]).measured[:, 1:], logs.select_episodes([3]).measured[:, 1:]
    assert (a, b) == (0, 3)
    np.testing.assert_allclose(squared[0], 0.5 * ((mine - other) ** 2).sum(axis=(0, 1)))
    assert (count[0] == mine[..., 0].size).all()


def test_large_groups_are_paired_around_a_circle_and_drawn_as_episodes():
    members = tuple(range(30))
    first = np.array([i for i in range(30) for _ in range(5)])
    second = (first + np.tile(np.arange(1, 6), 30)) % 30
    pairs = RepeatPairs(
        episodes=members,
        group=np.zeros(30, dtype=np.intp),
        first=first,
        second=second,
        squared=np.ones((150, 1, 1)),
        count=np.ones((150, 1, 1)),
    )
    assert floor_resampling(pairs, level=0.95, seed=0).reason == ""
    drawn = np.zeros((1, 30))
    drawn[0, 7] = 30.0  # one episode alone: no pair of it, and still a figure
    assert pairs.weights(drawn).max() < 1e-6
    assert pairs.weights(drawn).min() > 0


def test_few_repeats_have_a_floor_without_interval(twin, backend, repeats):
    report = measure_gap(twin, repeats[:4], backend=backend)
    assert report.floor.groups == ((0, 1, 3),)
    assert np.isnan(report.floor.floor.low).all()
    assert report.floor.floor.method == "3 repeats, no interval: at least 4 of one motion are needed"
