"""Failures and warnings of a fit: divergent starts, bounds, unmoving channels, iterations that end early."""

from dataclasses import replace

import numpy as np
import pytest

from support.swings import BACKEND, FREE, swings
from twinloop.core.errors import BoundsError, InputError, LogError, UnknownNameError
from twinloop.identify import FitConfig, identify
from twinloop.identify.optimization import check_measured
from twinloop.simulate.replay_logs import prepare_replay
from twinloop.twin import load_twin


@pytest.fixture(scope="module")
def twin():
    return load_twin("double_pendulum")


@pytest.fixture(scope="module")
def episodes(twin):
    return swings(twin)


def fit(twin, episodes, **settings):
    return identify(twin, episodes, backend=BACKEND, config=FitConfig(free=FREE, **{"iterations": 3, **settings}))


def said(result, text):
    return [note for note in result.notes if text in note]


def test_bounds_that_exclude_the_nominal_value_are_said_and_held(twin, episodes):
    """0.13 is planted and 0.3 the least allowed: it starts and ends there."""
    result = fit(twin, episodes, bounds={"joint/shoulder/frictionloss": (0.3, 0.5)})
    assert result.values["joint/shoulder/frictionloss"] == pytest.approx(0.3)
    assert said(result, "The bounds given for joint/shoulder/frictionloss, [0.3, 0.5] N·m, exclude its nominal value")
    assert said(
        result, "joint/shoulder/frictionloss ends on its lower bound, 0.3 N·m: the data favour lower values. Widen"
    )


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"bounds": {"joint/wrist/damping": (0, 1)}}, UnknownNameError, "Unknown free parameter 'joint/wrist/damping'"),
        ({"bounds": {"joint/*/damping": (1, 0.5)}}, InputError, "are not in ascending order. Swap them"),
        ({"bounds": {"joint/*/damping": (0, 9e9)}}, BoundsError, "exceed the twin's own bounds"),
        ({"start": {"joint/elbow/damping": -3.0}}, BoundsError, "joint/elbow/damping = -3 .*the fit's start"),
    ],
)
def test_bounds_and_starts_that_cannot_be(twin, episodes, settings, error, text):
    with pytest.raises(error, match=text):
        fit(twin, episodes, **settings)


def test_a_channel_that_never_moves_is_named_with_its_parameters(twin, episodes):
    still = [replace(e, state=np.column_stack([e.state[:, 0], np.full(len(e), 0.2)])) for e in episodes]
    (note,) = said(fit(twin, still, iterations=1), "position/elbow is 0.2 rad in every training frame")
    assert "it cannot identify joint/elbow/frictionloss, joint/elbow/damping. Record a log in which it moves" in note


def test_a_twin_that_cannot_be_replayed_says_where_and_what_to_do(twin, episodes):
    lost = replace(episodes[1], state=episodes[1].state + np.array([1e12, 0.0]))
    with pytest.raises(InputError) as caught:
        fit(twin, [lost])
    message = str(caught.value)
    assert "The twin double_pendulum cannot be replayed where the fit starts: it diverges in 1 of 1 windows" in message
    assert "in episode 1" in message
    assert "joint/shoulder/frictionloss" in message
    assert "search from many starts (search: multistart)" in message


def test_nothing_measured_is_refused(twin, episodes):
    logs = prepare_replay(twin, episodes)
    measured = logs.measured.copy()
    measured[..., 1] = np.nan
    with pytest.raises(LogError, match="position/elbow has no measurement in the 3 training windows"):
        check_measured(replace(logs, measured=measured))


def test_a_walk_that_runs_out_of_steps_says_so(twin, episodes):
    start = {"joint/shoulder/frictionloss": 1.5, "joint/elbow/frictionloss": 1.5}
    result = fit(twin, episodes, start=start, iterations=3, rescale=0)
    assert not result.converged
    assert said(result, "The optimization ended while its loss was still falling")
