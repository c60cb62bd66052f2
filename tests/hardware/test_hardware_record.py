"""Recording: the same through the protocol and in a batch, honest about time and source, good enough for the loop."""

from __future__ import annotations

import numpy as np
import pytest

from twinloop.core.errors import InputError, LogError
from twinloop.dataset.logs.conversion import write_log_dataset
from twinloop.dataset.logs.formats import load_log
from twinloop.hardware.arms import CommandQueue, VirtualArms
from twinloop.hardware.hidden import draw_hidden
from twinloop.hardware.protocol import WallClock
from twinloop.hardware.record import drive, record
from twinloop.hardware.teleop_motion import interpolate_minimum_jerk, teleop_commands
from twinloop.hardware.virtual import VirtualRobot, virtual_log
from twinloop.simulate import open_backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import prepare_replay
from twinloop.twin import load_twin

TWIN = load_twin("so101_tabletop")


@pytest.mark.parametrize("name", ["so101_tabletop", "panda_tabletop", "double_pendulum"])
def test_a_batch_is_the_one_by_one_recording_bit_for_bit(name):
    seconds = 3.0
    together = virtual_log(7, twin=name, episodes=3, seconds=seconds, nthread=2)
    twin = load_twin(name)
    for number in (0, 2) if name == "so101_tabletop" else (1,):
        robot = VirtualRobot(name, seed=7, session=number)
        robot.connect()
        commands = teleop_commands(twin, seed=7, episodes=[number], seconds=seconds)[0]
        alone = record(robot, commands, twin.control_hz)
        for part in ("time", "action", "state"):
            np.testing.assert_array_equal(getattr(alone, part), getattr(together[number], part))
    assert np.ptp(together[0].state, axis=0).max() > 0.05


def test_an_episode_does_not_depend_on_which_others_are_made():
    some = virtual_log(3, twin="so101_tabletop", episodes=[5, 1], seconds=3.0)
    assert [e.index for e in some] == [5, 1]
    np.testing.assert_array_equal(
        some[1].state, virtual_log(3, twin="so101_tabletop", episodes=2, seconds=3.0)[1].state
    )


def test_a_log_says_what_it_is():
    episode = virtual_log(3, twin="so101_tabletop", episodes=1, seconds=3.0)[0]
    assert (episode.source, episode.robot_type) == ("sim", "so101_follower")
    assert episode.origin == "virtual:so101_tabletop?seed=3"
    assert episode.units == TWIN.units
    assert [unit.unit for unit in episode.units.joints] == ["deg"] * 5 + ["range_0_100"]


@pytest.mark.parametrize(("twin", "command"), [("so101_tabletop", "position"), ("double_pendulum", "torque")])
def test_a_log_says_what_a_command_is(twin, command):
    [episode] = virtual_log(1, twin=twin, episodes=1, seconds=3.0, nthread=1)
    assert episode.command == command


def test_times_are_true_late_by_the_clock_and_never_drift():
    late = np.concatenate(
        [e.time - np.arange(len(e)) / 30 for e in virtual_log(3, twin="so101_tabletop", episodes=4, seconds=5.0)]
    )
    longest = draw_hidden(TWIN, 3).clock_jitter_s
    assert late.min() >= -1e-9
    assert late.max() <= longest + TWIN.dt / 2 + 1e-9  # time goes in physics steps
    assert late.std() > 0.2 * longest
    assert late.mean() == pytest.approx(longest / 2, abs=0.2 * longest)


def test_a_log_goes_through_the_dataset_and_into_a_replay(tmp_path):
    log = virtual_log(3, twin="so101_tabletop", episodes=2, seconds=3.0)
    back = load_log(write_log_dataset(log, tmp_path / "log"))
    np.testing.assert_array_equal(back[1].state, log[1].state)
    np.testing.assert_array_equal(back[1].time, log[1].time)
    assert {e.source for e in back} == {"sim"}
    logs = prepare_replay(TWIN, back)
    assert logs.twin.control_hz == 30.0
    answer = replay(open_backend(), logs, logs.twin.table(1))
    assert np.isfinite(answer).all()


def test_what_cannot_be_recorded_is_named():
    robot = VirtualRobot("so101_tabletop", seed=3)
    robot.connect()
    with pytest.raises(InputError, match=r"shape \(2,\); virtual:so101_tabletop\?seed=3 has 6 joints: shoulder_pan"):
        record(robot, [[0.0, 1.0]], 30.0)
    with pytest.raises(InputError, match="A rate of 0 Hz is not possible"):
        record(robot, np.zeros((2, 6)), 0.0)
    with pytest.raises(LogError, match=r"virtual:so101_tabletop\?seed=3 is empty"):
        record(robot, [], 30.0)
    with pytest.raises(InputError, match="2 s are too short"):
        virtual_log(3, twin="so101_tabletop", episodes=1, seconds=2.0)


def test_the_wall_clock_sleeps_as_long_as_it_is_told_and_not_into_the_past():
    clock = WallClock()
    start = clock.now()
    clock.wait_until(start + 0.02)
    slept = clock.now() - start
    clock.wait_until(start)
    assert 0.02 <= slept < 0.5
    assert clock.now() - start < slept + 0.5


class TestCommandLine:
    def test_a_command_is_in_force_from_its_arrival_and_none_overtakes(self):
        line, zero = CommandQueue(np.array([[0.0]])), np.zeros(1, dtype=int)
        for value, sent, arrival in ((1.0, 0, 10.0), (2.0, 4, 7.0), (3.0, 8, 12.5)):
            line.send(np.array([[value]]), np.array([[arrival]]), zero + sent)
        forces = [float(line.active_command(zero + step)[0, 0]) for step in range(15)]
        assert forces == [0.0] * 10 + [2.0] * 3 + [3.0] * 2

    def test_it_forgets_what_can_no_longer_be_in_force(self):
        line = CommandQueue(np.zeros((2, 3)))
        for step in range(500):
            now = np.full(2, step)
            line.send(np.full((2, 3), float(step)), now[:, None] + np.full((2, 3), 20.0), now)
            expected = max(step - 20, 0) if step >= 20 else 0
            assert (line.active_command(now) == expected).all()
        assert line._commands.shape[1] <= 22


class TestMotion:
    commands = teleop_commands(TWIN, seed=0, episodes=range(12))

    def test_it_begins_and_ends_at_home_within_the_limits(self):
        si = TWIN.units.to_si(self.commands)
        low, high = TWIN.joint_ranges.T
        assert ((si >= low) & (si <= high)).all()
        home = TWIN.home()[0][TWIN.joint_qpos]
        assert np.abs(si[:, 0] - home).max() < 1e-3
        assert np.abs(si[:, -1] - home).max() < 1e-3

    def test_it_moves_as_the_real_log_does(self):
        """See the module: fast lift and elbow, pauses, the hand opening and closing."""
        speed = np.abs(np.diff(np.degrees(TWIN.units.to_si(self.commands)), axis=1)) * 30
        assert 80 < np.percentile(speed[..., 1], 99) < 240
        assert 80 < np.percentile(speed[..., 2], 99) < 240
        assert 0.15 < (speed < 3).all(axis=-1).mean() < 0.45
        grip = self.commands[..., 5]
        assert (np.ptp(grip, axis=1) > 20).mean() > 0.8

    def test_it_comes_in_counts_of_the_leader(self):
        si = TWIN.units.to_si(self.commands) / (2 * np.pi / 4096)
        np.testing.assert_allclose(si, np.round(si), atol=1e-6)

    def test_episodes_differ_and_seeds_too(self):
        again = teleop_commands(TWIN, seed=0, episodes=[3])[0]
        np.testing.assert_array_equal(again, self.commands[3])
        assert np.abs(teleop_commands(TWIN, seed=1, episodes=[3])[0] - again).max() > 5
        assert np.abs(self.commands[2] - again).max() > 5

    def test_minimum_jerk_peaks_at_fifteen_eighths_of_its_mean_speed(self):
        time = np.linspace(0, 2, 2001)
        path = interpolate_minimum_jerk([0.0, 2.0], [np.zeros(1), np.ones(1)], time)[:, 0]
        speed = np.gradient(path, time)
        assert speed.max() == pytest.approx(1.875 / 2, rel=1e-4)
        assert (path[0], path[1000], path[-1]) == pytest.approx((0.0, 0.5, 1.0))
        assert abs(speed[0]) < 1e-3


@pytest.mark.slow
def test_no_setting_of_the_nominal_twin_explains_a_virtual_robot():
    """Even with every true parameter, and gain, damping, friction and delay fitted on top, more than noise remains."""
    seed, joints = 3, TWIN.robot.joints
    hidden = draw_hidden(TWIN, seed)
    log = virtual_log(seed, twin="so101_tabletop", episodes=2, seconds=8.0)
    commands = teleop_commands(TWIN, seed=seed, episodes=range(2), seconds=8.0).swapaxes(0, 1)
    again = drive(VirtualArms(TWIN, hidden, seed=seed, sessions=[100, 101]), iter(commands), 30.0)
    noise = rms(again.state - np.stack([episode.state for episode in log])) / np.sqrt(2)  # of one run
    logs = prepare_replay(TWIN, log)

    def residual(points):
        values = {name: np.full(len(points), value) for name, value in hidden.params.items()}
        for joint in joints:
            values[f"actuator/{joint}/kp"] *= np.exp(points[:, 0])
            values[f"joint/{joint}/damping"] *= np.exp(points[:, 1])
            values[f"joint/{joint}/frictionloss"] *= np.exp(points[:, 2])
            values[f"actuator/{joint}/delay"] += points[:, 3] + hidden.command_jitter_s / 2
        error = replay(open_backend(), logs, logs.twin.table(len(points), values)) - logs.measured
        return error - error.mean(axis=(1, 2), keepdims=True)  # the best bias of each joint

    best, change = np.zeros(4), np.diag([0.05, 0.05, 0.2, 0.003])
    for _ in range(3):  # Gauss-Newton
        errors = residual(np.vstack([best, best + change])).reshape(5, -1)
        jacobian = (errors[1:] - errors[0]).T / np.diag(change)
        best = best - np.linalg.lstsq(jacobian, errors[0], rcond=None)[0]
    left = rms(residual(best[None])[0])
    assert left.mean() > 1.8 * noise.mean()
    assert (left > noise).all()


def rms(error):
    """Root mean square per joint."""
    return np.sqrt(np.mean(error**2, axis=(0, 1)))
