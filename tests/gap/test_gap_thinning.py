"""Parts of a log within a budget of physics steps: selection, evenness, and message."""

import numpy as np
import pytest

from support.gap_logs import episode
from support.one_joint import joints_twin
from twinloop.gap.attribution.thinning import count_physics_steps, thin_log
from twinloop.simulate.replay_logs import ReplayOptions, prepare_replay


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    return joints_twin(tmp_path_factory.mktemp("twin"), joints=1, control_hz=30, substeps=4)


def log(twin, count, seconds):
    return [episode(i, twin.units, rows, rows) for i in range(count) for rows in [np.zeros((30 * seconds + 1, 1))]]


def simulated(twin, part):
    """Physics steps that one world of a part really takes."""
    return sum(prepare_replay(twin, part.episodes, part.options).ends) * twin.substeps


def within(twin, episodes, options, share, worlds=50):
    return thin_log(
        twin, episodes, options, worlds=worlds, steps=share * worlds * count_physics_steps(twin, episodes, options)
    )


def test_a_short_log_is_replayed_whole(twin):
    episodes, options = log(twin, 5, 10), ReplayOptions(window=1.0)
    part = within(twin, episodes, options, 1.0)
    assert (part.episodes, part.options, part.description) == (episodes, options, "")


def test_windows_are_set_apart_before_episodes_are_left_out(twin):
    episodes, options = log(twin, 20, 10), ReplayOptions(window=1.0)
    half = within(twin, episodes, options, 0.5)
    assert len(half.episodes) == 20
    assert half.options.stride == pytest.approx(2.0)
    assert half.description == "a window every 2 s, so that 50 worlds take 0.6 million physics steps"
    little = within(twin, episodes, options, 0.1)
    assert little.options.stride == pytest.approx(4.5)  # beginning, middle and end
    assert [e.index for e in little.episodes] == [0, 2, 5, 7, 10, 12, 14, 17, 19]
    assert "a window every 4.5 s of 9 of 20 episodes" in little.description


@pytest.mark.parametrize("share", [0.7, 0.4, 0.15, 0.05])
def test_the_budget_is_about_kept_however_long_the_log(twin, share):
    options = ReplayOptions(window=1.0)
    episodes = log(twin, 100, 10)
    whole = simulated(twin, within(twin, episodes, options, 1.0))
    assert simulated(twin, within(twin, episodes, options, share)) / whole == pytest.approx(share, rel=0.45)


def test_of_whole_episodes_some_are_left_out_but_never_fewer_than_four_are_kept(twin):
    episodes = log(twin, 12, 2)
    part = within(twin, episodes, ReplayOptions(), 0.5)
    assert [e.index for e in part.episodes] == [0, 2, 4, 7, 9, 11]
    assert part.options == ReplayOptions()
    assert len(within(twin, episodes, ReplayOptions(), 0.01).episodes) == 4
