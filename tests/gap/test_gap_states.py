"""States and actions: zero without a gap, growing with a planted one, named by channel and feature, clear refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from support.real_data import real_set
from twinloop.core.errors import InputError, LogError, UnitsError
from twinloop.core.records import Episode
from twinloop.core.units import JointUnit, UnitMap
from twinloop.encoders.trajectory import trajectory_features
from twinloop.gap.trajectories.match import match_clips
from twinloop.gap.trajectories.measure import format_verdict, list_differences, measure_trajectories
from twinloop.simulate import open_backend
from twinloop.twin import load_twin
from twinloop.workflows.data.logs import LogEpisodes
from twinloop.workflows.gap.data import ComparisonTarget, apply_twin_ranges, compare_logs, replay_episodes
from twinloop.workflows.gap.requests import GapDataRequest

HZ, LAG, SECONDS = 30.0, 0.1, 8.0
JOINTS = ("shoulder", "elbow", "gripper")


def units(unit: str = "rad", scale: float | None = 1.0) -> UnitMap:
    offset = None if scale is None else 0.0
    rows = tuple(JointUnit(joint=name, unit=unit, scale=scale, offset=offset) for name in JOINTS)
    return UnitMap(joints=rows, source="test")


def episodes(seed: int, count: int = 8, *, lag: float = LAG, noise: float = 1e-3, gain: float = 1.0, hz: float = HZ):
    """Joints that follow sums of sines, as a position servo would; planted faults are the elbow's."""
    made = []
    for index in range(count):
        random = np.random.default_rng((seed, index))
        time = np.arange(0, SECONDS, 1 / hz)
        pace, turn = random.uniform(0.2, 0.7, (3, 3)), random.uniform(0, 6.3, (3, 3))

        def path(at, pace=pace, turn=turn):
            return 0.4 * np.sin(2 * np.pi * pace * at[:, None, :] + turn).sum(axis=1)

        action = path(np.tile(time[:, None], 3))
        late = np.array([LAG, lag, LAG])
        state = path(time[:, None] - late) * np.array([1, gain, 1])
        state += np.array([1e-3, noise, 1e-3]) * random.normal(size=state.shape)
        made.append(Episode(index=index, time=time, action=action, state=state, units=units(), origin="made"))
    return made


@pytest.fixture(scope="module")
def real():
    return episodes(0)


def in_unit(episode: Episode, map_: UnitMap, scale: float) -> Episode:
    return replace(episode, units=map_, action=episode.action / scale, state=episode.state / scale)


def feature(real, sim, name: str):
    matched = match_clips(real, sim, clip_s=2.0)
    features, a, b = trajectory_features(matched.real, matched.sim)
    column = [one.name for one in features].index(name)
    return features[column], a[:, column], b[:, column]


def test_features_have_their_planted_values_and_units(real):
    about, mine, theirs = feature(real, episodes(1, lag=0.15, noise=5e-3), "elbow/lag")
    assert about.unit == "s"
    assert np.median(mine) == pytest.approx(LAG, abs=0.01)
    assert np.median(theirs) == pytest.approx(0.15, abs=0.01)
    about, mine, theirs = feature(real, episodes(1, noise=5e-3), "elbow/jerk_rms")
    assert about.unit == "rad/s³"
    # third differences of white noise have a variance of 20 times its own (1 + 9 + 9 + 1)
    assert np.median(theirs) == pytest.approx(np.sqrt(20) * 5e-3 * HZ**3, rel=0.1)


def test_a_sine_has_its_level_speed_and_band():
    time = np.arange(0, 4, 1 / HZ)
    wave = 0.3 + 0.5 * np.sin(2 * np.pi * 2.0 * time)[:, None] * np.ones(3)
    one = [Episode(index=i, time=time, action=wave, state=wave * (1 + i), units=units()) for i in range(2)]
    assert feature(one, one, "elbow/position_mean")[1][0] == pytest.approx(0.3, abs=0.01)
    assert feature(one, one, "elbow/speed_rms")[1][0] == pytest.approx(0.5 * 4 * np.pi / np.sqrt(2), rel=0.02)
    assert feature(one, one, "elbow/middle_rms")[1][0] == pytest.approx(0.5 / np.sqrt(2), rel=0.05)
    assert feature(one, one, "elbow/slow_rms")[1][0] < 0.12  # what a straight line leaves of it


def test_a_gripper_that_closes_once_a_second_is_counted():
    time = np.arange(0, 8, 1 / HZ)
    grip = np.where((time % 1.0) < 0.5, 0.0, 1.0)[:, None] * np.ones(3)
    one = [Episode(index=i, time=time, action=grip, state=grip + 0.01 * i, units=units()) for i in range(2)]
    still = [replace(episode, state=np.ones_like(grip)) for episode in one]
    about, values, none = feature(one, still, "gripper/closings")
    assert (about.family, about.unit) == ("gripper", "1/s")
    assert values.mean() == pytest.approx(1.0, abs=0.51)  # a clip cut while closed misses one of two
    assert not none.any()


def test_two_draws_of_one_source_show_no_gap(real):
    gap = measure_trajectories(real, episodes(3), draws=199)
    assert gap.mmd.distance.covers(0.0)
    assert gap.energy.distance.covers(0.0)
    assert gap.classifier.auc.covers(0.5)
    assert min(gap.mmd.p_value, gap.energy.p_value, gap.classifier.p_value) > 0.05
    assert list_differences(gap) == []
    assert format_verdict(gap).startswith("Clips cannot be distinguished")


def test_the_gap_grows_with_a_planted_lag_which_is_named(real):
    gaps = [measure_trajectories(real, episodes(1, lag=LAG + more), draws=199) for more in (0.0, 0.02, 0.06)]
    alone = [float(gap.by_channel["elbow"].auc.estimate) for gap in gaps]
    assert alone == sorted(alone)
    last = gaps[-1]
    assert last.p_channel["elbow"] <= 0.05
    assert min(last.p_channel["shoulder"], last.p_channel["gripper"]) > 0.05
    moved = dict(zip(last.columns.columns, last.columns.distance.estimate, strict=True))
    assert moved["elbow/lag"] == pytest.approx(0.06, abs=0.01)
    sentence = next(line for line in list_differences(last) if "follows the command" in line)
    assert sentence.startswith("elbow: time by which the position follows the command is 1.6 times as large")
    assert "elbow" in format_verdict(last)


def test_a_twin_that_replays_itself_has_no_gap_at_all(real):
    again = [replace(episode, source="sim") for episode in real]
    gap = measure_trajectories(real, again, paired=True, draws=199)
    assert gap.mmd.distance.estimate == pytest.approx(0, abs=1e-12)
    assert gap.classifier.auc.estimate == 0.5
    assert gap.mmd.p_value == gap.classifier.p_value == 1
    assert not gap.columns.distance.estimate.any()
    changed = measure_trajectories(real, episodes(0, lag=LAG + 0.01), paired=True, draws=199)
    assert changed.classifier.p_value <= 0.05  # ten milliseconds, seen in pairs


def test_units_are_converted_where_logs_say_them_and_refused_where_not(real):
    degrees = [in_unit(e, units("deg", np.pi / 180), np.pi / 180) for e in episodes(1)]
    plain, told = (measure_trajectories(real, sim, draws=0) for sim in (episodes(1), degrees))
    assert told.mmd.distance.estimate == pytest.approx(plain.mmd.distance.estimate)
    assert {f.unit for f in told.features if f.kind == "position_mean"} == {"rad"}
    unknown = [in_unit(e, units("range_m100_100", None), 0.01) for e in episodes(1)]
    with pytest.raises(UnitsError, match=r"shoulder is in rad in the real log and in range_m100_100 in the simulated"):
        measure_trajectories(real, unknown)
    alike = [in_unit(e, units("range_m100_100", None), 0.01) for e in real]
    kept = measure_trajectories(alike, unknown, draws=0)
    assert kept.features[0].unit == "u"
    assert "u: shoulder in range_m100_100" in kept.notes[0]


def test_rates_that_differ_are_resampled_to_the_slower_and_said(real):
    gap = measure_trajectories(real, episodes(1, hz=60.0), draws=0)
    assert gap.rate_hz == pytest.approx(HZ, rel=0.01)
    assert any("resampled from 60" in note for note in gap.notes)
    assert gap.classifier.auc.covers(0.5)


def test_channels_that_only_one_side_has_are_left_out_by_name(real):
    def without(episode: Episode) -> Episode:
        kept = UnitMap(joints=(episode.units.joints[1], episode.units.joints[0]), source="test")
        return replace(episode, units=kept, action=episode.action[:, [1, 0]], state=episode.state[:, [1, 0]])

    gap = measure_trajectories(real, [without(e) for e in episodes(1)], draws=0)
    assert set(gap.by_channel) == {"shoulder", "elbow"}
    assert any("only the real set has it: gripper" in note for note in gap.notes)
    assert gap.classifier.auc.covers(0.5)  # columns were put in one order
    renamed = UnitMap(joints=tuple(replace(u, joint=u.joint + "_2") for u in units().joints), source="test")
    with pytest.raises(LogError, match="The real log has shoulder, elbow, gripper, .* no channel in common"):
        measure_trajectories(real, [replace(e, units=renamed) for e in real])


def test_what_cannot_be_compared_is_refused_with_what_it_needs(real):
    with pytest.raises(InputError, match="4 real and 3 simulated episodes are too few .* it needs 5 of each"):
        measure_trajectories(real[:4], episodes(1, count=3))
    with pytest.raises(LogError, match="No episode is 20 s long; the longest lasts 7.97 s"):
        measure_trajectories(real, real, clip_s=20.0)
    with pytest.raises(LogError, match="Commands are position in the real log and none"):
        measure_trajectories(real, [replace(e, command="none") for e in real])
    with pytest.raises(LogError, match="no simulated episode"):
        measure_trajectories(real, [])
    with pytest.raises(InputError, match="Clips of 0 s are not possible"):
        measure_trajectories(real, real, clip_s=0.0)


def log(name: str, rows) -> LogEpisodes:
    return LogEpisodes(name=name, label=name, hash=name, episodes=tuple(rows))


def test_the_command_stores_metrics_a_page_and_judges_conditions(real, tmp_path: Path):
    pytest.importorskip("plotly")
    screen = Console(record=True, width=200, file=(tmp_path / "out").open("w"))
    metrics, code = compare_logs(
        GapDataRequest(real="made", draws=99, output=tmp_path / "run", fail_if=("auc/elbow > 0.8",)),
        log("made", real),
        log("slower", episodes(1, lag=0.2)),
        console=screen,
    )
    screen.file.close()
    assert code == 1
    stored = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (stored["verb"], stored["kind"]) == ("gap", "data")
    assert {"auc", "mmd", "energy", "coverage", "auc/elbow"} <= {row["name"] for row in stored["headline"]}
    assert metrics["findings"][0].startswith("elbow")
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Can simulated trajectories be distinguished from real ones?" in page
    assert "nan" not in stored["verdict"]


def test_a_twin_and_stored_episodes_exclude_each_other(real):
    with pytest.raises(InputError, match="Both --sim and --twin"):
        compare_logs(
            GapDataRequest(real="a", twin="so101_tabletop"), log("a", real), log("b", real), console=Console(quiet=True)
        )
    with pytest.raises(InputError, match="--twin is missing"):
        compare_logs(GapDataRequest(real="a", params=Path("x")), log("a", real), None, console=Console(quiet=True))


def test_joint_ranges_of_a_twin_stand_in_for_a_calibration():
    twin = load_twin("so101_tabletop")
    names, time = twin.robot.joints, np.arange(0, 6, 1 / HZ)
    random = np.random.default_rng(0)

    def arm(map_: UnitMap, seconds: np.ndarray) -> list[Episode]:
        motion = 0.1 * np.sin(seconds[:, None] * random.uniform(1, 4, len(names))) + 0.2
        values = [map_.from_si(motion + 0.01 * index) for index in range(3)]
        return [Episode(index=i, time=seconds, action=v, state=v, units=map_) for i, v in enumerate(values)]

    normal, degrees = twin.unit_map(["range_m100_100"] * len(names)), twin.unit_map(["deg"] * len(names))
    bare = UnitMap(joints=tuple(replace(u, scale=None, offset=None) for u in normal.joints), source="nobody")
    mine = [replace(episode, units=bare) for episode in arm(normal, time)]
    with pytest.raises(UnitsError, match=r"joint ranges replace it \(--ranges\)"):
        match_clips(mine, arm(degrees, time), clip_s=2.0)
    told = apply_twin_ranges(ComparisonTarget(real=mine, sim=arm(degrees, time), paired=False, label="made"), twin)
    matched = match_clips(told.real, told.sim, clip_s=2.0)
    assert set(matched.real.units) == {"rad"}
    np.testing.assert_allclose(matched.real.position.mean(axis=(0, 1)), 0.2, atol=0.12)
    assert "use the joint ranges of so101_tabletop" in told.label


@pytest.mark.slow
def test_a_virtual_robot_against_replays_of_itself_has_no_gap_and_a_weaker_one_has():
    """A twin's own replay is the real side: replaying it shows nothing, and another gain is found at its joint."""
    from twinloop.dataset.logs.sets import registry

    source = registry.load_set("so101_pick_place_tape", real_set("so101_pick_place_tape"))[:10]
    twin, backend = load_twin("so101_tabletop"), open_backend("threads", nthread=1)
    own = replay_episodes(twin, source, {}, backend)
    again = measure_trajectories(own, replay_episodes(twin, own, {}, backend), paired=True, draws=199)
    assert again.classifier.p_value > 0.05
    assert again.mmd.distance.covers(0.0)
    name = "actuator/elbow_flex/kp"
    weak = replay_episodes(twin, own, {name: 0.6 * twin.params[name].nominal}, backend)
    gap = measure_trajectories(own, weak, paired=True, draws=199)
    assert gap.p_channel["elbow_flex"] <= 0.05
    assert max(gap.by_channel, key=lambda joint: float(gap.by_channel[joint].auc.estimate)) == "elbow_flex"
