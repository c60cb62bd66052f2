"""The gap is zero for a twin against itself, grows with a planted error, and is reported with fair baselines."""

import numpy as np
import pytest

from support.gap_logs import episode, log_of
from twinloop.core.distribution import ParamDistribution
from twinloop.core.errors import BoundsError, InputError, LogError, UnknownNameError
from twinloop.core.units import JointUnit, UnitMap
from twinloop.gap import measure_gap
from twinloop.gap.dynamics.report import ChannelRow
from twinloop.simulate import open_backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import prepare_replay
from twinloop.stats import Interval, delay_series
from twinloop.twin import load_twin


@pytest.fixture(scope="module")
def twin():
    return load_twin("so101_tabletop")


@pytest.fixture(scope="module")
def backend():
    return open_backend("threads", nthread=2)


def test_a_twin_against_itself_has_no_gap(twin, backend):
    report = measure_gap(twin, log_of(twin, backend, {}), backend=backend)
    assert report.best.estimate == pytest.approx(np.zeros(6), abs=1e-9)
    assert report.best.high.max() < 1e-9
    assert report.skill("delay") == pytest.approx(np.ones(6))
    assert report.improvement is None


def test_the_gap_grows_with_a_planted_error_in_its_joint(twin, backend):
    elbow = list(twin.robot.joints).index("elbow_flex")
    gaps = []
    for factor in (1.0, 1.1, 1.3, 1.8):
        kp = twin.params["actuator/elbow_flex/kp"].nominal * factor
        report = measure_gap(twin, log_of(twin, backend, {"actuator/elbow_flex/kp": kp}), backend=backend)
        gaps.append(report.best.estimate)
    own = [gap[elbow] for gap in gaps]
    assert own == sorted(own)
    assert own[1] > 0.05
    others = np.delete(gaps[-1], elbow)
    assert others.max() < 0.2 * own[-1]


def test_the_planted_parameters_close_the_gap_and_the_difference_is_paired(twin, backend):
    planted = {f"joint/{joint}/damping": 1.0 for joint in twin.robot.joints}
    episodes = log_of(twin, backend, planted)
    report = measure_gap(twin, episodes, backend=backend, params=planted, training=episodes[:2])
    assert report.twins["identified"].estimate == pytest.approx(np.zeros(6), abs=1e-9)
    assert report.improvement.estimate == pytest.approx(-report.twins["nominal"].estimate)
    assert (report.improvement.high < 0).all()
    assert "2 training episodes" in report.meanings["delay"]
    table = report.text()
    assert "identified − nominal" in table
    assert "shoulder_lift" in table


def test_a_distribution_stands_for_its_estimate(twin, backend):
    name = "actuator/elbow_flex/kp"
    episodes = log_of(twin, backend, {name: 12.0})
    known = ParamDistribution(
        names=(name,),
        transforms=("log",),
        mean=np.log([12.0]),
        covariance=np.eye(1) * 0.01,
        low=np.array([0.5]),
        high=np.array([2000.0]),
        determined=(True,),
        clusters=4,
    )
    report = measure_gap(twin, episodes, backend=backend, params=known)
    assert report.best.estimate == pytest.approx(np.zeros(6), abs=1e-6)


def test_a_pure_delay_is_what_the_delay_baseline_finds(twin, backend):
    source = log_of(twin, backend, {})
    lag = np.array([2.0, 3.0, 3.25, 4.0, 0.0, 5.5])
    late = [episode(e.index, e.units, e.action, delay_series(e.action, lag)) for e in source]
    report = measure_gap(twin, late, backend=backend)
    assert report.baselines["delay"].estimate == pytest.approx(np.zeros(6), abs=1e-9)
    assert (report.baselines["command"].estimate[[0, 1, 2, 3, 5]] > 0.1).all()
    assert "67, 100, 108, 133, 0, 183 ms" in report.meanings["delay"]
    assert "the measured episodes themselves" in report.meanings["delay"]


def test_metrics_are_means_over_frames_of_all_episodes(twin, backend):
    episodes = log_of(twin, backend, {}, count=3)
    report = measure_gap(twin, episodes, backend=backend)
    by_hand = np.concatenate([np.abs(e.state - e.state[:1])[1:] for e in episodes]).mean(axis=0)
    assert report.baselines["hold"].estimate == pytest.approx(by_hand)
    assert report.lengths.tolist() == [60, 55, 50]
    assert report.to_json()["frames"] == 165


def test_a_single_episode_has_a_gap_without_interval(twin, backend):
    report = measure_gap(
        twin, log_of(twin, backend, {}, count=1), backend=backend, params={"actuator/elbow_flex/kp": 12.0}
    )
    assert np.isnan(report.best.low).all()
    assert np.isnan(report.improvement.low).all()
    assert "one episode, no interval: at least 4 are needed" in report.text()


def test_a_log_of_another_physics_rate_is_replayed_at_its_own(twin, backend):
    slow = [
        episode(e.index, e.units, e.action[::2], e.state[::2], time=np.arange(0, len(e), 2) / 30)
        for e in log_of(twin, backend, {})
    ]
    logs = prepare_replay(twin, slow)
    assert logs.twin.control_hz == pytest.approx(15.0)
    assert logs.twin.dt == pytest.approx(twin.dt)


def test_normalized_units_take_the_twins_ranges(twin):
    kinds = ["range_m100_100"] * 5 + ["range_0_100"]
    joints = twin.robot.joints
    blank = tuple(JointUnit(joint=j, unit=k, scale=None, offset=None) for j, k in zip(joints, kinds, strict=True))
    values = np.full((5, 6), 100.0)
    logs = prepare_replay(twin, [episode(0, UnitMap(joints=blank, source="log"), values, values)])
    assert logs.commands[0, 0] == pytest.approx(twin.joint_ranges[:, 1])


def test_mistakes_are_named(twin, backend):
    good = log_of(twin, backend, {}, count=2)
    with pytest.raises(LogError, match="no episode to replay"):
        measure_gap(twin, [], backend=backend)
    with pytest.raises(LogError, match="Episode 7 has a single frame"):
        measure_gap(twin, [*good, episode(7, twin.units, good[0].action[:1], good[0].state[:1])], backend=backend)
    fast = episode(8, twin.units, good[0].action, good[0].state, time=np.arange(len(good[0])) / 50)
    with pytest.raises(LogError, match=r"Episode 8 has 50.00 Hz, but the log has 30.00 Hz"):
        measure_gap(twin, [*good, fast], backend=backend)
    with pytest.raises(UnknownNameError, match="actuator/elbow_flex/kp"):
        measure_gap(twin, good, backend=backend, params={"actuator/elbow_flex/kpp": 1.0})
    with pytest.raises(BoundsError, match="outside its physical bounds"):
        measure_gap(twin, good, backend=backend, params={"actuator/elbow_flex/kp": -1.0})
    partial = UnitMap(joints=twin.units.joints[:5], source="test")
    with pytest.raises(LogError, match="no joint gripper"):
        measure_gap(twin, [episode(0, partial, good[0].action[:, :5], good[0].state[:, :5])], backend=backend)


def test_replays_are_the_same_on_every_backend_and_in_portions(twin, backend, monkeypatch):
    episodes = log_of(twin, backend, {}, count=2, nframe=25)
    logs = prepare_replay(twin, episodes)
    table = twin.table(3, {"actuator/elbow_flex/delay": [0.0, 0.033, 0.1]})
    fast = replay(backend, logs, table)
    assert fast.shape == (3, 2, 25, 6)
    assert np.array_equal(fast, replay(open_backend("reference"), logs, table))
    monkeypatch.setattr("twinloop.simulate.replay._MOST_WORLDS", 4)
    assert np.array_equal(fast, replay(backend, logs, table))
    assert np.array_equal(fast[2, 1], replay(backend, logs.take([1]), table.take([2]))[0, 0])


def test_a_replay_that_is_lost_is_refused_by_episode(twin, backend):
    good = log_of(twin, backend, {}, count=2, nframe=30)
    wild = episode(9, twin.units, good[1].action, np.full_like(good[1].state, 1e14))
    with pytest.raises(InputError, match="so101_tabletop diverges in episode 9"):
        measure_gap(twin, [good[0], wild], backend=backend)


def test_all_tables_show_a_channel_in_the_unit_of_its_row():
    row = ChannelRow(row=1, name="elbow", unit="mrad", factor=1e3)
    values = np.array([1.0, 2.341e-4])
    assert row.format_value(values) == "0.234"
    assert row.format_estimate(Interval.of(values, values / 2, values * 2, level=0.95, method="")) == (
        "0.234 [0.117, 0.468]"
    )
