"""Errors of windows add up to the total error for any chunk size; lost windows are named."""

import itertools

import numpy as np
import pytest

from support.gap_logs import log_of
from twinloop.core.errors import InputError, LogError
from twinloop.core.records import Episode
from twinloop.gap.dynamics.errors import stream_windows, window_errors
from twinloop.simulate import open_backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import ReplayOptions, prepare_replay
from twinloop.twin import load_twin

OPTIONS = ReplayOptions(window=0.5, stride=0.3, start="measured")
EDGES = (0.0, 0.1, 0.25, 0.5)
KP = "actuator/elbow_flex/kp"


@pytest.fixture(scope="module")
def twin():
    return load_twin("so101_tabletop")


@pytest.fixture(scope="module")
def backend():
    return open_backend("threads", nthread=1)


@pytest.fixture(scope="module")
def episodes(twin, backend):
    return log_of(twin, backend, {KP: 12.0}, count=3, nframe=40)


def test_sums_equal_the_plain_errors_of_one_replay(twin, backend, episodes):
    table = twin.table(2, {KP: [12.0, 30.0]})
    found = window_errors(backend, twin, episodes, table, options=OPTIONS, edges=EDGES)
    logs = prepare_replay(twin, episodes, OPTIONS)
    error = replay(backend, logs, table) - logs.measured
    time = np.arange(error.shape[2]) / logs.twin.control_hz
    for k, (low, high) in enumerate(itertools.pairwise(EDGES)):
        frames = (time > low + 1e-9) & (time < high + 1e-9)
        for row, number in enumerate(logs.episodes):
            own = error[:, np.array(logs.episode_numbers) == number][:, :, frames]
            np.testing.assert_allclose(found.squared[:, row, k], (own**2).sum(axis=(1, 2)), rtol=1e-12)
            np.testing.assert_allclose(found.absolute[:, row, k], np.abs(own).sum(axis=(1, 2)), rtol=1e-12)
            assert (found.count[row, k] == own[0, :, :, 0].size).all()
    plain = np.sqrt((error[:, :, 1:] ** 2).mean(axis=(1, 2)))
    np.testing.assert_allclose(found.rmse(), plain)
    np.testing.assert_allclose(found.mae(), np.abs(error[:, :, 1:]).mean(axis=(1, 2)))
    elbow = [channel.name for channel in found.channels].index("position/elbow_flex")
    assert found.rmse()[0, elbow] < 0.5 * found.rmse()[1, elbow]


def test_portions_of_an_iterator_give_the_same_sums(twin, backend, episodes):
    table = twin.table(3, {KP: [5.0, 12.0, 30.0]})
    whole = window_errors(backend, twin, episodes, table, options=OPTIONS, edges=EDGES, batch=99)
    parts = window_errors(backend, twin, iter(episodes), table, options=OPTIONS, edges=EDGES, batch=1)
    assert parts.episodes == whole.episodes == (0, 1, 2)
    for name in ("squared", "absolute", "count"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))
    streamed = list(stream_windows(backend, twin, iter(episodes), table, options=OPTIONS, batch=2))
    assert [logs.episodes for logs, _ in streamed] == [(0, 1), (2,)]
    once = replay(backend, prepare_replay(twin, episodes, OPTIONS), table)
    np.testing.assert_array_equal(np.concatenate([readings for _, readings in streamed], axis=1), once)


def test_rows_in_portions_give_the_same_sums(twin, backend, episodes, monkeypatch):
    table = twin.table(3, {KP: [5.0, 12.0, 30.0]})
    whole = window_errors(backend, twin, episodes, table, options=OPTIONS, edges=EDGES)
    monkeypatch.setattr("twinloop.gap.dynamics.errors._MOST_NUMBERS", 1)
    parts = window_errors(backend, twin, episodes, table, options=OPTIONS, edges=EDGES)
    np.testing.assert_array_equal(parts.squared, whole.squared)


def test_what_is_lost_reads_infinity_and_is_named(twin, backend, episodes):
    wild = Episode(
        index=9,
        time=episodes[0].time,
        action=episodes[0].action,
        state=np.full_like(episodes[0].state, 1e14),
        units=twin.units,
        source="sim",
    )
    found = window_errors(backend, twin, [episodes[0], wild], twin.table(1), options=OPTIONS, edges=EDGES)
    assert found.diverged_mask.tolist() == [[False, True]]
    assert np.isinf(found.rmse()).all()
    with pytest.raises(InputError, match="so101_tabletop diverges in episode 9 with the nominal parameters"):
        found.require_finite(twin, ["nominal"])


def test_mistakes_are_named(twin, backend, episodes):
    first = episodes[0]

    def like(index, **changes):
        fields = {name: getattr(first, name) for name in ("time", "action", "state", "units", "source")}
        return Episode(index=index, **{**fields, **changes})

    with pytest.raises(LogError, match="no episode to replay"):
        window_errors(backend, twin, [], twin.table(1))
    with pytest.raises(LogError, match=r"Episode 7 has 50.00 Hz, but the log has 30.00 Hz"):
        window_errors(backend, twin, [first, like(7, time=np.arange(len(first)) / 50)], twin.table(1), batch=1)
    with pytest.raises(InputError, match="Horizon edges .* do not increase"):
        window_errors(backend, twin, episodes, twin.table(1), edges=(0.0, 0.5, 0.5))
    with pytest.raises(InputError, match="Portions of 0 episodes"):
        window_errors(backend, twin, episodes, twin.table(1), batch=0)
