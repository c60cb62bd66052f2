"""The dynamics gap as a whole: a twin against itself, planted errors, portions, contact, single logs, real logs."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from benchmarks.error_rates.gap.dynamics import ratio_tally, skill_tally
from support.gap_logs import arm_log, arm_twin, episode
from support.real_data import real_set
from twinloop.core.errors import InputError, LogError
from twinloop.dataset.logs.resampling import resample
from twinloop.dataset.logs.sets.pendulums import read_rollouts
from twinloop.dataset.logs.sets.registry import load
from twinloop.gap import measure_gap
from twinloop.simulate import open_backend
from twinloop.simulate.replay_logs import ReplayOptions
from twinloop.twin import load_twin
from twinloop.workflows.gap.options import build_replay_options
from twinloop.workflows.gap.requests import ComparisonOptions

WINDOWS = ReplayOptions(window=1.0, start="measured")
SIGMA = 0.003


@pytest.fixture(scope="module")
def backend():
    return open_backend("threads", nthread=1)


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    return arm_twin(tmp_path_factory.mktemp("arm"))


def test_a_twin_against_itself_has_the_planted_noise_and_nothing_else(twin, backend):
    report = measure_gap(twin, arm_log(twin, backend, {}, noise=SIGMA, count=8), backend=backend)
    assert report.rmse["nominal"].covers(SIGMA).all()
    assert report.delay.delay.estimate == pytest.approx([0.0, 0.0], abs=5e-4)
    assert report.delay.gain.covers(1.0).all()
    assert (report.skills["best"].low > 0.8).all()
    assert report.overall_skill.low > 0.8
    flat = report.curves["nominal"].estimate
    assert flat == pytest.approx(np.full_like(flat, SIGMA), rel=0.25)


def test_error_grows_with_a_planted_error_and_with_the_horizon(twin, backend):
    found = []
    for damping in (0.2, 0.24, 0.3, 0.4):
        log = arm_log(twin, backend, {"joint/elbow/damping": damping})
        report = measure_gap(twin, log, backend=backend, options=WINDOWS)
        found.append(report.rmse["nominal"].estimate[1])
        last = report.curves["nominal"].estimate[:, 1]
    assert found == sorted(found)
    assert found[1] > 2 * found[0]
    assert last[:3].mean() < last[3:].mean()


def test_portions_and_one_pass_give_the_same_report(twin, backend):
    log = arm_log(twin, backend, {"joint/elbow/damping": 0.3}, noise=SIGMA, scripts=(0, 0, 0, 0, 1, 1))

    class Anew:
        def __iter__(self):
            return iter(log)

    once = measure_gap(twin, log, backend=backend, options=WINDOWS, batch=99).to_json()
    parts = measure_gap(twin, Anew(), backend=backend, options=WINDOWS, batch=2).to_json()
    np.testing.assert_equal(_rounded(parts), _rounded(once))
    with pytest.raises(InputError, match="Give a list, or an iterable that can be read again"):
        measure_gap(twin, iter(log), backend=backend)


def _rounded(value):
    """Sums of portions differ in their last digits."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) and abs(value) > 1e-9 else value


def test_one_long_log_is_drawn_again_in_stretches_of_time(twin, backend):
    log = arm_log(twin, backend, {"joint/elbow/damping": 0.3}, noise=SIGMA, count=1, seconds=80.0)
    report = measure_gap(twin, log, backend=backend, options=WINDOWS)
    assert "blocks of about" in report.interval_method
    assert (report.best.low < report.best.estimate).all()
    assert report.episode_errors["nominal"].shape == (1, 2)
    short = measure_gap(twin, [log[0]], backend=backend)
    assert "one episode, no interval" in short.interval_method
    assert "nan" not in short.text()


def test_the_worst_clip_is_the_one_that_was_spoilt(twin, backend):
    log = arm_log(twin, backend, {}, noise=SIGMA)
    spoilt = log[3].state.copy()
    spoilt[110:140, 1] += 0.2
    log[3] = episode(3, log[3].units, log[3].action, spoilt, time=log[3].time)
    worst = measure_gap(twin, log, backend=backend, options=WINDOWS).worst
    assert (worst[0].episode, worst[0].begin, worst[0].channel) == (3, 2.0, "position/elbow")
    assert len({clip.episode for clip in worst}) == 3


def test_constant_velocity_and_hold_are_what_they_say(twin, backend):
    log = arm_log(twin, backend, {}, count=4)
    hz = twin.control_hz
    report = measure_gap(twin, log, backend=backend, options=ReplayOptions(window=0.1, start="measured"))
    errors, held = [], []
    for one in log:
        speed = np.gradient(one.state, one.time, axis=0)
        for begin in range(0, len(one) - 5, 5):
            ahead = np.arange(1, 6)[:, None]
            errors.append(one.state[begin] + speed[begin] * ahead / hz - one.state[begin + 1 : begin + 6])
            held.append(one.state[begin] - one.state[begin + 1 : begin + 6])
    for name, by_hand in (("constant velocity", errors), ("hold", held)):
        assert report.rmse[name].estimate == pytest.approx(np.sqrt(np.mean(np.square(by_hand), axis=(0, 1))))


def test_what_is_asked_on_the_command_line_becomes_options(twin, backend):
    log = arm_log(twin, backend, {}, count=1)
    cube = load_twin("cube_toss")
    assert build_replay_options(ComparisonOptions(), twin, log).window == 1.0
    assert build_replay_options(ComparisonOptions(window=0.0), twin, log).window is None
    assert not build_replay_options(ComparisonOptions(), twin, log).contacts
    with pytest.raises(InputError, match="--window -1: give seconds"):
        build_replay_options(ComparisonOptions(window=-1.0), twin, log)
    with pytest.raises(InputError, match="--stride 0.5: give seconds between windows, and a --window"):
        build_replay_options(ComparisonOptions(window=0.0, stride=0.5), twin, log)
    with pytest.raises(InputError, match=r"--condition mass: write PARAMETER=CONDITION"):
        build_replay_options(ComparisonOptions(condition=("mass",)), twin, log)
    with pytest.raises(InputError, match=r"no robot, and the log no pose of its free bodies \(pose/cube"):
        build_replay_options(ComparisonOptions(), cube, log)


def test_mistakes_are_named(twin, backend):
    log = arm_log(twin, backend, {}, count=2)
    with pytest.raises(InputError, match="Windows of 9 s do not fit: the longest episode lasts 3.98 s"):
        measure_gap(twin, log, backend=backend, options=ReplayOptions(window=9.0))
    with pytest.raises(LogError, match="has no signal joint_velocity"):
        measure_gap(twin, log, backend=backend, options=ReplayOptions(compare=("velocity",)))


def test_intervals_hold_the_truth_as_often_as_they_say():
    tally = skill_tally(10, 40, 0)
    assert tally.covered >= 35
    right = ratio_tally(10, np.zeros(10, dtype=np.intp), 1.0, 12, 0)
    assert right.above <= 2
    assert right.covered >= 10
    wrong = ratio_tally(20, np.zeros(20, dtype=np.intp), 1.5, 8, 0)
    assert wrong.above >= 7


def test_tosses_are_told_apart_by_contact(backend):
    real_set("contactnets_cube_tosses")
    tosses = load("contactnets_cube_tosses")[0][:12]
    cube = load_twin("cube_toss")
    report = measure_gap(cube, tosses, backend=backend, options=build_replay_options(ComparisonOptions(), cube, tosses))
    assert [phase.name for phase in report.phases] == ["free", "contact onset", "contact"]
    distance = [phase.rmse["nominal"].estimate[0] for phase in report.phases]
    assert distance == sorted(distance)  # in the air nothing but the first state is wrong
    assert report.sizes["cube"] == pytest.approx(0.1048, rel=0.03)
    assert report.skill()[0] > 0.8
    assert "of its distance divided by its largest extent" in report.text()


@pytest.mark.slow
def test_the_so101_loses_to_a_pure_delay_before_it_is_identified(backend):
    real_set("so101_pick_place_tape")
    log = load("so101_pick_place_tape")[0]
    report = measure_gap(load_twin("so101_tabletop"), log, backend=backend, options=WINDOWS)
    assert report.rmse["delay"].estimate == pytest.approx([0.338, 1.407, 1.540, 0.522, 0.290, 1.567], rel=0.02)
    assert (report.skill("command") > 0.6).all()
    assert (report.skill("delay")[:5] < 0).all()
    assert report.floor is None


@pytest.mark.slow
def test_a_servo_is_measured_under_the_gain_that_each_log_states(backend):
    real_set("bam_servo")
    log = [piece for one in load("bam_servo")[0] for piece in resample(one, 150.0)]
    log = [replace(piece, index=number) for number, piece in enumerate(log)]
    servo = load_twin("xl330_pendulum")
    told = ComparisonOptions(condition=("actuator/pendulum/firmware_gain=firmware_kp",))
    right = measure_gap(servo, log, backend=backend, options=build_replay_options(told, servo, log))
    wrong = measure_gap(servo, log, backend=backend, options=build_replay_options(ComparisonOptions(), servo, log))
    assert right.overall_skill.low > 0.5
    assert right.rmse["nominal"].estimate[0] < 0.8 * wrong.rmse["nominal"].estimate[0]
    assert right.floor is None  # equal commands, but under unlike gains


@pytest.mark.slow
def test_repeated_rollouts_of_a_pendulum_have_a_floor(backend):
    folder = real_set("dfki_double_pendulum")
    rollouts = [raw.to_episode() for raw in islice(read_rollouts(folder), 10)]
    options = ReplayOptions(window=0.5, start="measured", torque="measured")
    report = measure_gap(load_twin("double_pendulum"), rollouts, backend=backend, options=options, repeats="task")
    assert report.floor.groups == (tuple(range(10)),)
    assert np.isfinite(report.floor.floor.low).all()
    assert (report.skill() > 0).all()
    assert (report.floor.floor.estimate > 0).all()


def test_many_episodes_share_rows_of_sums_with_their_neighbours(twin, backend, monkeypatch):
    log = arm_log(twin, backend, {"joint/elbow/damping": 0.3}, noise=SIGMA, count=12, seconds=2.0)
    plain = measure_gap(twin, log, backend=backend, batch=5)
    monkeypatch.setattr("twinloop.gap.dynamics.intervals._MOST_ROWS", 4)
    shared = measure_gap(twin, log, backend=backend, batch=5)
    assert shared.interval_method == "bca bootstrap over 4 groups of neighbours among 12 episodes"
    assert shared.best.estimate == pytest.approx(plain.best.estimate)
    assert shared.delay.delay.estimate == pytest.approx(plain.delay.delay.estimate, abs=1e-9)
    assert shared.episode_errors["nominal"] == pytest.approx(plain.episode_errors["nominal"])
    assert (shared.best.low < shared.best.estimate).all()
