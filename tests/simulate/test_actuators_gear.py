"""Play is a dead band: the link waits for its motor to cross it, moves freely inside, and is held at its flanks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.one_joint import INERTIA, joints_twin, run
from twinloop.core.errors import InputError, UnknownNameError
from twinloop.core.records import Episode
from twinloop.randomize import Plan, default_draws
from twinloop.rollout import replay_episode, run_batch
from twinloop.simulate import InitialState, open_backend
from twinloop.simulate.replay import replay
from twinloop.simulate.replay_logs import prepare_replay
from twinloop.tasks import open_task
from twinloop.twin import load_twin

FREE = {"joint/j0/frictionloss": 0.0}
FEEDBACK = ("motor", "link")


def geared(folder, **gears):
    return joints_twin(folder, robot={"gears": {"backlash": 0.02, **gears}})


@pytest.fixture(scope="module")
def gear(tmp_path_factory):
    return geared(tmp_path_factory.mktemp("gear"), feedback="motor")


@pytest.fixture(scope="module")
def arm():
    return load_twin("so101_tabletop_geared")


def there_and_back(twin, values, peak=0.3, seconds=4.0):
    """Motor and link positions ``(nstep,)`` under a slow triangle of commands."""
    half = round(seconds / 2 * twin.control_hz)
    ramp = np.concatenate([np.linspace(0, peak, half), np.linspace(peak, 0, half)])
    qpos = run(twin, twin.table(1, values), ramp[None, :, None]).qpos[0]
    return qpos[:, twin.motor_qpos[0]], qpos[:, twin.joint_qpos[0]]


class TestPlay:
    @settings(max_examples=6, deadline=None)
    @given(play=st.floats(0.005, 0.05))
    def test_the_hysteresis_loop_is_as_wide_as_the_play(self, gear, play):
        motor, link = there_and_back(gear, {**FREE, "joint/j0/backlash": play})
        middle = np.linspace(0.1, 0.2, 20)
        half = len(link) // 2
        there = np.interp(middle, link[:half], motor[:half])
        back = np.interp(middle, link[half:][::-1], motor[half:][::-1])
        np.testing.assert_allclose(there - back, play, atol=2e-4)

    def test_the_link_waits_at_the_turn_while_its_motor_crosses_the_play(self, gear):
        motor, link = there_and_back(gear, {**FREE, "joint/j0/backlash": 0.04})
        turned = int(np.argmax(motor))
        crossed = turned + int(np.argmax(motor[turned:] < motor[turned] - 0.035))
        assert np.ptp(motor[turned:crossed]) > 10 * np.ptp(link[turned:crossed])

    def test_inside_the_play_a_link_flies_free_of_its_motor(self, gear):
        """Only the grease between the flanks slows it: speed falls with inertia over 0.01 N·m·s/rad."""
        speed, qvel = 0.1, np.zeros((1, gear.model.nv))
        qvel[0, gear.joint_qvel] = speed
        values = {**FREE, "joint/j0/backlash": 0.06, "joint/j0/armature": 50.0}
        twin = gear
        bearing = twin.model.dof_frictionloss.copy()
        twin.model.dof_frictionloss[:] = 0.0
        try:
            start = replace(InitialState.home(twin, 1), qvel=qvel)
            result = run(twin, twin.table(1, values), np.zeros((1, 25, 1)), initial=start)
        finally:
            twin.model.dof_frictionloss[:] = bearing
        seconds = np.arange(26) / twin.control_hz
        slowed = np.exp(-0.01 / INERTIA * seconds)
        np.testing.assert_allclose(result.qvel[0, :, twin.joint_qvel[0]], speed * slowed, rtol=2e-3)
        assert np.abs(result.qvel[0, :, twin.motor_qvel[0]]).max() < 1e-4

    def test_each_world_has_the_play_it_was_given(self, arm):
        """From flank to flank in the joints that gravity does not hold at one of them, as commands go to and fro."""
        light = [arm.robot.joints.index(name) for name in ("shoulder_pan", "wrist_roll", "gripper")]
        rng = np.random.default_rng(0)
        play = rng.uniform(0.004, 0.03, (4, 6))
        values = {f"joint/{name}/backlash": play[:, i] for i, name in enumerate(arm.robot.joints)}
        wave = 0.25 * np.sin(2 * np.pi * np.arange(90) / 45)[None, :, None] * np.ones((4, 1, 6))
        qpos = run(arm, arm.table(4, values), arm.home()[1] + wave).qpos
        gap = (qpos[..., arm.motor_qpos] - qpos[..., arm.joint_qpos])[..., light]
        spread = np.quantile(gap, 0.95, axis=1) - np.quantile(gap, 0.05, axis=1)
        np.testing.assert_allclose(spread, play[:, light], atol=5e-4)


class TestFeedback:
    @pytest.mark.parametrize("feedback", FEEDBACK)
    def test_a_loaded_joint_rests_where_the_side_of_its_encoder_says(self, tmp_path, feedback):
        """Against a spring s on the link: kp (c − link) = s link, or kp (c − link − play/2) = s link."""
        twin, play, spring, command = geared(tmp_path, feedback=feedback), 0.04, 5.0, 0.5
        twin.model.jnt_stiffness[twin.model.joint("j0").id] = spring
        table = twin.table(1, {**FREE, "joint/j0/backlash": play})
        link = run(twin, table, np.full((1, 300, 1), command)).qpos[0, -1, twin.joint_qpos[0]]
        seen = command if feedback == "link" else command - play / 2
        assert link == pytest.approx(8.9 * seen / (8.9 + spring), abs=1.5e-3)  # dry friction of the bearing: 1 mrad


class TestWindUp:
    @pytest.mark.parametrize("stiffness", [40.0, 100.0])
    def test_a_loaded_gear_winds_up_by_torque_over_stiffness(self, tmp_path, stiffness):
        twin, spring = geared(tmp_path, stiffness=60.0, feedback="motor"), 5.0
        twin.model.jnt_stiffness[twin.model.joint("j0").id] = spring
        table = twin.table(1, {**FREE, "joint/j0/backlash": 0.01, "joint/j0/gear_stiffness": stiffness})
        qpos = run(twin, table, np.full((1, 400, 1), 0.8)).qpos[0, -1]
        motor, link = qpos[twin.motor_qpos[0]], qpos[twin.joint_qpos[0]]
        assert motor - link - 0.005 == pytest.approx(spring * link / stiffness, rel=0.02)

    def test_a_gear_stiffer_than_the_step_can_follow_is_refused(self, tmp_path):
        with pytest.raises(InputError, match=r"elastic gear of j0 \(1e\+06 N·m/rad\) is too stiff .* most 7\.4e\+03 N"):
            geared(tmp_path, stiffness=1e6)


class TestWholeRobot:
    def test_both_backends_agree_bit_for_bit(self, arm):
        plan = Plan(twin=arm, run_seed=3, draws=tuple(default_draws(arm)))
        table, start = plan.draw(range(3)), InitialState.home(arm, 3)
        commands = arm.home()[1] + 0.2 * np.sin(np.arange(8))[None, :, None] * np.ones((3, 1, 6))
        runs = [run(arm, table, commands, backend=name, initial=start) for name in ("reference", "threads")]
        np.testing.assert_array_equal(runs[0].states, runs[1].states)

    def test_home_is_the_plain_robots_home(self, arm):
        plain = load_twin("so101_tabletop")
        for places in (arm.joint_qpos, arm.motor_qpos):
            np.testing.assert_array_equal(arm.home()[0][places], plain.home()[0][plain.joint_qpos])
        np.testing.assert_array_equal(arm.home()[1], plain.home()[1])
        np.testing.assert_array_equal(arm.joint_ranges, plain.joint_ranges)

    def test_the_expert_succeeds_and_its_episodes_replay(self, arm):
        task = open_task("pick_and_place", arm)
        plan = Plan(twin=arm, run_seed=0, draws=tuple(default_draws(arm)))
        batch = run_batch(arm, task, plan.draw(range(8)), run_seed=0, episodes=range(8))
        assert batch.success.sum() >= 7
        assert replay_episode(arm, batch.episode(3)).identical

    @pytest.mark.slow
    def test_the_expert_succeeds_in_most_of_128_worlds(self, arm):
        task = open_task("pick_and_place", arm)
        plan = Plan(twin=arm, run_seed=0, draws=tuple(default_draws(arm)))
        batch = run_batch(arm, task, plan.draw(range(128)), run_seed=0, episodes=range(128))
        assert batch.success.mean() > 0.95

    def test_a_log_of_itself_replays_through_it_with_its_own_play_and_not_with_another(self, arm):
        """The log contains the link side; motors begin with their links."""
        still = np.zeros(20)
        wave = np.concatenate([still, 0.3 * np.sin(np.arange(40) / 4)])[:, None] * np.ones(6)
        commands = arm.home()[1] + wave
        free = prepare_replay(arm, [episode(arm, commands, np.tile(arm.home()[0][arm.joint_qpos], (60, 1)))])
        truth = free.twin.table(1, {f"joint/{name}/backlash": 0.03 for name in arm.robot.joints})
        measured = replay(open_backend(), free, truth)[0, 0]
        again = prepare_replay(arm, [episode(arm, commands, arm.units.to_si(measured))])
        np.testing.assert_allclose(replay(open_backend(), again, truth)[0, 0], measured, atol=1e-6)
        other = replay(open_backend(), again, free.twin.table(1))[0, 0]
        assert np.abs(other - measured).max() > 0.3  # degrees

    def test_what_is_wrong_with_gears_is_named(self, tmp_path):
        with pytest.raises(UnknownNameError, match="Unknown joint 'j7' in .*: robot.gears"):
            geared(tmp_path, backlash={"j7": 0.01})
        robot = {"servo": None, "gears": {}}
        with pytest.raises(InputError, match=r"the backlash of the gear of j0 is unknown. Give robot.gears.backlash"):
            joints_twin(tmp_path, robot=robot)


def episode(twin, commands, joints):
    units = twin.units
    return Episode(
        index=0,
        time=np.arange(len(commands)) / twin.control_hz,
        action=units.from_si(commands),
        state=units.from_si(joints),
        units=units,
    )
